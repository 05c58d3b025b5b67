//! Initial contents of persistent tensors, and their spelling in texts and plans.
//!
//! Generated contents are named by a distribution and a seed; the runtime makes the numbers.

use std::fmt;
use std::sync::OnceLock;

use crate::attr::{Attr, F32, Scalar};
use crate::data::Data;
use crate::error::TypeError;
use crate::types::TensorType;

/// A byte string and its hash; the bytes may be absent when only structure was read.
#[derive(Clone)]
pub struct Blob {
    /// BLAKE3 of the bytes, once it was asked for.
    hash: OnceLock<[u8; 32]>,
    bytes: Option<Data>,
}

impl Blob {
    /// A blob that holds `bytes`.
    pub fn new(bytes: impl Into<Data>) -> Self {
        Self { hash: OnceLock::new(), bytes: Some(bytes.into()) }
    }
    /// A blob whose bytes are not at hand.
    pub fn absent(hash: [u8; 32]) -> Self {
        Self { hash: OnceLock::from(hash), bytes: None }
    }
    /// The bytes, where they are at hand.
    pub fn bytes(&self) -> Option<&Data> {
        self.bytes.as_ref()
    }
    /// BLAKE3 of the bytes. The first call reads them all.
    pub fn hash(&self) -> [u8; 32] {
        *self.hash.get_or_init(|| *blake3::hash(self.bytes.as_deref().unwrap_or_default()).as_bytes())
    }
    /// The hash as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.hash()).to_hex().to_string()
    }
}

impl PartialEq for Blob {
    fn eq(&self, other: &Self) -> bool {
        match (&self.bytes, &other.bytes) {
            (Some(a), Some(b)) => a == b,
            _ => self.hash() == other.hash(),
        }
    }
}
impl Eq for Blob {}
impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({})", self.hex())
    }
}

/// Content of a persistent tensor before the first step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// One value everywhere, of the tensor's element type.
    Fill(Scalar),
    /// Uniform in `[low, high)`, from a counter-based generator keyed by `seed`.
    Uniform {
        /// Generator key, below 2^63 so that it reads back from text.
        seed: u64,
        /// Smallest value.
        low: F32,
        /// End of the range.
        high: F32,
    },
    /// Normal, from a counter-based generator keyed by `seed`.
    Normal {
        /// Generator key, below 2^63 so that it reads back from text.
        seed: u64,
        /// Mean.
        mean: F32,
        /// Standard deviation.
        std: F32,
    },
    /// The given bytes.
    Data(Blob),
}

impl Init {
    /// Uniform in `[-bound, bound)`.
    pub fn symmetric(seed: u64, bound: f32) -> Init {
        Init::Uniform { seed, low: F32(-bound), high: F32(bound) }
    }

    /// Checks that a tensor of type `ty` can have this content; the error says why not.
    pub fn check(&self, ty: &TensorType) -> Result<(), TypeError> {
        let range = |seed: u64, numbers: [F32; 2]| {
            if !ty.dtype.is_float() {
                return Err(format!("random contents need a float type, not {ty}").into());
            }
            if seed >> 63 != 0 || numbers.iter().any(|n| !n.0.is_finite()) {
                return Err("random contents need a seed below 2^63 and finite parameters".into());
            }
            Ok(())
        };
        match self {
            Init::Zeros | Init::Ones => Ok(()),
            Init::Fill(value) => match value.to_bytes(ty.dtype) {
                Some(_) => Ok(()),
                None => Err(format!("{value:?} is no element of {ty}").into()),
            },
            Init::Uniform { low, high, .. } if low.0 > high.0 => {
                Err(format!("the range {:?} to {:?} is empty", low.0, high.0).into())
            }
            Init::Normal { std, .. } if std.0 < 0.0 => {
                Err(format!("the standard deviation {:?} is negative", std.0).into())
            }
            Init::Uniform { seed, low, high } => range(*seed, [*low, *high]),
            Init::Normal { seed, mean, std } => range(*seed, [*mean, *std]),
            Init::Data(blob) => match blob.bytes() {
                Some(bytes) if bytes.len() as u64 != ty.bytes() => {
                    Err(format!("{} bytes of data, {ty} has {}", bytes.len(), ty.bytes()).into())
                }
                _ => Ok(()),
            },
        }
    }

    /// The text form.
    pub(crate) fn text(&self) -> String {
        match self {
            Init::Zeros => "zeros".into(),
            Init::Data(blob) => format!("data(\"{}\")", blob.hex()),
            _ => {
                let (name, seed, parameters) = self.parts();
                let all: Vec<String> = seed.map(|s| s.to_string()).into_iter().chain(parameters).collect();
                if all.is_empty() { name.into() } else { format!("{name}({})", all.join(", ")) }
            }
        }
    }

    /// Seed and kind of generated contents, as plans spell them: `ones`, `fill:VALUE`, `uniform:BOUND`,
    /// `uniform:LOW:HIGH` or `normal:MEAN:STD`. `None` for zeros and data.
    pub fn generated(&self) -> Option<(u64, String)> {
        if matches!(self, Init::Zeros | Init::Data(_)) {
            return None;
        }
        let (name, seed, parameters) = self.parts();
        let kind = [name.to_string()].into_iter().chain(parameters).collect::<Vec<_>>().join(":");
        Some((seed.unwrap_or(0), kind))
    }

    /// The generated contents that a plan spells as `seed` and `kind`, or `None`.
    pub fn from_generated(seed: u64, kind: &str) -> Option<Init> {
        let parts: Vec<&str> = kind.split(':').collect();
        let number = |text: &str| text.parse::<f32>().ok().filter(|v| v.is_finite()).map(F32);
        match parts.as_slice() {
            ["ones"] => Some(Init::Ones),
            ["fill", v] => match v.parse::<i64>() {
                Ok(v) => Some(Init::Fill(Scalar::Int(v))),
                Err(_) => Some(Init::Fill(Scalar::Float(F32(v.parse().ok()?)))),
            },
            ["uniform", b] => number(b).map(|b| Init::symmetric(seed, b.0)),
            ["uniform", low, high] => Some(Init::Uniform { seed, low: number(low)?, high: number(high)? }),
            ["normal", mean, std] => Some(Init::Normal { seed, mean: number(mean)?, std: number(std)? }),
            _ => None,
        }
    }

    /// Name, seed and other parameters; the range of symmetric uniform contents is one parameter.
    fn parts(&self) -> (&'static str, Option<u64>, Vec<String>) {
        match self {
            Init::Zeros => ("zeros", None, vec![]),
            Init::Ones => ("ones", None, vec![]),
            Init::Fill(value) => ("fill", None, vec![value.text()]),
            Init::Uniform { seed, low, high } if F32(-low.0) == *high => {
                ("uniform", Some(*seed), vec![high.text()])
            }
            Init::Uniform { seed, low, high } => ("uniform", Some(*seed), vec![low.text(), high.text()]),
            Init::Normal { seed, mean, std } => ("normal", Some(*seed), vec![mean.text(), std.text()]),
            Init::Data(_) => ("data", None, vec![]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::DType;

    /// Spellings in plans read back as they were, whatever the parameters.
    #[test]
    fn generated_contents_read_back() {
        let all = [
            Init::Ones,
            Init::Fill(Scalar::Int(-3)),
            Init::Fill(Scalar::Float(F32(1e-7))),
            Init::Fill(Scalar::Float(F32(f32::NEG_INFINITY))),
            Init::symmetric(7, 0.25),
            Init::Uniform { seed: 7, low: F32(0.0), high: F32(0.0) },
            Init::Uniform { seed: 8, low: F32(-1.0), high: F32(2.5) },
            Init::Normal { seed: 9, mean: F32(0.0), std: F32(0.02) },
        ];
        for init in all {
            let (seed, kind) = init.generated().expect("generated");
            assert_eq!(Init::from_generated(seed, &kind), Some(init), "{kind}");
        }
        assert_eq!(Init::symmetric(7, 0.25).generated(), Some((7, "uniform:0.25".into())));
        assert_eq!(Init::Zeros.generated(), None);
        for kind in ["", "normal:1", "uniform:", "uniform:nan", "uniform:inf", "fill:x", "zeros", "data"] {
            assert_eq!(Init::from_generated(1, kind), None, "{kind}");
        }
    }

    /// Contents that a type cannot hold are refused.
    #[test]
    fn contents_fit_their_type() {
        let (f, i) = (TensorType::new(DType::F32, [2]), TensorType::new(DType::I32, [2]));
        assert!(Init::Ones.check(&i).is_ok() && Init::Fill(Scalar::Int(3)).check(&i).is_ok());
        assert!(Init::Fill(Scalar::Int(3)).check(&f).is_err());
        assert!(Init::Fill(Scalar::Int(1 << 40)).check(&i).is_err());
        assert!(Init::symmetric(1, 0.5).check(&f).is_ok());
        assert!(Init::symmetric(1, 0.5).check(&i).expect_err("integers").to_string().contains("float type"));
        assert!(Init::symmetric(1, -0.5).check(&f).expect_err("empty").to_string().contains("empty"));
        assert!(Init::Normal { seed: 1, mean: F32(0.0), std: F32(-1.0) }.check(&f).is_err());
        assert!(Init::Data(Blob::new([0; 7])).check(&f).expect_err("short").to_string().contains("7 bytes"));
    }
}
