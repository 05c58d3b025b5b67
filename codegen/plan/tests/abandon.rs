//! Leaving at once. By itself, since all replacements of a process are given up.

use std::io::Write;

use memc_plan::{Replace, abandon, has_replaced};

/// What is half written goes, and what is there stays; whether anything was written is known.
#[test]
fn a_process_that_leaves_at_once_leaves_no_pieces() -> std::io::Result<()> {
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
