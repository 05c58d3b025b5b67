//! The order of elements after chains of reshapes and transposes.

use memc_ir::{OpKind, ValueId};

use super::edit::Editor;

/// Most movement ops in a row that are looked through.
const MAX_MOVES: usize = 8;

/// The order in which a value holds the elements of another: nested loops of (extent, stride), outermost
/// first.
///
/// Without loops of extent 1, and with neighbours merged where they are one loop, so that equal orders are
/// equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout(Vec<(u64, u64)>);

impl Layout {
    /// Loops as given.
    pub(super) fn new(loops: &[(u64, u64)]) -> Layout {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for &(extent, stride) in loops.iter().filter(|(extent, _)| *extent != 1) {
            match merged.last_mut() {
                Some((e, s)) if stride.checked_mul(extent) == Some(*s) => {
                    // Cannot overflow: both extents count elements of one tensor.
                    (*e, *s) = (e.saturating_mul(extent), stride);
                }
                _ => merged.push((extent, stride)),
            }
        }
        Layout(merged)
    }

    /// The order of a tensor's own elements.
    fn identity(shape: &[u64]) -> Layout {
        Layout::new(&[(shape.iter().product(), 1)])
    }

    /// The loops of every axis of `shape`, which has as many elements; `None` where an axis cuts through a
    /// loop.
    fn axes(&self, shape: &[u64]) -> Option<Vec<Vec<(u64, u64)>>> {
        let mut loops = self.0.iter().rev().copied();
        let mut open = loops.next();
        let mut axes = Vec::with_capacity(shape.len());
        for &extent in shape.iter().rev() {
            let (mut rest, mut axis) = (extent, Vec::new());
            while rest > 1 {
                let (e, s) = open?;
                if rest % e == 0 {
                    axis.insert(0, (e, s));
                    rest /= e;
                    open = loops.next();
                } else if e % rest == 0 {
                    axis.insert(0, (rest, s));
                    open = Some((e / rest, s.checked_mul(rest)?));
                    rest = 1;
                } else {
                    return None;
                }
            }
            axes.insert(0, axis);
        }
        Some(axes)
    }

    /// The order after a transpose of a tensor of `shape`.
    fn transposed(&self, shape: &[u64], perm: &[u64]) -> Option<Layout> {
        let axes = self.axes(shape)?;
        let loops = perm.iter().map(|&p| axes.get(usize::try_from(p).ok()?).cloned());
        Some(Layout::new(&loops.collect::<Option<Vec<_>>>()?.concat()))
    }
}

/// The value that `v` holds in the order `want`, if only reshapes and transposes lie between them; the
/// nearest one.
pub(super) fn source(g: &Editor<'_>, v: ValueId, want: &Layout) -> Option<ValueId> {
    let mut moves: Vec<(ValueId, Option<Vec<u64>>)> = Vec::new();
    let mut at = v;
    loop {
        let mut layout = Layout::identity(g.shape(at));
        for (before, perm) in moves.iter().rev() {
            if let Some(perm) = perm {
                layout = layout.transposed(g.shape(*before), perm)?;
            }
        }
        if layout == *want {
            return Some(at);
        }
        let (kind, &[x]) = g.def(at)? else { return None };
        let perm = match kind {
            OpKind::Transpose { perm } => Some(perm.clone()),
            OpKind::Reshape { .. } => None,
            _ => return None,
        };
        if moves.len() == MAX_MOVES {
            return None;
        }
        moves.push((x, perm));
        at = x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_and_reshapes_compose() {
        // [2, 3, 4] transposed to [3, 2, 4], seen as [6, 4], transposed to [4, 6].
        let once = Layout::identity(&[2, 3, 4]).transposed(&[2, 3, 4], &[1, 0, 2]).unwrap();
        assert_eq!(once, Layout::new(&[(3, 4), (2, 12), (4, 1)]));
        let twice = once.transposed(&[6, 4], &[1, 0]).unwrap();
        assert_eq!(twice, Layout::new(&[(4, 1), (3, 4), (2, 12)]));
        // An axis of 4 cuts through the loop of 6 = 3 * 2.
        assert!(Layout::new(&[(3, 4), (2, 12), (4, 1)]).transposed(&[3, 8], &[1, 0]).is_some());
        assert_eq!(Layout::new(&[(3, 1), (4, 3)]).transposed(&[2, 6], &[1, 0]), None);
    }

    #[test]
    fn axes_of_extent_one_have_no_order() {
        let x = Layout::identity(&[4, 1, 5]);
        assert_eq!(x.transposed(&[4, 1, 5], &[1, 0, 2]), Some(x));
    }
}
