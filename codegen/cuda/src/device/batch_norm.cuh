// Sums over a channel of a batch, by parts: a block takes some images, and of each of them some packs of the plane. Where
// planes are `SHORT`, `lanes` threads take one pack each of a plane, and the block several images at once.

struct Channel {
  i64 batch, channels, plane;
  // Threads along a plane, a power of two; parts along the batch, and along planes.
  i64 lanes, image_parts, plane_parts;

  FN_MEMBER i64 count() const { return batch * plane; }
};

// Calls `load(at, k)` and `use(k)` for every pack of the block's part of channel `c`, at position `at` of the tensor.
template <u32 W, bool SHORT, class L, class U> FN void channel_part(const Channel& g, i64 c, const L& load, const U& use) {
  Part images(blockIdx.y, g.image_parts, g.batch), packs(blockIdx.z, g.plane_parts, g.plane / W);
  auto position = [&](i64 image, i64 p) { return (image * g.channels + c) * g.plane + p * W; };
  auto used = [&](i64, u32 k) { use(k); };
  if constexpr (SHORT) {
    u32 lanes = (u32)g.lanes, own = threadIdx.x & (lanes - 1), rows = blockDim.x / lanes;
    if (own >= packs.end) return;
    sweep<0, ahead_of(W)>(images.begin + threadIdx.x / lanes, rows, images.end,
             [&](i64 image, u32 k) { load(position(image, own), k); }, used);
  } else {
    for (i64 image = images.begin; image < images.end; ++image) {
      sweep<0, ahead_of(W)>(packs.begin + threadIdx.x, blockDim.x, packs.end, [&](i64 p, u32 k) { load(position(image, p), k); }, used);
    }
  }
}

// Two sums of a channel in a block's part: written to the workspace, or finished where there is one part.
template <class F> FN void channel_sums(const Channel& g, i64 c, Total first, Total second, Total* partial, const F& finish) {
  first = block_fold<Sum>(first);
  second = block_fold<Sum>(second);
  if (threadIdx.x != 0) return;
  i64 parts = g.image_parts * g.plane_parts, part = (i64)blockIdx.y * g.plane_parts + blockIdx.z;
  if (parts == 1) {
    finish(exact(first), exact(second));
  } else {
    partial[2 * (c * parts + part)] = first;
    partial[2 * (c * parts + part) + 1] = second;
  }
}

// Joins the parts of channel `c`, by one warp.
template <class F> FN void channel_parts(i64 c, i64 parts, const Total* partial, const F& finish) {
  Total first = {}, second = {};
  for (i64 p = threadIdx.x; p < parts; p += blockDim.x) {
    first = op_add(first, partial[2 * (c * parts + p)]);
    second = op_add(second, partial[2 * (c * parts + p) + 1]);
  }
  first = block_fold<Sum>(first);
  second = block_fold<Sum>(second);
  if (threadIdx.x == 0) finish(exact(first), exact(second));
}

// The number that distances of a channel are taken from: its first element. It makes small what is squared.
template <class T> FN f32 channel_pivot(const T* x, i64 c, i64 plane, i64 count) {
  f32 first = count > 0 ? up(x[c * plane]) : 0.0f;
  return is_finite(first) ? first : 0.0f;
}

// Statistics of a channel, from the sums of the distances from `pivot` and of their squares.
struct ChannelStatistics {
  f32 *mean, *var, *inv_std;
  f32 epsilon;

  FN_MEMBER void finish(i64 c, f64 pivot, f64 count, f64 sum, f64 squares) const {
    f64 m = sum / count, v = squares / count - m * m;
    v = v < 0 ? 0 : v;
    mean[c] = (f32)(pivot + m);
    var[c] = (f32)v;
    inv_std[c] = (f32)(1.0 / sqrt(v + (f64)epsilon));
  }
};

template <class T, u32 W, bool SHORT>
FN void batch_norm_stats(const T* x, const ChannelStatistics& to, Total* partial, const Channel& g) {
  i64 c = blockIdx.x;
  f32 pivot = channel_pivot(x, c, g.plane, g.count());
  Total sum = {}, squares = {};
  Pack<T, W> ahead[ahead_of(W)];
  channel_part<W, SHORT>(g, c, [&](i64 at, u32 k) { ahead[k] = pack<W>(x + at); }, [&](u32 k) {
#pragma unroll
    for (u32 w = 0; w < W; ++w) {
      f32 v = up(ahead[k].of[w]);
      add_difference(sum, v, pivot);
      add_square(squares, v, (real)pivot);
    }
  });
  channel_sums(g, c, sum, squares, partial, [&](f64 a, f64 b) { to.finish(c, pivot, (f64)g.count(), a, b); });
  // Where parts are joined later, the mean keeps the pivot until then.
  if (g.image_parts * g.plane_parts > 1 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0) to.mean[c] = pivot;
}

FN void batch_norm_stats_parts(const ChannelStatistics& to, const Total* partial, i64 count, i64 parts) {
  i64 c = blockIdx.x;
  f32 pivot = to.mean[c];
  channel_parts(c, parts, partial, [&](f64 a, f64 b) { to.finish(c, pivot, (f64)count, a, b); });
}

// Gradients of scale and bias; `sums` keeps them in f32 for that of the input.
template <class S> struct ChannelGradients {
  const f32* inv_std;
  S *dscale, *dbias;
  f32* sums;

  FN_MEMBER void finish(i64 c, f64 product, f64 sum) const {
    f32 scale = (f32)(product * (f64)inv_std[c]), bias = (f32)sum;
    sums[2 * c] = scale;
    sums[2 * c + 1] = bias;
    dscale[c] = down<S>(scale);
    dbias[c] = down<S>(bias);
  }
};

template <class T, class S, u32 W, bool SHORT>
FN void batch_norm_sums(const T* dy, const T* x, const f32* mean, const ChannelGradients<S>& to, Total* partial,
                        const Channel& g) {
  i64 c = blockIdx.x;
  f32 m = mean[c];
  Total product = {}, sum = {};
  Pack<T, W> d[ahead_of(W)], v[ahead_of(W)];
  auto load = [&](i64 at, u32 k) {
    d[k] = pack<W>(dy + at);
    v[k] = pack<W>(x + at);
  };
  channel_part<W, SHORT>(g, c, load, [&](u32 k) {
#pragma unroll
    for (u32 w = 0; w < W; ++w) {
      add_distance(product, up(d[k].of[w]), up(v[k].of[w]), m);
      add(sum, up(d[k].of[w]));
    }
  });
  channel_sums(g, c, product, sum, partial, [&](f64 a, f64 b) { to.finish(c, a, b); });
}
