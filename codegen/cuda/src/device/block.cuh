// What threads of a block do together. Blocks have one axis of whole warps.

FN u64 thread_in_grid() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
FN u64 threads_in_grid() { return (u64)gridDim.x * blockDim.x; }

// `W` neighbours, read and written at once: 16 bytes by one instruction.
template <class T, u32 W> struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Pack {
  T of[W];
};
template <class T> using Four = Pack<T, 4>;

struct alignas(16) Quad { u32 of[4]; };

template <u32 W, class T> FN Pack<T, W> pack(const T* from) {
  Pack<T, W> x;
#ifndef MEMC_EMULATED
  // Of narrow elements the compiler loads four at a time by itself.
  if constexpr (sizeof(x) % 16 == 0) {
    Quad quads[sizeof(x) / 16];
#pragma unroll
    for (u32 q = 0; q < sizeof(x) / 16; ++q) quads[q] = ((const Quad*)from)[q];
    memcpy(&x, quads, sizeof(x));
    return x;
  }
#endif
  x = *(const Pack<T, W>*)from;
  return x;
}
template <class T, u32 W> FN void put(T* to, const Pack<T, W>& x) {
#ifndef MEMC_EMULATED
  if constexpr (sizeof(x) % 16 == 0) {
    Quad quads[sizeof(x) / 16];
    memcpy(quads, &x, sizeof(x));
#pragma unroll
    for (u32 q = 0; q < sizeof(x) / 16; ++q) ((Quad*)to)[q] = quads[q];
    return;
  }
#endif
  *(Pack<T, W>*)to = x;
}
template <class T> FN Four<T> four(const T* from) { return pack<4>(from); }

// Positions `begin`, `begin + step`, ... below `end`. With `K` above zero there are at most `K` of them, which `hold` has
// loaded and `sweep` uses. Otherwise `sweep` loads `N` of them and then uses them. `load` and `use` get a position and the
// number of its place.
constexpr u32 AHEAD = 4;
// Loads ahead of packs of `w` elements, each with sums of its own: no more than registers allow.
FN constexpr u32 ahead_of(u32 w) { return w > 4 ? 2 : AHEAD; }
// Loads ahead of packs of `bytes` bytes of a row: narrow ones need more to be under way.
FN constexpr u32 row_ahead(u32 bytes) { return bytes > 4 ? AHEAD : 2 * AHEAD; }
FN constexpr u32 places(u32 k, u32 n = AHEAD) { return k > 0 ? k : n; }

template <u32 K, class F> FN void hold(i64 begin, i64 step, i64 end, const F& load) {
#pragma unroll
  for (u32 k = 0; k < K; ++k) {
    i64 p = begin + k * step;
    if (p < end) load(p, k);
  }
}
template <u32 K, u32 N = AHEAD, class L, class U> FN void sweep(i64 begin, i64 step, i64 end, const L& load, const U& use) {
  if constexpr (K > 0) {
    hold<K>(begin, step, end, use);
  } else {
    i64 p = begin;
    for (; p + (N - 1) * step < end; p += N * step) {
#pragma unroll
      for (u32 k = 0; k < N; ++k) load(p + k * step, k);
#pragma unroll
      for (u32 k = 0; k < N; ++k) use(p + k * step, k);
    }
    hold<N>(p, step, end, load);
    hold<N>(p, step, end, use);
  }
}

struct Sum {
  template <class A> static __device__ A join(A a, A b) { return op_add(a, b); }
};
struct Max {
  template <class A> static __device__ A join(A a, A b) { return op_max(a, b); }
};

// The value of the thread whose lane differs in the bits of `away`.
template <class A> FN A across(A v, int away) { return __shfl_xor_sync(0xffffffffu, v, away); }
#if MEMC_SLOW_F64
FN Total across(Total v, int away) { return Total{across(v.high, away), across(v.low, away)}; }
#else
FN Total across(Total v, int away) { return Total{across(v.sum, away)}; }
#endif

// The fold of one value of each of `L` neighbouring lanes, the same in all of them: a tree. `L` is a power of two.
template <class Op, u32 L, class A> FN A lanes_fold(A v) {
#pragma unroll
  for (u32 away = L / 2; away > 0; away >>= 1) v = Op::join(v, across(v, (int)away));
  return v;
}

// The fold of one value of each thread, the same in all threads: a tree in each warp, then warps in order.
template <class Op, class A> FN A block_fold(A v) {
  __shared__ A parts[32];
  v = lanes_fold<Op, 32>(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[0];
  for (u32 warp = 1; warp < blockDim.x / 32; ++warp) v = Op::join(v, parts[warp]);
  return v;
}

// Threads that take a row together: `L` neighbouring lanes, which need no barrier, or the block where `L` is zero. All lanes
// of a warp fold together, so that fewer lanes than a warp go on behind the last row.
template <u32 L> struct Team {
  static FN_MEMBER u32 own() { return L > 0 ? threadIdx.x % L : threadIdx.x; }
  static FN_MEMBER u32 size() { return L > 0 ? L : blockDim.x; }
  static FN_MEMBER u32 in_block() { return L > 0 ? blockDim.x / L : 1; }
  // The row of the first team of the block, and of this one.
  static FN_MEMBER i64 first() { return (i64)blockIdx.x * in_block(); }
  static FN_MEMBER i64 row() { return first() + (L > 0 ? threadIdx.x / L : 0); }
  static FN_MEMBER i64 step() { return (i64)gridDim.x * in_block(); }
  // What the team has written is seen by all of it.
  static FN_MEMBER void meet() {
    if constexpr (L > 0) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  template <class Op, class A> static FN_MEMBER A fold(A v) {
    if constexpr (L > 0) {
      return lanes_fold<Op, L>(v);
    } else {
      return block_fold<Op>(v);
    }
  }
};
