//! Duals that make the relaxation's bound high, by ascent on the concave dual function.
//!
//! The dual function is piecewise linear: at given duals every tensor takes its cheapest way, and what the
//! ways use beyond what there is says which price to raise. Steps are those of Adam (Kingma and Ba, 2015,
//! arXiv:1412.6980) with a step length that falls geometrically, projected onto the duals that are allowed.
//! Duals are sought where they are few first: coarse frames of nested instants, each beginning with the
//! duals of the one before, so that no level is worse than the last. Any duals give a valid bound;
//! [`certify`] computes it in integers.

use super::frame::{Frame, UNIT};
use super::paths::{Duals, Use, Walker, output};

/// Duals in ns: of a unit of memory at an instant, of a ns of either link in a slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Dual {
    pub(super) memory: Vec<f64>,
    pub(super) to_host: Vec<f64>,
    pub(super) to_device: Vec<f64>,
}

/// Levels: how many instants have a memory price, and how many steps are taken.
const LEVELS: [(usize, usize); 2] = [(24, 500), (96, 400)];
/// First step length of link duals.
const STEP: f64 = 0.1;
/// Last step length, as a fraction of the first.
const FALL: f64 = 0.03;
/// The first step length of later levels, relative to the first level's.
const LATER: f64 = 0.1;
/// Weights of the past in the mean of the gradients, and of their squares.
const MOMENTS: (f64, f64) = (0.95, 0.99);
/// Highest link price in slots that cannot last longer.
const HIGHEST: f64 = 4.0;

/// Duals on chosen instants.
pub(super) struct Ascent {
    pub(super) chosen: Vec<usize>,
    pub(super) dual: Dual,
}

/// Good duals for a frame.
pub(super) fn ascend(fine: &Frame) -> Ascent {
    let mut best = Ascent { chosen: vec![0], dual: Dual::zero(1) };
    for (level, (size, steps)) in LEVELS.into_iter().enumerate() {
        let chosen = fine.choose(size, &best.chosen);
        if level > 0 && chosen.len() == best.chosen.len() {
            break;
        }
        let frame = fine.coarse(&chosen, true);
        let start = best.dual.onto(&best.chosen, &chosen);
        let step = if level == 0 { 1.0 } else { LATER };
        let (dual, done) = climb(&frame, start, steps, step);
        best = Ascent { chosen, dual };
        if done {
            break;
        }
    }
    best
}

impl Frame {
    /// About `size` instants that have least room among those of like time, those in `chosen` among them.
    fn choose(&self, size: usize, chosen: &[usize]) -> Vec<usize> {
        let count = self.fixed.len();
        if count <= 2 * size {
            return (0..count).collect();
        }
        let total: u128 = self.fixed.iter().map(|&ns| u128::from(ns)).sum::<u128>() + count as u128;
        let mut out = chosen.to_vec();
        let mut passed = 0u128;
        let (mut bucket, mut tightest) = (0, None::<usize>);
        for i in 0..count {
            let at = (passed * size as u128 / total) as usize;
            if at > bucket {
                bucket = at;
                out.extend(tightest.take());
            }
            if tightest.is_none_or(|t| self.room[i] < self.room[t]) {
                tightest = Some(i);
            }
            passed += u128::from(self.fixed[i]) + 1;
        }
        out.extend(tightest);
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Nanoseconds that it costs to move a unit away, on average.
    fn moving(&self) -> f64 {
        let (mut ns, mut units) = (0.0, 0.0);
        for item in &self.items {
            let copies = item.in_ns.unwrap_or(0).max(item.out_ns.unwrap_or(0));
            let recompute = item.legs.iter().filter_map(|l| l.recompute).min().unwrap_or(u64::MAX);
            let cost = if item.in_ns.is_some() { copies.min(recompute) } else { recompute };
            if cost < u64::MAX {
                ns += cost as f64;
                units += item.units as f64;
            }
        }
        ns / f64::max(units, 1.0)
    }
}

impl Dual {
    fn zero(count: usize) -> Dual {
        Dual { memory: vec![0.0; count], to_host: vec![0.0; count], to_device: vec![0.0; count] }
    }

    /// The same duals on more instants.
    fn onto(&self, old: &[usize], new: &[usize]) -> Dual {
        let mut out = Dual::zero(new.len());
        for (i, &instant) in new.iter().enumerate() {
            let j = old.partition_point(|&o| o <= instant).saturating_sub(1);
            out.memory[i] = if old[j] == instant { self.memory[j] } else { 0.0 };
            out.to_host[i] = self.to_host[j];
            out.to_device[i] = self.to_device[j];
        }
        out
    }

    /// Costs of everything at these duals.
    fn duals(&self, frame: &Frame, into: &mut Duals<f64>) {
        let coupling = frame.coupling as f64 / UNIT as f64;
        into.memory.clone_from(&self.memory);
        for i in 0..self.memory.len() {
            let (a, b) = (self.to_host[i], self.to_device[i]);
            into.to_host[i] = a + coupling * b;
            into.to_device[i] = b + coupling * a;
            into.compute[i] = 1.0 - a - b;
        }
    }
}

/// Ascent on one frame: the best duals met, and whether they are optimal.
fn climb(frame: &Frame, start: Dual, steps: usize, first: f64) -> (Dual, bool) {
    let count = frame.fixed.len();
    let memory_step = frame.moving() * 8.0 / count as f64;
    let mut walker = Walker::default();
    let mut used = Use::new(frame);
    let mut duals = Duals {
        memory: vec![0.0; count],
        to_host: vec![0.0; count],
        to_device: vec![0.0; count],
        compute: vec![0.0; count],
    };
    let mut at = start;
    let mut best = (f64::NEG_INFINITY, at.clone());
    let mut gradient = Dual::zero(count);
    let mut moments = (Dual::zero(count), Dual::zero(count));
    for step in 0..steps {
        at.duals(frame, &mut duals);
        let value = value(frame, &at, &duals, &mut walker, &mut used);
        slopes(frame, &used, &mut gradient);
        if value > best.0 {
            best = (value, at.clone());
        }
        if step == 0 && at.stays(&gradient) {
            return (at, true);
        }
        let length = first * FALL.powf(step as f64 / steps as f64);
        let bias = (1.0 - MOMENTS.0.powi(step as i32 + 1), 1.0 - MOMENTS.1.powi(step as i32 + 1));
        let advance = |x: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64], length: f64| {
            for (((x, g), m), v) in x.iter_mut().zip(g).zip(m).zip(v) {
                *m = MOMENTS.0 * *m + (1.0 - MOMENTS.0) * g;
                *v = MOMENTS.1 * *v + (1.0 - MOMENTS.1) * g * g;
                if *v > 0.0 {
                    *x = (*x + length * (*m / bias.0) / (*v / bias.1).sqrt()).max(0.0);
                }
            }
        };
        let (m, v) = (&mut moments.0, &mut moments.1);
        advance(&mut at.memory, &gradient.memory, &mut m.memory, &mut v.memory, length * memory_step);
        advance(&mut at.to_host, &gradient.to_host, &mut m.to_host, &mut v.to_host, length * STEP);
        advance(&mut at.to_device, &gradient.to_device, &mut m.to_device, &mut v.to_device, length * STEP);
        at.project(frame);
    }
    (best.1, false)
}

impl Dual {
    /// Whether no allowed price gains by a change: a certificate of optimality where all duals are 0.
    fn stays(&self, gradient: &Dual) -> bool {
        let zero = |list: &[f64]| list.iter().all(|&x| x == 0.0);
        let down = |list: &[f64]| list.iter().all(|&g| g <= 0.0);
        zero(&self.memory)
            && zero(&self.to_host)
            && zero(&self.to_device)
            && down(&gradient.memory)
            && down(&gradient.to_host)
            && down(&gradient.to_device)
    }

    /// In slots that may last longer, what a longer slot earns is at most what it costs.
    fn project(&mut self, frame: &Frame) {
        for (i, (a, b)) in self.to_host.iter_mut().zip(&mut self.to_device).enumerate() {
            if !frame.stall[i] {
                *a = a.min(HIGHEST);
                *b = b.min(HIGHEST);
            } else if *a + *b > 1.0 {
                let over = (*a + *b - 1.0) / 2.0;
                let to_host = (*a - over).clamp(0.0, 1.0);
                (*a, *b) = (to_host, 1.0 - to_host);
            }
        }
    }
}

/// The dual function; `used` gets what the ways use.
fn value(frame: &Frame, dual: &Dual, duals: &Duals<f64>, walker: &mut Walker, used: &mut Use) -> f64 {
    used.clear();
    let mut value = 0.0;
    for i in 0..frame.fixed.len() {
        value += frame.fixed[i] as f64 * duals.compute[i] - dual.memory[i] * frame.room[i] as f64;
    }
    for i in 0..frame.items.len() {
        value += walker.item(frame, i, duals, Some(used));
    }
    for o in &frame.outputs {
        value += output(frame, o, duals, Some(used));
    }
    value
}

fn slopes(frame: &Frame, used: &Use, gradient: &mut Dual) {
    let coupling = frame.coupling as f64 / UNIT as f64;
    for (i, live) in used.memory().enumerate() {
        gradient.memory[i] = live - frame.room[i] as f64;
    }
    for i in 0..frame.fixed.len() {
        let (out, back) = (used.to_host[i], used.to_device[i]);
        let there_is = frame.fixed[i] as f64 + used.compute[i];
        gradient.to_host[i] = out + coupling * back - there_is;
        gradient.to_device[i] = back + coupling * out - there_is;
    }
}

/// Parts of a ns that integer duals count.
const PART: f64 = (1u64 << 32) as f64;

/// The bound that duals give, in ns, computed without rounding in its favour; `None` where numbers are too
/// large.
///
/// The frame's items must be single tensors.
pub(super) fn certify(frame: &Frame, dual: &Dual) -> Option<u64> {
    let part = PART as i128;
    let int = |x: f64| if x.is_finite() { (x.max(0.0) * PART).min(1e20) as i128 } else { 0 };
    let count = frame.fixed.len();
    let mut duals: Duals<i128> = Duals {
        memory: dual.memory.iter().map(|&x| int(x)).collect(),
        to_host: Vec::with_capacity(count),
        to_device: Vec::with_capacity(count),
        compute: Vec::with_capacity(count),
    };
    let mut value = 0i128;
    for i in 0..count {
        let out = int(dual.to_host[i]).min(part.saturating_mul(HIGHEST as i128));
        let mut back = int(dual.to_device[i]).min(part.saturating_mul(HIGHEST as i128));
        let mut out = out;
        if frame.stall[i] {
            out = out.min(part);
            back = back.min(part - out);
        }
        let coupled = |price: i128| price * i128::from(frame.coupling) / i128::from(UNIT);
        duals.to_host.push(out + coupled(back));
        duals.to_device.push(back + coupled(out));
        duals.compute.push(part - out - back);
        let memory = duals.memory[i].checked_mul(i128::from(frame.room[i]))?;
        value = value
            .checked_add(duals.compute[i].checked_mul(i128::from(frame.fixed[i]))?)?
            .checked_sub(memory)?;
    }
    let mut walker = Walker::default();
    for i in 0..frame.items.len() {
        value = value.checked_add(walker.item(frame, i, &duals, None))?;
    }
    for o in &frame.outputs {
        value = value.checked_add(output(frame, o, &duals, None))?;
    }
    // A step takes whole ns.
    u64::try_from((value.max(0) + part - 1) / part).ok()
}
