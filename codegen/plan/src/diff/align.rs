//! Alignment of two sequences.

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

/// Most differences that are searched for; time and memory grow with its square.
const MAX_DIFFERENCES: usize = 2000;

/// A shortest list of edits from `old` to `new`. Beyond [`MAX_DIFFERENCES`], all that lies between the common start
/// and the common end counts as replaced.
pub(super) fn align(old: &[u32], new: &[u32]) -> Vec<Edit> {
    let start = common(old.iter(), new.iter());
    let (a, b) = (old.get(start..).unwrap_or_default(), new.get(start..).unwrap_or_default());
    let end = common(a.iter().rev(), b.iter().rev());
    let a = a.get(..a.len().saturating_sub(end)).unwrap_or_default();
    let b = b.get(..b.len().saturating_sub(end)).unwrap_or_default();

    let mut edits: Vec<Edit> = (0..start).map(|i| Edit::Same(i, i)).collect();
    match middle(a, b) {
        Some(found) => edits.extend(found.into_iter().map(|edit| match edit {
            Edit::Same(i, j) => Edit::Same(i + start, j + start),
            Edit::Gone(i) => Edit::Gone(i + start),
            Edit::New(j) => Edit::New(j + start),
        })),
        None => {
            edits.extend((start..start + a.len()).map(Edit::Gone));
            edits.extend((start..start + b.len()).map(Edit::New));
        }
    }
    edits.extend((0..end).map(|i| Edit::Same(start + a.len() + i, start + b.len() + i)));
    edits
}

fn common<'a>(a: impl Iterator<Item = &'a u32>, b: impl Iterator<Item = &'a u32>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// One difference, on the way to a diagonal.
#[derive(Clone, Copy)]
enum Step {
    /// From the diagonal below, by an element of `a`.
    Gone,
    /// From the diagonal above, by an element of `b`.
    New,
}

/// Myers' forward search: `fronts[d][n]` is the greatest index into `a` that `d` differences lead to on the diagonal
/// where the index into `b` is that into `a` plus `d - 2n`, if any do.
fn middle(a: &[u32], b: &[u32]) -> Option<Vec<Edit>> {
    let mut fronts: Vec<Vec<Option<usize>>> = Vec::new();
    for d in 0..=MAX_DIFFERENCES.min(a.len() + b.len()) {
        let mut front = Vec::with_capacity(d + 1);
        for n in 0..=d {
            let entry = if d == 0 { Some(0) } else { enter(&fronts, d, n, a.len(), b.len()).map(|(i, _)| i) };
            let end = entry.map(|i| {
                let j = (i + d).saturating_sub(2 * n);
                let rest = |list, from| <[u32]>::iter(<[u32]>::get(list, from..).unwrap_or_default());
                i + common(rest(a, i), rest(b, j))
            });
            front.push(end);
            if end == Some(a.len()) && a.len() + d == b.len() + 2 * n {
                fronts.push(front);
                return Some(trace(&fronts, n, a.len(), b.len()));
            }
        }
        fronts.push(front);
    }
    None
}

/// Where `d` differences enter a diagonal, as an index into `a`, and by which step.
fn enter(fronts: &[Vec<Option<usize>>], d: usize, n: usize, a: usize, b: usize) -> Option<(usize, Step)> {
    let before = fronts.get(d.checked_sub(1)?)?;
    let gone = n.checked_sub(1).and_then(|n| *before.get(n)?).filter(|&i| i < a).map(|i| (i + 1, Step::Gone));
    let new = before.get(n).copied().flatten().filter(|&i| i + d <= b + 2 * n).map(|i| (i, Step::New));
    match (gone, new) {
        (Some(gone), Some(new)) => Some(if gone.0 > new.0 { gone } else { new }),
        (gone, new) => gone.or(new),
    }
}

/// The edits that lead to the end of both sequences on the diagonal `n` of the last front.
fn trace(fronts: &[Vec<Option<usize>>], mut n: usize, a: usize, b: usize) -> Vec<Edit> {
    let mut edits = Vec::new();
    let (mut i, mut j) = (a, b);
    for d in (1..fronts.len()).rev() {
        let Some((entry, step)) = enter(fronts, d, n, a, b) else { break };
        while i > entry {
            (i, j) = (i - 1, j - 1);
            edits.push(Edit::Same(i, j));
        }
        match step {
            Step::Gone => {
                (i, n) = (i - 1, n - 1);
                edits.push(Edit::Gone(i));
            }
            Step::New => {
                j -= 1;
                edits.push(Edit::New(j));
            }
        }
    }
    edits.extend((0..i).rev().map(|i| Edit::Same(i, i)));
    edits.reverse();
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

    /// Applying the edits visits both sequences in order, pairs equal elements only, and pairs as many as possible.
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
