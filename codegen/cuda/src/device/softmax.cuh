// Softmax, cross-entropy and their gradients. Rows lie in memory one after another, and a block takes one at a time, `W`
// elements to a pack. It holds a row in registers where `K` packs for each thread are enough.

// A row's largest element, and the sum of the exponentials of distances from it.
struct Peak {
  f32 most = -infinity();
  Total total = {};

  // Adds elements whose largest is `high`: the sum so far is taken from the new peak.
  template <u32 W> FN_MEMBER void take(const f32 (&x)[W]) {
    f32 high = x[0];
#pragma unroll
    for (u32 w = 1; w < W; ++w) high = op_max(high, x[w]);
    if (!(high <= most)) {
      scale(total, expf(most - high));
      most = high;
    }
    // Of nothing but minus infinity every distance would not be a number.
    if (most == -infinity()) return;
#pragma unroll
    for (u32 w = 0; w < W; ++w) add(total, expf(x[w] - most));
  }

  // That of all threads.
  FN_MEMBER void join() {
    f32 high = block_fold<Max>(most);
    if (most != high) scale(total, most == -infinity() ? 0.0f : expf(most - high));
    most = high;
    total = block_fold<Sum>(total);
  }
};

// A row of `n` elements, of which a thread has some.
template <class T, u32 W, u32 K, u32 N = AHEAD> struct Row {
  const T* from;
  i64 n;
  Pack<T, W> held[places(K, N)];

  FN_MEMBER f32 at(u32 k, u32 w) const { return up(held[k].of[w]); }
  FN_MEMBER void load(i64 p, u32 k) { held[k] = pack<W>(from + p * W); }
  FN_MEMBER void hold_all() {
    hold<K>(threadIdx.x, blockDim.x, n / W, [&](i64 p, u32 k) { load(p, k); });
  }
  // `use(p, k)` for each pack of the thread.
  template <class U> FN_MEMBER void each(const U& use) {
    sweep<K, N>(threadIdx.x, blockDim.x, n / W, [&](i64 p, u32 k) { load(p, k); }, use);
  }
  // Writes `f(i, x)` for each element `x` with its position in the row.
  template <class F> FN_MEMBER void put_each(T* to, const F& f) {
    each([&](i64 p, u32 k) {
      Pack<T, W> z;
#pragma unroll
      for (u32 w = 0; w < W; ++w) z.of[w] = down<T>(f(p * W + w, at(k, w)));
      put(to + p * W, z);
    });
  }
  FN_MEMBER Peak peak() {
    Peak peak;
    each([&](i64 p, u32 k) {
      f32 x[W];
#pragma unroll
      for (u32 w = 0; w < W; ++w) x[w] = at(k, w);
      peak.take<W>(x);
    });
    peak.join();
    return peak;
  }
};

template <class T, u32 W, u32 K, bool LOG> FN void softmax_rows(const T* x, T* y, i64 rows, i64 n) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Row<T, W, K> r{x + row * n, n};
    T* to = y + row * n;
    r.hold_all();
    if constexpr (LOG || K == 0) {
      Peak peak = r.peak();
      f32 last = (f32)(LOG ? log(value(peak.total)) : (real)1 / value(peak.total));
      r.put_each(to, [&](i64, f32 v) { return LOG ? v - peak.most - last : expf(v - peak.most) * last; });
    } else {
      // Exponentials are kept, one for each element.
      f32 most = -infinity(), e[K][W];
      r.each([&](i64, u32 k) {
#pragma unroll
        for (u32 w = 0; w < W; ++w) most = op_max(most, r.at(k, w));
      });
      most = block_fold<Max>(most);
      Total total = {};
      r.each([&](i64, u32 k) {
#pragma unroll
        for (u32 w = 0; w < W; ++w) add(total, e[k][w] = expf(r.at(k, w) - most));
      });
      f32 last = (f32)((real)1 / value(block_fold<Sum>(total)));
      r.each([&](i64 p, u32 k) {
        Pack<T, W> z;
#pragma unroll
        for (u32 w = 0; w < W; ++w) z.of[w] = down<T>(e[k][w] * last);
        put(to + p * W, z);
      });
    }
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
  Peak peak = column_peak(x, n, inner);
  f32 last = (f32)(LOG ? log(value(peak.total)) : (real)1 / value(peak.total));
  column(x, n, inner, [&](i64 i, f32 v) {
    y[i * inner] = down<T>(LOG ? v - peak.most - last : expf(v - peak.most) * last);
  });
}

template <class T, u32 W, u32 K> FN void softmax_grad_rows(const T* dy, const T* y, T* dx, i64 rows, i64 n) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Row<T, W, K> d{dy + row * n, n}, v{y + row * n, n};
    auto load = [&](i64 p, u32 k) {
      d.load(p, k);
      v.load(p, k);
    };
    hold<K>(threadIdx.x, blockDim.x, n / W, load);
    Total sum = {};
    sweep<K>(threadIdx.x, blockDim.x, n / W, load, [&](i64, u32 k) {
#pragma unroll
      for (u32 w = 0; w < W; ++w) add_product(sum, d.at(k, w), v.at(k, w));
    });
    f32 total = (f32)value(block_fold<Sum>(sum));
    sweep<K>(threadIdx.x, blockDim.x, n / W, load, [&](i64 p, u32 k) {
      Pack<T, W> z;
#pragma unroll
      for (u32 w = 0; w < W; ++w) z.of[w] = down<T>((d.at(k, w) - total) * v.at(k, w));
      put(dx + row * n + p * W, z);
    });
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

// The loss of a label that names no class: zero where it is ignored, otherwise not a number.
FN f32 no_class(i64 label, i64 ignore) { return label == ignore ? 0.0f : of_bits(0x7fc00000u); }

FN bool is_class(i64 label, i64 ignore, i64 classes) { return label != ignore && label >= 0 && label < classes; }

// Logarithm of softmax, and for every row the loss of its label.
template <class T, class I, u32 W, u32 K>
FN void cross_entropy_rows(const T* x, const I* labels, T* y, f32* losses, i64 rows, i64 n, i64 ignore) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Row<T, W, K> r{x + row * n, n};
    r.hold_all();
    Peak peak = r.peak();
    f32 last = (f32)log(value(peak.total));
    i64 label = labels[row];
    bool counts = is_class(label, ignore, n);
    if (threadIdx.x == 0 && !counts) losses[row] = no_class(label, ignore);
    r.put_each(y + row * n, [&](i64 i, f32 x) {
      f32 v = x - peak.most - last;
      if (counts && i == label) losses[row] = -v;
      return v;
    });
  }
}

template <class T>
FN void cross_entropy_column(const T* x, i64 label, T* y, f32* loss, i64 n, i64 inner, i64 ignore) {
  Peak peak = column_peak(x, n, inner);
  f32 last = (f32)log(value(peak.total));
  bool counts = is_class(label, ignore, n);
  if (!counts) *loss = no_class(label, ignore);
  column(x, n, inner, [&](i64 i, f32 x) {
    f32 v = x - peak.most - last;
    if (counts && i == label) *loss = -v;
    y[i * inner] = down<T>(v);
  });
}

// The number of labels that count, by one block.
template <class I> FN u64 counted(const I* labels, i64 positions, i64 ignore) {
  u64 count = 0;
  I ahead[AHEAD];
  sweep<0>(threadIdx.x, blockDim.x, positions, [&](i64 i, u32 k) { ahead[k] = labels[i]; },
           [&](i64, u32 k) { count += (i64)ahead[k] != ignore; });
  return block_fold<Sum>(count);
}

// Sum or mean of the losses, by one block. Of no label the mean is zero.
template <class T, class I>
FN void total_loss(const f32* losses, const I* labels, T* loss, i64 positions, i64 ignore, bool mean) {
  Total total = {};
  f32 ahead[AHEAD];
  sweep<0>(threadIdx.x, blockDim.x, positions, [&](i64 i, u32 k) { ahead[k] = losses[i]; },
           [&](i64, u32 k) { add(total, ahead[k]); });
  total = block_fold<Sum>(total);
  u64 count = mean ? counted(labels, positions, ignore) : 1;
  if (threadIdx.x == 0) loss[0] = down<T>((f32)(exact(total) / (f64)(count > 0 ? count : 1)));
}
