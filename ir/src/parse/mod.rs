//! Reads the text form.
//!
//! Names may be used before the line that defines them, so that the verifier, not the parser, judges
//! order. Errors stop at the first bad line and name it.

mod body;
mod lexer;
mod lines;
mod payload;

use std::collections::BTreeMap;

use crate::attr::AttrValue;
use crate::diag::{Anchor, Diag};
use crate::entity::{OpId, SlotId, ValueId};
use crate::error::ParseError;
use crate::module::{Module, Wait};
use crate::ops::OpKind;
use crate::types::TensorType;
use lexer::{Token, tokens};

/// Parses a module. The result is well-formed text, not yet a valid module: verify it.
///
/// Codes: `P1` syntax, `P2` unknown name, `P3` name defined twice, `P4` unknown op or bad attribute.
pub fn parse(text: &str) -> Result<Module, Diag> {
    let mut parser =
        Parser { splat_left: payload::SPLAT_TOTAL.saturating_add(text.len() as u64), ..Parser::default() };
    for (i, line) in text.lines().enumerate() {
        let line_tokens = tokens(line, i + 1)?;
        if !line_tokens.is_empty() {
            parser.line(Cursor { tokens: line_tokens, at: 0, number: i + 1 })?;
        }
    }
    parser.finish()
}

/// Parses an op as plans write it: its name, its attributes as `{a = 1}` or nothing.
///
/// The error says why the text is not an op of the table.
pub fn parse_op(mnemonic: &str, attrs: &str) -> Result<OpKind, ParseError> {
    let mut cursor = Cursor { tokens: tokens(attrs, 1)?, at: 0, number: 1 };
    let attrs = cursor.attrs()?;
    cursor.end()?;
    OpKind::from_parts(mnemonic, &attrs)
}

/// Parses a tensor type such as `f32[4,16]`.
///
/// The error says why the text is not a type.
pub fn parse_type(text: &str) -> Result<TensorType, ParseError> {
    let mut cursor = Cursor { tokens: tokens(text, 1)?, at: 0, number: 1 };
    let ty = cursor.ty()?;
    cursor.end()?;
    Ok(ty)
}

#[derive(Default)]
struct Parser {
    module: Option<Module>,
    slots: BTreeMap<String, SlotId>,
    /// Uses to resolve once every line is read.
    uses: Vec<Use>,
    records: BTreeMap<u32, OpId>,
    waits: Vec<(OpId, u32, bool, usize)>,
    clones: Vec<(OpId, String, usize)>,
    /// Bytes that further `splat` constants may take.
    splat_left: u64,
}

/// Operand names of an op, or the value of an output or carry.
enum Use {
    Operands(OpId, Vec<String>, usize),
    Output(usize, String, usize),
    Carry(String, String, usize),
}

impl Parser {
    fn finish(mut self) -> Result<Module, Diag> {
        let Some(mut m) = self.module.take() else {
            return Err(Diag::new(
                "P1",
                Anchor::Line(1),
                "a module starts with `module @name graph` or `... mem`",
            ));
        };
        let find = |m: &Module, name: &str, line: usize| {
            m.value_named(name)
                .ok_or_else(|| Diag::new("P2", Anchor::Line(line), format!("%{name} is not defined")))
        };
        for u in std::mem::take(&mut self.uses) {
            match u {
                Use::Operands(op, names, line) => {
                    let ids: Result<Vec<ValueId>, Diag> = names.iter().map(|n| find(&m, n, line)).collect();
                    m.ops[op].operands = ids?;
                }
                Use::Output(i, name, line) => m.outputs[i].value = find(&m, &name, line)?,
                Use::Carry(state, next, line) => {
                    let (v, next) = (find(&m, &state, line)?, find(&m, &next, line)?);
                    let crate::module::Def::State(s) = m.values[v].def else {
                        return Err(Diag::new("P2", Anchor::Line(line), format!("%{state} is not a state")));
                    };
                    if m.states[s].next.replace(next).is_some() {
                        return Err(Diag::new(
                            "P3",
                            Anchor::Line(line),
                            format!("%{state} is carried twice"),
                        ));
                    }
                }
            }
        }
        for (op, tp, previous, line) in self.waits {
            let Some(&target) = self.records.get(&tp) else {
                return Err(Diag::new("P2", Anchor::Line(line), format!("no op records !{tp}")));
            };
            m.ops[op].waits.push(Wait { op: target, previous });
        }
        for (op, name, line) in self.clones {
            let original = m.def_op(find(&m, &name, line)?);
            if original.is_none() {
                return Err(Diag::new(
                    "P2",
                    Anchor::Line(line),
                    format!("%{name} is not the result of an op"),
                ));
            }
            m.ops[op].clone_of = original;
        }
        Ok(m)
    }
}

/// Tokens of one line.
struct Cursor {
    tokens: Vec<Token>,
    at: usize,
    number: usize,
}

impl Cursor {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, Diag> {
        Err(Diag::new("P1", Anchor::Line(self.number), message))
    }
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }
    fn take(&mut self) -> Option<Token> {
        let t = self.tokens.get(self.at).cloned();
        self.at += 1;
        t
    }
    fn is_punct(&self, p: &str) -> bool {
        matches!(self.peek(), Some(Token::Punct(q)) if *q == p)
    }
    fn eat(&mut self, p: &str) -> bool {
        let yes = self.is_punct(p);
        self.at += usize::from(yes);
        yes
    }
    fn eat_word(&mut self, w: &str) -> bool {
        let yes = matches!(self.peek(), Some(Token::Word(v)) if v == w);
        self.at += usize::from(yes);
        yes
    }
    fn expect(&mut self, p: &str) -> Result<(), Diag> {
        if self.eat(p) { Ok(()) } else { self.fail(format!("expected `{p}`")) }
    }
    fn expect_word(&mut self, w: &str) -> Result<(), Diag> {
        if self.eat_word(w) { Ok(()) } else { self.fail(format!("expected `{w}`")) }
    }
    fn word(&mut self, what: &str) -> Result<String, Diag> {
        match self.take() {
            Some(Token::Word(w)) => Ok(w),
            _ => self.fail(format!("expected {what}")),
        }
    }
    fn value(&mut self) -> Result<String, Diag> {
        match self.take() {
            Some(Token::Name('%', n)) => Ok(n),
            _ => self.fail("expected a value, as `%x`"),
        }
    }
    fn text(&mut self) -> Result<String, Diag> {
        match self.take() {
            Some(Token::Text(t)) => Ok(t),
            _ => self.fail("expected a string"),
        }
    }
    fn uint(&mut self) -> Result<u64, Diag> {
        match self.take() {
            Some(Token::Int(n)) if n >= 0 => Ok(n.unsigned_abs()),
            _ => self.fail("expected a non-negative integer"),
        }
    }
    fn end(&self) -> Result<(), Diag> {
        if self.at >= self.tokens.len() {
            Ok(())
        } else {
            self.fail("unexpected text at the end of the line")
        }
    }

    fn ty(&mut self) -> Result<TensorType, Diag> {
        let name = self.word("a type, as `f32[4,16]`")?;
        let Some(dtype) = crate::types::DType::from_name(&name) else {
            return self
                .fail(format!("`{name}` is not an element type (f32, f16, bf16, i32, i64, i8, u8 or bool)"));
        };
        self.expect("[")?;
        let mut shape = Vec::new();
        while !self.eat("]") {
            if !shape.is_empty() {
                self.expect(",")?;
            }
            shape.push(self.uint()?);
        }
        Ok(TensorType { dtype, shape })
    }

    fn types(&mut self) -> Result<Vec<TensorType>, Diag> {
        let mut out = vec![self.ty()?];
        while self.eat(",") {
            out.push(self.ty()?);
        }
        Ok(out)
    }

    /// `{a, b = 1, c = [1, 2]}`, or nothing.
    fn attrs(&mut self) -> Result<Vec<(String, AttrValue)>, Diag> {
        let mut out = Vec::new();
        if !self.eat("{") {
            return Ok(out);
        }
        while !self.eat("}") {
            if !out.is_empty() {
                self.expect(",")?;
            }
            let name = self.word("an attribute name")?;
            let value = if self.eat("=") { self.attr_value()? } else { AttrValue::Flag };
            out.push((name, value));
        }
        Ok(out)
    }

    fn attr_value(&mut self) -> Result<AttrValue, Diag> {
        match self.take() {
            Some(Token::Int(n)) => Ok(AttrValue::Int(n)),
            Some(Token::Float(v)) => Ok(AttrValue::Float(v)),
            Some(Token::Word(w)) => Ok(AttrValue::Word(w)),
            Some(Token::Text(t)) => Ok(AttrValue::Text(t)),
            Some(Token::Punct("[")) => {
                let mut items = Vec::new();
                while !self.eat("]") {
                    if !items.is_empty() {
                        self.expect(",")?;
                    }
                    match self.take() {
                        Some(Token::Int(n)) => items.push(n),
                        _ => return self.fail("expected an integer"),
                    }
                }
                Ok(AttrValue::Ints(items))
            }
            _ => self.fail("expected an attribute value"),
        }
    }
}
