//! Index arithmetic in kernels: from a flat position in an iteration space to offsets in tensors.

use std::fmt::Write;

use crate::kernel::Entry;

/// An iteration space and, for each of several tensors, strides in elements. Adjacent axes are merged where
/// all tensors allow it, and axes of extent 1 are left out.
#[derive(Clone, Debug)]
pub(crate) struct IndexSpace {
    /// Extent and strides of each axis, outermost first.
    axes: Vec<(u64, Vec<i64>)>,
    tensors: usize,
}

/// Row-major strides of a shape, in elements.
pub(crate) fn strides(shape: &[u64]) -> Vec<i64> {
    let mut next = 1i64;
    let mut strides: Vec<i64> = shape
        .iter()
        .rev()
        .map(|&d| {
            let stride = next;
            next = next.saturating_mul(i64::try_from(d.max(1)).unwrap_or(i64::MAX));
            stride
        })
        .collect();
    strides.reverse();
    strides
}

/// Strides with which a tensor of `shape` is read under a result of `rank` axes: zero where it broadcasts.
pub(crate) fn broadcast(shape: &[u64], rank: usize) -> Vec<i64> {
    let skipped = shape.len().saturating_sub(rank);
    let own = strides(shape);
    let kept = shape.iter().zip(own).skip(skipped).map(|(&d, s)| if d == 1 { 0 } else { s });
    let mut all = vec![0; rank.saturating_sub(shape.len())];
    all.extend(kept);
    all
}

/// Strides with which a vector is read along axis 1 of `shape`.
pub(crate) fn channel(shape: &[u64]) -> Vec<i64> {
    (0..shape.len()).map(|a| i64::from(a == 1 && shape.get(a) != Some(&1))).collect()
}

impl IndexSpace {
    /// Over axes of `extents`, with one list of strides for each tensor.
    pub(crate) fn new(extents: &[u64], strides: &[Vec<i64>]) -> IndexSpace {
        let mut axes: Vec<(u64, Vec<i64>)> = Vec::new();
        for (a, &extent) in extents.iter().enumerate() {
            if extent == 1 {
                continue;
            }
            let own: Vec<i64> = strides.iter().map(|s| s.get(a).copied().unwrap_or(0)).collect();
            if let Some((outer, steps)) = axes.last_mut() {
                let next = |s: i64| s.checked_mul(i64::try_from(extent).unwrap_or(i64::MAX));
                if steps.iter().zip(&own).all(|(&outer, &inner)| next(inner) == Some(outer)) {
                    *outer = outer.saturating_mul(extent);
                    *steps = own;
                    continue;
                }
            }
            axes.push((extent, own));
        }
        IndexSpace { axes, tensors: strides.len() }
    }

    /// Positions in all.
    pub(crate) fn len(&self) -> u64 {
        self.axes.iter().map(|(extent, _)| *extent).product()
    }

    /// Positions in all, and the step of each tensor from one to the next; `None` where steps differ.
    pub(crate) fn even<const N: usize>(&self) -> Option<(u64, [i64; N])> {
        match self.axes.as_slice() {
            [] => Some((1, [0; N])),
            [(extent, strides)] => Some((*extent, *strides.first_chunk()?)),
            _ => None,
        }
    }

    /// Whether tensor `t` is read in order, one element after another.
    fn is_flat(&self, t: usize) -> bool {
        match self.axes.as_slice() {
            [] => true,
            [(_, strides)] => strides.get(t) == Some(&1),
            _ => false,
        }
    }

    fn is_fixed(&self, t: usize) -> bool {
        self.axes.iter().all(|(_, strides)| strides.get(t).is_none_or(|&s| s == 0))
    }

    /// Whether tensor `t` is at one place along the innermost axis.
    pub(crate) fn is_still(&self, t: usize) -> bool {
        self.axes.last().is_none_or(|(_, strides)| strides.get(t).is_none_or(|&s| s == 0))
    }

    /// Whether every four positions from a multiple of four on are neighbours in each tensor, from a multiple
    /// of four on, or one place of it.
    pub(crate) fn by_four(&self) -> bool {
        let Some(((extent, _), _)) = self.axes.split_last() else { return false };
        extent % 4 == 0 && (0..self.tensors).all(|t| self.is_still(t) || self.is_in_order(t, 4))
    }

    /// Most positions, at most `most`, that are neighbours in every tensor. Runs of them begin at multiples
    /// of their number, in the space and in each tensor. `most` is a power of two.
    pub(crate) fn neighbours(&self, most: u64) -> u64 {
        let Some(((extent, _), _)) = self.axes.split_last() else { return 1 };
        let fits = |n| extent.is_multiple_of(n) && (0..self.tensors).all(|t| self.is_in_order(t, n));
        let mut n = most;
        while n > 1 && !fits(n) {
            n /= 2;
        }
        n
    }

    /// Largest power of two, at most `most`, that divides all strides.
    pub(crate) fn step(&self, most: u64) -> u64 {
        let strides = self.axes.iter().flat_map(|(_, strides)| strides).map(|s| s.unsigned_abs());
        strides.fold(most, |n, stride| if stride == 0 { n } else { n.min(1 << stride.trailing_zeros()) })
    }

    /// Whether the innermost axis of tensor `t` has steps of one, and the others steps of multiples of `n`.
    fn is_in_order(&self, t: usize, n: u64) -> bool {
        let step = |(_, strides): &(u64, Vec<i64>)| strides.get(t).copied().unwrap_or(0);
        let Some((inner, outer)) = self.axes.split_last() else { return false };
        step(inner) == 1 && outer.iter().all(|axis| step(axis).unsigned_abs().is_multiple_of(n))
    }

    /// Adds the parameters of the space, named with `tag`, and statements that define `{tag}0`, `{tag}1`,
    /// ..., the offsets of the tensors at position `position` of type `idx`.
    pub(crate) fn offsets(&self, mut entry: Entry, tag: &str, position: &str) -> (Entry, String) {
        let mut text = String::new();
        let open: Vec<usize> = (0..self.tensors).filter(|&t| !self.is_flat(t) && !self.is_fixed(t)).collect();
        for t in 0..self.tensors {
            let start =
                if self.is_flat(t) && !self.is_fixed(t) { format!("(i64){position}") } else { "0".into() };
            let _ = writeln!(text, "i64 {tag}{t} = {start};");
        }
        if open.is_empty() {
            return (entry, text);
        }
        let _ = writeln!(text, "idx {tag}_rest = {position};");
        for (a, (extent, strides)) in self.axes.iter().enumerate().rev() {
            let at = if a == 0 {
                format!("{tag}_rest")
            } else {
                entry = entry.int(&format!("{tag}_d{a}"), *extent);
                let _ = writeln!(text, "idx {tag}_at{a} = {tag}_rest % (idx){tag}_d{a};");
                let _ = writeln!(text, "{tag}_rest /= (idx){tag}_d{a};");
                format!("{tag}_at{a}")
            };
            for &t in &open {
                entry = entry.int(&format!("{tag}_s{t}_{a}"), strides.get(t).copied().unwrap_or(0));
                let _ = writeln!(text, "{tag}{t} += (i64){at} * {tag}_s{t}_{a};");
            }
        }
        (entry, text)
    }
}
