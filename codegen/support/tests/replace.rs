//! Replaced files keep permissions and links, and pieces of processes that died are removed.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use memc_support::Replace;

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = Replace::begin(path)?;
    file.file().write_all(bytes)?;
    file.finish()
}

/// A private file stays private, and an open one open.
#[test]
fn permissions_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    for mode in [0o600, 0o640, 0o666] {
        fs::write(&path, "old").expect("the old file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its permissions");
        replace(&path, b"new").expect("it is replaced");
        let found = fs::metadata(&path).expect("the new file").permissions().mode() & 0o777;
        assert_eq!((found, fs::read(&path).expect("the new file")), (mode, b"new".to_vec()));
    }
}

/// A link stays, also where the file that it leads to is not there yet; devices are not replaced.
#[test]
fn links_are_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (link, file) = (folder.path().join("link"), folder.path().join("file"));
    symlink("file", &link).expect("a link");
    for text in ["first", "second"] {
        replace(&link, text.as_bytes()).expect("it is replaced");
        assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("the file"), text);
    }
    symlink("b", folder.path().join("a")).expect("a link");
    symlink("a", folder.path().join("b")).expect("a link");
    assert!(replace(&folder.path().join("a"), b"").is_err(), "a circle");
    assert!(replace(Path::new("/dev/stdout"), b"").is_err(), "a device");
}

/// Names of open files of a process are refused, since whoever reads them would lose what comes; a file in
/// shared memory is one like others.
#[cfg(target_os = "linux")]
#[test]
fn open_files_are_refused_by_their_names() {
    use std::os::fd::AsRawFd;
    let folder = tempfile::tempdir().expect("a folder");
    let file = fs::File::create(folder.path().join("output")).expect("a file");
    for name in [format!("/dev/fd/{}", file.as_raw_fd()), format!("/proc/self/fd/{}", file.as_raw_fd())] {
        let error = replace(Path::new(&name), b"").expect_err("an open file").to_string();
        assert!(error.contains("an open file of this process"), "{error}");
    }
    let shared = Path::new("/dev/shm");
    let Ok(folder) = tempfile::tempdir_in(shared) else { return };
    for text in ["first", "second"] {
        replace(&folder.path().join("state"), text.as_bytes()).expect("it is replaced");
        assert_eq!(fs::read_to_string(folder.path().join("state")).expect("the file"), text);
    }
}

/// Old temporary files that no process holds are removed; those of a process that writes stay, and so do
/// young ones.
#[test]
fn litter_is_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let create = |name: &str, is_old: bool| {
        let path = folder.path().join(name);
        let file = fs::File::create(&path).expect("a file");
        if is_old {
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).expect("its time");
        }
        (path, file)
    };
    let (dead, file) = create(".memc-dead.tmp", true);
    drop(file);
    let (young, _) = create(".memc-young.tmp", false);
    let (held, holder) = create(".memc-held.tmp", true);
    holder.lock().expect("a lock");
    let (other, _) = create("notes.tmp", true);
    replace(&folder.path().join("state"), b"x").expect("it is replaced");
    assert_eq!([&dead, &young, &held, &other].map(|path| path.exists()), [false, true, true, true]);
}
