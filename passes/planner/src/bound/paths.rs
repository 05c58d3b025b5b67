//! The cheapest way of one tensor through its legs at given duals.
//!
//! A byte of a tensor is on the device alone, on both sides, in host memory alone, or lost (to be made
//! again); copies and repeated runs take place within slots, and being on the device costs at every instant.
//! As costs are linear in bytes, all bytes of a tensor take the same way.

use std::ops::Add;

use super::frame::{After, Begin, Frame, Item, Output};

/// A price or a cost: `f64` while searching, an integer to certify.
pub(super) trait Cost: Copy + PartialOrd + Add<Output = Self> {
    const ZERO: Self;
    /// More than any cost; may be added to itself a few times over.
    const NEVER: Self;
    /// A price times a count of units or ns.
    fn times(self, count: u64) -> Self;
}

impl Cost for f64 {
    const ZERO: f64 = 0.0;
    const NEVER: f64 = 1e300;
    fn times(self, count: u64) -> f64 {
        self * count as f64
    }
}

impl Cost for i128 {
    const ZERO: i128 = 0;
    const NEVER: i128 = 1 << 120;
    fn times(self, count: u64) -> i128 {
        self * i128::from(count)
    }
}

/// Duals: memory per unit and instant, the rest per ns and slot.
pub(super) struct Duals<T> {
    pub(super) memory: Vec<T>,
    pub(super) to_host: Vec<T>,
    pub(super) to_device: Vec<T>,
    /// Of compute time: one less what a longer slot earns.
    pub(super) compute: Vec<T>,
}

/// Use of resources by paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Use {
    /// Units on the device at every instant, in differences.
    delta: Vec<f64>,
    /// Ns per slot.
    pub(super) to_host: Vec<f64>,
    pub(super) to_device: Vec<f64>,
    pub(super) compute: Vec<f64>,
}

impl Use {
    pub(super) fn new(frame: &Frame) -> Use {
        let n = frame.fixed.len();
        Use { delta: vec![0.0; n + 1], to_host: vec![0.0; n], to_device: vec![0.0; n], compute: vec![0.0; n] }
    }

    pub(super) fn clear(&mut self) {
        for list in [&mut self.delta, &mut self.to_host, &mut self.to_device, &mut self.compute] {
            list.fill(0.0);
        }
    }

    /// Units on the device at every instant, besides what has to be there.
    pub(super) fn memory(&self) -> impl Iterator<Item = f64> {
        self.delta.iter().take(self.delta.len() - 1).scan(0.0, |live, d| {
            *live += d;
            Some(*live)
        })
    }

    fn resident(&mut self, from: usize, to: usize, units: u64) {
        self.delta[from] += units as f64;
        self.delta[to] -= units as f64;
    }
}

/// The slot with the least price, the first of them.
fn cheapest<T: Cost>(duals: &[T], from: usize, to: usize) -> usize {
    let mut best = from;
    for slot in from..to {
        if duals[slot] < duals[best] {
            best = slot;
        }
    }
    best
}

/// Costs of the four states.
#[derive(Clone, Copy)]
struct States<T> {
    device: T,
    both: T,
    host: T,
    lost: T,
}

fn min<T: PartialOrd>(a: T, b: T) -> (T, bool) {
    if b < a { (b, true) } else { (a, false) }
}

// Bits of a choice: the predecessors of a state within a slot.
const BOTH_FROM_DEVICE: u8 = 1;
const BOTH_FROM_HOST: u8 = 2;
const BOTH_BY_RUN: u8 = 3;
const HOST_FROM_BOTH: u8 = 4;
const DEVICE_FROM_LOST: u8 = 8;
const LOST_FROM_DEVICE: u8 = 16;
const LOST_FROM_HOST: u8 = 32;

/// State of an item at an instant.
#[derive(Clone, Copy, PartialEq)]
enum At {
    Device,
    Both,
    Host,
    Lost,
}

impl At {
    /// State before a slot whose predecessors `choice` gives. Adds the copies and the recomputation in the
    /// slot to `used`; their times are in ns.
    fn before(self, slot: usize, choice: u8, times: (f64, f64, f64), used: &mut Use) -> At {
        let (mut at, (out_ns, in_ns, recompute_ns)) = (self, times);
        if at == At::Lost && choice & (LOST_FROM_HOST | LOST_FROM_DEVICE) > 0 {
            at = if choice & LOST_FROM_HOST > 0 { At::Host } else { At::Device };
        }
        if at == At::Host && choice & HOST_FROM_BOTH > 0 {
            at = At::Both;
        }
        if at == At::Both {
            match choice & BOTH_BY_RUN {
                BOTH_FROM_DEVICE => {
                    used.to_host[slot] += out_ns;
                    at = At::Device;
                }
                // A tensor that comes from the host in this slot was on the host before it.
                BOTH_FROM_HOST => {
                    used.to_device[slot] += in_ns;
                    return At::Host;
                }
                BOTH_BY_RUN => {
                    used.compute[slot] += recompute_ns;
                    return At::Host;
                }
                _ => {}
            }
        }
        if at == At::Device && choice & DEVICE_FROM_LOST > 0 {
            used.compute[slot] += recompute_ns;
            at = At::Lost;
        }
        at
    }
}

/// Ways of items, one at a time; keeps its memory.
#[derive(Default)]
pub(super) struct Walker {
    /// Per slot of all legs.
    choices: Vec<u8>,
    /// Per leg: where its choices begin, and choices at its end.
    marks: Vec<(usize, u8)>,
}

impl Walker {
    /// Least cost of an item; adds what the way uses to `used`.
    pub(super) fn item<T: Cost>(
        &mut self,
        frame: &Frame,
        index: usize,
        duals: &Duals<T>,
        used: Option<&mut Use>,
    ) -> T {
        let item = &frame.items[index];
        self.choices.clear();
        self.marks.clear();
        let never = T::NEVER;
        let mut s = States { device: T::ZERO, both: never, host: never, lost: never };
        let mut arrival = 0;
        match item.begin {
            Begin::Written => {}
            Begin::Both => s = States { device: never, both: T::ZERO, ..s },
            Begin::Arrives(gate) => {
                arrival = cheapest(&duals.to_device, gate, duals.to_device.len());
                let price = duals.to_device[arrival].times(item.in_ns.unwrap_or(0));
                s = States {
                    device: never,
                    both: price + duals.memory[0].times(item.units),
                    host: T::ZERO,
                    ..s
                };
            }
        }
        for leg in &item.legs {
            let mark = self.choices.len();
            s = self.leg(frame, item, leg, s, duals);
            let mut end = 0;
            if leg.after == After::Dead {
                let (a, x) = min(s.device, s.both);
                let (b, y) = min(s.host, s.lost);
                let (c, z) = min(a, b);
                end = u8::from(x) | u8::from(y) << 1 | u8::from(z) << 2;
                s = States { device: c, both: never, host: never, lost: never };
            } else if leg.after == After::Write {
                let (c, x) = min(s.device, s.both);
                end = u8::from(x);
                s = States { device: c, both: never, host: never, lost: never };
            } else if let After::Read(slot) = leg.after {
                s.host = never;
                s.lost = never;
                let out = self.to_host(item, duals, slot);
                let (b, x) = min(s.both, s.device + out);
                s.both = b;
                end = u8::from(x);
            } else {
                s.lost = never;
                let here = duals.memory[0].times(item.units);
                s.device = s.device + here;
                s.both = s.both + here;
            }
            self.marks.push((mark, end));
        }
        let (cost, both) = min(s.device, s.both);
        if let Some(used) = used {
            self.trace_back(frame, index, both, arrival, used);
        }
        cost
    }

    fn to_host<T: Cost>(&self, item: &Item, duals: &Duals<T>, slot: usize) -> T {
        match item.out_ns {
            _ if item.constant => T::ZERO,
            None => T::NEVER,
            Some(ns) => duals.to_host[slot].times(ns),
        }
    }

    fn leg<T: Cost>(
        &mut self,
        frame: &Frame,
        item: &Item,
        leg: &super::frame::Leg,
        s: States<T>,
        duals: &Duals<T>,
    ) -> States<T> {
        let mut s = s;
        for slot in leg.from..leg.to {
            let out = self.to_host(item, duals, slot);
            let back = item.in_ns.map_or(T::NEVER, |ns| duals.to_device[slot].times(ns));
            let run = match leg.recompute {
                Some(ns) if frame.stall[slot] => duals.compute[slot].times(ns),
                _ => T::NEVER,
            };
            let mut choice = 0;
            let (device, recompute) = min(s.device, s.lost + run);
            choice |= if recompute { DEVICE_FROM_LOST } else { 0 };
            let (fetch, by_run) = min(back, run);
            let (mut both, copied) = min(s.both, device + out);
            choice |= if copied { BOTH_FROM_DEVICE } else { 0 };
            if s.host + fetch < both {
                both = s.host + fetch;
                choice = choice & !BOTH_FROM_DEVICE | if by_run { BOTH_BY_RUN } else { BOTH_FROM_HOST };
            }
            let (host, dropped) = min(s.host, both);
            choice |= if dropped { HOST_FROM_BOTH } else { 0 };
            let mut lost = s.lost;
            if leg.recompute.is_some() {
                if device < lost {
                    lost = device;
                    choice |= LOST_FROM_DEVICE;
                }
                if host < lost {
                    lost = host;
                    choice = choice & !LOST_FROM_DEVICE | LOST_FROM_HOST;
                }
            }
            let here = if slot + 1 < leg.to { duals.memory[slot + 1].times(item.units) } else { T::ZERO };
            s = States { device: device + here, both: both + here, host, lost };
            self.choices.push(choice);
        }
        s
    }

    fn trace_back(&self, frame: &Frame, index: usize, both: bool, arrival: usize, used: &mut Use) {
        let item = &frame.items[index];
        let in_ns = item.in_ns.unwrap_or(0) as f64;
        let out_ns = if item.constant { 0.0 } else { item.out_ns.unwrap_or(0) as f64 };
        let mut at = if both { At::Both } else { At::Device };
        for (l, leg) in item.legs.iter().enumerate().rev() {
            let (mark, end) = self.marks[l];
            match leg.after {
                After::Dead => {
                    at = match (end & 4 > 0, end & 1 > 0, end & 2 > 0) {
                        (false, false, _) => At::Device,
                        (false, true, _) => At::Both,
                        (true, _, false) => At::Host,
                        (true, _, true) => At::Lost,
                    };
                }
                After::Write => at = if end & 1 > 0 { At::Both } else { At::Device },
                After::Read(slot) => {
                    if at == At::Both && end & 1 > 0 {
                        used.to_host[slot] += out_ns;
                        at = At::Device;
                    }
                }
                After::Boundary => {
                    if matches!(at, At::Device | At::Both) {
                        used.resident(0, 1, item.units);
                    }
                    if at == At::Device && end & 1 > 0 {
                        at = At::Both;
                    }
                }
            }
            for slot in (leg.from..leg.to).rev() {
                let choice = self.choices[mark + slot - leg.from];
                let inside = slot + 1 < leg.to;
                if matches!(at, At::Device | At::Both) && inside {
                    used.resident(slot + 1, slot + 2, item.units);
                }
                at = at.before(slot, choice, (out_ns, in_ns, leg.recompute.unwrap_or(0) as f64), used);
            }
        }
        if at == At::Both && matches!(item.begin, Begin::Arrives(_)) {
            used.to_device[arrival] += in_ns;
            used.resident(0, 1, item.units);
        }
    }
}

/// Least cost of the copy of an output; adds it to `used`.
pub(super) fn output<T: Cost>(frame: &Frame, output: &Output, duals: &Duals<T>, used: Option<&mut Use>) -> T {
    // The slot after the outputs' arrival comes too late.
    let last = frame.fixed.len() - 1;
    let best = cheapest(&duals.to_host, output.from, last);
    if let Some(used) = used {
        used.to_host[best] += output.ns as f64;
    }
    duals.to_host[best].times(output.ns)
}
