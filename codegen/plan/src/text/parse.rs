//! Parsing.

use std::collections::BTreeSet;

use super::{
    lex::{self, Token},
    line::{Line, pair},
};
use crate::{
    Action, Command, FORMAT_VERSION, Feed, Init, Input, Kernel, Output, Plan, PlanError, Section, State,
    Stream, TUNED_VERSION, TunedKernel, Tuning, Way,
};

/// Parses the text form. Header lines may be left out and then have zero or empty values; without a `source` hash, it
/// is that of the source text. Tables are numbered in order; numbers of commands may be left out.
///
/// # Errors
/// [`PlanError::Text`] with the first line that does not parse, and [`PlanError::Version`] for another format.
pub fn parse(text: &str) -> Result<Plan, PlanError> {
    let mut parser =
        Parser { plan: Plan::default(), seen: BTreeSet::new(), section: None, hash: None, is_tuned: false };
    let mut in_source = false;
    let mut source: Option<String> = None;
    let mut last = 0;
    for (index, line) in text.split('\n').enumerate() {
        last = index + 1;
        if let Some(content) = line.trim_start().strip_prefix('|').filter(|_| in_source) {
            let content = content.strip_prefix(' ').unwrap_or(content);
            match &mut source {
                None => source = Some(content.to_owned()),
                Some(source) => {
                    source.push('\n');
                    source.push_str(content);
                }
            }
            continue;
        }
        let fail = |what| PlanError::Text { line: last, what };
        let (tokens, comment) = lex::tokens(strip_brace(line)).map_err(fail)?;
        if tokens.is_empty() && !line.trim().starts_with('}') {
            continue;
        }
        if !parser.seen.contains("plan") {
            parser.version(&tokens, last)?;
            continue;
        }
        in_source = tokens == [Token::Word("source"), Token::Word("text")];
        if in_source {
            parser.once("source text").map_err(fail)?;
            continue;
        }
        parser.line(line, &mut Line { rest: &tokens }, comment).map_err(fail)?;
    }
    let fail = |what: &str| PlanError::Text { line: last, what: what.to_owned() };
    if !parser.seen.contains("plan") {
        return Err(fail("the text ends before its first line, `plan 1`"));
    }
    if parser.section.is_some() {
        return Err(fail("a section is not closed; end it with `}`"));
    }
    let Parser { mut plan, hash, .. } = parser;
    plan.meta.set_source(source.unwrap_or_default());
    if let Some(hash) = hash {
        plan.meta.source_hash = hash;
    }
    Ok(plan)
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

struct Parser {
    plan: Plan,
    seen: BTreeSet<&'static str>,
    section: Option<Section>,
    hash: Option<[u8; 32]>,
    /// Whether the version is that of plans with a tuning section.
    is_tuned: bool,
}

impl Parser {
    fn version(&mut self, tokens: &[Token<'_>], line: usize) -> Result<(), PlanError> {
        match tokens {
            [Token::Word("plan"), Token::Word(version)] => match version.parse() {
                Ok(version @ FORMAT_VERSION..=TUNED_VERSION) => {
                    self.seen.insert("plan");
                    self.is_tuned = version == TUNED_VERSION;
                    Ok(())
                }
                Ok(found) => Err(PlanError::Version { found, supported: TUNED_VERSION }),
                Err(_) => Err(PlanError::Text { line, what: format!("`{version}` is not a version") }),
            },
            _ => Err(PlanError::Text { line, what: format!("expected `plan {FORMAT_VERSION}`") }),
        }
    }

    fn once(&mut self, what: &'static str) -> Result<(), String> {
        if self.seen.insert(what) { Ok(()) } else { Err(format!("a second `{what}`")) }
    }

    fn line(&mut self, raw: &str, line: &mut Line<'_, '_>, comment: Option<&str>) -> Result<(), String> {
        if raw.trim() == "}" {
            return self.section.take().map(|_| ()).ok_or_else(|| "`}` closes no section".to_owned());
        }
        if let Some(section) = self.section {
            let list = self.plan.section_mut(section);
            line.index(list.len())?;
            let (stream, action) = command(line)?;
            line.end()?;
            let label = comment.map_or(Ok(String::new()), lex::label)?;
            list.push(Command { stream, action, label });
            return Ok(());
        }
        self.item(line)?;
        line.end()
    }

    fn tuning(&mut self) -> Result<&mut Tuning, String> {
        self.plan.tuning.as_mut().ok_or_else(|| "a `tuning` line comes first".to_owned())
    }

    fn item(&mut self, line: &mut Line<'_, '_>) -> Result<(), String> {
        let meta = &mut self.plan.meta;
        match line.word("a keyword such as `kernel`")? {
            "producer" => {
                meta.producer = line.text("the producer")?;
                self.once("producer")
            }
            "model" => {
                meta.model = line.text("the model's name")?;
                self.once("model")
            }
            "source" => {
                self.hash = Some(line.hash()?);
                self.once("source")
            }
            "planner" => {
                meta.planner = line.text("the planner's name")?;
                self.once("planner")
            }
            "profile" => {
                meta.profile = line.text("the profile's name")?;
                self.once("profile")
            }
            "seed" => {
                meta.seed = line.number("the seed")?;
                self.once("seed")
            }
            "option" => {
                meta.options.push((line.text("an option's name")?, line.text("an option's value")?));
                Ok(())
            }
            "budget" => {
                meta.budget_bytes = line.number("the budget in bytes")?;
                line.keyword("reserve")?;
                meta.reserve_bytes = line.number("the reserve in bytes")?;
                self.once("budget")
            }
            "arena" => {
                line.keyword("dev")?;
                meta.dev_bytes = line.number("the device arena in bytes")?;
                line.keyword("host")?;
                meta.host_bytes = line.number("the host arena in bytes")?;
                self.once("arena")
            }
            "claim" => {
                let name = line.word("a claim's name")?;
                let value = line.number("a claim's value")?;
                *meta.claims.field_mut(name).ok_or_else(|| format!("unknown claim `{name}`"))? = value;
                Ok(())
            }
            "kernel" => {
                line.next_id("k", self.plan.kernels.len())?;
                line.keyword("=")?;
                self.plan.kernels.push(kernel(line)?);
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
                let (name, ty) = (line.text("a name")?, line.text("a type")?);
                self.plan.outputs.push(Output { name, ty, slot: line.slice()?, role: line.text("a role")? });
                Ok(())
            }
            "tuning" => {
                if !self.is_tuned {
                    return Err(format!("a tuning section needs `plan {TUNED_VERSION}` in the first line"));
                }
                self.plan.tuning = Some(tuning(line)?);
                self.once("tuning")
            }
            "library" => {
                let library = (line.text("a library")?, line.text("its version")?);
                self.tuning()?.libraries.push(library);
                Ok(())
            }
            "tuned" => {
                let kernel = tuned(line)?;
                self.tuning()?.kernels.push(kernel);
                Ok(())
            }
            "events" => {
                self.plan.events = line.number("the number of events")?;
                self.once("events")
            }
            word => {
                let section = Section::ALL.into_iter().find(|section| section.name() == word);
                let section = section.ok_or_else(|| format!("unknown keyword `{word}`"))?;
                self.section = Some(section);
                self.once(section.name())
            }
        }
    }
}

fn kernel(line: &mut Line<'_, '_>) -> Result<Kernel, String> {
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
    Ok(Kernel { op, attrs, operands, results, workspace_bytes })
}

fn state(line: &mut Line<'_, '_>) -> Result<State, String> {
    let (name, role, ty) = (line.text("a name")?, line.text("a role")?, line.text("a type")?);
    let home = line.slice()?;
    let init = match line.word("`zeros`, `data` or `random`")? {
        "zeros" => Init::Zeros,
        "data" => {
            let place = line.word("a place such as 0:256")?;
            let (offset, bytes) =
                pair(place, ":").ok_or_else(|| format!("`{place}` is not a place such as 0:256"))?;
            Init::Data { offset, bytes, hash: line.hash()? }
        }
        "random" => Init::Random { seed: line.number("the seed")?, kind: line.text("the distribution")? },
        other => return Err(format!("expected `zeros`, `data` or `random`, found `{other}`")),
    };
    Ok(State { name, role, ty, home, init })
}

fn input(line: &mut Line<'_, '_>) -> Result<Input, String> {
    let (name, ty) = (line.text("a name")?, line.text("a type")?);
    let slot = line.slice()?;
    let feed = match line.word("`data`, `rate` or `step`")? {
        "data" => {
            let source = line.text("a source")?;
            line.keyword("micro")?;
            let micro = line.number("the micro-step")?;
            line.keyword("range")?;
            let range = line.word("a range such as 0..10")?;
            let (low, high) =
                pair(range, "..").ok_or_else(|| format!("`{range}` is not a range such as 0..10"))?;
            Feed::Data { source, micro, low, high }
        }
        "rate" => Feed::LearningRate { default: line.number("the default rate")? },
        "step" => Feed::Step,
        other => return Err(format!("expected `data`, `rate` or `step`, found `{other}`")),
    };
    Ok(Input { name, ty, slot, feed })
}

fn tuning(line: &mut Line<'_, '_>) -> Result<Tuning, String> {
    let (device, arch) = (line.text("a device")?, line.text("an architecture")?);
    line.keyword("rounding")?;
    let rounding = line.text("a rounding")?;
    let allow_nondeterminism = line.take("nondeterministic");
    Ok(Tuning { device, arch, rounding, allow_nondeterminism, ..Tuning::default() })
}

fn tuned(line: &mut Line<'_, '_>) -> Result<TunedKernel, String> {
    let kernel = line.id("k")?;
    let way = match line.word("`product` or `convolution`")? {
        "product" => Way::Product(Box::new(line.bytes("an algorithm of 128 hexadecimal digits")?)),
        "convolution" => {
            let algorithm = line.number("an algorithm")?;
            line.keyword("math")?;
            Way::Convolution { algorithm, math: line.number("a kind of arithmetic")? }
        }
        other => return Err(format!("expected `product` or `convolution`, found `{other}`")),
    };
    line.keyword("workspace")?;
    let workspace_bytes = line.number("the workspace in bytes")?;
    line.keyword("ns")?;
    let ns = line.number("a time")?;
    line.keyword("default")?;
    Ok(TunedKernel { kernel, way, workspace_bytes, ns, default_ns: line.number("a time")? })
}

fn command(line: &mut Line<'_, '_>) -> Result<(Stream, Action), String> {
    let name = line.word("a stream")?;
    let stream = Stream::ALL.into_iter().find(|stream| stream.name() == name);
    let stream = stream.ok_or_else(|| format!("`{name}` is not one of compute, d2h, h2d, host"))?;
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
                    return Err("expected `r`, `w` or one `ws`, each with a slice".to_owned());
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
        other => return Err(format!("unknown action `{other}`")),
    };
    Ok((stream, action))
}
