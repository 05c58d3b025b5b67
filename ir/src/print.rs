//! The canonical text form: `print(parse(print(m))) == print(m)` for every module.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::attr::{Attr, Scalar};
use crate::diag::{Anchor, Diags};
use crate::entity::{Id, OpId, SlotId, ValueId};
use crate::module::{Code, Const, Def, Feed, HostShadow, Input, Module, Space, State, Turn};
use crate::types::TensorType;

/// Constants with more elements than this print as hexadecimal bytes.
const DENSE_LIMIT: u64 = 64;
/// Constants of more bytes than this print as hexadecimal bytes even where all elements are equal: the parser
/// takes no larger `splat`.
const SPLAT_LIMIT: usize = 1 << 20;

/// The module in its text form.
pub fn print(module: &Module) -> String {
    let mut out = String::new();
    for (_, line) in lines(module) {
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// The module in its text form with every diagnostic under the line it is about, as `;~ M3: message`.
pub fn print_annotated(module: &Module, diags: &Diags) -> String {
    annotated(module, diags, true)
}

/// Every diagnostic under the line of the text form that it is about, as `;~ M3: message`; lines that are
/// right are left out.
pub fn print_diags(module: &Module, diags: &Diags) -> String {
    annotated(module, diags, false)
}

fn annotated(module: &Module, diags: &Diags, all: bool) -> String {
    let mut pending: BTreeMap<Anchor, Vec<String>> = BTreeMap::new();
    for d in &diags.0 {
        pending.entry(d.at).or_default().push(d.to_string());
    }
    let mut out = String::new();
    for (at, line) in lines(module) {
        let notes = at.and_then(|at| pending.remove(&at)).unwrap_or_default();
        if all || !notes.is_empty() {
            out.push_str(&line);
            out.push('\n');
        }
        for note in notes {
            let _ = writeln!(out, ";~ {note}");
        }
    }
    for note in pending.into_values().flatten() {
        let _ = writeln!(out, ";~ {note}");
    }
    out
}

/// A value's name as written in the text form, with its `%`.
pub fn value_name(module: &Module, value: ValueId) -> String {
    match module.values.get(value) {
        Some(v) => quoted('%', &v.name),
        None => format!("%<{}>", value.0),
    }
}

/// A slot's name as written in the text form.
pub fn slot_name(module: &Module, slot: SlotId) -> String {
    match module.slots.get(slot).map(|s| s.space) {
        Some(Space::Host) => format!("p{}", slot.0),
        _ => format!("b{}", slot.0),
    }
}

fn quoted(sigil: char, name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:$-".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        return format!("{sigil}{name}");
    }
    format!("{sigil}{}", string(name))
}

/// A double-quoted string with `\\`, `\"` and `\u{hex}` escapes.
pub(crate) fn string(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

struct Printer<'a> {
    m: &'a Module,
    events: BTreeMap<OpId, usize>,
}

fn lines(module: &Module) -> Vec<(Option<Anchor>, String)> {
    let mut waited_for: Vec<bool> = vec![false; module.ops.len()];
    for &op in &module.order {
        for a in &module.ops[op].waits {
            if let Some(x) = waited_for.get_mut(a.op.index()) {
                *x = true;
            }
        }
    }
    let records = module.order.iter().copied().filter(|op| waited_for[op.index()]);
    let events = records.enumerate().map(|(i, op)| (op, i)).collect();
    Printer { m: module, events }.lines()
}

impl Printer<'_> {
    fn lines(&self) -> Vec<(Option<Anchor>, String)> {
        let m = self.m;
        let mut out =
            vec![(Some(Anchor::Module), format!("module {} {}", quoted('@', &m.name), m.phase.name()))];
        out.push((None, String::new()));
        for (id, slot) in m.slots.iter() {
            let space = slot.space;
            let mut line = format!("slot {} = {space} {}", slot_name(m, id), slot.bytes);
            if let Some(offset) = slot.offset {
                let _ = write!(line, " @ {offset}");
            }
            out.push((Some(Anchor::Slot(id)), line));
        }
        if !m.slots.is_empty() {
            out.push((None, String::new()));
        }
        // Declarations in value order, so that parsing assigns the same ids again.
        for (v, value) in m.values.iter() {
            let line = match value.def {
                Def::Input(i) => m.inputs.get(i).map(|x| self.input(x)),
                Def::State(s) => m.states.get(s).map(|x| self.state(x)),
                Def::Const(c) => m.consts.get(c).map(|x| self.constant(x)),
                Def::HostShadow(i) => m.host_shadows.get(i).map(|x| self.host_shadow(x)),
                Def::Op(..) => None,
            };
            if let Some(line) = line {
                out.push((Some(Anchor::Value(v)), line));
            }
        }
        for &op in &m.order {
            out.push((Some(Anchor::Op(op)), self.op(op)));
        }
        for (i, o) in m.outputs.iter().enumerate() {
            let line = format!("yield {} {} as {}", o.role.name(), self.value(o.value), string(&o.name));
            out.push((Some(Anchor::Output(i)), line));
        }
        for (id, s) in m.states.iter() {
            if let Some(next) = s.next {
                out.push((
                    Some(Anchor::Carry(id)),
                    format!("carry {} <- {}", self.value(s.value), self.value(next)),
                ));
            }
        }
        out
    }

    fn value(&self, v: ValueId) -> String {
        value_name(self.m, v)
    }

    fn ty(&self, v: ValueId) -> String {
        self.m.values.get(v).map_or_else(|| "?".into(), |v| v.ty.to_string())
    }

    fn resident(&self, slot: Option<SlotId>) -> String {
        slot.map_or_else(String::new, |s| format!(" in {}", slot_name(self.m, s)))
    }

    fn input(&self, input: &Input) -> String {
        let mut attrs = Vec::new();
        match &input.feed {
            Feed::Data { source, micro, range } => {
                if self.m.values.get(input.value).is_none_or(|v| &v.name != source) {
                    attrs.push(format!("source = {}", string(source)));
                }
                if *micro != 0 {
                    attrs.push(format!("micro = {micro}"));
                }
                if let Some((low, high)) = range {
                    attrs.push(format!("range = [{low}, {high}]"));
                }
            }
            Feed::LearningRate { default, turn } => {
                attrs.push("feed = learning_rate".into());
                attrs.push(default.named("default"));
                attrs.extend(turn_text(*turn));
            }
            Feed::Step { turn } => {
                attrs.push("feed = step".into());
                attrs.extend(turn_text(*turn));
            }
        }
        let attrs = if attrs.is_empty() { String::new() } else { format!(" {{{}}}", attrs.join(", ")) };
        let v = input.value;
        format!("{} = input{attrs} : {}{}", self.value(v), self.ty(v), self.resident(input.slot))
    }

    fn state(&self, state: &State) -> String {
        let v = state.value;
        let attrs = format!("{{role = {}, init = {}}}", state.role.name(), state.init.text());
        format!("{} = state {attrs} : {}{}", self.value(v), self.ty(v), self.resident(state.slot))
    }

    fn constant(&self, c: &Const) -> String {
        let payload = match self.m.values.get(c.value) {
            Some(v) => constant_text(&v.ty, &c.data),
            None => "?".into(),
        };
        format!("{} = const {payload} : {}{}", self.value(c.value), self.ty(c.value), self.resident(c.slot))
    }

    fn host_shadow(&self, x: &HostShadow) -> String {
        let (v, of) = (x.value, x.of);
        format!(
            "{} = host_shadow {} : {}{}",
            self.value(v),
            self.value(of),
            self.ty(v),
            self.resident(Some(x.slot))
        )
    }

    fn list(&self, values: &[ValueId]) -> String {
        values.iter().map(|&v| self.value(v)).collect::<Vec<_>>().join(", ")
    }

    fn op(&self, id: OpId) -> String {
        let op = &self.m.ops[id];
        match op.code {
            Code::Alloc(slot) => return format!("alloc {}", slot_name(self.m, slot)),
            Code::Free(slot) => return format!("free {}", slot_name(self.m, slot)),
            _ => {}
        }
        let (mnemonic, attrs) = match &op.code {
            Code::Compute(kind) => (kind.mnemonic(), kind.attrs_text()),
            Code::SwapOut => ("swap_out", String::new()),
            _ => ("swap_in", String::new()),
        };
        let mut line = format!("{} = {mnemonic}", self.list(&op.results));
        if !op.operands.is_empty() {
            let _ = write!(line, " {}", self.list(&op.operands));
        }
        if !attrs.is_empty() {
            let _ = write!(line, " {attrs}");
        }
        if !op.slots.is_empty() {
            let slots: Vec<String> = op.slots.iter().map(|&s| slot_name(self.m, s)).collect();
            let _ = write!(line, " -> {}", slots.join(", "));
        }
        if let Some(ws) = op.workspace {
            let _ = write!(line, " ws {}", slot_name(self.m, ws));
        }
        if op.on_host {
            line.push_str(" on cpu");
        }
        if let Some(first) = op.clone_of.and_then(|o| self.m.ops.get(o)).and_then(|o| o.results.first()) {
            let _ = write!(line, " clone_of {}", self.value(*first));
        }
        for (i, a) in op.waits.iter().enumerate() {
            let word = if i == 0 { " wait" } else { "," };
            let previous = if a.previous { " prev" } else { "" };
            let tp = self.events.get(&a.op).map_or_else(|| "?".into(), ToString::to_string);
            let _ = write!(line, "{word}{previous} !{tp}");
        }
        if let Some(tp) = self.events.get(&id) {
            let _ = write!(line, " record !{tp}");
        }
        let types: Vec<String> = op.results.iter().map(|&v| self.ty(v)).collect();
        let _ = write!(line, " : {}", types.join(", "));
        if !op.origin.is_empty() {
            let _ = write!(line, " loc {}", string(&op.origin));
        }
        line
    }
}

/// A constant's payload: `splat x`, `dense [..]` or `hex "..."`.
fn constant_text(ty: &TensorType, data: &[u8]) -> String {
    let width = ty.dtype.bytes() as usize;
    let well_formed = ty.checked_numel().and_then(|n| n.checked_mul(width as u64)) == Some(data.len() as u64);
    let elements: Vec<&[u8]> = data.chunks(width).collect();
    // A signalling NaN of 16 bits has no number that reads back.
    let number = |e: &[u8]| {
        let number = Scalar::from_bytes(e, ty.dtype)?;
        (number.to_bytes(ty.dtype)? == e).then(|| number.text())
    };
    let is_splat = well_formed && elements.windows(2).all(|w| w[0] == w[1]);
    if let Some(first) = elements.first()
        && is_splat
        && data.len() <= SPLAT_LIMIT
        && let Some(number) = number(first)
    {
        return format!("splat {number}");
    }
    if well_formed
        && ty.numel() <= DENSE_LIMIT
        && let Some(numbers) = elements.iter().map(|e| number(e)).collect::<Option<Vec<_>>>()
    {
        return format!("dense [{}]", numbers.join(", "));
    }
    let mut text = String::with_capacity(data.len() * 2 + 6);
    text.push_str("hex \"");
    for b in data {
        let _ = write!(text, "{b:02x}");
    }
    text.push('"');
    text
}

/// The attribute of a step of a job that takes several in a round.
fn turn_text(turn: Turn) -> Option<String> {
    (turn != Turn::default()).then(|| format!("turn = [{}, {}]", turn.index, turn.count))
}
