//! One line of the record, and how it is made.

use std::fmt::Write;
use std::path::Path;

use memc_ir::TensorType;
use memc_plan::{Action, Command, Init, Plan, PlanFile, Queue, Slice, Space};
use serde_json::Value;

use crate::cell::Cell;

/// Columns of the record.
pub(crate) const HEADER: &str = "model\toptions\tdevice\teffort\tbudget\tstep_ns\tarena\thost\tout\tin\t\
                                 recompute_ns\tevaluations\tdecisions\tdecoded\tplan";

/// A cell and what was made of it.
pub(crate) struct Row {
    pub(crate) cell: Cell,
    /// Everything after the cell: figures, and hashes of decisions, of the decoded plan and of the file.
    found: String,
}

impl Row {
    pub(crate) fn parse(line: &str) -> Result<Row, String> {
        let wrong = || format!("tests/plans/record.tsv: not a row: {line}");
        let fields: Vec<&str> = line.splitn(6, '\t').collect();
        let [model, options, device, effort, budget, found] = fields[..] else { return Err(wrong()) };
        let cell = Cell {
            model: model.into(),
            options: options.into(),
            device: device.into(),
            effort: effort.parse().map_err(|_| wrong())?,
            budget: budget.parse().map_err(|_| wrong())?,
        };
        Ok(Row { cell, found: found.into() })
    }

    pub(crate) fn print(&self) -> String {
        let Cell { model, options, device, effort, budget } = &self.cell;
        format!("{model}\t{options}\t{device}\t{effort}\t{budget}\t{}", self.found)
    }

    /// Compiles the cell. A budget without a plan is a result, too.
    pub(crate) fn measure(cell: &Cell) -> Result<Row, String> {
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (plan, decisions) = (folder.path().join("model.plan"), folder.path().join("decisions.txt"));
        let (budget, effort) = (format!("{}B", cell.budget), cell.effort.to_string());
        let path = |p: &Path| p.to_string_lossy().into_owned();
        let (plan_file, decisions_file) = (path(&plan), path(&decisions));
        let files = ["-o", &plan_file, "--decisions", &decisions_file];
        // Ops on the host are apart: no published planner has them.
        let search = ["--gpu-mem", &budget, "--effort", &effort, "--no-host-ops"];
        let out = cell.memc("compile", &[&search[..], &files].concat())?;
        let found = match out.status.code() {
            Some(0) => found(&out.stdout, &plan, &decisions).map_err(|e| format!("{cell:?}: {e}"))?,
            Some(4) => "infeasible".into(),
            _ => return Err(format!("{cell:?}: {}", String::from_utf8_lossy(&out.stderr))),
        };
        Ok(Row { cell: cell.clone(), found })
    }
}

fn found(json: &[u8], plan: &Path, decisions: &Path) -> Result<String, String> {
    let report: Value = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let fields = [
        "step_ns",
        "arena_bytes",
        "host_bytes",
        "swap_out_bytes",
        "swap_in_bytes",
        "recompute_ns",
        "evaluations",
    ];
    let mut out = String::new();
    for field in fields {
        let number = report[field].as_u64().ok_or_else(|| format!("`memc compile` prints no {field}"))?;
        write!(out, "{number}\t").map_err(|e| e.to_string())?;
    }
    let decisions = std::fs::read(decisions).map_err(|e| e.to_string())?;
    let file = PlanFile::open(plan).map_err(|e| e.to_string())?;
    let decoded = decoded(file.plan());
    let bytes = std::fs::read(plan).map_err(|e| e.to_string())?;
    for part in [&decisions[..], decoded.as_bytes(), &bytes] {
        out.push_str(&blake3::hash(part).to_hex()[..12]);
        out.push('\t');
    }
    Ok(out.trim_end().to_string())
}

/// Content of a plan, in a form that depends on neither its serial form nor the names of its parts.
fn decoded(p: &Plan) -> String {
    let mut out = format!("{} {} {}\n", p.meta.budget_bytes, p.meta.dev_bytes, p.meta.host_bytes);
    let slice = |s: &Slice| format!("{}:{}+{}", u8::from(s.space == Space::Host), s.offset, s.bytes);
    let texts = |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>();
    for k in &p.kernels {
        let (op, attrs) = (k.op.mnemonic(), k.op.attrs_text());
        let (operands, results) = (texts(&k.operands), texts(&k.results));
        out += &format!("{op}{attrs} {operands:?} {results:?} {}\n", k.workspace_bytes);
    }
    for s in &p.states {
        let init = match &s.init {
            Init::Zeros => String::from("0"),
            Init::Data { offset, bytes, hash } => format!("{offset} {bytes} {hash:?}"),
            Init::Random { seed, kind } => format!("{seed} {kind}"),
        };
        out += &format!("{} {} {} {} {init}\n", s.name, s.role.name(), s.ty, slice(&s.resident));
    }
    for i in &p.inputs {
        out += &format!("{} {} {}\n", i.name, i.ty, slice(&i.slot));
    }
    for o in &p.outputs {
        out += &format!("{} {} {} {}\n", o.name, o.ty, slice(&o.slot), o.role.name());
    }
    let slices = |list: &[Slice]| list.iter().map(slice).collect::<Vec<_>>().join(",");
    let command = |c: &Command| {
        // Numbers of the file's form.
        let queue = match c.queue {
            Queue::Host => 3,
            Queue::CPU => 4,
            other => other.index(),
        };
        let action = match &c.action {
            Action::Launch { kernel, reads, writes, workspace } => {
                let scratch = workspace.as_ref().map_or_else(String::new, slice);
                format!("k{kernel} {} > {} {scratch}", slices(reads), slices(writes))
            }
            Action::Copy { src, dst } => format!("c {} {}", slice(src), slice(dst)),
            Action::Record { event } => format!("r{event}"),
            Action::Wait { event } => format!("w{event}"),
            Action::Free { slice: s } => format!("f {}", slice(s)),
            Action::Load { state } => format!("l{state}"),
            Action::Store { state } => format!("s{state}"),
            Action::HostWrite { input } => format!("i{input}"),
            Action::HostRead { output } => format!("o{output}"),
        };
        format!("{queue} {action}\n")
    };
    for list in [&p.prologue, &p.body, &p.epilogue] {
        out.extend(list.iter().map(command));
        out.push('\n');
    }
    out
}
