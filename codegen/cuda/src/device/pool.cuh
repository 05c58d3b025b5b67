// 2-D pooling. Gradients gather: an element of the input adds what the outputs give it, in their order.
//
// Positions within a plane are 32 bits wide where planes and windows allow it, in `I`.

// A window along one spatial axis.
template <class I> struct Axis {
  I size, kernel, stride, dilation, before, after, outputs;

  // Steps of `by` that reach `distance`. Most windows have steps of one.
  static __device__ I steps(I distance, I by) { return by == 1 ? distance : (distance + by - 1) / by; }

  // First input position of output `o`, and the number of positions, padding left out.
  __device__ void taps(I o, I& first, I& count) const {
    I begin = o * stride - before;
    I skip = begin < 0 ? steps(-begin, dilation) : 0;
    first = begin + skip * dilation;
    I room = first < size ? steps(size - first, dilation) : 0;
    I rest = kernel > skip ? kernel - skip : 0;
    count = rest < room ? rest : room;
  }

  // Positions of an undilated window that are in the input or its padding.
  __device__ I padded(I o) const {
    I room = before + size + after - o * stride;
    return room < 0 ? 0 : room < kernel ? room : kernel;
  }

  // The outputs `low..high` whose windows may hold position `at`.
  __device__ void outputs_of(I at, I& low, I& high) const {
    I reach = (kernel - 1) * dilation, end = at + before, last = (stride == 1 ? end : end / stride) + 1;
    low = end > reach ? steps(end - reach, stride) : 0;
    high = last < outputs ? last : outputs;
  }
};

// The first maximum of a window, or its first NaN, and its position in the plane.
template <class T, class I> FN f32 winner(const T* plane, const Axis<I>& h, const Axis<I>& w, I i, I j, I& at) {
  I h0, hn, w0, wn;
  h.taps(i, h0, hn);
  w.taps(j, w0, wn);
  f32 best = -infinity();
  at = hn * wn > 0 ? h0 * w.size + w0 : 0;
  for (I a = 0; a < hn; ++a) {
    I row = (h0 + a * h.dilation) * w.size + w0;
#pragma unroll 4
    for (I b = 0; b < wn; ++b) {
      I here = row + b * w.dilation;
      f32 x = up(plane[here]);
      // A number is replaced by a larger one or by NaN, NaN by nothing.
      if (!(x <= best || is_nan(best))) {
        best = x;
        at = here;
      }
    }
  }
  return best;
}

template <class T, class I> FN f32 average(const T* plane, const Axis<I>& h, const Axis<I>& w, I i, I j, bool count_pad) {
  I h0, hn, w0, wn;
  h.taps(i, h0, hn);
  w.taps(j, w0, wn);
  Total total = {};
  for (I a = h0; a < h0 + hn; ++a) {
    Total row = {};
#pragma unroll 4
    for (I b = w0; b < w0 + wn; ++b) add(row, up(plane[a * w.size + b]));
    total = op_add(total, row);
  }
  I count = count_pad ? h.padded(i) * w.padded(j) : hn * wn;
  return (f32)value(total) / (f32)(count > 0 ? count : 1);
}

// What position (`y`, `x`) of a plane gets from the averages that hold it.
template <class T, class I> FN f32 average_share(const T* dy, const Axis<I>& h, const Axis<I>& w, I y, I x, bool count_pad) {
  I i0, i1, j0, j1;
  h.outputs_of(y, i0, i1);
  w.outputs_of(x, j0, j1);
  f32 sum = 0.0f;
  for (I i = i0; i < i1; ++i) {
    for (I j = j0; j < j1; ++j) {
      I first, hn, wn;
      h.taps(i, first, hn);
      w.taps(j, first, wn);
      I count = count_pad ? h.padded(i) * w.padded(j) : hn * wn;
      sum += up(dy[i * w.outputs + j]) / (f32)(count > 0 ? count : 1);
    }
  }
  return sum;
}

// What position (`y`, `x`) of a plane gets from the maxima that it is.
template <class T, class I> FN f32 winner_share(const T* dy, const T* plane, const Axis<I>& h, const Axis<I>& w, I y, I x) {
  I i0, i1, j0, j1;
  h.outputs_of(y, i0, i1);
  w.outputs_of(x, j0, j1);
  f32 sum = 0.0f;
  for (I i = i0; i < i1; ++i) {
    for (I j = j0; j < j1; ++j) {
      I at;
      winner(plane, h, w, i, j, at);
      if (at == y * w.size + x) sum += up(dy[i * w.outputs + j]);
    }
  }
  return sum;
}

// Sums of `dy` at the positions that `indices` name, in the order of the outputs. A warp has a band of a plane, of `band`
// elements, at most BAND, in shared memory, and looks at all outputs of the plane, 32 at a time. Of those that name one position the first
// adds all.
template <class T, u32 BAND>
FN void max_pool_grad_band(const T* dy, const i64* indices, T* dx, i64 window, i64 begin, i64 end) {
  __shared__ f32 sums[BAND];
  __shared__ f32 values[32];
  constexpr u32 CHUNKS = 2 * AHEAD;
  u32 lane = threadIdx.x;
  i64 named[CHUNKS];
  f32 given[CHUNKS];
  __syncwarp();
  for (i64 e = lane; e < end - begin; e += 32) sums[e] = 0.0f;
  for (i64 first = lane; first < window + lane; first += 32 * CHUNKS) {
#pragma unroll
    for (u32 k = 0; k < CHUNKS; ++k) {
      i64 j = first + k * 32;
      named[k] = j < window ? indices[j] : -1;
      given[k] = j < window ? up(dy[j]) : 0.0f;
    }
#pragma unroll
    for (u32 k = 0; k < CHUNKS; ++k) {
      bool is_here = named[k] >= begin && named[k] < end;
      if (__ballot_sync(0xffffffffu, is_here) == 0) continue;
      u32 at = is_here ? (u32)(named[k] - begin) : BAND + lane;
      values[lane] = given[k];
      __syncwarp();
      u32 peers = __match_any_sync(0xffffffffu, at);
      if (is_here && (peers & ((1u << lane) - 1)) == 0) {
        f32 sum = sums[at];
        for (u32 bits = peers; bits != 0; bits &= bits - 1) sum += values[__ffs((i32)bits) - 1];
        sums[at] = sum;
      }
      __syncwarp();
    }
  }
  __syncwarp();
  for (i64 e = lane; e < end - begin; e += 32) dx[begin + e] = down<T>(sums[e]);
}

template <class T, u32 BAND>
FN void max_pool_grad(const T* dy, const i64* indices, T* dx, i64 planes, i64 window, i64 plane, i64 band) {
  for (i64 own = blockIdx.y; own < planes; own += gridDim.y) {
    for (i64 at = blockIdx.x * band; at < plane; at += gridDim.x * band) {
      i64 begin = own * plane + at, end = own * plane + (at + band < plane ? at + band : plane);
      max_pool_grad_band<T, BAND>(dy + own * window, indices + own * window, dx, window, begin, end);
    }
  }
}
