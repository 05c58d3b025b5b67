//! A decoded and checked model, ready to be imported by either front.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use memc_ir::{Data, Module, TensorType};

use crate::context::Context;
use crate::error::{ImportError, some_of};
use crate::external::Folder;
use crate::floats::Doubles;
use crate::limits::{Allowance, Swept, Unrolled};
use crate::model::{Model, Node, Tensor, ValueType};
use crate::tensor::{self, Literal};
use crate::{Binding, ImportOptions, control, graph, inference, inline, proto, registry};

/// The newest version of the default operator set whose operators were compared with this importer.
const NEWEST_OPSET: i64 = 27;

/// A model whose structure, names, shapes and operators were checked.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    /// The model; its initializers have moved to `literals`.
    pub model: Model,
    /// Nodes in an order in which operands come first.
    pub order: Vec<usize>,
    /// The initializers' contents.
    pub literals: BTreeMap<String, Literal>,
    /// Stored constants of type `double`.
    pub doubles: BTreeMap<String, Doubles>,
    /// Types of the graph's inputs that are tensors.
    pub types: BTreeMap<String, TensorType>,
    /// Sizes of symbolic dimensions.
    pub dims: &'a [(String, u64)],
    /// Size of the model in bytes, without external data.
    pub file_bytes: u64,
    /// The model file, when there is one.
    pub path: Option<&'a Path>,
    /// Where external data may be.
    pub folder: Option<&'a Folder>,
    /// The part of the graph that comes from the training algorithm.
    pub algorithm: Option<Algorithm>,
}

/// Names that the algorithm of a `TrainingInfoProto` added to the graph.
#[derive(Debug)]
pub(crate) struct Algorithm {
    /// Its initializers.
    pub initializers: BTreeSet<String>,
}

impl<'a> Source<'a> {
    /// Decodes and checks a model.
    pub(crate) fn read(
        bytes: &Data,
        path: Option<&'a Path>,
        folder: Option<&'a Folder>,
        dims: &'a [(String, u64)],
    ) -> Result<Source<'a>, ImportError> {
        Source::checked(proto::decode(bytes)?, bytes.len() as u64, folder)?.typed(path, dims)
    }

    /// Likewise, but the graph is a training step where the model describes one: the inference graph with the
    /// training algorithm behind it, as the standard says.
    pub(crate) fn read_step(
        bytes: &Data,
        path: Option<&'a Path>,
        folder: Option<&'a Folder>,
        dims: &'a [(String, u64)],
    ) -> Result<Source<'a>, ImportError> {
        let mut model = proto::decode(bytes)?;
        let mut added = None;
        if let Some(training) = model.training.as_mut().filter(|t| t.has_step()) {
            // The inference graph must stand alone.
            graph::checked_order(&model.graph)?;
            let algorithm = training.algorithm.take().unwrap_or_default();
            let initializers = algorithm.initializers.iter().map(|t| t.name.clone()).collect();
            added = Some(Algorithm { initializers });
            model.graph.append(algorithm);
        }
        let mut source = Source::checked(model, bytes.len() as u64, folder)?.typed(path, dims)?;
        source.algorithm = added;
        Ok(source)
    }

    fn typed(mut self, path: Option<&'a Path>, dims: &'a [(String, u64)]) -> Result<Source<'a>, ImportError> {
        self.types = graph::input_types(&self.model.graph, dims)?;
        self.dims = dims;
        self.path = path;
        self.settle(&BTreeMap::new())?;
        Ok(self)
    }

    /// Decodes and checks a model whose inputs' types are of no interest.
    pub(crate) fn read_untyped(bytes: &Data, folder: Option<&'a Folder>) -> Result<Source<'a>, ImportError> {
        Source::checked(proto::decode(bytes)?, bytes.len() as u64, folder)
    }

    fn checked(
        mut model: Model,
        file_bytes: u64,
        folder: Option<&'a Folder>,
    ) -> Result<Source<'a>, ImportError> {
        inline::functions(&mut model)?;
        let order = graph::checked_order(&model.graph)?;
        check_opsets(&model)?;
        let stored = std::mem::take(&mut model.graph.initializers);
        let (doubles, stored): (Vec<Tensor>, Vec<Tensor>) =
            stored.into_iter().partition(|t| t.dtype == tensor::DOUBLE);
        let literals = resolve(stored, folder)?;
        let double = |t: &Tensor| {
            let doubles = tensor::doubles(t).map_err(|e| e.damage(&format!("initializer `{}`", t.name)));
            Ok((t.name.clone(), doubles?))
        };
        let doubles = doubles.iter().map(double).collect::<Result<_, ImportError>>()?;
        let types = BTreeMap::new();
        Ok(Source {
            model,
            order,
            literals,
            doubles,
            types,
            dims: &[],
            file_bytes,
            path: None,
            folder,
            algorithm: None,
        })
    }

    /// Writes out control flow that shapes decide, and refuses operators that are not supported. Inputs are
    /// what `inputs` says, or else fed with their declared types.
    pub(crate) fn settle(&mut self, inputs: &BTreeMap<String, Binding>) -> Result<(), ImportError> {
        if self.model.graph.nodes.iter().any(control::is_control) {
            let mut cx = self.context(&ImportOptions::default());
            inference::bind(self, &mut cx, inputs)?;
            let graph = control::resolve(cx, &self.model.graph, &self.order, self.model.opset(""))?;
            // It is written in the order of the trial.
            self.order = (0..graph.nodes.len()).collect();
            self.model.graph = graph;
        }
        check_operators(&self.model)
    }

    /// A context with an empty module and scope, for a step of as many passes over the graph as `options` has
    /// micro-steps.
    pub(crate) fn context(&self, options: &ImportOptions) -> Context<'_> {
        let graph = &self.model.graph;
        let name = if graph.name.is_empty() { "model" } else { &graph.name };
        let mut declared = graph::declared_types(&graph.value_info, self.dims);
        declared.extend(graph::declared_types(&graph.outputs, self.dims));
        let reads = graph.nodes.iter().flat_map(Node::reads);
        let reads = reads.chain(graph.outputs.iter().map(|o| o.name.as_str()));
        Context {
            module: Module::new(name),
            scope: BTreeMap::new(),
            declared,
            used: reads.collect(),
            contradicted: BTreeSet::new(),
            folded: Allowance::new(self.file_bytes, options.accumulate),
            seed: options.seed,
            streams: 0,
            step: None,
            unrolled: Unrolled::default(),
            swept: Swept::default(),
            stops: BTreeSet::new(),
            sample_variance: false,
            is_evaluation: options.is_evaluation(),
            model: &self.model,
            order: &self.order,
            find: registry::find,
            folder: self.folder,
        }
    }

    /// The type of graph input `name`.
    pub(crate) fn input_type(&self, name: &str) -> Result<TensorType, ImportError> {
        if let Some(ty) = self.types.get(name) {
            return Ok(ty.clone());
        }
        let declared = self.model.graph.inputs.iter().find(|x| x.name == name).map(|x| &x.ty);
        let what = if let Some(ValueType::Other(what)) = declared { what } else { "undeclared" };
        Err(ImportError::Unsupported(format!("graph input `{name}` is {what}; only tensors are supported")))
    }

    /// Things about the model that the user should know.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let version = self.model.opset("");
        if version <= NEWEST_OPSET {
            return Vec::new();
        }
        vec![format!(
            "the model uses ai.onnx opset {version}; operators were checked up to opset {NEWEST_OPSET} and \
             may have changed"
        )]
    }
}

/// The contents of stored tensors, read from their files when external.
fn resolve(tensors: Vec<Tensor>, folder: Option<&Folder>) -> Result<BTreeMap<String, Literal>, ImportError> {
    let mut out = BTreeMap::new();
    for t in tensors {
        let name = t.name.clone();
        out.insert(
            name.clone(),
            Literal::stored(t, folder).map_err(|e| e.damage(&format!("initializer `{name}`")))?,
        );
    }
    Ok(out)
}

/// Most operators listed in one message.
const SHOWN: usize = 10;

/// Refuses a model that does not say which version of the standard's operators it means.
fn check_opsets(model: &Model) -> Result<(), ImportError> {
    if model.graph.nodes.iter().any(|n| n.domain.is_empty()) && !model.opsets.contains_key("") {
        return Err(ImportError::BadModel(
            "the model uses operators of ai.onnx but does not say of which opset".into(),
        ));
    }
    Ok(())
}

/// Reports every operator that is not supported, once, with the nodes that use it.
fn check_operators(model: &Model) -> Result<(), ImportError> {
    let mut unknown: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for node in &model.graph.nodes {
        let found = registry::find(&node.domain, &node.op, model.opset(&node.domain));
        if node.is_accumulator() || (found.is_ok() && !node.has_subgraph()) {
            continue;
        }
        let name = if node.name.is_empty() { node.outputs.first() } else { Some(&node.name) };
        let name = name.map_or("unnamed", String::as_str);
        unknown.entry((&node.domain, &node.op)).or_default().push(format!("`{name}`"));
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let operators = if unknown.len() == 1 { "operator" } else { "operators" };
    let mut text = format!("{} {operators} of the model cannot be imported:", unknown.len());
    for ((domain, op), nodes) in unknown.iter().take(SHOWN) {
        let version = model.opset(domain);
        let why = match registry::find(domain, op, version) {
            Ok(_) => "subgraphs are not supported".to_string(),
            Err(refusal) => refusal.to_string(),
        };
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        text.push_str(&format!("\n  {domain}::{op}, opset {version}: {why} (nodes {})", some_of(nodes)));
    }
    if unknown.len() > SHOWN {
        text.push_str(&format!("\n  and {} more", unknown.len() - SHOWN));
    }
    Err(ImportError::Unsupported(text))
}
