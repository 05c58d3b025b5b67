//! Contents of the states before the first step.
//!
//! Random contents come from a counter-based generator, so that an element depends on the seed and its index alone,
//! on every machine: element `i` of seed `s` is made of the 64 bits `mix(mix(s) + i)`, where [`mix`] is the output
//! function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) after
//! one step of its increment. `uniform:b` takes the upper 24 bits as `u` in `[0, 1)` and gives `(2 u - 1) b` in f32,
//! which lies in `[-b, b)` and is rounded once. `ones` gives the number one.

use memc_ir::{DType, TensorType};
use memc_plan::{Init, PlanFile};

use crate::error::Error;
use crate::state::{StateFile, stated};

/// One step and the output function of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the states' contents come from: a state of a former run, single tensors from a file, or the plan.
#[derive(Debug)]
pub struct Initial<'a> {
    plan: &'a PlanFile,
    resume: Option<StateFile>,
    overrides: Option<StateFile>,
}

impl<'a> Initial<'a> {
    /// Takes the contents from the plan, except those that a file has. `resume` must hold each state that is not a
    /// constant and nothing else; `overrides` may hold some of them and wins.
    ///
    /// # Errors
    /// [`Error::Data`] if a file does not match the plan, [`Error::Plan`] if the plan's own contents are not known.
    pub fn new(
        plan: &'a PlanFile,
        resume: Option<StateFile>,
        overrides: Option<StateFile>,
    ) -> Result<Initial<'a>, Error> {
        let states = stated(plan.plan())?;
        if let Some(file) = &resume {
            file.check(&states, true)?;
        }
        if let Some(file) = &overrides {
            file.check(&states, false)?;
        }
        for (state, _) in &states {
            if let Init::Random { kind, .. } = &state.init {
                Kind::parse(kind).map_err(|what| Error::Plan(format!("state `{}`: {what}", state.name)))?;
            }
        }
        Ok(Initial { plan, resume, overrides })
    }

    /// Steps that the resumed run had done; 0 without one.
    pub fn step(&self) -> u64 {
        self.resume.as_ref().map_or(0, StateFile::step)
    }

    /// Writes the contents of the state with this index, a tensor of type `ty`.
    ///
    /// # Errors
    /// [`Error::Plan`] if the plan's own contents do not fit the type.
    pub fn write(&self, state: usize, ty: &TensorType, out: &mut [u8]) -> Result<(), Error> {
        let Some(entry) = self.plan.plan().states.get(state) else {
            return Err(Error::Internal(format!("no state {state}")));
        };
        let fail = |what: String| Error::Plan(format!("state `{}`: {what}", entry.name));
        let files = [&self.overrides, &self.resume].into_iter().flatten();
        let saved = files.filter_map(|file| file.get(&entry.name)).next();
        let bytes = match (saved, &entry.init) {
            (Some(bytes), _) => bytes,
            (None, Init::Data { .. }) => self.plan.data(state),
            (None, Init::Zeros) => {
                out.fill(0);
                return Ok(());
            }
            (None, Init::Random { seed, kind }) => {
                return Kind::parse(kind).and_then(|kind| kind.write(*seed, ty.dtype, out)).map_err(fail);
            }
        };
        if bytes.len() != out.len() {
            return Err(fail(format!("{} bytes of initial contents for {}", bytes.len(), out.len())));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }
}

/// A generated kind of contents.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ones,
    Uniform(f32),
}

impl Kind {
    fn parse(text: &str) -> Result<Kind, String> {
        if text == "ones" {
            return Ok(Kind::Ones);
        }
        let bound = text.strip_prefix("uniform:").and_then(|b| b.parse::<f32>().ok());
        match bound.filter(|b| b.is_finite()) {
            Some(bound) => Ok(Kind::Uniform(bound)),
            None => Err(format!("unknown initial contents `{text}`; known are `ones` and `uniform:<bound>`")),
        }
    }

    fn write(self, seed: u64, dtype: DType, out: &mut [u8]) -> Result<(), String> {
        match (self, dtype) {
            (Kind::Ones, DType::F32) => fill(out, |_| 1f32.to_le_bytes()),
            (Kind::Ones, DType::I32) => fill(out, |_| 1i32.to_le_bytes()),
            (Kind::Ones, DType::I64) => fill(out, |_| 1i64.to_le_bytes()),
            (Kind::Ones, DType::Bool) => out.fill(1),
            (Kind::Uniform(bound), DType::F32) => {
                let key = mix(seed);
                fill(out, |i| {
                    let unit = (mix(key.wrapping_add(i)) >> 40) as f32 / (1u32 << 24) as f32;
                    ((2.0 * unit - 1.0) * bound).to_le_bytes()
                });
            }
            (Kind::Uniform(_), dtype) => return Err(format!("`uniform` contents need f32, not {dtype}")),
        }
        Ok(())
    }
}

/// Writes `f(i)` as element `i`.
pub(crate) fn fill<const N: usize>(out: &mut [u8], f: impl Fn(u64) -> [u8; N]) {
    for (i, element) in (0u64..).zip(out.as_chunks_mut::<N>().0) {
        *element = f(i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(seed: u64, bound: &str, n: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * n];
        Kind::parse(&format!("uniform:{bound}")).unwrap().write(seed, DType::F32, &mut bytes).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// The mixing function is that of SplitMix64: these are its first outputs for the states 0 and its increment.
    #[test]
    fn mixing_is_splitmix64() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    /// Uniform contents fill their range, are centred, and depend on seed and index only.
    #[test]
    fn uniform_contents() {
        let xs = floats(7, "0.25", 10_000);
        assert!(xs.iter().all(|x| (-0.25..0.25).contains(x)));
        let mean = xs.iter().map(|&x| f64::from(x)).sum::<f64>() / 10_000.0;
        let spread = xs.iter().map(|&x| f64::from(x * x)).sum::<f64>() / 10_000.0;
        assert!(mean.abs() < 0.005, "mean {mean}");
        assert!((spread - 0.25f64.powi(2) / 3.0).abs() < 0.001, "mean square {spread}");
        assert_eq!(floats(7, "0.25", 10), xs[..10]);
        assert_ne!(floats(8, "0.25", 10), xs[..10]);
    }

    /// Kinds that are not known, and types that a kind cannot fill, are refused.
    #[test]
    fn unknown_kinds_are_refused() {
        for text in ["normal:1", "uniform:", "uniform:nan", "uniform:x", ""] {
            assert!(Kind::parse(text).is_err(), "{text}");
        }
        assert!(Kind::Uniform(1.0).write(0, DType::I64, &mut [0; 8]).is_err());
        let mut bytes = [0; 16];
        Kind::Ones.write(0, DType::I64, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
