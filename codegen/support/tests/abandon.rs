//! Exiting at once. A test program of its own, since all replacements of the process are given up.

use std::io::Write;

use memc_support::{Replace, abandon, has_replaced};

/// Half-written files go, finished ones stay, and whether any was finished is known.
#[test]
fn a_process_that_exits_at_once_leaves_no_pieces() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let (done, half) = (folder.path().join("done"), folder.path().join("half"));
    let mut first = Replace::begin(&done)?;
    first.file().write_all(b"whole")?;
    assert!(!has_replaced());
    first.finish()?;
    assert!(has_replaced());
    std::fs::write(&half, b"old")?;
    let mut second = Replace::begin(&half)?;
    second.file().write_all(b"new")?;
    drop(Replace::begin(&half)?);
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 3);
    abandon();
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 2);
    // It would wait for the process to end.
    std::mem::forget(second);
    assert_eq!((std::fs::read(&done)?, std::fs::read(&half)?), (b"whole".to_vec(), b"old".to_vec()));
    Ok(())
}
