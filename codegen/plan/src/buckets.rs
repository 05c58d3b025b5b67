//! The rules of a plan's buckets.

use memc_ir::TensorType;

use crate::{Feed, Input, MAX_BUCKETS, Output, Plan, PlanError, State};

impl Plan {
    /// Checks the number of buckets, the rules that go beyond those of a plan by itself, and then those.
    pub(crate) fn check_buckets(&self) -> Result<(), PlanError> {
        if self.buckets.is_empty() {
            return Ok(());
        }
        if self.buckets.len() > MAX_BUCKETS {
            let what = format!("{} entries; at most {MAX_BUCKETS} are allowed", self.buckets.len());
            return Err(PlanError::invalid("buckets", what));
        }
        if self.tuning.is_some() {
            return Err(tuned());
        }
        let first = self.states.iter().position(|state| !state.is_variable());
        let (variables, constants) = self.states.split_at(first.unwrap_or(self.states.len()));
        if let Some(state) = constants.iter().find(|state| state.is_variable()) {
            let what = "it follows a constant; in a plan with buckets, constants come last";
            return Err(PlanError::invalid(format!("state `{}`", state.name), what));
        }
        for (bucket, number) in self.buckets.iter().zip(1..) {
            let checked = self.check_bucket(bucket, variables).and_then(|()| bucket.check_own());
            checked.map_err(|error| error.in_bucket(number))?;
        }
        Ok(())
    }

    /// Checks that a bucket can take the place of the plan from one step to the next: it has the same arenas
    /// and limits, the same states but for constants, and inputs and outputs that differ in sizes alone.
    fn check_bucket(&self, bucket: &Plan, variables: &[State]) -> Result<(), PlanError> {
        if !bucket.buckets.is_empty() {
            return Err(PlanError::invalid("buckets", "a bucket has none"));
        }
        if bucket.tuning.is_some() {
            return Err(tuned());
        }
        let (own, meta) = (&bucket.meta, &self.meta);
        for (what, has, should) in [
            ("device arena", own.dev_bytes, meta.dev_bytes),
            ("host arena", own.host_bytes, meta.host_bytes),
            ("budget", own.budget_bytes, meta.budget_bytes),
            ("reserve", own.reserve_bytes, meta.reserve_bytes),
        ] {
            if has != should {
                return Err(PlanError::invalid(what, format!("{has} bytes where the plan has {should}")));
            }
        }
        let wrong = |state: &State, what: String| PlanError::invalid(format!("state `{}`", state.name), what);
        for (index, state) in variables.iter().enumerate() {
            match bucket.states.get(index) {
                Some(own) if own == state => {}
                Some(own) => return Err(wrong(own, format!("state {index} of the plan is `{state}`"))),
                None => return Err(wrong(state, "the plan has it, and the bucket does not".to_owned())),
            }
        }
        if let Some(state) = bucket.states.iter().skip(variables.len()).find(|state| state.is_variable()) {
            return Err(wrong(state, "it is no constant, and the plan does not have it".to_owned()));
        }
        let inputs = self.inputs.iter().zip(&bucket.inputs);
        let outputs = self.outputs.iter().zip(&bucket.outputs);
        let counts = (self.inputs.len(), self.outputs.len());
        if counts != (bucket.inputs.len(), bucket.outputs.len()) {
            let what = "there are more or fewer than in the plan".to_owned();
            return Err(PlanError::invalid("inputs and outputs", what));
        }
        let other = "it differs from the plan's in more than sizes";
        if let Some((_, input)) = { inputs }.find(|(a, b)| !is_like(a, b)) {
            return Err(PlanError::invalid(format!("input `{}`", input.name), other));
        }
        let is_other =
            |(a, b): &(&Output, &Output)| (&a.name, a.role) != (&b.name, b.role) || !may_differ(&a.ty, &b.ty);
        match { outputs }.find(is_other) {
            Some((_, output)) => Err(PlanError::invalid(format!("output `{}`", output.name), other)),
            None => Ok(()),
        }
    }
}

/// Whether two types differ in sizes at most.
fn may_differ(a: &TensorType, b: &TensorType) -> bool {
    a.dtype == b.dtype && a.shape.len() == b.shape.len()
}

/// Whether two inputs differ in sizes at most, and in the range of synthetic data.
fn is_like(a: &Input, b: &Input) -> bool {
    let same = match (&a.feed, &b.feed) {
        (Feed::Data { source, micro, .. }, Feed::Data { source: other, micro: at, .. }) => {
            (source, micro) == (other, at)
        }
        (Feed::LearningRate { default, turn }, Feed::LearningRate { default: other, turn: at }) => {
            default.to_bits() == other.to_bits() && turn == at
        }
        (Feed::Step { turn }, Feed::Step { turn: at }) => turn == at,
        _ => false,
    };
    same && a.name == b.name && may_differ(&a.ty, &b.ty)
}

fn tuned() -> PlanError {
    PlanError::invalid("tuning", "a plan with buckets has no tuning section")
}
