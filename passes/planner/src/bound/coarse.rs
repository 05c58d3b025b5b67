//! A relaxation with fewer duals: memory costs at chosen instants only, and copies cost the same between two
//! of them.
//!
//! Duals of the coarse relaxation are duals of the fine one that happen to be equal, so either gives the
//! same bound; where they differ is that tensors that take the same way are counted as one.

use std::collections::BTreeMap;

use super::frame::{After, Begin, Frame, Item, Leg, Output};

impl Frame {
    /// The relaxation with memory duals at these instants: ascending, the first is 0. With `join`, tensors
    /// that take the same way are one item.
    pub(super) fn coarse(&self, chosen: &[usize], join: bool) -> Frame {
        let count = chosen.len();
        let slot_of = self.slot_of(chosen);
        let mut fixed = vec![0; count];
        let mut stall = vec![false; count];
        for (slot, &of) in slot_of.iter().enumerate() {
            fixed[of] += self.fixed[slot];
            stall[of] |= self.stall[slot];
        }
        let room = chosen.iter().map(|&c| self.room[c]).collect();
        let outputs = self.outputs.iter().map(|o| Output { from: slot_of[o.from], ns: o.ns }).collect();
        let mut groups: BTreeMap<Vec<usize>, Item> = BTreeMap::new();
        let coarse = |item: &Item| coarse_item(item, &slot_of);
        let mut items: Vec<Item> = self.items.iter().map(coarse).filter(Item::moves).collect();
        for item in items.drain(..if join { items.len() } else { 0 }) {
            match groups.entry(item.shape()) {
                std::collections::btree_map::Entry::Vacant(v) => {
                    v.insert(item);
                }
                std::collections::btree_map::Entry::Occupied(mut o) => o.get_mut().join(&item),
            }
        }
        items.extend(groups.into_values());
        Frame { fixed, stall, room, items, outputs, coupling: self.coupling }
    }

    /// For every slot, the slot of the coarse frame that it is in.
    pub(super) fn slot_of(&self, chosen: &[usize]) -> Vec<usize> {
        let mut next = 0;
        let of = |slot: usize| {
            while chosen.get(next).is_some_and(|&c| c <= slot) {
                next += 1;
            }
            next - 1
        };
        (0..self.fixed.len()).map(of).collect()
    }
}

/// An item in the slots of a coarse frame.
pub(super) fn coarse_item(item: &Item, slot_of: &[usize]) -> Item {
    let mut legs: Vec<Leg> = Vec::new();
    for leg in &item.legs {
        let slot = |s: usize| slot_of.get(s).copied().unwrap_or(0);
        let from = slot(leg.from);
        let to = if leg.to > leg.from { slot(leg.to - 1) + 1 } else { from };
        let after = match leg.after {
            After::Read(s) => After::Read(slot(s)),
            other => other,
        };
        // A leg within a slot that ends with a read adds nothing to one that begins in that slot.
        if let Some(last) = legs.last_mut()
            && last.after == After::Read(from)
            && last.from + 1 == last.to
            && last.from == from
            && (legs.len() > 1 || !matches!(item.begin, Begin::Arrives(_)))
        {
            legs.pop();
        }
        legs.push(Leg { from, to, after, ..*leg });
    }
    let begin = match item.begin {
        Begin::Arrives(gate) => Begin::Arrives(slot_of[gate]),
        other => other,
    };
    Item { legs, begin, ..item.clone() }
}

impl Item {
    /// Key of tensors that take the same path: their events by time, and the cost of recomputation
    /// per byte.
    fn shape(&self) -> Vec<usize> {
        let mut key = vec![
            usize::from(self.constant),
            usize::from(self.out_ns.is_some()),
            usize::from(self.in_ns.is_some()),
        ];
        match self.begin {
            Begin::Written => key.push(0),
            Begin::Both => key.push(1),
            Begin::Arrives(gate) => key.extend([2, gate]),
        }
        for leg in &self.legs {
            let recompute = leg.recompute.map_or(0, |ns| {
                1 + (ns as f64 / self.units as f64).max(1e-3).log2().mul_add(4.0, 64.0) as usize
            });
            key.extend([leg.from, leg.to, recompute]);
            match leg.after {
                After::Read(slot) => key.extend([0, slot]),
                After::Write => key.push(1),
                After::Boundary => key.push(2),
                After::Dead => key.push(3),
            }
        }
        key
    }

    fn join(&mut self, other: &Item) {
        let add = |a: &mut Option<u64>, b: Option<u64>| *a = a.zip(b).map(|(a, b)| a + b);
        self.units += other.units;
        add(&mut self.out_ns, other.out_ns);
        add(&mut self.in_ns, other.in_ns);
        for (a, b) in self.legs.iter_mut().zip(&other.legs) {
            add(&mut a.recompute, b.recompute);
        }
    }

    fn moves(&self) -> bool {
        matches!(self.begin, Begin::Arrives(_))
            || self.legs.iter().any(|l| l.to > l.from + 1 || l.after == After::Boundary)
    }
}
