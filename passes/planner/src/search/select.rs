//! A first choice of gaps: most room for the time of their copies, until the step fits.

use super::state::State;

/// Swaps gaps until every step fits, then keeps again those that are not needed; false when that cannot be.
///
/// Each is chosen by the bytes over capacity that it takes away, summed over steps, per ns of its copies.
pub(crate) fn greedy(s: &mut State<'_>) -> bool {
    let n = s.steps();
    let mut chosen = Vec::new();
    loop {
        let excess = |i: usize| s.least[i].saturating_sub(s.capacity);
        let Some(worst) = (0..n).max_by_key(|&i| (excess(i), std::cmp::Reverse(i))) else { return true };
        if excess(worst) == 0 {
            break;
        }
        let mut over = vec![0u64; n + 1];
        for i in 0..n {
            over[i + 1] = over[i] + u64::from(excess(i) > 0) * s.scheme.sequence.ns[i].max(1);
        }
        let mut best: Option<(f64, usize)> = None;
        for g in 0..s.open.len() {
            if !s.open[g] || s.swapped(g) {
                continue;
            }
            let ranges = s.freed(g);
            if !ranges.iter().any(|&(a, b)| a <= worst && worst < b) {
                continue;
            }
            let gap = &s.scheme.sequence.gaps[g];
            let time: u64 = ranges.iter().map(|&(a, b)| over[b] - over[a]).sum();
            let bytes = gap.bytes.min(excess(worst).max(gap.bytes / 4));
            let copies = s.copies.back[g] + s.copies.out[g];
            let score = bytes as f64 * time as f64 / copies.max(1) as f64;
            if best.is_none_or(|(b, _)| score > b) {
                best = Some((score, g));
            }
        }
        let Some((_, g)) = best else { return false };
        s.set(g, true);
        chosen.push(g);
    }
    // The last chosen were chosen with the least in view.
    chosen.sort_by_key(|&g| std::cmp::Reverse(s.copies.back[g] + s.copies.out[g]));
    for g in chosen {
        keep_if_it_fits(s, g);
    }
    true
}

/// Keeps a swapped gap when there is room throughout.
pub(crate) fn keep_if_it_fits(s: &mut State<'_>, g: usize) -> bool {
    let bytes = s.scheme.sequence.gaps[g].bytes;
    let fits = s.freed(g).iter().all(|&(a, b)| s.least[a..b].iter().all(|&x| x + bytes <= s.capacity));
    if fits {
        s.set(g, false);
    }
    fits
}
