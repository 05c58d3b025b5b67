//! One shape for element-wise ops that only views separate.
//!
//! Exporters reshape to a matrix of rows of tokens before a product and back behind it. So an activation has
//! another shape than the product before it, and dropout another one than the bias it follows. The elements
//! and their order are the same. Element-wise ops that are connected by their operands and by reshapes are
//! computed in one of their shapes: that of a normalisation if there is one, else that of a product. Other
//! readers get a view of the result. Arithmetic stays the same, and nothing is moved.

use std::collections::BTreeMap;

use memc_ir::ops::fused::{Along, along, is_head, is_step};
use memc_ir::ops::fused_norm::is_norm;
use memc_ir::{Code, Def, Id, Module, Op, OpId, OpKind, ValueId};
use petgraph::unionfind::UnionFind;

use crate::Contradiction;

type Shape = Vec<u64>;

/// Gives connected ops one shape.
pub(super) fn align(m: &mut Module) -> Result<(), Contradiction> {
    let targets = targets(m);
    if targets.is_empty() { Ok(()) } else { Aligned::new(m).run(&targets) }
}

/// Takes views that nothing reads out of the order.
pub(super) fn drop_views(m: &mut Module) {
    let mut used = vec![false; m.values.len()];
    m.roots().for_each(|v| used[v.index()] = true);
    let mut order = std::mem::take(&mut m.order);
    order.reverse();
    order.retain(|&op| {
        let op = &m.ops[op];
        let is_view = matches!(op.kind(), Some(OpKind::Reshape { .. }));
        let keep = !is_view || op.results.iter().any(|v| used[v.index()]);
        if keep {
            op.operands.iter().for_each(|v| used[v.index()] = true);
        }
        keep
    });
    order.reverse();
    m.order = order;
}

/// Shape in which an operand of shape `own` must be read once the axes `from` become the axes `to` of the
/// same elements; `None` where there is none.
fn mapped(own: &[u64], from: &[u64], to: &[u64]) -> Option<Shape> {
    if own.iter().all(|&d| d == 1) {
        return Some(if own.len() <= to.len() { own.to_vec() } else { vec![1; to.len()] });
    }
    let padded: Shape =
        std::iter::repeat_n(1, from.len().checked_sub(own.len())?).chain(own.iter().copied()).collect();
    let (mut i, mut j, mut shape) = (0, 0, Shape::new());
    while i < from.len() || j < to.len() {
        // The fewest next axes of both that have as many elements.
        let (a, c, mut p, mut q) = (i, j, 1u64, 1u64);
        while (i, j) == (a, c) || p != q {
            if i < from.len() && (p <= q || j == to.len()) {
                p = p.checked_mul(from[i])?;
                i += 1;
            } else {
                q = q.checked_mul(*to.get(j)?)?;
                j += 1;
            }
        }
        let (axes, before, after) = (&padded[a..i], &from[a..i], &to[c..j]);
        if before == after {
            shape.extend(axes);
        } else if axes.iter().all(|&d| d == 1) {
            shape.extend(after.iter().map(|_| 1));
        } else if axes == before {
            shape.extend(after);
        } else {
            return None;
        }
    }
    Some(shape)
}

/// Element-wise ops that are connected, and the shapes that their elements have.
#[derive(Default)]
struct Component {
    ops: Vec<OpId>,
    /// For each shape, the numbers of products and of element-wise ops that have it, in the order of the
    /// module.
    shapes: Vec<(Shape, usize, usize)>,
    /// Shapes of the ops that must keep theirs.
    fixed: Vec<Shape>,
}

impl Component {
    fn count(&mut self, shape: &[u64], [products, ops]: [usize; 2]) {
        match self.shapes.iter_mut().find(|(known, ..)| known == shape) {
            Some((_, p, o)) => (*p, *o) = (*p + products, *o + ops),
            None => self.shapes.push((shape.to_vec(), products, ops)),
        }
    }

    /// The shape for all, where not all have it.
    fn target(&self, m: &Module) -> Option<&Shape> {
        let mut shapes: Vec<&(Shape, usize, usize)> = self.shapes.iter().collect();
        shapes.sort_by_key(|&&(_, products, ops)| std::cmp::Reverse((products, ops)));
        let fits = |to: &Shape| {
            let one = |&op: &OpId| {
                let from = &m.values[m.ops[op].results[0]].ty.shape;
                let each = |(_, v): (_, &ValueId)| mapped(&m.values[*v].ty.shape, from, to).is_some();
                spread(m, op).all(each)
            };
            self.fixed.iter().all(|own| own == to) && self.ops.iter().all(one)
        };
        let differs = shapes.len() > 1 && shapes.iter().any(|(_, _, ops)| *ops > 0);
        shapes.into_iter().map(|(shape, ..)| shape).find(|to| differs && fits(to))
    }
}

/// The operands that an element-wise op broadcasts, with their indices.
fn spread(m: &Module, op: OpId) -> impl Iterator<Item = (usize, &ValueId)> {
    let operands = m.ops[op].operands.iter().enumerate();
    operands.filter(move |&(k, _)| m.ops[op].kind().is_some_and(|kind| along(kind, k) == Along::Space))
}

/// For each element-wise op that gets another shape, that shape.
fn targets(m: &Module) -> BTreeMap<OpId, Shape> {
    let mut sets = UnionFind::<usize>::new(m.values.len());
    for &op in &m.order {
        let Some(kind) = m.ops[op].kind() else { continue };
        let [y] = m.ops[op].results.as_slice() else { continue };
        if matches!(kind, OpKind::Reshape { .. }) {
            sets.union(m.ops[op].operands[0].index(), y.index());
        } else if is_step(kind) {
            let same = |v: &ValueId| m.values[*v].ty.shape == m.values[*y].ty.shape;
            for (_, v) in spread(m, op).filter(|(_, v)| same(v)) {
                sets.union(v.index(), y.index());
            }
        }
    }
    let mut is_root = vec![false; m.values.len()];
    m.roots().for_each(|v| is_root[v.index()] = true);
    let mut components: BTreeMap<usize, Component> = BTreeMap::new();
    for &op in &m.order {
        // Steps around a normalisation become steps of it.
        let Op { operands, results, .. } = &m.ops[op];
        if m.ops[op].kind().is_some_and(is_norm) {
            for v in [operands[0], results[0]] {
                let component = components.entry(sets.find(v.index())).or_default();
                component.count(&m.values[v].ty.shape, [0, 0]);
                component.fixed.push(m.values[v].ty.shape.clone());
            }
        }
        let (Some(kind), [y]) = (m.ops[op].kind(), results.as_slice()) else { continue };
        let (set, ty) = (sets.find(y.index()), &m.values[*y].ty);
        if ty.numel() < 2 {
            continue;
        }
        if is_head(kind) {
            components.entry(set).or_default().count(&ty.shape, [1, 0]);
        } else if is_step(kind) {
            let component = components.entry(set).or_default();
            component.count(&ty.shape, [0, 1]);
            component.ops.push(op);
            // Channels are axis 1, and others know the shape of a root.
            if is_root[y.index()] || matches!(kind, OpKind::BatchNorm {}) {
                component.fixed.push(ty.shape.clone());
            }
        }
    }
    let mut targets = BTreeMap::new();
    for component in components.values() {
        let Some(to) = component.target(m) else { continue };
        let moved = component.ops.iter().filter(|&&op| m.values[m.ops[op].results[0]].ty.shape != *to);
        targets.extend(moved.map(|&op| (op, to.clone())));
    }
    targets
}

/// A module in whose new order ops have other shapes.
struct Aligned<'m> {
    m: &'m mut Module,
    order: Vec<OpId>,
    /// The elements of a value in another shape.
    views: BTreeMap<(ValueId, Shape), ValueId>,
    /// The view ops, by the value that they show. They stand right behind it, where they do not prevent
    /// joining.
    shown: BTreeMap<ValueId, Vec<OpId>>,
    /// Value to read in place of a view that has the value's own shape.
    instead: BTreeMap<ValueId, ValueId>,
}

impl Aligned<'_> {
    fn new(m: &mut Module) -> Aligned<'_> {
        Aligned {
            m,
            order: Vec::new(),
            views: BTreeMap::new(),
            shown: BTreeMap::new(),
            instead: BTreeMap::new(),
        }
    }

    fn run(mut self, targets: &BTreeMap<OpId, Shape>) -> Result<(), Contradiction> {
        for op in std::mem::take(&mut self.m.order) {
            for v in &mut self.m.ops[op].operands {
                *v = self.instead.get(v).copied().unwrap_or(*v);
            }
            match targets.get(&op) {
                Some(to) => self.reshaped(op, to)?,
                None => self.order.push(op),
            }
            let (Some(OpKind::Reshape { .. }), [y]) = (self.m.ops[op].kind(), &*self.m.ops[op].results)
            else {
                continue;
            };
            let (y, shape) = (*y, self.m.values[*y].ty.shape.clone());
            let source = self.source(y);
            if self.m.values[source].ty.shape == shape {
                self.instead.insert(y, source);
            }
        }
        let is_given = |v: &ValueId| self.m.def_op(*v).is_none();
        let given: Vec<ValueId> = self.shown.keys().copied().filter(is_given).collect();
        let mut order: Vec<OpId> = given.iter().filter_map(|v| self.shown.remove(v)).flatten().collect();
        for op in std::mem::take(&mut self.order) {
            order.push(op);
            let results = &self.m.ops[op].results;
            order.extend(results.iter().filter_map(|v| self.shown.remove(v)).flatten());
        }
        self.order = order;
        self.m.order = self.order;
        drop_views(self.m);
        Ok(())
    }

    /// The value whose elements reshapes show as `v`.
    fn source(&self, mut v: ValueId) -> ValueId {
        while let Some(op) = self.m.def_op(v)
            && matches!(self.m.ops[op].kind(), Some(OpKind::Reshape { .. }))
        {
            v = self.m.ops[op].operands[0];
        }
        v
    }

    /// The elements of a value in a shape.
    fn view(&mut self, v: ValueId, shape: &[u64], origin: &str) -> Result<ValueId, Contradiction> {
        let source = self.source(v);
        if self.m.values[source].ty.shape == shape {
            return Ok(source);
        }
        if let Some(&known) = self.views.get(&(source, shape.to_vec())) {
            return Ok(known);
        }
        let name = self.m.values[v].name.clone();
        let op = self.m.new_op(OpKind::Reshape { shape: shape.to_vec() }, &[source], &[&name], origin)?;
        let view = self.m.ops[op].results[0];
        self.shown.entry(source).or_default().push(op);
        self.views.insert((source, shape.to_vec()), view);
        Ok(view)
    }

    /// The op in the shape `to`; what it defined becomes a view.
    fn reshaped(&mut self, op: OpId, to: &[u64]) -> Result<(), Contradiction> {
        let (old, y) = (self.m.ops[op].clone(), self.m.ops[op].results[0]);
        let from = self.m.values[y].ty.shape.clone();
        let Some(kind) = old.kind() else { return Ok(()) };
        let mut operands = old.operands.clone();
        for (k, v) in operands.iter_mut().enumerate() {
            let own = &self.m.values[*v].ty.shape;
            if along(kind, k) == Along::Space {
                let shape = mapped(own, &from, to).ok_or("an operand has no such shape")?;
                *v = self.view(*v, &shape, &old.origin)?;
            }
        }
        let kind = match kind {
            OpKind::RandomMask { ratio, seed, stream, .. } => {
                OpKind::RandomMask { ratio: *ratio, seed: *seed, stream: *stream, shape: to.to_vec() }
            }
            kind => kind.clone(),
        };
        let name = self.m.values[y].name.clone();
        let new = self.m.new_op(kind, &operands, &[&name], &old.origin)?;
        let made = self.m.ops[new].results[0];
        self.m.swap_names(made, y);
        let code = Code::Compute(OpKind::Reshape { shape: from });
        let view = self.m.push_op(code, vec![made], vec![y], &old.origin);
        self.m.values[y].def = Def::Op(view, 0);
        self.order.extend([new, view]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::mapped;

    #[test]
    fn operands_follow_the_axes_that_they_have() {
        let to = |own: &[u64], from: &[u64], to: &[u64]| mapped(own, from, to);
        assert_eq!(to(&[4, 6, 8], &[4, 6, 8], &[24, 8]), Some(vec![24, 8]));
        assert_eq!(to(&[8], &[4, 6, 8], &[24, 8]), Some(vec![1, 8]));
        assert_eq!(to(&[4, 6, 1], &[4, 6, 8], &[24, 8]), Some(vec![24, 1]));
        assert_eq!(to(&[24, 1], &[24, 8], &[4, 6, 8]), Some(vec![4, 6, 1]));
        assert_eq!(to(&[], &[4, 6], &[24]), Some(vec![]));
        assert_eq!(to(&[1, 1, 1], &[4, 6, 1], &[24]), Some(vec![1]));
        assert_eq!(to(&[4, 1, 6], &[4, 1, 6], &[1, 4, 6, 1]), Some(vec![1, 4, 6, 1]));
        // Part of the axes that become one, and axes that are cut elsewhere.
        assert_eq!(to(&[6, 8], &[4, 6, 8], &[24, 8]), None);
        assert_eq!(to(&[4, 1, 8], &[4, 6, 8], &[24, 8]), None);
        assert_eq!(to(&[8], &[4, 6, 8], &[192]), None);
        assert_eq!(to(&[6, 1], &[4, 6], &[8, 3]), None);
    }
}
