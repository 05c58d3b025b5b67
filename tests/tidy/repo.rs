//! Reading the repository: its files, their text, and Rust source without comments and literals.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's folder.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Paths of the repository's files, relative to [`root`] with `/` between the parts, sorted.
///
/// What git tracks or would offer to add; where there is no git, every file outside `target`.
pub(crate) fn files() -> Vec<String> {
    let mut files = tracked().unwrap_or_else(|| {
        let mut all = Vec::new();
        walk(&root(), "", &mut all);
        all
    });
    files.retain(|f| root().join(f).is_file());
    files.sort();
    files.dedup();
    assert!(files.iter().any(|f| f == "Cargo.toml"), "the repository's files were not found");
    files
}

fn tracked() -> Option<Vec<String>> {
    if !root().join(".git").exists() {
        return None;
    }
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .ok()?;
    let text = listing.status.success().then(|| String::from_utf8(listing.stdout).ok())??;
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

fn walk(folder: &Path, prefix: &str, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !path.is_dir() {
            out.push(format!("{prefix}{name}"));
        } else if name != ".git" && name != "target" {
            walk(&path, &format!("{prefix}{name}/"), out);
        }
    }
}

/// The Rust files.
pub(crate) fn rust_files() -> Vec<String> {
    files().into_iter().filter(|f| f.ends_with(".rs")).collect()
}

/// The files that people write: everything but model files, hostile inputs and test data in binary form.
pub(crate) fn text_files() -> Vec<String> {
    const BINARY: &[&str] = &["onnx", "npz", "npy", "safetensors", "bin", "plan", "zip", "xz"];
    let is_text = |f: &String| {
        let name = f.rsplit('/').next().unwrap_or(f);
        let extension = name.rsplit_once('.').map_or("", |(_, e)| e);
        let checkpoint = f.starts_with("models/") && name.starts_with("checkpoint");
        !checkpoint && !f.starts_with("tests/fuzz/corpus/") && !BINARY.contains(&extension)
    };
    files().into_iter().filter(is_text).collect()
}

/// The text of a file.
pub(crate) fn read(path: &str) -> String {
    let bytes = std::fs::read(root().join(path)).unwrap_or_default();
    let text = String::from_utf8(bytes);
    assert!(text.is_ok(), "{path} is not UTF-8; add binary formats to `text_files`");
    text.unwrap_or_default()
}

/// Whether `path` is library source: it ends up in a crate that others link.
pub(crate) fn is_library(path: &str) -> bool {
    path.contains("src/") && !path.contains("tests/") && path.ends_with(".rs")
}

/// Rust source with every comment and every string or character literal blanked, line by line as before.
pub(crate) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word_before = out.ends_with(is_word);
        match blank_len(rest, word_before) {
            0 => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
            n => {
                out.extend(rest[..n].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                rest = &rest[n..];
            }
        }
    }
    out
}

/// Bytes of the comment or literal that `rest` starts with; 0 when it starts with neither.
fn blank_len(rest: &str, word_before: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    let raw = rest.strip_prefix('b').unwrap_or(rest);
    if let Some(after) = raw.strip_prefix('r').filter(|_| !word_before) {
        let hashes = after.len() - after.trim_start_matches('#').len();
        if after[hashes..].starts_with('"') {
            let start = rest.len() - after.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            return rest[start..].find(&close).map_or(rest.len(), |end| start + end + close.len());
        }
    }
    let mut chars = rest.chars();
    match (chars.next(), chars.next(), chars.next()) {
        (Some('\''), Some('\\'), _) => quoted(rest, '\''),
        (Some('\''), Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 0,
    }
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let two = rest.as_bytes().get(at..at + 2).unwrap_or_default();
        match two {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Text after each occurrence of `word` in `line` that is not part of a longer name.
pub(crate) fn after_word<'a>(line: &'a str, word: &str) -> Vec<&'a str> {
    let whole = |&at: &usize| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word);
    line.match_indices(word).map(|(at, _)| at).filter(whole).map(|at| &line[at + word.len()..]).collect()
}

/// Whether `line` holds `word` as a whole name.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    !after_word(line, word).is_empty()
}

/// Fails with all violations, one to a line.
pub(crate) fn none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n{}", violations.join("\n"));
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = "let a = \"unsafe \\\" x\"; // unsafe\n\
                /* un /* sa */ fe */ let b = 'u'; let c: &'a u8 = r#\"un\"safe\"#;";
    let kept = code(text);
    assert_eq!(kept.lines().count(), 2);
    assert!(!kept.contains("un") && !kept.contains("sa") && !kept.contains("fe"), "{kept}");
    assert!(kept.contains("let a =") && kept.contains("let b =") && kept.contains("&'a u8"), "{kept}");
}

#[test]
fn words_are_found_whole() {
    assert!(has_word("unsafe {", "unsafe") && has_word("x=unsafe", "unsafe"));
    assert!(!has_word("#[allow(unsafe_code)]", "unsafe") && !has_word("notunsafe", "unsafe"));
}
