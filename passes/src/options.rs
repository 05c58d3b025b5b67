//! Pass options: `{name = value, flag}` after a pass's name, checked against the pass's declared options.

use std::fmt;

use crate::error::PassError;

/// A declared option of a pass.
#[derive(Debug)]
pub struct OptionDef {
    /// Name.
    pub name: &'static str,
    /// Value when the option is not given; empty when it must be given.
    pub default: &'static str,
    /// Effect.
    pub doc: &'static str,
}

/// Options given to one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(pub Vec<(String, String)>);

impl Options {
    /// The given or default value of `name`.
    pub(crate) fn get<'a>(&'a self, defs: &'a [OptionDef], name: &str) -> Result<&'a str, PassError> {
        if let Some((_, v)) = self.0.iter().find(|(n, _)| n == name) {
            return Ok(v);
        }
        let def = defs.iter().find(|d| d.name == name).map(|d| d.default).unwrap_or_default();
        if def.is_empty() { Err(PassError::Usage(format!("option `{name}` must be given"))) } else { Ok(def) }
    }

    /// The given value of `name`, which has no default.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The value of `name` as a number.
    pub(crate) fn number(&self, defs: &[OptionDef], name: &str) -> Result<u64, PassError> {
        let text = self.get(defs, name)?;
        let must = || format!("option `{name}` must be a non-negative integer, got `{text}`");
        text.parse().map_err(|_| PassError::Usage(must()))
    }

    pub(crate) fn check(&self, defs: &[OptionDef]) -> Result<(), PassError> {
        for (name, _) in &self.0 {
            if !defs.iter().any(|d| d.name == name) {
                let known: Vec<&str> = defs.iter().map(|d| d.name).collect();
                let text = format!("unknown option `{name}` (known: {})", known.join(", "));
                return Err(PassError::Usage(text));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let items: Vec<String> = self.0.iter().map(|(n, v)| format!("{n}={v}")).collect();
        write!(f, "{{{}}}", items.join(","))
    }
}
