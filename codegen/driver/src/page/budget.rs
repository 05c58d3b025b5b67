//! The budget, part by part, at the moment at which most is live.

use super::scene::Scene;
use super::svg::{Plot, UNITS, escape, ms, percent, rect, scaled, size};
use super::tensors::Part;

/// A part of the budget.
struct Share {
    name: &'static str,
    class: String,
    bytes: u64,
    about: String,
}

fn about(part: Part) -> &'static str {
    match part {
        Part::Weights => "parameters, trained or frozen, that are on the device",
        Part::Gradients => "gradients of parameters",
        Part::Optimizer => "state of the optimizer that is on the device",
        Part::Other => "statistics, constants and other states",
        Part::Inputs => "what the host feeds: batches, labels, learning rate",
        Part::Activations => "results of ops, and their gradients",
        Part::Workspace => "scratch bytes of one launch",
    }
}

fn shares(scene: &Scene<'_>) -> Vec<Share> {
    let meta = &scene.plan.meta;
    let share = |part: &Part| Share {
        name: part.name(),
        class: format!("p{}", part.index()),
        bytes: scene.peak.parts.get(part.index()).copied().unwrap_or(0),
        about: about(*part).to_owned(),
    };
    let mut shares: Vec<Share> = Part::ALL.iter().map(share).collect();
    let other = |name, class: &str, bytes, about: &str| Share {
        name,
        class: class.to_owned(),
        bytes,
        about: about.to_owned(),
    };
    let free = meta.dev_bytes.saturating_sub(scene.peak.total());
    let unused = meta.budget_bytes.saturating_sub(meta.reserve_bytes).saturating_sub(meta.dev_bytes);
    shares.push(other("free", "free", free, "bytes of the arena that hold nothing at this moment"));
    shares.push(other("reserve", "reserve", meta.reserve_bytes, "left to the driver and its libraries"));
    shares.push(other("not taken", "unused", unused, "the budget beyond arena and reserve"));
    shares
}

/// The bar and its legend.
pub(super) fn html(scene: &Scene<'_>) -> String {
    let shares = shares(scene);
    let budget = shares.iter().fold(0u64, |sum, share| sum.saturating_add(share.bytes));
    let mut bar = String::new();
    let mut rows = String::new();
    let mut before = 0u64;
    for share in &shares {
        let start = scaled(before, budget);
        before = before.saturating_add(share.bytes);
        let width = scaled(before, budget).saturating_sub(start);
        let text = format!("{}: {}, {}", share.name, size(share.bytes), percent(share.bytes, budget));
        if share.bytes > 0 {
            rect(&mut bar, &format!("b {}", share.class), (start, 0), (width, UNITS), &text);
        }
        rows.push_str(&format!(
            "<tr><th scope=\"row\"><i class=\"{}\"></i>{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td>{}</td></tr>\n",
            share.class,
            share.name,
            size(share.bytes),
            percent(share.bytes, budget),
            escape(&share.about)
        ));
    }
    let marks = [0, 25, 50, 75, 100].map(|n| (n * UNITS / 100, format!("{n} %")));
    let title =
        format!("Budget of {}, part by part, as a bar; the table below has its figures", size(budget));
    let plot = Plot {
        title: &title,
        height: 56,
        rows: Vec::new(),
        columns: [marks.to_vec(), Vec::new()],
        boxes: true,
        content: bar,
    };
    format!(
        "<p>Most is live {} into the step: {} of an arena of {}, within a budget of {}.</p>\n<div \
         class=\"bar\">{}</div>\n<table><caption>Parts of the budget</caption><thead><tr><th \
         scope=\"col\">part</th><th scope=\"col\" class=\"n\">bytes</th><th scope=\"col\" \
         class=\"n\">share</th><th scope=\"col\">holds</th></tr></thead><tbody>\n{rows}</tbody></table>\n",
        ms(scene.peak.ns),
        size(scene.peak.total()),
        size(scene.plan.meta.dev_bytes),
        size(budget),
        plot.html()
    )
}
