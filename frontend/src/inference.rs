//! Plain graphs, imported as they are: inputs are fed or bound to constants, initializers are constants,
//! outputs are results.
//!
//! Nothing is trained and nothing persists. It is what operator tests need; training graphs have their own
//! fronts.

use std::collections::BTreeMap;

use memc_ir::{Output, OutputRole};

use crate::error::ImportError;
use crate::source::Source;
use crate::tensor::Literal;
use crate::{Binding, Import};

/// Imports a plain graph, whose inputs are what `inputs` says, or else fed with their declared types.
pub(crate) fn import(source: &Source<'_>, inputs: &BTreeMap<String, Binding>) -> Result<Import, ImportError> {
    let graph = &source.model.graph;
    let mut cx = source.context(&crate::ImportOptions::default());
    for (name, literal) in &source.literals {
        cx.bind(name, literal.clone());
    }
    for input in &graph.inputs {
        let name = input.name.as_str();
        match inputs.get(name) {
            Some(Binding::Constant(ty, data)) => {
                let literal = Literal::new(ty.clone(), data.clone());
                cx.bind(name, literal.map_err(|e| ImportError::Usage(format!("input `{name}`: {e}")))?);
            }
            None if source.literals.contains_key(name) => {}
            fed => {
                let ty = match fed {
                    Some(Binding::Fed(ty)) => ty.clone(),
                    _ => source.input_type(name)?,
                };
                cx.feed(name, ty, 0);
            }
        }
    }
    cx.import_all()?;
    for output in &graph.outputs {
        let value = cx.value(&output.name);
        let value = value.map_err(|fault| fault.damage(&format!("output `{}`", output.name)))?;
        cx.module.outputs.push(Output { value, name: output.name.clone(), role: OutputRole::Other });
    }
    Ok(Import::complete(cx.module, Vec::new(), Vec::new()))
}
