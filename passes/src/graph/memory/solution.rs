//! A choice of formulations, and its cost.
//!
//! The cost of saved activations is a set union: bytes count once, however many ops of the backward pass read
//! them. A recomputed value is held from its first reader to its last; readers far apart get copies of their
//! own. Readers of a class are counted by place, so that changing one class touches only its dependents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::space::{Item, Side, Space};
use crate::device::DeviceProfile;

/// Price of a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Units of cost (see [`NS`]) for each byte that stays alive throughout the backward pass.
    byte: i128,
}

/// Most ops that are visited to estimate the cost of recomputing a value.
const CHAIN: usize = 128;
/// One ns in units of cost.
const NS: i128 = 1_000_000;
/// Price of a byte where it cannot leave the device: 1 us, about the price on the slowest links.
const UNLINKED: i128 = 1_000 * NS;

impl Rate {
    /// A byte is worth `exchange` times the time of copying it to the host and back, or [`UNLINKED`] without
    /// a link. With 0 it only decides between formulations of the same time.
    pub(super) fn new(profile: &DeviceProfile, exchange: u64) -> Rate {
        if exchange == 0 {
            return Rate { byte: 1 };
        }
        let slower = profile.d2h_bytes_per_s.min(profile.h2d_bytes_per_s);
        if slower <= 0.0 {
            return Rate { byte: UNLINKED };
        }
        let round_trip = 1e9 / profile.d2h_bytes_per_s + 1e9 / profile.h2d_bytes_per_s;
        Rate { byte: (round_trip * exchange as f64 * NS as f64).round() as i128 }
    }
}

/// Source of a class's value in the backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    /// It stays alive from the forward pass.
    Save,
    /// It is computed there, by the way of this index.
    Make(usize),
}

impl Choice {
    /// No choice yet: nothing is read for the class.
    pub(super) const NONE: Choice = Choice::Make(usize::MAX);
}

/// The state of one class.
#[derive(Clone, Debug)]
struct State {
    choice: Choice,
    /// Number of readers at each place of the backward pass.
    readers: BTreeMap<u32, u32>,
    /// Places where it is computed; places of its readers for a view.
    copies: Vec<u32>,
    /// Its own share of the cost.
    cost: i128,
    /// Cost of computing it once with all values that are computed only for it, as estimated when it was
    /// chosen.
    recompute_cost: i128,
}

/// A formulation of the whole step.
pub(super) struct Solution<'a> {
    pub(super) space: &'a Space,
    rate: Rate,
    states: Vec<State>,
    total: i128,
    /// Former choices, newest last, while a change may have to be taken back.
    journal: Vec<(usize, Choice)>,
    /// Classes whose readers changed, later ones first.
    stale: BTreeSet<(std::cmp::Reverse<u64>, usize)>,
}

impl<'a> Solution<'a> {
    /// The module's own formulation.
    pub(super) fn given(space: &'a Space, rate: Rate) -> Self {
        let first = |item: &Item| match item.side {
            Side::Forward if item.can_save() => Choice::Save,
            _ => Choice::Make(item.given.unwrap_or(0)),
        };
        let state = |item: &Item| State {
            choice: first(item),
            readers: BTreeMap::new(),
            copies: Vec::new(),
            cost: 0,
            recompute_cost: 0,
        };
        let states = space.items.iter().map(state).collect();
        let mut s = Self { space, rate, states, total: 0, journal: Vec::new(), stale: BTreeSet::new() };
        for &root in &space.roots {
            s.read(root, space.backward_ops, true);
        }
        s.settle_readers();
        s
    }

    /// Its cost.
    pub(super) fn total(&self) -> i128 {
        self.total
    }

    /// Source of the class's value.
    pub(super) fn choice(&self, class: usize) -> Choice {
        self.states[class].choice
    }

    /// Whether anything reads the class.
    pub(super) fn is_read(&self, class: usize) -> bool {
        !self.states[class].readers.is_empty()
    }

    /// Places where copies of the class are computed, ascending.
    pub(super) fn copies(&self, class: usize) -> &[u32] {
        &self.states[class].copies
    }

    /// Cost of saving the class in the forward pass.
    pub(super) fn save_cost(&self, class: usize) -> i128 {
        let item = &self.space.items[class];
        let early = item.early.and_then(|w| item.ways.get(w)).map_or(0, |w| w.time_ns);
        self.rate.byte * i128::from(item.bytes) + NS * i128::from(early)
    }

    /// Cost of one execution of a way.
    pub(super) fn way_cost(&self, class: usize, way: usize) -> i128 {
        self.space.items[class].ways.get(way).map_or(0, |w| NS * i128::from(w.time_ns))
    }

    /// Cost of recomputing the class with all values that are computed only for it.
    pub(super) fn recompute_cost(&self, class: usize) -> i128 {
        self.states[class].recompute_cost
    }

    /// Chooses, and records the former choice.
    pub(super) fn choose(&mut self, class: usize, choice: Choice) {
        if self.states[class].choice == choice {
            return;
        }
        self.journal.push((class, self.states[class].choice));
        self.set(class, choice);
    }

    /// Accepts all changes.
    pub(super) fn commit(&mut self) {
        self.journal.clear();
    }

    /// Takes all changes since the last [`Solution::commit`] back.
    pub(super) fn undo(&mut self) {
        while let Some((class, choice)) = self.journal.pop() {
            self.set(class, choice);
        }
    }

    fn set(&mut self, class: usize, choice: Choice) {
        let copies = std::mem::take(&mut self.states[class].copies);
        self.ask(class, &copies, false);
        self.states[class].choice = choice;
        self.states[class].recompute_cost = self.once_more(class);
        self.mark(class);
        self.settle_readers();
    }

    /// Cost of recomputing the class with the forward values that are computed only for it, each once; of at
    /// most [`CHAIN`] of them, the nearest.
    fn once_more(&self, class: usize) -> i128 {
        let (mut cost, mut seen) = (0, BTreeSet::from([class]));
        let mut open = VecDeque::from([class]);
        while let Some(c) = open.pop_front() {
            let Choice::Make(way) = self.states[c].choice else { continue };
            cost += self.way_cost(c, way);
            for &o in self.space.items[c].ways.get(way).map_or(&[][..], |w| &w.operands) {
                if self.space.items[o].side == Side::Forward && seen.len() < CHAIN && seen.insert(o) {
                    open.push_back(o);
                }
            }
        }
        cost
    }

    fn mark(&mut self, class: usize) {
        self.stale.insert((std::cmp::Reverse(self.space.items[class].rank), class));
    }

    /// Adds or removes a reader at a place.
    fn read(&mut self, class: usize, place: u32, add: bool) {
        if self.space.items[class].side == Side::Free {
            return;
        }
        let readers = &mut self.states[class].readers;
        if add {
            *readers.entry(place).or_default() += 1;
            if readers[&place] > 1 {
                return;
            }
        } else if let Some(n) = readers.get_mut(&place) {
            *n -= 1;
            if *n > 0 {
                return;
            }
            readers.remove(&place);
        }
        self.mark(class);
    }

    /// Adds the copies of a class at some places to the readers of its operands, or removes them.
    fn ask(&mut self, class: usize, places: &[u32], add: bool) {
        let Choice::Make(way) = self.states[class].choice else { return };
        let space = self.space;
        let Some(way) = space.items[class].ways.get(way) else { return };
        for &place in places {
            for &operand in &way.operands {
                self.read(operand, place, add);
            }
        }
    }

    /// Brings copies and costs up to date with the readers.
    fn settle_readers(&mut self) {
        while let Some((_, class)) = self.stale.pop_first() {
            let (copies, cost) = self.copies_of(class);
            let former = std::mem::take(&mut self.states[class].copies);
            let gone: Vec<u32> =
                former.iter().filter(|p| copies.binary_search(p).is_err()).copied().collect();
            let new: Vec<u32> = copies.iter().filter(|p| former.binary_search(p).is_err()).copied().collect();
            self.total += cost - self.states[class].cost;
            (self.states[class].copies, self.states[class].cost) = (copies, cost);
            self.ask(class, &gone, false);
            self.ask(class, &new, true);
        }
    }

    /// Places where a class is computed for its readers, and its share of the cost.
    fn copies_of(&self, class: usize) -> (Vec<u32>, i128) {
        let (state, item) = (&self.states[class], &self.space.items[class]);
        if state.readers.is_empty() {
            return (Vec::new(), 0);
        }
        let Choice::Make(way) = state.choice else { return (Vec::new(), self.save_cost(class)) };
        let once = self.way_cost(class, way);
        match item.op {
            // An op of the backward pass stays where it is.
            Some((_, place)) if item.side == Side::Backward => return (vec![place], once),
            _ if item.ways.get(way).is_some_and(|w| w.view) => {
                return (state.readers.keys().copied().collect(), 0);
            }
            _ => {}
        }
        let (mut copies, mut cost, mut last) = (Vec::new(), 0, None);
        for &place in state.readers.keys() {
            let held = last.map(|l: u32| self.hold_cost(item.bytes, place - l));
            match held {
                Some(held) if held <= state.recompute_cost => cost += held,
                _ => {
                    copies.push(place);
                    cost += once;
                }
            }
            last = Some(place);
        }
        (copies, cost)
    }

    /// Cost of holding bytes over a number of backward ops.
    fn hold_cost(&self, bytes: u64, ops: u32) -> i128 {
        self.rate.byte * i128::from(bytes) * i128::from(ops) / i128::from(self.space.backward_ops.max(1))
    }
}
