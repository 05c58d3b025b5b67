// Matrix products and convolutions, in tiles of 64 by 64 results summed in f32 in one order.

// `put(i, j, sum)` with the sum over `t` in `begin..end` of `a(i, t) * b(t, j)`, for all `i < m` and `j < n`, by blocks of 256
// threads. `BY_ROW` says that adjacent `t` of `a`, or of `b`, lie side by side.
// Positions are of type `P`.
template <bool A_BY_ROW, bool B_BY_ROW, class P, class A, class B, class Put>
FN void tiled(P m, P n, P begin, P end, A a, B b, Put put) {
  __shared__ f32 left[16][65];
  __shared__ f32 right[16][65];
  // A grid has fewer than 2^31 blocks, and a tensor fewer tiles.
  const u32 across = (u32)((n + 63) / 64), tiles = (u32)((m + 63) / 64) * across;
  const u32 row = threadIdx.x / 16, col = threadIdx.x % 16;
  for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const P i0 = (P)(tile / across) * 64, j0 = (P)(tile % across) * 64;
    f32 sum[4][4] = {};
    for (P t0 = begin; t0 < end; t0 += 16) {
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
        const P i = i0 + row + 16 * r, j = j0 + col + 16 * c;
        if (i < m && j < n) put(i, j, sum[r][c]);
      }
    }
  }
}

// Positions and extents of convolutions are of type `P`: 32 bits wide where no tensor has more elements.
//
// Extents of a convolution: the input `[batch, groups * channels, height, width]`, the output `[batch, groups * m, oh, ow]`
// and a kernel of `kh` by `kw`.
template <class P> struct Conv {
  P batch, groups, channels, height, width, m, oh, ow, kh, kw, sh, sw, top, left, dh, dw;

  // The input position under tap (`a`, `b`) of output (`i`, `j`), or -1 in the padding.
  __device__ P input(P i, P j, P a, P b) const {
    const P h = i * sh - top + a * dh, w = j * sw - left + b * dw;
    return h >= 0 && h < height && w >= 0 && w < width ? h * width + w : -1;
  }

  // The output position whose tap (`a`, `b`) is input (`h`, `w`), or -1.
  __device__ P output(P h, P w, P a, P b) const {
    const P i = h + top - a * dh, j = w + left - b * dw;
    if (i < 0 || j < 0 || i % sh != 0 || j % sw != 0) return -1;
    return i / sh < oh && j / sw < ow ? i / sh * ow + j / sw : -1;
  }
};

// An element of the column matrix: row `t` (channel and tap) for output position `p` of the channels at `x`.
template <class T, class P> FN f32 column(const Conv<P>& g, const T* x, P t, P p) {
  const P taps = g.kh * g.kw, c = t / taps, tap = t % taps;
  const P at = g.input(p / g.ow, p % g.ow, tap / g.kw, tap % g.kw);
  return at < 0 ? 0.0f : up(x[c * g.height * g.width + at]);
}

// `put(e, sum)` with each element `e` of the output.
template <class T, bool BIAS, class P, class Put>
FN void conv_forward(const Conv<P>& g, const T* x, const T* w, const T* bias, Put put) {
  const P depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  for (P group = blockIdx.z; group < g.groups; group += gridDim.z) {
    const T* weights = w + group * g.m * depth;
    tiled<true, false, P>(
        g.m, g.batch * pixels, 0, depth, [=](P i, P t) { return up(weights[i * depth + t]); },
        [=](P t, P j) { return column(g, x + (j / pixels * g.groups + group) * image, t, j % pixels); },
        [=](P i, P j, f32 sum) {
          const P channel = group * g.m + i;
          if (BIAS) sum += up(bias[channel]);
          put((u64)((j / pixels * g.groups * g.m + channel) * pixels + j % pixels), sum);
        });
  }
}

template <class T, class P> FN void conv_grad_input(const Conv<P>& g, const T* dy, const T* w, T* dx) {
  const P taps = g.kh * g.kw, pixels = g.oh * g.ow, plane = g.height * g.width;
  for (P group = blockIdx.z; group < g.groups; group += gridDim.z) {
    tiled<false, false, P>(
        g.channels, g.batch * plane, 0, g.m * taps,
        [=](P c, P t) { return up(w[((group * g.m + t / taps) * g.channels + c) * taps + t % taps]); },
        [=](P t, P j) {
          const P tap = t % taps, p = j % plane;
          const P at = g.output(p / g.width, p % g.width, tap / g.kw, tap % g.kw);
          const P channel = (j / plane * g.groups + group) * g.m + t / taps;
          return at < 0 ? 0.0f : up(dy[channel * pixels + at]);
        },
        [=](P c, P j, f32 sum) {
          dx[((j / plane * g.groups + group) * g.channels + c) * plane + j % plane] = down<T>(sum);
        });
  }
}

// Sums over parts of batch and positions, one after another in `partial`.
template <class T, class P> FN void conv_grad_weight(const Conv<P>& g, const T* dy, const T* x, f32* partial, P parts) {
  const P depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  for (P unit = blockIdx.z; unit < g.groups * parts; unit += gridDim.z) {
    const P group = unit / parts, part = unit % parts;
    const Part range(part, parts, g.batch * pixels);
    tiled<true, true, P>(
        g.m, depth, range.begin, range.end,
        [=](P i, P t) {
          return up(dy[((t / pixels * g.groups + group) * g.m + i) * pixels + t % pixels]);
        },
        [=](P t, P j) { return column(g, x + (t / pixels * g.groups + group) * image, j, t % pixels); },
        [=](P i, P j, f32 sum) { partial[(part * g.groups * g.m + group * g.m + i) * depth + j] = sum; });
  }
}

// With few channels in a group most of a tile would be empty: a thread for each element of the result.
template <class T, bool BIAS, class P, class Put>
FN void conv_forward_at(const Conv<P>& g, const T* x, const T* w, const T* bias, Put put, P e) {
  const P depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  const P channel = e / pixels % (g.groups * g.m), n = e / pixels / (g.groups * g.m);
  const T* from = x + (n * g.groups + channel / g.m) * image;
  f32 sum = 0.0f;
  for (P t = 0; t < depth; ++t) sum = __fmaf_rn(up(w[channel * depth + t]), column(g, from, t, e % pixels), sum);
  put((u64)e, BIAS ? sum + up(bias[channel]) : sum);
}

template <class T, class P> FN void conv_grad_input_at(const Conv<P>& g, const T* dy, const T* w, T* dx, P e) {
  const P taps = g.kh * g.kw, pixels = g.oh * g.ow, plane = g.height * g.width, p = e % plane;
  const P channel = e / plane % (g.groups * g.channels), n = e / plane / (g.groups * g.channels);
  const P group = channel / g.channels, c = channel % g.channels;
  f32 sum = 0.0f;
  for (P m = group * g.m; m < (group + 1) * g.m; ++m) {
    for (P tap = 0; tap < taps; ++tap) {
      const P at = g.output(p / g.width, p % g.width, tap / g.kw, tap % g.kw);
      if (at < 0) continue;
      sum = __fmaf_rn(up(w[(m * g.channels + c) * taps + tap]), up(dy[(n * g.groups * g.m + m) * pixels + at]), sum);
    }
  }
  dx[e] = down<T>(sum);
}

// A block for each element of the weight.
template <class T, class P> FN void conv_grad_weight_blocks(const Conv<P>& g, const T* dy, const T* x, T* dw) {
  const P depth = g.channels * g.kh * g.kw, pixels = g.oh * g.ow, image = g.channels * g.height * g.width;
  for (P e = blockIdx.x; e < g.groups * g.m * depth; e += gridDim.x) {
    const P channel = e / depth, group = channel / g.m;
    Total sum = {};
    f32 d[AHEAD], v[AHEAD];
    auto load = [&](i64 t, u32 k) {
      const P n = (P)t / pixels, p = (P)t % pixels;
      d[k] = up(dy[(n * g.groups * g.m + channel) * pixels + p]);
      v[k] = column(g, x + (n * g.groups + group) * image, e % depth, p);
    };
    sweep<0>(threadIdx.x, blockDim.x, g.batch * pixels, load, [&](i64, u32 k) { add_product(sum, d[k], v[k]); });
    sum = block_fold<Sum>(sum);
    if (threadIdx.x == 0) dw[e] = down<T>((f32)value(sum));
  }
}
