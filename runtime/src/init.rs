//! Contents of the states before the first step.
//!
//! Random contents come from a counter-based generator, so that an element depends on the seed and its index
//! alone, on every machine: element `i` of seed `s` is made of the 64 bits `mix(mix(s) + i)`, where [`mix`]
//! is the output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
//! generators", OOPSLA 2014) after one step of its increment. `uniform:l:h` takes the upper 24 bits as `u` in
//! `[0, 1)` and gives `l + (h - l) u`, and `uniform:b` is `uniform:-b:b`; `normal:m:s` gives `m + s n` with a
//! standard normal `n` of all 64 bits. Both are computed in f64 and rounded once. `fill:v` gives the number
//! `v` everywhere, `ones` the number one.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, TensorType};
use memc_plan::{Init, PlanFile};
use rayon::prelude::*;

use crate::error::{Defect, Error};
use crate::jobs;
use crate::state::{Fit, StateFile, variables};

/// One step and the output function of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Source of the states' contents: the saved state of a former run, single tensors of a file, or the plan.
#[derive(Debug)]
pub struct Initial<'a> {
    plan: &'a PlanFile,
    resume: Vec<StateFile>,
    overrides: Vec<StateFile>,
    /// Rounds that the resumed run had done.
    rounds: u64,
    /// Steps of jobs before the first round, by name.
    before: Vec<(String, u64)>,
}

impl<'a> Initial<'a> {
    /// Takes the contents from the plan, except those that files have: one file, or one for each job. Those
    /// of `resume` must hold each state that is not a constant and nothing else. `overrides` may hold some of
    /// them and win; for an evaluation they must hold each, and other tensors do not matter.
    ///
    /// # Errors
    /// [`Error::Data`] if a file does not match the plan, [`Error::Plan`] if the plan's own contents are not
    /// known.
    pub fn new(
        plan: &'a PlanFile,
        resume: Vec<StateFile>,
        overrides: Vec<StateFile>,
    ) -> Result<Initial<'a>, Error> {
        for file in &resume {
            file.check(plan.plan(), Fit::Exact)?;
        }
        for file in &overrides {
            let is_evaluation = plan.plan().meta.is_evaluation();
            file.check(plan.plan(), if is_evaluation { Fit::Cover } else { Fit::Part })?;
        }
        for state in variables(plan.plan()) {
            if let Init::Random { seed, kind } = &state.init {
                let known =
                    generated(*seed, kind).and_then(|init| init.check(&state.ty).map_err(Defect::new));
                known.map_err(|what| Error::Plan(format!("state `{}`: {what}", state.name)))?;
            }
        }
        let jobs = jobs::of(plan.plan());
        let before: Result<Vec<_>, Error> = resume.iter().map(|file| file.before(&jobs)).collect();
        let mut before = before?.concat();
        let of_all = resume.iter().find(|file| !file.is_of_job()).map(StateFile::step);
        // Files of single jobs are of a run that all of them were in, as far as their steps allow.
        let rounds = of_all.unwrap_or_else(|| jobs::begun(&jobs, &mut before));
        Ok(Initial { plan, resume, overrides, rounds, before })
    }

    /// Steps that the resumed run had done, of a plan of several jobs its rounds; 0 without one.
    pub fn step(&self) -> u64 {
        self.rounds
    }

    /// Steps of jobs before the first round, by name.
    pub(crate) fn before(&self) -> &[(String, u64)] {
        &self.before
    }

    /// Writes the contents of the state with an index in the plan (bucket 0) or in one of its buckets, a
    /// tensor of type `ty`.
    ///
    /// # Errors
    /// [`Error::Plan`] if the plan's own contents do not fit the type.
    pub fn write(
        &self,
        (bucket, state): (usize, usize),
        ty: &TensorType,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let entry = self.plan.plan().bucket(bucket).and_then(|plan| plan.states.get(state));
        let Some(entry) = entry else {
            return Err(Error::Internal(format!("no state {state}")));
        };
        let fail = |what: Defect| Error::Plan(format!("state `{}`: {what}", entry.name));
        for file in self.overrides.iter().chain(&self.resume) {
            if file.read(&entry.name, out)? {
                return Ok(());
            }
        }
        let bytes = match &entry.init {
            Init::Data { .. } => self.plan.data(bucket, state),
            Init::Zeros => {
                out.fill(0);
                return Ok(());
            }
            Init::Random { seed, kind } => {
                return generated(*seed, kind).and_then(|init| write(&init, ty.dtype, out)).map_err(fail);
            }
        };
        if bytes.len() != out.len() {
            let sizes = format!("{} bytes of initial contents for {}", bytes.len(), out.len());
            return Err(fail(Defect::new(sizes)));
        }
        out.copy_from_slice(bytes);
        Ok(())
    }
}

/// The contents that a plan calls `kind`.
fn generated(seed: u64, kind: &str) -> Result<memc_ir::Init, Defect> {
    memc_ir::Init::from_generated(seed, kind).ok_or_else(|| {
        Defect::new(format!(
            "unknown initial contents `{kind}`; known are `ones`, `fill:<value>`, `uniform:<bound>`, \
             `uniform:<low>:<high>` and `normal:<mean>:<std>`"
        ))
    })
}

/// Writes generated contents of element type `dtype`.
fn write(init: &memc_ir::Init, dtype: DType, out: &mut [u8]) -> Result<(), Defect> {
    let numbers = |seed: u64, out: &mut [u8], f: &(dyn Fn(u64) -> f64 + Sync)| {
        let key = mix(seed);
        match dtype {
            DType::F32 => fill(out, |i| (f(mix(key.wrapping_add(i))) as f32).to_le_bytes()),
            DType::F16 => fill(out, |i| half::f16::from_f64(f(mix(key.wrapping_add(i)))).to_le_bytes()),
            DType::BF16 => fill(out, |i| half::bf16::from_f64(f(mix(key.wrapping_add(i)))).to_le_bytes()),
            other => return Err(Defect::new(format!("random contents need a float type, not {other}"))),
        }
        Ok(())
    };
    let one = if dtype.is_float() { Scalar::Float(F32(1.0)) } else { Scalar::Int(1) };
    match init {
        memc_ir::Init::Ones => write(&memc_ir::Init::Fill(one), dtype, out),
        memc_ir::Init::Fill(value) => {
            let element =
                value.to_bytes(dtype).ok_or_else(|| Defect::new(format!("{value:?} is no {dtype}")))?;
            out.chunks_exact_mut(element.len()).for_each(|to| to.copy_from_slice(&element));
            Ok(())
        }
        memc_ir::Init::Uniform { seed, low, high } => {
            let (low, span) = (f64::from(low.0), f64::from(high.0) - f64::from(low.0));
            numbers(*seed, out, &|bits| low + span * ((bits >> 40) as f64 / f64::from(1u32 << 24)))
        }
        memc_ir::Init::Normal { seed, mean, std } => {
            let (mean, std) = (f64::from(mean.0), f64::from(std.0));
            numbers(*seed, out, &|bits| mean + std * normal(bits))
        }
        memc_ir::Init::Zeros | memc_ir::Init::Data(_) => Err(Defect::new("these contents are not generated")),
    }
}

/// A standard normal number from 64 random bits: Box and Muller, "A note on the generation of random normal
/// deviates", 1958, with `libm`, so that it is the same on every machine.
pub(crate) fn normal(bits: u64) -> f64 {
    let unit = |half: u64| (half as f64 + 0.5) / (1u64 << 32) as f64;
    let (u, v) = (unit(bits >> 32), unit(bits & 0xffff_ffff));
    libm::sqrt(-2.0 * libm::log(u)) * libm::cos(std::f64::consts::TAU * v)
}

/// Elements that are written one after another.
const PART: usize = 1 << 16;

/// Writes `f(i)` as element `i`, parts side by side.
pub(crate) fn fill<const N: usize>(out: &mut [u8], f: impl Fn(u64) -> [u8; N] + Sync) {
    let write = |(part, elements): (usize, &mut [[u8; N]])| {
        for (i, element) in ((part * PART) as u64..).zip(elements) {
            *element = f(i);
        }
    };
    match out.as_chunks_mut::<N>().0 {
        few if few.len() <= PART => write((0, few)),
        many => many.par_chunks_mut(PART).enumerate().for_each(write),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(seed: u64, kind: &str, n: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * n];
        write(&generated(seed, kind).unwrap(), DType::F32, &mut bytes).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// The mixing function is that of SplitMix64: these are its first outputs for the states 0 and its
    /// increment.
    #[test]
    fn mixing_is_splitmix64() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    /// Uniform contents fill their range, are centred, and depend on seed and index only.
    #[test]
    fn uniform_contents() {
        let xs = floats(7, "uniform:0.25", 10_000);
        assert!(xs.iter().all(|x| (-0.25..0.25).contains(x)));
        let mean = xs.iter().map(|&x| f64::from(x)).sum::<f64>() / 10_000.0;
        let spread = xs.iter().map(|&x| f64::from(x * x)).sum::<f64>() / 10_000.0;
        assert!(mean.abs() < 0.005, "mean {mean}");
        assert!((spread - 0.25f64.powi(2) / 3.0).abs() < 0.001, "mean square {spread}");
        assert_eq!(floats(7, "uniform:0.25", 10), xs[..10]);
        assert_ne!(floats(8, "uniform:0.25", 10), xs[..10]);
        let shifted = floats(7, "uniform:1.0:3.0", 10);
        assert!(shifted.iter().zip(&xs).all(|(s, x)| (s - (2.0 + 4.0 * x)).abs() < 1e-6));
    }

    /// Contents are the same element by element, however many parts there are.
    #[test]
    fn parts_are_those_of_one_row() {
        let n = 3 * PART + 5;
        let many = floats(7, "uniform:1.0", n);
        let key = mix(7);
        for i in [0, 1, PART - 1, PART, 2 * PART + 3, n - 1] {
            let unit = (mix(key.wrapping_add(i as u64)) >> 40) as f32 / (1u32 << 24) as f32;
            assert_eq!(many[i], 2.0 * unit - 1.0, "{i}");
        }
    }

    /// Normal contents have the mean, the deviation and the tails that they are asked for.
    #[test]
    fn normal_contents() {
        let n = 20_000;
        let xs: Vec<f64> = floats(3, "normal:1.0:0.5", n).into_iter().map(f64::from).collect();
        let mean = xs.iter().sum::<f64>() / n as f64;
        let variance = xs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        assert!((mean - 1.0).abs() < 0.015 && (variance - 0.25).abs() < 0.01, "{mean}, {variance}");
        let beyond = xs.iter().filter(|x| (*x - 1.0).abs() > 0.5 * 1.96).count() as f64 / n as f64;
        assert!((beyond - 0.05).abs() < 0.006, "{beyond}");
    }

    /// Kinds that are not known, and types that a kind cannot fill, are refused.
    #[test]
    fn unknown_kinds_are_refused() {
        assert!(generated(0, "normal:1").unwrap_err().to_string().contains("known are"));
        let uniform = generated(0, "uniform:1.0").unwrap();
        assert!(write(&uniform, DType::I64, &mut [0; 8]).is_err());
        let mut bytes = [0; 16];
        write(&generated(0, "ones").unwrap(), DType::I64, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        write(&generated(0, "fill:-2").unwrap(), DType::I32, &mut bytes).unwrap();
        assert_eq!(bytes[12..], [254, 255, 255, 255]);
    }
}
