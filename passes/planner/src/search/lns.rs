//! Large neighbourhood search aimed at stalls: what made a step wait stays on the device, and something else
//! goes.

use memc_ir::{Arena, Id};

use super::duals::Duals;
use super::kinds::{Kinds, factors};
use super::order::Precedence;
use super::select;
use super::state::State;
use super::{Common, DECODES};
use crate::ids::{GapIx, StepPos, TensorId};
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

/// Largest power of 2 by which the prices of a kind rise or fall in a move: of recomputation, and of copies.
const SPREAD_OPS: f64 = 2.0;
const SPREAD_TENSORS: f64 = 3.0;

/// One move from the present choice, evaluated: the step's time in ns, or `None` where nothing waits or
/// nothing fits.
///
/// What makes the step longer than it has to be is drawn by its length: a stall, or an op that is recomputed.
/// Some of the copies in the chain that led to the stall are taken back, or the op is not recomputed. Duals
/// for the move are the learned ones, with noise, and more for what was taken back.
pub(super) fn step(
    s: &mut State<'_>,
    duals: &Duals,
    common: &Common<'_>,
    random: &mut Random,
    work: &mut u64,
) -> Option<u64> {
    let mut noisy = noisy(duals, common.kinds, random);
    let excess = draw(s, random);
    let kind = random.below(8);
    if kind == 0 {
        flip(s, &mut noisy, random);
    } else if let Some(precedence) = common.precedence.filter(|_| kind <= 2) {
        let at = match excess {
            Some(Excess::Stall(i) | Excess::Again(i)) => i,
            None => StepPos::new(random.below(s.steps() as u64) as usize),
        };
        shift(s, precedence, at, random)?;
        *work += 8 * (s.steps() + s.open.len()) as u64;
    } else {
        match excess? {
            Excess::Again(i) => {
                let mut dropped = Arena::filled(false, s.steps());
                let recompute = |i: &StepPos| s.genotype.sequence.steps[*i].recompute.is_some();
                let near = i.index().saturating_sub(8)..(i.index() + 9).min(s.steps());
                let near: Vec<StepPos> = near.map(StepPos::new).filter(recompute).collect();
                let keep = random.below(4);
                for k in near {
                    if k == i || random.below(4) < keep {
                        dropped[k] = true;
                        noisy.recompute[s.genotype.sequence.steps[k].op] *= 8.0;
                    }
                }
                s.restructure(&[], &dropped, noisy.reach);
                *work += 8 * (s.steps() + s.open.len()) as u64;
            }
            Excess::Stall(i) => {
                let mut chain = chain(s, i)?;
                let keep = 1 + random.below(MOST.min(chain.len() as u64)) as usize;
                while chain.len() > keep {
                    chain.swap_remove(random.below(chain.len() as u64) as usize);
                }
                for &g in &chain {
                    noisy.dearer(s, g);
                }
                for &g in &chain {
                    s.set(g, false);
                }
            }
        }
    }
    if !select::greedy(s, &noisy, work) {
        return None;
    }
    Some(s.decode(DECODES))
}

/// Duals with noise: for each op, and for all ops and all tensors of a kind together. Where much of one kind
/// is recomputed, much of another has to be copied for any of it to stay.
fn noisy(duals: &Duals, kinds: &Kinds, random: &mut Random) -> Duals {
    let mut noisy = duals.clone();
    for price in noisy.out.values_mut().chain(noisy.back.values_mut()) {
        *price = (1.0 + *price) * (0.75 + 0.5 * random.unit()) - 1.0;
    }
    let of_kind = factors(&kinds.ops, SPREAD_OPS, random);
    for (price, &factor) in noisy.recompute.values_mut().zip(of_kind.values()) {
        *price *= (0.5 + random.unit()) * factor;
    }
    noisy.reach *= 2f64.powf(4.0 * random.unit() - 2.0);
    noisy.copies = factors(&kinds.tensors, SPREAD_TENSORS, random);
    noisy
}

/// Swaps some gaps that are kept, and keeps some that are swapped, wherever they are.
fn flip(s: &mut State<'_>, duals: &mut Duals, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let t = TensorId::new(random.below(s.p.tensors.len() as u64) as usize);
        if s.may_shadow(t) && random.below(4) == 0 {
            let shadowed = s.genotype.shadowed[t];
            s.set_shadow(t, !shadowed);
        }
        let g = GapIx::new(random.below(s.open.len() as u64) as usize);
        if s.open.get(g) == Some(&true) {
            let swapped = s.swapped(g);
            s.set(g, !swapped);
            match swapped {
                true => duals.dearer(s, g),
                false => duals.pinned.push(s.key(g)),
            }
        }
    }
}

/// Has an op near a step run earlier or later.
fn shift(s: &mut State<'_>, precedence: &Precedence, at: StepPos, random: &mut Random) -> Option<()> {
    let near = (at.index() + random.below(17) as usize).checked_sub(8)?;
    let step = *s.genotype.sequence.steps.get(StepPos::new(near))?;
    if step.recompute.is_some() {
        return None;
    }
    let (from, to) = precedence.window(step.op, &s.ran, s.genotype.sequence.steps.next_id());
    let reach = 1 << random.below(12);
    let (from, to) = (from.index().max(near.saturating_sub(reach)), to.index().min(near + 1 + reach));
    // Where it is counts as one place.
    let places = (to + 1).checked_sub(from + 2).filter(|&n| n > 0)?;
    let place = from + random.below(places as u64) as usize;
    let to = if place >= near { place + 2 } else { place };
    s.shift(StepPos::new(near), StepPos::new(to));
    Some(())
}

/// Something that makes a step longer.
enum Excess {
    /// A step that waits for a copy.
    Stall(StepPos),
    /// A step that runs an op again.
    Again(StepPos),
}

fn draw(s: &State<'_>, random: &mut Random) -> Option<Excess> {
    let (t, sequence) = (&s.timing, &s.genotype.sequence);
    let recompute = |i: StepPos| if sequence.steps[i].recompute.is_some() { sequence.ns[i] } else { 0 };
    let total: u64 = sequence.steps.ids().map(|i| recompute(i) + t.stall(i)).sum();
    let mut at = random.below(total);
    for i in sequence.steps.ids() {
        for (excess, waits) in [(t.stall(i), true), (recompute(i), false)] {
            if at < excess {
                return Some(if waits { Excess::Stall(i) } else { Excess::Again(i) });
            }
            at -= excess;
        }
    }
    None
}

/// The swapped gaps whose copies follow on each other up to the stall before a step.
fn chain(s: &State<'_>, i: StepPos) -> Option<Vec<GapIx>> {
    let t = &s.timing;
    let mut out = Vec::new();
    let mut cause = t.cause[i];
    for _ in s.open.ids() {
        let g = match cause {
            Cause::Compute => break,
            Cause::Out(g) => {
                cause = t.out_cause[g];
                g
            }
            Cause::In(g) => {
                cause = t.back_cause[g];
                g
            }
        };
        if s.open[g] && s.swapped(g) && !out.contains(&g) {
            out.push(g);
        }
        if out.len() > 200 {
            break;
        }
    }
    (!out.is_empty()).then_some(out)
}
