//! Where each tensor is, and the ways in which it leaves the device and comes back.
//!
//! Contract: a tensor that was computed and is still to be read is on the device, in host memory, or dropped.
//! A dropped one can be computed again: states and tensors that this needs are kept for as long as it does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use memc_ir::{Bytes, Space as Arena};

use super::copies::{Copies, Direction};
use super::flow::{Flow, Origin, Tensor, internal};
use super::space::Space;
use crate::clock::{elapsed_ns, now};
use crate::observed::Average;
use crate::program::Place;
use crate::{Error, Program, cpu::arena::Arenas};

/// A tensor's places.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) device: Option<Place>,
    pub(super) host: Option<Place>,
    /// Time of its last use in ns.
    pub(super) used_ns: u64,
    /// Commands that need it where it is.
    pub(super) pins: u32,
}

/// Counts of a step's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tensors that were dropped, to be computed again.
    pub dropped: u64,
    /// Ops that ran again.
    pub again: u64,
    /// Bytes copied to host memory.
    pub out_bytes: u64,
    /// Bytes copied to the device, inputs included.
    pub in_bytes: u64,
    /// Bytes that moved within the device, to make free ones one piece.
    pub moved_bytes: u64,
    /// Most bytes of the device arena in use.
    pub peak_bytes: u64,
}

/// The memory of a step.
pub(super) struct Memory {
    pub(super) flow: Flow,
    pub(super) held: Vec<Held>,
    pub(super) device: Space,
    host: Space,
    pub(super) copies: Copies,
    /// Bytes of the device arena.
    pub(super) capacity: usize,
    /// Time of each op, once it has run.
    times: Vec<Option<Average>>,
    /// Dropped tensors that are still to be read.
    dropped: BTreeSet<Tensor>,
    /// Places of the states between steps, the first of the arena.
    pub(super) homes: Vec<Place>,
    /// Their end, which is the number of their bytes.
    pub(super) homes_end: usize,
    /// Tensors that nothing reads any more, but a dropped one may need.
    kept: Vec<Tensor>,
    pub(super) counts: Counts,
    start: Instant,
}

impl Memory {
    pub(super) fn new(
        program: &Arc<Program>,
        arenas: &Arc<Arenas>,
        capacity: usize,
        host_bytes: usize,
    ) -> Result<Memory, Error> {
        let flow = Flow::of(program)?;
        Ok(Memory {
            held: vec![Held::default(); flow.tensors.len()],
            times: vec![None; flow.ops.len()],
            flow,
            device: Space::new(0, capacity),
            host: Space::new(program.host_bytes, host_bytes),
            copies: Copies::start(program, arenas)?,
            capacity,
            dropped: BTreeSet::new(),
            homes: Vec::new(),
            homes_end: 0,
            kept: Vec::new(),
            counts: Counts::default(),
            start: now(),
        })
    }

    pub(super) fn now_ns(&self) -> u64 {
        elapsed_ns(self.start)
    }

    pub(super) fn bytes(&self, tensor: Tensor) -> usize {
        self.flow.tensors.get(tensor).map_or(0, |entry| entry.bytes)
    }

    pub(super) fn held(&self, tensor: Tensor) -> Option<&Held> {
        self.held.get(tensor)
    }

    fn held_mut(&mut self, tensor: Tensor) -> Result<&mut Held, Error> {
        self.held.get_mut(tensor).ok_or_else(|| internal("a tensor that there is not"))
    }

    pub(super) fn is_here(&self, tensor: Tensor) -> bool {
        self.held(tensor).is_some_and(|held| held.device.is_some())
    }

    /// Whether a tensor is to be computed again before it is read.
    pub(super) fn is_dropped(&self, tensor: Tensor) -> bool {
        self.dropped.contains(&tensor)
    }

    pub(super) fn place(&self, tensor: Tensor) -> Result<Place, Error> {
        let place = self.held(tensor).and_then(|held| held.device);
        place.ok_or_else(|| internal("a tensor is used that is not on the device"))
    }

    /// Keeps a tensor where it is, until it is unpinned as often.
    pub(super) fn pin(&mut self, tensor: Tensor) -> Result<(), Error> {
        let held = self.held_mut(tensor)?;
        held.pins = held.pins.saturating_add(1);
        Ok(())
    }

    pub(super) fn unpin(&mut self, tensor: Tensor) -> Result<(), Error> {
        let held = self.held_mut(tensor)?;
        held.pins = held.pins.saturating_sub(1);
        Ok(())
    }

    pub(super) fn touch(&mut self, tensor: Tensor) {
        let now = self.now_ns();
        self.held.get_mut(tensor).into_iter().for_each(|held| held.used_ns = now);
    }

    /// Takes bytes of the device where there are so many in one piece.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let start = self.device.take(bytes)?;
        self.counts.peak_bytes = self.counts.peak_bytes.max(self.device.used() as u64);
        Some(Place { space: Arena::Dev, start, len: bytes })
    }

    pub(super) fn give(&mut self, place: Place) {
        self.device.give(place.start, place.len);
    }

    /// Gives a tensor a place on the device.
    pub(super) fn put(&mut self, tensor: Tensor, place: Place) -> Result<(), Error> {
        self.dropped.remove(&tensor);
        self.held_mut(tensor)?.device = Some(place);
        self.touch(tensor);
        Ok(())
    }

    /// Ops that have to run again to have a tensor that is not there, ascending; `None` where it cannot be
    /// computed again. Tensors in host memory come back by copies.
    pub(super) fn closure(&self, tensor: Tensor) -> Option<Vec<usize>> {
        let mut ops = BTreeSet::new();
        let mut open = vec![tensor];
        while let Some(tensor) = open.pop() {
            let Origin::Op(op) = self.flow.tensors.get(tensor)?.origin else { return None };
            if !ops.insert(op) {
                continue;
            }
            for &operand in &self.flow.ops.get(op)?.operands {
                let held = self.held(operand)?;
                if held.device.is_none() && held.host.is_none() {
                    open.push(operand);
                }
            }
        }
        Some(ops.into_iter().collect())
    }

    /// Time in ns of computing a tensor again; `None` where it cannot be.
    pub(super) fn recompute_ns(&self, tensor: Tensor) -> Option<u64> {
        let ops = self.closure(tensor)?;
        Some(self.cost_ns(ops.iter()))
    }

    /// Takes the time of an op.
    pub(super) fn took(&mut self, op: usize, ns: u64) {
        let average = self.times.get_mut(op);
        average.into_iter().for_each(|of| of.get_or_insert(Average::new(ns as f64)).add(ns as f64));
    }

    /// Time of these ops in ns.
    pub(super) fn cost_ns<'o>(&self, ops: impl Iterator<Item = &'o usize>) -> u64 {
        let times = ops.filter_map(|&op| self.times.get(op)?.as_ref());
        times.map(|average| average.ns().round() as u64).sum()
    }

    /// Leaves a tensor to be computed again, if an op from `at` on reads it.
    pub(super) fn drop_it(&mut self, tensor: Tensor, at: usize) -> Result<(), Error> {
        let held = self.held_mut(tensor)?;
        let (place, has_copy) = (held.device.take(), held.host.is_some());
        place.into_iter().for_each(|place| self.give(place));
        if !has_copy && self.flow.next_use(tensor, at).is_some() {
            self.counts.dropped += 1;
            self.dropped.insert(tensor);
        }
        Ok(())
    }

    /// Copies a tensor to host memory and gives its bytes back; `false` where host memory has no room.
    pub(super) fn offload(&mut self, tensor: Tensor) -> Result<bool, Error> {
        let (src, bytes) = (self.place(tensor)?, self.bytes(tensor));
        if self.held(tensor).is_some_and(|held| held.host.is_none()) {
            let Some(start) = self.host.take(bytes) else { return Ok(false) };
            let dst = Place { space: Arena::Host, start, len: bytes };
            self.copies.issue(Direction::Out, src, dst)?;
            self.counts.out_bytes += bytes as u64;
            self.held_mut(tensor)?.host = Some(dst);
        }
        self.held_mut(tensor)?.device = None;
        self.give(src);
        Ok(true)
    }

    /// Copies a tensor from host memory into these bytes of the device.
    pub(super) fn reload(&mut self, tensor: Tensor, dst: Place) -> Result<(), Error> {
        let src = self.held(tensor).and_then(|held| held.host);
        let src = src.ok_or_else(|| internal("a tensor comes back that was not copied"))?;
        self.copies.issue(Direction::In, src, dst)?;
        self.counts.in_bytes += dst.len as u64;
        self.put(tensor, dst)
    }

    /// Gives back a tensor that no op from `from` on reads, unless a dropped one needs it.
    pub(super) fn release_dead(&mut self, tensor: Tensor, from: usize) -> Result<(), Error> {
        let is_pinned = self.held(tensor).is_none_or(|held| held.pins > 0);
        let is_state = matches!(self.flow.tensor(tensor)?.origin, Origin::State(_));
        if is_pinned || is_state || self.flow.next_use(tensor, from).is_some() || self.kept.contains(&tensor)
        {
            return Ok(());
        }
        if self.is_needed(tensor)? {
            self.kept.push(tensor);
            return Ok(());
        }
        self.release(tensor)
    }

    /// Gives back a tensor that nothing reads from the op `from` on and that could not be had again; `false`
    /// where there is none.
    pub(super) fn release_visitor(&mut self, from: usize) -> Result<bool, Error> {
        for tensor in self.flow.next.len()..self.held.len() {
            let may = self.held(tensor).is_some_and(|held| held.device.is_some() && held.pins == 0);
            let is_over = may && self.flow.next_use(tensor, from).is_none();
            if is_over && self.closure(tensor).is_none() && !self.is_needed(tensor)? {
                self.release(tensor)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tries again to give back what dropped tensors needed.
    pub(super) fn release_kept(&mut self, from: usize) -> Result<(), Error> {
        for tensor in std::mem::take(&mut self.kept) {
            self.release_dead(tensor, from)?;
        }
        Ok(())
    }

    /// Whether a dropped tensor could not be computed again without this one.
    pub(super) fn is_needed(&mut self, tensor: Tensor) -> Result<bool, Error> {
        if self.dropped.is_empty() {
            return Ok(false);
        }
        let is_input = matches!(self.flow.tensor(tensor)?.origin, Origin::Input(_));
        if is_input || self.closure(tensor).is_some() {
            return Ok(false);
        }
        let held = self.held_mut(tensor)?;
        let places = (held.device.take(), held.host.take());
        let needed = self.dropped.iter().any(|&dropped| self.closure(dropped).is_none());
        let held = self.held_mut(tensor)?;
        (held.device, held.host) = places;
        Ok(needed)
    }

    /// Gives back all bytes of a tensor.
    pub(super) fn release(&mut self, tensor: Tensor) -> Result<(), Error> {
        let origin = self.flow.tensor(tensor)?.origin;
        self.dropped.remove(&tensor);
        let held = self.held_mut(tensor)?;
        let device = held.device.take();
        // An input stays in its slot until the next step.
        let host = if matches!(origin, Origin::Input(_)) { None } else { held.host.take() };
        if let Some(place) = device.filter(|place| !self.is_home(place)) {
            self.give(place);
        }
        host.into_iter().for_each(|place| self.host.give(place.start, place.len));
        Ok(())
    }

    /// Begins a step: nothing but the states is there.
    pub(super) fn begin(&mut self) {
        self.counts = Counts { peak_bytes: self.device.used() as u64, ..Counts::default() };
        for (entry, held) in self.flow.tensors.iter().zip(&mut self.held) {
            if let Origin::Input(slot) = entry.origin {
                held.host = Some(slot);
            }
        }
    }

    /// Ends a step: states are where the first step found them, and all else is given back.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        self.kept.clear();
        for tensor in 0..self.held.len() {
            self.held_mut(tensor)?.pins = 0;
            self.release(tensor)?;
        }
        for (held, home) in self.held.iter_mut().zip(&self.homes) {
            held.device = Some(*home);
        }
        Ok(())
    }

    /// Gives the states their places for good.
    ///
    /// # Errors
    /// [`Error::Memory`] where they do not fit.
    pub(super) fn settle_in(&mut self, name: &str) -> Result<(), Error> {
        for state in 0..self.flow.next.len() {
            let bytes = self.bytes(state);
            let place = self.take(bytes).ok_or_else(|| self.full(name, bytes, "the states"))?;
            self.homes_end = self.homes_end.max(place.end());
            self.homes.push(place);
        }
        self.held.iter_mut().zip(&self.homes).for_each(|(held, home)| held.device = Some(*home));
        Ok(())
    }

    /// Moves all that is on the device together, so that what is free is in one piece.
    pub(super) fn compact(&mut self, arenas: &Arenas) -> Result<(), Error> {
        self.copies.drain()?;
        let mut moved: Vec<(Place, Tensor)> = Vec::new();
        for (tensor, held) in self.held.iter().enumerate() {
            moved.extend(held.device.filter(|p| p.len > 0 && !self.is_home(p)).map(|place| (place, tensor)));
        }
        moved.sort_unstable_by_key(|(place, _)| place.start);
        moved.iter().for_each(|(place, _)| self.device.give(place.start, place.len));
        for (src, tensor) in moved {
            let dst = self.take(src.len).ok_or_else(|| internal("a tensor has lost its room"))?;
            if dst != src {
                let bytes = arenas.read(src).to_vec();
                arenas.write(dst).copy_from_slice(&bytes);
                self.counts.moved_bytes += src.len as u64;
            }
            self.held_mut(tensor)?.device = Some(dst);
        }
        Ok(())
    }

    /// Whether these are the bytes of a state.
    pub(super) fn is_home(&self, place: &Place) -> bool {
        place.start < self.homes_end
    }

    /// The bytes of a state that an op may overwrite with its next value: nothing reads the old one after it.
    pub(super) fn overwritten(&mut self, next: Tensor, op: usize) -> Result<Option<(Tensor, Place)>, Error> {
        // An op with other results may have to run again with the old value.
        let results = self.flow.ops.get(op).map_or(&[][..], |op| &op.results);
        if !results.iter().all(|&result| self.flow.tensors.get(result).is_some_and(|entry| entry.is_next)) {
            return Ok(None);
        }
        let mut states = self.flow.next.iter().enumerate().filter(|(_, of)| **of == next);
        let (Some((state, _)), None) = (states.next(), states.next()) else { return Ok(None) };
        let is_read = self.flow.next_use(state, op.saturating_add(1)).is_some();
        let home =
            self.homes.get(state).copied().filter(|home| self.place(state).is_ok_and(|at| at == *home));
        if is_read || self.is_needed(state)? {
            return Ok(None);
        }
        Ok(home.map(|home| (state, home)))
    }

    /// A state's old value is no more; its bytes have the next one.
    pub(super) fn replace(&mut self, state: Tensor, next: Tensor) -> Result<(), Error> {
        let place = self.held_mut(state)?.device.take();
        place.map_or(Ok(()), |place| self.put(next, place))
    }

    /// Error of a step that computes the same ops again and again.
    pub(super) fn thrashes(&self, name: &str) -> Error {
        Error::Memory(format!(
            "--dynamic {name} has run {} ops again in one step within {}; pass a larger --gpu-mem, or run \
             the plan without --dynamic",
            self.counts.again,
            Bytes(self.capacity as u64),
        ))
    }

    /// Error of an op, or of the states, that find no room.
    pub(super) fn full(&self, name: &str, bytes: usize, who: &str) -> Error {
        let who = if who.is_empty() { String::new() } else { format!(" for {who}") };
        Error::Memory(format!(
            "--dynamic {name} has no room for {} more{who}: {} of {} are in use, and nothing else may leave; \
             pass a larger --gpu-mem, or run the plan without --dynamic",
            Bytes(bytes as u64),
            Bytes(self.device.used() as u64),
            Bytes(self.capacity as u64),
        ))
    }
}
