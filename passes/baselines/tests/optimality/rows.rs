//! Small random problems, planned by the default planner and solved exactly.

use memc_planner::exact::{self, Judge, Optimum};
use memc_planner::sample::{self, ALLOWED, Sample, Seed};
use memc_planner::{Action, Decisions, Problem, Request, Resident, Schedule, TensorId, solve};

/// Ops of the largest problem.
const OPS: usize = 12;

/// Most decisions that the exact search evaluates; problems that need more are left out.
const EVALUATIONS: u64 = 300;

/// One problem, planned and solved.
pub(crate) struct Row {
    /// Seed that the problem is drawn from.
    pub(crate) seed: u64,
    /// The problem and its budget.
    pub(crate) sample: Sample,
    /// The planner's plan, if any.
    pub(crate) planned: Option<Schedule>,
    /// The optimum over the decisions that [`exact`] looks at.
    pub(crate) optimum: Optimum,
}

impl Row {
    /// Time beyond the optimum, over the optimum's; `None` without a plan. Negative where the planner leaves
    /// the decisions that the exact search looks at.
    pub(crate) fn gap(&self) -> Option<f64> {
        let planned = self.planned.as_ref()?.evaluation.step_ns;
        Some(planned as f64 / self.optimum.step_ns.max(1) as f64 - 1.0)
    }

    /// Seed, gap and features of both plans, in a line.
    pub(crate) fn describe(&self) -> String {
        let gap = self.gap().map_or("no plan".into(), |g| format!("{:+.2} %", 100.0 * g));
        let planned = self.planned.as_ref().map(|r| features(&self.sample.problem, &r.decisions));
        format!(
            "seed {}: {gap}; optimum {} ns: {}; planned: {}",
            self.seed,
            self.optimum.step_ns,
            features(&self.sample.problem, &self.optimum.decisions),
            planned.unwrap_or_default()
        )
    }
}

/// The first `count` problems whose optimum is proven, planned with an effort; and the number of problems
/// before the last of them that the exact search left unproven.
pub(crate) fn rows(count: usize, effort: u32) -> (Vec<Row>, usize) {
    let (mut rows, mut unproven) = (Vec::new(), 0);
    for seed in 0.. {
        if rows.len() == count {
            break;
        }
        match row(seed, effort) {
            Some(Ok(row)) => rows.push(row),
            Some(Err(Unproven)) => unproven += 1,
            None => {}
        }
    }
    (rows, unproven)
}

/// The exact search hit its limit.
struct Unproven;

/// `None` where there is no problem, or no plan that fits.
fn row(seed: u64, effort: u32) -> Option<Result<Row, Unproven>> {
    let sample = sample::sample(&mut Seed(seed), OPS)?;
    let judged = (ALLOWED[2], Judge::Layout);
    let optimum = exact::optimum(&sample.problem, sample.capacity, judged, false, EVALUATIONS)?;
    if !optimum.proven {
        return Some(Err(Unproven));
    }
    let planner = memc_baselines::named("memc").expect("the default planner is known");
    let request = Request { effort, ..Request::new(sample.capacity) };
    let planned = solve(&sample.problem, planner, &request).ok().map(|(r, _)| r);
    Some(Ok(Row { seed, sample, planned, optimum }))
}

/// Differences of a plan from the given order with everything on the device.
fn features(p: &Problem, d: &Decisions) -> String {
    let (mut moved, mut runs) = (0, 0);
    let (mut recomputed, mut outs, mut ins) = (Vec::new(), Vec::new(), Vec::new());
    let name = |t: TensorId| p.tensors[t].name.as_str();
    for action in &d.actions {
        match action {
            Action::Run(run) if run.recompute => recomputed.push(p.ops[run.op].name.as_str()),
            Action::Run(run) => {
                moved += u32::from(run.op.0 != runs);
                runs += 1;
            }
            Action::Out(t) => outs.push(name(*t)),
            Action::In((t, _)) => ins.push(name(*t)),
            Action::Drop(_) => {}
        }
    }
    let residents = |wanted: fn(&Resident) -> bool| d.residents.values().filter(|h| wanted(h)).count();
    let (both, host) = (residents(|h| matches!(h, Resident::Both(_))), residents(|h| *h == Resident::Host));
    format!(
        "{moved} ops elsewhere, recomputes [{}], out [{}], in [{}], {both} states on both sides, \
         {host} on the host",
        recomputed.join(" "),
        outs.join(" "),
        ins.join(" ")
    )
}
