//! Replacing a file as a whole or not at all.
//!
//! The bytes go to a temporary file in the target's folder, which is synchronised and renamed; dropped before that, it
//! is removed and the target stays what it was.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether any file has been put in its target's place. Set while [`OPEN`] is locked.
static REPLACED: AtomicBool = AtomicBool::new(false);

/// The temporary files that there are. Locked while one is made, and while one is put in its target's place.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn open_files() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files of all replacements under way, whose targets stay what they were. For a process that ends
/// at once: who begins or finishes a replacement from now on waits for that.
pub fn abandon() {
    let mut open = open_files();
    for path in open.drain(..) {
        // One that has just been put in its place is not there any more.
        let _ = fs::remove_file(path);
    }
    std::mem::forget(open);
}

/// Whether the process has replaced any file as a whole.
pub fn has_replaced() -> bool {
    REPLACED.load(Ordering::Relaxed)
}

/// Keeps a temporary file among [`OPEN`].
#[derive(Debug)]
struct Listed(PathBuf);

impl Drop for Listed {
    fn drop(&mut self) {
        open_files().retain(|path| *path != self.0);
    }
}

/// A file that is being written and will replace another.
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
    /// Any error of the file system, and [`io::ErrorKind::InvalidInput`] when `path` is something else than a regular
    /// file, since a rename would remove a device or pipe.
    pub fn begin(path: &Path) -> io::Result<Replace> {
        let target = match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => fs::canonicalize(path)?,
            Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
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
            // The library's message has the temporary file's name, which nobody asked for.
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

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        self.temp.as_file_mut()
    }

    /// Makes what was written durable, beside the target.
    ///
    /// # Errors
    /// Any error of the file system; the target is then untouched.
    pub fn sync(&mut self) -> io::Result<()> {
        self.temp.as_file().sync_all()
    }

    /// Makes what was written durable and puts it in the target's place.
    ///
    /// # Errors
    /// Any error of the file system. The target is then untouched, except that synchronising the folder after the rename
    /// may fail: the new file is then complete and in place, but may not survive a power loss.
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
