//! Sizes and words that make source easy to read: columns, lines of a function, first words of a comment.
//!
//! `left.tsv` has the violations that are still to be mended, by rule and top-level folder: there may be
//! fewer, not more.

use std::collections::BTreeMap;

use crate::repo::{files, none, read, rust_files};

/// Columns of a line, comments, strings and pages included.
const COLUMNS: usize = 110;
/// A word of so many columns needs no line break before it: an address, or data.
const LONG_WORD: usize = 70;
/// Lines of a function's body.
const BODY: usize = 80;

/// Longer functions: tables over all ops or keywords, which the compiler holds complete.
const TABLES: &[(&str, &str)] = &[
    ("ir/kernels/src/call.rs::dispatch", "one arm for every op"),
    ("ir/reference/src/eval.rs::dispatch", "one arm for every op"),
    ("ir/src/autodiff/rules.rs::apply", "one arm for every op"),
    ("passes/tests/common/idioms.rs::idiom", "one arm for every idiom"),
];

/// First words that put a riddle before the thing.
const RIDDLES: &[&str] = &["What", "How", "When", "Why", "That"];

/// Fails where a folder has more violations of a rule than `left.tsv` grants it.
fn shrinking(rule: &str, wrong: &[String]) {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in wrong {
        found.entry(line.split([':', '/']).next().unwrap_or(line)).or_default().push(line);
    }
    let left = read("tests/tidy/left.tsv");
    let granted = |folder: &str| {
        let row = left.lines().filter_map(|l| l.strip_prefix(&format!("{rule}\t{folder}\t"))).next();
        row.map_or(0, |n| n.parse().expect("a count"))
    };
    let over = found.iter().filter(|(folder, lines)| lines.len() > granted(folder));
    let text = over.flat_map(|(folder, lines)| {
        let head = format!("{folder}: {} where {} are left", lines.len(), granted(folder));
        std::iter::once(head).chain(lines.iter().map(|l| (*l).to_owned()))
    });
    none(rule, &text.collect::<Vec<_>>());
}

/// Lines of a page that are prose: no code block, no table.
fn is_prose(page: &str) -> impl FnMut(&str) -> bool {
    let (is_page, mut fenced) = (page.ends_with(".md"), false);
    move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !(is_page && (fenced || fence || line.starts_with('|')))
    }
}

#[test]
fn lines_are_narrow() {
    let mut wrong = Vec::new();
    for path in files().iter().filter(|f| f.ends_with(".rs") || f.ends_with(".md")) {
        let mut prose = is_prose(path);
        for (i, line) in read(path).lines().enumerate() {
            let columns = line.chars().count();
            let breakable = || line.split_whitespace().all(|w| w.chars().count() < LONG_WORD);
            if prose(line) && columns > COLUMNS && breakable() {
                wrong.push(format!("{path}:{}: {columns} columns", i + 1));
            }
        }
    }
    shrinking("columns", &wrong);
}

#[test]
fn functions_are_short() {
    let mut wrong = Vec::new();
    for path in rust_files() {
        for (name, lines) in functions(&read(&path)) {
            let table = TABLES.iter().any(|(function, _)| *function == format!("{path}::{name}"));
            if lines > BODY && !table {
                wrong.push(format!("{path}: {name} has {lines} lines"));
            }
        }
    }
    shrinking("functions", &wrong);
}

/// Names of a file's functions, with the lines between their braces. Relies on rustfmt's indentation.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let modifier = |w: &str| w.starts_with("pub") || ["const", "async", "unsafe", "extern"].contains(&w);
        let mut words = code.split(' ').skip_while(|w| modifier(w) || w.starts_with('"') || w.ends_with(')'));
        if words.next() != Some("fn") {
            continue;
        }
        let name: String = words
            .next()
            .unwrap_or_default()
            .chars()
            .take_while(|&c| c.is_alphanumeric() || c == '_')
            .collect();
        let ends = |c: &[char]| (at..lines.len()).find(|&i| lines[i].ends_with(c));
        let Some(open) = ends(&['{', ';', '}']).filter(|&i| lines[i].ends_with('{')) else { continue };
        let close = (open..lines.len()).find(|&i| lines[i].strip_prefix(indent) == Some("}"));
        out.extend(close.map(|close| (name, close - open - 1)));
    }
    out
}

#[test]
fn comments_say_the_thing_first() {
    let mut wrong = Vec::new();
    for path in rust_files() {
        let mut before = String::new();
        for (i, line) in read(&path).lines().enumerate() {
            let comment = line.trim_start().strip_prefix("//");
            let text = comment.map(|c| c.trim_start_matches(['/', '!']).trim_start());
            let first = text.and_then(|t| t.split(|c: char| !c.is_alphanumeric()).next());
            if !before.starts_with("//") && first.is_some_and(|w| RIDDLES.contains(&w)) {
                wrong.push(format!("{path}:{}: {}", i + 1, line.trim()));
            }
            before = line.trim_start().to_owned();
        }
    }
    shrinking("riddles", &wrong);
}

#[test]
fn bodies_are_measured_between_their_braces() {
    let text = "impl A {\n    pub(crate) const fn a(\n        x: u8,\n    ) -> u8 {\n        x\n    }\n}\n\
                trait B {\n    fn b();\n    fn c() {}\n}\n#[test]\nfn d() {\n    e();\n    f();\n}\n";
    assert_eq!(functions(text), [("a".to_owned(), 1), ("d".to_owned(), 2)]);
}
