//! `memc max-batch`: the largest size of a symbolic dimension whose step fits a budget.
//!
//! By doubling and bisection, which takes for granted that what fits at one size fits at every smaller one.

use std::collections::BTreeMap;

use clap::Args;
use memc_ir::Bytes;
use memc_passes::DeviceProfile;
use memc_planner::planners::{NoPlan, Planner};
use serde_json::{Value, json};

use crate::cli::{Question, Search};
use crate::device;
use crate::exit::Error;
use crate::output::{Progress, emit, table};
use crate::planner::named;
use crate::posed::Posed;
use crate::report::{STOPPED, ms, over, quotient};
use crate::series::Series;
use crate::solve::solve;
use crate::source;

#[derive(Args)]
pub(crate) struct MaxBatch {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Only plans whose step takes at most this many times the ideal one, as 1.3; what fits unplanned counts in any case
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub(crate) max_slowdown: Option<f64>,
    /// The largest size to try
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) up_to: u64,
    #[command(flatten)]
    pub(crate) search: Search,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio: Option<f64> = text.parse().ok().filter(|r: &f64| r.is_finite() && *r >= 1.0);
    ratio.ok_or_else(|| format!("`{text}` is not a ratio: write a number of at least 1, such as 1.3"))
}

/// What is known of one size.
#[derive(Default)]
struct Probe {
    unplanned_bytes: u64,
    ideal_ns: u64,
    /// The step with everything on the device.
    unplanned_ns: u64,
    /// Whether everything fits on the device.
    unplanned: bool,
    /// What the planner made of it, once it was asked.
    plan: Option<Verdict>,
}

impl Probe {
    /// Whether a time limit or an interrupt ended the search for its plan.
    fn stopped(&self) -> bool {
        self.plan.as_ref().is_some_and(|v| v.stopped)
    }
}

/// A planner's answer.
struct Verdict {
    /// Whether there is a plan, and one that is fast enough.
    accepted: bool,
    /// Step, bound, peak, bytes out and in.
    plan: Option<[u64; 5]>,
    why: &'static str,
    /// Whether a time limit or an interrupt ended the search.
    stopped: bool,
}

impl Verdict {
    fn refused(why: &'static str) -> Verdict {
        Verdict { accepted: false, plan: None, why, stopped: false }
    }
}

/// The search: sizes and what became of them.
struct Hunt<'a> {
    args: &'a MaxBatch,
    dim: &'a str,
    profile: &'a DeviceProfile,
    planner: &'a Planner,
    progress: &'a Progress,
    probes: BTreeMap<u64, Probe>,
    budget: u64,
    /// What of the budget is not the arena's, for people.
    reserve: String,
    series: Series,
    interrupted: bool,
}

pub(crate) fn run(args: &MaxBatch) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let source = &args.question.source;
    let open: Vec<&str> =
        source.import.dims.iter().filter(|d| d.size.is_none()).map(|d| d.name.as_str()).collect();
    let [dim] = open.as_slice() else {
        let text =
            "name the one dimension to enlarge, as --dim batch, and give others a size, as --dim seq=128";
        return Err(Error::Usage(text.into()));
    };
    let (planner, profile) = (named(&args.search.planner)?, &*device::find(&args.question.target.device)?);
    progress.stage("importing");
    if source::load(source).is_ok() {
        return Err(Error::Model(format!(
            "{}: every shape has a size, so there is no `{dim}` to enlarge: export the model with a symbolic batch",
            source.model.display()
        )));
    }
    let mut hunt = Hunt {
        args,
        dim,
        profile,
        planner,
        progress: &progress,
        probes: BTreeMap::new(),
        budget: 0,
        reserve: String::new(),
        series: Series::default(),
        interrupted: false,
    };
    let first = hunt.pose(1, true)?;
    hunt.budget = first.budget(args.question.gpu_mem)?;
    hunt.reserve = first.and_reserve();
    let unplanned = hunt.largest(0, &Hunt::fits_unplanned)?;
    let planned = hunt.largest(unplanned, &Hunt::fits_planned)?;
    progress.about("");
    progress.done();
    hunt.interrupted = hunt.series.interrupted();
    if hunt.interrupted {
        if planned == 0 {
            return Err(Error::Interrupted);
        }
        progress.say("interrupted: the answer is the largest size known so far");
    }
    let (up_to, name) = (args.up_to, first.name());
    emit(&if args.json { hunt.json(name, unplanned, planned) } else { hunt.text(name, unplanned, planned) })?;
    if planned >= up_to && !args.json {
        progress.say(&format!("a size of {up_to} still fits: --up-to N tries larger ones"));
    }
    if planned > 0 {
        return Ok(());
    }
    let why = format!("{} finds no plan for {dim} = 1 that is fast enough", planner.name);
    Err(Error::Said(
        first.infeasible(&[planner.name], &why, hunt.budget, args.search.how.allow())?.to_string(),
    ))
}

impl Hunt<'_> {
    /// The problem with the dimension at a size; `tell`: with what is to be said about the model.
    fn pose(&self, size: u64, tell: bool) -> Result<Posed, Error> {
        self.progress.about(&format!("{} = {size}", self.dim));
        self.progress.stage("importing");
        let mut source = self.args.question.source.clone();
        for d in source.import.dims.iter_mut().filter(|d| d.size.is_none()) {
            d.size = Some(size);
        }
        let loaded = source::load(&source)?;
        if tell {
            self.progress.notes(&loaded.notes, &loaded.warnings);
        }
        let mut graph = loaded.module;
        source::canonicalise(&mut graph, self.profile, self.args.question.target.rewrite)?;
        Posed::of(&graph, self.profile, self.args.search.how.order())
    }

    /// The largest size that fits, between one that does (or 0) and what the command may try.
    fn largest(
        &mut self,
        known: u64,
        fits: &dyn Fn(&mut Self, u64) -> Result<bool, Error>,
    ) -> Result<u64, Error> {
        let most = self.args.up_to;
        let (mut low, mut high) = (known.min(most), most + 1);
        let mut next = (low * 2).max(1);
        while next < high && !self.series.interrupted() {
            if fits(self, next)? {
                low = next
            } else {
                high = next
            }
            next *= 2;
        }
        if high > most && low < most && !self.series.interrupted() {
            if fits(self, most)? { low = most } else { high = most }
        }
        while high - low > 1 && !self.series.interrupted() {
            let middle = low + (high - low) / 2;
            if fits(self, middle)? { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// A size at which the step cannot even be posed is too large, but for the smallest.
    fn posed(&mut self, size: u64) -> Result<Option<Posed>, Error> {
        match self.pose(size, false) {
            Ok(posed) => Ok(Some(posed)),
            Err(Error::Model(_)) if size > 1 => {
                let plan = Some(Verdict::refused("too large to plan"));
                self.probes.insert(size, Probe { plan, ..Probe::default() });
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn probe(&self, posed: &Posed) -> Probe {
        let unplanned_bytes = posed.given().kept.evaluation.dev_bytes + posed.reserve_bytes;
        Probe {
            unplanned_bytes,
            ideal_ns: posed.ideal_ns(),
            unplanned_ns: posed.given().kept.evaluation.step_ns,
            unplanned: unplanned_bytes <= self.budget,
            plan: None,
        }
    }

    fn fits_unplanned(&mut self, size: u64) -> Result<bool, Error> {
        let Some(posed) = self.posed(size)? else { return Ok(false) };
        let probe = self.probe(&posed);
        let fits = probe.unplanned;
        if fits {
            self.series.keep();
        }
        self.probes.insert(size, probe);
        Ok(fits)
    }

    fn fits_planned(&mut self, size: u64) -> Result<bool, Error> {
        let Some(posed) = self.posed(size)? else { return Ok(false) };
        let mut probe = self.probe(&posed);
        probe.plan = self.verdict(&posed)?;
        let fits = probe.plan.as_ref().is_some_and(|v| v.accepted);
        if fits {
            self.series.keep();
        }
        self.probes.insert(size, probe);
        Ok(fits)
    }

    /// What the planner makes of a size; nothing where an interrupt came before there was a plan.
    fn verdict(&mut self, posed: &Posed) -> Result<Option<Verdict>, Error> {
        let how = &self.args.search.how;
        let slow =
            |ns: u64| self.args.max_slowdown.is_some_and(|most| ns as f64 > posed.ideal_ns() as f64 * most);
        self.progress.stage("proving a bound");
        // What the bounds rule out is not planned for.
        let bounds: Vec<_> = (0..posed.tried().len())
            .filter_map(|at| posed.bound(at, self.budget, how.allow())?.least(how.fixed_order))
            .collect();
        if bounds.is_empty() {
            let why = match posed.capacity(self.budget) {
                0 => "the reserve alone does not fit",
                _ => "an op does not fit",
            };
            return Ok(Some(Verdict::refused(why)));
        }
        if bounds.iter().all(|&b| slow(b)) {
            return Ok(Some(Verdict::refused("every plan is too slow")));
        }
        let (planner, budget, progress) = (self.planner, self.budget, self.progress);
        let search = || solve(posed, planner, how, budget, progress);
        let Some(outcome) = self.series.next(search)? else { return Ok(None) };
        let stopped = outcome.stopped;
        let Some((_, r)) = outcome.of(posed) else {
            return match outcome.plan {
                Err(NoPlan::Failed(text)) => Err(Error::Internal(text)),
                _ => Ok(Some(Verdict { stopped, ..Verdict::refused("no plan") })),
            };
        };
        let e = &r.evaluation;
        let bound = outcome.bound(posed, how).map_or(0, |b| b.0);
        let peak = e.load_bytes + posed.reserve_bytes;
        let accepted = !slow(e.step_ns);
        Ok(Some(Verdict {
            accepted,
            plan: Some([e.step_ns, bound, peak, e.swap_out_bytes, e.swap_in_bytes]),
            why: if accepted { "fits" } else { "too slow" },
            stopped,
        }))
    }

    /// Whether a search might have found more with more time.
    fn stopped(&self) -> bool {
        self.probes.values().any(Probe::stopped)
    }

    fn text(&self, model: &str, unplanned: u64, planned: u64) -> String {
        let row = |(size, p): (&u64, &Probe)| -> Vec<String> {
            let dash = || "-".to_string();
            let per_s = |ns: u64| over(*size, ns).map_or_else(dash, |per_ns| format!("{:.1}", per_ns * 1e9));
            let (plan, verdict) = match (&p.plan, p.unplanned) {
                (None, true) => {
                    (Some([p.unplanned_ns, p.ideal_ns, p.unplanned_bytes, 0, 0]), "fits unplanned")
                }
                (None, false) => (None, "does not fit unplanned"),
                (Some(v), _) => (v.plan, v.why),
            };
            let cells = match plan {
                None => vec![dash(), dash(), dash(), dash(), dash(), dash(), dash()],
                Some([step, bound, peak, out, into]) => vec![
                    Bytes(peak).short(),
                    ms(step),
                    quotient(step, p.ideal_ns),
                    quotient(step, bound),
                    per_s(step),
                    Bytes(out).short(),
                    Bytes(into).short(),
                ],
            };
            let mut row = vec![size.to_string(), Bytes(p.unplanned_bytes).short()];
            row.extend(cells);
            row.push(if p.stopped() { format!("{verdict}, stopped") } else { verdict.into() });
            row
        };
        let rows: Vec<Vec<String>> = self.probes.iter().map(row).collect();
        let header = [self.dim, "unplanned", "peak", "step", "/ ideal", "/ bound", "per s", "out", "in", ""];
        let gain = match unplanned {
            0 => String::new(),
            n => format!(", {:.2} times as many", planned as f64 / n as f64),
        };
        let slow = self.args.max_slowdown.map(|m| format!(" and a step of {m} times the ideal one"));
        let so_far = if self.interrupted { " known so far (interrupted)" } else { "" };
        let stopped = if self.stopped() { STOPPED } else { "" };
        format!(
            "{}\n{model}: largest {}{so_far} in a budget of {}{}{}: {unplanned} unplanned, {planned} by {}{gain}\n{stopped}",
            table(&header, &rows),
            self.dim,
            Bytes(self.budget),
            self.reserve,
            slow.unwrap_or_default(),
            self.planner.name,
        )
    }

    fn json(&self, model: &str, unplanned: u64, planned: u64) -> String {
        let probe = |(size, p): (&u64, &Probe)| {
            let plan = p.plan.as_ref();
            let figure = |i: usize| plan.and_then(|v| v.plan).map(|f| f[i]);
            json!({
                "size": size, "unplanned_peak_bytes": p.unplanned_bytes, "ideal_ns": p.ideal_ns,
                "fits_unplanned": p.unplanned, "planned": plan.is_some(), "fits": plan.map(|v| v.accepted),
                "verdict": plan.map(|v| v.why), "step_ns": figure(0), "bound_ns": figure(1),
                "peak_bytes": figure(2), "swap_out_bytes": figure(3), "swap_in_bytes": figure(4),
                "stopped": p.stopped(),
            })
        };
        let probes: Vec<Value> = self.probes.iter().map(probe).collect();
        let object = json!({
            "problem": model, "planner": self.planner.name, "dim": self.dim, "gpu_mem_bytes": self.budget,
            "max_slowdown": self.args.max_slowdown, "up_to": self.args.up_to,
            "largest_unplanned": unplanned, "largest_planned": planned, "interrupted": self.interrupted,
            "stopped": self.interrupted || self.stopped(), "probes": probes,
        });
        format!("{object}\n")
    }
}
