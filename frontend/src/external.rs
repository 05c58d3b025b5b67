//! Tensor data kept in files beside the model.
//!
//! A model file must not make its reader open arbitrary files. The location is therefore a relative path
//! without `..`; after following links it must lie in the model's folder or in the folder of the model's own
//! canonical file (model caches keep snapshots as links into one folder of blobs); it must be a regular file
//! with one hard link, and the same file after it was opened. Offset and length are checked against its size
//! before anything is read, and tensors never have more bytes of a file than it has in total. A file is
//! mapped, so that weights take no memory until something looks at them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::path::{Component, Path, PathBuf};

use memc_ir::Data;

use crate::error::Fault;

/// The folders that a model's data may be in, and how much was read from which file.
#[derive(Debug)]
pub(crate) struct Folder {
    given: PathBuf,
    canonical: Vec<PathBuf>,
    taken: RefCell<BTreeMap<PathBuf, u64>>,
    /// Files that were opened, in place.
    maps: RefCell<BTreeMap<PathBuf, Data>>,
}

impl Folder {
    /// The folder of the model file `model`.
    pub(crate) fn of(model: &Path) -> std::io::Result<Folder> {
        let given = match model.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let mut canonical = vec![fs::canonicalize(&given)?];
        if let Some(parent) = fs::canonicalize(model)?.parent() {
            canonical.push(parent.to_path_buf());
        }
        Ok(Folder { given, canonical, taken: RefCell::default(), maps: RefCell::default() })
    }

    /// The `want` bytes that the entries of an external tensor describe.
    pub(crate) fn read(&self, entries: &[(String, String)], want: u64) -> Result<Data, Fault> {
        let place = Place::parse(entries)?;
        let text = place.location;
        let path = self.given.join(relative(text)?);
        let real =
            fs::canonicalize(&path).map_err(|e| format!("external data `{text}` cannot be opened: {e}"))?;
        if !self.canonical.iter().any(|folder| real.starts_with(folder)) {
            return Err(Fault::Bad(format!("external data `{text}` leaves the model's folder")));
        }
        let cannot = |e: std::io::Error| format!("external data `{text}` cannot be read: {e}");
        // Opening a pipe would wait for whoever writes to it.
        if !fs::symlink_metadata(&real).map_err(cannot)?.is_file() {
            return Err(Fault::Bad(format!("external data `{text}` is not a regular file")));
        }
        let file = File::open(&real).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        same_plain_file(&meta, &fs::symlink_metadata(&real).map_err(cannot)?)
            .map_err(|e| format!("external data `{text}` {e}"))?;
        let size = meta.len();
        let length = match place.length {
            Some(n) => n,
            None => size.checked_sub(place.offset).ok_or_else(|| outside(text, place.offset, 0, size))?,
        };
        if length > size || place.offset > size - length {
            return Err(outside(text, place.offset, length, size).into());
        }
        if length != want {
            return Err(Fault::Bad(format!(
                "wrong data length: `{text}` gives {length} bytes, the tensor has {want}"
            )));
        }
        let mut taken = self.taken.borrow_mut();
        let total = taken.entry(real.clone()).or_default();
        *total = total.saturating_add(length);
        if *total > size {
            return Err(Fault::Bad(format!(
                "the tensors in `{text}` overlap: together they have more than its {size} bytes"
            )));
        }
        let mut maps = self.maps.borrow_mut();
        let whole = match maps.get(&real) {
            Some(whole) => whole.clone(),
            None => {
                let whole: Data = memc_support::map(&file).map_err(cannot)?.into();
                maps.insert(real, whole.clone());
                whole
            }
        };
        // The file may have changed since it was mapped.
        let slice = usize::try_from(place.offset).ok().zip(usize::try_from(length).ok());
        let slice = slice.and_then(|(at, n)| whole.slice(at..at.checked_add(n)?));
        slice.ok_or_else(|| outside(text, place.offset, length, size).into())
    }
}

fn outside(text: &str, offset: u64, length: u64, size: u64) -> String {
    format!("external data `{text}` has {size} bytes; offset {offset} and length {length} lie outside")
}

struct Place<'a> {
    location: &'a str,
    offset: u64,
    length: Option<u64>,
}

impl<'a> Place<'a> {
    fn parse(entries: &'a [(String, String)]) -> Result<Place<'a>, Fault> {
        let (mut location, mut offset, mut length) = (None, None, None);
        for (key, value) in entries {
            let number = || {
                let plain = value.bytes().all(|b| b.is_ascii_digit());
                let parsed = if plain { value.parse::<u64>().ok() } else { None };
                parsed.ok_or_else(|| format!("external data has {key} `{value}`, which is no byte count"))
            };
            let twice = match key.as_str() {
                "location" => location.replace(value.as_str()).is_some(),
                "offset" => offset.replace(number()?).is_some(),
                "length" => length.replace(number()?).is_some(),
                "checksum" => false,
                _ => return Err(Fault::Bad(format!("external data has an unknown entry `{key}`"))),
            };
            if twice {
                return Err(Fault::Bad(format!("external data has entry `{key}` twice")));
            }
        }
        let location = location.filter(|l| !l.is_empty()).ok_or("external data has no location")?;
        Ok(Place { location, offset: offset.unwrap_or(0), length })
    }
}

/// `location` as a relative path that stays inside, judged by its text alone.
fn relative(location: &str) -> Result<&Path, Fault> {
    let path = Path::new(location);
    let drive = location.as_bytes().get(1) == Some(&b':');
    let inside = path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if location.contains(|c: char| c == '\\' || c.is_control()) || drive || !inside {
        return Err(Fault::Bad(format!(
            "external data location `{}` is not a plain relative path",
            location.escape_default()
        )));
    }
    Ok(path)
}

#[cfg(unix)]
fn same_plain_file(opened: &Metadata, found: &Metadata) -> Result<(), Fault> {
    use std::os::unix::fs::MetadataExt;
    if !opened.is_file() || !found.is_file() {
        return Err("is not a regular file".into());
    }
    if opened.nlink() > 1 {
        return Err("has several hard links; copy it to a file of its own".into());
    }
    if (opened.dev(), opened.ino()) != (found.dev(), found.ino()) {
        return Err("changed while it was opened".into());
    }
    Ok(())
}

#[cfg(not(unix))]
fn same_plain_file(opened: &Metadata, found: &Metadata) -> Result<(), Fault> {
    if opened.is_file() && found.is_file() { Ok(()) } else { Err("is not a regular file".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }
    fn refused(folder: &Folder, list: &[(&str, &str)], want: u64) -> String {
        folder.read(&entries(list), want).expect_err("must be refused").to_string()
    }
    fn folder(dir: &Path) -> Folder {
        fs::write(dir.join("m.onnx"), b"model").expect("write");
        fs::write(dir.join("w.bin"), [1u8, 2, 3, 4, 5, 6, 7, 8]).expect("write");
        Folder::of(&dir.join("m.onnx")).expect("folder")
    }

    /// Mapped bytes are compared with themselves without being read. Reading them ends the process: the file
    /// has none any more.
    #[test]
    #[cfg(unix)]
    fn shared_bytes_are_not_read() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = folder(dir.path());
        let data = folder.read(&entries(&[("location", "w.bin")]), 8).expect("read");
        fs::File::options()
            .write(true)
            .open(dir.path().join("w.bin"))
            .expect("open")
            .set_len(0)
            .expect("cut");
        assert!(data == data.clone());
    }

    /// A plain file beside the model is read at its offset, once.
    #[test]
    fn data_is_read_in_place() {
        let dir = tempfile::tempdir().expect("dir");
        let f = folder(dir.path());
        let at = [("location", "w.bin"), ("offset", "4"), ("length", "4")];
        assert_eq!(f.read(&entries(&at), 4).expect("read")[..], [5, 6, 7, 8]);
        assert_eq!(
            f.read(&entries(&[("location", "./w.bin"), ("length", "4")]), 4).expect("read"),
            [1, 2, 3, 4].into()
        );
        assert!(refused(&f, &at, 4).contains("overlap"));
    }

    /// Locations that name a place outside the folder are refused by their text.
    #[test]
    fn locations_stay_in_the_folder() {
        let dir = tempfile::tempdir().expect("dir");
        let f = folder(dir.path());
        for bad in ["../w.bin", "a/../../w.bin", "/etc/passwd", "C:w.bin", "a\\w.bin", "w\0.bin", ".."] {
            assert!(refused(&f, &[("location", bad)], 8).contains("plain relative path"), "{bad}");
        }
        assert!(refused(&f, &[], 8).contains("no location"));
        assert!(refused(&f, &[("location", "absent.bin")], 8).contains("cannot be opened"));
        assert!(refused(&f, &[("location", ".")], 8).contains("not a regular file"));
    }

    /// Numbers that wrap, exceed the file, or differ from the tensor's size are refused before reading.
    #[test]
    fn numbers_are_checked() {
        let dir = tempfile::tempdir().expect("dir");
        let f = folder(dir.path());
        let with = |offset: &str, length: &str, want| {
            refused(&f, &[("location", "w.bin"), ("offset", offset), ("length", length)], want)
        };
        assert!(with("18446744073709551615", "8", 8).contains("lie outside"));
        assert!(with("1", "8", 8).contains("lie outside"));
        assert!(with("0", "1125899906842624", 1 << 50).contains("lie outside"));
        assert!(with("-1", "8", 8).contains("no byte count"));
        assert!(with("0", "4", 8).contains("wrong data length"));
        assert!(refused(&f, &[("location", "w.bin"), ("offset", "9")], 8).contains("lie outside"));
        assert!(refused(&f, &[("location", "w.bin"), ("mode", "x")], 8).contains("unknown entry"));
        assert!(refused(&f, &[("location", "w.bin"), ("location", "w.bin")], 8).contains("twice"));
    }

    /// Links out of the folder and hard links are refused; a cache of linked snapshots works.
    #[cfg(unix)]
    #[test]
    fn links_do_not_escape() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("dir");
        let (blobs, snap) = (dir.path().join("blobs"), dir.path().join("snapshots"));
        fs::create_dir(&blobs).expect("dir");
        fs::create_dir(&snap).expect("dir");
        fs::write(dir.path().join("secret"), [9u8; 8]).expect("write");
        fs::write(blobs.join("aa"), b"model").expect("write");
        fs::write(blobs.join("bb"), [7u8; 8]).expect("write");
        symlink("../blobs/aa", snap.join("m.onnx")).expect("link");
        symlink("../blobs/bb", snap.join("w.bin")).expect("link");
        symlink("../secret", snap.join("out.bin")).expect("link");
        symlink("..", snap.join("up")).expect("link");
        let f = Folder::of(&snap.join("m.onnx")).expect("folder");
        assert_eq!(f.read(&entries(&[("location", "w.bin")]), 8).expect("cache")[..], [7; 8]);
        assert!(refused(&f, &[("location", "out.bin")], 8).contains("leaves the model's folder"));
        assert!(refused(&f, &[("location", "up/secret")], 8).contains("leaves the model's folder"));
        fs::hard_link(dir.path().join("secret"), snap.join("hard.bin")).expect("link");
        assert!(refused(&f, &[("location", "hard.bin")], 8).contains("hard links"));
    }
}
