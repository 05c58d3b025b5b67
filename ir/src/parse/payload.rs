//! Constant payloads and initial values.

use super::Cursor;
use super::lexer::Token;
use crate::attr::{F32, Scalar};
use crate::diag::Diag;
use crate::init::{Blob, Init};
use crate::types::{DType, TensorType};

/// A constant as written, before its type is known.
pub(super) enum Payload {
    Splat(Token),
    Dense(Vec<Token>),
    Bytes(Vec<u8>),
}

/// Largest constant that `splat` may spell, in bytes; larger ones are `fill` ops.
const SPLAT_LIMIT: u64 = 1 << 20;
/// Most bytes that all `splat` constants of a module may take beyond the text's own length. Other payloads
/// are proportional to the text: `dense` spells at most four bytes per character, `hex` half a byte.
pub(super) const SPLAT_TOTAL: u64 = 64 << 20;

impl Cursor {
    pub(super) fn payload(&mut self) -> Result<Payload, Diag> {
        if self.eat_word("splat") {
            return match self.take() {
                Some(t @ (Token::Int(_) | Token::Float(_))) => Ok(Payload::Splat(t)),
                _ => self.fail("expected a number"),
            };
        }
        if self.eat_word("dense") {
            self.expect("[")?;
            let mut items = Vec::new();
            while !self.eat("]") {
                if !items.is_empty() {
                    self.expect(",")?;
                }
                match self.take() {
                    Some(t @ (Token::Int(_) | Token::Float(_))) => items.push(t),
                    _ => return self.fail("expected a number"),
                }
            }
            return Ok(Payload::Dense(items));
        }
        self.expect_word("hex")?;
        let digits = self.text()?;
        match unhex(&digits) {
            Some(bytes) => Ok(Payload::Bytes(bytes)),
            None => self.fail("expected an even number of hexadecimal digits"),
        }
    }

    /// The bytes of a constant of type `ty`; a `splat` takes its size from `splat_left`.
    pub(super) fn payload_bytes(
        &self,
        payload: Payload,
        ty: &TensorType,
        splat_left: &mut u64,
    ) -> Result<Vec<u8>, Diag> {
        match payload {
            Payload::Bytes(bytes) => Ok(bytes),
            Payload::Dense(items) => items
                .iter()
                .map(|t| self.element(t, ty.dtype))
                .collect::<Result<Vec<_>, _>>()
                .map(|v| v.concat()),
            Payload::Splat(item) => {
                let one = self.element(&item, ty.dtype)?;
                let bytes = ty.checked_numel().and_then(|n| n.checked_mul(ty.dtype.bytes()));
                let Some(bytes) = bytes.filter(|&b| b <= SPLAT_LIMIT) else {
                    return self.fail(format!(
                        "a constant of type {ty} is too large for `splat`, which spells at most \
                         {SPLAT_LIMIT} bytes; use `fill`"
                    ));
                };
                let Some(left) = splat_left.checked_sub(bytes) else {
                    return self.fail(format!(
                        "the module's `splat` constants are too large: {bytes} bytes more, {splat_left} are \
                         left; use `fill`"
                    ));
                };
                *splat_left = left;
                Ok(one.repeat(ty.numel() as usize))
            }
        }
    }

    fn element(&self, token: &Token, dtype: DType) -> Result<Vec<u8>, Diag> {
        let scalar = match token {
            Token::Float(v) => Some(Scalar::Float(F32(*v))),
            Token::Int(v) => Some(Scalar::Int(*v)),
            _ => None,
        };
        match scalar.and_then(|s| s.to_bytes(dtype)) {
            Some(b) => Ok(b),
            None => self.fail(format!("a constant's element is not of element type {dtype}")),
        }
    }

    pub(super) fn init(&mut self) -> Result<Init, Diag> {
        match self.word("an initial value")?.as_str() {
            "zeros" => Ok(Init::Zeros),
            "ones" => Ok(Init::Ones),
            "fill" => {
                self.expect("(")?;
                let value = match self.take() {
                    Some(Token::Float(v)) => Scalar::Float(F32(v)),
                    Some(Token::Int(v)) => Scalar::Int(v),
                    _ => return self.fail("expected a number"),
                };
                self.expect(")")?;
                Ok(Init::Fill(value))
            }
            "uniform" => {
                self.expect("(")?;
                let seed = self.uint()?;
                let first = self.parameter()?;
                if self.eat(")") {
                    return Ok(Init::symmetric(seed, first.0));
                }
                let high = self.parameter()?;
                self.expect(")")?;
                Ok(Init::Uniform { seed, low: first, high })
            }
            "normal" => {
                self.expect("(")?;
                let seed = self.uint()?;
                let (mean, std) = (self.parameter()?, self.parameter()?);
                self.expect(")")?;
                Ok(Init::Normal { seed, mean, std })
            }
            "data" => {
                self.expect("(")?;
                let digits = self.text()?;
                self.expect(")")?;
                match unhex(&digits).and_then(|b| <[u8; 32]>::try_from(b).ok()) {
                    Some(hash) => Ok(Init::Data(Blob::absent(hash))),
                    None => self.fail("a hash has 64 hexadecimal digits"),
                }
            }
            other => self.fail(format!("unknown initial value `{other}`")),
        }
    }
}

impl Cursor {
    /// `, 0.5`.
    fn parameter(&mut self) -> Result<F32, Diag> {
        self.expect(",")?;
        match self.take() {
            Some(Token::Float(v)) => Ok(F32(v)),
            _ => self.fail("expected a float"),
        }
    }
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let bytes = digits.as_bytes();
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    bytes.chunks(2).map(|p| Some(nibble(p[0])? << 4 | nibble(p[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use crate::parse;

    fn constants(count: usize, ty: &str) -> String {
        let mut text = "module @m graph\n".to_string();
        for i in 0..count {
            text.push_str(&format!("%c{i} = const splat 1 : {ty}\n"));
        }
        text
    }

    /// One `splat` constant spells at most its limit, however its extents overflow.
    #[test]
    fn a_splat_is_limited() {
        let module = parse(&constants(1, "i64[131072]")).expect("at the limit");
        assert_eq!(module.consts.values().map(|c| c.data.len()).sum::<usize>(), 1 << 20);
        for ty in ["i64[131073]", "i64[4611686018427387904]", "i64[4611686018427387904,4611686018427387904]"]
        {
            let refused = parse(&constants(1, ty)).expect_err("over the limit");
            assert!(refused.message.contains("use `fill`"), "{refused}");
        }
    }

    /// Many `splat` constants, each at its limit, share one budget; the line that exceeds it is named.
    #[test]
    fn splats_share_a_budget() {
        assert!(parse(&constants(64, "bool[1048576]")).is_ok());
        let refused = parse(&constants(2000, "bool[1048576]")).expect_err("over the budget");
        assert!(refused.message.contains("the module's `splat` constants"), "{refused}");
        assert_eq!(refused.at, crate::diag::Anchor::Line(66));
    }
}
