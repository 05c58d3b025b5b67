// Softmax and its gradient, by rows or by columns.

// Softmax of an element, or its logarithm, where the peak is known.
template <bool LOG> struct Softmax {
  f32 most, last;
  __device__ explicit Softmax(const Peak& peak)
      : most(peak.most), last((f32)(LOG ? log(value(peak.total)) : (real)1 / value(peak.total))) {}
  FN_MEMBER f32 of(f32 v) const { return LOG ? v - most - last : expf(v - most) * last; }
};

template <bool LOG, class R, class T> FN void put_softmax(R& r, const Peak& peak, T* to) {
  Softmax<LOG> softmax(peak);
  r.put_each(to, [&](i64, f32 v) { return softmax.of(v); });
}

template <class T, u32 W, u32 K, u32 L, bool LOG> FN void softmax_rows(const T* x, T* y, i64 rows, i64 n) {
  for (i64 row = Team<L>::row(); row < rows; row += Team<L>::step()) {
    Row<T, W, K, L> r{x + row * n, n};
    T* to = y + row * n;
    r.hold_all();
    if constexpr (LOG || K == 0) {
      put_softmax<LOG>(r, r.peak(), to);
    } else {
      // Exponentials are kept, one for each element.
      f32 most = -infinity(), e[K][W];
      r.each([&](i64, u32 k) {
#pragma unroll
        for (u32 w = 0; w < W; ++w) most = op_max(most, r.at(k, w));
      });
      most = Team<L>::template fold<Max>(most);
      Total total = {};
      r.each([&](i64, u32 k) {
#pragma unroll
        for (u32 w = 0; w < W; ++w) add(total, e[k][w] = expf(r.at(k, w) - most));
      });
      f32 last = (f32)((real)1 / value(Team<L>::template fold<Sum>(total)));
      r.each([&](i64 p, u32 k) {
        Pack<T, W> z;
#pragma unroll
        for (u32 w = 0; w < W; ++w) z.of[w] = down<T>(e[k][w] * last);
        put(to + p * W, z);
      });
    }
  }
}

template <class T, u32 W, bool LOG> FN void softmax_parts(const T* x, T* y, const Peak* peaks, i64 rows, i64 n) {
  RowPart<W> part(n);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 at = row * n + part.begin;
    Row<T, W, 0, 0> r{x + at, part.n};
    put_softmax<LOG>(r, joined_peak(peaks, row), y + at);
  }
}

// Elements of a column of `n`, `inner` apart, that one thread takes, some at a time: `use(i, x)`.
template <class T, class U> FN void column(const T* x, i64 n, i64 inner, const U& use) {
  f32 ahead[AHEAD];
  sweep<0>(0, 1, n, [&](i64 i, u32 k) { ahead[k] = up(x[i * inner]); }, [&](i64 i, u32 k) { use(i, ahead[k]); });
}

template <class T> FN Peak column_peak(const T* x, i64 n, i64 inner) {
  Peak peak;
  column(x, n, inner, [&](i64, f32 v) {
    f32 one[1] = {v};
    peak.take<1>(one);
  });
  return peak;
}

template <class T, bool LOG> FN void softmax_column(const T* x, T* y, i64 n, i64 inner) {
  Softmax<LOG> softmax(column_peak(x, n, inner));
  column(x, n, inner, [&](i64 i, f32 v) { y[i * inner] = down<T>(softmax.of(v)); });
}

// A row of the gradient of softmax and the same one of its result.
template <class T, u32 W, u32 K, u32 L> struct SoftmaxGrad {
  static constexpr u32 N = ahead_of(W);
  Row<T, W, K, L, N> dy, y;

  FN_MEMBER void load(i64 p, u32 k) {
    dy.load(p, k);
    y.load(p, k);
  }
  FN_MEMBER void hold_all() {
    hold<K>(Team<L>::own(), Team<L>::size(), dy.n / W, [&](i64 p, u32 k) { load(p, k); });
  }
  template <class U> FN_MEMBER void each(const U& use) {
    sweep<K, N>(Team<L>::own(), Team<L>::size(), dy.n / W, [&](i64 p, u32 k) { load(p, k); }, use);
  }
  FN_MEMBER Total product() {
    Total sum = {};
    each([&](i64, u32 k) {
#pragma unroll
      for (u32 w = 0; w < W; ++w) add_product(sum, dy.at(k, w), y.at(k, w));
    });
    return Team<L>::template fold<Sum>(sum);
  }
  FN_MEMBER void put_grad(T* to, f32 total) {
    each([&](i64 p, u32 k) {
      Pack<T, W> z;
#pragma unroll
      for (u32 w = 0; w < W; ++w) z.of[w] = down<T>((dy.at(k, w) - total) * y.at(k, w));
      put(to + p * W, z);
    });
  }
};

template <class T, u32 W, u32 K, u32 L> FN void softmax_grad_rows(const T* dy, const T* y, T* dx, i64 rows, i64 n) {
  for (i64 row = Team<L>::row(); row < rows; row += Team<L>::step()) {
    SoftmaxGrad<T, W, K, L> own{{dy + row * n, n}, {y + row * n, n}};
    own.hold_all();
    own.put_grad(dx + row * n, (f32)value(own.product()));
  }
}

template <class T, u32 W> FN void softmax_grad_sums(const T* dy, const T* y, Total* sums, i64 rows, i64 n) {
  RowPart<W> part(n);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 at = row * n + part.begin;
    SoftmaxGrad<T, W, 0, 0> own{{dy + at, part.n}, {y + at, part.n}};
    Total sum = own.product();
    if (threadIdx.x == 0) sums[row * gridDim.y + blockIdx.y] = sum;
  }
}

template <class T, u32 W>
FN void softmax_grad_parts(const T* dy, const T* y, T* dx, const Total* sums, i64 rows, i64 n) {
  RowPart<W> part(n);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 at = row * n + part.begin;
    SoftmaxGrad<T, W, 0, 0> own{{dy + at, part.n}, {y + at, part.n}};
    own.put_grad(dx + at, (f32)value(sum_of_parts(sums + row * gridDim.y, gridDim.y)));
  }
}

template <class T> FN void softmax_grad_column(const T* dy, const T* y, T* dx, i64 n, i64 inner) {
  f32 d[AHEAD], v[AHEAD];
  auto load = [&](i64 i, u32 k) {
    d[k] = up(dy[i * inner]);
    v[k] = up(y[i * inner]);
  };
  Total sum = {};
  sweep<0>(0, 1, n, load, [&](i64, u32 k) { add_product(sum, d[k], v[k]); });
  f32 total = (f32)value(sum);
  sweep<0>(0, 1, n, load, [&](i64 i, u32 k) { dx[i * inner] = down<T>((d[k] - total) * v[k]); });
}
