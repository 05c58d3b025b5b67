//! `memc explain`: what a plan does to each tensor and why, and what its kernels wait for.

use clap::Args;
use glob::Pattern;
use memc_ir::{Bytes, counted};
use memc_planner::Home;
use memc_planner::account::{Account, Back, Cause, Gap, Late, Stall, account};
use memc_planner::planners::NoPlan;
use serde_json::{Value, json};

use crate::cli::{Question, ScriptFiles, Search};
use crate::exit::Error;
use crate::output::{Progress, emit, narrow_table, table, write_file};
use crate::posed::Ordered;
use crate::report::{Report, ms, over};
use crate::solve::answer;

#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Only tensors whose names match, those that stay on the device included; * stands for any characters
    #[arg(long, value_name = "GLOB", value_parser = Pattern::new)]
    pub(crate) tensor: Option<Pattern>,
    /// Rows of each table, the most expensive first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) script: ScriptFiles,
    /// Print one JSON object instead of text, with all tensors and stalls
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &Explain) -> Result<(), Error> {
    let progress = Progress::new(args.json);
    let (posed, outcome) = answer(&args.question, &args.search, &args.script, &progress)?;
    let how = &args.search.how;
    let (o, realised) = match (&outcome.plan, outcome.of(&posed)) {
        (_, Some(found)) => found,
        (Err(NoPlan::Infeasible(why)), _) => {
            return Err(posed.infeasible(&[&outcome.planner], why, outcome.budget, how.allow())?);
        }
        (Err(NoPlan::Failed(why)), _) => return Err(Error::Internal(why.clone())),
        (Ok(_), None) => return Err(Error::Internal("the plan is of no problem".into())),
    };
    let named = |t: &memc_planner::Tensor| args.tensor.as_ref().is_none_or(|g| g.matches(&t.name));
    let chosen: Vec<bool> = o.numbers().tensors.iter().map(named).collect();
    if let (Some(pattern), true) = (&args.tensor, chosen.iter().all(|c| !c)) {
        let names: Vec<&str> = o.numbers().tensors.iter().take(5).map(|t| t.name.as_str()).collect();
        let text = format!("no tensor is called `{pattern}`; there are for instance {}", names.join(", "));
        return Err(Error::Usage(text));
    }
    if let Some(file) = &args.script.decisions {
        write_file(file, realised.decisions.print(o.numbers()).as_bytes())?;
    }
    progress.stage("proving a bound");
    let report = Report::new(&posed, &outcome, how);
    let account = account(o.numbers(), realised);
    let told = Told { o, account: &account, chosen: &chosen, report: &report };
    let text = if args.json { told.json()? } else { told.text(args.top, args.tensor.is_some()) };
    progress.done();
    emit(&text)
}

/// What is told, and of which tensors.
struct Told<'a> {
    o: &'a Ordered,
    account: &'a Account,
    chosen: &'a [bool],
    report: &'a Report<'a>,
}

/// What happens to a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Does {
    Keep,
    Swap,
    Recompute,
    Both,
}

impl Does {
    fn name(self) -> &'static str {
        match self {
            Does::Keep => "keep",
            Does::Swap => "swap",
            Does::Recompute => "recompute",
            Does::Both => "swap and recompute",
        }
    }
}

impl<'a> Told<'a> {
    fn tensor(&self, t: u32) -> &'a str {
        &self.o.numbers().tensors[t as usize].name
    }

    /// A model's op by its source node; one of a problem by its name, which nothing else has.
    fn op(&self, op: u32) -> &'a str {
        let op = &self.o.numbers().ops[op as usize];
        if self.o.model().is_some() { &op.label } else { &op.name }
    }

    /// Where a persistent tensor is when a step begins.
    fn home(&self, t: u32) -> Option<&'static str> {
        let (_, realised) = self.report.outcome.of(self.report.posed)?;
        realised.decisions.homes.get(&t).map(Home::name)
    }

    /// The mark of a tensor that begins a step on both sides.
    fn sides(&self, t: u32) -> &'static str {
        if self.home(t) == Some("both") { "*" } else { "" }
    }

    /// For every tensor its gaps and what they amount to.
    fn tensors(&self) -> Vec<(Does, Vec<&'a Gap>)> {
        let mut out = vec![(Does::Keep, Vec::new()); self.chosen.len()];
        for gap in &self.account.gaps {
            let (does, gaps) = &mut out[gap.tensor as usize];
            let this = if gap.back == Back::Rerun { Does::Recompute } else { Does::Swap };
            *does = if *does == Does::Keep || *does == this { this } else { Does::Both };
            gaps.push(gap);
        }
        out
    }

    fn when(&self, gap: &Gap) -> (String, String) {
        let after = gap.after.map_or_else(|| "the step's start".into(), |op| self.op(op).to_string());
        let next = if gap.wraps { " (next step)" } else { "" };
        let before = gap.before.map_or_else(|| "the step's end".into(), |op| self.op(op).to_string());
        (after, format!("{before}{next}"))
    }

    /// The share of a gap's copies that nothing waited for; `None` where there are none.
    fn hidden(gap: &Gap) -> Option<f64> {
        let copies = gap.out_ns + gap.in_ns;
        over(gap.hidden_ns(), copies)
    }

    fn text(&self, top: usize, kept: bool) -> String {
        let p = self.o.numbers();
        let all = self.tensors();
        let mut out = String::new();
        let mut rows = Vec::new();
        for does in [Does::Keep, Does::Swap, Does::Recompute, Does::Both] {
            let of: Vec<usize> = (0..all.len()).filter(|&t| all[t].0 == does && self.chosen[t]).collect();
            let bytes: u64 = of.iter().map(|&t| p.tensors[t].bytes).sum();
            let sum = |f: &dyn Fn(&Gap) -> u64| of.iter().flat_map(|&t| &all[t].1).map(|g| f(g)).sum::<u64>();
            if !of.is_empty() {
                rows.push(vec![
                    does.name().into(),
                    counted(of.len(), "tensor"),
                    Bytes(bytes).short(),
                    ms(sum(&|g| g.out_ns + g.in_ns)),
                    ms(sum(&|g| g.rerun_ns)),
                    ms(sum(&|g| g.waited_ns)),
                ]);
            }
        }
        out.push_str(&table(&["", "", "bytes", "copies", "run again", "waited for"], &rows));
        let mut moves: Vec<&Gap> =
            self.account.gaps.iter().filter(|g| self.chosen[g.tensor as usize]).collect();
        moves
            .sort_by_key(|g| (std::cmp::Reverse((g.waited_ns + g.rerun_ns, g.cost_ns())), g.tensor, g.wraps));
        let mut rows: Vec<Vec<String>> = moves.iter().take(top).map(|g| self.row(g)).collect();
        if kept {
            let stay = (0..all.len()).filter(|&t| all[t].0 == Does::Keep && self.chosen[t]);
            rows.extend(stay.take(top).map(|t| {
                let tensor = &p.tensors[t];
                let does = format!("keep{}", self.sides(t as u32));
                let cells = [tensor.name.clone(), does, Bytes(tensor.bytes).short()];
                cells.into_iter().chain((0..6).map(|_| "-".to_string())).collect()
            }));
        }
        if !rows.is_empty() {
            let header = [
                "tensor",
                "does",
                "bytes",
                "leaves after",
                "back for",
                "copies",
                "again",
                "hidden",
                "makes room for",
            ];
            out.push('\n');
            out.push_str(&narrow_table(&header, &rows));
            out.push_str(&more(moves.len(), top, "gap"));
        }
        let both = (0..all.len()).filter(|&t| self.chosen[t] && self.home(t as u32) == Some("both")).count();
        if both > 0 {
            out.push_str(&format!(
                "* begins a step on both sides, on the device and in host memory: {}; it leaves without a copy until an op changes it\n",
                counted(both, "tensor")
            ));
        }
        let mut stalls: Vec<&Stall> = self.account.stalls.iter().collect();
        stalls.sort_by_key(|s| (std::cmp::Reverse(s.ns), s.at_ns));
        if !stalls.is_empty() {
            let rows: Vec<Vec<String>> = stalls
                .iter()
                .take(top)
                .map(|s| {
                    let (what, late) = self.cause(s.cause);
                    let again = if s.again { " (again)" } else { "" };
                    vec![format!("{}{again}", self.op(s.op)), ms(s.at_ns), ms(s.ns), what, late]
                })
                .collect();
            out.push('\n');
            out.push_str(&narrow_table(
                &["op that waits", "at", "for", "waits for", "which waited for"],
                &rows,
            ));
            out.push_str(&more(stalls.len(), top, "stall"));
        }
        let step = self.step_ns();
        let share = |ns| over(ns, step).map_or_else(|| "-".into(), |part| format!("{:.1} %", 100.0 * part));
        let causes: Vec<String> = self
            .by_cause()
            .iter()
            .map(|(what, n, ns)| format!("{what} {} ({})", ms(*ns), counted(*n, "stall")))
            .collect();
        let waiting = if causes.is_empty() { "no kernel waits".into() } else { causes.join(", ") };
        out.push_str(&format!(
            "\n{waiting}\nlinks busy: to the host {} of the step, to the device {}\n{} by {}: {} in a budget of {}\n",
            share(self.account.to_host_ns),
            share(self.account.to_device_ns),
            self.report.posed.name(),
            self.report.outcome.planner,
            self.report.verdict(),
            Bytes(self.report.outcome.budget),
        ));
        out
    }

    fn step_ns(&self) -> u64 {
        self.report.outcome.of(self.report.posed).map_or(0, |(_, r)| r.evaluation.step_ns)
    }

    fn row(&self, gap: &Gap) -> Vec<String> {
        let (after, before) = self.when(gap);
        let does = match gap.back {
            Back::Copy => "swap",
            Back::Rerun => "recompute",
            Back::Write => "swap out",
        };
        let time = |ns: u64| if ns == 0 { "-".to_string() } else { ms(ns) };
        vec![
            self.tensor(gap.tensor).to_string(),
            format!("{does}{}", self.sides(gap.tensor)),
            Bytes(self.o.numbers().tensors[gap.tensor as usize].bytes).short(),
            after,
            before,
            time(gap.out_ns + gap.in_ns),
            time(gap.rerun_ns),
            Self::hidden(gap).map_or_else(|| "-".into(), |h| format!("{:.0} %", 100.0 * h)),
            gap.room.map_or_else(
                || "-".into(),
                |(op, load)| format!("{} ({})", self.op(op), Bytes(load).short()),
            ),
        ]
    }

    /// What a kernel waited for, and what that waited for.
    fn cause(&self, cause: Cause) -> (String, String) {
        match cause {
            Cause::In(t, late) => {
                let late = match late {
                    Late::Link => "the link".into(),
                    Late::Op(op) => format!("room: {}", self.op(op)),
                    Late::Out(t) => format!("room: {} on its way out", self.tensor(t)),
                    Late::Step => "the step before".into(),
                };
                (format!("{} coming in", self.tensor(t)), late)
            }
            Cause::Out(t) => (format!("room: {} on its way out", self.tensor(t)), "the link".into()),
            Cause::Output(t) => (format!("result {} on its way out", self.tensor(t)), "the link".into()),
            Cause::Step => ("the step before".into(), "-".into()),
        }
    }

    /// Stalls by what they wait for: how many, and for how long in ns.
    fn by_cause(&self) -> Vec<(&'static str, usize, u64)> {
        let name = |cause: Cause| match cause {
            Cause::In(..) => "waiting for copies in",
            Cause::Out(_) => "waiting for room",
            Cause::Output(_) => "waiting for results to leave",
            Cause::Step => "waiting for the step before",
        };
        let mut out: Vec<(&'static str, usize, u64)> = Vec::new();
        for s in &self.account.stalls {
            match out.iter_mut().find(|o| o.0 == name(s.cause)) {
                Some(known) => {
                    known.1 += 1;
                    known.2 += s.ns;
                }
                None => out.push((name(s.cause), 1, s.ns)),
            }
        }
        out.sort_by_key(|o| std::cmp::Reverse(o.2));
        out
    }

    fn json(&self) -> Result<String, Error> {
        let p = self.o.numbers();
        let gap = |g: &&Gap| {
            json!({
                "after": g.after.map(|op| self.op(op)), "before": g.before.map(|op| self.op(op)), "next_step": g.wraps,
                "back_by": match g.back { Back::Copy => "copy", Back::Rerun => "recompute", Back::Write => "overwriting" },
                "copy_out_ns": g.out_ns, "copy_in_ns": g.in_ns, "recompute_ns": g.rerun_ns,
                "waited_ns": g.waited_ns, "hidden": Self::hidden(g),
                "makes_room_for": g.room.map(|r| self.op(r.0)), "bytes_there": g.room.map(|r| r.1),
            })
        };
        let tensor = |(t, (does, gaps)): (usize, &(Does, Vec<&Gap>))| {
            let (tensor, home) = (&p.tensors[t], self.home(t as u32));
            json!({
                "name": tensor.name, "bytes": tensor.bytes, "kind": tensor.kind.name(), "home": home, "does": does.name(),
                "gaps": gaps.iter().map(gap).collect::<Vec<Value>>(),
            })
        };
        let stall = |s: &Stall| {
            let (waits, because) = self.cause(s.cause);
            let tensor = match s.cause {
                Cause::In(t, _) | Cause::Out(t) | Cause::Output(t) => Some(self.tensor(t)),
                Cause::Step => None,
            };
            json!({
                "op": self.op(s.op), "again": s.again, "at_ns": s.at_ns, "ns": s.ns, "waits_for": waits,
                "because_of": because, "tensor": tensor,
            })
        };
        let all = self.tensors();
        let tensors: Vec<Value> =
            all.iter().enumerate().filter(|&(t, _)| self.chosen[t]).map(tensor).collect();
        let causes: serde_json::Map<String, Value> =
            self.by_cause().into_iter().map(|(what, _, ns)| (what.to_string(), ns.into())).collect();
        let mut object = self.report.json()?;
        object["tensors"] = tensors.into();
        object["stalls"] = self.account.stalls.iter().map(stall).collect();
        object["stalled_ns"] = causes.into();
        object["to_host_ns"] = self.account.to_host_ns.into();
        object["to_device_ns"] = self.account.to_device_ns.into();
        Ok(format!("{object}\n"))
    }
}

/// What a table leaves out.
fn more(all: usize, top: usize, what: &str) -> String {
    let rest = all.saturating_sub(top);
    if rest == 0 {
        String::new()
    } else {
        format!("and {}: --top {all} shows all\n", counted(rest, &format!("more {what}")))
    }
}
