// Cross-entropy and its sums.

// The loss of a label that names no class: zero where it is ignored, otherwise not a number.
FN f32 no_class(i64 label, i64 ignore) { return label == ignore ? 0.0f : of_bits(0x7fc00000u); }

FN bool is_class(i64 label, i64 ignore, i64 classes) { return label != ignore && label >= 0 && label < classes; }

// Logarithm of softmax of a row's elements from `begin` on, and the loss of its label where that is among them.
template <class R, class T>
FN void put_cross_entropy(R& r, const Peak& peak, i64 begin, i64 label, bool counts, T* to, f32* loss) {
  f32 last = (f32)log(value(peak.total));
  i64 wanted = counts ? label - begin : -1;
  r.put_each(to, [&](i64 i, f32 x) {
    f32 v = x - peak.most - last;
    if (i == wanted) *loss = -v;
    return v;
  });
}

template <class T, class I, u32 W, u32 K, u32 L>
FN void cross_entropy_rows(const T* x, const I* labels, T* y, f32* losses, i64 rows, i64 n, i64 ignore) {
  for (i64 row = Team<L>::row(); row < rows; row += Team<L>::step()) {
    Row<T, W, K, L> r{x + row * n, n};
    r.hold_all();
    i64 label = labels[row];
    bool counts = is_class(label, ignore, n);
    if (Team<L>::own() == 0 && !counts) losses[row] = no_class(label, ignore);
    put_cross_entropy(r, r.peak(), 0, label, counts, y + row * n, losses + row);
  }
}

template <class T, class I, u32 W>
FN void cross_entropy_parts(const T* x, const I* labels, T* y, f32* losses, const Peak* peaks, i64 rows, i64 n,
                            i64 ignore) {
  RowPart<W> part(n);
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    i64 at = row * n + part.begin, label = labels[row];
    Row<T, W, 0, 0> r{x + at, part.n};
    bool counts = is_class(label, ignore, n);
    if (blockIdx.y == 0 && threadIdx.x == 0 && !counts) losses[row] = no_class(label, ignore);
    put_cross_entropy(r, joined_peak(peaks, row), part.begin, label, counts, y + at, losses + row);
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

// The number of labels of a part that count, by one block.
template <class I> FN u64 counted(const I* labels, const Part& part, i64 ignore) {
  u64 count = 0;
  I ahead[AHEAD];
  sweep<0>(part.begin + threadIdx.x, blockDim.x, part.end, [&](i64 i, u32 k) { ahead[k] = labels[i]; },
           [&](i64, u32 k) { count += (i64)ahead[k] != ignore; });
  return block_fold<Sum>(count);
}

// The sum of the losses of a part, by one block.
FN Total summed(const f32* losses, const Part& part) {
  Total total = {};
  f32 ahead[AHEAD];
  sweep<0>(part.begin + threadIdx.x, blockDim.x, part.end, [&](i64 i, u32 k) { ahead[k] = losses[i]; },
           [&](i64, u32 k) { add(total, ahead[k]); });
  return block_fold<Sum>(total);
}

// Sum or mean of the losses. Of no label the mean is zero.
template <class T> FN void put_loss(Total total, u64 count, T* loss) {
  if (threadIdx.x == 0) loss[0] = down<T>((f32)(exact(total) / (f64)(count > 0 ? count : 1)));
}

// What each of `count` losses has a part of.
FN void put_share(u64 count, f32* share) {
  if (threadIdx.x == 0) share[0] = 1.0f / (f32)(count > 0 ? count : 1);
}
