//! A planning problem as a command poses it: read from a file or made of a model, in every order to be tried.

use std::cell::RefCell;
use std::collections::BTreeMap;

use memc_ir::{Bytes, Module};
use memc_passes::plan::{Infeasible, Problem};
use memc_passes::{DeviceProfile, Pipeline};
use memc_planner::bound::{self, Allow};
use memc_planner::planners::{self, Request};
use memc_planner::{ALIGN, Decisions, Order, Realised, realise};

use crate::cli::{Source, Target};
use crate::device;
use crate::exit::Error;
use crate::output::Progress;
use crate::size::{Size, host_memory};
use crate::source;

/// A problem in one order of its ops.
pub(crate) struct Ordered {
    /// The order.
    pub(crate) order: Order,
    /// The unplanned step.
    pub(crate) kept: Realised,
    of: Of,
}

/// What a problem is of.
enum Of {
    Model(Box<Problem>),
    Numbers(Box<memc_planner::Problem>),
}

impl Ordered {
    fn new(order: Order, of: Of) -> Result<Ordered, Error> {
        let mut ordered = Ordered { order, kept: Realised::default(), of };
        let p = ordered.numbers();
        ordered.kept = realise(p, Decisions::keep_all(p)).map_err(Error::Internal)?;
        Ok(ordered)
    }

    /// The problem in numbers.
    pub(crate) fn numbers(&self) -> &memc_planner::Problem {
        match &self.of {
            Of::Model(p) => &p.numbers,
            Of::Numbers(p) => p,
        }
    }

    /// The problem of a model.
    pub(crate) fn model(&self) -> Option<&Problem> {
        match &self.of {
            Of::Model(p) => Some(p),
            Of::Numbers(_) => None,
        }
    }
}

/// A planning problem and its device.
pub(crate) struct Posed {
    /// The problem in the order as given, then those that are tried besides.
    problems: Vec<Ordered>,
    /// The first that is tried.
    first: usize,
    /// Bytes of a budget that are not the arena's.
    pub(crate) reserve_bytes: u64,
    memory_bytes: Option<u64>,
    /// What was found before.
    smallest: RefCell<BTreeMap<Allow, u64>>,
    /// The smallest budget with a plan so far.
    planned: RefCell<BTreeMap<Allow, u64>>,
    /// What was bounded before: by problem, capacity and what scripts may do.
    bounds: RefCell<BTreeMap<(usize, u64, Allow), Option<Bounds>>>,
}

/// Certified bounds on the step time in ns.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Of plans that keep the problem's order, if there may be one.
    fixed_order_ns: Option<u64>,
    /// Of every plan.
    order_free_ns: u64,
}

impl Bounds {
    /// That of all plans that are asked for, if there may be one.
    pub(crate) fn least(&self, fixed_order: bool) -> Option<u64> {
        if fixed_order { self.fixed_order_ns } else { Some(self.order_free_ns) }
    }
}

/// Reads a problem file, or poses the problem of a model; without an order, in every one worth trying.
pub(crate) fn pose(
    source: &Source,
    target: &Target,
    order: Option<Order>,
    progress: &Progress,
) -> Result<Posed, Error> {
    progress.stage("importing");
    if source.model.extension().is_some_and(|e| e == "json") {
        source::refuse_options(source, "a planning problem has its own sizes, times and device")?;
        if target != &Target::default() {
            let text = "--device, --no-mem-rewrite and --no-fuse are for models; a planning problem has its own times and device";
            return Err(Error::Usage(text.into()));
        }
        let text = source::read_text(&source.model)?;
        let at = |e| Error::Model(format!("{}: {e}", source.model.display()));
        let numbers = memc_planner::json::parse(&text).map_err(at)?;
        let memory_bytes = Some(numbers.device.memory_bytes).filter(|&b| b > 0);
        let problems = vec![Ordered::new(Order::Given, Of::Numbers(Box::new(numbers)))?];
        return Ok(Posed {
            problems,
            first: 0,
            reserve_bytes: 0,
            memory_bytes,
            smallest: RefCell::default(),
            planned: RefCell::default(),
            bounds: RefCell::default(),
        });
    }
    let profile = &*device::find(&target.device)?;
    let loaded = source::load(source)?;
    progress.notes(&loaded.notes, &loaded.warnings);
    let mut graph = loaded.module;
    source::canonicalise(&mut graph, profile, target.rewrite)?;
    Posed::of(&graph, profile, order)
}

/// The graph with its ops in the order that memory would like best.
fn greedy(graph: &Module, profile: &DeviceProfile) -> Result<Module, Error> {
    let mut module = graph.clone();
    let pass = format!("order{{algo={}}}", Order::Greedy.name());
    Pipeline::parse(&pass)?.run(&mut module, &mut source::context(profile))?;
    Ok(module)
}

impl Posed {
    /// The problem of a graph at the reference point.
    pub(crate) fn of(graph: &Module, profile: &DeviceProfile, order: Option<Order>) -> Result<Posed, Error> {
        let problem = |order, graph: &Module| {
            let p = Problem::new(graph, profile).map_err(Error::Model)?;
            Ordered::new(order, Of::Model(Box::new(p)))
        };
        let mut problems = vec![problem(Order::Given, graph)?];
        if order != Some(Order::Given) {
            let module = greedy(graph, profile)?;
            if order.is_some() || module.order != graph.order {
                problems.push(problem(Order::Greedy, &module)?);
            }
        }
        let own = profile.memory_bytes;
        Ok(Posed {
            first: if order == Some(Order::Greedy) { 1 } else { 0 },
            problems,
            reserve_bytes: profile.reserve_bytes,
            memory_bytes: own.or_else(|| (profile.name == "cpu").then(host_memory).flatten()),
            smallest: RefCell::default(),
            planned: RefCell::default(),
            bounds: RefCell::default(),
        })
    }

    /// The problem in the order as given: its unplanned step is what plans are compared with.
    pub(crate) fn given(&self) -> &Ordered {
        &self.problems[0]
    }

    /// What is to be planned.
    pub(crate) fn tried(&self) -> &[Ordered] {
        &self.problems[self.first..]
    }

    /// Name for people.
    pub(crate) fn name(&self) -> &str {
        &self.given().numbers().name
    }

    /// Time of all ops in ns, each once: the step when nothing waits.
    pub(crate) fn ideal_ns(&self) -> u64 {
        self.given().numbers().compute_ns()
    }

    /// A budget in bytes.
    pub(crate) fn bytes(&self, size: Size) -> Result<u64, Error> {
        match size {
            Size::Bytes(bytes) => Ok(bytes),
            Size::Percent(percent) => {
                let memory = self.memory_bytes.ok_or_else(unknown_memory)?;
                Ok((memory as f64 * percent / 100.0) as u64)
            }
        }
    }

    /// The budget in bytes: as given, or the memory that the problem's device has.
    pub(crate) fn budget(&self, size: Option<Size>) -> Result<u64, Error> {
        let own = Some(self.given().numbers().device.memory_bytes).filter(|&b| b > 0);
        size.map_or_else(|| own.or(self.memory_bytes).ok_or_else(unknown_memory), |size| self.bytes(size))
    }

    /// What a budget leaves for the arena.
    pub(crate) fn capacity(&self, budget: u64) -> u64 {
        budget.saturating_sub(self.reserve_bytes) / ALIGN * ALIGN
    }

    /// What of a budget is not the arena's, behind a figure for people; nothing where all of it is.
    pub(crate) fn and_reserve(&self) -> String {
        match self.reserve_bytes {
            0 => String::new(),
            bytes => format!(", the device's reserve of {} included", Bytes(bytes).short()),
        }
    }

    /// Takes note of a plan with an arena of so many bytes.
    pub(crate) fn fits(&self, allow: Allow, arena_bytes: u64) {
        let budget = arena_bytes.saturating_add(self.reserve_bytes);
        let mut planned = self.planned.borrow_mut();
        let least = planned.entry(allow).or_insert(budget);
        *least = budget.min(*least);
    }

    /// The smallest budget for which a quick method, or any planner that was asked, knows a plan, in whichever order.
    pub(crate) fn smallest(&self, allow: Allow) -> Result<u64, Error> {
        let planned = self.planned.borrow().get(&allow).copied().unwrap_or(u64::MAX);
        if let Some(&known) = self.smallest.borrow().get(&allow) {
            return Ok(known.min(planned));
        }
        let mut least = u64::MAX;
        for o in self.tried() {
            least = least.min(smallest(o, allow)?);
        }
        let total = least.saturating_add(self.reserve_bytes);
        self.smallest.borrow_mut().insert(allow, total);
        Ok(total.min(planned))
    }

    /// The certified bounds on plans of the problem in one of its orders; none where nothing fits in any order.
    pub(crate) fn bound(&self, at: usize, budget: u64, allow: Allow) -> Option<Bounds> {
        let o = self.tried().get(at)?;
        let capacity = self.capacity(budget);
        let key = (at, capacity, allow);
        let known = self.bounds.borrow().get(&key).copied();
        known.unwrap_or_else(|| {
            let bounds = |b: bound::Bound| Bounds {
                fixed_order_ns: b.fixed_order.ok(),
                order_free_ns: b.order_free_ns,
            };
            let found = bound::bound(o.numbers(), capacity, allow).ok().map(bounds);
            self.bounds.borrow_mut().insert(key, found);
            found
        })
    }

    /// Why nothing is swapped although it may be, where the device cannot.
    pub(crate) fn cut_off(&self, allow: Allow) -> Option<String> {
        let device = &self.given().numbers().device;
        let links =
            [("h2d_bytes_per_s", device.h2d_bytes_per_s), ("d2h_bytes_per_s", device.d2h_bytes_per_s)];
        let dead: Vec<&str> = links.iter().filter(|l| l.1 == 0).map(|l| l.0).collect();
        let says = if dead.len() == 1 { "is" } else { "are" };
        let text = || format!("the device's {} {says} 0, so that nothing can be swapped", dead.join(" and "));
        (allow.swap && !dead.is_empty()).then(text)
    }

    /// Why there is no plan, for people: what a planner said, what would fit, and the op that needs the most.
    ///
    /// The budget that is said to have a plan has one by the default planner, whichever were `asked`.
    pub(crate) fn infeasible(
        &self,
        asked: &[&str],
        why: &str,
        budget: u64,
        allow: Allow,
    ) -> Result<Error, Error> {
        let default = planners::PLANNERS.first().map_or("", |p| p.name);
        let other = !asked.contains(&default);
        let smallest = self.smallest(allow)?;
        let at = &self.tried()[0];
        // Where a walk may swap it comes down to the least there is, or nearly; checkpoints do not.
        let least = at.numbers().largest_working_set().1.saturating_add(self.reserve_bytes);
        if least > budget || (smallest > budget && allow.swap && at.numbers().device.can_swap()) {
            let report = Infeasible::new(at.numbers(), at.model(), budget, self.reserve_bytes, smallest);
            let note = match (other, least > budget) {
                (true, true) => {
                    format!("\nnote: that is enough for --planner {default}; others may need more")
                }
                (true, false) => {
                    format!("\nnote: that is enough for --planner {default}; others may need more: {why}")
                }
                _ => String::new(),
            };
            return Ok(Error::Infeasible(format!("{report}{note}"), Some(Box::new(report))));
        }
        let by = if other { format!(", with --planner {default}") } else { String::new() };
        let note = self.cut_off(allow).map_or_else(String::new, |note| format!("\nnote: {note}"));
        Ok(Error::Infeasible(
            format!(
                "{why}\n  smallest budget known to have a plan: {}{}{by}{note}\nhint: give more --gpu-mem, or another \
                 --planner; `memc compare` shows what each finds",
                Bytes(smallest),
                self.and_reserve(),
            ),
            None,
        ))
    }
}

/// The smallest arena for which a quick method knows a plan.
fn smallest(o: &Ordered, allow: Allow) -> Result<u64, Error> {
    let kept = o.kept.evaluation.dev_bytes;
    let request = Request { swap: allow.swap, recompute: allow.recompute, ..Request::new(kept) };
    planners::smallest(o.numbers(), kept, &request).map_err(Error::Internal)
}

fn unknown_memory() -> Error {
    Error::Usage("the memory of the device is not known here: give --gpu-mem in bytes, as 16G".into())
}
