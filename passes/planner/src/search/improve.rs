//! Large neighbourhood search aimed at stalls: what made a step wait stays on the device, and something else goes.

use super::prices::Prices;
use super::select;
use super::state::State;
use crate::timing::Cause;

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Most gaps that one move takes back.
const MOST: u64 = 12;

/// One move from the present choice, evaluated: the step's time in ns, or `None` where nothing waits or nothing fits.
///
/// A stall is drawn by its length, and some of the copies in the chain that led to it are taken back. Prices for the move
/// are the learned ones, with noise, and more for what was taken back.
pub(crate) fn step(
    s: &mut State<'_>,
    prices: &Prices,
    random: &mut Random,
    decodes: usize,
    work: &mut u64,
) -> Option<u64> {
    let mut chain = chain(s, random)?;
    let keep = 1 + random.below(MOST.min(chain.len() as u64)) as usize;
    while chain.len() > keep {
        chain.swap_remove(random.below(chain.len() as u64) as usize);
    }
    let mut noisy = prices.clone();
    for price in noisy.out.iter_mut().chain(&mut noisy.back) {
        *price = (1.0 + *price) * (0.75 + 0.5 * random.unit()) - 1.0;
    }
    for &g in &chain {
        noisy.dearer(s, g);
    }
    for &g in &chain {
        s.set(g, false);
    }
    if !select::greedy(s, &noisy, work) {
        return None;
    }
    Some(s.decode(decodes))
}

/// The swapped gaps whose copies follow on each other up to a stall drawn by its length.
fn chain(s: &State<'_>, random: &mut Random) -> Option<Vec<usize>> {
    let (t, n) = (&s.timing, s.steps());
    let stall = |i: usize| t.start[i].saturating_sub(if i == 0 { 0 } else { t.end[i - 1] });
    let total: u64 = (0..n).map(stall).sum();
    let mut at = random.below(total);
    let i = (0..n).find(|&i| {
        let here = stall(i);
        let found = at < here;
        at = at.saturating_sub(here);
        found
    })?;
    let mut out = Vec::new();
    let mut cause = t.cause[i];
    for _ in 0..s.open.len() {
        let g = match cause {
            Cause::Compute => break,
            Cause::Out(g) => {
                cause = t.out_cause[g as usize];
                g
            }
            Cause::In(g) => {
                cause = t.back_cause[g as usize];
                g
            }
        } as usize;
        if s.open[g] && s.swapped(g) && !out.contains(&g) {
            out.push(g);
        }
        if out.len() > 200 {
            break;
        }
    }
    (!out.is_empty()).then_some(out)
}
