//! Plain graphs, imported as they are: inputs are fed or bound to constants, initializers are constants,
//! outputs are results.
//!
//! Nothing is trained and nothing persists. It is what operator tests need; training graphs have their own
//! fronts.

use std::collections::BTreeMap;

use memc_ir::{Output, OutputRole};

use crate::context::Context;
use crate::error::ImportError;
use crate::source::Source;
use crate::tensor::Literal;
use crate::{Binding, Import};

/// Imports a plain graph, whose inputs are what `inputs` says, or else fed with their declared types.
pub(crate) fn import(
    source: &mut Source<'_>,
    inputs: &BTreeMap<String, Binding>,
) -> Result<Import, ImportError> {
    source.settle(inputs)?;
    let source = &*source;
    let mut cx = source.context(&crate::ImportOptions::default());
    bind(source, &mut cx, inputs)?;
    cx.import_all()?;
    for output in &source.model.graph.outputs {
        let value = cx.value(&output.name);
        let value = value.map_err(|fault| fault.damage(&format!("output `{}`", output.name)))?;
        cx.module.outputs.push(Output { value, name: output.name.clone(), role: OutputRole::Other });
    }
    Ok(Import::complete(cx.module, Vec::new(), Vec::new()))
}

/// Gives initializers and graph inputs their meaning.
pub(crate) fn bind<'a>(
    source: &'a Source<'_>,
    cx: &mut Context<'a>,
    inputs: &BTreeMap<String, Binding>,
) -> Result<(), ImportError> {
    for (name, literal) in &source.literals {
        cx.bind(name, literal.clone());
    }
    for (name, double) in &source.doubles {
        cx.bind(name, double.clone());
    }
    for input in &source.model.graph.inputs {
        let name = input.name.as_str();
        match inputs.get(name) {
            Some(Binding::Constant(ty, data)) => {
                let literal = Literal::new(ty.clone(), data.clone());
                cx.bind(name, literal.map_err(|e| ImportError::Usage(format!("input `{name}`: {e}")))?);
            }
            None if cx.scope.contains_key(name) => {}
            fed => {
                let ty = match fed {
                    Some(Binding::Fed(ty)) => ty.clone(),
                    _ => source.input_type(name)?,
                };
                cx.feed(name, ty, 0);
            }
        }
    }
    Ok(())
}
