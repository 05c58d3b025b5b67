//! Parsing.

use std::collections::BTreeSet;

use memc_ir::{TensorType, Turn, parse_op, parse_type};

use super::{
    lex::{self, Token},
    line::{Line, pair},
};
use crate::{
    Action, BUCKETS_VERSION, Command, FORMAT_VERSION, Feed, Init, Input, Kernel, Output, Plan, PlanError,
    Queue, Section, State, TUNED_VERSION, TunedAlgorithm, TunedKernel, Tuning, UnknownRole, output_role,
};

/// Parses the text form. Header lines may be left out and then have zero or empty values. The budget is then
/// the device arena, and the `source` hash that of the source text. Tables are numbered in order; numbers of
/// commands may be left out. All of this holds for each bucket by itself.
///
/// # Errors
/// [`PlanError::Text`] with the first line that does not parse, and [`PlanError::Version`] for another
/// format.
pub fn parse(text: &str) -> Result<Plan, PlanError> {
    let mut parser = Parser::default();
    // The plan itself, once its first bucket begins.
    let mut whole: Option<Plan> = None;
    let mut last = 0;
    for (index, line) in text.split('\n').enumerate() {
        last = index + 1;
        if parser.source_line(line) {
            continue;
        }
        let (tokens, comment) = lex::tokens(strip_brace(line), last)?;
        if tokens.is_empty() && !line.trim().starts_with('}') {
            continue;
        }
        if parser.version == 0 {
            parser.first_line(&tokens, last, whole.is_some())?;
            continue;
        }
        parser.in_source = tokens == [Token::Word("source"), Token::Word("text")];
        if parser.in_source {
            parser.once("source text", last)?;
        } else if tokens == [Token::Word("bucket")] {
            if whole.is_none() && parser.version != BUCKETS_VERSION {
                let what = format!("a bucket needs `plan {BUCKETS_VERSION}` in the first line of the text");
                return Err(PlanError::text(last, what));
            }
            add(&mut whole, std::mem::take(&mut parser).finish(last)?);
        } else {
            parser.line(line, &mut Line { rest: &tokens, number: last }, comment)?;
        }
    }
    if whole.is_none() && parser.version == BUCKETS_VERSION {
        let what = format!("the text ends without a bucket, and its first line is `plan {BUCKETS_VERSION}`");
        return Err(PlanError::text(last, what));
    }
    add(&mut whole, parser.finish(last)?);
    Ok(whole.unwrap_or_default())
}

/// Adds the next plan of the text: the first is the plan itself, all others are its buckets.
fn add(whole: &mut Option<Plan>, plan: Plan) {
    match whole {
        Some(whole) => whole.buckets.push(plan),
        None => *whole = Some(plan),
    }
}

/// A section's first line without its brace, and its last without anything; other lines as they are.
fn strip_brace(line: &str) -> &str {
    let trimmed = line.trim();
    if trimmed == "}" {
        return "";
    }
    let opens =
        |section: &Section| trimmed.strip_prefix(section.name()).is_some_and(|rest| rest.trim() == "{");
    match Section::ALL.iter().find(|section| opens(section)) {
        Some(section) => section.name(),
        None => line,
    }
}

/// The plan, or bucket, that is being read.
#[derive(Default)]
struct Parser {
    plan: Plan,
    /// Format version; 0 before the first line.
    version: u32,
    seen: BTreeSet<&'static str>,
    section: Option<Section>,
    hash: Option<[u8; 32]>,
    /// Whether lines of the source text may follow.
    in_source: bool,
    source: Option<String>,
}

impl Parser {
    /// Reads a line of the source text; false for any other.
    fn source_line(&mut self, line: &str) -> bool {
        let Some(content) = line.trim_start().strip_prefix('|').filter(|_| self.in_source) else {
            return false;
        };
        let content = content.strip_prefix(' ').unwrap_or(content);
        match &mut self.source {
            None => self.source = Some(content.to_owned()),
            Some(source) => {
                source.push('\n');
                source.push_str(content);
            }
        }
        true
    }

    /// The plan, whose text ends with the line of this number.
    fn finish(self, last: usize) -> Result<Plan, PlanError> {
        let fail = |what: &str| PlanError::text(last, what);
        if self.version == 0 {
            return Err(fail("the text ends before its first line, `plan 1`"));
        }
        if self.section.is_some() {
            return Err(fail("a section is not closed; end it with `}`"));
        }
        let Parser { mut plan, hash, seen, source, .. } = self;
        if !seen.contains("budget") {
            plan.meta.budget_bytes = plan.meta.dev_bytes;
        }
        plan.meta.set_source(source.unwrap_or_default());
        if let Some(hash) = hash {
            plan.meta.source_hash = hash;
        }
        Ok(plan)
    }

    fn first_line(&mut self, tokens: &[Token<'_>], line: usize, is_bucket: bool) -> Result<(), PlanError> {
        let fail = |what| Err(PlanError::Text { line, what });
        let [Token::Word("plan"), Token::Word(version)] = tokens else {
            return fail(format!("expected `plan {FORMAT_VERSION}`"));
        };
        match version.parse() {
            Ok(BUCKETS_VERSION) if is_bucket => {
                fail(format!("a bucket has no buckets; it begins with `plan {FORMAT_VERSION}`"))
            }
            Ok(version @ FORMAT_VERSION..=BUCKETS_VERSION) => {
                self.version = version;
                Ok(())
            }
            Ok(found) => Err(PlanError::Version { found, supported: BUCKETS_VERSION }),
            Err(_) => fail(format!("`{version}` is not a version")),
        }
    }

    fn once(&mut self, what: &'static str, line: usize) -> Result<(), PlanError> {
        if self.seen.insert(what) { Ok(()) } else { Err(PlanError::text(line, format!("a second `{what}`"))) }
    }

    fn line(&mut self, raw: &str, line: &mut Line<'_, '_>, comment: Option<&str>) -> Result<(), PlanError> {
        if raw.trim() == "}" {
            return self.section.take().map(|_| ()).ok_or_else(|| line.fail("`}` closes no section"));
        }
        if let Some(section) = self.section {
            let list = self.plan.section_mut(section);
            line.index(list.len())?;
            let (queue, action) = command(line)?;
            line.end()?;
            let label = comment.map_or(Ok(String::new()), |text| lex::label(text, line.number))?;
            list.push(Command { queue, action, label });
            return Ok(());
        }
        self.item(line)?;
        line.end()
    }

    fn tuning(&mut self, line: &Line<'_, '_>) -> Result<&mut Tuning, PlanError> {
        self.plan.tuning.as_mut().ok_or_else(|| line.fail("a `tuning` line comes first"))
    }

    fn item(&mut self, line: &mut Line<'_, '_>) -> Result<(), PlanError> {
        let word = line.word("a keyword such as `kernel`")?;
        if self.header(word, line)? { Ok(()) } else { self.entry(word, line) }
    }

    /// Reads a line of the header; false for any other.
    fn header(&mut self, word: &str, line: &mut Line<'_, '_>) -> Result<bool, PlanError> {
        let meta = &mut self.plan.meta;
        match word {
            "producer" => {
                meta.producer = line.text("the producer")?;
                self.once("producer", line.number)
            }
            "model" => {
                meta.model = line.text("the model's name")?;
                self.once("model", line.number)
            }
            "source" => {
                self.hash = Some(line.hash()?);
                self.once("source", line.number)
            }
            "planner" => {
                meta.planner = line.text("the planner's name")?;
                self.once("planner", line.number)
            }
            "profile" => {
                meta.profile = line.text("the profile's name")?;
                self.once("profile", line.number)
            }
            "seed" => {
                meta.seed = line.number("the seed")?;
                self.once("seed", line.number)
            }
            "option" => {
                meta.options.push((line.text("an option's name")?, line.text("an option's value")?));
                Ok(())
            }
            "budget" => {
                meta.budget_bytes = line.number("the budget in bytes")?;
                line.keyword("reserve")?;
                meta.reserve_bytes = line.number("the reserve in bytes")?;
                self.once("budget", line.number)
            }
            "arena" => {
                line.keyword("dev")?;
                meta.dev_bytes = line.number("the device arena in bytes")?;
                line.keyword("host")?;
                meta.host_bytes = line.number("the host arena in bytes")?;
                self.once("arena", line.number)
            }
            "claim" => {
                let name = line.word("a claim's name")?;
                let value = line.number("a claim's value")?;
                *meta.claims.field_mut(name).ok_or_else(|| line.fail(format!("unknown claim `{name}`")))? =
                    value;
                Ok(())
            }
            _ => return Ok(false),
        }
        .map(|()| true)
    }

    /// Reads a line of a table, or one that opens a section.
    fn entry(&mut self, word: &str, line: &mut Line<'_, '_>) -> Result<(), PlanError> {
        match word {
            "kernel" => {
                line.next_id("k", self.plan.kernels.len())?;
                line.keyword("=")?;
                self.plan.kernels.push(kernel(line, self.plan.kernels.len())?);
                Ok(())
            }
            "state" => {
                line.next_id("s", self.plan.states.len())?;
                self.plan.states.push(state(line)?);
                Ok(())
            }
            "input" => {
                line.next_id("i", self.plan.inputs.len())?;
                self.plan.inputs.push(input(line)?);
                Ok(())
            }
            "output" => {
                line.next_id("o", self.plan.outputs.len())?;
                self.plan.outputs.push(output(line)?);
                Ok(())
            }
            "tuning" => {
                if self.version < TUNED_VERSION {
                    return Err(
                        line.fail(format!("a tuning section needs `plan {TUNED_VERSION}` in the first line"))
                    );
                }
                self.plan.tuning = Some(tuning(line)?);
                self.once("tuning", line.number)
            }
            "library" => {
                let library = (line.text("a library")?, line.text("its version")?);
                self.tuning(line)?.libraries.push(library);
                Ok(())
            }
            "tuned" => {
                let kernel = tuned(line)?;
                self.tuning(line)?.kernels.push(kernel);
                Ok(())
            }
            "events" => {
                self.plan.events = line.number("the number of events")?;
                self.once("events", line.number)
            }
            word => {
                let section = Section::ALL.into_iter().find(|section| section.name() == word);
                let section = section.ok_or_else(|| line.fail(format!("unknown keyword `{word}`")))?;
                self.section = Some(section);
                self.once(section.name(), line.number)
            }
        }
    }
}

fn kernel(line: &mut Line<'_, '_>, index: usize) -> Result<Kernel, PlanError> {
    let op = line.text("an operator")?;
    let operands = line.list()?;
    let attrs = match line.rest.first() {
        Some(Token::Quoted(_)) => line.text("attributes")?,
        Some(Token::Word(word)) if word.starts_with('{') => line.text("attributes")?,
        _ => String::new(),
    };
    line.keyword("->")?;
    let results = line.list()?;
    let workspace_bytes = if line.take("workspace") { line.number("the workspace in bytes")? } else { 0 };
    let op = parse_op(&op, &attrs).map_err(|why| line.fail(format!("kernel k{index} `{op}`: {why}")))?;
    Ok(Kernel { op, operands: types(line, &operands)?, results: types(line, &results)?, workspace_bytes })
}

fn state(line: &mut Line<'_, '_>) -> Result<State, PlanError> {
    let (name, role, ty) = (line.text("a name")?, line.text("a role")?, line.text("a type")?);
    let resident = line.slice()?;
    let init = match line.word("`zeros`, `data` or `random`")? {
        "zeros" => Init::Zeros,
        "data" => {
            let place = line.word("a place such as 0:256")?;
            let (offset, bytes) = pair(place, ":")
                .ok_or_else(|| line.fail(format!("`{place}` is not a place such as 0:256")))?;
            Init::Data { offset, bytes, hash: line.hash()? }
        }
        "random" => Init::Random { seed: line.number("the seed")?, kind: line.text("the distribution")? },
        other => return Err(line.fail(format!("expected `zeros`, `data` or `random`, found `{other}`"))),
    };
    let role = role.parse().map_err(|unknown: UnknownRole| line.fail(unknown.to_string()))?;
    Ok(State { name, role, ty: tensor_type(line, &ty)?, resident, init })
}

fn input(line: &mut Line<'_, '_>) -> Result<Input, PlanError> {
    let (name, ty) = (line.text("a name")?, line.text("a type")?);
    let slot = line.slice()?;
    let feed = match line.word("`data`, `rate` or `step`")? {
        "data" => {
            let source = line.text("a source")?;
            line.keyword("micro")?;
            let micro = line.number("the micro-step")?;
            line.keyword("range")?;
            let range = line.word("a range such as 0..10")?;
            let (low, high) = pair(range, "..")
                .ok_or_else(|| line.fail(format!("`{range}` is not a range such as 0..10")))?;
            Feed::Data { source, micro, low, high }
        }
        "rate" => Feed::LearningRate { default: line.number("the default rate")?, turn: turn(line)? },
        "step" => Feed::Step { turn: turn(line)? },
        other => return Err(line.fail(format!("expected `data`, `rate` or `step`, found `{other}`"))),
    };
    Ok(Input { name, ty: tensor_type(line, &ty)?, slot, feed })
}

/// A step of a job that takes several in a round, or nothing for the only one.
fn turn(line: &mut Line<'_, '_>) -> Result<Turn, PlanError> {
    if line.end().is_ok() {
        return Ok(Turn::default());
    }
    line.keyword("turn")?;
    let turn = line.word("a turn such as 0/2")?;
    let (index, count) =
        pair(turn, "/").ok_or_else(|| line.fail(format!("`{turn}` is not a turn such as 0/2")))?;
    Ok(Turn { index, count })
}

fn output(line: &mut Line<'_, '_>) -> Result<Output, PlanError> {
    let (name, ty) = (line.text("a name")?, line.text("a type")?);
    let (slot, role) = (line.slice()?, line.text("a role")?);
    let role = output_role(&role).map_err(|unknown| line.fail(unknown.to_string()))?;
    Ok(Output { name, ty: tensor_type(line, &ty)?, slot, role })
}

fn tensor_type(line: &Line<'_, '_>, text: &str) -> Result<TensorType, PlanError> {
    parse_type(text).map_err(|why| line.fail(format!("type `{text}`: {why}")))
}

fn types(line: &Line<'_, '_>, texts: &[String]) -> Result<Vec<TensorType>, PlanError> {
    texts.iter().map(|text| tensor_type(line, text)).collect()
}

fn tuning(line: &mut Line<'_, '_>) -> Result<Tuning, PlanError> {
    let (device, arch) = (line.text("a device")?, line.text("an architecture")?);
    line.keyword("rounding")?;
    let rounding = line.text("a rounding")?;
    let allow_nondeterminism = line.take("nondeterministic");
    Ok(Tuning { device, arch, rounding, allow_nondeterminism, ..Tuning::default() })
}

fn tuned(line: &mut Line<'_, '_>) -> Result<TunedKernel, PlanError> {
    let kernel = line.id("k")?;
    let algorithm = match line.word("`product` or `convolution`")? {
        "product" => TunedAlgorithm::Product(Box::new(line.bytes("an algorithm of 128 hexadecimal digits")?)),
        "convolution" => {
            let algorithm = line.number("an algorithm")?;
            line.keyword("math")?;
            TunedAlgorithm::Convolution { algorithm, math: line.number("a kind of arithmetic")? }
        }
        other => return Err(line.fail(format!("expected `product` or `convolution`, found `{other}`"))),
    };
    line.keyword("workspace")?;
    let workspace_bytes = line.number("the workspace in bytes")?;
    line.keyword("ns")?;
    let ns = line.number("a time")?;
    line.keyword("default")?;
    let default_ns = line.number("a time")?;
    let is_apart = line.take("apart");
    Ok(TunedKernel { kernel, algorithm, workspace_bytes, ns, default_ns, is_apart })
}

fn command(line: &mut Line<'_, '_>) -> Result<(Queue, Action), PlanError> {
    let name = line.word("a stream")?;
    let queue = Queue::ALL.into_iter().find(|queue| queue.name() == name);
    let queue =
        queue.ok_or_else(|| line.fail(format!("`{name}` is not one of compute, d2h, h2d, cpu, host")))?;
    let action = match line.word("an action")? {
        "launch" => {
            let kernel = line.id("k")?;
            let (mut reads, mut writes, mut workspace) = (Vec::new(), Vec::new(), None);
            while !line.rest.is_empty() {
                if line.take("r") {
                    reads.push(line.slice()?);
                } else if line.take("w") {
                    writes.push(line.slice()?);
                } else if line.take("ws") && workspace.is_none() {
                    workspace = Some(line.slice()?);
                } else {
                    return Err(line.fail("expected `r`, `w` or one `ws`, each with a slice"));
                }
            }
            Action::Launch { kernel, reads, writes, workspace }
        }
        "copy" => {
            let src = line.slice()?;
            line.keyword("->")?;
            Action::Copy { src, dst: line.slice()? }
        }
        "record" => Action::Record { event: line.id("e")? },
        "wait" => Action::Wait { event: line.id("e")? },
        "free" => Action::Free { slice: line.slice()? },
        "load" => Action::Load { state: line.id("s")? },
        "store" => Action::Store { state: line.id("s")? },
        "write" => Action::HostWrite { input: line.id("i")? },
        "read" => Action::HostRead { output: line.id("o")? },
        other => return Err(line.fail(format!("unknown action `{other}`"))),
    };
    Ok((queue, action))
}
