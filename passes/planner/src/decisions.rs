//! Decisions of a planner, as text that prints, diffs and replays.
//! `FORMATS.md` of this crate has an example and says what each line means.

use std::collections::BTreeMap;
use std::fmt::Write;

use memc_ir::Arena;

use crate::error::{At, DecisionsError};
use crate::ids::{OpPos, TensorId};
use crate::problem::{ALIGN, Problem, TensorKind};

/// The order in which a problem poses its ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// As the module gives it.
    #[default]
    Given,
    /// As the pass `schedule-ops{algo=greedy}` leaves it.
    Greedy,
}

impl Order {
    /// Spelling in options and decision files.
    pub fn name(self) -> &'static str {
        match self {
            Order::Given => "given",
            Order::Greedy => "greedy",
        }
    }
}

/// A formulation of a model's gradients. All of a model compute the same bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Formulation {
    /// The model's own.
    #[default]
    Own,
    /// The result of `memory-rewrite{exchange=0}`: fewer saved bytes for no more time.
    Fast,
    /// The result of `memory-rewrite{exchange=1}`: fewer saved bytes, where copying them takes longer.
    Lean,
    /// The result of `memory-rewrite`: the fewest saved bytes.
    Small,
}

impl Formulation {
    /// Every formulation.
    pub const ALL: [Formulation; 4] =
        [Formulation::Own, Formulation::Fast, Formulation::Lean, Formulation::Small];

    /// Spelling in options and decision files.
    pub fn name(self) -> &'static str {
        match self {
            Formulation::Own => "own",
            Formulation::Fast => "fast",
            Formulation::Lean => "lean",
            Formulation::Small => "small",
        }
    }

    /// The formulation of a name.
    pub fn named(name: &str) -> Option<Formulation> {
        Formulation::ALL.into_iter().find(|f| f.name() == name)
    }
}

/// Formulation and order of a problem, and its ops on the host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pose {
    /// The graph that it is of.
    pub formulation: Formulation,
    /// The order of its ops.
    pub order: Order,
    /// Names of the ops that run on the host.
    pub host: Vec<String>,
}

/// Largest offset that decisions may name, in bytes.
const MAX_OFFSET: u64 = 1 << 60;

/// Where a persistent tensor starts and ends every step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resident {
    /// In device memory, at the offset if given.
    Dev(Option<u64>),
    /// In device memory, at the offset if given, with the same content in host memory.
    Both(Option<u64>),
    /// In host memory.
    Host,
}

impl Resident {
    /// Spelling in files, without the offset.
    pub fn name(&self) -> &'static str {
        match self {
            Resident::Dev(_) => "dev",
            Resident::Both(_) => "both",
            Resident::Host => "host",
        }
    }
}

/// A place for a tensor: its index in the problem, and an offset in bytes unless layout chooses.
pub type Place = (TensorId, Option<u64>);

/// One step of decisions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Copies a tensor from host to device.
    In(Place),
    /// Copies a tensor from device to host.
    Out(TensorId),
    /// Gives back a tensor's device bytes.
    Drop(TensorId),
    /// Runs an op.
    Run(Run),
}

/// One execution of an op.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// The op's position in the problem.
    pub op: OpPos,
    /// Whether the op has run before in this step.
    pub recompute: bool,
    /// Places of the tensors that appear here: written ones that are not on the device yet.
    pub at: Vec<Place>,
    /// Of a recomputation: offsets of the results that have no place and are not wanted.
    pub scratch: Vec<Option<u64>>,
    /// Offset of the workspace, if the op has one.
    pub workspace: Option<Option<u64>>,
}

/// A planner's decisions about one problem.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decisions {
    /// Pose of the problem.
    pub pose: Pose,
    /// Resident places of the persistent tensors.
    pub residents: BTreeMap<TensorId, Resident>,
    /// Actions in order.
    pub actions: Vec<Action>,
}

impl Decisions {
    /// Everything stays on the device: inputs arrive before their first use, tensors leave after their last.
    pub fn keep_all(problem: &Problem) -> Decisions {
        let mut d = Decisions::default();
        let mut arrived = Arena::filled(false, problem.tensors.len());
        for (t, _) in problem.tensors.iter().filter(|(_, t)| t.persistent()) {
            d.residents.insert(t, Resident::Dev(None));
            arrived[t] = true;
        }
        for (i, op) in problem.ops.iter() {
            let mut at = Vec::new();
            for &t in op.reads.iter().chain(&op.writes) {
                let there = std::mem::replace(&mut arrived[t], true);
                match problem.tensors[t].kind {
                    _ if there => {}
                    TensorKind::Input | TensorKind::Hosted if op.reads.contains(&t) => {
                        d.actions.push(Action::In((t, None)))
                    }
                    _ => at.push((t, None)),
                }
            }
            let workspace = (op.workspace > 0).then_some(None);
            d.actions.push(Action::Run(Run { op: i, at, workspace, ..Run::default() }));
            for t in problem.working_set(i) {
                let tensor = &problem.tensors[t];
                if !tensor.persistent() && tensor.next_touch(i).is_none() {
                    d.actions.push(Action::Drop(t));
                }
            }
        }
        d
    }

    /// The text form of the decisions for their problem.
    pub fn print(&self, problem: &Problem) -> String {
        let tensor = |t: TensorId| name(&problem.tensors[t].name);
        let offset = |at: Option<u64>| at.map_or_else(String::new, |at| format!(" @ {at}"));
        let mut out = String::from("decisions 2\n");
        if self.pose.formulation != Formulation::Own {
            let _ = writeln!(out, "formulation {}", self.pose.formulation.name());
        }
        if self.pose.order != Order::Given {
            let _ = writeln!(out, "order {}", self.pose.order.name());
        }
        for op in &self.pose.host {
            let _ = writeln!(out, "host {}", name(op));
        }
        for (&t, resident) in &self.residents {
            let at = match resident {
                Resident::Dev(at) | Resident::Both(at) => *at,
                Resident::Host => None,
            };
            let _ = writeln!(out, "resident {} {}{}", tensor(t), resident.name(), offset(at));
        }
        for action in &self.actions {
            match action {
                Action::In((t, at)) => {
                    let _ = writeln!(out, "in {}{}", tensor(*t), offset(*at));
                }
                Action::Out(t) => {
                    let _ = writeln!(out, "out {}", tensor(*t));
                }
                Action::Drop(t) => {
                    let _ = writeln!(out, "drop {}", tensor(*t));
                }
                Action::Run(run) => {
                    let word = if run.recompute { "recompute" } else { "run" };
                    let mut places: Vec<String> =
                        run.at.iter().map(|(t, o)| format!("{}{}", tensor(*t), offset(*o))).collect();
                    places.extend(run.scratch.iter().map(|o| format!("scratch{}", offset(*o))));
                    places.extend(run.workspace.iter().map(|o| format!("ws{}", offset(*o))));
                    let at = if places.is_empty() { "" } else { " at " };
                    let op = name(&problem.ops[run.op].name);
                    let _ = writeln!(out, "{word} {op}{at}{}", places.join(", "));
                }
            }
        }
        out
    }

    /// Whether ops first run in the problem's order.
    pub fn keeps_order(&self) -> bool {
        let first = |a: &Action| match a {
            Action::Run(run) => Some(run.op).filter(|_| !run.recompute),
            _ => None,
        };
        self.actions.iter().filter_map(first).is_sorted()
    }

    /// Pose of the problem of a text form, which says it in the lines after the first.
    pub fn pose_in(text: &str) -> Pose {
        let mut pose = Pose::default();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.skip(1).map_while(|line| pose_line(line, &mut pose)).count();
        pose
    }

    /// Reads the text form; errors name the line.
    pub fn parse(text: &str, problem: &Problem) -> Result<Decisions, DecisionsError> {
        Decisions::with_lines(text, problem).map(|read| read.0)
    }

    /// As [`Decisions::parse`], with the lines of the text.
    pub(crate) fn with_lines(text: &str, problem: &Problem) -> Result<(Decisions, Lines), DecisionsError> {
        let names = Names::new(problem);
        let mut lines =
            text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())).filter(|(_, l)| !l.is_empty());
        match lines.next().map(|(_, l)| l) {
            Some("decisions 2") => {}
            Some("decisions 1") => {
                return Err(
                    "`decisions 1` is of an earlier release, with `home` and `redo` for `resident` and \
                            `recompute`; plan again"
                        .into(),
                );
            }
            _ => return Err("a decision file starts with `decisions 2`".into()),
        }
        let mut d = Decisions { pose: Decisions::pose_in(text), ..Decisions::default() };
        let mut at = Lines::default();
        let mut head = Pose::default();
        for (number, line) in lines.skip_while(|(_, line)| pose_line(line, &mut head).is_some()) {
            match names.line(line, &mut d).map_err(|e| e.at(At::Line(number)))? {
                Some(tensor) => _ = at.residents.insert(tensor, number),
                None => at.actions.push(number),
            }
        }
        Ok((d, at))
    }
}

/// Reads a line that says how a problem was posed; `None` where it says something else.
fn pose_line(line: &str, pose: &mut Pose) -> Option<()> {
    match line.split_once(' ')? {
        ("order", "greedy") => pose.order = Order::Greedy,
        ("formulation", name) => pose.formulation = Formulation::named(name)?,
        ("host", op) => pose.host.push(unescaped(op.strip_prefix('%')?)),
        _ => return None,
    }
    Some(())
}

/// Where a text form says what, in lines from 1.
#[derive(Default)]
pub(crate) struct Lines {
    /// The resident place of a tensor.
    pub(crate) residents: BTreeMap<TensorId, usize>,
    /// Every action.
    pub(crate) actions: Vec<usize>,
}

/// A name without separators: whitespace, control characters, commas and backslashes are escaped.
fn name(text: &str) -> String {
    let mut out = String::from("%");
    for c in text.chars() {
        if c.is_whitespace() || c.is_control() || c == ',' || c == '\\' {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        } else {
            out.push(c);
        }
    }
    out
}

/// The text that [`name`] has escaped, without its `%`.
fn unescaped(text: &str) -> String {
    let mut parts = text.split("\\u{");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_once('}').unwrap_or(("", part));
        out.extend(u32::from_str_radix(code, 16).ok().and_then(char::from_u32));
        out.push_str(rest);
    }
    out
}

/// Names of one problem, for reading.
struct Names {
    tensors: BTreeMap<String, TensorId>,
    ops: BTreeMap<String, OpPos>,
    persistent: Arena<TensorId, bool>,
}

impl Names {
    fn new(problem: &Problem) -> Names {
        let tensors = problem.tensors.iter().map(|(i, t)| (name(&t.name), i)).collect();
        let ops = problem.ops.iter().map(|(i, op)| (name(&op.name), i)).collect();
        let persistent = problem.tensors.values().map(|t| t.persistent()).collect();
        Names { tensors, ops, persistent }
    }

    fn tensor(&self, text: &str) -> Result<TensorId, DecisionsError> {
        self.tensors.get(text.trim()).copied().ok_or_else(|| format!("no tensor is called {text}").into())
    }

    fn place(&self, text: &str) -> Result<Place, DecisionsError> {
        let (tensor, at) = split_offset(text)?;
        Ok((self.tensor(tensor)?, at))
    }

    /// Reads a line: an action, or the resident place of the tensor that is returned.
    fn line(&self, line: &str, d: &mut Decisions) -> Result<Option<TensorId>, DecisionsError> {
        let (word, rest) = line.split_once(' ').ok_or("expected a word and a name")?;
        match word {
            "resident" => {
                let word =
                    |w: &str| rest.rsplit_once(w).filter(|(_, end)| end.is_empty() || end.starts_with(" @ "));
                let (tensor, resident) = if let Some((tensor, "")) = word(" host") {
                    (tensor, Resident::Host)
                } else if let Some((tensor, at)) = word(" dev") {
                    (tensor, Resident::Dev(split_offset(at)?.1))
                } else if let Some((tensor, at)) = word(" both") {
                    (tensor, Resident::Both(split_offset(at)?.1))
                } else {
                    return Err("expected `host`, `dev` or `both`".into());
                };
                let tensor = self.tensor(tensor)?;
                if !self.persistent[tensor] {
                    return Err("only states and constants are resident".into());
                }
                if d.residents.insert(tensor, resident).is_some() {
                    return Err("the tensor is resident somewhere already".into());
                }
                return Ok(Some(tensor));
            }
            "in" => d.actions.push(Action::In(self.place(rest)?)),
            "out" => d.actions.push(Action::Out(self.tensor(rest)?)),
            "drop" => d.actions.push(Action::Drop(self.tensor(rest)?)),
            "run" | "recompute" => {
                let (op, mut rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let op = *self.ops.get(op).ok_or_else(|| format!("no op defines {op}"))?;
                rest = rest.trim().strip_prefix("at ").unwrap_or(rest.trim());
                let mut run = Run { op, recompute: word == "recompute", ..Run::default() };
                for item in rest.split(',').map(str::trim).filter(|s| !s.is_empty()) {
                    if let Some(o) = item.strip_prefix("scratch") {
                        run.scratch.push(split_offset(o)?.1);
                    } else if let Some(o) = item.strip_prefix("ws") {
                        run.workspace = Some(split_offset(o)?.1);
                    } else {
                        run.at.push(self.place(item)?);
                    }
                }
                d.actions.push(Action::Run(run));
            }
            _ => return Err(format!("unknown action `{word}`").into()),
        }
        Ok(None)
    }
}

fn split_offset(text: &str) -> Result<(&str, Option<u64>), DecisionsError> {
    let Some((t, at)) = text.rsplit_once("@ ") else { return Ok((text.trim(), None)) };
    let offset: Option<u64> = at.trim().parse().ok().filter(|at| *at <= MAX_OFFSET && at % ALIGN == 0);
    match offset {
        Some(offset) => Ok((t.trim(), Some(offset))),
        None => Err(format!("`{at}` is not an offset: a multiple of {} up to 2^60", ALIGN).into()),
    }
}
