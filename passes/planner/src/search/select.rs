//! A choice of gaps by prices: most room for the cost of their copies, until the step fits.

use super::prices::Prices;
use super::state::State;

/// Gaps that are swapped together, and what that costs.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    gap: usize,
    /// The tensor's gap across steps, where the copy to the host is better made than in this gap.
    wrap: Option<usize>,
    /// Whether the tensor is to be on both sides when a step begins.
    mirror: bool,
    cost: f64,
}

impl Candidate {
    fn gaps(&self) -> ([usize; 2], usize) {
        ([self.gap, self.wrap.unwrap_or(self.gap)], if self.wrap.is_some() { 2 } else { 1 })
    }
}

/// Swaps gaps until every step fits, then keeps again those that are not needed; false when that cannot be.
/// Adds to `work` how many gaps and steps it looked at.
///
/// Each is chosen by the bytes over capacity that it takes away, summed over steps, for the cost of its copies.
pub(crate) fn greedy(s: &mut State<'_>, prices: &Prices, work: &mut u64) -> bool {
    let n = s.steps();
    let mut candidates: Vec<Vec<Candidate>> =
        (0..s.p.tensors.len() as u32).map(|t| of_tensor(s, prices, t)).collect();
    let mut chosen = Vec::new();
    let mut over = vec![0.0f64; n + 1];
    loop {
        let excess = |i: usize| s.least[i].saturating_sub(s.capacity[i]);
        let Some(worst) = (0..n).max_by_key(|&i| (excess(i), std::cmp::Reverse(i))) else { return true };
        if excess(worst) == 0 {
            break;
        }
        for i in 0..n {
            over[i + 1] = over[i] + excess(i) as f64;
        }
        *work += (n + 2 * s.open.len()) as u64;
        let mut best: Option<(f64, Candidate)> = None;
        for c in candidates.iter().flatten() {
            let (gaps, count) = c.gaps();
            let mut area = 0.0;
            let mut here = false;
            for &g in &gaps[..count] {
                for (a, b) in s.freed(g) {
                    area += over[b] - over[a];
                    here |= a <= worst && worst < b;
                }
            }
            if !here {
                continue;
            }
            // More than is over capacity is no use.
            let bytes = s.scheme.sequence.gaps[c.gap].bytes.min(excess(worst)) as f64;
            let score = bytes * area / c.cost.max(1.0);
            if best.is_none_or(|(b, _)| score > b) {
                best = Some((score, *c));
            }
        }
        let Some((_, c)) = best else { return false };
        let (gaps, count) = c.gaps();
        for &g in &gaps[..count] {
            s.set(g, true);
            chosen.push((c.cost, g));
        }
        let t = s.scheme.sequence.gaps[c.gap].tensor;
        s.mirror(t, c.mirror);
        candidates[t as usize] = of_tensor(s, prices, t);
    }
    chosen.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (_, g) in chosen {
        keep_if_it_fits(s, prices, g);
    }
    true
}

/// The gaps of a tensor that may be swapped and are not.
fn of_tensor(s: &State<'_>, prices: &Prices, t: u32) -> Vec<Candidate> {
    let n = s.steps();
    let gaps = s.scheme.sequence.gaps_of(t);
    let free = |g: &usize| s.open[*g] && !s.swapped(*g);
    let wrap = gaps.clone().next_back().filter(|g| free(g) && s.scheme.sequence.gaps[*g].wraps(n));
    let (mirrored, now) =
        (s.scheme.mirrored[t as usize], prices.cost(s, t, &[], s.scheme.mirrored[t as usize]));
    let may_mirror = s.p.mirrors && s.p.tensors[t as usize].persistent() && !mirrored;
    let mut out = Vec::new();
    for gap in gaps.filter(free) {
        let mut add = |wrap: Option<usize>, mirror| {
            let both = [gap, wrap.unwrap_or(gap)];
            let flipped = &both[..if wrap.is_some() { 2 } else { 1 }];
            out.push(Candidate { gap, wrap, mirror, cost: prices.cost(s, t, flipped, mirror) - now });
        };
        add(None, mirrored);
        if let Some(wrap) = wrap.filter(|&w| w != gap) {
            add(Some(wrap), mirrored);
            if may_mirror {
                add(None, true);
            }
        }
    }
    out
}

/// Keeps a swapped gap when there is room throughout and its tensor's copies cost less for it.
pub(crate) fn keep_if_it_fits(s: &mut State<'_>, prices: &Prices, g: usize) {
    let gap = s.scheme.sequence.gaps[g];
    let mirrored = s.scheme.mirrored[gap.tensor as usize];
    let fits = s.freed(g).iter().all(|&(a, b)| (a..b).all(|i| s.least[i] + gap.bytes <= s.capacity[i]));
    if fits && prices.cost(s, gap.tensor, &[g], mirrored) < prices.cost(s, gap.tensor, &[], mirrored) {
        s.set(g, false);
    }
}
