//! The alternatives in numbers, which the search reads instead of the module and the e-graph.

use std::collections::{BTreeMap, BTreeSet};

use egg::{Id as ClassId, Language};
use memc_ir::{Class, Def, Id, Module, OpId, OpKind, TensorType, ValueId, aligned};

use super::lang::{Graph, Node, Types};
use super::rule::{RuleDef, Sources, saturate};
use super::sides::Sides;
use crate::device::DeviceProfile;

/// Source of a class's value in the backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Available: an input, a state, a constant.
    Free,
    /// From forward values alone: it can be saved, or recomputed from available values.
    Forward,
    /// It depends on the backward pass.
    Backward,
}

/// One way to compute a class.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// The op.
    pub(super) kind: OpKind,
    /// Index of the result that the class is.
    pub(super) result: u32,
    /// The classes of its operands.
    pub(super) operands: Vec<usize>,
    /// The rule that offered it; `None` for an op of the module.
    pub(super) rule: Option<usize>,
    /// Modelled time in ns.
    pub(super) time_ns: u64,
    /// Whether the op only shows its operand's bytes.
    pub(super) view: bool,
    /// Bytes that the op needs at once, when a result takes over an operand's where the row allows it.
    pub(super) working_set: u64,
}

/// Equal values.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) side: Side,
    /// Bytes of the value; 0 for a view, which has none of its own.
    pub(super) bytes: u64,
    /// The value that stands for the class: forward or free if there is one, else of the first op that
    /// computes it.
    pub(super) value: Option<ValueId>,
    /// The backward op that computes it and its place among the backward ops.
    pub(super) op: Option<(OpId, u32)>,
    /// The ways to compute it that its side allows, in a fixed order.
    pub(super) ways: Vec<Way>,
    /// The way that the module takes.
    pub(super) given: Option<usize>,
    /// The way to compute it in the forward pass, where the module does not.
    pub(super) early: Option<usize>,
    /// The op that fills the class, where it is a scalar constant that the module lacks.
    pub(super) scalar: Option<OpKind>,
    /// A place in a sequence in which the module's ops come after their operands.
    pub(super) rank: u64,
}

impl Item {
    /// Whether the value can be kept from the forward pass.
    pub(super) fn can_save(&self) -> bool {
        self.side == Side::Forward && !self.is_view() && (self.value.is_some() || self.early.is_some())
    }

    /// Whether the class is a view of another.
    pub(super) fn is_view(&self) -> bool {
        self.given.and_then(|g| self.ways.get(g)).is_some_and(|w| w.view)
    }
}

/// All classes, and those that the step must have computed when it ends.
pub(super) struct Space {
    pub(super) items: Vec<Item>,
    /// Class of every value of the module.
    pub(super) of: Vec<usize>,
    /// Classes that must be computed by the end of the backward pass.
    pub(super) roots: Vec<usize>,
    /// Number of backward ops.
    pub(super) backward_ops: u32,
}

/// A scalar that becomes a constant.
pub(super) fn is_scalar(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Fill { shape, .. } if shape.is_empty())
}

impl Space {
    /// The value that stands for what `v` holds.
    pub(super) fn value(&self, v: ValueId) -> Option<ValueId> {
        self.items.get(*self.of.get(v.index())?)?.value
    }

    /// The space of a module under `rules`.
    pub(super) fn new(
        m: &Module,
        sides: &Sides,
        rules: &'static [RuleDef],
        profile: &DeviceProfile,
    ) -> Space {
        let mut graph = Graph::new(Types::default());
        let mut class: Vec<Option<ClassId>> = vec![None; m.values.len()];
        for (v, value) in m.values.iter().filter(|(_, x)| !matches!(x.def, Def::Op(..))) {
            graph.analysis.leaves.insert(v, value.ty.clone());
            class[v.index()] = Some(graph.add(Node::Leaf(v)));
        }
        for &id in &m.order {
            let op = &m.ops[id];
            let (Some(kind), Some(children)) =
                (op.kind(), op.operands.iter().map(|v| class[v.index()]).collect::<Option<Vec<_>>>())
            else {
                continue;
            };
            for (j, &v) in op.results.iter().enumerate() {
                class[v.index()] = Some(graph.add(Node::Op(kind.clone(), j as u32, children.clone())));
            }
        }
        let sources = saturate(&mut graph, rules);
        Builder { m, sides, profile, graph, class, sources }.space()
    }
}

struct Builder<'a> {
    m: &'a Module,
    sides: &'a Sides,
    profile: &'a DeviceProfile,
    graph: Graph,
    class: Vec<Option<ClassId>>,
    sources: Sources,
}

impl Builder<'_> {
    fn space(self) -> Space {
        let m = self.m;
        let mut ids: Vec<ClassId> = self.graph.classes().map(|c| c.id).collect();
        ids.sort_unstable();
        let index: BTreeMap<ClassId, usize> = ids.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let find = |id: ClassId| index.get(&self.graph.find(id)).copied().unwrap_or(usize::MAX);
        let of: Vec<usize> = self.class.iter().map(|c| c.map_or(usize::MAX, find)).collect();
        let mut items: Vec<Item> = ids.iter().map(|&id| blank(&self.graph[id].data)).collect();
        self.values(&of, &mut items);
        let mut given: BTreeSet<Node> = BTreeSet::new();
        for (v, value) in m.values.iter() {
            if let (Def::Op(op, j), Some(_)) = (value.def, self.class[v.index()])
                && let Some(kind) = m.ops[op].kind()
            {
                let children = m.ops[op].operands.iter().filter_map(|x| self.class[x.index()]);
                let children = children.map(|c| self.graph.find(c)).collect();
                given.insert(Node::Op(kind.clone(), j, children));
            }
        }
        for (i, &id) in ids.iter().enumerate() {
            let mut nodes: Vec<Node> =
                self.graph[id].nodes.iter().map(|n| n.clone().map_children(|c| self.graph.find(c))).collect();
            nodes.sort_unstable();
            nodes.dedup();
            for node in nodes {
                let is_given = given.contains(&node);
                let rule = if is_given { None } else { self.sources.get(&node).copied() };
                let Node::Op(kind, result, children) = node else { continue };
                if is_scalar(&kind) && items[i].side == Side::Backward && items[i].op.is_none() {
                    (items[i].side, items[i].scalar) = (Side::Free, Some(kind.clone()));
                }
                if is_given {
                    items[i].given = Some(items[i].ways.len());
                }
                let types: Vec<&TensorType> = children.iter().map(|&c| &self.graph[c].data).collect();
                let view = kind.def().class == Class::View;
                let (time_ns, working_set) = if view { (0, 0) } else { self.costs(&kind, &children, &types) };
                let operands = children.iter().map(|&c| find(c)).collect();
                items[i].ways.push(Way { kind, result, operands, rule, time_ns, view, working_set });
            }
        }
        // Alternatives must not raise the smallest budget that the step can run in.
        let limit =
            items.iter().filter_map(|x| x.ways.get(x.given?)).map(|w| w.working_set).max().unwrap_or(0);
        for item in &mut items {
            let fits = |w: &Way| w.rule.is_none() || w.working_set <= limit;
            item.given = item.given.map(|g| item.ways[..g].iter().filter(|w| fits(w)).count());
            item.ways.retain(fits);
        }
        new_classes(&mut items);
        for i in 0..items.len() {
            let keep: Vec<bool> = items[i].ways.iter().map(|w| allowed(&items, i, w)).collect();
            let before = |g: usize| keep[..g].iter().filter(|&&k| k).count();
            let item = &mut items[i];
            item.given = item.given.filter(|&g| keep[g]).map(before);
            let mut k = keep.iter();
            item.ways.retain(|_| k.next().copied().unwrap_or(false));
            if item.is_view() {
                item.bytes = 0;
            }
        }
        limit_chains(&mut items);
        for i in 0..items.len() {
            let there = |c: usize| items[c].side == Side::Free || items[c].value.is_some();
            let first = |w: &Way| w.operands.iter().all(|&c| there(c));
            if items[i].side == Side::Forward && items[i].value.is_none() {
                let ways = items[i].ways.iter().enumerate().filter(|(_, w)| first(w));
                items[i].early = ways.min_by_key(|(_, w)| w.time_ns).map(|(n, _)| n);
            }
        }
        let backward = |v: &ValueId| m.def_op(*v).is_some_and(|d| self.sides.is_backward(d));
        let roots: BTreeSet<usize> =
            m.roots().filter(backward).map(|v| of[v.index()]).filter(|&c| c < items.len()).collect();
        let backward_ops = m.order.iter().filter(|&&op| self.sides.is_backward(op)).count() as u32;
        Space { items, of, roots: roots.into_iter().collect(), backward_ops }
    }

    /// Sides, values, ops and ranks of the classes that the module has.
    fn values(&self, of: &[usize], items: &mut [Item]) {
        let m = self.m;
        for (v, _) in m.values.iter().filter(|(_, x)| !matches!(x.def, Def::Op(..))) {
            if let Some(item) = items.get_mut(of[v.index()]) {
                (item.side, item.rank) = (Side::Free, 0);
                item.value.get_or_insert(v);
            }
        }
        let mut place = 0;
        for (position, &id) in m.order.iter().enumerate() {
            let backward = self.sides.is_backward(id);
            for &v in &m.ops[id].results {
                let Some(item) = items.get_mut(of[v.index()]) else { continue };
                if item.rank == u64::MAX {
                    item.rank = 2 * position as u64 + 2;
                }
                if !backward && item.side == Side::Backward {
                    // A forward value stands for the class even where a backward op comes first.
                    (item.side, item.value, item.op) = (Side::Forward, Some(v), None);
                } else if backward && item.value.is_none() {
                    (item.value, item.op) = (Some(v), Some((id, place)));
                }
            }
            place += u32::from(backward);
        }
    }

    /// Time and working set of an op.
    fn costs(&self, kind: &OpKind, classes: &[ClassId], operands: &[&TensorType]) -> (u64, u64) {
        let results = kind.infer(operands).unwrap_or_default();
        let results: Vec<&TensorType> = results.iter().collect();
        let first = |i: usize| !classes[..i].contains(&classes[i]);
        let reads = (0..operands.len()).filter(|&i| first(i)).map(|i| aligned(operands[i].bytes()));
        let writes = results.iter().map(|t| aligned(t.bytes()));
        let pairs = kind.inplace_pairs(operands, &results);
        let shared = pairs.first().map_or(0, |&(_, j)| aligned(results[j].bytes()));
        let workspace = self.profile.workspace(kind, operands, &results);
        let bytes = reads.chain(writes).fold(aligned(workspace), u64::saturating_add);
        (self.profile.op_ns(kind, operands, &results), bytes - shared.min(bytes))
    }
}

/// Whether way `w` may compute class `i` in the backward pass.
fn allowed(items: &[Item], i: usize, w: &Way) -> bool {
    match items[i].side {
        Side::Free => false,
        Side::Forward => {
            let forward = |c: &usize| items[*c].side != Side::Backward && *c != i;
            // A contraction is never recomputed here: the planner, which knows the budget, may.
            !w.kind.is_contraction() && w.operands.iter().all(forward)
        }
        // An op at a place of the backward pass reads values computed before it.
        Side::Backward => w.operands.iter().all(|&c| items[c].rank < items[i].rank),
    }
}

fn blank(ty: &TensorType) -> Item {
    Item {
        side: Side::Backward,
        bytes: aligned(ty.bytes()),
        value: None,
        op: None,
        ways: Vec::new(),
        given: None,
        early: None,
        scalar: None,
        rank: u64::MAX,
    }
}

/// Longest chain of forward ops that can be recomputed in a row.
const CHAIN: u32 = 64;

/// Restricts a value of the forward pass to being saved, wherever ops before it make up a chain of [`CHAIN`].
///
/// A longer one costs more than keeping a value on the way, and the search would follow it at every step.
fn limit_chains(items: &mut [Item]) {
    let forward = |x: &Item| x.side == Side::Forward && !x.ways.is_empty();
    let mut classes: Vec<usize> = (0..items.len()).filter(|&i| forward(&items[i])).collect();
    classes.sort_by_key(|&i| (items[i].rank, i));
    let mut chain = vec![0u32; items.len()];
    for i in classes {
        let item = &items[i];
        let before = item.ways.iter().flat_map(|w| &w.operands).map(|&c| chain[c]).max().unwrap_or(0);
        chain[i] = before + u32::from(!item.is_view());
        if chain[i] >= CHAIN && item.can_save() && item.value.is_some() {
            (items[i].ways, items[i].given, chain[i]) = (Vec::new(), None, 0);
        }
    }
}

/// Sides and ranks of classes that only rules have.
fn new_classes(items: &mut [Item]) {
    let new: Vec<usize> = (0..items.len()).filter(|&i| items[i].value.is_none()).collect();
    loop {
        let mut changed = false;
        for &i in &new {
            let ranks =
                items[i].ways.iter().map(|w| w.operands.iter().map(|&c| items[c].rank).max().unwrap_or(0));
            let rank = ranks.min().unwrap_or(0);
            if rank < u64::MAX && items[i].rank == u64::MAX {
                items[i].rank = rank + 1;
                changed = true;
            }
            if items[i].side != Side::Backward {
                continue;
            }
            let here = |w: &&Way| w.operands.iter().all(|&c| items[c].side != Side::Backward);
            if items[i].ways.iter().any(|w| here(&w)) {
                items[i].side = Side::Forward;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::super::rules::RULES;
    use super::*;

    #[test]
    fn a_long_chain_is_recomputed_in_parts() {
        let mut text = "module @m graph\n%v0 = input : f32[16]\n".to_string();
        (1..=300).for_each(|i| writeln!(text, "%v{i} = tanh %v{} : f32[16]", i - 1).unwrap());
        text.push_str("%loss = sum_squares %v300 : f32[]\n%d = mul %v300, %v150 : f32[16]\n");
        text.push_str("yield loss %loss as \"loss\"\nyield gradient %d as \"g\"\n");
        let m = memc_ir::parse(&text).unwrap();
        let space = Space::new(&m, &Sides::new(&m), RULES, DeviceProfile::named("toy").unwrap());
        let mut chain = vec![0; space.items.len()];
        let mut classes: Vec<usize> =
            (0..chain.len()).filter(|&c| space.items[c].side == Side::Forward).collect();
        classes.sort_by_key(|&c| space.items[c].rank);
        for c in classes {
            let operands = space.items[c].ways.iter().flat_map(|w| &w.operands);
            chain[c] = operands.map(|&o| chain[o] + 1).max().unwrap_or(0);
        }
        let longest = chain.iter().max().copied();
        assert!(longest.is_some_and(|n| (CHAIN / 2..=CHAIN).contains(&n)), "{longest:?}");
    }
}
