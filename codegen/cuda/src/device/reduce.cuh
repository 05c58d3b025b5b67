// Reductions: what is folded, and loops over rows and columns.
//
// A fold is cut into parts where there are few results. The parts' values go to the workspace and are joined in order.

template <class T> struct accumulator { typedef u64 type; };
template <> struct accumulator<f32> { typedef f64 type; };
template <> struct accumulator<f16> { typedef f64 type; };
template <> struct accumulator<bf16> { typedef f64 type; };

FN f64 accumulate(f32 x) { return x; }
FN u64 accumulate(i32 x) { return (u64)(i64)x; }
FN u64 accumulate(i64 x) { return (u64)x; }

template <class T> FN T of_total(f64 a) { return down<T>((f32)a); }
template <class T> FN T of_total(u64 a) { return (T)(i64)a; }
FN f64 mean_of(f64 a, i64 count) { return a / (f64)count; }
FN u64 mean_of(u64 a, i64 count) { return count > 0 ? (u64)((i64)a / count) : 0; }

template <class T> struct ReduceSum : Sum {
  typedef T In;
  typedef T Out;
  typedef typename accumulator<T>::type Acc;
  static __device__ Acc start() { return 0; }
  static __device__ Acc take(T x) { return accumulate(up(x)); }
  static __device__ T finish(Acc a, i64) { return of_total<T>(a); }
};

template <class T> struct ReduceMean : ReduceSum<T> {
  static __device__ T finish(typename accumulator<T>::type a, i64 count) { return of_total<T>(mean_of(a, count)); }
};

template <class T> struct ReduceSquares : ReduceSum<T> {
  typedef f32 Out;
  static __device__ f64 take(T x) { return (f64)up(x) * (f64)up(x); }
  static __device__ f32 finish(f64 a, i64) { return (f32)a; }
};

FN f32 lowest(f32) { return -infinity(); }
FN i32 lowest(i32) { return LOWEST_I32; }
FN i64 lowest(i64) { return LOWEST_I64; }

template <class T> struct ReduceMax : Max {
  typedef T In;
  typedef T Out;
  typedef typename wide<T>::type Acc;
  static __device__ Acc start() { return lowest(Acc()); }
  static __device__ Acc take(T x) { return up(x); }
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
FN void put_part(typename R::Acc acc, i64 result, i64 part, i64 parts, i64 count, typename R::Out* y,
                 typename R::Acc* partial) {
  if (parts == 1) {
    y[result] = R::finish(acc, count);
  } else {
    partial[result * parts + part] = acc;
  }
}

// One block for each part of a result: its threads take adjacent elements.
template <class R, class Kept, class Along>
FN void reduce_rows(const typename R::In* x, typename R::Out* y, typename R::Acc* partial, i64 results, i64 count,
                    i64 parts, Kept kept, Along along) {
  for (i64 unit = blockIdx.x; unit < results * parts; unit += gridDim.x) {
    i64 result = unit / parts;
    Part part(unit % parts, parts, count);
    const typename R::In* from = x + kept(result);
    typename R::Acc acc = R::start();
    for (i64 i = part.begin + threadIdx.x; i < part.end; i += blockDim.x) acc = R::join(acc, R::take(from[along(i)]));
    acc = block_fold<R>(acc);
    if (threadIdx.x == 0) put_part<R>(acc, result, unit % parts, parts, count, y, partial);
  }
}

// One block for each part of 32 adjacent results: 8 threads for each of them.
template <class R, class Kept, class Along>
FN void reduce_columns(const typename R::In* x, typename R::Out* y, typename R::Acc* partial, i64 results, i64 count,
                       i64 parts, Kept kept, Along along) {
  __shared__ typename R::Acc tile[8][32];
  u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
  for (i64 unit = blockIdx.x; unit < (results + 31) / 32 * parts; unit += gridDim.x) {
    i64 result = unit / parts * 32 + lane;
    Part part(unit % parts, parts, count);
    typename R::Acc acc = R::start();
    if (result < results) {
      const typename R::In* from = x + kept(result);
      for (i64 i = part.begin + row; i < part.end; i += 8) acc = R::join(acc, R::take(from[along(i)]));
    }
    __syncthreads();
    tile[row][lane] = acc;
    __syncthreads();
    if (row == 0 && result < results) {
      for (u32 r = 1; r < 8; ++r) acc = R::join(acc, tile[r][lane]);
      put_part<R>(acc, result, unit % parts, parts, count, y, partial);
    }
  }
}

// Joins the parts of every result in order.
template <class R>
FN void reduce_parts(typename R::Out* y, const typename R::Acc* partial, i64 result, i64 count, i64 parts) {
  typename R::Acc acc = partial[result * parts];
  for (i64 p = 1; p < parts; ++p) acc = R::join(acc, partial[result * parts + p]);
  y[result] = R::finish(acc, count);
}
