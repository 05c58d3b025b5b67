//! Several jobs in one module: a round runs some steps of each.
//!
//! Every name of a job gets the job's name and a slash in front. The steps of a job follow each other: each
//! begins with the states that the one before it left, and each has its own data. Constants are shared by
//! the steps of a job.

use memc_ir::{Code, Def, Feed, Id, Module, OpId, Output, Turn, Value, ValueId};

/// A job of a round.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Name of the job, without a slash.
    pub name: &'a str,
    /// Its step, a graph-phase module.
    pub module: &'a Module,
    /// Steps in a round, at least 1.
    pub steps: u32,
}

/// The module of a round: all steps of the first job, then those of the next.
pub fn merge(parts: &[Part<'_>]) -> Module {
    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let mut round = Module::new(names.join("+"));
    for part in parts {
        append(&mut round, *part);
    }
    round
}

/// Appends the steps of a job.
fn append(round: &mut Module, part: Part<'_>) {
    let Part { module: m, steps, .. } = part;
    let name = |text: &str| format!("{}/{text}", part.name);
    // The value of the round for each of the job's, in the present step.
    let mut map: Vec<Option<ValueId>> = vec![None; m.values.len()];
    for c in m.consts.values() {
        let Value { name: of, ty, .. } = &m.values[c.value];
        map[c.value.index()] = Some(round.add_const(&name(of), ty.clone(), c.data.clone()));
    }
    let mut states = Vec::new();
    for s in m.states.values() {
        let Value { name: of, ty, .. } = &m.values[s.value];
        let id = round.add_state(&name(of), ty.clone(), s.role, s.init.clone());
        map[s.value.index()] = Some(round.states[id].value);
        states.push((id, s));
    }
    let micro = |feed: &Feed| if let Feed::Data { micro, .. } = feed { micro + 1 } else { 0 };
    let micros = m.inputs.values().map(|input| micro(&input.feed)).max().unwrap_or(0);
    for index in 0..steps {
        let turn = Turn { index, count: steps };
        for input in m.inputs.values() {
            let Value { name: of, ty, .. } = &m.values[input.value];
            let feed = match &input.feed {
                Feed::Data { source, micro, range } => {
                    Feed::Data { source: name(source), micro: index * micros + micro, range: *range }
                }
                Feed::LearningRate { default, .. } => Feed::LearningRate { default: *default, turn },
                Feed::Step { .. } => Feed::Step { turn },
            };
            map[input.value.index()] = Some(round.add_input(&name(of), ty.clone(), feed));
        }
        for &id in &m.order {
            copy_op(round, m, id, &mut map, &name);
        }
        for output in &m.outputs {
            if let Some(value) = map[output.value.index()] {
                let name = output_name(round, &name(&output.name), index);
                round.outputs.push(Output { value, name, role: output.role });
            }
        }
        let next: Vec<Option<ValueId>> =
            states.iter().map(|(_, s)| s.next.and_then(|next| map[next.index()])).collect();
        for ((id, s), next) in states.iter().zip(next).filter(|(_, next)| next.is_some()) {
            map[s.value.index()] = next;
            round.states[*id].next = next;
        }
    }
}

/// Name of an output of a job's step, of which the first has no number; a free one.
fn output_name(round: &Module, name: &str, index: u32) -> String {
    let is_free = |name: &String| round.outputs.iter().all(|output| output.name != *name);
    let numbered = |number: u32| format!("{name}.{number}");
    let first = (index == 0).then(|| name.to_owned()).filter(is_free);
    first.or_else(|| (index + 1..).map(numbered).find(is_free)).unwrap_or_else(|| name.to_owned())
}

/// Appends a copy of an op on the values that `map` has for its operands.
fn copy_op(
    round: &mut Module,
    m: &Module,
    id: OpId,
    map: &mut [Option<ValueId>],
    name: &impl Fn(&str) -> String,
) {
    let op = &m.ops[id];
    let Code::Compute(kind) = &op.code else { return };
    let operands: Vec<ValueId> = op.operands.iter().filter_map(|v| map[v.index()]).collect();
    let copy = OpId::new(round.ops.len());
    let mut results = Vec::new();
    for (i, &v) in (0..).zip(&op.results) {
        let Value { name: of, ty, .. } = &m.values[v];
        let value = round.add_value(&name(of), ty.clone(), Def::Op(copy, i));
        map[v.index()] = Some(value);
        results.push(value);
    }
    let origin = if op.origin.is_empty() { String::new() } else { name(&op.origin) };
    let copy = round.push_op(Code::Compute(kind.clone()), operands, results, &origin);
    round.order.push(copy);
}
