//! Files of tensors: arrays that feed inputs, saved states, checkpoints.

use std::path::{Path, PathBuf};

use arbtest::arbitrary::{Result, Unstructured};
use memc_frontend::ImportOptions;
use memc_plan::{NoData, PlanFile};
use memc_runtime::{FeedOptions, Feeder, Initial, InputSource, Program, Rate, StateFile};

use crate::{damage, step};

/// A plan with an input of floats, one of labels, a rate and a step number.
const PLAN: &str = include_str!("../corpus/plan_text/classifier.txt");
/// Training artifacts of a small network, whose parameters a checkpoint holds.
const MODEL: &[u8] = include_bytes!("../corpus/onnx/artifacts.onnx");
/// A one-file step, whose states a safetensors file sets.
const STEP: &[u8] = include_bytes!("../corpus/onnx/training_momentum.onnx");

thread_local! {
    static OPEN: PlanFile = plan();
}

fn plan() -> PlanFile {
    let mut plan = memc_plan::text::parse(PLAN).expect("the plan is right");
    plan.meta.set_source(plan.meta.source.clone());
    let path = step::file("feed.plan", &[]);
    memc_plan::write(&path, &plan, &mut NoData, &|| false).expect("the plan is valid");
    PlanFile::open(path).expect("the plan opens")
}

/// An array is read as data of each input, as tokens and as rates, for a few steps.
pub(crate) fn npy(data: &[u8]) {
    OPEN.with(|plan| fed(plan, data));
}

fn fed(plan: &PlanFile, data: &[u8]) {
    let program = Program::new(plan.plan()).expect("the plan is right");
    let path = step::file("data.npy", data);
    let choice = step::choice(data);
    let tokens =
        format!("@{}:{}", path.display(), ["u16", "u32", "i32+1", "i64+9999999"][choice as usize % 4]);
    let sources: [(&str, Option<InputSource>); 4] = [
        ("x", Some(InputSource::Path(path.clone()))),
        ("y", Some(InputSource::Path(path.clone()))),
        ("y", tokens.parse().ok()),
        ("x", None),
    ];
    for (name, source) in sources {
        let lr = if source.is_none() { Rate::File(path.clone()) } else { Rate::Plan };
        let options = FeedOptions {
            inputs: source.map(|source| (name.to_owned(), source)).into_iter().collect(),
            lr,
            synthetic: true,
            shuffle: (choice >> 2 & 1 == 0).then_some(choice),
            again: choice >> 3 & 1 == 0,
            done: if choice >> 4 & 7 == 0 { u64::MAX - 1 } else { 0 },
            steps: 3,
            ..FeedOptions::default()
        };
        let Some(mut feeder) = step::ran(Feeder::new(plan.plan(), std::slice::from_ref(&program), &options))
        else {
            continue;
        };
        let _ = (feeder.pass(0), feeder.epoch(0, 1), feeder.rate(0, 2), feeder.check_rates(3));
        for number in 1..=3 {
            let _ = step::ran(feeder.prepare(options.done.saturating_add(number)));
        }
    }
}

/// A file of states is read as memrun's state to go on from, as some of its states, and as memc's checkpoint.
pub(crate) fn safetensors(data: &[u8]) {
    let path = step::file("state.safetensors", data);
    OPEN.with(|plan| resumed(plan, &path));
    checkpoint(path, "step.onnx", STEP, step::choice(data));
}

fn resumed(plan: &PlanFile, path: &Path) {
    let open = || step::ran(StateFile::open(path));
    if let Some(file) = open() {
        let _ = (file.step(), file.is_of_another_source(plan.plan()));
        let resumed = step::ran(Initial::new(plan, vec![file], Vec::new()));
        let set = open().and_then(|file| step::ran(Initial::new(plan, Vec::new(), vec![file])));
        for initial in resumed.into_iter().chain(set) {
            for (i, state) in plan.plan().states.iter().enumerate() {
                let mut bytes = vec![0; state.ty.bytes() as usize];
                let _ = step::ran(initial.write((0, i), &state.ty, &mut bytes));
            }
        }
    }
}

/// A checkpoint of ONNX Runtime sets the parameters of its artifacts.
pub(crate) fn ort_checkpoint(data: &[u8]) {
    checkpoint(step::file("checkpoint.bin", data), "training_model.onnx", MODEL, step::choice(data));
}

/// Imports a model with its initial values; an eighth of the imports is made a whole step of.
fn checkpoint(path: PathBuf, name: &str, model: &[u8], choice: u64) {
    let import = ImportOptions {
        checkpoint: Some(path),
        no_optimizer: name != "step.onnx",
        ..ImportOptions::default()
    };
    let path = step::file(name, model);
    match memc_frontend::import(&path, &import) {
        Ok(imported) => step::sound(&imported.module),
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal gives no reason"),
    }
    if choice & 7 == 0 {
        step::answer(memc::import(&memc::Source { path, import }));
    }
}

/// Changes a safetensors file: mostly its header, whose length stays right, else its bytes.
pub(crate) fn mutate_safetensors(u: &mut Unstructured<'_>, data: &mut Vec<u8>) -> Result<()> {
    let length = data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let header = length.and_then(|n| data.get(8..usize::try_from(n).ok()?.checked_add(8)?));
    let Some(mut header) = header.map(<[u8]>::to_vec) else { return damage::bytes(u, data) };
    if u.ratio(1, 5)? {
        return damage::bytes(u, data);
    }
    let rest = data.split_off(8 + header.len());
    damage::text(u, &mut header)?;
    *data = (header.len() as u64).to_le_bytes().to_vec();
    data.extend(header);
    data.extend(rest);
    Ok(())
}

/// Changes an array: mostly its header, whose length stays right, else its bytes.
pub(crate) fn mutate_npy(u: &mut Unstructured<'_>, data: &mut Vec<u8>) -> Result<()> {
    let length = data.get(8..10).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let header = length.and_then(|n| data.get(10..10 + n)).map(<[u8]>::to_vec);
    let Some(mut header) = header else { return damage::bytes(u, data) };
    if u.ratio(1, 5)? {
        return damage::bytes(u, data);
    }
    let rest = data.split_off(10 + header.len());
    damage::text(u, &mut header)?;
    header.truncate(usize::from(u16::MAX));
    data.truncate(8);
    data.extend((header.len() as u16).to_le_bytes());
    data.extend(header);
    data.extend(rest);
    Ok(())
}
