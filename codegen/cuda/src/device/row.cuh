// Rows lie in memory one after another. A team takes one at a time, `W` elements to a pack. It holds a row in registers where
// `K` packs for each thread are enough.

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

  // Takes the sum from `high`, which is no less than the peak.
  FN_MEMBER void raise(f32 high) {
    if (most != high) scale(total, most == -infinity() ? 0.0f : expf(most - high));
    most = high;
  }

  // That of all threads of a team.
  template <u32 L> FN_MEMBER void join() {
    raise(Team<L>::template fold<Max>(most));
    total = Team<L>::template fold<Sum>(total);
  }
};

// A row of `n` elements, of which a thread has some.
template <class T, u32 W, u32 K, u32 L, u32 N = row_ahead(sizeof(T) * W)> struct Row {
  const T* from;
  i64 n;
  Pack<T, W> held[places(K, N)];

  FN_MEMBER f32 at(u32 k, u32 w) const { return up(held[k].of[w]); }
  FN_MEMBER void load(i64 p, u32 k) { held[k] = pack<W>(from + p * W); }
  FN_MEMBER void hold_all() {
    hold<K>(Team<L>::own(), Team<L>::size(), n / W, [&](i64 p, u32 k) { load(p, k); });
  }
  // `use(p, k)` for each pack of the thread.
  template <class U> FN_MEMBER void each(const U& use) {
    sweep<K, N>(Team<L>::own(), Team<L>::size(), n / W, [&](i64 p, u32 k) { load(p, k); }, use);
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
    each([&](i64, u32 k) {
      f32 x[W];
#pragma unroll
      for (u32 w = 0; w < W; ++w) x[w] = at(k, w);
      peak.take<W>(x);
    });
    peak.template join<L>();
    return peak;
  }
};

// Long rows, where there are few, are cut along y: a launch leaves the sums of each part, and in the next one every block
// joins those of its row.

// The place in its row where the block's part begins, and its elements.
template <u32 W> struct RowPart {
  i64 begin, n;
  __device__ explicit RowPart(i64 row_n) {
    Part part(blockIdx.y, gridDim.y, row_n / W);
    begin = part.begin * W;
    n = (part.end - part.begin) * W;
  }
};

template <class T, u32 W> FN void peak_parts(const T* x, Peak* peaks, i64 rows, i64 n) {
  RowPart<W> part(n);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    Row<T, W, 0, 0> r{x + row * n + part.begin, part.n};
    Peak peak = r.peak();
    if (threadIdx.x == 0) peaks[row * gridDim.y + blockIdx.y] = peak;
  }
}

// The fold of parts, by one block.
template <class A> FN A sum_of_parts(const A* parts, i64 count) {
  A sum = {};
  for (i64 p = threadIdx.x; p < count; p += blockDim.x) sum = op_add(sum, parts[p]);
  return block_fold<Sum>(sum);
}

// The peak of a row, of those of its parts.
FN Peak joined_peak(const Peak* peaks, i64 row) {
  Peak peak;
  for (u32 p = threadIdx.x; p < gridDim.y; p += blockDim.x) {
    Peak other = peaks[row * gridDim.y + p];
    f32 high = op_max(peak.most, other.most);
    peak.raise(high);
    other.raise(high);
    peak.total = op_add(peak.total, other.total);
  }
  peak.join<0>();
  return peak;
}
