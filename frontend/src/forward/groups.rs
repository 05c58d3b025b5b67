//! Parameters whose update differs from that of the others: without weight decay, or at another rate.

use glob::Pattern;
use memc_ir::attr::F32;
use memc_ir::recipe::Groups;
use memc_ir::{Module, Role, counted};

use crate::error::{ImportError, some_of};
use crate::{ImportOptions, VECTORS};

/// The groups that the options ask for. Notes say what each pattern matched.
pub(super) fn find(
    m: &Module,
    options: &ImportOptions,
    notes: &mut Vec<String>,
) -> Result<Groups, ImportError> {
    let params: Vec<(&str, usize)> = m
        .states
        .values()
        .filter(|s| s.role == Role::Param)
        .map(|s| (m.values[s.value].name.as_str(), m.values[s.value].ty.rank()))
        .collect();
    let mut matched = |flag: &str, text: &str| -> Result<Vec<String>, ImportError> {
        let pattern = Pattern::new(text).map_err(|e| ImportError::Usage(format!("{flag} {text}: {e}")))?;
        let vectors = flag == NO_DECAY && text == VECTORS;
        let fits = |(name, rank): &&(&str, usize)| if vectors { *rank < 2 } else { pattern.matches(name) };
        let names: Vec<&str> = params.iter().filter(fits).map(|p| p.0).collect();
        if names.is_empty() {
            let all: Vec<&str> = params.iter().map(|p| p.0).collect();
            return Err(ImportError::Usage(format!(
                "{flag} {text} matches no trained parameter; the model has {}",
                some_of(&all)
            )));
        }
        notes.push(format!("{flag} {text}: {}, {}", counted(names.len(), "parameter"), some_of(&names)));
        Ok(names.into_iter().map(str::to_string).collect())
    };
    let mut groups = Groups::default();
    for text in &options.no_decay {
        groups.no_decay.extend(matched(NO_DECAY, text)?);
    }
    for (text, factor) in &options.rate_factors {
        for name in matched("--lr-mult", text)? {
            let product = groups.rate_factors.get(&name).map_or(1.0, |f| f.0) * factor.0;
            groups.rate_factors.insert(name, F32(product));
        }
    }
    Ok(groups)
}

const NO_DECAY: &str = "--no-decay";
