//! Reverse-mode differentiation of a graph-phase module: one gradient rule for every row of the op table.
//!
//! [`differentiate`] appends the gradient of a scalar loss to the module, behind the forward ops. Contract:
//!
//! - A value gets a gradient only when it lies on a path from a requested value to the loss along which every
//!   tensor is floating point; integers and booleans carry none.
//! - The gradient of `X` is called `X_grad`. Where several uses contribute, the contributions are `X_grad_0`,
//!   `X_grad_1`, ... in reverse order of the uses, and are added up in that order as they arise. A rule that
//!   hands a gradient on unchanged (an addition, a copy) makes no op; `X`'s gradient is then the value of
//!   another name. Contributions of slices that do not overlap are joined instead of added.
//! - An op appended for the node `N` has the origin `N_Grad`.
//! - Where ops are not differentiable, a rule takes the derivative that its file states; `min` and `max` give
//!   the gradient of a tie to one operand, a maximum over axes shares it.
//!
//! Time is linear in the size of the module, and nothing recurses. The rules choose formulations for training
//! (activations from their results, pooling from its indices, batch normalisation as one op). This part does
//! not simplify what it makes: later passes merge, fold and drop.
//!
//! Source: A. Griewank, A. Walther, *Evaluating Derivatives*, 2nd ed., chapter 3 (reverse mode).

mod convolution;
mod elementwise;
mod index;
mod linalg;
mod movement;
mod norm;
mod parts;
mod reduce;
mod rule;
mod rules;

use std::collections::BTreeMap;
use std::fmt;

use crate::entity::{Id, OpId, ValueId};
use crate::error::NoGradient;
use crate::module::{Code, Def, Module, Phase};
use crate::ops::OpKind;
use crate::types::TensorType;
use parts::Parts;
use rule::{Constants, Given, Rule};

pub use rules::is_differentiable;

/// Reason why a gradient cannot be computed, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotDifferentiable {
    /// The op's name in the text form; `input`, `state` or `const` for a value that no op defines.
    pub op: &'static str,
    /// Name of the op's first result, or of the value itself.
    pub value: String,
    /// Name of the source node; empty when there is none.
    pub node: String,
    /// Obstacle to the gradient.
    pub reason: String,
}

impl fmt::Display for NotDifferentiable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no gradient through {} of `{}`", self.op, self.value)?;
        if !self.node.is_empty() {
            write!(f, " (node `{}`)", self.node)?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for NotDifferentiable {}

impl NotDifferentiable {
    fn at_value(m: &Module, value: ValueId, reason: impl Into<String>) -> Self {
        let op = match m.values[value].def {
            Def::Op(op, _) => return Self::at_op(m, op, reason),
            Def::Input(_) => "input",
            Def::State(_) => "state",
            Def::Const(_) => "const",
            Def::HostShadow(_) => "host_shadow",
        };
        Self { op, value: m.values[value].name.clone(), node: String::new(), reason: reason.into() }
    }

    fn at_op(m: &Module, op: OpId, reason: impl Into<String>) -> Self {
        let code = &m.ops[op];
        Self {
            op: code.kind().map_or("copy", |k| k.mnemonic()),
            value: code.results.first().map_or_else(String::new, |&v| m.values[v].name.clone()),
            node: code.origin.clone(),
            reason: reason.into(),
        }
    }
}

/// Appends the gradients of `loss` with respect to each of `wrt`, in that order; each has its value's type.
///
/// `loss` must be floating point with exactly one element. `wrt` may name any floating-point value; the
/// gradient of an op's result is the total over all its uses. `None` stands for a value that the loss does
/// not depend on, or only through integers, booleans and `stop_gradient`: where PyTorch has no gradient.
///
/// # Errors
///
/// [`NotDifferentiable`] when the loss or a requested value is not as said above, an op on the way has no
/// gradient rule, or the loss depends on a requested value only through ops whose derivative is zero
/// everywhere. The order of the module is then as before; values made until then stay behind, unused.
pub fn differentiate(
    module: &mut Module,
    loss: ValueId,
    wrt: &[ValueId],
) -> Result<Vec<Option<ValueId>>, NotDifferentiable> {
    differentiate_scaled(module, loss, wrt, 1.0)
}

/// As [`differentiate`], with the gradients of `scale` times the loss.
pub fn differentiate_scaled(
    module: &mut Module,
    loss: ValueId,
    wrt: &[ValueId],
    scale: f32,
) -> Result<Vec<Option<ValueId>>, NotDifferentiable> {
    check(module, loss, wrt)?;
    let forward = module.order.len();
    let done = Sweep::new(module, loss, wrt).run(scale);
    if done.is_err() {
        module.order.truncate(forward);
    }
    done
}

fn check(m: &Module, loss: ValueId, wrt: &[ValueId]) -> Result<(), NotDifferentiable> {
    let ty = &m.values[loss].ty;
    if m.phase != Phase::Graph {
        return Err(NotDifferentiable::at_value(m, loss, "gradients are taken in the graph phase"));
    }
    if !ty.dtype.is_float() || ty.numel() != 1 {
        let reason = format!("the loss must be one floating-point number, it is {ty}");
        return Err(NotDifferentiable::at_value(m, loss, reason));
    }
    match wrt.iter().find(|&&v| !m.values[v].ty.dtype.is_float()) {
        Some(&v) => {
            let reason = format!("a gradient exists only for floating point, this is {}", m.values[v].ty);
            Err(NotDifferentiable::at_value(m, v, reason))
        }
        None => Ok(()),
    }
}

/// The gradient of one value, summed up so far.
#[derive(Clone, Copy)]
struct Total {
    value: ValueId,
    /// Contributions so far.
    count: u32,
    /// Whether `value` was made for this gradient and may be renamed.
    owned: bool,
}

struct Sweep<'m> {
    m: &'m mut Module,
    loss: ValueId,
    wrt: &'m [ValueId],
    /// For each forward value, whether a requested value influences it through floating point alone.
    varied: Vec<bool>,
    totals: Vec<Option<Total>>,
    /// Contributions that cover a part of their value, until the value's gradient is read.
    parts: BTreeMap<ValueId, Parts>,
    constants: Constants,
}

impl<'m> Sweep<'m> {
    fn new(m: &'m mut Module, loss: ValueId, wrt: &'m [ValueId]) -> Self {
        let mut varied = vec![false; m.values.len()];
        wrt.iter().for_each(|&v| varied[v.index()] = true);
        for &id in &m.order {
            let op = &m.ops[id];
            if op.operands.iter().any(|v| varied[v.index()]) {
                for &v in &op.results {
                    varied[v.index()] |= m.values[v].ty.dtype.is_float();
                }
            }
        }
        let totals = vec![None; m.values.len()];
        Self { m, loss, wrt, varied, totals, parts: BTreeMap::new(), constants: BTreeMap::new() }
    }

    fn run(mut self, scale: f32) -> Result<Vec<Option<ValueId>>, NotDifferentiable> {
        let forward = self.m.order.clone();
        if self.varied[self.loss.index()] {
            let ty = self.m.values[self.loss].ty.clone();
            let seed = self.seed(&ty, scale);
            self.totals[self.loss.index()] = Some(Total { value: seed, count: 1, owned: false });
            for &op in forward.iter().rev() {
                self.visit(op).map_err(|reason| NotDifferentiable::at_op(self.m, op, reason))?;
            }
            for &v in self.wrt {
                self.settle(v).map_err(|reason| NotDifferentiable::at_value(self.m, v, reason))?;
            }
        }
        let grads: Vec<Option<ValueId>> =
            self.wrt.iter().map(|v| self.totals[v.index()].map(|t| t.value)).collect();
        self.explain_missing(&forward, &grads)?;
        Ok(grads)
    }

    /// The gradient of `scale` times the loss with respect to the loss.
    fn seed(&mut self, ty: &TensorType, scale: f32) -> ValueId {
        let name = format!("{}_grad", self.m.values[self.loss].name);
        let data = rule::float_bytes(ty.dtype, scale);
        self.m.add_const(&name, ty.clone(), data)
    }

    /// Applies the op's rule when one of its results has a gradient and one of its operands wants one.
    fn visit(&mut self, id: OpId) -> Result<(), NoGradient> {
        for i in 0..self.m.ops[id].results.len() {
            self.settle(self.m.ops[id].results[i])?;
        }
        let op = &self.m.ops[id];
        let dy: Vec<Option<ValueId>> =
            op.results.iter().map(|v| self.totals[v.index()].map(|t| t.value)).collect();
        let wants: Vec<bool> = op.operands.iter().map(|v| self.varied[v.index()]).collect();
        if dy.iter().all(Option::is_none) || !wants.contains(&true) {
            return Ok(());
        }
        let Code::Compute(kind) = op.code.clone() else {
            return Err("it is no op of the graph phase".into());
        };
        let mut rule = Rule::new(self.m, id, dy, wants, &mut self.constants);
        rules::apply(&mut rule, &kind)?;
        let (given, made) = rule.finish();
        let origin = match self.m.ops[id].origin.as_str() {
            "" => String::new(),
            node => format!("{node}_Grad"),
        };
        let mut renamed = Vec::new();
        for Given { operand, grad, part } in given {
            let x = self.m.ops[id].operands[operand];
            if let Some((axis, start)) = part {
                self.parts.entry(x).or_default().add(axis, start, grad, &origin);
                continue;
            }
            let owned = made.contains(&grad) && !renamed.contains(&grad);
            renamed.push(grad);
            self.contribute(x, grad, owned, &origin)?;
        }
        Ok(())
    }

    /// Adds the contributions that cover parts of `x` to its gradient.
    fn settle(&mut self, x: ValueId) -> Result<(), NoGradient> {
        let Some(parts) = self.parts.remove(&x) else { return Ok(()) };
        for (grad, origin) in parts.join(self.m, x)? {
            self.contribute(x, grad, true, &origin)?;
        }
        Ok(())
    }

    /// Adds `grad` to the gradient of `x`.
    fn contribute(&mut self, x: ValueId, grad: ValueId, owned: bool, origin: &str) -> Result<(), NoGradient> {
        let name = format!("{}_grad", self.m.values[x].name);
        let total = match self.totals[x.index()] {
            None => {
                if owned {
                    self.m.rename(grad, &name);
                }
                Total { value: grad, count: 1, owned }
            }
            Some(old) => {
                if old.owned {
                    let part = if old.count == 1 { "0".into() } else { format!("sum_{}", old.count - 1) };
                    self.m.rename(old.value, &format!("{name}_{part}"));
                }
                if owned {
                    self.m.rename(grad, &format!("{name}_{}", old.count));
                }
                let sum = self.m.add_op(OpKind::Add {}, &[old.value, grad], &[&name], origin)?;
                Total { value: sum[0], count: old.count + 1, owned: true }
            }
        };
        self.totals[x.index()] = Some(total);
        Ok(())
    }

    /// Fails when a requested value has no gradient although the loss depends on it through floating point.
    fn explain_missing(&self, forward: &[OpId], grads: &[Option<ValueId>]) -> Result<(), NotDifferentiable> {
        if grads.iter().all(Option::is_some) {
            return Ok(());
        }
        let float = |v: &ValueId| self.m.values[*v].ty.dtype.is_float();
        let stops = |id: OpId| matches!(self.m.ops[id].kind(), Some(OpKind::StopGradient {}));
        let mut needed = vec![false; self.totals.len()];
        needed[self.loss.index()] = true;
        for &id in forward.iter().rev().filter(|&&id| !stops(id)) {
            let op = &self.m.ops[id];
            if op.results.iter().any(|v| needed[v.index()]) {
                op.operands.iter().filter(|v| float(v)).for_each(|v| needed[v.index()] = true);
            }
        }
        let lost = self.wrt.iter().zip(grads).find(|(v, g)| g.is_none() && needed[v.index()]);
        let Some((&w, _)) = lost else { return Ok(()) };

        // Follow floating point from `w` to the first op that passes no gradient on.
        let mut reached = vec![false; self.totals.len()];
        reached[w.index()] = true;
        for &id in forward.iter().filter(|&&id| !stops(id)) {
            let op = &self.m.ops[id];
            let needed_results = || op.results.iter().filter(|v| needed[v.index()]);
            if !op.operands.iter().any(|v| reached[v.index()]) {
                continue;
            }
            if needed_results().any(|v| self.totals[v.index()].is_some()) {
                let name = &self.m.values[w].name;
                let reason = format!(
                    "its derivative is zero, and the loss depends on `{name}` in no other way; freeze \
                     `{name}`"
                );
                return Err(NotDifferentiable::at_op(self.m, id, reason));
            }
            needed_results().for_each(|v| reached[v.index()] = true);
        }
        Ok(())
    }
}
