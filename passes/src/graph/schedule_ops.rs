//! Choosing the order of execution: as given, or greedily by memory.
//!
//! Exporters list nodes as they were traced: all gradients, then all updates, with every gradient alive in
//! between. List scheduling always runs the ready op that adds the fewest live bytes. It frees each gradient
//! at once, but without lookahead it may spread over branches that the given order finishes one by one. So a
//! second schedule keeps to the given order, and runs only those ops early that shrink the live bytes. Both
//! are heuristics (the problem is NP-hard: Sethi, "Complete Register Allocation Problems", 1975). The
//! schedule with the smallest peak is taken, the given order when none is smaller.

use std::collections::BTreeSet;

use memc_ir::{Def, Id, Module, OpId, Phase, ValueId, aligned};

use crate::analysis::{Dependences, peak_live_bytes};
use crate::plan::storage::base;
use crate::{OptionDef, Options, PassCx, PassDef, PassError};

pub(crate) const PASS: PassDef = PassDef {
    name: "schedule-ops",
    summary: "choose the order of execution",
    phases: (Phase::Graph, Phase::Graph),
    options: OPTIONS,
    run,
};

const OPTIONS: &[OptionDef] = &[OptionDef {
    name: "algo",
    default: "greedy",
    doc: "given: keep the order; greedy: fewest live bytes next, where that has a smaller peak",
}];

fn run(m: &mut Module, options: &Options, cx: &mut PassCx<'_>) -> Result<(), PassError> {
    let algo = options.get(OPTIONS, "algo")?;
    let given = peak_live_bytes(m, cx.profile)?;
    let mut best = given.bytes;
    match algo {
        "given" => {}
        "greedy" => {
            let schedules = [greedy(m, Pick::Smallest)?, greedy(m, Pick::Shrinking)?];
            for order in schedules {
                let former = std::mem::replace(&mut m.order, order);
                let peak = peak_live_bytes(m, cx.profile)?;
                if peak.bytes < best {
                    best = peak.bytes;
                } else {
                    m.order = former;
                }
            }
        }
        other => {
            return Err(PassError::Usage(format!("unknown algorithm `{other}` (known: given, greedy)")));
        }
    }
    cx.stats.push((PASS.name, "peak bytes before".into(), given.bytes));
    cx.stats.push((PASS.name, "peak bytes after".into(), best));
    Ok(())
}

/// Lifetime of a value's bytes, as the scheduler counts it; kept for the base of a chain of views.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// Live from its op to its last reader.
    Transient,
    /// Fetched for its first reader, live to its last.
    Input {
        /// Whether it has been fetched.
        here: bool,
    },
    /// Always live.
    Persistent,
    /// A next state, written to the resident slot of this state value once that has no other readers.
    Next(ValueId),
}

/// Memory-greedy list scheduling state. Positions are those of the given order.
struct Scheduler<'a> {
    m: &'a Module,
    kind: Vec<Bytes>,
    /// Base values read by each position, without repetition; empty for views.
    reads: Vec<Vec<ValueId>>,
    /// Positions that read each base value and are still to run.
    readers: Vec<BTreeSet<usize>>,
    /// Position that computes the next state whose resident slot is at this value.
    updater: Vec<Option<usize>>,
}

impl<'a> Scheduler<'a> {
    fn new(m: &'a Module) -> Self {
        let mut kind: Vec<Bytes> = m
            .values
            .values()
            .map(|v| match v.def {
                Def::Input(_) => Bytes::Input { here: false },
                Def::State(_) | Def::Const(_) | Def::HostShadow(_) => Bytes::Persistent,
                Def::Op(..) => Bytes::Transient,
            })
            .collect();
        let mut updater = vec![None; m.values.len()];
        let mut position = vec![None; m.ops.len()];
        for (i, &op) in m.order.iter().enumerate() {
            position[op.index()] = Some(i);
        }
        for s in m.states.values() {
            let Some(next) = s.next.map(|n| base(m, n)) else { continue };
            if let (Bytes::Transient, Some(op)) = (kind[next.index()], m.def_op(next)) {
                kind[next.index()] = Bytes::Next(s.value);
                updater[s.value.index()] = position[op.index()];
            }
        }
        let mut readers = vec![BTreeSet::new(); m.values.len()];
        let mut reads = Vec::with_capacity(m.order.len());
        for (i, &op) in m.order.iter().enumerate() {
            let mut bases: Vec<ValueId> = Vec::new();
            if !m.ops[op].is_view() {
                bases.extend(m.ops[op].operands.iter().map(|&v| base(m, v)));
            }
            bases.sort_unstable();
            bases.dedup();
            for &b in &bases {
                readers[b.index()].insert(i);
            }
            reads.push(bases);
        }
        Self { m, kind, reads, readers, updater }
    }

    fn bytes(&self, v: ValueId) -> i128 {
        aligned(self.m.values[v].ty.bytes()).into()
    }

    /// Live bytes after the op at `i` less those before; views come first of all.
    ///
    /// An operand that dies here counts as freed whether its bytes are given back or taken over in place.
    fn growth(&self, i: usize) -> i128 {
        let id = self.m.order[i];
        if self.m.ops[id].is_view() {
            return i128::MIN;
        }
        let last = |v: ValueId| self.readers[v.index()].iter().eq([&i]);
        let mut growth = 0;
        for &b in &self.reads[i] {
            growth += match self.kind[b.index()] {
                Bytes::Transient | Bytes::Input { here: true } if last(b) => -self.bytes(b),
                Bytes::Input { here: false } if !last(b) => self.bytes(b),
                _ => 0,
            };
        }
        for &r in &self.m.ops[id].results {
            growth += match self.kind[r.index()] {
                Bytes::Transient if !self.readers[r.index()].is_empty() => self.bytes(r),
                Bytes::Next(resident) if !self.fits_resident(i, r, resident) => self.bytes(r),
                _ => 0,
            };
        }
        growth
    }

    /// Whether result `r` of the op at `i` can be written over the state value `resident`.
    fn fits_resident(&self, i: usize, r: ValueId, resident: ValueId) -> bool {
        let readers = &self.readers[resident.index()];
        if readers.is_empty() {
            return true;
        }
        let id = self.m.order[i];
        let Some(kind) = self.m.ops[id].kind() else { return false };
        let pairs = kind.inplace_pairs(&self.m.operand_types(id), &self.m.result_types(id));
        let result = self.m.ops[id].results.iter().position(|&x| x == r);
        let mut same = (0..).zip(&self.m.ops[id].operands).filter(|(_, v)| base(self.m, **v) == resident);
        readers.iter().eq([&i]) && same.all(|(j, _)| result.is_some_and(|r| pairs.contains(&(j, r))))
    }

    /// Records that the op at `i` ran; returns the positions whose growth may have changed.
    fn ran(&mut self, i: usize) -> Vec<usize> {
        let mut touched = Vec::new();
        for b in std::mem::take(&mut self.reads[i]) {
            let fetched = self.kind[b.index()] == Bytes::Input { here: false };
            if fetched {
                self.kind[b.index()] = Bytes::Input { here: true };
            }
            let readers = &mut self.readers[b.index()];
            readers.remove(&i);
            if fetched || readers.len() == 1 {
                touched.extend(readers.iter().copied());
            }
            if readers.len() <= 1 {
                touched.extend(self.updater[b.index()]);
            }
        }
        touched
    }
}

/// Rule for the next ready op; among equals the first of the given order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pick {
    /// The one with the smallest growth.
    Smallest,
    /// The one that shrinks most; when none shrinks, the first of the given order.
    Shrinking,
}

impl Pick {
    fn key(self, growth: i128) -> i128 {
        if self == Pick::Smallest { growth } else { growth.min(0) }
    }
}

/// The ops by list scheduling.
fn greedy(m: &Module, pick: Pick) -> Result<Vec<OpId>, PassError> {
    let mut waits = Dependences::new(m);
    waits.reduce(m).map_err(|c| PassError::Failed(c.to_string()))?;
    let mut missing = waits.in_degrees();
    let mut s = Scheduler::new(m);
    let mut keys: Vec<i128> = vec![0; m.order.len()];
    let mut ready: BTreeSet<(i128, usize)> = BTreeSet::new();
    for i in (0..m.order.len()).filter(|&i| missing[i] == 0) {
        keys[i] = pick.key(s.growth(i));
        ready.insert((keys[i], i));
    }
    let mut order = Vec::with_capacity(m.order.len());
    while let Some((_, i)) = ready.pop_first() {
        order.push(m.order[i]);
        for j in s.ran(i) {
            if ready.remove(&(keys[j], j)) {
                keys[j] = pick.key(s.growth(j));
                ready.insert((keys[j], j));
            }
        }
        for j in waits.successors(i) {
            missing[j] -= 1;
            if missing[j] == 0 {
                keys[j] = pick.key(s.growth(j));
                ready.insert((keys[j], j));
            }
        }
    }
    if order.len() != m.order.len() {
        let circle = waits.topological(m).err().map(|c| c.to_string());
        return Err(PassError::Failed(circle.unwrap_or_else(|| "the order is not complete".into())));
    }
    Ok(order)
}
