//! Replacing a file as a whole or not at all.
//!
//! The bytes go to a temporary file in the target's folder, which is synchronised and renamed. Dropped before
//! that, the temporary file is removed and the target keeps its contents.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether any file has been renamed to its target. Set while [`OPEN`] is locked.
static REPLACED: AtomicBool = AtomicBool::new(false);

/// Temporary files that exist. Locked while one is created, and while one is renamed to its target.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn open_files() -> MutexGuard<'static, Vec<PathBuf>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of all replacements under way; their targets keep their contents. For a
/// process that ends at once: whoever begins or finishes a replacement from now on blocks.
pub fn abandon() {
    let mut open = open_files();
    for path in open.drain(..) {
        // A file that has just been renamed is not there any more.
        let _ = fs::remove_file(path);
    }
    std::mem::forget(open);
}

/// Whether the process has replaced any file.
pub fn has_replaced() -> bool {
    REPLACED.load(Ordering::Relaxed)
}

/// Most links that [`followed`] follows.
const MAX_LINKS: usize = 40;

/// The file that a link leads to, which need not exist; `path` itself where it is no link.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "a link that leads nowhere"))
}

/// Whether a path stands for an open file of a process, as `/dev/stdout` does.
fn is_descriptor(path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    fs::read_link(path).is_ok_and(|to| to.starts_with("/proc"))
        || folder.is_some_and(|folder| folder.starts_with("/proc"))
}

/// Age from which on a temporary file may be that of a process that died.
const LITTER: std::time::Duration = std::time::Duration::from_secs(60);

/// Removes temporary files that killed processes left in `folder`: old ones that nobody has locked.
fn remove_litter(folder: &Path, own: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) || !name.ends_with(SUFFIX) || path == own {
            continue;
        }
        // A pipe of that name would hold up who opens it.
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
        let age = metadata.and_then(|m| m.modified().ok()).and_then(|at| at.elapsed().ok());
        let is_old = age.is_some_and(|age| age > LITTER);
        let is_dead = || File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if is_old && is_dead() {
            // Nobody asked for this, so nobody is told that it failed.
            let _ = fs::remove_file(&path);
        }
    }
}

const PREFIX: &str = ".memc-";
const SUFFIX: &str = ".tmp";

/// Entry of a temporary file in [`OPEN`].
#[derive(Debug)]
struct Listed(PathBuf);

impl Drop for Listed {
    fn drop(&mut self) {
        open_files().retain(|path| *path != self.0);
    }
}

/// A file under way that will replace another.
#[derive(Debug)]
pub struct Replace {
    target: PathBuf,
    folder: PathBuf,
    temp: tempfile::NamedTempFile,
    _listed: Listed,
}

impl Replace {
    /// Begins to replace `path`. A link stays and its target is replaced.
    ///
    /// # Errors
    /// Any error of the file system, and [`io::ErrorKind::InvalidInput`] when `path` is not a regular file,
    /// since a rename would remove a device or pipe.
    pub fn begin(path: &Path) -> io::Result<Replace> {
        let not_regular = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let mut old = None;
        let target = match fs::metadata(path) {
            // A redirected standard output would be replaced under whoever reads it.
            Ok(metadata) if metadata.is_file() && is_descriptor(path) => {
                return Err(not_regular("an open file of this process, not the name of a regular file"));
            }
            Ok(metadata) if metadata.is_file() => {
                old = Some(metadata.permissions());
                fs::canonicalize(path)?
            }
            Ok(meta) => {
                let what = if meta.is_dir() { "a folder, not a regular file" } else { "not a regular file" };
                return Err(not_regular(what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => followed(path)?,
            Err(error) => return Err(error),
        };
        let folder = match target.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut open = open_files();
        let temp = builder.tempfile_in(&folder).map_err(|e| match e.kind() {
            // The library's message names the temporary file, which means nothing to the user.
            kind @ io::ErrorKind::NotFound if folder.is_dir() => {
                io::Error::new(kind, format!("the folder `{}` takes no files", folder.display()))
            }
            kind @ io::ErrorKind::NotFound => {
                io::Error::new(kind, format!("there is no folder `{}`", folder.display()))
            }
            kind => kind.into(),
        })?;
        let path = temp.path().to_owned();
        open.push(path.clone());
        // Whoever may read the old file may read the new one, and nobody else.
        if let Some(permissions) = old {
            fs::set_permissions(&path, permissions)?;
        }
        // Held until the file is in its place or removed: another process knows by it that this one lives.
        let _ = temp.as_file().try_lock();
        remove_litter(&folder, &path);
        Ok(Replace { target, folder, temp, _listed: Listed(path) })
    }

    /// Replaces `path` by a file of these bytes.
    ///
    /// # Errors
    /// Those of [`Replace::begin`] and [`Replace::finish`].
    pub fn whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = Replace::begin(path)?;
        file.file().write_all(bytes)?;
        file.finish()
    }

    /// The temporary file, to be written to.
    pub fn file(&mut self) -> &mut File {
        self.temp.as_file_mut()
    }

    /// Synchronises the temporary file with the disk.
    ///
    /// # Errors
    /// Any error of the file system; the target is then untouched.
    pub fn sync(&mut self) -> io::Result<()> {
        self.temp.as_file().sync_all()
    }

    /// Synchronises the temporary file and renames it to the target.
    ///
    /// # Errors
    /// Any error of the file system. The target is then untouched, with one exception: synchronising the
    /// folder after the rename may fail. The new file is then complete and in place, but may not survive a
    /// power loss.
    pub fn finish(mut self) -> io::Result<()> {
        self.sync()?;
        let open = open_files();
        self.temp.persist(&self.target).map_err(|e| e.error)?;
        REPLACED.store(true, Ordering::Relaxed);
        drop(open);
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }
}
