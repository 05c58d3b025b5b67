// Layer normalisation and its gradient. A team takes a row at a time; sums over rows go by columns.

// Mean and inverse standard deviation of one row, the same in all threads of the team.
template <class T, u32 W, u32 K, u32 L>
FN void layer_norm_statistics(Row<T, W, K, L>& row, f32 epsilon, f32& m, f32& r) {
  Total sum = {}, squares = {};
  // Distances from the first element are exactly zero in a row of equal ones.
  f32 first = row.n > 0 ? up(row.from[0]) : 0.0f, pivot = is_finite(first) ? first : 0.0f;
  row.each([&](i64, u32 k) {
#pragma unroll
    for (u32 w = 0; w < W; ++w) add_difference(sum, row.at(k, w), pivot);
  });
  real centre = (real)pivot + value(Team<L>::template fold<Sum>(sum)) / (real)row.n;
  row.each([&](i64, u32 k) {
#pragma unroll
    for (u32 w = 0; w < W; ++w) add_square(squares, row.at(k, w), centre);
  });
  r = (f32)((real)1 / sqrt(value(Team<L>::template fold<Sum>(squares)) / (real)row.n + (real)epsilon));
  m = (f32)centre;
}

template <class T, class S, u32 W, u32 K, u32 L, bool BIAS>
FN void layer_norm_rows(const T* x, const S* scale, const S* bias, T* y, f32* mean, f32* inv_std, i64 rows, i64 n,
                        f32 epsilon) {
  for (i64 row = Team<L>::row(); row < rows; row += Team<L>::step()) {
    Row<T, W, K, L> own{x + row * n, n};
    own.hold_all();
    f32 m, r;
    layer_norm_statistics(own, epsilon, m, r);
    if (Team<L>::own() == 0) {
      mean[row] = m;
      inv_std[row] = r;
    }
    own.each([&](i64 p, u32 k) {
      Pack<S, W> s = pack<W>(scale + p * W), b = pack<W>((BIAS ? bias : scale) + p * W);
      Pack<T, W> z;
#pragma unroll
      for (u32 w = 0; w < W; ++w) {
        f32 v = (own.at(k, w) - m) * r * up(s.of[w]);
        z.of[w] = down<T>(BIAS ? v + up(b.of[w]) : v);
      }
      put(y + row * n + p * W, z);
    });
  }
}

// A tensor as a function of positions: `W` elements from position `i` on.
template <class T, u32 W> struct Elements {
  const T* of;
  FN_MEMBER void operator()(i64 i, f32 (&x)[W]) const {
    Pack<T, W> q = pack<W>(of + i);
#pragma unroll
    for (u32 w = 0; w < W; ++w) x[w] = up(q.of[w]);
  }
};

// Parts of the sums over rows that the gradients of scale and bias are. A block has 32 * W columns, of which a thread takes
// `W` neighbours of every eighth row; `dy` is called once for each position.
template <class T, u32 W, class D>
FN void layer_norm_affine(const D& dy, const T* x, const f32* mean, const f32* inv_std, Total* partial, i64 rows, i64 n,
                          i64 parts) {
  __shared__ Total tile[2][8][32 * W];
  u32 lane = threadIdx.x % 32, row = threadIdx.x / 32;
  i64 column = ((i64)blockIdx.x * 32 + lane) * W;
  Part part(blockIdx.y, parts, rows);
  Total scale[W] = {}, bias[W] = {};
  if (column < n) {
    constexpr u32 N = W == 1 ? AHEAD : ahead_of(W) / 2;
    Pack<T, W> ahead[N];
    f32 d[N][W], m[N], r[N];
    auto load = [&](i64 i, u32 k) {
      dy(i * n + column, d[k]);
      ahead[k] = pack<W>(x + i * n + column);
      m[k] = mean[i];
      r[k] = inv_std[i];
    };
    sweep<0, N>(part.begin + row, 8, part.end, load, [&](i64, u32 k) {
#pragma unroll
      for (u32 w = 0; w < W; ++w) {
        add_product(scale[w], d[k][w], (up(ahead[k].of[w]) - m[k]) * r[k]);
        add(bias[w], d[k][w]);
      }
    });
  }
#pragma unroll
  for (u32 w = 0; w < W; ++w) {
    tile[0][row][lane * W + w] = scale[w];
    tile[1][row][lane * W + w] = bias[w];
  }
  __syncthreads();
  for (u32 at = threadIdx.x; at < 64 * W; at += blockDim.x) {
    u32 sum = at / (32 * W), own = at % (32 * W);
    i64 c = (i64)blockIdx.x * 32 * W + own;
    if (c >= n) continue;
    Total total = tile[sum][0][own];
    for (u32 r = 1; r < 8; ++r) total = op_add(total, tile[sum][r][own]);
    partial[(blockIdx.y * 2 + sum) * n + c] = total;
  }
}

// The gradients of scale and bias of one column, from their parts in order.
template <class S>
FN void layer_norm_affine_parts(const Total* partial, S* dscale, S* dbias, i64 i, i64 n, i64 parts) {
  Total scale = {}, bias = {}, ahead[AHEAD][2];
  sweep<0>(0, 1, parts,
           [&](i64 p, u32 k) {
             ahead[k][0] = partial[2 * p * n + i];
             ahead[k][1] = partial[(2 * p + 1) * n + i];
           },
           [&](i64, u32 k) {
             scale = op_add(scale, ahead[k][0]);
             bias = op_add(bias, ahead[k][1]);
           });
  dscale[i] = down<S>((f32)value(scale));
  dbias[i] = down<S>((f32)value(bias));
}

// A row of the gradient, of the input and the scale that belong to it.
template <class T, class S, u32 W, u32 K, u32 L> struct GradRow {
  // Packs of the input and of the scale are held beside those of the gradient.
  static constexpr u32 N = ahead_of(W);
  Row<T, W, K, L, N> dy, x;
  const S* from;
  Pack<S, W> scale[places(K, N)];

  FN_MEMBER void load(i64 p, u32 k) {
    dy.load(p, k);
    x.load(p, k);
    scale[k] = pack<W>(from + p * W);
  }
  FN_MEMBER void hold_all() {
    hold<K>(Team<L>::own(), Team<L>::size(), dy.n / W, [&](i64 p, u32 k) { load(p, k); });
  }
  template <class U> FN_MEMBER void each(const U& use) {
    sweep<K, N>(Team<L>::own(), Team<L>::size(), dy.n / W, [&](i64 p, u32 k) { load(p, k); }, use);
  }

  // What is taken off the gradients: a shift, and a slope times the distance from the mean.
  FN_MEMBER void slopes(f32 m, f32 r, f32& shift, f32& slope) {
    Total sum = {}, product = {};
    each([&](i64, u32 k) {
#pragma unroll
      for (u32 w = 0; w < W; ++w) {
        f32 s = up(scale[k].of[w]);
        add_product(sum, dy.at(k, w), s);
        add_distance(product, dy.at(k, w) * s, x.at(k, w), m);
      }
    });
    real n = (real)dy.n;
    shift = (f32)(value(Team<L>::template fold<Sum>(sum)) / n);
    slope = (f32)(value(Team<L>::template fold<Sum>(product)) * r * r / n);
  }
};

template <class T, class S, u32 W, u32 K, u32 L>
FN void layer_norm_grad_rows(const T* dy, const T* x, const S* scale, const f32* mean, const f32* inv_std, T* dx,
                             i64 rows, i64 n) {
  for (i64 row = Team<L>::row(); row < rows; row += Team<L>::step()) {
    GradRow<T, S, W, K, L> own{{dy + row * n, n}, {x + row * n, n}, scale};
    own.hold_all();
    f32 m = mean[row], r = inv_std[row], shift, slope;
    own.slopes(m, r, shift, slope);
    own.each([&](i64 p, u32 k) {
      Pack<T, W> z;
#pragma unroll
      for (u32 w = 0; w < W; ++w) {
        f32 d = own.dy.at(k, w) * up(own.scale[k].of[w]);
        z.of[w] = down<T>(r * (d - shift - (own.x.at(k, w) - m) * slope));
      }
      put(dx + row * n + p * W, z);
    });
  }
}
