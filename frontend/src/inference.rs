//! Plain graphs, imported as they are: inputs are fed, initializers are constants, outputs are results.
//!
//! Nothing is trained and nothing persists. It is what operator tests need; training graphs have their own fronts.

use memc_ir::{Feed, Output, OutputRole};

use crate::Import;
use crate::context::Context;
use crate::error::{Fault, ImportError};
use crate::source::Source;

/// Imports a plain graph.
pub(crate) fn import(source: &Source<'_>) -> Result<Import, ImportError> {
    let graph = &source.model.graph;
    let mut cx = Context::new(source, 1);
    for (name, literal) in &source.literals {
        cx.bind(name, literal.clone());
    }
    for input in &graph.inputs {
        let name = input.name.as_str();
        if source.literals.contains_key(name) {
            continue;
        }
        let feed = Feed::Data { source: name.to_string(), micro: 0, range: None };
        let value = cx.module.add_input(name, source.input_type(name)?, feed);
        cx.bind(name, value);
    }
    for &i in &source.order {
        cx.import(&graph.nodes[i])?;
    }
    for output in &graph.outputs {
        let value = cx.value(&output.name).map_err(|fault| match fault {
            Fault::Bad(m) | Fault::Unsupported(m) => {
                ImportError::BadModel(format!("output `{}`: {m}", output.name))
            }
        })?;
        cx.module.outputs.push(Output { value, name: output.name.clone(), role: OutputRole::Other });
    }
    Ok(Import { module: cx.module, notes: Vec::new(), warnings: Vec::new() })
}
