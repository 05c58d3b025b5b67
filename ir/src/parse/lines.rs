//! One function per kind of line.

use super::lexer::Token;
use super::{Cursor, Parser, Use};
use crate::attr::{AttrValue, F32};
use crate::diag::{Anchor, Diag};
use crate::entity::{Id, OpId, SlotId, ValueId};
use crate::module::{Code, Def, Feed, Module, Output, OutputRole, Phase, Role, Slot, Space, Stream, Turn};
use crate::ops::OpKind;
use crate::types::TensorType;

impl Parser {
    pub(super) fn line(&mut self, mut c: Cursor) -> Result<(), Diag> {
        if c.eat_word("module") {
            let Some(Token::Name('@', name)) = c.take() else { return c.fail("expected `@name`") };
            let word = c.word("`graph` or `mem`")?;
            let Some(phase) = Phase::from_name(&word) else {
                return c.fail(format!("unknown phase `{word}`"));
            };
            if self.module.is_some() {
                return c.fail("a file holds one module");
            }
            let mut m = Module::new(name);
            m.phase = phase;
            self.module = Some(m);
            return c.end();
        }
        if self.module.is_none() {
            return c.fail("a module starts with `module @name graph` or `... mem`");
        }
        match c.peek() {
            Some(Token::Name('%', _)) => self.definition(&mut c)?,
            Some(Token::Word(w)) => match w.as_str() {
                "slot" => self.slot(&mut c)?,
                "alloc" | "free" => self.alloc_or_free(&mut c)?,
                "yield" => self.output(&mut c)?,
                "carry" => {
                    c.take();
                    let state = c.value()?;
                    c.expect("<-")?;
                    let next = c.value()?;
                    self.uses.push(Use::Carry(state, next, c.number));
                }
                other => return c.fail(format!("a line cannot start with `{other}`")),
            },
            _ => return c.fail("expected a declaration, an op, `yield` or `carry`"),
        }
        c.end()
    }

    fn module(&mut self) -> &mut Module {
        self.module.get_or_insert_with(|| Module::new(""))
    }

    fn slot(&mut self, c: &mut Cursor) -> Result<(), Diag> {
        c.take();
        let name = c.word("a slot name")?;
        c.expect("=")?;
        let Some(space) = Space::from_name(&c.word("`dev` or `host`")?) else {
            return c.fail("expected `dev` or `host`");
        };
        let bytes = c.uint()?;
        let offset = if c.eat("@") { Some(c.uint()?) } else { None };
        let id = self.module().slots.push(Slot { space, bytes, offset });
        if self.slots.insert(name.clone(), id).is_some() {
            return Err(Diag::new("P3", Anchor::Line(c.number), format!("slot {name} is defined twice")));
        }
        Ok(())
    }

    fn slot_ref(&self, c: &mut Cursor) -> Result<SlotId, Diag> {
        let name = c.word("a slot name")?;
        let unknown = || Diag::new("P2", Anchor::Line(c.number), format!("slot {name} is not defined"));
        self.slots.get(&name).copied().ok_or_else(unknown)
    }

    fn alloc_or_free(&mut self, c: &mut Cursor) -> Result<(), Diag> {
        let alloc = c.word("`alloc` or `free`")? == "alloc";
        let slot = self.slot_ref(c)?;
        let m = self.module();
        let op = m.push_op(if alloc { Code::Alloc(slot) } else { Code::Free(slot) }, vec![], vec![], "");
        m.order.push(op);
        Ok(())
    }

    fn output(&mut self, c: &mut Cursor) -> Result<(), Diag> {
        c.take();
        let word = c.word("`loss`, `gradient` or `output`")?;
        let Some(role) = OutputRole::from_name(&word) else {
            return c.fail("expected `loss`, `gradient` or `output`");
        };
        let value = c.value()?;
        c.expect_word("as")?;
        let name = c.text()?;
        let m = self.module();
        m.outputs.push(Output { value: ValueId(u32::MAX), name, role });
        let index = m.outputs.len() - 1;
        self.uses.push(Use::Output(index, value, c.number));
        Ok(())
    }

    fn check_new(&mut self, names: &[String], c: &Cursor) -> Result<(), Diag> {
        for (i, name) in names.iter().enumerate() {
            if self.module().value_named(name).is_some() || names[..i].contains(name) {
                return Err(Diag::new("P3", Anchor::Line(c.number), format!("%{name} is defined twice")));
            }
        }
        Ok(())
    }

    fn definition(&mut self, c: &mut Cursor) -> Result<(), Diag> {
        let mut names = vec![c.value()?];
        while c.eat(",") {
            names.push(c.value()?);
        }
        self.check_new(&names, c)?;
        c.expect("=")?;
        let mnemonic = c.word("an op")?;
        match (mnemonic.as_str(), names.as_slice()) {
            ("input", [name]) => self.input(c, name),
            ("state", [name]) => self.state(c, name),
            ("const", [name]) => {
                let payload = c.payload()?;
                c.expect(":")?;
                let ty = c.ty()?;
                let bytes = c.payload_bytes(payload, &ty, &mut self.splat_left)?;
                let slot = self.resident(c)?;
                let m = self.module();
                let v = m.add_const(name, ty, bytes);
                if let Def::Const(id) = m.values[v].def {
                    m.consts[id].slot = slot;
                }
                Ok(())
            }
            ("host_shadow", [name]) => self.host_shadow(c, name),
            ("input" | "state" | "const" | "host_shadow", _) => {
                c.fail(format!("`{mnemonic}` defines one value"))
            }
            _ => self.op(c, &mnemonic, &names),
        }
    }

    fn resident(&self, c: &mut Cursor) -> Result<Option<SlotId>, Diag> {
        if c.eat_word("in") { self.slot_ref(c).map(Some) } else { Ok(None) }
    }

    fn input(&mut self, c: &mut Cursor, name: &str) -> Result<(), Diag> {
        let mut feed = Feed::Data { source: name.to_string(), micro: 0, range: None };
        let mut first = true;
        if c.eat("{") {
            while !c.eat("}") {
                if !first {
                    c.expect(",")?;
                }
                first = false;
                self.input_attr(c, &mut feed)?;
            }
        }
        c.expect(":")?;
        let ty = c.ty()?;
        let slot = self.resident(c)?;
        let m = self.module();
        let v = m.add_input(name, ty, feed);
        if let Def::Input(id) = m.values[v].def {
            m.inputs[id].slot = slot;
        }
        Ok(())
    }

    fn input_attr(&self, c: &mut Cursor, feed: &mut Feed) -> Result<(), Diag> {
        let key = c.word("an attribute name")?;
        c.expect("=")?;
        match (key.as_str(), &mut *feed) {
            ("source", Feed::Data { source, .. }) => *source = c.text()?,
            ("micro", Feed::Data { micro, .. }) => {
                let n = c.uint()?;
                let Ok(n) = u32::try_from(n) else { return c.fail("micro is out of range") };
                *micro = n;
            }
            ("range", Feed::Data { range, .. }) => match c.attr_value()? {
                AttrValue::Ints(v) if v.len() == 2 => *range = Some((v[0], v[1])),
                _ => return c.fail("range is `[low, high]`"),
            },
            ("feed", _) => match c.word("`learning_rate` or `step`")?.as_str() {
                "learning_rate" => {
                    *feed = Feed::LearningRate { default: F32(0.0), turn: Turn::default() };
                }
                "step" => *feed = Feed::Step { turn: Turn::default() },
                _ => return c.fail("expected `learning_rate` or `step`"),
            },
            ("turn", Feed::LearningRate { turn, .. } | Feed::Step { turn }) => {
                let part = |n: Option<&i64>| n.and_then(|&n| u32::try_from(n).ok());
                let AttrValue::Ints(v) = c.attr_value()? else { return c.fail("turn is `[index, count]`") };
                match (part(v.first()), part(v.get(1))) {
                    (Some(index), Some(count)) if index < count && v.len() == 2 => {
                        *turn = Turn { index, count };
                    }
                    _ => return c.fail("turn is `[index, count]`, the index below the count"),
                }
            }
            ("default", Feed::LearningRate { default, .. }) => match c.attr_value()? {
                AttrValue::Float(v) => *default = F32(v),
                _ => return c.fail("default is a float"),
            },
            _ => return c.fail(format!("an input has no attribute `{key}` here")),
        }
        Ok(())
    }

    fn state(&mut self, c: &mut Cursor, name: &str) -> Result<(), Diag> {
        c.expect("{")?;
        c.expect_word("role")?;
        c.expect("=")?;
        let word = c.word("a role")?;
        let Some(role) = Role::from_name(&word) else {
            return c.fail(format!("unknown role `{word}`"));
        };
        c.expect(",")?;
        c.expect_word("init")?;
        c.expect("=")?;
        let init = c.init()?;
        c.expect("}")?;
        c.expect(":")?;
        let ty = c.ty()?;
        let slot = self.resident(c)?;
        let m = self.module();
        let id = m.add_state(name, ty, role, init);
        m.states[id].slot = slot;
        Ok(())
    }

    fn host_shadow(&mut self, c: &mut Cursor, name: &str) -> Result<(), Diag> {
        let of = c.value()?;
        c.expect(":")?;
        let ty = c.ty()?;
        c.expect_word("in")?;
        let slot = self.slot_ref(c)?;
        let Some(of) = self.module().value_named(&of) else {
            return Err(Diag::new("P2", Anchor::Line(c.number), format!("%{of} is not defined")));
        };
        self.module().add_host_shadow(name, ty, of, slot);
        Ok(())
    }

    fn op(&mut self, c: &mut Cursor, mnemonic: &str, names: &[String]) -> Result<(), Diag> {
        let mut operands = Vec::new();
        if matches!(c.peek(), Some(Token::Name('%', _))) {
            operands.push(c.value()?);
            while c.eat(",") {
                operands.push(c.value()?);
            }
        }
        let attrs = c.attrs()?;
        let code = match mnemonic {
            "swap_out" | "swap_in" if !attrs.is_empty() => return c.fail("a swap has no attributes"),
            "swap_out" => Code::SwapOut,
            "swap_in" => Code::SwapIn,
            _ => {
                let bad = |e| Diag::new("P4", Anchor::Line(c.number), e);
                Code::Compute(OpKind::from_parts(mnemonic, &attrs).map_err(bad)?)
            }
        };
        let id = OpId::new(self.module().ops.len());
        let mut slots = Vec::new();
        if c.eat("->") {
            slots.push(self.slot_ref(c)?);
            while c.eat(",") {
                slots.push(self.slot_ref(c)?);
            }
        }
        let workspace = if c.eat_word("ws") { Some(self.slot_ref(c)?) } else { None };
        let on_host = c.eat_word("on");
        if on_host {
            c.expect_word(Stream::HostCompute.name())?;
        }
        if c.eat_word("clone_of") {
            self.clones.push((id, c.value()?, c.number));
        }
        self.synchronisation(c, id)?;
        c.expect(":")?;
        let types = c.types()?;
        let origin = if c.eat_word("loc") { c.text()? } else { String::new() };
        if types.len() != names.len() {
            return c.fail(format!("{} results but {} types", names.len(), types.len()));
        }
        self.uses.push(Use::Operands(id, operands, c.number));
        let m = self.module();
        let define =
            |(i, (name, ty)): (usize, (&String, TensorType))| m.add_value(name, ty, Def::Op(id, i as u32));
        let results = names.iter().zip(types).enumerate().map(define).collect();
        let op = m.push_op(code, vec![], results, &origin);
        m.ops[op].slots = slots;
        m.ops[op].workspace = workspace;
        m.ops[op].on_host = on_host;
        m.order.push(op);
        Ok(())
    }

    fn synchronisation(&mut self, c: &mut Cursor, id: OpId) -> Result<(), Diag> {
        if c.eat_word("wait") {
            loop {
                let previous = c.eat_word("prev");
                let Some(Token::Event(tp)) = c.take() else {
                    return c.fail("expected an event, as `!0`");
                };
                self.waits.push((id, tp, previous, c.number));
                if !c.eat(",") {
                    break;
                }
            }
        }
        if c.eat_word("record") {
            let Some(Token::Event(tp)) = c.take() else { return c.fail("expected an event, as `!0`") };
            if self.records.insert(tp, id).is_some() {
                return Err(Diag::new("P3", Anchor::Line(c.number), format!("!{tp} is signalled twice")));
            }
        }
        Ok(())
    }
}
