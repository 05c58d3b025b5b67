//! Imports with the parts that passes add: loss, gradients and optimizer, without simplification in between.
#![allow(dead_code, reason = "every test file uses a part")]

use std::path::Path;

use memc_frontend::{Import, ImportError, ImportOptions};
use memc_passes::{PassError, training};

/// As `memc_frontend::import`, completed.
pub(crate) fn import(path: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    complete(memc_frontend::import(path, options)?)
}

/// As `memc_frontend::import_bytes`, completed.
pub(crate) fn import_bytes(bytes: &[u8], options: &ImportOptions) -> Result<Import, ImportError> {
    complete(memc_frontend::import_bytes(bytes, options)?)
}

fn complete(mut import: Import) -> Result<Import, ImportError> {
    if let Some(recipe) = import.recipe.clone() {
        if let Some(loss) = &recipe.loss {
            training::add_loss(&mut import.module, loss, &[]).map_err(refused)?;
            import
                .warnings
                .extend(training::differentiate(&mut import.module, recipe.reduction).map_err(refused)?);
        }
        if let Some(optimizer) = &recipe.optimizer {
            training::add_optimizer(&mut import.module, optimizer).map_err(refused)?;
        }
    }
    import.finish()
}

fn refused(e: PassError) -> ImportError {
    match e {
        PassError::Usage(text) => ImportError::Usage(text),
        other => ImportError::Unsupported(other.to_string()),
    }
}
