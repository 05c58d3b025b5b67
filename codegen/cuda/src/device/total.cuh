// Sums of many f32, with the precision of f64 or nearly so. Cards of some architectures compute f64 at 1/32 or 1/64 of the
// rate of f32: there a sum is a pair of f32, and its terms are added by Knuth's two-sum ("The Art of Computer Programming",
// volume 2, section 4.2.2) and multiplied exactly with a fused product. Both forms add in one order.

#ifndef MEMC_SLOW_F64
#if defined(MEMC_EMULATED) || __CUDA_ARCH__ == 600 || __CUDA_ARCH__ == 700 || __CUDA_ARCH__ == 800 || \
    __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
#define MEMC_SLOW_F64 0
#else
#define MEMC_SLOW_F64 1
#endif
#endif

#if MEMC_SLOW_F64

// The type of what is computed once for a row by every thread.
typedef f32 real;

struct alignas(8) Total { f32 high, low; };

FN void add(Total& t, f32 x) {
  f32 sum = t.high + x, part = sum - t.high;
  // Of a sum that is not finite the rest would not be a number.
  t.low += is_finite(sum) ? (t.high - (sum - part)) + (x - part) : 0.0f;
  t.high = sum;
}
FN void add_product(Total& t, f32 a, f32 b) {
  f32 product = a * b;
  add(t, product);
  t.low += is_finite(product) ? __fmaf_rn(a, b, -product) : 0.0f;
}
FN void scale(Total& t, f32 by) {
  f32 product = t.high * by;
  t.low = t.low * by + (is_finite(product) ? __fmaf_rn(t.high, by, -product) : 0.0f);
  t.high = product;
}
FN Total op_add(Total a, Total b) {
  add(a, b.high);
  a.low += b.low;
  return a;
}
FN f64 exact(Total t) { return (f64)t.high + (f64)t.low; }

#else

typedef f64 real;

struct Total { f64 sum; };

FN void add(Total& t, f32 x) { t.sum += x; }
FN void add_product(Total& t, f32 a, f32 b) { t.sum += (f64)a * (f64)b; }
FN void scale(Total& t, f32 by) { t.sum *= by; }
FN Total op_add(Total a, Total b) { return Total{a.sum + b.sum}; }
FN f64 exact(Total t) { return t.sum; }

#endif

FN real value(Total t) { return (real)exact(t); }

// Adds a distance, its square, or its product with `a`.
FN void add_difference(Total& t, f32 x, f32 centre) {
#if MEMC_SLOW_F64
  add(t, x - centre);
#else
  t.sum += (f64)x - (f64)centre;
#endif
}
FN void add_square(Total& t, f32 x, real centre) {
#if MEMC_SLOW_F64
  add_product(t, x - centre, x - centre);
#else
  t.sum += (x - centre) * (x - centre);
#endif
}
FN void add_distance(Total& t, f32 a, f32 x, f32 centre) {
#if MEMC_SLOW_F64
  add_product(t, a, x - centre);
#else
  t.sum += (f64)a * ((f64)x - (f64)centre);
#endif
}
