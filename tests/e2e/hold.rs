//! Holding one way to train a model against reference numbers at several budgets.

use std::collections::BTreeMap;

use memc_runtime::{InputSource, Rate, RunOptions};

use crate::support::{Ran, adversarial, floats, json, memc_ok, number, put, root, run};

/// Largest difference of a loss from the reference.
const LOSS: f32 = 1e-5;

/// A model, how it is trained, and what must come out.
pub(crate) struct Training<'a> {
    /// File below `models/`.
    pub(crate) model: &'a str,
    /// Options that say how to read the model.
    pub(crate) flags: &'a [&'a str],
    /// Initial values where they are not in the model or beside it, below `models/`.
    pub(crate) init: Option<&'a str>,
    /// Names of the inputs of samples and targets; arrays `x` and `y` feed them.
    pub(crate) inputs: [&'a str; 2],
    /// Reference arrays: `x`, `y`, `lr` if it is not the model's, `losses` and, below `finals`, states by
    /// name.
    pub(crate) arrays: &'a BTreeMap<String, Vec<u8>>,
    /// Name of the losses' array.
    pub(crate) losses: &'a str,
    /// Prefix of the names of final states.
    pub(crate) finals: &'a str,
    /// Largest difference of a state from the reference.
    pub(crate) tolerance: f32,
    /// Parts of the names of states that the reference says nothing about.
    pub(crate) noise: &'a [&'a str],
}

/// Compiles and runs at 100 %, 75 % and 50 % of the unplanned peak and at the smallest feasible budget:
/// losses and states equal the reference within the tolerance, and each other bit for bit. What the last run
/// left behind.
pub(crate) fn hold(t: &Training<'_>) -> Ran {
    let model = format!("models/{}", t.model);
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("model.plan");
    let [samples, targets] = t.inputs;
    let inputs: Vec<(String, InputSource)> = vec![
        (samples.to_string(), put(folder.path(), "x.npy", &t.arrays["x"]).into()),
        (targets.to_string(), put(folder.path(), "y.npy", &t.arrays["y"]).into()),
    ];
    let init = t.init.map(|file| root().join("models").join(file).display().to_string());
    let mut more: Vec<&str> = init.iter().flat_map(|f| ["--checkpoint", f.as_str()]).collect();
    more.extend(t.flags);
    let estimate = json(&memc_ok(&[&["estimate", &model, "--json"], &more[..]].concat()));
    let (peak, smallest) = (number(&estimate, "peak_bytes"), number(&estimate, "smallest_feasible_bytes"));
    let lr = t.arrays.get("lr").map(|bytes| floats(bytes)[0]);
    let losses = floats(&t.arrays[t.losses]);
    let mut first: Option<Ran> = None;
    for (i, budget) in [peak, peak / 4 * 3, peak / 2, smallest].into_iter().enumerate() {
        let budget = format!("{}B", budget.max(smallest));
        let plan_text = plan.display().to_string();
        let args = ["compile", &model, "--gpu-mem", &budget, "--effort", "1", "-o", &plan_text, "--json"];
        let printed = json(&memc_ok(&[&args[..], &more[..]].concat()));
        assert!(number(&printed, "arena_bytes") <= number(&printed, "gpu_mem_bytes"), "{model} {printed}");
        let options = RunOptions {
            steps: Some(losses.len() as u64),
            inputs: inputs.clone(),
            lr: lr.map_or(Rate::Plan, Rate::Constant),
            verify: true,
            cpu: adversarial(i as u64),
            ..RunOptions::default()
        };
        let ran = run(&plan, folder.path(), options);
        compare(t, &losses, &ran);
        match &first {
            None => first = Some(ran),
            Some(first) => {
                assert_eq!(first.losses, ran.losses, "{model} at {budget}: losses depend on the budget");
                assert!(first.states == ran.states, "{model} at {budget}: states depend on the budget");
            }
        }
    }
    first.unwrap()
}

fn compare(t: &Training<'_>, losses: &[f32], ran: &Ran) {
    let label = format!("{} {}", t.model, t.flags.join(" "));
    for (k, (have, want)) in ran.losses.iter().zip(losses).enumerate() {
        assert!((have - want).abs() <= LOSS, "{label}: loss of step {k} is {have}, reference {want}");
    }
    let mut compared = 0;
    for (name, bytes) in t.arrays.iter().filter_map(|(n, b)| n.strip_prefix(t.finals).map(|n| (n, b))) {
        let have = ran.states.get(name).unwrap_or_else(|| panic!("{label}: no state {name}"));
        compared += 1;
        let file = npyz::NpyFile::new(bytes.as_slice()).unwrap();
        let exact: Option<Vec<u8>> = match file.dtype().descr() {
            d if d.contains("i8") => {
                Some(file.into_vec::<i64>().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            // Floats of 16 bits.
            d if d.contains("u2") => {
                Some(file.into_vec::<u16>().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            _ => None,
        };
        if let Some(want) = exact {
            assert_eq!(have, &want, "{label}: {name}");
            continue;
        }
        if t.noise.iter().any(|part| name.contains(part)) {
            continue;
        }
        let have = have.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        for (i, (have, want)) in have.zip(floats(bytes)).enumerate() {
            let difference = (have - want).abs();
            // The references follow the population variance; memc follows PyTorch, whose exporter wrote these
            // models. A channel has 64 elements or more, and each step takes a tenth of them.
            let is_sample = name.ends_with("running_var") && t.flags.contains(&"--loss");
            let tolerance = if is_sample { want / 200.0 } else { t.tolerance };
            assert!(difference <= tolerance, "{label}: {name}[{i}] is {have}, reference {want}");
        }
    }
    assert!(compared > 0, "{label}: the reference has no final state");
}
