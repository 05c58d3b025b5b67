//! Bodies of fused ops: `add(x0, x1); gelu(t0) {tanh}`.

use super::Cursor;
use super::lexer::tokens;
use crate::attr::{Attr, AttrValue};
use crate::diag::Diag;
use crate::error::ParseError;
use crate::ops::OpKind;
use crate::ops::fused::{Arg, Body, MAX_STEPS, Step};

/// Parses a body. Type inference decides whether its steps fit together.
///
/// The error says why the text is no body.
fn parse_body(text: &str) -> Result<Body, ParseError> {
    let parts: Vec<&str> = text.split(';').take(MAX_STEPS + 1).collect();
    if parts.len() > MAX_STEPS {
        return Err(format!("has more than {MAX_STEPS} steps").into());
    }
    let one = |(i, part): (usize, &&str)| {
        step(part).map_err(|why: Diag| format!("has a bad step t{i}: {}", why.message))
    };
    Ok(Body(parts.iter().enumerate().map(one).collect::<Result<_, _>>()?))
}

impl Attr for Body {
    const KIND: &'static str = "a list of steps, as \"add(x0, x1); relu(t0)\"";
    fn text(&self) -> String {
        format!("\"{self}\"")
    }
    fn read(value: &AttrValue) -> Option<Self> {
        if let AttrValue::Text(text) = value { parse_body(text).ok() } else { None }
    }
    fn wrong(value: &AttrValue) -> Option<String> {
        if let AttrValue::Text(text) = value { parse_body(text).err().map(|e| e.to_string()) } else { None }
    }
}

fn step(text: &str) -> Result<Step, Diag> {
    let mut c = Cursor { tokens: tokens(text, 1)?, at: 0, number: 1 };
    let mnemonic = c.word("an op")?;
    // Its own body could be nested without end.
    if mnemonic == "fused" || mnemonic == "fused_norm" {
        return c.fail("a step cannot be fused itself");
    }
    c.expect("(")?;
    let mut args = vec![arg(&mut c)?];
    while c.eat(",") {
        args.push(arg(&mut c)?);
    }
    c.expect(")")?;
    let attrs = c.attrs()?;
    c.end()?;
    match OpKind::from_parts(&mnemonic, &attrs) {
        Ok(op) => Ok(Step { op, args }),
        Err(why) => c.fail(why.to_string()),
    }
}

fn arg(c: &mut Cursor) -> Result<Arg, Diag> {
    let word = c.word("an operand `x0` or a step `t0`")?;
    let index = |digits: &str| digits.parse().ok().filter(|i: &u32| i.to_string() == digits);
    let arg = match word.split_at_checked(1) {
        Some(("x", digits)) => index(digits).map(Arg::Operand),
        Some(("t", digits)) => index(digits).map(Arg::Step),
        _ => None,
    };
    arg.map_or_else(|| c.fail(format!("`{word}` is neither an operand `x0` nor a step `t0`")), Ok)
}
