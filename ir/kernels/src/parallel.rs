//! Cutting work into chunks that depend on sizes only, so that results do not depend on the thread count.

use rayon::prelude::*;

/// Tensors with fewer elements run on the calling thread.
pub(crate) const INLINE: usize = 32 << 10;

/// Elements of one chunk of an element-wise op.
pub(crate) const CHUNK: usize = 16 << 10;

/// Calls `f(start, chunk)` for consecutive chunks of `out`. `f` must treat every element by itself.
pub(crate) fn for_chunks<T: Send>(out: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
    if out.is_empty() {
        return;
    }
    if out.len() < INLINE {
        return f(0, out);
    }
    out.par_chunks_mut(CHUNK).enumerate().for_each(|(i, chunk)| f(i * CHUNK, chunk));
}

/// Calls `f(first_row, rows)` for chunks of whole rows of `row` elements, each row costing about `work`
/// elements.
pub(crate) fn for_rows<T: Send>(out: &mut [T], row: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if out.is_empty() || row == 0 {
        return;
    }
    let rows = rows_per_chunk(work);
    if (out.len() / row).saturating_mul(work) < INLINE {
        return f(0, out);
    }
    out.par_chunks_mut(rows * row).enumerate().for_each(|(i, chunk)| f(i * rows, chunk));
}

/// Calls `f(n, image)` for every image of `len` elements.
pub(crate) fn for_images<T: Send>(out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if len == 0 {
        return;
    }
    if out.len() < INLINE {
        return out.chunks_exact_mut(len).enumerate().for_each(|(n, image)| f(n, image));
    }
    out.par_chunks_exact_mut(len).enumerate().for_each(|(n, image)| f(n, image));
}

/// Rows of about `work` elements that make one chunk.
pub(crate) fn rows_per_chunk(work: usize) -> usize {
    (CHUNK / work.max(1)).max(1)
}

/// Calls `f(first_row, a, b, c)` for the same rows of three tensors with `rows` elements to a row each.
///
/// A row costs about `work` elements; the tensors have equally many rows, and chunks have `chunk` of them.
pub(crate) fn for_rows3<T: Send>(
    [a, b, c]: [&mut [T]; 3],
    rows: [usize; 3],
    work: usize,
    chunk: usize,
    f: impl Fn(usize, &mut [T], &mut [T], &mut [T]) + Sync,
) {
    let [ra, rb, rc] = rows;
    if a.is_empty() || rows.contains(&0) {
        return;
    }
    if (a.len() / ra).saturating_mul(work) < INLINE {
        return f(0, a, b, c);
    }
    let ab = a.par_chunks_mut(chunk * ra).zip(b.par_chunks_mut(chunk * rb));
    let abc = ab.zip(c.par_chunks_mut(chunk * rc)).enumerate();
    abc.for_each(|(i, ((a, b), c))| f(i * chunk, a, b, c));
}

/// Calls `f(first_row, a, b)` for chunks of the same rows of two tensors, each row costing about `work`
/// elements.
pub(crate) fn for_rows2<T: Send, U: Send>(
    (a, b): (&mut [T], &mut [U]),
    row: usize,
    work: usize,
    chunk: usize,
    f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    if a.is_empty() || row == 0 {
        return;
    }
    if (a.len() / row).saturating_mul(work) < INLINE {
        return f(0, a, b);
    }
    let ab = a.par_chunks_mut(chunk * row).zip(b.par_chunks_mut(chunk * row)).enumerate();
    ab.for_each(|(i, (a, b))| f(i * chunk, a, b));
}
