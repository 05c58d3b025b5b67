//! A normalisation of rows in one kernel with the element-wise steps before and behind it.
//!
//! The body is one of `fused` with one more step: a `layer_norm` or a `layer_norm_grad`, the *norm*. As a
//! step it stands for its first result; its two others are the last results of the op. Steps before the norm
//! read operands and each other. Steps behind it read operands, the norm and each other. The norm reads a
//! step only as its first operand. So the op runs as up to three ops, its *parts*, each of which reads
//! operands and results. A value that is no result is held in a result that is written later.

use super::fused::{self, Arg, Body, MAX_OPERANDS, MAX_RESULTS, MAX_STEPS, Step};
use super::{Cost, OpKind, TypeError, Types, streaming};
use crate::types::TensorType;

/// Operand of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// An operand of the op.
    Operand(usize),
    /// The content that an earlier part left in this result.
    Result(usize),
}

/// An op that is a part of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The steps as a `fused`, or the norm.
    pub op: OpKind,
    /// Sources of its operands.
    pub from: Vec<From>,
    /// Types of the operands.
    pub operands: Vec<TensorType>,
    /// For each result, the result of the whole op that holds it.
    pub to: Vec<usize>,
    /// Types of the results.
    pub results: Vec<TensorType>,
}

/// The parts of the op, in order, and the types of its results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The steps before the norm, where there are any.
    pub before: Option<Part>,
    /// The norm.
    pub norm: Part,
    /// The steps behind the norm, where there are any.
    pub after: Option<Part>,
    /// Types of all results.
    pub results: Vec<TensorType>,
}

/// Whether the op may be the norm of a body.
pub fn is_norm(op: &OpKind) -> bool {
    matches!(op, OpKind::LayerNorm { .. } | OpKind::LayerNormGrad { .. })
}

/// Operands and results of a part, as steps of the whole body. Numbers from the body's length on are the
/// other results of the norm.
struct Draft {
    op: OpKind,
    from: Vec<Arg>,
    operands: Vec<TensorType>,
    to: Vec<usize>,
    results: Vec<TensorType>,
}

/// The steps from `first` up to `end` as a fused op that makes `to`.
fn chain(body: &Body, first: usize, end: usize, norm: usize, to: Vec<usize>) -> Result<Draft, TypeError> {
    let (mut steps, mut from): (Vec<Step>, Vec<Arg>) = Default::default();
    for (t, Step { op, args }) in body.0.iter().enumerate().take(end).skip(first) {
        if !fused::is_step(op) {
            return Err(format!("step t{t}, {}: the op is not element-wise", op.mnemonic()).into());
        }
        let mut own = Vec::with_capacity(args.len());
        for &arg in args {
            own.push(match arg {
                Arg::Step(s) if (first..t).contains(&(s as usize)) => Arg::Step(s - first as u32),
                Arg::Step(s) if s as usize != norm || norm > t => {
                    return Err(
                        format!("step t{t}, {}: {arg} is none that it may read", op.mnemonic()).into()
                    );
                }
                outside => {
                    let known = from.iter().position(|&f| f == outside).unwrap_or_else(|| {
                        from.push(outside);
                        from.len() - 1
                    });
                    Arg::Operand(known as u32)
                }
            });
        }
        steps.push(Step { op: op.clone(), args: own });
    }
    let outs = to.iter().map(|t| (t - first) as u64).collect();
    Ok(Draft::new(OpKind::Fused { body: Body(steps), outs }, from, to))
}

impl Draft {
    fn new(op: OpKind, from: Vec<Arg>, to: Vec<usize>) -> Draft {
        Draft { op, from, operands: Vec::new(), to, results: Vec::new() }
    }

    /// Infers the types of the part. `steps` has those of the steps before, and gets those of this part.
    fn infer(&mut self, operands: &[&TensorType], steps: &mut [Option<TensorType>]) -> Result<(), TypeError> {
        let ty = |arg: &Arg| match *arg {
            Arg::Operand(x) => operands.get(x as usize).map(|&ty| ty.clone()),
            Arg::Step(t) => steps.get(t as usize).cloned().flatten(),
        };
        let wants = |arg: &Arg| ty(arg).ok_or(format!("there is no {arg}"));
        self.operands = self.from.iter().map(wants).collect::<Result<_, _>>()?;
        self.results = self.op.infer(&self.operands.iter().collect::<Vec<_>>())?;
        for (&t, ty) in self.to.iter().zip(&self.results) {
            steps[t] = Some(ty.clone());
        }
        Ok(())
    }

    /// The part, given the result that holds a step.
    fn part(self, held: impl Fn(usize) -> usize) -> Part {
        let from = |arg: &Arg| match *arg {
            Arg::Operand(x) => From::Operand(x as usize),
            Arg::Step(t) => From::Result(held(t as usize)),
        };
        let (from, to) = (self.from.iter().map(from).collect(), self.to.iter().map(|&t| held(t)).collect());
        Part { op: self.op, from, operands: self.operands, to, results: self.results }
    }
}

impl Parts {
    /// The parts of an op on operands of these types, or the fault of the op.
    pub fn of(operands: &[&TensorType], body: &Body, outs: &[u64]) -> Result<Parts, TypeError> {
        let count = body.0.len();
        if count > MAX_STEPS || operands.len() > MAX_OPERANDS || outs.len() + 2 > MAX_RESULTS {
            return Err(format!(
                "there are at most {MAX_STEPS} steps, {MAX_OPERANDS} operands, {MAX_RESULTS} results"
            )
            .into());
        }
        let mut norms = body.0.iter().enumerate().filter(|(_, step)| is_norm(&step.op));
        let (Some((at, Step { op, args })), None) = (norms.next(), norms.next()) else {
            return Err("one step must be a layer_norm or layer_norm_grad".into());
        };
        if !outs.is_sorted_by(|a, b| a < b) || outs.iter().any(|&t| t >= count as u64) {
            return Err(format!("outs must name steps in ascending order, got {outs:?}").into());
        }
        // The step that it normalises, where it is one.
        let made = match args.as_slice() {
            [Arg::Step(t), ..] if *t as usize >= at => {
                return Err(format!("t{t} is not an earlier step").into());
            }
            [Arg::Step(t), ..] => Some(*t as usize),
            _ => None,
        };
        if let Some(arg) = args.iter().skip(1).find(|arg| matches!(arg, Arg::Step(_))) {
            return Err(format!("step t{at}, {}: {arg} must be an operand here", op.mnemonic()).into());
        }
        let result = |t: usize| outs.iter().position(|&o| o == t as u64);
        let early = (0..at).filter(|&t| result(t).is_some() || made == Some(t)).collect();
        let mut before = (at > 0).then(|| chain(body, 0, at, at, early)).transpose()?;
        let mut norm = Draft::new(op.clone(), args.clone(), vec![at, count, count + 1]);
        let late = (at + 1..count).filter(|&t| result(t).is_some()).collect();
        let mut after = (at + 1 < count).then(|| chain(body, at + 1, count, at, late)).transpose()?;
        let mut types = vec![None; count + 2];
        for draft in before.iter_mut().chain([&mut norm]).chain(&mut after) {
            draft.infer(operands, &mut types)?;
        }
        let space = norm.results.first().map(|ty| ty.shape.clone()).unwrap_or_default();
        if let Some(ty) = types.iter().take(count).flatten().find(|ty| ty.shape != space) {
            return Err(format!("all steps must have the shape of the norm, {space:?}; one is {ty}").into());
        }

        // The result that holds the norm's value, and before that the step that it normalises, which has its
        // type.
        let value = (at..count).find(|&t| result(t).is_some() && types[t] == types[at]).and_then(result);
        let value = value.ok_or("neither the norm nor a step of its type behind it is a result")?;
        let held = |t: usize| match t.checked_sub(count) {
            Some(k) => outs.len() + k,
            None => result(t).unwrap_or(value),
        };
        let [before, after] = [before, after].map(|draft| draft.map(|draft| draft.part(held)));
        let norm = norm.part(held);
        let results = outs.iter().map(|&t| t as usize).chain([count, count + 1]);
        let results =
            results.map(|t| types[t].clone()).collect::<Option<_>>().ok_or("a result has no type")?;
        let parts = Parts { before, norm, after, results };
        match (0..operands.len()).find(|&x| !parts.iter().any(|part| part.reads(x))) {
            Some(x) => Err(format!("no step reads x{x}").into()),
            None => Ok(parts),
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Part> {
        self.before.iter().chain([&self.norm]).chain(&self.after)
    }

    /// Pairs (operand, result) that may share bytes, where types are equal and the operand has one element
    /// for each of the result. Nothing is written over an operand that is still to be read.
    pub(super) fn inplace_pairs(&self, operands: &[&TensorType]) -> Vec<(usize, usize)> {
        let space = self.norm.results.first().map_or(0, TensorType::numel);
        let fits = |i: usize, j: usize| {
            let (Some(a), Some(b)) = (operands.get(i), self.results.get(j)) else { return false };
            let mut parts = self.iter().enumerate();
            let written = parts.find(|(_, part)| part.to.contains(&j)).map(|(k, _)| k);
            let read = self.iter().enumerate().filter(|(_, part)| part.reads(i)).last();
            let in_time = read
                .is_some_and(|(k, part)| Some(k) < written || (Some(k) == written && part.may_share(i, j)));
            in_time && a.dtype == b.dtype && a.numel() == space && b.numel() == space
        };
        let outs = self.results.len() - (self.norm.results.len() - 1);
        (0..operands.len())
            .flat_map(|i| (0..outs).map(move |j| (i, j)))
            .filter(|&(i, j)| fits(i, j))
            .collect()
    }
}

impl Part {
    fn reads(&self, operand: usize) -> bool {
        self.from.contains(&From::Operand(operand))
    }

    /// Whether an operand of the whole op, which the part reads, may lie in one of the part's results.
    fn may_share(&self, operand: usize, result: usize) -> bool {
        let pairs = self.op.inplace_pairs(
            &self.operands.iter().collect::<Vec<_>>(),
            &self.results.iter().collect::<Vec<_>>(),
        );
        let to = self.to.iter().position(|&j| j == result);
        let mut at = (0..self.from.len()).filter(|&k| self.from[k] == From::Operand(operand));
        at.all(|k| to.is_some_and(|to| pairs.contains(&(k, to))))
    }
}

pub(super) fn infer(operands: &[&TensorType], body: &Body, outs: &[u64]) -> Types {
    Parts::of(operands, body, outs).map(|parts| parts.results)
}

/// The arithmetic of all parts, the scratch of the norm, and the traffic of operands and results alone.
pub(super) fn cost(operands: &[&TensorType], results: &[&TensorType], body: &Body, outs: &[u64]) -> Cost {
    let Ok(parts) = Parts::of(operands, body, outs) else { return streaming(operands, results, 0) };
    let costs = parts.iter().map(|part| {
        part.op.cost(&part.operands.iter().collect::<Vec<_>>(), &part.results.iter().collect::<Vec<_>>())
    });
    let all = costs.fold(Cost::default(), |sum, cost| Cost {
        flops: sum.flops.saturating_add(cost.flops),
        workspace: sum.workspace.max(cost.workspace),
        ..sum
    });
    Cost { flops: all.flops, workspace: all.workspace, ..streaming(operands, results, 0) }
}
