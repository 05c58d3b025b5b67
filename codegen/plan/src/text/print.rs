//! Printing.

use std::fmt::{self, Write};

use memc_ir::{TensorType, Turn};

use super::lex::{Label, Text};
use crate::{
    Action, Command, Feed, Init, Input, Kernel, Output, Plan, Queue, Section, State, TunedAlgorithm,
    TunedKernel, Tuning,
};

/// The text form of a plan.
pub fn print(plan: &Plan) -> String {
    PlanText(plan).to_string()
}

struct PlanText<'a>(&'a Plan);

impl fmt::Display for PlanText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.0;
        let meta = &plan.meta;
        let names = plan.bucket_names();
        let mut names = names.iter().map(|name| Label(name));
        write!(f, "plan {}", plan.version())?;
        names.next().map_or(Ok(()), |own| writeln!(f, "{own}"))?;
        writeln!(f, "producer {}", Text(&meta.producer))?;
        writeln!(f, "model {}", Text(&meta.model))?;
        writeln!(f, "source {}", Hash(&meta.source_hash))?;
        writeln!(f, "planner {}", Text(&meta.planner))?;
        writeln!(f, "profile {}", Text(&meta.profile))?;
        writeln!(f, "seed {}", meta.seed)?;
        for (name, value) in &meta.options {
            writeln!(f, "option {} {}", Text(name), Text(value))?;
        }
        writeln!(f, "budget {} reserve {}", meta.budget_bytes, meta.reserve_bytes)?;
        writeln!(f, "arena dev {} host {}", meta.dev_bytes, meta.host_bytes)?;
        for (name, value) in meta.claims.fields() {
            writeln!(f, "claim {name} {value}")?;
        }
        for (index, kernel) in plan.kernels.iter().enumerate() {
            writeln!(f, "kernel k{index} = {kernel}")?;
        }
        for (index, state) in plan.states.iter().enumerate() {
            write!(f, "state s{index} {state}")?;
            plan.host_shadow(state).iter().try_for_each(|slice| write!(f, " ; host shadow {slice}"))?;
            writeln!(f)?;
        }
        for (index, input) in plan.inputs.iter().enumerate() {
            writeln!(f, "input i{index} {input}")?;
        }
        for (index, output) in plan.outputs.iter().enumerate() {
            writeln!(f, "output o{index} {output}")?;
        }
        if let Some(tuning) = &plan.tuning {
            writeln!(f, "tuning {tuning}")?;
            for (name, version) in &tuning.libraries {
                writeln!(f, "library {} {}", Text(name), Text(version))?;
            }
            for kernel in &tuning.kernels {
                writeln!(f, "tuned k{} {kernel}", kernel.kernel)?;
            }
        }
        writeln!(f, "events {}", plan.events)?;
        for section in Section::ALL {
            writeln!(f, "{section} {{")?;
            for (index, command) in plan.section(section).iter().enumerate() {
                writeln!(f, "  {index} {command}{}", Label(&command.label))?;
            }
            writeln!(f, "}}")?;
        }
        if !meta.source.is_empty() {
            writeln!(f, "source text")?;
            for line in meta.source.split('\n') {
                if line.is_empty() { writeln!(f, "  |")? } else { writeln!(f, "  | {line}")? }
            }
        }
        let mut buckets = plan.buckets.iter().zip(names);
        buckets.try_for_each(|(bucket, name)| write!(f, "bucket{name}\n{}", PlanText(bucket)))
    }
}

struct Hash<'a>(&'a [u8; 32]);

impl fmt::Display for Hash<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("blake3:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `op(operands) {attributes} -> (results) workspace bytes`, as in the text form.
impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.op.mnemonic())?;
        list(f, &self.operands)?;
        f.write_char(')')?;
        let attrs = self.op.attrs_text();
        if !attrs.is_empty() {
            write!(f, " {}", Text(&attrs))?;
        }
        f.write_str(" -> (")?;
        list(f, &self.results)?;
        f.write_char(')')?;
        if self.workspace_bytes > 0 { write!(f, " workspace {}", self.workspace_bytes) } else { Ok(()) }
    }
}

fn list(f: &mut fmt::Formatter<'_>, items: &[TensorType]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        write!(f, "{}{}", if index > 0 { ", " } else { "" }, item)?;
    }
    Ok(())
}

/// `name role type resident init`, as in the text form.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {} ", Text(&self.name), self.role.name(), self.ty, self.resident)?;
        match &self.init {
            Init::Zeros => f.write_str("zeros"),
            Init::Data { offset, bytes, hash } => write!(f, "data {offset}:{bytes} {}", Hash(hash)),
            Init::Random { seed, kind } => write!(f, "random {seed} {}", Text(kind)),
        }
    }
}

/// Which of a job's steps in a round it is, where there are several.
struct Round(Turn);

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Turn::default() { Ok(()) } else { write!(f, " turn {}/{}", self.0.index, self.0.count) }
    }
}

/// `name type slot feed`, as in the text form.
impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} ", Text(&self.name), self.ty, self.slot)?;
        match &self.feed {
            Feed::Data { source, micro, low, high } => {
                write!(f, "data {} micro {micro} range {low}..{high}", Text(source))
            }
            Feed::LearningRate { default, turn } => write!(f, "rate {default}{}", Round(*turn)),
            Feed::Step { turn } => write!(f, "step{}", Round(*turn)),
        }
    }
}

/// `name type slot role`, as in the text form.
impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", Text(&self.name), self.ty, self.slot, self.role.name())
    }
}

/// `queue action`, as in the text form; without the label.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.queue, self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Action::Launch { kernel, reads, writes, workspace } => {
                write!(f, " k{kernel}")?;
                reads.iter().try_for_each(|slice| write!(f, " r {slice}"))?;
                writes.iter().try_for_each(|slice| write!(f, " w {slice}"))?;
                workspace.iter().try_for_each(|slice| write!(f, " ws {slice}"))
            }
            Action::Copy { src, dst } => write!(f, " {src} -> {dst}"),
            Action::Record { event } | Action::Wait { event } => write!(f, " e{event}"),
            Action::Free { slice } => write!(f, " {slice}"),
            Action::Load { state } | Action::Store { state } => write!(f, " s{state}"),
            Action::HostWrite { input } => write!(f, " i{input}"),
            Action::HostRead { output } => write!(f, " o{output}"),
        }
    }
}

/// `device architecture rounding name`, as in the text form; without libraries and kernels.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} rounding {}", Text(&self.device), Text(&self.arch), Text(&self.rounding))?;
        f.write_str(if self.allow_nondeterminism { " nondeterministic" } else { "" })
    }
}

/// `product bytes` or `convolution algorithm math kind`, as in the text form.
impl fmt::Display for TunedAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TunedAlgorithm::Product(bytes) => {
                f.write_str("product ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            TunedAlgorithm::Convolution { algorithm, math } => {
                write!(f, "convolution {algorithm} math {math}")
            }
        }
    }
}

/// `algorithm workspace bytes ns time default time`, as in the text form, and `apart` where it is.
impl fmt::Display for TunedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TunedKernel { algorithm, workspace_bytes, ns, default_ns, is_apart, .. } = self;
        write!(f, "{algorithm} workspace {workspace_bytes} ns {ns} default {default_ns}")?;
        f.write_str(if *is_apart { " apart" } else { "" })
    }
}
