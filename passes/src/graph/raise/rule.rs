//! Rules as data.

use memc_ir::ValueId;

use super::edit::Editor;
use super::pattern::Bindings;

/// A named rewrite of `raise`.
#[derive(Debug)]
pub struct RaiseRule {
    /// Kebab-case name, also the name of its golden file.
    pub name: &'static str,
    /// The rewrite, and its conditions.
    pub doc: &'static str,
    /// One or several spellings of one thing, in the notation of `pattern.rs`.
    pub patterns: &'static [&'static str],
    /// Checks the conditions that patterns cannot express, and rewrites; `None` when it left everything as it
    /// was.
    pub(super) apply: fn(&mut Editor<'_>, &Match) -> Option<()>,
}

/// A place where a pattern fits.
pub(super) struct Match {
    /// The value that the whole pattern describes.
    pub(super) root: ValueId,
    /// Values of the pattern's names.
    pub(super) names: Bindings,
}

impl Match {
    /// The value called `name`.
    pub(super) fn get(&self, name: &str) -> Option<ValueId> {
        self.names.get(name)
    }
}

/// `Some(())` when `holds`: for conditions in a row, with `?`.
pub(super) fn ensure(holds: bool) -> Option<()> {
    holds.then_some(())
}
