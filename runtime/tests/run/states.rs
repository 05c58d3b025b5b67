//! Saved states: going on, and refusing what does not fit.

use std::fs;

use memc_runtime::{Rate, RunOptions, StateWriter};

use crate::{CLASSIFIER, Folder, Log, floats, npy, report, steps};

/// A run that is saved and resumed equals one that was not, bit for bit, with data read on from where it
/// stopped.
#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let folder = Folder::of(CLASSIFIER);
    let x: Vec<u8> =
        (0..5 * 2048u32).flat_map(|i| (((i * 37 % 101) as f32 - 50.0) / 50.0).to_le_bytes()).collect();
    npy(&folder.path("x.npy"), "<f4", &[5, 32, 64], &x);
    let feed = |n| RunOptions { inputs: vec![("input".to_owned(), folder.path("x.npy").into())], ..steps(n) };
    let (losses, state) = folder.run_and_save(&feed(5));
    let (first, half) = folder.run_and_save(&feed(2));
    assert_ne!(half, state);
    let resume = RunOptions { resume: Some(folder.path("saved.safetensors")), verify: true, ..feed(3) };
    let (second, whole) = folder.run_and_save(&resume);
    assert_eq!([first, second].concat(), losses);
    assert!(whole == state, "the saved states differ");
    let more =
        folder.run(&RunOptions { resume: Some(folder.path("saved.safetensors")), ..feed(1) }).unwrap_err();
    assert!(more.to_string().contains("resumed run has done 5"), "{more}");
}

/// A saved state is a plain safetensors file with every state but the constants, and its bytes are the same
/// each time.
#[test]
fn a_saved_state_is_a_safetensors_file() {
    let folder = Folder::of(CLASSIFIER);
    let (_, saved) = folder.run_and_save(&steps(3));
    let tensors = floats(&saved);
    assert_eq!(tensors.keys().collect::<Vec<_>>(), ["b", "m", "v", "w"]);
    assert!(tensors["v"].iter().all(|v| *v >= 0.0) && tensors["v"].iter().any(|v| *v > 0.0));
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&saved).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    assert_eq!(metadata["step"], "3");
    assert_eq!(metadata["source"].len(), 64);
    assert_eq!(folder.run_and_save(&steps(3)).1, saved);
    assert_eq!(folder.entries(), ["model.plan", "saved.safetensors"], "no temporary file is left");
}

/// Some states can be set by name; resuming asks for all; wrong names, types and files are named.
#[test]
fn files_that_do_not_fit_are_refused() {
    use safetensors::tensor::{Dtype, TensorView, serialize};
    let folder = Folder::of(CLASSIFIER);
    let path = folder.path("some.safetensors");
    let bytes: Vec<u8> = (0..10).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let write = |name: &str, dtype, shape: &[usize]| {
        let view = TensorView::new(dtype, shape.to_vec(), &bytes).unwrap();
        fs::write(&path, serialize([(name, view)], None).unwrap()).unwrap();
    };
    let fail = |options: RunOptions| {
        let error = folder.run(&options).unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        error.to_string()
    };
    let init = || RunOptions { init: Some(path.clone()), lr: Rate::Constant(0.0), ..steps(1) };
    let resume = || RunOptions { resume: Some(path.clone()), ..steps(1) };

    write("b", Dtype::F32, &[10]);
    let (_, saved) = folder.run_and_save(&RunOptions { verify: true, ..init() });
    assert_eq!(floats(&saved)["b"], (0..10).map(|i| i as f32).collect::<Vec<_>>(), "kept at a rate of zero");
    let text = fail(resume());
    assert!(text.contains("lacks `m`, `v`, `w`") && text.contains("--init"), "{text}");
    write("b", Dtype::F32, &[2, 5]);
    let text = fail(init());
    assert!(text.contains("`b` is F32[2,5]") && text.contains("F32[10]"), "{text}");
    write("b", Dtype::I32, &[10]);
    assert!(fail(init()).contains("I32[10]"));
    write("bias", Dtype::F32, &[10]);
    assert!(fail(init()).contains("no state named `bias`"));
    write("one", Dtype::F32, &[10]);
    assert!(fail(init()).contains("no state named `one`"), "constants cannot be set");
    let whole = fs::read(&path).unwrap();
    for end in 0..whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        assert!(fail(init()).contains("some.safetensors"));
    }
    fs::write(&path, [0xff; 64]).unwrap();
    assert!(fail(init()).contains("safetensors"));
    fs::remove_file(&path).unwrap();
    assert_eq!(folder.run(&init()).unwrap_err().exit_code(), 74);
}

/// A state of another source graph is taken if it fits, with a note.
#[test]
fn a_state_of_another_source_is_noted() {
    let folder = Folder::of(CLASSIFIER);
    folder.run_and_save(&steps(1));
    let other = Folder::of(&CLASSIFIER.replace("@classifier", "@other"));
    let mut log = Log::default();
    let resume = Some(folder.path("saved.safetensors"));
    report(&other, &RunOptions { resume, ..steps(1) }, &mut log);
    assert_eq!(log.steps, [2]);
    assert!(log.notes.iter().any(|note| note.contains("another model")), "{:?}", log.notes);
}

/// A state that cannot be saved is refused before the first step, and a state that is not finished leaves the
/// old file.
#[test]
fn the_old_file_stays() {
    let folder = Folder::of(CLASSIFIER);
    let save = |path| RunOptions { save: Some(path), ..steps(1) };
    for path in ["/dev/full".into(), folder.path("no/such/folder/x"), folder.path("")] {
        let mut log = Log::default();
        let error = memc_runtime::run(&folder.plan(), &save(path), &mut log).unwrap_err();
        assert_eq!(error.exit_code(), 74, "{error}");
        assert_eq!(log.steps, [] as [u64; 0], "before the first step");
    }
    let path = folder.path("old");
    fs::write(&path, b"old").unwrap();
    let file = folder.plan();
    let mut writer = StateWriter::create(&path, file.plan(), 1).unwrap();
    writer.put(0, &[0; 2560]).unwrap();
    assert!(writer.put(1, &[0; 10]).is_err(), "a state of the wrong length");
    assert!(writer.finish(file.plan()).is_err(), "states are missing");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.entries(), ["model.plan", "old"]);
}

/// A run that fails in the middle leaves the old file.
#[test]
fn a_failed_run_saves_nothing() {
    let folder = Folder::of(CLASSIFIER);
    fs::write(folder.path("old"), b"old").unwrap();
    let labels: Vec<u8> = [10i64; 32].iter().flat_map(|x| x.to_le_bytes()).collect();
    npy(&folder.path("y.npy"), "<i8", &[32], &labels);
    let inputs = vec![("labels".to_owned(), folder.path("y.npy").into())];
    let options = RunOptions { inputs, save: Some(folder.path("old")), ..steps(1) };
    assert_eq!(folder.run(&options).unwrap_err().exit_code(), 3);
    assert_eq!(fs::read(folder.path("old")).unwrap(), b"old");
    assert_eq!(folder.entries(), ["model.plan", "old", "y.npy"]);
}
