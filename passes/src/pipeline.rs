//! Pipelines: parsing `a,b{k=v}`, and running passes with the verifier between them.

use std::fmt;

use memc_ir::{Module, Phase, verify};

use crate::device::DeviceProfile;
use crate::error::PassError;
use crate::options::{OptionDef, Options};
use crate::reproducer;

/// Context of a pass besides the module. There are no globals, no clock and no environment.
pub struct PassCx<'a> {
    /// The device to plan for.
    pub profile: &'a DeviceProfile,
    /// Reads a file named by an option, such as a decision file.
    pub read_file: &'a dyn Fn(&str) -> Result<String, PassError>,
    /// Counts of passes, as (pass, counted thing, number).
    pub stats: Vec<(&'static str, String, u64)>,
    /// Applications of rules, in order.
    pub fired: Vec<Fired>,
    /// Effects that the user may not have wanted, one sentence each.
    pub warnings: Vec<String>,
}

impl<'a> PassCx<'a> {
    /// Context without results for passes that read no files.
    pub fn new(profile: &'a DeviceProfile) -> PassCx<'a> {
        let read_file = &|name: &str| Err(PassError::Usage(format!("{name}: files cannot be read here")));
        PassCx { profile, read_file, stats: Vec::new(), fired: Vec::new(), warnings: Vec::new() }
    }
}

/// A rule of a rewriting pass that was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fired {
    /// The pass.
    pub pass: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// Name of the value that was rewritten.
    pub at: String,
    /// Number of applications there.
    pub count: u64,
}

/// A row of the pass table.
pub struct PassDef {
    /// Kebab-case name, in options and listings.
    pub name: &'static str,
    /// One line for listings.
    pub summary: &'static str,
    /// Phase the module must have before, and has after.
    pub phases: (Phase, Phase),
    /// Declared options.
    pub options: &'static [OptionDef],
    /// The pass.
    pub run: fn(&mut Module, &Options, &mut PassCx<'_>) -> Result<(), PassError>,
}

/// One pass of a pipeline with its options.
#[derive(Clone)]
pub struct Step {
    /// The pass.
    pub pass: &'static PassDef,
    /// Its options.
    pub options: Options,
}

/// A list of passes.
#[derive(Clone, Default)]
pub struct Pipeline(pub Vec<Step>);

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            write!(f, "{}{}{}", if i == 0 { "" } else { "," }, step.pass.name, step.options)?;
        }
        Ok(())
    }
}

/// Names that stand for several passes.
const ALIASES: [(&str, &[&str]); 2] =
    [("graph", &[crate::GRAPH_PIPELINE]), ("all", &[crate::GRAPH_PIPELINE, crate::MEMORY_PIPELINE])];

/// Former names of passes and the names that hints give for them.
const RENAMED: [(&str, &str); 6] = [
    ("batch", "fuse-counters"),
    ("layout", "alloc"),
    ("order", "schedule-ops"),
    ("recover", "raise"),
    ("timepoints", "events"),
    ("to-mem", "bufferize"),
];

impl Pipeline {
    /// Parses `a,b{k=v,k2=v2}`; the pass names are those of [`crate::PASSES`]. `graph` stands for
    /// [`crate::GRAPH_PIPELINE`], and `all` for that and [`crate::MEMORY_PIPELINE`], as compile runs them.
    pub fn parse(text: &str) -> Result<Pipeline, PassError> {
        let usage = |message: String| PassError::Usage(format!("pipeline `{text}`: {message}"));
        let mut steps = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = rest.find([',', '{']).unwrap_or(rest.len());
            let name = rest[..end].trim();
            let pass = crate::PASSES.iter().find(|p| p.name == name);
            let alias = ALIASES.iter().find(|a| a.0 == name);
            if pass.is_none() && alias.is_none() {
                let known = ALIASES.iter().map(|a| a.0).chain(crate::PASSES.iter().map(|p| p.name));
                let known: Vec<&str> = known.collect();
                if let Some((_, new)) = RENAMED.iter().find(|r| r.0 == name) {
                    return Err(usage(format!("unknown pass `{name}`: it is now called `{new}`")));
                }
                return Err(usage(format!("unknown pass `{name}` (known: {})", known.join(", "))));
            }
            rest = &rest[end..];
            let mut options = Options::default();
            if let Some(inner) = rest.strip_prefix('{') {
                let Some(close) = inner.find('}') else { return Err(usage("`{` is not closed".into())) };
                for item in inner[..close].split(',').map(str::trim).filter(|s| !s.is_empty()) {
                    let (name, value) = item.split_once('=').unwrap_or((item, "true"));
                    options.0.push((name.trim().to_string(), value.trim().to_string()));
                }
                rest = inner[close + 1..].trim_start();
            }
            options.check(pass.map_or(&[], |p| p.options)).map_err(|e| usage(format!("{name}: {e}")))?;
            steps.extend(pass.map(|pass| Step { pass, options }));
            for pipeline in alias.map_or(&[][..], |a| a.1) {
                steps.extend(Pipeline::parse(pipeline)?.0);
            }
            rest = match rest.strip_prefix(',') {
                Some(more) if !more.trim().is_empty() => more,
                None if rest.is_empty() => rest,
                _ => return Err(usage("expected `,` and a pass".into())),
            };
        }
        Ok(Pipeline(steps))
    }

    /// The passes up to the last one called `name`; `None` where there is none.
    pub fn until(mut self, name: &str) -> Option<Pipeline> {
        let last = self.0.iter().rposition(|step| step.pass.name == name)?;
        self.0.truncate(last + 1);
        Some(self)
    }

    /// Runs every pass; the verifier runs before the first and after each.
    ///
    /// On error the module is what it was before the pass that failed, and the error's text names that pass.
    pub fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<(), PassError> {
        self.run_observed(module, cx, &mut |_, _| {})
    }

    /// As [`Pipeline::run`]; `observe` sees each pass and the module that it leaves.
    pub fn run_observed(
        &self,
        module: &mut Module,
        cx: &mut PassCx<'_>,
        observe: &mut dyn FnMut(&PassDef, &Module),
    ) -> Result<(), PassError> {
        verify(module).map_err(PassError::Invalid)?;
        for step in &self.0 {
            let pass = step.pass;
            if module.phase != pass.phases.0 {
                let (want, have) = (pass.phases.0.name(), module.phase.name());
                return Err(PassError::Usage(format!(
                    "{} needs a {want}-phase module, this one is {have}",
                    pass.name
                )));
            }
            let mut next = module.clone();
            let bug = |text: String| {
                let failed = format!("{}{}", pass.name, step.options);
                let reproducer = reproducer::text(&failed, &cx.profile.name, module, &text);
                PassError::Bug { text, reproducer }
            };
            (pass.run)(&mut next, &step.options, cx).map_err(|e| match e {
                PassError::Usage(text) => PassError::Usage(format!("{}: {text}", pass.name)),
                PassError::Failed(text) => bug(format!("{}: {text}", pass.name)),
                other => other,
            })?;
            verify(&next).map_err(|d| bug(format!("invalid module after {}:\n{d}", pass.name)))?;
            observe(pass, &next);
            *module = next;
        }
        Ok(())
    }
}
