//! The module under construction and the meaning of ONNX names at the current node.
//!
//! Constants stay [`Literal`]s until an op needs them as an operand, so that shape arithmetic leaves nothing
//! in the module.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memc_ir::{DType, Feed, Module, OpKind, TensorType, ValueId, counted};

use crate::ImportOptions;
use crate::constants::Allowance;
use crate::error::{Fault, ImportError, some_of};
use crate::external::Folder;
use crate::graph::declared_types;
use crate::model::{Node, Tensor};
use crate::node::NodeCx;
use crate::ops::gradient::Swept;
use crate::registry;
use crate::source::Source;
use crate::tensor::Literal;

/// Larger constants with equal elements become a `fill` op, which costs no memory between steps.
const FILL_ABOVE: u64 = 16;

/// Most time steps, over all directions and layers, that recurrent layers of one import may unroll.
pub(crate) const MAX_UNROLLED: u64 = 100_000;

/// Meaning of an ONNX name. At least one field is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// A value of the module.
    pub value: Option<ValueId>,
    /// The content, when it is a constant.
    pub literal: Option<Literal>,
    /// The tensors of a sequence.
    pub sequence: Option<Arc<[ValueId]>>,
}

impl From<ValueId> for Bound {
    fn from(value: ValueId) -> Self {
        Bound { value: Some(value), ..Bound::default() }
    }
}

impl From<Literal> for Bound {
    fn from(literal: Literal) -> Self {
        Bound { literal: Some(literal), ..Bound::default() }
    }
}

/// The contents of stored tensors, read from their files when external.
pub(crate) fn resolve(
    tensors: Vec<Tensor>,
    folder: Option<&Folder>,
) -> Result<BTreeMap<String, Literal>, ImportError> {
    let mut out = BTreeMap::new();
    for t in tensors {
        let name = t.name.clone();
        out.insert(name.clone(), literal(t, folder).map_err(|e| e.damage(&format!("initializer `{name}`")))?);
    }
    Ok(out)
}

/// A stored tensor's content.
pub(crate) fn literal(tensor: Tensor, folder: Option<&Folder>) -> Result<Literal, Fault> {
    Literal::from_tensor(tensor, |entries, want| match folder {
        Some(folder) => folder.read(entries, want),
        None => Err("its data is in another file, and a model from memory has no folder".into()),
    })
}

/// A module under construction.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The module.
    pub module: Module,
    /// Meaning of every name at the current node. Nodes that update a tensor in place change its entry.
    pub scope: BTreeMap<String, Bound>,
    /// Declared types of values, for the few operators that do not determine theirs.
    pub declared: BTreeMap<&'a str, TensorType>,
    /// Names that some node or graph output reads.
    pub used: BTreeSet<&'a str>,
    /// Tensors whose declared shape is not the one they have.
    contradicted: BTreeSet<String>,
    /// Room for constants that nodes compute.
    pub folded: Allowance,
    /// Seed of random nodes without one of their own.
    pub seed: i64,
    /// Random nodes so far.
    pub streams: u32,
    /// The number of the step, once something asked for it.
    step: Option<ValueId>,
    /// Time steps that recurrent layers may still unroll.
    pub unrolled: u64,
    /// Work of the `Gradient` nodes so far.
    pub swept: Swept,
    /// The graph's nodes.
    pub nodes: &'a [Node],
    /// Nodes in an order in which operands come first.
    pub order: &'a [usize],
    opsets: &'a BTreeMap<String, i64>,
    folder: Option<&'a Folder>,
}

impl<'a> Context<'a> {
    /// A context for `source` with an empty module and scope, for a step of as many passes over the
    /// graph as `options` has micro-steps.
    pub(crate) fn new(source: &'a Source<'_>, options: &ImportOptions) -> Self {
        let graph = &source.model.graph;
        let name = if graph.name.is_empty() { "model" } else { &graph.name };
        let mut declared = declared_types(&graph.value_info, source.dims);
        declared.extend(declared_types(&graph.outputs, source.dims));
        let reads = graph.nodes.iter().flat_map(Node::reads);
        let reads = reads.chain(graph.outputs.iter().map(|o| o.name.as_str()));
        Self {
            module: Module::new(name),
            scope: BTreeMap::new(),
            declared,
            used: reads.collect(),
            contradicted: BTreeSet::new(),
            folded: Allowance::new(source.file_bytes, options.accumulate),
            seed: options.seed,
            streams: 0,
            step: None,
            unrolled: MAX_UNROLLED,
            swept: Swept::default(),
            nodes: &graph.nodes,
            order: &source.order,
            opsets: &source.model.opsets,
            folder: source.folder,
        }
    }

    /// Binds a name.
    pub(crate) fn bind(&mut self, name: &str, to: impl Into<Bound>) {
        self.scope.insert(name.to_string(), to.into());
    }

    /// The number of the step, an integer input that is added when the first random node asks for it.
    pub(crate) fn step(&mut self) -> ValueId {
        if let Some(step) = self.step {
            return step;
        }
        let counts = |x: &&memc_ir::Input| {
            matches!(x.feed, Feed::Step) && self.module.values[x.value].ty.dtype.is_int()
        };
        let found = self.module.inputs.values().find(counts).map(|x| x.value);
        let step = found.unwrap_or_else(|| {
            self.module.add_input("random.step", TensorType::scalar(DType::I64), Feed::Step)
        });
        self.step = Some(step);
        step
    }

    /// Imports one node.
    pub(crate) fn import(&mut self, node: &'a Node) -> Result<(), ImportError> {
        let version = opset(self.opsets, &node.domain);
        let Some(handler) = registry::find(&node.domain, &node.op, version) else {
            let why = registry::refusal(&node.domain, &node.op, version);
            return Err(ImportError::Unsupported(format!("{}: {why}", node.label())));
        };
        let domain = if node.domain.is_empty() { "ai.onnx" } else { &node.domain };
        let at = |m: String| format!("{}, {domain} opset {version}: {m}", node.label());
        handler(&mut NodeCx { cx: self, node, version }).map_err(|fault| match fault {
            Fault::Bad(m) => {
                let given = node.inputs.iter().filter(|x| !x.is_empty());
                let types = given.filter_map(|x| Some(format!("`{x}` {}", self.type_of(x).ok()?)));
                let types: Vec<String> = types.collect();
                let types = if types.is_empty() {
                    String::new()
                } else {
                    format!("; its inputs are {}", some_of(&types))
                };
                ImportError::BadModel(at(m) + &types)
            }
            Fault::Unsupported(m) => ImportError::Unsupported(at(m)),
        })?;
        for name in &node.outputs {
            self.compare(name);
        }
        Ok(())
    }

    /// Notes where the file declares another shape for `name` than it has.
    fn compare(&mut self, name: &str) {
        let Some(declared) = self.declared.get(name) else { return };
        let Ok(found) = self.type_of(name) else { return };
        if found.shape != declared.shape {
            let text = format!("`{name}` is declared as {declared} but is {found}");
            self.contradicted.insert(text);
        }
    }

    /// Warning for the user about the nodes that were imported.
    pub(crate) fn warnings(&self) -> Option<String> {
        let list: Vec<&String> = self.contradicted.iter().collect();
        (!list.is_empty()).then(|| {
            format!("shapes of {} are not as declared: {}", counted(list.len(), "tensor"), some_of(&list))
        })
    }

    /// The content of a tensor stored in a node.
    pub(crate) fn literal(&self, tensor: &Tensor) -> Result<Literal, Fault> {
        literal(tensor.clone(), self.folder)
    }

    /// Meaning of `name`.
    pub(crate) fn bound(&self, name: &str) -> Result<&Bound, Fault> {
        self.scope.get(name).ok_or_else(|| Fault::Bad(format!("`{name}` has no value here")))
    }

    /// The type of what `name` stands for.
    pub(crate) fn type_of(&self, name: &str) -> Result<&TensorType, Fault> {
        match self.bound(name)? {
            Bound { value: Some(v), .. } => Ok(&self.module.values[*v].ty),
            Bound { literal: Some(l), .. } => Ok(&l.ty),
            Bound { sequence: Some(_), .. } => {
                Err(Fault::Unsupported(format!("`{name}` is a sequence; only SequenceAt may read it")))
            }
            Bound { .. } => Err(Fault::Bad(format!("`{name}` has no value here"))),
        }
    }

    /// The module value that `name` stands for; a literal becomes a constant or a fill.
    pub(crate) fn value(&mut self, name: &str) -> Result<ValueId, Fault> {
        let bound = self.bound(name)?.clone();
        match (bound.value, bound.literal) {
            (Some(v), _) => Ok(v),
            (None, Some(literal)) => {
                let v = self.constant(name, &literal)?;
                self.scope.insert(
                    name.to_string(),
                    Bound { value: Some(v), literal: Some(literal), sequence: None },
                );
                Ok(v)
            }
            (None, None) => {
                self.type_of(name).cloned().and(Err(Fault::Bad(format!("`{name}` has no value here"))))
            }
        }
    }

    /// A constant with the literal's content.
    pub(crate) fn constant(&mut self, name: &str, literal: &Literal) -> Result<ValueId, Fault> {
        let ty = literal.ty.clone();
        match literal.splat() {
            Some(value) if ty.numel() > FILL_ABOVE => {
                self.emit(OpKind::Fill { dtype: ty.dtype, shape: ty.shape, value }, &[], name, "")
            }
            _ => Ok(self.module.add_const(name, ty, literal.data.clone())),
        }
    }

    /// Appends an op and returns its first result.
    pub(crate) fn emit(
        &mut self,
        kind: OpKind,
        operands: &[ValueId],
        name: &str,
        origin: &str,
    ) -> Result<ValueId, Fault> {
        let results = self.module.add_op(kind, operands, &[name], origin)?;
        results.first().copied().ok_or_else(|| Fault::Bad("the op has no result".into()))
    }
}

/// The version of `domain`'s operator set; 1 when the model does not import it.
pub(crate) fn opset(opsets: &BTreeMap<String, i64>, domain: &str) -> i64 {
    opsets.get(domain).copied().unwrap_or(1)
}
