//! Tables in the crates' pages that are written by the code they describe.
//!
//! Such a table stands between `<!-- generated:NAME -->` and `<!-- end -->`. `MEMC_BLESS=1` rewrites it.

use std::sync::{Mutex, PoisonError};

use memc_ir::RULES;
use memc_ir::ops::{Class, OP_DEFS, OpDef};
use memc_passes::{
    FAST_PIPELINE, FUSE_PIPELINE, GRAPH_PIPELINE, LEAN_PIPELINE, MEMORY_PIPELINE, PASSES, PassDef,
};

use crate::repo::{read, root};

/// A Markdown table.
fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let rule: Vec<String> = header.iter().map(|cell| "-".repeat(cell.len())).collect();
    let escaped =
        rows.into_iter().map(|row| row.into_iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>());
    let body: String = escaped.map(|row| line(&row)).collect();
    format!("{}{}{body}", line(&header), line(&rule))
}

fn code(text: impl AsRef<str>) -> String {
    let text = text.as_ref();
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// The page with `generated` at `marker`, and the first line there that was not so.
fn with_table(page: &str, marker: &str, generated: &str) -> (String, Option<String>) {
    let start = format!("<!-- generated:{marker} -->\n");
    let (before, rest) = page.split_once(&start).expect("the page has the start marker");
    let (old, after) = rest.split_once("<!-- end -->").expect("the page has the end marker");
    let (mut new_lines, mut old_lines) = (generated.lines(), old.lines());
    let stale = loop {
        match (new_lines.next(), old_lines.next()) {
            (None, None) => break None,
            (new, old) if new != old => break Some(new.or(old).unwrap_or_default().to_owned()),
            _ => {}
        }
    };
    (format!("{before}{start}{generated}<!-- end -->{after}"), stale)
}

/// Held while a page is read and rewritten, since tests run side by side.
static PAGES: Mutex<()> = Mutex::new(());

#[allow(clippy::disallowed_methods, reason = "the one switch of the test runner")]
fn compare(path: &str, marker: &str, generated: &str) {
    let _one_at_a_time = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let (page, stale) = with_table(&read(path), marker, generated);
    if stale.is_some() && std::env::var_os("MEMC_BLESS").is_some() {
        std::fs::write(root().join(path), page).expect("the page can be written");
        return;
    }
    let line = stale.as_deref().unwrap_or_default();
    assert!(
        stale.is_none(),
        "{path}: the table `{marker}` is stale, first at\n{line}\nMEMC_BLESS=1 rewrites it"
    );
}

#[test]
fn the_passes_page_lists_every_pass() {
    let row = |p: &PassDef| {
        let options = p.options.iter().map(|o| {
            let default =
                if o.default.is_empty() { o.name.to_owned() } else { format!("{}={}", o.name, o.default) };
            format!("{}: {}", code(default), o.doc)
        });
        let phases = format!("{} → {}", p.phases.0.name(), p.phases.1.name());
        vec![code(p.name), phases, p.summary.to_owned(), options.collect::<Vec<_>>().join("; ")]
    };
    let rows = PASSES.iter().map(row).collect();
    compare("passes/README.md", "passes", &table(&["pass", "phase", "does", "options"], rows));
}

#[test]
fn the_passes_page_lists_every_rewrite() {
    let rows = memc_passes::graph::RULES.iter().map(|r| vec![code(r.name), r.doc.to_owned()]).collect();
    compare("passes/README.md", "rewrites", &table(&["rule", "does"], rows));
}

#[test]
fn the_passes_page_lists_every_recovery() {
    let rows = memc_passes::graph::RAISE_RULES.iter().map(|r| vec![code(r.name), r.doc.to_owned()]).collect();
    compare("passes/README.md", "raise-rules", &table(&["rule", "does"], rows));
}

#[test]
fn the_passes_page_lists_every_rule_for_memory() {
    let rules = memc_passes::graph::memory::RULES;
    let rows = rules.iter().map(|r| vec![code(r.name), r.doc.to_owned()]).collect();
    compare("passes/README.md", "memory-rewrites", &table(&["rule", "does"], rows));
}

#[test]
fn the_passes_page_shows_the_pipelines() {
    compare(
        "passes/README.md",
        "pipeline",
        &format!(
            "```text\n{GRAPH_PIPELINE}\n{FAST_PIPELINE}\n{LEAN_PIPELINE}\n{MEMORY_PIPELINE}\n{FUSE_PIPELINE}\n```\n"
        ),
    );
}

#[test]
fn the_ir_page_lists_every_op() {
    let row = |d: &OpDef| {
        let pair = |&(i, j): &(usize, usize)| format!("{} → {}", d.operands[i], d.results[j]);
        let shares = match d.class {
            Class::View => "always".to_owned(),
            Class::Pure if d.mnemonic == "fused_norm" => "of one type and size, if read no later".to_owned(),
            Class::Pure if d.is_open() => "any of one type and size, if no product".to_owned(),
            Class::Pure => d.inplace.iter().map(pair).collect::<Vec<_>>().join(", "),
        };
        let list = |names: &[&str]| code(names.join(", "));
        vec![
            code(d.mnemonic),
            list(d.operands),
            list(d.results),
            list(d.attrs),
            shares,
            d.doc.trim().to_owned(),
        ]
    };
    let header = ["op", "operands", "results", "attributes", "in place", "meaning"];
    compare("ir/README.md", "ops", &table(&header, OP_DEFS.iter().map(row).collect()));
}

#[test]
fn the_ir_page_lists_every_rule() {
    let rows = RULES.iter().map(|r| vec![r.code.to_owned(), r.summary.to_owned()]).collect();
    compare("ir/README.md", "rules", &table(&["rule", "what holds"], rows));
}

#[test]
fn a_stale_table_is_noticed_and_replaced() {
    let page = "a\n<!-- generated:x -->\nkept\nold\n<!-- end -->\nb\n";
    let (new, stale) = with_table(page, "x", "kept\nnew\n");
    assert_eq!(stale.as_deref(), Some("new"));
    assert_eq!(new, "a\n<!-- generated:x -->\nkept\nnew\n<!-- end -->\nb\n");
    assert_eq!(with_table(&new, "x", "kept\nnew\n").1, None);
    assert_eq!(with_table(&new, "x", "kept\n").1.as_deref(), Some("new"));
}
