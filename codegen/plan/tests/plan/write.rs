//! Failing to write leaves things as they were.

use std::{borrow::Cow, cell::Cell, fs, io};

use memc_plan::{Init, InitialData, NoData, Plan, PlanError, PlanFile, hash};

use crate::{Folder, example};

/// A valid plan with several states of several chunks each.
fn large() -> (Plan, Vec<u8>) {
    let (mut plan, _) = example();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    plan.meta.dev_bytes = 4_000_000;
    for state in &mut plan.states {
        state.resident.bytes = bytes.len() as u64;
        state.init = Init::Data { offset: 0, bytes: bytes.len() as u64, hash: hash(&bytes) };
    }
    let mut second = plan.states[0].clone();
    second.name = "second".to_owned();
    plan.states.push(second);
    plan.layout_data().expect("a small data section");
    (plan, bytes)
}

/// Supplies the same bytes for each state up to a limit, then fails.
struct Supply<'a> {
    bytes: &'a [u8],
    states: usize,
}

impl InitialData for Supply<'_> {
    fn bytes(&mut self, _bucket: usize, state: usize) -> io::Result<Cow<'_, [u8]>> {
        if state < self.states {
            Ok(Cow::Borrowed(self.bytes))
        } else {
            Err(io::Error::other("unreadable source"))
        }
    }
}

/// A folder that holds one file with old content, and the check that it still does.
fn old_file() -> Folder {
    let folder = Folder::new();
    fs::write(folder.file(), b"old").expect("the file can be written");
    folder
}

fn assert_untouched(folder: &Folder) {
    assert_eq!(fs::read(folder.file()).expect("the old file is there"), b"old");
    assert_eq!(folder.entries(), ["model.plan"]);
}

/// Interrupting before any chunk, or before the rename, leaves the old file and no other.
#[test]
fn an_interrupt_leaves_the_old_file() {
    let (plan, bytes) = large();
    let folder = old_file();
    let asked = Cell::new(0);
    for patience in 0.. {
        asked.set(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > patience
        };
        match memc_plan::write(folder.file(), &plan, &mut Supply { bytes: &bytes, states: 2 }, &stop) {
            Err(PlanError::Interrupted) => assert_untouched(&folder),
            Ok(_) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(asked.get() >= 8, "six chunks of data, the plan and the rename: asked {} times", asked.get());
    assert_eq!(PlanFile::open(folder.file()).unwrap().data(0, 1), bytes);
    assert_eq!(folder.entries(), ["model.plan"]);
}

/// An error in the middle of the data leaves the old file and no other.
#[test]
fn a_failing_source_leaves_the_old_file() {
    let (plan, bytes) = large();
    let folder = old_file();
    for states in 0..2 {
        let error = memc_plan::write(folder.file(), &plan, &mut Supply { bytes: &bytes, states }, &|| false);
        let error = error.err().unwrap().to_string();
        assert!(error.contains("unreadable source"), "{error}");
        assert_untouched(&folder);
    }
}

/// Data of a wrong length or content leaves the old file, and the message names the state.
#[test]
fn wrong_data_leaves_the_old_file() {
    let (plan, mut data) = example();
    let folder = old_file();
    data.get_mut(&0).unwrap()[7] ^= 1;
    let error = memc_plan::write(folder.file(), &plan, &mut data, &|| false).err().unwrap().to_string();
    assert!(error.contains("state `w`") && error.contains("do not match the hash"), "{error}");
    data.get_mut(&0).unwrap().pop();
    let error = memc_plan::write(folder.file(), &plan, &mut data, &|| false).err().unwrap().to_string();
    assert!(error.contains("255 bytes where the plan declares 256"), "{error}");
    let error = memc_plan::write(folder.file(), &plan, &mut NoData, &|| false).err().unwrap().to_string();
    assert!(error.contains("no bytes were supplied"), "{error}");
    assert_untouched(&folder);
}

/// An invalid plan is not written.
#[test]
fn an_invalid_plan_leaves_the_old_file() {
    let (mut plan, mut data) = example();
    plan.events = 0;
    let folder = old_file();
    let error = memc_plan::write(folder.file(), &plan, &mut data, &|| false);
    assert!(matches!(error, Err(PlanError::Invalid { .. })));
    assert_untouched(&folder);
}

/// A folder that does not exist, or a target that is a folder, is an error of the file system.
#[test]
fn impossible_targets_are_refused() {
    let (plan, mut data) = example();
    let folder = old_file();
    for target in [folder.path().to_owned(), folder.path().join("none/model.plan"), folder.file().join("x")] {
        let error = memc_plan::write(&target, &plan, &mut data, &|| false);
        assert!(matches!(error, Err(PlanError::Io { .. })), "{}", target.display());
    }
    assert_untouched(&folder);
}

/// A device is neither written nor replaced by a file.
#[cfg(unix)]
#[test]
fn devices_are_not_replaced() {
    let (plan, mut data) = example();
    let error = memc_plan::write("/dev/full", &plan, &mut data, &|| false).err().unwrap().to_string();
    assert!(error.contains("/dev/full") && error.contains("not a regular file"), "{error}");
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
}

/// Writing to a link replaces the file that it leads to.
#[cfg(unix)]
#[test]
fn links_stay_links() {
    let (plan, mut data) = example();
    let folder = old_file();
    let link = folder.path().join("link.plan");
    std::os::unix::fs::symlink("model.plan", &link).unwrap();
    memc_plan::write(&link, &plan, &mut data, &|| false).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(PlanFile::open(folder.file()).unwrap().plan(), &plan);
}
