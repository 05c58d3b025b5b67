//! The standard's `Gradient`: derivatives of one tensor of the graph with respect to others.
//!
//! The node names tensors by attributes. Where its inputs are those very tensors, the graph is differentiated
//! as it stands; otherwise the nodes between them and `y` are imported again at the inputs' values, as the
//! standard says.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::attr::{F32, Scalar};
use memc_ir::autodiff::differentiate;
use memc_ir::{Def, Id, OpKind, ValueId};

use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};
use crate::model::{Attr, Node, PREVIEW};

/// `Gradient{xs, zs, y}(xs.., zs..) -> (dy/dx..)`.
pub(crate) fn gradient(n: &mut NodeCx<'_, '_>) -> Done {
    let xs = n.texts("xs")?.unwrap_or_default();
    let zs = n.texts("zs")?.unwrap_or_default();
    let y = n.text("y", "")?;
    if xs.is_empty() || y.is_empty() {
        return Err("attributes `xs` and `y` must name tensors".into());
    }
    let names: Vec<&str> = xs.iter().chain(zs).map(String::as_str).collect();
    let mut seen = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(**name)) {
        return Err(format!("`{twice}` is named twice").into());
    }
    if n.node.inputs.len() != names.len() || n.node.outputs.len() > xs.len() {
        return Err(format!(
            "it has {} inputs and {} outputs for {} tensors in `xs` and {} in `zs`",
            n.node.inputs.len(),
            n.node.outputs.len(),
            xs.len(),
            zs.len()
        )
        .into());
    }
    let elsewhere = names.iter().zip(&n.node.inputs).any(|(name, input)| name != input) && !shuffled(n.node);
    // Of what is computed from a constant nothing is left in the module, so that is computed again, too.
    let constant = |i: usize| n.literal(i).is_some_and(|l| l.ty.dtype.is_float());
    let done = if elsewhere || (0..names.len()).any(constant) {
        n.cx.swept.add(n.cx.model.graph.nodes.len() + n.cx.scope.len())?;
        let outside = n.cx.scope.clone();
        let done = evaluate(n, &names, y).and_then(|()| derivatives(n, xs, zs, y));
        n.cx.scope = outside;
        done
    } else {
        derivatives(n, xs, zs, y)
    };
    for (i, gradient) in done?.into_iter().enumerate() {
        if let Some(gradient) = gradient {
            n.bind(i, gradient);
        }
    }
    Ok(())
}

/// Whether a `Gradient` has just the inputs that it names, but in another order than the standard wants.
///
/// Taken by the letter it would evaluate the graph with its own tensors in each other's places; those who
/// write such nodes mean the tensors themselves.
pub(crate) fn shuffled(node: &Node) -> bool {
    let list = |name| match node.attrs.get(name) {
        Some(Attr::Texts(list)) => list.as_slice(),
        _ => &[],
    };
    let named: Vec<&String> = list("xs").iter().chain(list("zs")).collect();
    let given: Vec<&String> = node.inputs.iter().collect();
    let set = |list: &[&String]| list.iter().map(|s| s.to_string()).collect::<BTreeSet<String>>();
    named.len() == given.len() && named != given && set(&named) == set(&given)
}

/// Lets `names` stand for the node's inputs and imports again what lies between them and `y`.
fn evaluate(n: &mut NodeCx<'_, '_>, names: &[&str], y: &str) -> Done {
    let (nodes, order) = (&n.cx.model.graph.nodes, n.cx.order);
    let mut changed: BTreeSet<&str> = BTreeSet::new();
    let same = shuffled(n.node);
    let mut uses: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut given: Vec<(&str, ValueId)> = Vec::new();
    for (name, input) in names.iter().zip(&n.node.inputs) {
        let input = if same { name } else { input.as_str() };
        if *name != input || n.cx.bound(input)?.literal.is_some() {
            changed.insert(name);
        }
        let value = n.cx.value(input)?;
        *uses.entry(value).or_default() += 1;
        given.push((name, value));
    }
    let mut fixed: BTreeMap<&str, ValueId> = BTreeMap::new();
    for (name, value) in given {
        // One tensor in the place of two is two variables, which only views of their own tell apart.
        let shared = uses.get(&value) > Some(&1);
        let shape = n.ty(value).shape.clone();
        fixed.insert(name, if shared { n.temp(OpKind::Reshape { shape }, &[value])? } else { value });
    }
    for (name, &value) in &fixed {
        n.cx.bind(name, value);
    }
    let mut needed: BTreeSet<&str> = BTreeSet::from([y]);
    let mut between = vec![false; nodes.len()];
    for &i in order.iter().rev() {
        if nodes[i].outputs.iter().any(|o| needed.contains(o.as_str()) && !fixed.contains_key(o.as_str())) {
            between[i] = true;
            needed.extend(nodes[i].reads());
        }
    }
    for &i in order.iter().filter(|&&i| between[i]) {
        let node = &nodes[i];
        if !node.reads().any(|x| changed.contains(x)) {
            continue;
        }
        if (node.domain.as_str(), node.op.as_str()) == (PREVIEW, "Gradient") {
            return unsupported(format!(
                "`{y}` is computed by {}, whose own derivative is supported only at the tensors that `xs` \
                 and `zs` name",
                node.label()
            ));
        }
        n.cx.import(node).map_err(|e| Fault::Unsupported(format!("at the inputs' values, {e}")))?;
        for name in &node.outputs {
            match fixed.get(name.as_str()) {
                Some(&value) => n.cx.bind(name, value),
                None => drop(changed.insert(name)),
            }
        }
    }
    Ok(())
}

/// The derivatives of `y` with respect to each of `xs`, those of `zs` being fixed, for the outputs that are
/// present.
fn derivatives(
    n: &mut NodeCx<'_, '_>,
    xs: &[String],
    zs: &[String],
    y: &str,
) -> Result<Vec<Option<ValueId>>, Fault> {
    let loss = n.cx.value(y)?;
    let ty = n.ty(loss).clone();
    if !ty.dtype.is_float() || ty.numel() != 1 {
        return unsupported(format!(
            "`y` must be one float, but `{y}` is {ty}; reduce it to one in the graph"
        ));
    }
    let values: Vec<ValueId> = xs.iter().chain(zs).map(|x| n.cx.value(x)).collect::<Result<_, _>>()?;
    independent(n, &values, xs, zs)?;
    let wanted: Vec<usize> = (0..xs.len()).filter(|&i| n.output(i).is_some()).collect();
    let wrt: Vec<ValueId> = wanted.iter().map(|&i| values[i]).collect();
    n.cx.swept.add(n.cx.module.order.len())?;
    let before = n.cx.module.values.len();
    let found = differentiate(&mut n.cx.module, loss, &wrt).map_err(|e| Fault::Unsupported(e.to_string()))?;
    let mut out = vec![None; xs.len()];
    let mut renamed: BTreeSet<ValueId> = BTreeSet::new();
    for (&i, gradient) in wanted.iter().zip(found) {
        let name = n.output(i).unwrap_or_default();
        out[i] = Some(match gradient {
            Some(gradient) => {
                let own =
                    gradient.index() >= before && matches!(n.cx.module.values[gradient].def, Def::Op(..));
                if own && renamed.insert(gradient) {
                    n.cx.module.rename(gradient, name);
                }
                gradient
            }
            None => {
                let ty = n.ty(values[i]).clone();
                let kind = OpKind::Fill { dtype: ty.dtype, shape: ty.shape, value: Scalar::Float(F32(0.0)) };
                n.cx.emit(kind, &[], name, &n.node.name)?
            }
        });
    }
    Ok(out)
}

/// Refuses variables that are the same tensor, or that are computed from one that is differentiated against.
fn independent(n: &NodeCx<'_, '_>, values: &[ValueId], xs: &[String], zs: &[String]) -> Done {
    let m = &n.cx.module;
    let name = |i: usize| xs.iter().chain(zs).nth(i).map_or("", String::as_str);
    let mut moving = vec![false; m.values.len()];
    for (i, v) in values.iter().enumerate() {
        if moving[v.index()] {
            return unsupported(format!("`{}` is the same tensor as another of `xs`", name(i)));
        }
        moving[v.index()] = i < xs.len();
    }
    let mut computed = vec![false; m.values.len()];
    for &op in &m.order {
        let op = &m.ops[op];
        if op.operands.iter().any(|v| moving[v.index()]) {
            for v in &op.results {
                moving[v.index()] = true;
                computed[v.index()] = m.values[*v].ty.dtype.is_float();
            }
        }
    }
    match values.iter().position(|v| computed[v.index()]) {
        Some(i) => {
            unsupported(format!("`{}` is computed from another of `xs`, so it is no variable", name(i)))
        }
        None => Ok(()),
    }
}
