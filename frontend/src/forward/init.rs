//! Initial contents by the standard's initialization graph.
//!
//! The graph is not executed: each bound output must come from one generating node, which becomes the
//! generator of a state's initial content, so that a model of any size is a file of kilobytes. Casts between
//! the two make the generator's element type that of the state.

use std::collections::BTreeMap;

use memc_ir::attr::{F32, Scalar};
use memc_ir::{Blob, DType, Init, TensorType};

use crate::constants::convert;
use crate::error::{Fault, ImportError};
use crate::initial::name_seed;
use crate::model::{Attr, Graph, Node, Tensor};
use crate::ops::random::seed_bits;
use crate::source::Source;
use crate::tensor::{Literal, dtype};

/// The initial content that `bindings` give each name; `types` has the names' types, `seed` serves nodes
/// without one.
pub(crate) fn contents(
    source: &Source<'_>,
    graph: &Graph,
    bindings: &[(String, String)],
    types: &BTreeMap<&str, TensorType>,
    seed: i64,
) -> Result<BTreeMap<String, Init>, ImportError> {
    if let Some(input) = graph.inputs.first() {
        return Err(ImportError::BadModel(format!(
            "the initialization graph has an input, `{}`, but nothing feeds it",
            input.name
        )));
    }
    let makers = Makers {
        source,
        nodes: graph.nodes.iter().flat_map(|n| n.outputs.iter().map(move |o| (o.as_str(), n))).collect(),
        stored: graph.initializers.iter().map(|t| (t.name.as_str(), t)).collect(),
        seed,
    };
    let mut out = BTreeMap::new();
    for (key, value) in bindings {
        let bad = |fault: Fault| fault.damage(&format!("initialization of `{key}`"));
        let Some(ty) = types.get(key.as_str()) else {
            return Err(bad("it is neither an input nor an initializer of the model".into()));
        };
        let init = makers.init(key, value, ty).map_err(bad)?;
        init.check(ty).map_err(|e| bad(e.into()))?;
        if out.insert(key.clone(), init).is_some() {
            return Err(bad("it is bound twice".into()));
        }
    }
    Ok(out)
}

struct Makers<'a> {
    source: &'a Source<'a>,
    nodes: BTreeMap<&'a str, &'a Node>,
    stored: BTreeMap<&'a str, &'a Tensor>,
    seed: i64,
}

impl Makers<'_> {
    fn init(&self, key: &str, value: &str, ty: &TensorType) -> Result<Init, Fault> {
        let mut at = value;
        let mut casts = Casts { ty, to: Vec::new() };
        // Each turn of the loop passes another node, unless the graph has a cycle.
        for _ in 0..=self.nodes.len() {
            if let Some(init) = self.stored(at, &casts)? {
                return Ok(init);
            }
            let Some(node) = self.nodes.get(at) else {
                return Err(Fault::Bad(format!("nothing in the initialization graph computes `{at}`")));
            };
            match (node.domain.as_str(), node.op.as_str()) {
                ("", "Identity") => at = node.inputs.first().map_or("", String::as_str),
                ("", "Cast") => {
                    casts.add(node)?;
                    at = node.inputs.first().map_or("", String::as_str);
                }
                ("", "RandomNormal") => {
                    shaped(node, &casts)?;
                    let (mean, std) = (node.float("mean", 0.0)?, node.float("scale", 1.0)?);
                    return Ok(Init::Normal { seed: self.seed(node, key)?, mean: F32(mean), std: F32(std) });
                }
                ("", "RandomUniform") => {
                    shaped(node, &casts)?;
                    let (low, high) = (node.float("low", 0.0)?, node.float("high", 1.0)?);
                    return Ok(Init::Uniform { seed: self.seed(node, key)?, low: F32(low), high: F32(high) });
                }
                ("", "ConstantOfShape") => return self.filled(node, &casts),
                _ => {
                    return Err(Fault::Bad(format!(
                        "{} is not supported there; supported are RandomNormal, RandomUniform, \
                         ConstantOfShape, Constant, Cast and Identity",
                        node.label()
                    )));
                }
            }
        }
        Err(Fault::Bad(format!("`{at}` depends on itself")))
    }

    /// The content of a stored tensor or `Constant` node.
    fn literal(&self, name: &str) -> Result<Option<Literal>, Fault> {
        let tensor = match (self.stored.get(name), self.nodes.get(name)) {
            (Some(t), _) => *t,
            (None, Some(node)) if node.op == "Constant" && node.domain.is_empty() => {
                match (node.attrs.get("value"), node.attrs.get("value_ints"), node.attrs.get("value_float")) {
                    (Some(Attr::Tensor(t)), _, _) => t,
                    (None, Some(Attr::Ints(v)), _) => return Ok(Some(Literal::vector(v))),
                    (None, None, Some(Attr::Float(v))) => return Literal::from_floats(&[], &[*v]).map(Some),
                    _ => {
                        return Err(Fault::Bad(format!(
                            "{} has no value that is supported there",
                            node.label()
                        )));
                    }
                }
            }
            _ => return Ok(None),
        };
        Literal::stored(tensor.clone(), self.source.folder).map(Some)
    }

    fn stored(&self, name: &str, casts: &Casts<'_>) -> Result<Option<Init>, Fault> {
        let Some(literal) = self.literal(name)? else { return Ok(None) };
        let converted = casts.apply(literal, name)?;
        if converted.ty != *casts.ty {
            return Err(Fault::Bad(format!("`{name}` is {}, but it must be {}", converted.ty, casts.ty)));
        }
        Ok(Some(Init::Data(Blob::new(converted.data))))
    }

    fn filled(&self, node: &Node, casts: &Casts<'_>) -> Result<Init, Fault> {
        let ty = casts.ty;
        let shape = node.inputs.first().map_or("", String::as_str);
        let dims = self.literal(shape)?.and_then(|l| l.ints());
        let dims = dims.ok_or_else(|| format!("the shape of {} is not constant", node.label()))?;
        fits(node, &dims, ty)?;
        let value = match node.attrs.get("value") {
            None => return Ok(Init::Zeros),
            Some(Attr::Tensor(t)) => Literal::stored(t.clone(), self.source.folder)?,
            Some(other) => return Err(other.ill_typed("value", "a tensor")),
        };
        let value = casts.apply(value, &node.label())?;
        if value.ty.dtype != ty.dtype {
            return Err(Fault::Bad(format!(
                "{} gives {}, but it must be {ty}",
                node.label(),
                value.ty.dtype
            )));
        }
        match value.single() {
            Some(Scalar::Int(0)) => Ok(Init::Zeros),
            Some(Scalar::Float(F32(v))) if v.to_bits() == 0 => Ok(Init::Zeros),
            Some(value) => Ok(Init::Fill(value)),
            None => Err("attribute `value` must have one element".into()),
        }
    }

    fn seed(&self, node: &Node, key: &str) -> Result<u64, Fault> {
        match node.attrs.get("seed") {
            None => Ok(name_seed(key, self.seed)),
            Some(Attr::Float(v)) => Ok(seed_bits(*v).unsigned_abs() >> u32::from(*v < 0.0)),
            Some(other) => Err(other.ill_typed("seed", "a float")),
        }
    }
}

/// Casts between a generating node and the state of type `ty` that it is bound to, the last one first.
struct Casts<'a> {
    ty: &'a TensorType,
    to: Vec<DType>,
}

impl Casts<'_> {
    fn add(&mut self, node: &Node) -> Result<(), Fault> {
        let to = dtype(i32::try_from(node.int("to", 0)?).unwrap_or(0))?;
        if self.to.is_empty() && to != self.ty.dtype {
            return Err(Fault::Bad(format!("{} gives {to}, but it must be {}", node.label(), self.ty)));
        }
        self.to.push(to);
        Ok(())
    }

    /// `literal`, the content of `name`, after the casts.
    fn apply(&self, literal: Literal, name: &str) -> Result<Literal, Fault> {
        self.to.iter().rev().try_fold(literal, |x, &to| {
            convert(&x, to).ok_or_else(|| Fault::Bad(format!("{name} is {}, which does not fit {to}", x.ty)))
        })
    }
}

/// Whether a random node makes what is bound to it, up to casts between float types: the generator rounds
/// once, to the state's type.
fn shaped(node: &Node, casts: &Casts<'_>) -> Result<(), Fault> {
    let ty = casts.ty;
    let made = dtype(i32::try_from(node.int("dtype", 1)?).unwrap_or(0))?;
    let own = casts.to.is_empty() && made != ty.dtype;
    if own || !made.is_float() || !casts.to.iter().all(|to| to.is_float()) {
        return Err(Fault::Bad(format!("{} makes {made}, but it must be {ty}", node.label())));
    }
    match node.attrs.get("shape") {
        Some(Attr::Ints(dims)) => fits(node, dims, ty),
        Some(Attr::Other("a value without type")) => fits(node, &[], ty),
        _ => Err(Fault::Bad(format!("{} has no list of integers as `shape`", node.label()))),
    }
}

fn fits(node: &Node, dims: &[i64], ty: &TensorType) -> Result<(), Fault> {
    let same =
        dims.len() == ty.rank() && dims.iter().zip(&ty.shape).all(|(&a, &b)| u64::try_from(a) == Ok(b));
    if same {
        Ok(())
    } else {
        Err(Fault::Bad(format!("{} makes shape {dims:?}, but it must be {ty}", node.label())))
    }
}
