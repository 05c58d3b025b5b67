// Softmax, cross-entropy and normalisation. Sums are in f64, like those of the CPU kernels; a row or channel has one block.

// Softmax of rows of `n` elements.
template <class T, bool LOG> FN void softmax_rows(const T* x, T* y, i64 rows, i64 n) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * n;
    T* to = y + row * n;
    f32 most = -infinity();
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) most = op_max(most, up(from[i]));
    most = block_fold<Max>(most);
    f64 total = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) total += expf(up(from[i]) - most);
    total = block_fold<Sum>(total);
    f32 last = (f32)(LOG ? log(total) : 1.0 / total);
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
      f32 v = up(from[i]) - most;
      to[i] = down<T>(LOG ? v - last : expf(v) * last);
    }
  }
}

// Softmax of `n` elements `inner` apart, by one thread.
template <class T, bool LOG> FN void softmax_column(const T* x, T* y, i64 n, i64 inner) {
  f32 most = -infinity();
  for (i64 i = 0; i < n; ++i) most = op_max(most, up(x[i * inner]));
  f64 total = 0;
  for (i64 i = 0; i < n; ++i) total += expf(up(x[i * inner]) - most);
  f32 last = (f32)(LOG ? log(total) : 1.0 / total);
  for (i64 i = 0; i < n; ++i) {
    f32 v = up(x[i * inner]) - most;
    y[i * inner] = down<T>(LOG ? v - last : expf(v) * last);
  }
}

template <class T> FN void softmax_grad_rows(const T* dy, const T* y, T* dx, i64 rows, i64 n) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 at = row * n;
    f64 sum = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum += (f64)up(dy[at + i]) * (f64)up(y[at + i]);
    f32 total = (f32)block_fold<Sum>(sum);
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) dx[at + i] = down<T>((up(dy[at + i]) - total) * up(y[at + i]));
  }
}

template <class T> FN void softmax_grad_column(const T* dy, const T* y, T* dx, i64 n, i64 inner) {
  f64 sum = 0;
  for (i64 i = 0; i < n; ++i) sum += (f64)up(dy[i * inner]) * (f64)up(y[i * inner]);
  f32 total = (f32)sum;
  for (i64 i = 0; i < n; ++i) dx[i * inner] = down<T>((up(dy[i * inner]) - total) * up(y[i * inner]));
}

// The loss of a label that names no class: zero where it is ignored, otherwise not a number.
FN f32 no_class(i64 label, i64 ignore) { return label == ignore ? 0.0f : of_bits(0x7fc00000u); }

FN bool is_class(i64 label, i64 ignore, i64 classes) { return label != ignore && label >= 0 && label < classes; }

// Logarithm of softmax, and for every row the loss of its label.
template <class T, class I>
FN void cross_entropy_rows(const T* x, const I* labels, T* y, f32* losses, i64 rows, i64 n, i64 ignore) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * n;
    f32 most = -infinity();
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) most = op_max(most, up(from[i]));
    most = block_fold<Max>(most);
    f64 total = 0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) total += expf(up(from[i]) - most);
    f32 last = (f32)log(block_fold<Sum>(total));
    i64 label = labels[row];
    bool counts = is_class(label, ignore, n);
    if (threadIdx.x == 0 && !counts) losses[row] = no_class(label, ignore);
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
      f32 v = up(from[i]) - most - last;
      if (counts && i == label) losses[row] = -v;
      y[row * n + i] = down<T>(v);
    }
  }
}

template <class T>
FN void cross_entropy_column(const T* x, i64 label, T* y, f32* loss, i64 n, i64 inner, i64 ignore) {
  f32 most = -infinity();
  for (i64 i = 0; i < n; ++i) most = op_max(most, up(x[i * inner]));
  f64 total = 0;
  for (i64 i = 0; i < n; ++i) total += expf(up(x[i * inner]) - most);
  f32 last = (f32)log(total);
  bool counts = is_class(label, ignore, n);
  if (!counts) *loss = no_class(label, ignore);
  for (i64 i = 0; i < n; ++i) {
    f32 v = up(x[i * inner]) - most - last;
    if (counts && i == label) *loss = -v;
    y[i * inner] = down<T>(v);
  }
}

// The number of labels that count, by one block.
template <class I> FN u64 counted(const I* labels, i64 positions, i64 ignore) {
  u64 count = 0;
  for (i64 i = threadIdx.x; i < positions; i += blockDim.x) count += (i64)labels[i] != ignore;
  return block_fold<Sum>(count);
}

// Sum or mean of the losses, by one block. Of no label the mean is zero.
template <class T, class I>
FN void total_loss(const f32* losses, const I* labels, T* loss, i64 positions, i64 ignore, bool mean) {
  f64 total = 0;
  for (i64 i = threadIdx.x; i < positions; i += blockDim.x) total += losses[i];
  total = block_fold<Sum>(total);
  u64 count = mean ? counted(labels, positions, ignore) : 1;
  if (threadIdx.x == 0) loss[0] = down<T>((f32)(total / (f64)(count > 0 ? count : 1)));
}

// Mean and inverse standard deviation of one row, the same in all threads.
template <class T> FN void layer_norm_statistics(const T* from, i64 n, f32 epsilon, f32& m, f32& r) {
  f64 sum = 0;
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum += up(from[i]);
  f64 centre = block_fold<Sum>(sum) / (f64)n;
  f64 squares = 0;
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) squares += (up(from[i]) - centre) * (up(from[i]) - centre);
  r = (f32)(1.0 / sqrt(block_fold<Sum>(squares) / (f64)n + (f64)epsilon));
  m = (f32)centre;
}

template <class T, class S, bool BIAS>
FN void layer_norm_rows(const T* x, const S* scale, const S* bias, T* y, f32* mean, f32* inv_std, i64 rows, i64 n,
                        f32 epsilon) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * n;
    f32 m, r;
    layer_norm_statistics(from, n, epsilon, m, r);
    if (threadIdx.x == 0) {
      mean[row] = m;
      inv_std[row] = r;
    }
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
      f32 v = (up(from[i]) - m) * r * up(scale[i]);
      y[row * n + i] = down<T>(BIAS ? v + up(bias[i]) : v);
    }
  }
}

// A tensor as a function of positions.
template <class T> struct Elements {
  const T* of;
  __device__ __forceinline__ auto operator()(i64 i) const { return up(of[i]); }
};

// Parts of the sums over rows that the gradients of scale and bias are, 32 columns to a block; `dy` is called once for each
// position.
template <class T, class D>
FN void layer_norm_affine(const D& dy, const T* x, const f32* mean, const f32* inv_std, f64* partial, i64 rows, i64 n,
                          i64 parts) {
  __shared__ f64 tile[2][8][32];
  u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
  for (i64 unit = blockIdx.x; unit < (n + 31) / 32 * parts; unit += gridDim.x) {
    i64 column = unit / parts * 32 + lane;
    Part part(unit % parts, parts, rows);
    f64 scale = 0, bias = 0;
    if (column < n) {
      for (i64 i = part.begin + row; i < part.end; i += 8) {
        f64 d = dy(i * n + column);
        scale += d * ((f64)up(x[i * n + column]) - mean[i]) * inv_std[i];
        bias += d;
      }
    }
    __syncthreads();
    tile[0][row][lane] = scale;
    tile[1][row][lane] = bias;
    __syncthreads();
    if (row < 2 && column < n) {
      f64 total = tile[row][0][lane];
      for (u32 r = 1; r < 8; ++r) total += tile[row][r][lane];
      partial[(row * n + column) * parts + unit % parts] = total;
    }
  }
}

// What is taken off the gradients of one row: a shift, and a slope times the distance from the mean.
template <class T, class S>
FN void layer_norm_slopes(const T* dy, const T* x, const S* scale, i64 n, f32 m, f32 r, f32& shift, f32& slope) {
  f64 sum = 0, product = 0;
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
    f64 term = (f64)up(dy[i]) * (f64)up(scale[i]);
    sum += term;
    product += term * ((f64)up(x[i]) - (f64)m);
  }
  shift = (f32)(block_fold<Sum>(sum) / (f64)n);
  slope = (f32)(block_fold<Sum>(product) * (f64)r * (f64)r / (f64)n);
}

template <class T, class S>
FN void layer_norm_grad_rows(const T* dy, const T* x, const S* scale, const f32* mean, const f32* inv_std, T* dx,
                             i64 rows, i64 n) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 at = row * n;
    f32 m = mean[row], r = inv_std[row], shift, slope;
    layer_norm_slopes(dy + at, x + at, scale, n, m, r, shift, slope);
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
      dx[at + i] = down<T>(r * (up(dy[at + i]) * up(scale[i]) - shift - (up(x[at + i]) - m) * slope));
    }
  }
}

// Position `i` of the elements of channel `c` of a batch.
FN i64 in_channel(i64 i, i64 c, i64 channels, i64 plane) { return (i / plane * channels + c) * plane + i % plane; }

template <class T>
FN void batch_norm_channel(const T* x, f32* mean, f32* var, f32* inv_std, i64 batch, i64 channels, i64 plane,
                           f32 epsilon) {
  for (i64 c = blockIdx.x; c < channels; c += gridDim.x) {
    i64 count = batch * plane;
    f64 sum = 0;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) sum += up(x[in_channel(i, c, channels, plane)]);
    f64 m = block_fold<Sum>(sum) / (f64)count;
    f64 squares = 0;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
      f64 d = up(x[in_channel(i, c, channels, plane)]) - m;
      squares += d * d;
    }
    f64 v = block_fold<Sum>(squares) / (f64)count;
    if (threadIdx.x == 0) {
      mean[c] = (f32)m;
      var[c] = (f32)v;
      inv_std[c] = (f32)(1.0 / sqrt(v + (f64)epsilon));
    }
  }
}

// Gradients of scale and bias; `sums` keeps them in f32 for that of the input.
template <class T, class S>
FN void batch_norm_sums(const T* dy, const T* x, const f32* mean, const f32* inv_std, S* dscale, S* dbias, f32* sums,
                        i64 batch, i64 channels, i64 plane) {
  for (i64 c = blockIdx.x; c < channels; c += gridDim.x) {
    f64 product = 0, sum = 0, m = mean[c];
    for (i64 i = threadIdx.x; i < batch * plane; i += blockDim.x) {
      i64 at = in_channel(i, c, channels, plane);
      product += (f64)up(dy[at]) * ((f64)up(x[at]) - m);
      sum += (f64)up(dy[at]);
    }
    f32 scale = (f32)(block_fold<Sum>(product) * (f64)inv_std[c]), bias = (f32)block_fold<Sum>(sum);
    if (threadIdx.x == 0) {
      sums[2 * c] = scale;
      sums[2 * c + 1] = bias;
      dscale[c] = down<S>(scale);
      dbias[c] = down<S>(bias);
    }
  }
}
