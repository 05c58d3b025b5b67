// Reductions: what is folded, and loops over rows and columns.
//
// A fold is cut into parts where there are few results. The parts' values go to the workspace, and a warp joins those of a
// result.

template <class T> struct accumulator { typedef u64 type; };
template <> struct accumulator<f32> { typedef Total type; };
template <> struct accumulator<f16> { typedef Total type; };
template <> struct accumulator<bf16> { typedef Total type; };

FN void accumulate(Total& a, f32 x) { add(a, x); }
FN void accumulate(u64& a, i32 x) { a += (u64)(i64)x; }
FN void accumulate(u64& a, i64 x) { a += (u64)x; }

FN f32 mean_of(Total a, i64 count) { return (f32)(exact(a) / (f64)count); }
FN i64 mean_of(u64 a, i64 count) { return count > 0 ? (i64)a / count : 0; }

template <class T> struct ReduceSum : Sum {
  typedef T In;
  typedef T Out;
  typedef typename accumulator<T>::type Acc;
  static __device__ Acc start() { return Acc{}; }
  static __device__ void take(Acc& a, T x) { accumulate(a, up(x)); }
  static __device__ T finish(Total a, i64) { return down<T>((f32)value(a)); }
  static __device__ T finish(u64 a, i64) { return (T)(i64)a; }
};

template <class T> struct ReduceMean : ReduceSum<T> {
  static __device__ T finish(Total a, i64 count) { return down<T>(mean_of(a, count)); }
  static __device__ T finish(u64 a, i64 count) { return (T)mean_of(a, count); }
};

template <class T> struct ReduceSquares : ReduceSum<T> {
  typedef f32 Out;
  static __device__ void take(Total& a, T x) { add_product(a, up(x), up(x)); }
  static __device__ f32 finish(Total a, i64) { return (f32)value(a); }
};

FN f32 lowest(f32) { return -infinity(); }
FN i32 lowest(i32) { return LOWEST_I32; }
FN i64 lowest(i64) { return LOWEST_I64; }

template <class T> struct ReduceMax : Max {
  typedef T In;
  typedef T Out;
  typedef typename wide<T>::type Acc;
  static __device__ Acc start() { return lowest(Acc()); }
  static __device__ void take(Acc& a, T x) { a = op_max(a, up(x)); }
  static __device__ T finish(Acc a, i64) { return down<T>(a); }
};

// Part `part` of `parts` of `count` positions.
struct Part {
  i64 begin, end;
  __device__ Part(i64 part, i64 parts, i64 count) {
    i64 size = (count + parts - 1) / parts;
    begin = part * size < count ? part * size : count;
    end = begin + size < count ? begin + size : count;
  }
};

template <class R>
FN void put_part(typename R::Acc acc, i64 result, i64 results, i64 count, typename R::Out* y, typename R::Acc* partial) {
  if (gridDim.y == 1) {
    y[result] = R::finish(acc, count);
  } else {
    partial[blockIdx.y * results + result] = acc;
  }
}

// A team for each result, along x; its threads take adjacent packs. Blocks take a part of it, along y. `along` is called for
// every `W`-th position.
template <class R, u32 W, u32 L, class Kept, class Along>
FN void reduce_rows(const typename R::In* x, typename R::Out* y, typename R::Acc* partial, i64 results, i64 count, Kept kept,
                    Along along) {
  Part part(blockIdx.y, gridDim.y, count / W);
  for (i64 first = Team<L>::first(); first < results; first += Team<L>::step()) {
    i64 result = first + (Team<L>::row() - Team<L>::first());
    typename R::Acc acc = R::start();
    if (result < results) {
      const typename R::In* from = x + kept(result);
      Pack<typename R::In, W> ahead[AHEAD];
      sweep<0>(part.begin + Team<L>::own(), Team<L>::size(), part.end,
               [&](i64 p, u32 k) { ahead[k] = pack<W>(from + along(p * W)); }, [&](i64, u32 k) {
#pragma unroll
                 for (u32 w = 0; w < W; ++w) R::take(acc, ahead[k].of[w]);
               });
    }
    acc = Team<L>::template fold<R>(acc);
    if (Team<L>::own() == 0 && result < results) put_part<R>(acc, result, results, count, y, partial);
  }
}

// A block for 32 * W adjacent results, along x, and a part of them, along y: 8 threads for each `W` of them. `kept` is called
// for every `W`-th result.
template <class R, u32 W, class Kept, class Along>
FN void reduce_columns(const typename R::In* x, typename R::Out* y, typename R::Acc* partial, i64 results, i64 count,
                       Kept kept, Along along) {
  __shared__ typename R::Acc tile[8][32 * W];
  u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
  Part part(blockIdx.y, gridDim.y, count);
  for (i64 group = blockIdx.x; group * 32 * W < results; group += gridDim.x) {
    i64 first = (group * 32 + lane) * W;
    typename R::Acc acc[W];
#pragma unroll
    for (u32 w = 0; w < W; ++w) acc[w] = R::start();
    if (first < results) {
      const typename R::In* from = x + kept(first);
      Pack<typename R::In, W> ahead[ahead_of(W)];
      sweep<0, ahead_of(W)>(part.begin + row, 8, part.end, [&](i64 i, u32 k) { ahead[k] = pack<W>(from + along(i)); },
               [&](i64, u32 k) {
#pragma unroll
                 for (u32 w = 0; w < W; ++w) R::take(acc[w], ahead[k].of[w]);
               });
    }
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < W; ++w) tile[row][lane * W + w] = acc[w];
    __syncthreads();
    for (u32 own = threadIdx.x; own < 32 * W; own += blockDim.x) {
      i64 result = group * 32 * W + own;
      if (result >= results) continue;
      typename R::Acc total = tile[0][own];
      for (u32 r = 1; r < 8; ++r) total = R::join(total, tile[r][own]);
      put_part<R>(total, result, results, count, y, partial);
    }
  }
}

// Joins the parts of a result, by one warp.
template <class R>
FN void reduce_parts(typename R::Out* y, const typename R::Acc* partial, i64 results, i64 count, i64 parts) {
  for (i64 result = blockIdx.x; result < results; result += gridDim.x) {
    typename R::Acc acc = R::start(), ahead[AHEAD];
    sweep<0>(threadIdx.x, blockDim.x, parts, [&](i64 p, u32 k) { ahead[k] = partial[p * results + result]; },
             [&](i64, u32 k) { acc = R::join(acc, ahead[k]); });
    acc = block_fold<R>(acc);
    if (threadIdx.x == 0) y[result] = R::finish(acc, count);
  }
}
