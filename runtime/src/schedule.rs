//! Learning rates of a run: one number, one for each step, or a schedule.
//!
//! Contract: the rate of a step depends on its number alone, which counts over resumed runs. Schedules are
//! those of PyTorch and of the transformers library; the step with number 1 takes what their schedulers give
//! before their first `step()`.

use std::path::PathBuf;

use crate::error::Defect;

/// Learning rate of each step.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rate {
    /// The plan's rate.
    #[default]
    Plan,
    /// The same for all steps.
    Constant(f32),
    /// A NumPy array of `f32` with one rate for each step.
    File(PathBuf),
    /// A schedule.
    Schedule(Schedule),
}

/// A warm-up, then a decay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Rate that the factor scales; `None` for the plan's.
    pub base: Option<f32>,
    /// Steps in which the factor rises from 0 to 1.
    pub warmup: u64,
    /// Factor after the warm-up.
    pub decay: Decay,
    /// Share of the base rate that a cosine, linear or polynomial decay ends at.
    pub floor: f64,
}

/// Form of a decay. Steps count from the first step of training.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Decay {
    /// None.
    #[default]
    Constant,
    /// Half a cosine.
    Cosine {
        /// Step at which it ends.
        total: u64,
    },
    /// A line.
    Linear {
        /// Step at which it ends.
        total: u64,
    },
    /// `(1 - progress) ^ power`.
    Polynomial {
        /// Step at which it ends.
        total: u64,
        /// The power.
        power: f64,
    },
    /// Times `gamma` again and again.
    Step {
        /// Steps from one factor to the next.
        every: u64,
        /// The factor.
        gamma: f64,
    },
    /// Times `gamma` at some steps.
    Milestones {
        /// Those steps.
        at: Vec<u64>,
        /// The factor.
        gamma: f64,
    },
}

impl Schedule {
    /// Factor of the step with number `step`, counted from 1.
    pub fn factor(&self, step: u64) -> f64 {
        let done = step.saturating_sub(1);
        if done < self.warmup {
            return done as f64 / self.warmup as f64;
        }
        let progress = |total: u64| {
            let span = total.saturating_sub(self.warmup).max(1);
            (done.saturating_sub(self.warmup) as f64 / span as f64).min(1.0)
        };
        let falling = |share: f64| self.floor + (1.0 - self.floor) * share;
        match &self.decay {
            Decay::Constant => 1.0,
            Decay::Cosine { total } => {
                falling(0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress(*total))))
            }
            Decay::Linear { total } => falling(1.0 - progress(*total)),
            Decay::Polynomial { total, power } => falling(libm::pow(1.0 - progress(*total), *power)),
            Decay::Step { every, gamma } => libm::pow(*gamma, (done / (*every).max(1)) as f64),
            Decay::Milestones { at, gamma } => {
                libm::pow(*gamma, at.iter().filter(|&&at| at <= done).count() as f64)
            }
        }
    }

    /// Rate of the step with number `step`; `plan` is the plan's rate.
    pub fn rate(&self, step: u64, plan: f32) -> f32 {
        (f64::from(self.base.unwrap_or(plan)) * self.factor(step)) as f32
    }

    /// Reads `warmup=100,cosine=10000,min=0.1` and the like.
    fn parse(text: &str) -> Result<Schedule, Defect> {
        let mut schedule = Schedule::default();
        let (mut decays, mut gamma, mut power) = (Vec::new(), None, None);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| unknown(part))?;
            let steps = || {
                value
                    .parse::<u64>()
                    .ok()
                    .filter(|&n| n > 0)
                    .ok_or_else(|| wrong(key, value, "a number of steps"))
            };
            let number = |low: f64, high: f64, what: &str| {
                let number = value.parse::<f64>().ok().filter(|x| (low..=high).contains(x));
                number.ok_or_else(|| wrong(key, value, what))
            };
            match key {
                "base" => schedule.base = Some(rate(value)?),
                "warmup" => schedule.warmup = steps()?,
                "min" => schedule.floor = number(0.0, 1.0, "a share of the base rate from 0 to 1")?,
                "gamma" => gamma = Some(number(0.0, f64::MAX, "a factor")?),
                "power" => power = Some(number(0.0, f64::MAX, "a power")?),
                "cosine" => decays.push(Decay::Cosine { total: steps()? }),
                "linear" => decays.push(Decay::Linear { total: steps()? }),
                "poly" => decays.push(Decay::Polynomial { total: steps()?, power: 1.0 }),
                "step" => decays.push(Decay::Step { every: steps()?, gamma: 0.1 }),
                "milestones" => {
                    let at: Option<Vec<u64>> = value.split('/').map(|n| n.parse().ok()).collect();
                    let at = at.ok_or_else(|| wrong(key, value, "steps such as 3000/6000"))?;
                    decays.push(Decay::Milestones { at, gamma: 0.1 });
                }
                _ => return Err(unknown(part)),
            }
        }
        if decays.len() > 1 {
            return Err(Defect::new("two decays; name one of cosine, linear, poly, step and milestones"));
        }
        schedule.decay = decays.pop().unwrap_or_default();
        match (&mut schedule.decay, gamma, power) {
            (Decay::Step { gamma: own, .. } | Decay::Milestones { gamma: own, .. }, gamma, None) => {
                *own = gamma.unwrap_or(*own);
            }
            (Decay::Polynomial { power: own, .. }, None, power) => *own = power.unwrap_or(*own),
            (_, None, None) => {}
            _ => return Err(Defect::new("`gamma` goes with step or milestones, `power` with poly")),
        }
        Ok(schedule)
    }
}

fn unknown(part: &str) -> Defect {
    Defect::new(format!(
        "`{part}` is no part of a schedule; there are base, warmup, min, cosine, linear, poly, power, step, \
         gamma \
         and milestones, as in warmup=100,cosine=10000"
    ))
}

fn wrong(key: &str, value: &str, what: &str) -> Defect {
    Defect::new(format!("{key}={value}: expected {what}"))
}

fn rate(text: &str) -> Result<f32, Defect> {
    let rate = text.parse::<f32>().ok().filter(|x| x.is_finite());
    let rate = rate.ok_or_else(|| {
        Defect::new(format!(
            "`{text}` is no rate: expected a number, @FILE.npy, or a schedule such as warmup=100,cosine=10000"
        ))
    })?;
    if rate < 0.0 {
        return Err(Defect::new(format!(
            "a rate of {rate} would climb the loss; give one that is not negative"
        )));
    }
    Ok(rate)
}

impl std::str::FromStr for Rate {
    type Err = Defect;

    fn from_str(text: &str) -> Result<Rate, Defect> {
        if let Some(path) = text.strip_prefix('@').filter(|path| !path.is_empty()) {
            return Ok(Rate::File(path.into()));
        }
        if text.contains('=') {
            Schedule::parse(text).map(Rate::Schedule)
        } else {
            rate(text).map(Rate::Constant)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(text: &str, steps: &[u64]) -> Vec<f64> {
        let Ok(Rate::Schedule(schedule)) = text.parse() else { panic!("{text}") };
        steps.iter().map(|&step| schedule.factor(step)).collect()
    }

    fn close(have: &[f64], want: &[f64]) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-7;
        assert!(have.len() == want.len() && have.iter().zip(want).all(near), "{have:?} is not {want:?}");
    }

    /// Numbers of transformers 5.23: `get_cosine_schedule_with_warmup(4, 12)`,
    /// `get_linear_schedule_with_warmup(4, 12)` and `get_cosine_with_min_lr_schedule_with_warmup(4, 12,
    /// min_lr_rate=0.1)`, by step.
    #[test]
    fn schedules_of_transformers() {
        let steps = [1, 2, 5, 8, 11, 12, 13, 20];
        close(
            &factors("warmup=4,cosine=12", &steps),
            &[0.0, 0.25, 1.0, 0.691_341_716, 0.146_446_609, 0.038_060_234, 0.0, 0.0],
        );
        close(&factors("warmup=4,linear=12", &steps), &[0.0, 0.25, 1.0, 0.625, 0.25, 0.125, 0.0, 0.0]);
        close(
            &factors("warmup=4,cosine=12,min=0.1", &steps[2..]),
            &[1.0, 0.722_207_545, 0.231_801_949, 0.134_254_21, 0.1, 0.1],
        );
    }

    /// Numbers of torch 2.15: `StepLR(3, 0.5)`, `MultiStepLR([2, 5], 0.1)` and `PolynomialLR(8, 2)`.
    #[test]
    fn schedules_of_pytorch() {
        close(&factors("step=3,gamma=0.5", &[1, 3, 4, 7, 10]), &[1.0, 1.0, 0.5, 0.25, 0.125]);
        close(&factors("milestones=2/5", &[2, 3, 5, 6]), &[1.0, 0.1, 0.1, 0.01]);
        close(&factors("poly=8,power=2", &[1, 3, 8, 9, 20]), &[1.0, 0.5625, 0.015_625, 0.0, 0.0]);
    }

    /// Wrong schedules and negative rates are refused with what is wrong.
    #[test]
    fn wrong_rates() {
        let refusal = |text: &str| text.parse::<Rate>().expect_err(text).to_string();
        assert!(refusal("-1").contains("not negative"));
        assert!(refusal("base=-1,cosine=5").contains("not negative"));
        assert!(refusal("nan").contains("is no rate"));
        assert!(refusal("cosine=10,linear=10").contains("two decays"));
        assert!(refusal("cosine=10,gamma=0.1").contains("goes with step"));
        assert!(refusal("warmup=x").contains("a number of steps"));
        assert!(refusal("warm=3").contains("there are base, warmup"));
        assert!(refusal("cosine=10,min=2").contains("from 0 to 1"));
        assert_eq!(
            "base=0.5,warmup=2"
                .parse::<Rate>()
                .map(|r| match r {
                    Rate::Schedule(s) => s.rate(2, 9.0),
                    _ => 0.0,
                })
                .ok(),
            Some(0.25)
        );
    }
}
