//! Names of data on a command line.

use std::path::{Path, PathBuf};

use memc_ir::DType;

/// Where the data of an input comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// A NumPy array, a folder of them, or a pipe.
    Path(PathBuf),
    /// Standard input.
    Stdin,
    /// A file of token numbers, one after another.
    Tokens {
        /// The file.
        path: PathBuf,
        /// Type of its numbers.
        ty: TokenType,
        /// Tokens to pass over at the beginning; 1 for the labels of next-token prediction.
        skip: u64,
    },
}

/// Type of the numbers in a token file, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
}

impl TokenType {
    /// Bytes of a number.
    pub(super) fn bytes(self) -> u64 {
        match self {
            TokenType::U16 => 2,
            TokenType::U32 | TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }

    /// Writes numbers as elements of `to`, which is an integer type of 32 or 64 bits. The error is the
    /// position and value of the first number that `to` cannot hold.
    pub(super) fn convert(self, numbers: &[u8], to: DType, out: &mut [u8]) -> Result<(), (u64, i64)> {
        let wide = |n: &[u8]| -> i64 {
            match (self, n) {
                (TokenType::U16, &[a, b]) => u16::from_le_bytes([a, b]).into(),
                (TokenType::U32, &[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]).into(),
                (TokenType::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
                (TokenType::I64, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
                _ => 0,
            }
        };
        let width = to.bytes() as usize;
        let numbers = numbers.chunks_exact(self.bytes() as usize).map(wide);
        for ((at, number), out) in (0..).zip(numbers).zip(out.chunks_exact_mut(width)) {
            if to == DType::I32 && i32::try_from(number).is_err() {
                return Err((at, number));
            }
            out.iter_mut().zip(number.to_le_bytes()).for_each(|(out, byte)| *out = byte);
        }
        Ok(())
    }
}

impl InputSource {
    /// The file, where it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            InputSource::Path(path) | InputSource::Tokens { path, .. } => Some(path),
            InputSource::Stdin => None,
        }
    }
}

impl From<PathBuf> for InputSource {
    fn from(path: PathBuf) -> InputSource {
        InputSource::Path(path)
    }
}

impl std::str::FromStr for InputSource {
    type Err = &'static str;

    /// Reads `@FILE`, `@FILE:u16`, `@FILE:u16+1` and `-`.
    fn from_str(text: &str) -> Result<InputSource, &'static str> {
        const FORM: &str = "expected NAME=@FILE.npy, NAME=@FOLDER, NAME=@TOKENS.bin:u16 or NAME=-";
        if text == "-" {
            return Ok(InputSource::Stdin);
        }
        let path = text.strip_prefix('@').filter(|path| !path.is_empty()).ok_or(FORM)?;
        let tokens = path.rsplit_once(':').and_then(|(path, form)| {
            let (ty, skip) = form.split_once('+').unwrap_or((form, "0"));
            let ty = match ty {
                "u16" => TokenType::U16,
                "u32" => TokenType::U32,
                "i32" => TokenType::I32,
                "i64" => TokenType::I64,
                _ => return None,
            };
            Some((path, ty, skip))
        });
        let Some((path, ty, skip)) = tokens else { return Ok(InputSource::Path(path.into())) };
        let skip =
            skip.parse().map_err(|_| "expected a number of tokens after `+`, as in @train.bin:u16+1")?;
        Ok(InputSource::Tokens { path: path.into(), ty, skip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files, pipes and token files are told apart; a colon elsewhere is part of the name.
    #[test]
    fn sources_are_told_apart() {
        let read = |text: &str| text.parse::<InputSource>();
        assert_eq!(read("-"), Ok(InputSource::Stdin));
        assert_eq!(read("@a:b.npy"), Ok(InputSource::Path("a:b.npy".into())));
        let tokens = |ty, skip| Ok(InputSource::Tokens { path: "t.bin".into(), ty, skip });
        assert_eq!(read("@t.bin:u16"), tokens(TokenType::U16, 0));
        assert_eq!(read("@t.bin:u32+1"), tokens(TokenType::U32, 1));
        assert!(read("t.npy").is_err() && read("@").is_err() && read("@t.bin:u16+x").is_err());
    }

    /// Tokens become integers of the input's type.
    #[test]
    fn tokens_are_converted() {
        let mut out = [0; 16];
        assert_eq!(TokenType::U16.convert(&[1, 0, 0xff, 0xff], DType::I64, &mut out), Ok(()));
        assert_eq!(out, [1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0]);
        let mut out = [0; 4];
        assert_eq!(TokenType::I64.convert(&(-3i64).to_le_bytes(), DType::I32, &mut out), Ok(()));
        assert_eq!(out, (-3i32).to_le_bytes());
        let large = TokenType::U32.convert(&u32::MAX.to_le_bytes(), DType::I32, &mut out);
        assert_eq!(large, Err((0, i64::from(u32::MAX))));
    }
}
