// Matrix products and convolutions, in tiles of 64 by 64 results summed in f32 in one order.

// `put(i, j, sum)` with the sum over `t` in `begin..end` of `a(i, t) * b(t, j)`, for all `i < m` and `j < n`, by blocks of 256
// threads. `BY_ROW` says that adjacent `t` of `a`, or of `b`, lie side by side.
template <bool A_BY_ROW, bool B_BY_ROW, class A, class B, class Put>
FN void tiled(i64 m, i64 n, i64 begin, i64 end, A a, B b, Put put) {
  __shared__ f32 left[16][65];
  __shared__ f32 right[16][65];
  const i64 across = (n + 63) / 64, tiles = (m + 63) / 64 * across;
  const u32 row = threadIdx.x / 16, col = threadIdx.x % 16;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const i64 i0 = tile / across * 64, j0 = tile % across * 64;
    f32 sum[4][4] = {};
    for (i64 t0 = begin; t0 < end; t0 += 16) {
      for (u32 e = threadIdx.x; e < 1024; e += 256) {
        const u32 ta = A_BY_ROW ? e % 16 : e / 64, i = A_BY_ROW ? e / 16 : e % 64;
        const u32 tb = B_BY_ROW ? e % 16 : e / 64, j = B_BY_ROW ? e / 16 : e % 64;
        left[ta][i] = i0 + i < m && t0 + ta < end ? a(i0 + i, t0 + ta) : 0.0f;
        right[tb][j] = j0 + j < n && t0 + tb < end ? b(t0 + tb, j0 + j) : 0.0f;
      }
      __syncthreads();
      for (u32 t = 0; t < 16; ++t) {
        f32 x[4], y[4];
        for (u32 q = 0; q < 4; ++q) {
          x[q] = left[t][row + 16 * q];
          y[q] = right[t][col + 16 * q];
        }
        for (u32 r = 0; r < 4; ++r) {
          for (u32 c = 0; c < 4; ++c) sum[r][c] = __fmaf_rn(x[r], y[c], sum[r][c]);
        }
      }
      __syncthreads();
    }
    for (u32 r = 0; r < 4; ++r) {
      for (u32 c = 0; c < 4; ++c) {
        const i64 i = i0 + row + 16 * r, j = j0 + col + 16 * c;
        if (i < m && j < n) put(i, j, sum[r][c]);
      }
    }
  }
}

// Extents of a convolution: the input `[batch, groups * channels, height, width]`, the output `[batch, groups * m, oh, ow]`
// and a kernel of `kh` by `kw`.
struct Conv {
  i64 batch, groups, channels, height, width, m, oh, ow, kh, kw, sh, sw, top, left, dh, dw;

  // The input position under tap (`a`, `b`) of output (`i`, `j`), or -1 in the padding.
  __device__ i64 input(i64 i, i64 j, i64 a, i64 b) const {
    const i64 h = i * sh - top + a * dh, w = j * sw - left + b * dw;
    return h >= 0 && h < height && w >= 0 && w < width ? h * width + w : -1;
  }

  // The output position whose tap (`a`, `b`) is input (`h`, `w`), or -1.
  __device__ i64 output(i64 h, i64 w, i64 a, i64 b) const {
    const i64 i = h + top - a * dh, j = w + left - b * dw;
    if (i < 0 || j < 0 || i % sh != 0 || j % sw != 0) return -1;
    return i / sh < oh && j / sw < ow ? i / sh * ow + j / sw : -1;
  }
};

// An element of the column matrix: row `t` (channel and tap) for output position `p` of the channels at `x`.
template <class T> FN f32 column(const Conv& g, const T* x, i64 t, i64 p) {
  const i64 taps = g.kh * g.kw, c = t / taps, tap = t % taps;
  const i64 at = g.input(p / g.ow, p % g.ow, tap / g.kw, tap % g.kw);
  return at < 0 ? 0.0f : up(x[c * g.height * g.width + at]);
}

// `put(e, sum)` with each element `e` of the output.
template <class T, bool BIAS, class Put>
FN void conv_forward(Conv g, const T* x, const T* w, const T* bias, Put put) {
  const i64 depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  for (i64 group = blockIdx.z; group < g.groups; group += gridDim.z) {
    const T* weights = w + group * g.m * depth;
    tiled<true, false>(
        g.m, g.batch * pixels, 0, depth, [=](i64 i, i64 t) { return up(weights[i * depth + t]); },
        [=](i64 t, i64 j) { return column(g, x + (j / pixels * g.groups + group) * image, t, j % pixels); },
        [=](i64 i, i64 j, f32 sum) {
          const i64 channel = group * g.m + i;
          if (BIAS) sum += up(bias[channel]);
          put((u64)((j / pixels * g.groups * g.m + channel) * pixels + j % pixels), sum);
        });
  }
}

template <class T> FN void conv_grad_input(Conv g, const T* dy, const T* w, T* dx) {
  const i64 taps = g.kh * g.kw, pixels = g.oh * g.ow, plane = g.height * g.width;
  for (i64 group = blockIdx.z; group < g.groups; group += gridDim.z) {
    tiled<false, false>(
        g.channels, g.batch * plane, 0, g.m * taps,
        [=](i64 c, i64 t) { return up(w[((group * g.m + t / taps) * g.channels + c) * taps + t % taps]); },
        [=](i64 t, i64 j) {
          const i64 tap = t % taps, p = j % plane;
          const i64 at = g.output(p / g.width, p % g.width, tap / g.kw, tap % g.kw);
          const i64 channel = (j / plane * g.groups + group) * g.m + t / taps;
          return at < 0 ? 0.0f : up(dy[channel * pixels + at]);
        },
        [=](i64 c, i64 j, f32 sum) {
          dx[((j / plane * g.groups + group) * g.channels + c) * plane + j % plane] = down<T>(sum);
        });
  }
}

// Sums over parts of batch and positions, one after another in `partial`.
template <class T> FN void conv_grad_weight(Conv g, const T* dy, const T* x, f32* partial, i64 parts) {
  const i64 depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  for (i64 unit = blockIdx.z; unit < g.groups * parts; unit += gridDim.z) {
    const i64 group = unit / parts, part = unit % parts;
    const Part range(part, parts, g.batch * pixels);
    tiled<true, true>(
        g.m, depth, range.begin, range.end,
        [=](i64 i, i64 t) {
          return up(dy[((t / pixels * g.groups + group) * g.m + i) * pixels + t % pixels]);
        },
        [=](i64 t, i64 j) { return column(g, x + (t / pixels * g.groups + group) * image, j, t % pixels); },
        [=](i64 i, i64 j, f32 sum) { partial[(part * g.groups * g.m + group * g.m + i) * depth + j] = sum; });
  }
}

// With few channels in a group most of a tile would be empty: a thread for each element of the result.
template <class T, bool BIAS, class Put>
FN void conv_forward_at(Conv g, const T* x, const T* w, const T* bias, Put put, i64 e) {
  const i64 depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  const i64 channel = e / pixels % (g.groups * g.m), n = e / pixels / (g.groups * g.m);
  const T* from = x + (n * g.groups + channel / g.m) * image;
  f32 sum = 0.0f;
  for (i64 t = 0; t < depth; ++t) sum = __fmaf_rn(up(w[channel * depth + t]), column(g, from, t, e % pixels), sum);
  put((u64)e, BIAS ? sum + up(bias[channel]) : sum);
}

template <class T> FN void conv_grad_input_at(Conv g, const T* dy, const T* w, T* dx, i64 e) {
  const i64 taps = g.kh * g.kw, pixels = g.oh * g.ow, plane = g.height * g.width, p = e % plane;
  const i64 channel = e / plane % (g.groups * g.channels), n = e / plane / (g.groups * g.channels);
  const i64 group = channel / g.channels, c = channel % g.channels;
  f32 sum = 0.0f;
  for (i64 m = group * g.m; m < (group + 1) * g.m; ++m) {
    for (i64 tap = 0; tap < taps; ++tap) {
      const i64 at = g.output(p / g.width, p % g.width, tap / g.kw, tap % g.kw);
      if (at < 0) continue;
      sum = __fmaf_rn(up(w[(m * g.channels + c) * taps + tap]), up(dy[(n * g.groups * g.m + m) * pixels + at]), sum);
    }
  }
  dx[e] = down<T>(sum);
}

// A block for each element of the weight.
template <class T> FN void conv_grad_weight_blocks(Conv g, const T* dy, const T* x, T* dw) {
  const i64 depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  for (i64 e = blockIdx.x; e < g.groups * g.m * depth; e += gridDim.x) {
    const i64 channel = e / depth, group = channel / g.m;
    f64 sum = 0;
    for (i64 t = threadIdx.x; t < g.batch * pixels; t += blockDim.x) {
      const i64 n = t / pixels, p = t % pixels;
      sum += up(dy[(n * g.groups * g.m + channel) * pixels + p]) *
             column(g, x + (n * g.groups + group) * image, e % depth, p);
    }
    sum = block_fold<Sum>(sum);
    if (threadIdx.x == 0) dw[e] = down<T>((f32)sum);
  }
}
