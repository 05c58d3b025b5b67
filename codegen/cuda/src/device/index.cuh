// Gather and scatter. Sums go in the order of the indices.

// The position that an index names, negative ones counted from the end; -1 where there is none.
FN i64 resolve(i64 index, i64 extent) {
  i64 at = index < 0 ? index + extent : index;
  return at >= 0 && at < extent ? at : -1;
}

// Leaves the least of what threads report: the flat position above, the value below, each cut to 32 bits.
FN void report_index(u64* found, i64 at, i64 value) {
  i64 low = -2147483647LL - 1, high = 2147483647LL, last = 4294967294LL;
  u64 position = (u64)(at < last ? at : last), shown = (u32)(value < low ? low : value > high ? high : value);
  atomicMin(found, position << 32 | shown);
}

// Whether `a` comes before `b` when the largest comes first. NaN counts as the largest.
FN bool op_before(f32 a, f32 b) { return a > b || (is_nan(a) && !is_nan(b)); }
template <class T> FN bool op_before(T a, T b) { return a > b; }

FN f32 plus(f32 a, f32 b) { return a + b; }
template <class T> FN T plus(T a, T b) { return down<T>(op_add(up(a), up(b))); }

// Gradient of gather: a block for each row of the result. Its threads look at as many indices at a time, and then add the
// rows that were found in order.
template <class T, class I>
FN void gather_grad_rows(const I* indices, const T* dy, T* y, i64 outer, i64 extent, i64 inner, i64 count) {
  __shared__ u32 found[32];
  for (i64 row = blockIdx.x; row < outer * extent; row += gridDim.x) {
    i64 slab = row / extent, wanted = row % extent;
    for (i64 first = 0; first < inner; first += blockDim.x) {
      i64 column = first + threadIdx.x;
      f32 sum = 0.0f;
      for (i64 tile = 0; tile < count; tile += blockDim.x) {
        i64 j = tile + threadIdx.x;
        u32 mine = __ballot_sync(0xffffffffu, j < count && resolve(indices[j], extent) == wanted);
        __syncthreads();
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = mine;
        __syncthreads();
        if (column < inner) {
          for (u32 warp = 0; warp < blockDim.x / 32; ++warp) {
            for (u32 bits = found[warp]; bits != 0; bits &= bits - 1) {
              i64 at = tile + warp * 32 + (__ffs((i32)bits) - 1);
              sum += up(dy[(slab * count + at) * inner + column]);
            }
          }
        }
      }
      if (column < inner) y[row * inner + column] = down<T>(sum);
    }
  }
}
