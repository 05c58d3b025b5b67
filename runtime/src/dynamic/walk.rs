//! The walk of a step, op by op.

use std::collections::BTreeSet;
use std::sync::Arc;

use memc_plan::Section;
use rayon::ThreadPool;

use super::copies::Direction;
use super::flow::{Tensor, internal};
use super::memory::Memory;
use super::policy::{Leaves, Policy};
use crate::cpu::exec::Runner;
use crate::cpu::{arena::Arenas, guarded};
use crate::program::{Action, Launch, Place, Source};
use crate::{Error, HostSide, Program};

/// Ops that a step runs again at most, for each of its ops.
const AGAIN: u64 = 64;

/// Bytes that an op asks for.
enum Want {
    /// So many, anywhere on the device.
    Bytes(usize),
    /// These.
    Place(Place),
}

/// A step that is walked.
pub(super) struct Walk {
    pub(super) policy: Policy,
    pub(super) program: Arc<Program>,
    pub(super) memory: Memory,
    pub(super) arenas: Arc<Arenas>,
    pub(super) runner: Runner,
    pub(super) pool: Arc<ThreadPool>,
    /// Tensors that were computed again for the op at hand, and leave with it if nothing else reads them.
    pub(super) visitors: Vec<Tensor>,
    /// Tensors that came back ahead of their use, with the op that reads them.
    pub(super) ahead: Vec<(Tensor, usize)>,
}

impl Walk {
    /// Runs one step.
    pub(super) fn step(&mut self, host: &mut dyn HostSide) -> Result<(), Error> {
        self.memory.begin();
        self.ahead.clear();
        self.visitors.clear();
        for input in self.memory.flow.writes.clone() {
            let Some(&slot) = self.program.slots.get(input) else { continue };
            self.memory.copies.settle(slot, true)?;
            self.runner.exchange(&Action::Write(input), host)?;
        }
        let ops = self.memory.flow.ops.len();
        for op in 0..ops {
            self.release_early(op)?;
            self.run(op, op, false)?;
            self.memory.release_kept(op.saturating_add(1))?;
            for tensor in std::mem::take(&mut self.visitors) {
                self.memory.release_dead(tensor, op.saturating_add(1))?;
            }
        }
        for (tensor, dst) in self.memory.flow.outputs.clone() {
            let src = self.bring(tensor, ops)?;
            self.memory.copies.settle(dst, true)?;
            self.memory.copies.issue(Direction::Out, src, dst)?;
            self.memory.unpin(tensor)?;
        }
        self.carry()?;
        for output in self.memory.flow.reads.clone() {
            let Some(&slot) = self.program.results.get(output) else { continue };
            self.memory.copies.settle(slot, false)?;
            self.runner.exchange(&Action::Read(output), host)?;
        }
        Ok(())
    }

    /// Lets tensors leave before an op needs the room; its own operands stay.
    fn release_early(&mut self, op: usize) -> Result<(), Error> {
        let operands = self.memory.flow.ops.get(op).map_or_else(Vec::new, |op| op.operands.clone());
        operands.iter().try_for_each(|&operand| self.memory.pin(operand))?;
        let goal = self.policy.goal(&self.memory, op);
        while self.memory.device.used() > goal && self.evict(op)? {}
        operands.iter().try_for_each(|&operand| self.memory.unpin(operand))
    }

    /// Brings the states' next values to their places.
    fn carry(&mut self) -> Result<(), Error> {
        let next = self.memory.flow.next.clone();
        let end = self.memory.flow.ops.len();
        let mut kept = Vec::new();
        for (state, &tensor) in next.iter().enumerate() {
            let Some(&home) = self.memory.homes.get(state) else { continue };
            let src = self.bring(tensor, end)?;
            self.memory.copies.settle(src, false)?;
            if src != home && self.memory.is_home(&src) {
                kept.push((home, self.arenas.read(src).to_vec()));
            }
        }
        // States may trade places: no value is written before all of these are read.
        for (state, &tensor) in next.iter().enumerate() {
            let Some(&home) = self.memory.homes.get(state) else { continue };
            let src = self.memory.place(tensor)?;
            self.memory.copies.settle(home, true)?;
            if !self.memory.is_home(&src) {
                self.runner.run(&Action::Copy { src, dst: home })?;
            }
        }
        kept.iter().for_each(|(home, bytes)| self.arenas.write(*home).copy_from_slice(bytes));
        self.memory.end()
    }

    /// Runs an op for the first time in a step, or `again` on the way to the op `at`.
    fn run(&mut self, op: usize, at: usize, again: bool) -> Result<(), Error> {
        let entry = self.memory.flow.ops.get(op).ok_or_else(|| internal("an op that there is not"))?;
        let (operands, results) = (entry.operands.clone(), entry.results.clone());
        for &operand in &operands {
            self.bring(operand, at)?;
        }
        let (launch, replaced) = self.placed(op, at, again)?;
        if !again {
            self.prefetch(at)?;
        }
        for &operand in &operands {
            self.memory.copies.settle(self.memory.place(operand)?, false)?;
        }
        let (places, workspace) = (launch.results.clone(), launch.workspace);
        for &place in places.iter().chain([&workspace]) {
            self.memory.copies.settle(place, true)?;
        }
        self.launch(op, launch)?;
        self.memory.give(workspace);
        for (&result, place) in results.iter().zip(places) {
            let state = replaced.iter().find(|(_, next)| *next == result);
            match state {
                Some(&(state, _)) => self.memory.replace(state, result)?,
                // A result that is there has the same bits.
                None if self.memory.is_here(result) => self.memory.give(place),
                None => self.memory.put(result, place)?,
            }
        }
        for &operand in &operands {
            self.memory.touch(operand);
            self.memory.unpin(operand)?;
        }
        if again && !self.policy.keeps_visitors() {
            self.visitors.extend(&results);
        }
        // A tensor that came back for another one stays: the next may be made of it, too.
        let dead = operands.iter().chain(&results).filter(|_| !again);
        dead.copied().try_for_each(|tensor| self.memory.release_dead(tensor, at.saturating_add(1)))
    }

    /// The launch of an op whose operands are there, and the states whose bytes it overwrites, each with its
    /// next value.
    fn placed(
        &mut self,
        op: usize,
        at: usize,
        again: bool,
    ) -> Result<(Launch, Vec<(Tensor, Tensor)>), Error> {
        let entry = self.memory.flow.ops.get(op).ok_or_else(|| internal("an op that there is not"))?;
        let (operands, results) = (entry.operands.clone(), entry.results.clone());
        let mut launch = entry.launch.clone();
        let mut shared = if again { Vec::new() } else { self.shared(op, &operands, &results)? };
        let mut places = loop {
            let wanted = results.iter().enumerate().map(|(j, &result)| {
                let home = shared.iter().find(|s| s.1 == j).map(|&(_, _, home)| home);
                home.map_or(Want::Bytes(self.memory.bytes(result)), Want::Place)
            });
            let wanted: Vec<Want> = wanted.chain([Want::Bytes(launch.workspace.len)]).collect();
            let places = self.rooms(&wanted, at, &launch.label)?;
            // A tensor that was dropped for this room may need the old value of a state.
            let before = shared.len();
            let mut rest = Vec::with_capacity(before);
            for pair @ (i, ..) in shared {
                let state = operands.get(i).copied().unwrap_or_default();
                rest.extend((!self.memory.is_needed(state)?).then_some(pair));
            }
            shared = rest;
            if shared.len() == before {
                break places;
            }
            self.give_back(&wanted, places.into_iter().map(Some));
        };
        launch.workspace = places.pop().ok_or_else(|| internal("an op without a workspace"))?;
        launch.results = places;
        launch.operands.clear();
        for (i, &operand) in operands.iter().enumerate() {
            launch.operands.push(match shared.iter().find(|s| s.0 == i) {
                Some(&(_, j, _)) => Source::Result(j),
                None => Source::Place(self.memory.place(operand)?),
            });
        }
        let pair = |&(i, j, _): &(usize, usize, Place)| Some((*operands.get(i)?, *results.get(j)?));
        Ok((launch, shared.iter().filter_map(pair).collect()))
    }

    /// Pairs of an operand and a result of an op that share the bytes of a state: its old and its next value.
    fn shared(
        &mut self,
        op: usize,
        operands: &[Tensor],
        results: &[Tensor],
    ) -> Result<Vec<(usize, usize, Place)>, Error> {
        let kernel = self.memory.flow.ops.get(op).map_or(usize::MAX, |op| op.launch.kernel);
        let mut shared = Vec::new();
        for (j, &result) in results.iter().enumerate() {
            let Some((state, home)) = self.memory.overwritten(result, op)? else { continue };
            let mut reads = operands.iter().enumerate().filter(|(_, operand)| **operand == state);
            if let (Some((i, _)), None) = (reads.next(), reads.next())
                && self.may_share(kernel, (i, j))
            {
                shared.push((i, j, home));
            }
        }
        Ok(shared)
    }

    /// Whether a kernel computes this result in the bytes of this operand.
    fn may_share(&self, kernel: usize, pair: (usize, usize)) -> bool {
        let Some(kernel) = self.program.kernels.get(kernel) else { return false };
        let types = (kernel.operands.iter().collect::<Vec<_>>(), kernel.results.iter().collect::<Vec<_>>());
        kernel.op.inplace_pairs(&types.0, &types.1).contains(&pair)
    }

    /// Bytes of the device for the results and the workspace of an op; a place that there is stays. As a last
    /// resort all that is there moves together.
    fn rooms(&mut self, wanted: &[Want], at: usize, label: &str) -> Result<Vec<Place>, Error> {
        for is_last in [false, true] {
            let mut places = Vec::with_capacity(wanted.len());
            for want in wanted {
                places.push(match want {
                    Want::Place(place) => Some(*place),
                    Want::Bytes(bytes) => self.room(*bytes, at)?,
                });
            }
            if let Some(places) = places.iter().copied().collect::<Option<Vec<Place>>>() {
                return Ok(places);
            }
            self.give_back(wanted, places.into_iter());
            if !is_last {
                self.memory.compact(&self.arenas)?;
            }
        }
        let bytes = wanted.iter().map(|want| if let Want::Bytes(bytes) = want { *bytes } else { 0 }).sum();
        let who = if label.is_empty() { String::new() } else { format!("`{label}`") };
        Err(self.memory.full(self.policy.name(), bytes, &who))
    }

    /// Gives back the bytes that were taken for what was wanted.
    fn give_back(&mut self, wanted: &[Want], places: impl Iterator<Item = Option<Place>>) {
        for (want, place) in wanted.iter().zip(places) {
            if let (Want::Bytes(_), Some(place)) = (want, place) {
                self.memory.give(place);
            }
        }
    }

    /// Runs a kernel and takes its time.
    fn launch(&mut self, op: usize, launch: Launch) -> Result<(), Error> {
        let before = self.memory.now_ns();
        let action = Action::Launch(launch);
        let (pool, runner) = (&self.pool, &mut self.runner);
        guarded(Section::Body, op, || pool.install(|| runner.run(&action)))?;
        let ns = self.memory.now_ns().saturating_sub(before).max(1);
        self.memory.took(op, ns);
        Ok(())
    }

    /// Brings a tensor to the device for the op `at`, pinned.
    fn bring(&mut self, tensor: Tensor, at: usize) -> Result<Place, Error> {
        self.memory.pin(tensor)?;
        if !self.memory.is_here(tensor) {
            let has_copy = self.memory.held(tensor).is_some_and(|held| held.host.is_some());
            if has_copy && !self.policy.computes_instead(&self.memory, tensor) {
                let places = self.rooms(&[Want::Bytes(self.memory.bytes(tensor))], at, "")?;
                places.into_iter().try_for_each(|place| self.memory.reload(tensor, place))?;
            } else {
                self.compute_again(tensor, at)?;
            }
        }
        self.memory.place(tensor)
    }

    /// Computes a pinned tensor again, and before it what it is made of. Only operands of ops that are under
    /// way are pinned, so that others may leave meanwhile and be computed once more.
    fn compute_again(&mut self, tensor: Tensor, at: usize) -> Result<(), Error> {
        let ops = self.memory.closure(tensor).ok_or_else(|| internal("a dropped tensor is lost"))?;
        let most = AGAIN.saturating_mul(self.memory.flow.ops.len() as u64);
        if self.memory.counts.again >= most {
            return Err(self.memory.thrashes(self.policy.name()));
        }
        // In the order of the step, so that little is pinned at a time and calls hardly nest.
        let (_, before) = ops.split_last().ok_or_else(|| internal("a dropped tensor has no op"))?;
        let of = |op: &usize| self.memory.flow.ops.get(*op);
        let read: BTreeSet<Tensor> = ops.iter().filter_map(of).flat_map(|op| op.operands.clone()).collect();
        for &op in before {
            let results = self.memory.flow.ops.get(op).map_or_else(Vec::new, |op| op.results.clone());
            for result in results.into_iter().filter(|result| read.contains(result)) {
                self.bring(result, at)?;
                self.memory.unpin(result)?;
            }
        }
        if self.memory.is_here(tensor) {
            return Ok(());
        }
        let op = ops.last().copied().ok_or_else(|| internal("a dropped tensor has no op"))?;
        self.memory.counts.again += 1;
        self.run(op, at, true)
    }

    /// Bytes of the device in one piece, for which others leave.
    fn room(&mut self, bytes: usize, at: usize) -> Result<Option<Place>, Error> {
        loop {
            let place = self.memory.take(bytes);
            if place.is_some() || !self.evict(at)? {
                return Ok(place);
            }
        }
    }

    /// Takes a tensor from the device; `false` where none may leave.
    fn evict(&mut self, at: usize) -> Result<bool, Error> {
        if self.memory.release_visitor(at)? {
            return Ok(true);
        }
        let mut stay = Vec::new();
        while let Some((tensor, leaves)) = self.policy.victim(&self.memory, at, &stay) {
            if leaves == Leaves::Offloaded && self.memory.offload(tensor)? {
                return Ok(true);
            }
            // Without room in host memory it has to be computed again.
            if self.memory.closure(tensor).is_some() {
                self.memory.drop_it(tensor, at)?;
                return Ok(true);
            }
            stay.push(tensor);
        }
        Ok(false)
    }

    /// Brings tensors back ahead of their use, as long as there is room.
    fn prefetch(&mut self, at: usize) -> Result<(), Error> {
        for tensor in self.policy.prefetched(&self.memory, at, &mut self.ahead) {
            let Some(place) = self.memory.take(self.memory.bytes(tensor)) else { break };
            self.memory.reload(tensor, place)?;
        }
        Ok(())
    }
}
