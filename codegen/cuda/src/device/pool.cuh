// 2-D pooling. Gradients gather: an element of the input adds what the outputs give it, in their order.

// A window along one spatial axis.
struct Axis {
  i64 size, kernel, stride, dilation, before, after, outputs;

  // First input position of output `o`, and the number of positions, padding left out.
  __device__ void taps(i64 o, i64& first, i64& count) const {
    i64 begin = o * stride - before;
    i64 skip = begin < 0 ? (-begin + dilation - 1) / dilation : 0;
    first = begin + skip * dilation;
    i64 room = first < size ? (size - first + dilation - 1) / dilation : 0;
    i64 rest = kernel > skip ? kernel - skip : 0;
    count = rest < room ? rest : room;
  }

  // Positions of an undilated window that are in the input or its padding.
  __device__ i64 padded(i64 o) const {
    i64 room = before + size + after - o * stride;
    return room < 0 ? 0 : room < kernel ? room : kernel;
  }

  // The outputs `low..high` whose windows may hold position `at`.
  __device__ void outputs_of(i64 at, i64& low, i64& high) const {
    i64 reach = (kernel - 1) * dilation, end = at + before;
    low = end > reach ? (end - reach + stride - 1) / stride : 0;
    high = end / stride + 1 < outputs ? end / stride + 1 : outputs;
  }
};

// The first maximum of a window, or its first NaN, and its position in the plane.
template <class T> FN f32 winner(const T* plane, Axis h, Axis w, i64 i, i64 j, i64& at) {
  i64 h0, hn, w0, wn;
  h.taps(i, h0, hn);
  w.taps(j, w0, wn);
  f32 best = -infinity();
  at = hn * wn > 0 ? h0 * w.size + w0 : 0;
  for (i64 a = 0; a < hn; ++a) {
    for (i64 b = 0; b < wn; ++b) {
      i64 here = (h0 + a * h.dilation) * w.size + w0 + b * w.dilation;
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

template <class T> FN f32 average(const T* plane, Axis h, Axis w, i64 i, i64 j, bool count_pad) {
  i64 h0, hn, w0, wn;
  h.taps(i, h0, hn);
  w.taps(j, w0, wn);
  f64 total = 0;
  for (i64 a = h0; a < h0 + hn; ++a) {
    f64 row = 0;
    for (i64 b = w0; b < w0 + wn; ++b) row += up(plane[a * w.size + b]);
    total += row;
  }
  i64 count = count_pad ? h.padded(i) * w.padded(j) : hn * wn;
  return (f32)total / (f32)(count > 0 ? count : 1);
}

// What position (`y`, `x`) of a plane gets from the averages that hold it.
template <class T> FN f32 average_share(const T* dy, Axis h, Axis w, i64 y, i64 x, bool count_pad) {
  i64 i0, i1, j0, j1;
  h.outputs_of(y, i0, i1);
  w.outputs_of(x, j0, j1);
  f32 sum = 0.0f;
  for (i64 i = i0; i < i1; ++i) {
    for (i64 j = j0; j < j1; ++j) {
      i64 first, hn, wn;
      h.taps(i, first, hn);
      w.taps(j, first, wn);
      i64 count = count_pad ? h.padded(i) * w.padded(j) : hn * wn;
      sum += up(dy[i * w.outputs + j]) / (f32)(count > 0 ? count : 1);
    }
  }
  return sum;
}

// What position (`y`, `x`) of a plane gets from the maxima that it is.
template <class T> FN f32 winner_share(const T* dy, const T* plane, Axis h, Axis w, i64 y, i64 x) {
  i64 i0, i1, j0, j1;
  h.outputs_of(y, i0, i1);
  w.outputs_of(x, j0, j1);
  f32 sum = 0.0f;
  for (i64 i = i0; i < i1; ++i) {
    for (i64 j = j0; j < j1; ++j) {
      i64 at;
      winner(plane, h, w, i, j, at);
      if (at == y * w.size + x) sum += up(dy[i * w.outputs + j]);
    }
  }
  return sum;
}
