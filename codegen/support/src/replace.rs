//! Replacing a file as a whole or not at all.
//!
//! The bytes go to a temporary file in the target's folder, which is synchronised and renamed. Dropped before
//! that, the temporary file is removed and the target keeps its contents.

use std::{
    fs::{self, File},
    io,
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
        let target = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => fs::canonicalize(path)?,
            Ok(meta) => {
                let what = if meta.is_dir() { "a folder, not a regular file" } else { "not a regular file" };
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error),
        };
        let folder = match target.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".memc-").suffix(".tmp");
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
        Ok(Replace { target, folder, temp, _listed: Listed(path) })
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
