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

// Gradient of gather. Most rows of the result are named by few indices, which are sorted by counting; a row that more than
// SORTED of them name looks through all.

// Adds to `sum` the `W` elements that begin at column `column` of the rows among `begin..end` whose index is `wanted`, by one
// warp. Lanes look at an index each.
template <class T, class I, u32 W>
FN void gather_grad_among(const I* indices, const T* dy, i64 begin, i64 end, i64 wanted, i64 extent, i64 inner, i64 column,
                          f32 (&sum)[W]) {
  u32 lane = threadIdx.x % 32;
  I ahead[AHEAD];
  auto use = [&](i64 first, u32 k) {
    bool is_one = first + lane < end && resolve(ahead[k], extent) == wanted;
    u32 bits = __ballot_sync(0xffffffffu, is_one);
    while (bits != 0) {
      Pack<T, W> found[AHEAD] = {};
#pragma unroll
      for (u32 q = 0; q < AHEAD; ++q) {
        if (bits == 0) continue;
        i64 at = first + (__ffs((i32)bits) - 1);
        bits &= bits - 1;
        if (column < inner) found[q] = pack<W>(dy + at * inner + column);
      }
#pragma unroll
      for (u32 q = 0; q < AHEAD; ++q) {
#pragma unroll
        for (u32 w = 0; w < W; ++w) sum[w] += up(found[q].of[w]);
      }
    }
  };
  auto load = [&](i64 first, u32 k) { ahead[k] = first + lane < end ? indices[first + lane] : 0; };
  sweep<0>(begin, 32, end, load, use);
}

// A block for each row of the result along x, 32 * W columns along y and slab along z. With a `list` only its rows are
// taken; it begins with their number. Each warp looks at an eighth of the indices; sums are joined in their order.
template <class T, class I, u32 W>
FN void gather_grad_rows(const I* indices, const u32* list, const T* dy, T* y, i64 outer, i64 extent, i64 inner, i64 count) {
  __shared__ f32 tile[8][32 * W];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i64 rows = list ? list[0] : extent, columns = (inner + 32 * W - 1) / (32 * W);
  Part part(warp, 8, count);
  for (i64 at = blockIdx.x; at < rows; at += gridDim.x) {
    i64 wanted = list ? list[1 + at] : at;
    for (i64 slab = blockIdx.z; slab < outer; slab += gridDim.z) {
      for (i64 group = blockIdx.y; group < columns; group += gridDim.y) {
        f32 sum[W] = {};
        gather_grad_among<T, I, W>(indices, dy + slab * count * inner, part.begin, part.end, wanted, extent, inner,
                                   (group * 32 + lane) * W, sum);
        __syncthreads();
#pragma unroll
        for (u32 w = 0; w < W; ++w) tile[warp][lane * W + w] = sum[w];
        __syncthreads();
        for (u32 own = threadIdx.x; own < 32 * W; own += blockDim.x) {
          i64 c = group * 32 * W + own;
          if (c >= inner) continue;
          f32 total = tile[0][own];
          for (u32 r = 1; r < 8; ++r) total += tile[r][own];
          y[(slab * extent + wanted) * inner + c] = down<T>(total);
        }
      }
    }
  }
}

// By one block: from the number of indices that name a row, in `ends`, to where the indices of the row begin in their order.
// A thread takes neighbours. Rows of many indices go to `list`.
template <u32 SORTED> FN void gather_grad_ends(u32* ends, u32* list, i64 extent) {
  __shared__ u32 before[256];
  __shared__ u32 listed;
  i64 each = (extent + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * each;
  i64 end = begin + each < extent ? begin + each : extent;
  if (threadIdx.x == 0) listed = 0;
  u32 sum = 0;
#pragma unroll 4
  for (i64 i = begin; i < end; ++i) sum += ends[i];
  before[threadIdx.x] = sum;
  __syncthreads();
  u32 total = 0;
  for (u32 t = 0; t < threadIdx.x; ++t) total += before[t];
#pragma unroll 4
  for (i64 i = begin; i < end; ++i) {
    u32 own = ends[i];
    ends[i] = total;
    total += own;
    if (own > SORTED) list[1 + atomicAdd(&listed, 1u)] = (u32)i;
  }
  __syncthreads();
  if (threadIdx.x == 0) list[0] = listed;
}

// A block for each row of the result along x, and slab along y. The row's indices lie in `order` in any order, up to `ends`.
template <class T, u32 W, u32 SORTED>
FN void gather_grad_sorted(const u32* ends, const u32* order, const T* dy, T* y, i64 outer, i64 extent, i64 inner,
                           i64 count) {
  __shared__ u32 found[SORTED];
  __shared__ u32 sorted[SORTED];
  for (i64 wanted = blockIdx.x; wanted < extent; wanted += gridDim.x) {
    u32 begin = wanted > 0 ? ends[wanted - 1] : 0, size = ends[wanted] - begin;
    if (size > SORTED) continue;
    __syncthreads();
    for (u32 t = threadIdx.x; t < size; t += blockDim.x) found[t] = order[begin + t];
    __syncthreads();
    for (u32 t = threadIdx.x; t < size; t += blockDim.x) {
      u32 rank = 0;
      for (u32 other = 0; other < size; ++other) rank += found[other] < found[t];
      sorted[rank] = found[t];
    }
    __syncthreads();
    for (i64 slab = blockIdx.y; slab < outer; slab += gridDim.y) {
      const T* from = dy + slab * count * inner;
      T* to = y + (slab * extent + wanted) * inner;
      for (i64 p = threadIdx.x; p < inner / W; p += blockDim.x) {
        f32 sum[W] = {};
        Pack<T, W> ahead[AHEAD];
        sweep<0>(0, 1, size, [&](i64 t, u32 k) { ahead[k] = pack<W>(from + sorted[t] * inner + p * W); },
                 [&](i64, u32 k) {
#pragma unroll
                   for (u32 w = 0; w < W; ++w) sum[w] += up(ahead[k].of[w]);
                 });
        Pack<T, W> z;
#pragma unroll
        for (u32 w = 0; w < W; ++w) z.of[w] = down<T>(sum[w]);
        put(to + p * W, z);
      }
    }
  }
}
