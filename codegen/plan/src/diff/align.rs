//! Alignment of two sequences.

use std::collections::BTreeSet;

use similar::{Algorithm, DiffOp, capture_diff_slices};

/// One step from the old sequence to the new one, with indices into either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit {
    /// The old element has a counterpart.
    Same(usize, usize),
    /// The old element is gone.
    Gone(usize),
    /// The new element has no counterpart.
    New(usize),
}

/// A shortest list of edits from `old` to `new`. Elements that only one sequence has cost no search.
pub(super) fn align(old: &[u32], new: &[u32]) -> Vec<Edit> {
    let (in_old, in_new): (BTreeSet<&u32>, BTreeSet<&u32>) = (old.iter().collect(), new.iter().collect());
    let shared = |list: &[u32], other: &BTreeSet<&u32>| -> (Vec<usize>, Vec<u32>) {
        list.iter().enumerate().filter(|(_, element)| other.contains(element)).unzip()
    };
    let ((old_at, a), (new_at, b)) = (shared(old, &in_new), shared(new, &in_old));
    let mut edits = Vec::with_capacity(old.len() + new.len());
    let (mut i, mut j) = (0, 0);
    // Of two elements that trade places, the second one is to count as moved: hence from new to old.
    for op in capture_diff_slices(Algorithm::Myers, &b, &a) {
        let DiffOp::Equal { old_index: in_b, new_index: in_a, len } = op else { continue };
        for (&x, &y) in old_at.iter().skip(in_a).zip(new_at.iter().skip(in_b)).take(len) {
            edits.extend((i..x).map(Edit::Gone));
            edits.extend((j..y).map(Edit::New));
            edits.push(Edit::Same(x, y));
            (i, j) = (x + 1, y + 1);
        }
    }
    edits.extend((i..old.len()).map(Edit::Gone));
    edits.extend((j..new.len()).map(Edit::New));
    edits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length of a longest common subsequence, by the quadratic recurrence.
    fn lcs(a: &[u32], b: &[u32]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for x in a {
            let mut diagonal = 0;
            for (j, y) in b.iter().enumerate() {
                let above = row[j + 1];
                row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
                diagonal = above;
            }
        }
        row[b.len()]
    }

    /// Applying the edits visits both sequences in order, pairs equal elements only, and pairs as many as
    /// possible.
    fn check(a: &[u32], b: &[u32]) {
        let edits = align(a, b);
        let (mut i, mut j, mut same) = (0, 0, 0);
        for edit in edits {
            match edit {
                Edit::Same(x, y) => {
                    assert_eq!((x, y), (i, j));
                    assert_eq!(a[x], b[y]);
                    (i, j, same) = (i + 1, j + 1, same + 1);
                }
                Edit::Gone(x) => {
                    assert_eq!(x, i);
                    i += 1;
                }
                Edit::New(y) => {
                    assert_eq!(y, j);
                    j += 1;
                }
            }
        }
        assert_eq!((i, j), (a.len(), b.len()));
        assert_eq!(same, lcs(a, b), "{a:?} {b:?}");
    }

    #[test]
    fn alignment_is_a_longest_common_subsequence() {
        arbtest::arbtest(|u| {
            let mut list = || -> arbtest::arbitrary::Result<Vec<u32>> {
                let length = u.int_in_range(0..=12)?;
                (0..length).map(|_| u.int_in_range(0..=3)).collect()
            };
            check(&list()?, &list()?);
            Ok(())
        })
        .budget_ms(300);
    }

    /// Two long lists without a common element are replaced as a whole, without a quadratic search.
    #[test]
    fn alignment_of_unrelated_lists_replaces_all() {
        let a: Vec<u32> = (0..100_000).collect();
        let b: Vec<u32> = (100_000..200_000).collect();
        let edits = align(&a, &b);
        assert_eq!(edits.len(), 200_000);
        assert_eq!(edits.first(), Some(&Edit::Gone(0)));
        assert_eq!(edits.last(), Some(&Edit::New(99_999)));
    }
}
