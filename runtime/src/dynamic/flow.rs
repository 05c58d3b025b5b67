//! The tensors of an unplanned step: which op makes each, which read it, and what is carried over.
//!
//! Derived from the body of an unplanned program. A place that a command writes holds another tensor from
//! then on, so that places are only names here.

use std::collections::BTreeMap;

use memc_ir::Space;

use crate::program::{Action, Launch, Place, Source};
use crate::{Error, Program};

/// Index of a tensor. States come first, in the order of the plan.
pub(super) type Tensor = usize;

/// Origin of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The state with this index.
    State(usize),
    /// The input with the staging slot at this place of host memory.
    Input(Place),
    /// A result of the op with this index.
    Op(usize),
}

/// A tensor of a step.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) bytes: usize,
    pub(super) origin: Origin,
    /// Ops that read it, ascending. An output or a new state is read by an op past the last.
    pub(super) uses: Vec<usize>,
    /// Whether it is the next value of a state.
    pub(super) is_next: bool,
}

/// A launch with the tensors that its places stand for.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) operands: Vec<Tensor>,
    pub(super) results: Vec<Tensor>,
    /// The unplanned launch.
    pub(super) launch: Launch,
}

/// An unplanned step.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) tensors: Vec<Entry>,
    pub(super) ops: Vec<Op>,
    /// Inputs in the order in which they are written.
    pub(super) writes: Vec<usize>,
    /// Outputs, each with its slot in host memory.
    pub(super) outputs: Vec<(Tensor, Place)>,
    /// Outputs in the order in which they are read.
    pub(super) reads: Vec<usize>,
    /// Next values of the states.
    pub(super) next: Vec<Tensor>,
    /// The op with the most bytes in tensors that are still to be read: the end of the forward pass.
    pub(super) split: usize,
}

impl Flow {
    /// The step of an unplanned program.
    ///
    /// # Errors
    /// [`Error::Internal`] for a program that is none.
    pub(super) fn of(program: &Program) -> Result<Flow, Error> {
        let mut reader = Reader { tensors: Vec::new(), at: BTreeMap::new() };
        for (state, place) in program.resident_slots.iter().enumerate() {
            reader.put(*place, Origin::State(state));
        }
        let (mut ops, mut writes, mut outputs, mut reads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for command in program.section(memc_plan::Section::Body) {
            match &command.action {
                Action::Write(input) => writes.push(*input),
                Action::Read(output) => reads.push(*output),
                Action::Launch(launch) => ops.push(reader.op(launch, ops.len())?),
                Action::Copy { src, dst } if program.slots.contains(src) => {
                    reader.put(*dst, Origin::Input(*src));
                }
                Action::Copy { src, dst } if program.results.contains(dst) => {
                    outputs.push((reader.get(src)?, *dst));
                }
                Action::Copy { src, dst } => {
                    let tensor = reader.get(src)?;
                    reader.at.insert(key(dst), tensor);
                }
                _ => {}
            }
        }
        let next = program.resident_slots.iter().map(|place| reader.get(place));
        let next: Vec<Tensor> = next.collect::<Result<_, _>>()?;
        let mut flow = Flow { tensors: reader.tensors, ops, writes, outputs, reads, next, split: 0 };
        flow.end();
        Ok(flow)
    }

    /// Notes what is read at the end, and finds the end of the forward pass.
    fn end(&mut self) {
        let end = self.ops.len();
        let last = self.outputs.iter().map(|(tensor, _)| *tensor).chain(self.next.iter().copied());
        for tensor in last.collect::<Vec<_>>() {
            self.tensors.get_mut(tensor).into_iter().for_each(|entry| entry.uses.push(end));
        }
        for (state, &tensor) in self.next.iter().enumerate() {
            if let Some(entry) = self.tensors.get_mut(tensor).filter(|e| e.origin != Origin::State(state)) {
                entry.is_next = true;
            }
        }
        let mut change = vec![0i128; end.saturating_add(2)];
        for entry in &self.tensors {
            let Origin::Op(from) = entry.origin else { continue };
            let until = entry.uses.last().map_or(from, |&last| last).saturating_add(1);
            change.get_mut(from).into_iter().for_each(|at| *at += entry.bytes as i128);
            change.get_mut(until).into_iter().for_each(|at| *at -= entry.bytes as i128);
        }
        let (mut live, mut most) = (0, 0);
        for (op, change) in change.iter().enumerate().take(end) {
            live += change;
            if live > most {
                (most, self.split) = (live, op);
            }
        }
    }

    pub(super) fn tensor(&self, tensor: Tensor) -> Result<&Entry, Error> {
        self.tensors.get(tensor).ok_or_else(|| internal("a tensor that there is not"))
    }

    /// The first op from `from` on that reads a tensor.
    pub(super) fn next_use(&self, tensor: Tensor, from: usize) -> Option<usize> {
        let uses = &self.tensors.get(tensor)?.uses;
        uses.get(uses.partition_point(|&op| op < from)).copied()
    }
}

/// Tensors by the place that holds them.
struct Reader {
    tensors: Vec<Entry>,
    at: BTreeMap<(usize, usize), Tensor>,
}

fn key(place: &Place) -> (usize, usize) {
    (place.start, place.len)
}

impl Reader {
    fn put(&mut self, place: Place, origin: Origin) -> Tensor {
        let tensor = self.tensors.len();
        self.at.insert(key(&place), tensor);
        self.tensors.push(Entry { bytes: place.len, origin, uses: Vec::new(), is_next: false });
        tensor
    }

    fn get(&mut self, place: &Place) -> Result<Tensor, Error> {
        let mut tensor = self.at.get(&key(place)).copied();
        // An input without bytes is not copied.
        if tensor.is_none() && place.len == 0 {
            tensor = Some(self.put(*place, Origin::Input(Place { space: Space::Host, start: 0, len: 0 })));
        }
        tensor.ok_or_else(|| internal("an unplanned step reads bytes that it has not written"))
    }

    fn op(&mut self, launch: &Launch, op: usize) -> Result<Op, Error> {
        let mut operands = Vec::with_capacity(launch.operands.len());
        for source in &launch.operands {
            let Source::Place(place) = source else {
                return Err(internal("an unplanned step computes in place"));
            };
            let tensor = self.get(place)?;
            self.tensors.get_mut(tensor).into_iter().for_each(|entry| entry.uses.push(op));
            operands.push(tensor);
        }
        let results = launch.results.iter().map(|place| self.put(*place, Origin::Op(op))).collect();
        Ok(Op { operands, results, launch: launch.clone() })
    }
}

pub(super) fn internal(what: &str) -> Error {
    Error::Internal(what.to_owned())
}
