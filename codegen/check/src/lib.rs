#![doc = include_str!("../README.md")]

mod access;
mod buckets;
mod clock;
mod error;
mod header;
mod kernel;
mod lint;
mod machine;
mod order;
mod shadow;
mod show;
mod sink;
mod source;
mod steady;
mod step;
mod symbolic;

pub use buckets::{BucketErrors, check_buckets};
pub use error::{CODES, CheckError, CheckErrors, Lint, MAX_ERRORS, Place, RaceKind, Site};
pub use order::{Disorder, check_order};

use memc_ir::Module;
use memc_plan::{Plan, Section};

use header::{Tables, Tally, peak_bytes};
use kernel::Kernel;
use lint::Lints;
use machine::Machine;
use show::{Names, Shower};
use sink::Sink;
use source::Unevaluated;
use steady::Live;
use symbolic::{SymbolicId, SymbolicValues};

/// Facts about a plan that the checker accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Commands of the plan.
    pub commands: usize,
    /// Entries of its kernel table.
    pub kernels: usize,
    /// Different symbolic values that the replay came across.
    pub terms: usize,
    /// Useless parts of the plan.
    pub lints: Vec<Lint>,
    /// The header's claims that can be recomputed; they equal the header's.
    pub counted: Counted,
}

/// The claims of a plan's header that the plan and its source imply. The times of the header come from a cost
/// model and the unplanned peak from another schedule; neither is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// One past the last byte of the device arena that any slice of the plan covers.
    pub peak_bytes: u64,
    /// Bytes of the body's copies from the device arena to the host arena, without the copies that bring an
    /// output to its slot.
    pub swap_out_bytes: u64,
    /// Bytes of the body's copies from the host arena to the device arena, without the copies that take an
    /// input from its slot.
    pub swap_in_bytes: u64,
    /// Launches of the body, except of `copy`, that apply an operator to values to which earlier launches of
    /// the step have applied it as often as the source does. An operator that the source does not apply to
    /// them counts as asked for once.
    pub recompute_ops: u64,
    /// Launches of the body.
    pub ops: u64,
}

/// Proves that `plan` computes what `source`, a graph-phase module, says: see the crate's page for the exact
/// claim.
///
/// Never panics, whatever the plan. Memory is proportional to the plan's size and does not depend on its
/// arenas.
///
/// # Errors
/// All reasons found why the plan is not proved, at most [`MAX_ERRORS`].
pub fn check(source: &Module, plan: &Plan) -> Result<Report, CheckErrors> {
    let mut checker = Checker::new(source, plan);
    let counted = checker.check();
    if !checker.sink.is_empty() {
        return Err(CheckErrors(checker.sink.into_errors()));
    }
    Ok(Report {
        commands: plan.commands().count(),
        kernels: plan.kernels.len(),
        terms: checker.values.len(),
        lints: checker.lints.finish(plan, &checker.sink),
        counted,
    })
}

struct Checker<'a> {
    source: &'a Module,
    plan: &'a Plan,
    values: SymbolicValues,
    names: Names,
    /// Per kernel of the plan; `None` for one that is no operator.
    kernels: Vec<Option<Kernel>>,
    tables: Tables,
    sink: Sink<'a>,
    lints: Lints,
    /// During the first body.
    live: Option<Live>,
    /// During the first body.
    tally: Option<Tally>,
}

impl<'a> Checker<'a> {
    fn new(source: &'a Module, plan: &'a Plan) -> Checker<'a> {
        Checker {
            source,
            plan,
            values: SymbolicValues::new(),
            names: Names::new(),
            kernels: Vec::new(),
            tables: Tables::default(),
            sink: Sink::new(plan),
            lints: Lints::default(),
            live: None,
            tally: None,
        }
    }

    fn shower(&self) -> Shower<'_> {
        Shower { values: &self.values, source: self.source, names: &self.names }
    }

    fn check(&mut self) -> Counted {
        let mut counted = Counted { peak_bytes: peak_bytes(self.plan), ..Counted::default() };
        if let Some(actual) = header::invalid_source(self.source) {
            self.unusable(actual);
            return counted;
        }
        let replayable = self.check_header();
        for (i, kernel) in self.plan.kernels.iter().enumerate() {
            let resolved = kernel::resolve(kernel, &mut self.values);
            if let Err(what) = &resolved {
                let at = Place::Table(format!("kernel k{i} = {}", kernel.op.mnemonic()));
                self.sink.push(CheckError::BadKernel { at, what: what.to_string() });
            }
            self.kernels.push(resolved.ok());
        }
        let initial = source::initial(self.source, &mut self.values);
        self.check_tables(&initial);
        if replayable {
            match self.replay(&initial) {
                Ok((tally, asked)) => {
                    counted.swap_out_bytes = tally.swap_out_bytes;
                    counted.swap_in_bytes = tally.swap_in_bytes;
                    counted.recompute_ops = tally.recompute_ops(&asked);
                    counted.ops = tally.ops;
                }
                Err(actual) => self.unusable(actual.to_string()),
            }
        }
        let claims = self.plan.meta.claims;
        let valued = self.sink.is_empty();
        self.check_claim("peak_bytes", claims.peak_bytes, counted.peak_bytes);
        // Sums over copies and launches depend on values: they are unknown where a value is wrong.
        if valued {
            self.check_claim("swap_out_bytes", claims.swap_out_bytes, counted.swap_out_bytes);
            self.check_claim("swap_in_bytes", claims.swap_in_bytes, counted.swap_in_bytes);
            self.check_claim("recompute_ops", claims.recompute_ops, counted.recompute_ops);
            self.check_claim("ops", claims.ops, counted.ops);
        }
        counted
    }

    /// Reports a source that cannot be the reference.
    fn unusable(&mut self, actual: String) {
        let claimed = "a valid graph-phase module".to_owned();
        self.sink.push(CheckError::HeaderMismatch { what: "the source graph".into(), claimed, actual });
    }

    /// Replays prologue, body, body, and the epilogue after each; returns what the first body amounts to, and
    /// what the source asks for.
    fn replay(&mut self, initial: &source::Initial) -> Result<(Tally, source::Applied), Unevaluated> {
        let mut m = Machine::default();
        self.run(&mut m, Section::Prologue, 0, &[], &[]);
        self.epilogue(&m, 0, &initial.states);

        let first = self.evaluate(initial, &initial.states, 0)?;
        let before = m.clone();
        self.live = Some(Live::new(&m));
        self.tally = Some(Tally::default());
        self.run(&mut m, Section::Body, 0, &first.outputs, &[]);
        let tally = self.tally.take().unwrap_or_default();
        if let Some(live) = self.live.take() {
            let advance = self.values.advance(&first.states);
            self.check_steady(&live, &before, &m, &advance);
        }
        self.epilogue(&m, 1, &first.states);

        let second = self.evaluate(initial, &first.states, 1)?;
        self.run(&mut m, Section::Body, 1, &second.outputs, &[]);
        self.epilogue(&m, 2, &second.states);
        Ok((tally, first.applied))
    }

    fn epilogue(&mut self, m: &Machine, steps: u32, states: &[SymbolicId]) {
        self.run(&mut m.clone(), Section::Epilogue, steps, &[], states);
    }

    fn evaluate(
        &mut self,
        initial: &source::Initial,
        states: &[SymbolicId],
        step: u32,
    ) -> Result<source::StepValues, Unevaluated> {
        source::evaluate(self.source, &mut self.values, &mut self.names, &initial.consts, states, step)
    }
}
