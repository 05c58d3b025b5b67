//! Files that are read in place.

use std::fs::File;
use std::io;

use bytes::Bytes;
use memmap2::Mmap;

/// Maps a whole file for reading. Pages are read when they are looked at; the system can give them back.
///
/// The file must stay as it is while the bytes are in use: one that is cut short in place ends the process.
///
/// # Errors
/// Those of the system, as for a pipe.
#[allow(unsafe_code, reason = "mapping a file is the one way to read it without copying it")]
pub fn map(file: &File) -> io::Result<Bytes> {
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is sound as long as nobody truncates or changes the file in place while it is open.
    // memc and memrun only ever replace files by a rename, which leaves the mapped file as it is.
    Ok(Bytes::from_owner(unsafe { Mmap::map(file) }?))
}
