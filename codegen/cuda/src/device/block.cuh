// What threads of a block do together. Blocks have one axis of whole warps.

FN u64 thread_in_grid() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
FN u64 threads_in_grid() { return (u64)gridDim.x * blockDim.x; }

// Four neighbours, read and written at once.
template <class T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
  T of[4];
};
template <class T> FN Four<T> four(const T* from) { return *(const Four<T>*)from; }
template <class T> FN void put(T* to, const Four<T>& x) { *(Four<T>*)to = x; }

struct Sum {
  template <class A> static __device__ A join(A a, A b) { return op_add(a, b); }
};
struct Max {
  template <class A> static __device__ A join(A a, A b) { return op_max(a, b); }
};

// The fold of one value of each thread, the same in all threads: a tree in each warp, then warps in order.
template <class Op, class A> FN A block_fold(A v) {
  __shared__ A parts[32];
  for (int away = 16; away > 0; away >>= 1) v = Op::join(v, __shfl_xor_sync(0xffffffffu, v, away));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[0];
  for (u32 warp = 1; warp < blockDim.x / 32; ++warp) v = Op::join(v, parts[warp]);
  return v;
}
