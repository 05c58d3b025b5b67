//! Local sockets that others cannot open.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Listens on a socket that its owner alone can open, from its first moment.
///
/// # Errors
/// Those of the file system; a socket or file at `path` is replaced.
pub fn owner_socket(path: &Path) -> io::Result<UnixListener> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.with_file_name(format!(".{name}-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let inside = folder.join("s");
    let bound = UnixListener::bind(&inside).and_then(|listener| {
        std::fs::set_permissions(&inside, Permissions::from_mode(0o600))?;
        std::fs::rename(&inside, path)?;
        Ok(listener)
    });
    // An empty folder that stays does no harm.
    let _ = std::fs::remove_dir_all(&folder);
    bound
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The owner connects, others may not, and nothing else is left in the folder.
    #[test]
    fn the_owner_alone_connects() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = owner_socket(&path).expect("a socket");
        let mode = std::fs::metadata(&path).expect("the socket's file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).expect("the owner connects");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
    }
}
