//! The module under construction, the meaning of ONNX names at the current node, and that node: its operands,
//! attributes and results.
//!
//! Constants stay [`Literal`]s until an op needs them as an operand, so that shape arithmetic leaves nothing
//! in the module.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memc_ir::{DType, Def, Feed, Init, Module, OpKind, Role, TensorType, Turn, ValueId, counted};

use crate::error::{Fault, ImportError, some_of, unsupported};
use crate::external::Folder;
use crate::floats::{self, Doubles};
use crate::limits::{Allowance, Swept, Unrolled};
use crate::model::{Attr, Model, Node, Tensor};
use crate::tensor::{DOUBLE, Literal};

/// Larger constants with equal elements become a `fill` op, which costs no memory between steps.
const FILL_ABOVE: u64 = 16;

/// Meaning of an ONNX name. At least one field is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// A value of the module.
    pub value: Option<ValueId>,
    /// The content, when it is a constant.
    pub literal: Option<Literal>,
    /// The content, when it is a constant of type `double`.
    pub double: Option<Doubles>,
    /// The tensors of a sequence.
    pub sequence: Option<Arc<[ValueId]>>,
}

impl From<Doubles> for Bound {
    fn from(double: Doubles) -> Self {
        Bound { double: Some(double), ..Bound::default() }
    }
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
    pub contradicted: BTreeSet<String>,
    /// Room for constants that nodes compute.
    pub folded: Allowance,
    /// Seed of random nodes without one of their own.
    pub seed: i64,
    /// Random nodes so far.
    pub streams: u32,
    /// The number of the step, once something asked for it.
    pub step: Option<ValueId>,
    /// Time steps that recurrent layers have unrolled.
    pub unrolled: Unrolled,
    /// Work of the `Gradient` nodes so far.
    pub swept: Swept,
    /// Tensors whose gradients stop.
    pub stops: BTreeSet<&'a str>,
    /// Whether running variances follow the sample variance, as in PyTorch, instead of the population
    /// variance.
    pub sample_variance: bool,
    /// Whether dropout is off and batch normalisation takes its running statistics, whatever nodes say.
    pub is_evaluation: bool,
    /// The model, without its initializers.
    pub model: &'a Model,
    /// Nodes in an order in which operands come first.
    pub order: &'a [usize],
    /// The supported operators.
    pub find: Find,
    /// Folder of external data.
    pub folder: Option<&'a Folder>,
}

impl<'a> Context<'a> {
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
            matches!(x.feed, Feed::Step { .. }) && self.module.values[x.value].ty.dtype.is_int()
        };
        let found = self.module.inputs.values().find(counts).map(|x| x.value);
        let step = found.unwrap_or_else(|| {
            self.module.add_input(
                "random.step",
                TensorType::scalar(DType::I64),
                Feed::Step { turn: Turn::default() },
            )
        });
        self.step = Some(step);
        step
    }

    /// Adds an input that is fed with data in every step, and binds its name.
    pub(crate) fn feed(&mut self, name: &str, ty: TensorType, micro: u32) {
        let feed = Feed::Data { source: name.to_string(), micro, range: None };
        let value = self.module.add_input(name, ty, feed);
        self.bind(name, value);
    }

    /// Adds a state and binds its name.
    pub(crate) fn persist(&mut self, name: &str, ty: TensorType, role: Role, init: Init) {
        let state = self.module.add_state(name, ty, role, init);
        self.bind(name, self.module.states[state].value);
    }

    /// Imports all nodes.
    pub(crate) fn import_all(&mut self) -> Result<(), ImportError> {
        self.order.iter().try_for_each(|&i| self.import(&self.model.graph.nodes[i]))
    }

    /// Lets `constants`, by name, share the values that this pass over the graph has made of them.
    ///
    /// Constants serve all micro-steps. Fills are made again, so that they need not stay in memory.
    pub(crate) fn share(&self, constants: &mut BTreeMap<String, Bound>) {
        for (name, bound) in constants {
            let value = self.scope.get(name).and_then(|b| b.value);
            bound.value = value.filter(|&v| matches!(self.module.values[v].def, Def::Const(_)));
        }
    }

    /// Imports one node.
    pub(crate) fn import(&mut self, node: &'a Node) -> Result<(), ImportError> {
        let version = self.model.opset(&node.domain);
        let found = (self.find)(&node.domain, &node.op, version);
        let handler = found.map_err(|fault| fault.at(&node.label()))?;
        let domain = if node.domain.is_empty() { "ai.onnx" } else { &node.domain };
        let at = |m: String| format!("{}, {domain} opset {version}: {m}", node.label());
        let handler = if self.is_double(node) { floats::import } else { handler };
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
            self.stop_gradient(name, &node.name).map_err(|fault| fault.at(&node.label()))?;
        }
        Ok(())
    }

    /// Whether the node reads a constant of type `double`, or makes one of another constant.
    fn is_double(&self, node: &Node) -> bool {
        let reads = |name: &String| self.scope.get(name).is_some_and(|bound| bound.double.is_some());
        let makes = matches!(node.attrs.get("to"), Some(Attr::Int(to)) if *to == i64::from(DOUBLE));
        node.domain.is_empty() && (node.inputs.iter().any(reads) || (node.op == "Cast" && makes))
    }

    /// Puts a `stop_gradient` behind the value of `name` if its gradient stops.
    fn stop_gradient(&mut self, name: &str, origin: &str) -> Done {
        let Some(Bound { value: Some(value), literal: None, .. }) = self.scope.get(name) else {
            return Ok(());
        };
        let value = *value;
        if self.stops.contains(name) && self.module.values[value].ty.dtype.is_float() {
            let stopped =
                self.emit(OpKind::StopGradient {}, &[value], &format!("{name}.detached"), origin)?;
            self.bind(name, stopped);
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
        Literal::stored(tensor.clone(), self.folder)
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
            Bound { double: Some(_), .. } => Err(Fault::Unsupported(format!(
                "`{name}` is a constant of type `double`; only arithmetic on such constants and casts may \
                 read it"
            ))),
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
                    Bound { value: Some(v), literal: Some(literal), ..Bound::default() },
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

/// Outcome of a step of an import.
pub(crate) type Done = Result<(), Fault>;
/// Outcome of appending ops: the last one's result.
pub(crate) type Made = Result<ValueId, Fault>;

/// Imports a node.
pub(crate) type Handler = fn(&mut NodeCx<'_, '_>) -> Done;

/// Finds the function that imports an operator: domain, operator, version of the operator set.
pub(crate) type Find = fn(&str, &str, i64) -> Result<Handler, Fault>;

/// A node with the module it is imported into.
#[derive(Debug)]
pub(crate) struct NodeCx<'c, 'a> {
    /// The module.
    pub cx: &'c mut Context<'a>,
    /// The node.
    pub node: &'a Node,
    /// Version of the operator set of the node's domain.
    pub version: i64,
}

impl<'a> NodeCx<'_, 'a> {
    /// The name of input `i`; `None` when it is absent.
    pub(crate) fn input(&self, i: usize) -> Option<&'a str> {
        self.node.inputs.get(i).map(String::as_str).filter(|n| !n.is_empty())
    }

    fn required(&self, i: usize) -> Result<&'a str, Fault> {
        self.input(i).ok_or_else(|| Fault::Bad(format!("input {i} is missing")))
    }

    /// The value of input `i`.
    pub(crate) fn operand(&mut self, i: usize) -> Made {
        let name = self.required(i)?;
        self.cx.value(name)
    }

    /// The value of input `i`; `None` when it is absent.
    pub(crate) fn optional(&mut self, i: usize) -> Result<Option<ValueId>, Fault> {
        self.input(i).map(|name| self.cx.value(name)).transpose()
    }

    /// The values of all inputs.
    pub(crate) fn operands(&mut self) -> Result<Vec<ValueId>, Fault> {
        (0..self.node.inputs.len()).map(|i| self.operand(i)).collect()
    }

    /// The type of input `i`.
    pub(crate) fn operand_type(&self, i: usize) -> Result<TensorType, Fault> {
        self.cx.type_of(self.required(i)?).cloned()
    }

    /// The type of a value.
    pub(crate) fn ty(&self, value: ValueId) -> &TensorType {
        &self.cx.module.values[value].ty
    }

    /// The content of input `i` when it is a constant.
    pub(crate) fn literal(&self, i: usize) -> Option<Literal> {
        self.cx.bound(self.input(i)?).ok()?.literal.clone()
    }

    /// The content of input `i`, called `what` by the operator, which must be a constant if present.
    pub(crate) fn constant(&self, i: usize, what: &str) -> Result<Option<Literal>, Fault> {
        match (self.input(i), self.literal(i)) {
            (None, _) => Ok(None),
            (_, Some(literal)) => Ok(Some(literal)),
            (Some(name), None) => unsupported(format!(
                "its {what} (`{name}`) must be a constant or shape arithmetic of known shapes; it depends on \
                 data"
            )),
        }
    }

    /// The integers of constant input `i`, called `what` by the operator; `None` when absent.
    pub(crate) fn const_ints(&self, i: usize, what: &str) -> Result<Option<Vec<i64>>, Fault> {
        let Some(literal) = self.constant(i, what)? else { return Ok(None) };
        match literal.ints() {
            Some(ints) if literal.ty.dtype != DType::Bool => Ok(Some(ints)),
            _ => Err(Fault::Bad(format!("its {what} must be integers, not {}", literal.ty))),
        }
    }

    /// Integers that are attribute `name` before opset `since`, and constant input `i` from then on.
    pub(crate) fn ints_since(&self, since: i64, i: usize, name: &str) -> Result<Option<Vec<i64>>, Fault> {
        if self.version >= since {
            self.const_ints(i, name)
        } else {
            Ok(self.ints(name)?.map(<[i64]>::to_vec))
        }
    }

    fn attr(&self, name: &str) -> Option<&'a Attr> {
        self.node.attrs.get(name)
    }

    /// An integer attribute.
    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64, Fault> {
        self.node.int(name, default)
    }

    /// An integer attribute that is a truth value.
    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, Fault> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    /// A float attribute.
    pub(crate) fn float(&self, name: &str, default: f32) -> Result<f32, Fault> {
        self.node.float(name, default)
    }

    /// A string attribute.
    pub(crate) fn text(&self, name: &str, default: &'a str) -> Result<&'a str, Fault> {
        match self.attr(name) {
            None => Ok(default),
            Some(Attr::Text(v)) => Ok(v),
            Some(other) => Err(other.ill_typed(name, "a string")),
        }
    }

    /// A list, which `items` takes from an attribute that is `want`.
    fn list<T>(
        &self,
        name: &str,
        want: &str,
        items: fn(&'a Attr) -> Option<&'a [T]>,
    ) -> Result<Option<&'a [T]>, Fault> {
        match self.attr(name) {
            None => Ok(None),
            // An empty list may be encoded without its type.
            Some(Attr::Other("a value without type")) => Ok(Some(&[])),
            Some(attr) => items(attr).map(Some).ok_or_else(|| attr.ill_typed(name, want)),
        }
    }

    /// A list of integers.
    pub(crate) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, Fault> {
        self.list(name, "a list of integers", |a| if let Attr::Ints(v) = a { Some(v) } else { None })
    }

    /// A list of floats.
    pub(crate) fn floats(&self, name: &str) -> Result<Option<&'a [f32]>, Fault> {
        self.list(name, "a list of floats", |a| if let Attr::Floats(v) = a { Some(v) } else { None })
    }

    /// A list of strings.
    pub(crate) fn texts(&self, name: &str) -> Result<Option<&'a [String]>, Fault> {
        self.list(name, "a list of strings", |a| if let Attr::Texts(v) = a { Some(v) } else { None })
    }

    /// A list of non-negative integers.
    pub(crate) fn sizes(&self, name: &str) -> Result<Option<Vec<u64>>, Fault> {
        let Some(list) = self.ints(name)? else { return Ok(None) };
        let sizes: Option<Vec<u64>> = list.iter().map(|&v| u64::try_from(v).ok()).collect();
        match sizes {
            Some(sizes) => Ok(Some(sizes)),
            None => unsupported(format!("attribute `{name}` = {list:?} has a negative number")),
        }
    }

    /// Axis `axis` of a tensor of `rank` axes, counted from the end when negative.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, Fault> {
        let n = rank as i64;
        let at = if axis < 0 { axis.checked_add(n) } else { Some(axis) };
        let at = at.filter(|a| (0..n).contains(a)).and_then(|a| usize::try_from(a).ok());
        at.ok_or_else(|| Fault::Bad(format!("axis {axis} does not exist in a tensor of {rank} axes")))
    }

    /// Distinct axes in ascending order, as ops want them.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<u64>, Fault> {
        let mut out = Vec::new();
        for &a in axes {
            out.push(self.axis(a, rank)? as u64);
        }
        out.sort_unstable();
        match out.windows(2).find(|w| w[0] == w[1]) {
            Some(w) => Err(Fault::Bad(format!("axis {} is given twice", w[0]))),
            None => Ok(out),
        }
    }

    /// The name of output `i`; `None` when it is absent.
    pub(crate) fn output(&self, i: usize) -> Option<&'a str> {
        self.node.outputs.get(i).map(String::as_str).filter(|n| !n.is_empty())
    }

    /// Whether something reads output `i`.
    pub(crate) fn wants(&self, i: usize) -> bool {
        self.output(i).is_some_and(|name| self.cx.used.contains(name))
    }

    /// Binds output `i`, when present.
    pub(crate) fn bind(&mut self, i: usize, to: impl Into<Bound>) {
        if let Some(name) = self.output(i) {
            self.cx.bind(name, to);
        }
    }

    /// Binds output `i`, when present, to a constant that was computed here.
    ///
    /// Unlike stored constants and views of them it may be far larger than the node, so its bytes count
    /// towards the import's allowance.
    pub(crate) fn fold(&mut self, i: usize, to: Literal) -> Done {
        if self.output(i).is_some() {
            self.cx.folded.take(to.ty.bytes())?;
            self.bind(i, to);
        }
        Ok(())
    }

    /// Notes the content of output `i`, a value that an op computes: operators that need a constant read it.
    pub(crate) fn know(&mut self, i: usize, literal: Option<Literal>) {
        let bound = self.output(i).and_then(|name| self.cx.scope.get_mut(name));
        if let (Some(bound), Some(literal)) = (bound, literal) {
            bound.literal = Some(literal);
        }
    }

    /// Appends an op whose results are the node's outputs.
    pub(crate) fn finish(&mut self, kind: OpKind, operands: &[ValueId]) -> Done {
        let names: Vec<&str> = self.node.outputs.iter().map(String::as_str).collect();
        let results = self.cx.module.add_op(kind, operands, &names, &self.node.name)?;
        for (i, value) in results.into_iter().enumerate() {
            self.bind(i, value);
        }
        Ok(())
    }

    /// Appends an op whose first result is output `i`.
    pub(crate) fn finish_at(&mut self, i: usize, kind: OpKind, operands: &[ValueId]) -> Done {
        let name = self.output(i).unwrap_or_default();
        let value = self.cx.emit(kind, operands, name, &self.node.name)?;
        self.bind(i, value);
        Ok(())
    }

    /// Appends an op whose first result is only used by later ops of this node.
    pub(crate) fn temp(&mut self, kind: OpKind, operands: &[ValueId]) -> Made {
        let base = self.node.outputs.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
        let name = format!("{base}/{}", kind.mnemonic());
        self.cx.emit(kind, operands, &name, &self.node.name)
    }

    /// A constant that the node implies.
    pub(crate) fn constant_value(&mut self, what: &str, literal: &Literal) -> Made {
        let base = self.node.outputs.iter().find(|o| !o.is_empty()).map_or("", String::as_str);
        self.cx.constant(&format!("{base}/{what}"), literal)
    }

    /// A one-element float constant of shape `[]`.
    pub(crate) fn scalar(&mut self, what: &str, value: f32) -> Made {
        let literal = Literal::from_floats(&[], &[value])?;
        self.constant_value(what, &literal)
    }

    /// `value` under another shape; `value` itself when it already has it.
    pub(crate) fn reshaped(&mut self, value: ValueId, shape: &[u64]) -> Made {
        if self.ty(value).shape == shape {
            return Ok(value);
        }
        self.temp(OpKind::Reshape { shape: shape.to_vec() }, &[value])
    }
}
