//! Compiled programs kept on disk, by a hash of all that decides what they are.
//!
//! A file that is damaged counts as absent. Nothing depends on the cache: what cannot be read is compiled,
//! and what cannot be written is compiled again next time.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A folder of compiled programs.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// Bytes of a hash.
const HASH: usize = blake3::OUT_LEN;

impl Cache {
    /// The user's: `memrun` in `XDG_CACHE_HOME` or `~/.cache`; `None` without a home.
    #[allow(
        clippy::disallowed_methods,
        reason = "the environment says where caches are; no plan depends on it"
    )]
    pub(crate) fn of_user() -> Option<Cache> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
        Some(Cache::at(&folder.join("memrun")))
    }

    pub(crate) fn at(folder: &Path) -> Cache {
        Cache { folder: folder.to_owned() }
    }

    fn file(&self, text: &str, options: &str) -> PathBuf {
        let mut hash = blake3::Hasher::new();
        hash.update(&(options.len() as u64).to_le_bytes()).update(options.as_bytes()).update(text.as_bytes());
        self.folder.join(format!("{}.cubin", hash.finalize().to_hex()))
    }

    /// Compiled form of this text with these options.
    pub(crate) fn get(&self, text: &str, options: &str) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.file(text, options)).ok()?;
        let image = bytes.split_off(bytes.len().min(HASH));
        (bytes == blake3::hash(&image).as_bytes()).then_some(image)
    }

    /// Keeps what a text compiled to; the file appears whole or not at all.
    pub(crate) fn put(&self, text: &str, options: &str, image: &[u8]) -> std::io::Result<()> {
        let path = self.file(text, options);
        std::fs::create_dir_all(&self.folder)?;
        let beside = path.with_extension(format!("{}.new", std::process::id()));
        let mut file = std::fs::File::create(&beside)?;
        let written = file.write_all(blake3::hash(image).as_bytes()).and_then(|()| file.write_all(image));
        let written = written.and_then(|()| std::fs::rename(&beside, &path));
        if written.is_err() {
            // The first error is the one to tell.
            let _ = std::fs::remove_file(&beside);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program comes back for its text and options alone, and not from a damaged file.
    #[test]
    fn programs_come_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("memrun"));
        assert_eq!(cache.get("text", "sm_80"), None);
        cache.put("text", "sm_80", b"image").unwrap();
        assert_eq!(cache.get("text", "sm_80").as_deref(), Some(&b"image"[..]));
        assert_eq!(cache.get("text", "sm_90"), None);
        assert_eq!(cache.get("other", "sm_80"), None);
        // Text and options do not run into each other.
        assert_eq!(cache.get("0text", "sm_8"), None);
        let path = cache.file("text", "sm_80");
        let whole = std::fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..10], b""] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get("text", "sm_80"), None);
        }
        let names = std::fs::read_dir(folder.path().join("memrun")).unwrap().count();
        assert_eq!(names, 1, "nothing is left beside the program");
    }
}
