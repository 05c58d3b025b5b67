// Element types, their conversions, and what one element of each op is. No header is included: NVRTC compiles this alone.
//
// 16-bit floats are computed in f32, 8-bit integers in i32. Integers wrap: they are added and multiplied unsigned.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct b8 { u8 bits; };

#define FN static __device__ __forceinline__
#define FN_MEMBER __device__ __forceinline__

FN f32 of_bits(u32 bits) { return __uint_as_float(bits); }
FN u32 to_bits(f32 x) { return __float_as_uint(x); }
FN bool is_nan(f32 x) { return x != x; }
FN bool is_finite(f32 x) { return (to_bits(x) & 0x7f800000u) != 0x7f800000u; }
FN f32 infinity() { return of_bits(0x7f800000u); }

#ifndef MEMC_EMULATED
FN f32 half_to_float(u16 bits) {
  f32 x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
FN u16 float_to_half(f32 x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif

FN u16 float_to_brain(f32 x) {
  u32 bits = to_bits(x);
  // Rounding could carry a NaN to infinity.
  return (u16)(is_nan(x) ? bits >> 16 | 0x40u : (bits + (0x7fffu + (bits >> 16 & 1u))) >> 16);
}

// The type that elements are computed in.
template <class T> struct wide { typedef T type; };
template <> struct wide<f16> { typedef f32 type; };
template <> struct wide<bf16> { typedef f32 type; };
template <> struct wide<i8> { typedef i32 type; };
template <> struct wide<u8> { typedef i32 type; };
template <> struct wide<b8> { typedef i32 type; };

FN f32 up(f32 x) { return x; }
FN f32 up(f16 x) { return half_to_float(x.bits); }
FN f32 up(bf16 x) { return of_bits((u32)x.bits << 16); }
FN i32 up(i32 x) { return x; }
FN i64 up(i64 x) { return x; }
FN i32 up(i8 x) { return x; }
FN i32 up(u8 x) { return x; }
FN i32 up(b8 x) { return x.bits; }

template <class T> FN T down(typename wide<T>::type x) { return (T)x; }
template <> __device__ __forceinline__ f16 down<f16>(f32 x) { return f16{float_to_half(x)}; }
template <> __device__ __forceinline__ bf16 down<bf16>(f32 x) { return bf16{float_to_brain(x)}; }
template <> __device__ __forceinline__ b8 down<b8>(i32 x) { return b8{(u8)x}; }

// Float to integer: truncates and saturates, NaN gives zero.
FN i64 truncate(f32 x, i64 low, i64 high) {
  if (is_nan(x)) return 0;
  if (x >= (f32)high) return high;
  if (x <= (f32)low) return low;
  return (i64)x;
}

#define LOWEST_I64 (-9223372036854775807LL - 1)
#define LOWEST_I32 (-2147483647 - 1)

template <class T> struct from_float {};
template <> struct from_float<f32> { static __device__ f32 of(f32 x) { return x; } };
template <> struct from_float<f16> { static __device__ f16 of(f32 x) { return down<f16>(x); } };
template <> struct from_float<bf16> { static __device__ bf16 of(f32 x) { return down<bf16>(x); } };
template <> struct from_float<i64> {
  static __device__ i64 of(f32 x) { return truncate(x, LOWEST_I64, 9223372036854775807LL); }
};
template <> struct from_float<i32> {
  static __device__ i32 of(f32 x) { return (i32)truncate(x, LOWEST_I32, 2147483647); }
};
template <> struct from_float<i8> { static __device__ i8 of(f32 x) { return (i8)truncate(x, -128, 127); } };
template <> struct from_float<u8> { static __device__ u8 of(f32 x) { return (u8)truncate(x, 0, 255); } };
template <> struct from_float<b8> { static __device__ b8 of(f32 x) { return b8{(u8)(x != 0.0f)}; } };

// The integer cut to 24 bits, the lowest of them set where bits were cut off: rounded further, it is as if the integer
// had been rounded once.
FN f32 sticky(i64 x) {
  u64 magnitude = x < 0 ? 0ULL - (u64)x : (u64)x;
  u32 cut = 0;
  while (magnitude >> cut >> 24) ++cut;
  u64 kept = magnitude >> cut;
  u64 lost = kept << cut != magnitude;
  f32 value = (f32)(kept | lost) * (f32)(1ULL << cut);
  return x < 0 ? -value : value;
}

template <class T> struct from_int { static __device__ T of(i64 x) { return (T)x; } };
template <> struct from_int<f16> { static __device__ f16 of(i64 x) { return down<f16>(sticky(x)); } };
template <> struct from_int<bf16> { static __device__ bf16 of(i64 x) { return down<bf16>(sticky(x)); } };
template <> struct from_int<b8> { static __device__ b8 of(i64 x) { return b8{(u8)(x != 0)}; } };

template <class T> FN T cast(f32 x) { return from_float<T>::of(x); }
template <class T> FN T cast(i32 x) { return from_int<T>::of(x); }
template <class T> FN T cast(i64 x) { return from_int<T>::of(x); }

// One definition for both widths of integers.
#define INTEGER(T, U) \
  FN T op_neg(T x) { return (T)((U)0 - (U)x); } \
  FN T op_abs(T x) { return x < 0 ? op_neg(x) : x; } \
  FN T op_sign(T x) { return (T)(x > 0) - (T)(x < 0); } \
  FN T op_relu(T x) { return x < 0 ? (T)0 : x; } \
  FN T op_add(T a, T b) { return (T)((U)a + (U)b); } \
  FN T op_sub(T a, T b) { return (T)((U)a - (U)b); } \
  FN T op_mul(T a, T b) { return (T)((U)a * (U)b); } \
  FN T op_div(T a, T b) { return b == 0 ? (T)0 : b == -1 ? op_neg(a) : a / b; } \
  FN T op_min(T a, T b) { return a < b ? a : b; } \
  FN T op_max(T a, T b) { return a > b ? a : b; } \
  FN T op_pow(T a, T b) { \
    /* A negative exponent gives the real power truncated, as division does. */ \
    if (b < 0) return a == 1 ? (T)1 : a == -1 ? (T)(b % 2 == 0 ? 1 : -1) : (T)0; \
    U base = (U)a, result = 1; \
    for (; b > 0; b >>= 1, base *= base) if (b & 1) result *= base; \
    return (T)result; \
  }
INTEGER(i32, u32)
INTEGER(i64, u64)

FN f32 op_neg(f32 x) { return -x; }
FN f32 op_abs(f32 x) { return fabsf(x); }
FN f32 op_sign(f32 x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
FN f32 op_relu(f32 x) { return x < 0.0f ? 0.0f : x; }
FN f32 op_add(f32 a, f32 b) { return a + b; }
FN f32 op_sub(f32 a, f32 b) { return a - b; }
FN f32 op_mul(f32 a, f32 b) { return a * b; }
FN f32 op_div(f32 a, f32 b) { return a / b; }
FN f32 op_pow(f32 a, f32 b) { return b == 2.0f ? a * a : powf(a, b); }
FN f32 op_min(f32 a, f32 b) { return a < b || is_nan(a) ? a : b; }
FN f32 op_max(f32 a, f32 b) { return a > b || is_nan(a) ? a : b; }
FN u64 op_add(u64 a, u64 b) { return a + b; }

FN f32 op_sigmoid(f32 x) { return 1.0f / (1.0f + expf(-x)); }

// Beyond this, gelu is zero or its argument. Minus infinity times zero would be neither.
FN f32 not_below(f32 x) { return x < -700.0f ? -700.0f : x; }
FN f32 clamped(f32 x) { return x > 700.0f ? 700.0f : not_below(x); }

// x Phi(x), and its derivative Phi(x) + x phi(x).
FN f32 op_gelu(f32 x) {
  x = not_below(x);
  return x * (0.5f * erfcf(x * -0.70710678f));
}
FN f32 op_gelu_slope(f32 x) {
  x = clamped(x);
  return 0.5f * erfcf(x * -0.70710678f) + x * (0.39894228f * expf(-0.5f * x * x));
}

// x sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3), and its derivative s + 2 x s (1 - s) u'.
FN f32 gelu_inner(f32 x) { return 0.79788456f * (x + 0.044715f * x * x * x); }
FN f32 op_gelu_tanh(f32 x) {
  x = not_below(x);
  return x / (1.0f + expf(-2.0f * gelu_inner(x)));
}
FN f32 op_gelu_tanh_slope(f32 x) {
  x = clamped(x);
  f32 u = gelu_inner(x), s = op_sigmoid(2.0f * u), t = op_sigmoid(-2.0f * u);
  return s + 2.0f * x * (0.79788456f * (1.0f + 0.134145f * x * x)) * (s * t);
}

// The number, or zero where it is smaller than `least`.
FN f32 unless_below(f32 least, f32 x) {
  return fabsf(x) < least ? 0.0f : x;
}

// `base` to the power of `n`: products alone, in an order that depends on `n` alone, as on the host.
FN f64 power(f64 base, i64 n) {
  f64 all = 1.0;
  for (; n > 0; n >>= 1, base *= base) {
    if (n & 1) all *= base;
  }
  return all;
}
