//! Ops that are run only to be timed: by a library where one takes them, as in a plan.

use memc_cuda::{Arg, Lowering};
use memc_gpu::{Answer, Driver, Function, GpuError, LibraryOp, Region, Space, Word};
use memc_ir::{OpKind, TensorType, parse_op, parse_type};

use crate::Error;

/// Alignment of parts.
const ALIGN: usize = 256;

/// An op at fixed types, with the bytes that its operands and results take.
pub(super) struct Shape {
    size: u64,
    op: OpKind,
    types: Vec<TensorType>,
    pub(super) lowering: Lowering,
    operands: Vec<usize>,
    results: Vec<usize>,
    workspace: usize,
    /// The library's call that computes it.
    by_library: Option<LibraryOp>,
}

/// A command to measure.
enum Command {
    Kernel(Function, [u32; 3], u32, Vec<Word>),
    Call(LibraryOp, Vec<Region>, Region),
}

/// An op to measure.
pub(super) struct Probe {
    /// Operations, or bytes.
    pub(super) size: u64,
    commands: Vec<Command>,
}

/// An op without attributes, on so many operands of one type; `size` are its operations, or bytes.
pub(super) fn shape(op: &str, operand: &str, operands: usize, size: u64) -> Result<Shape, Error> {
    let failed = |what: &dyn std::fmt::Display| Error::Internal(format!("measuring {op}: {what}"));
    let op: OpKind = parse_op(op, "").map_err(|e| failed(&e))?;
    let operand: TensorType = parse_type(operand).map_err(|e| failed(&e))?;
    let types = vec![operand; operands];
    let results = op.infer(&types.iter().collect::<Vec<_>>()).map_err(|e| failed(&e))?;
    let lowering = memc_cuda::lower(&op, &types).map_err(|error| failed(&error))?;
    let bytes = |types: &[TensorType]| {
        types.iter().map(|ty| usize::try_from(ty.bytes()).unwrap_or(usize::MAX)).collect::<Vec<_>>()
    };
    let (operands, results) = (bytes(&types), bytes(&results));
    let workspace = usize::try_from(lowering.workspace).unwrap_or(usize::MAX);
    Ok(Shape { size, op, types, lowering, operands, results, workspace, by_library: None })
}

impl Shape {
    /// Lets a library compute it where one does, with the workspace that a plan would have; whether it does.
    pub(super) fn ask(&mut self, driver: &mut impl Driver) -> Result<bool, Error> {
        let Some(call) = memc_cuda::library(&self.op, &self.types) else { return Ok(false) };
        let workspace = usize::try_from(memc_cuda::allowance(&self.op, &self.types)).unwrap_or(usize::MAX);
        match driver.plan_library(&call, workspace) {
            Ok(Answer::Taken(op)) => {
                (self.by_library, self.workspace) = (Some(op), workspace);
                self.lowering = Lowering::default();
                Ok(true)
            }
            Ok(Answer::Refused(_) | Answer::NotAsked) => Ok(false),
            Err(error) if error.lacks().is_some() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes of everything, each part aligned.
    pub(super) fn bytes(&self) -> usize {
        let parts = self.operands.iter().chain(&self.results);
        parts.fold(self.workspace, |sum, part| sum.saturating_add(part.next_multiple_of(ALIGN)))
    }

    /// The op with its parts laid out from a place on.
    pub(super) fn probe(&self, driver: &mut impl Driver, from: usize) -> Result<Probe, Error> {
        let mut at = from;
        let mut place = |len: &usize| {
            let start = at;
            at += len.next_multiple_of(ALIGN);
            Region { arena: Space::Dev, start, len: *len }
        };
        let operands: Vec<Region> = self.operands.iter().map(&mut place).collect();
        let results: Vec<Region> = self.results.iter().map(&mut place).collect();
        let workspace = Region { arena: Space::Dev, start: at, len: self.workspace };
        if let Some(op) = self.by_library {
            let places = operands.into_iter().chain(results).collect();
            return Ok(Probe { size: self.size, commands: vec![Command::Call(op, places, workspace)] });
        }
        let start = |region: &Region| Word::Address(region.start);
        let word = |arg: &Arg| match *arg {
            Arg::Operand(i) => operands.get(i).map(start),
            Arg::Result(j) => results.get(j).map(start),
            Arg::Workspace(byte) => {
                usize::try_from(byte).ok().map(|byte| Word::Address(workspace.start + byte))
            }
            Arg::I64(value) => Some(Word::Int(value)),
            Arg::Report(_) => None,
        };
        let mut commands = Vec::new();
        for launch in &self.lowering.launches {
            let words: Option<Vec<Word>> = launch.args.iter().map(word).collect();
            let words = words.ok_or_else(|| Error::Internal("a kernel has too many operands".to_owned()))?;
            let function = driver.function(&launch.kernel.name)?;
            commands.push(Command::Kernel(function, launch.grid, launch.block, words));
        }
        Ok(Probe { size: self.size, commands })
    }
}

impl Probe {
    /// Issues it on the compute queue.
    pub(super) fn launch(&self, driver: &mut impl Driver) -> Result<(), GpuError> {
        self.commands.iter().try_for_each(|command| match command {
            Command::Kernel(function, grid, block, words) => driver.launch(*function, *grid, *block, words),
            Command::Call(op, places, workspace) => driver.call(*op, places, *workspace),
        })
    }
}
