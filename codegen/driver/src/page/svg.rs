//! Text of pictures: escaping, figures, axes.

use std::fmt::Write;

use memc_ir::Bytes;

/// Units of a picture's width and height. Pictures are stretched to the page.
pub(super) const UNITS: u64 = 100_000;

/// Text that is safe within an element and within an attribute in quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// A time.
pub(crate) fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// A byte count.
pub(crate) fn size(bytes: u64) -> String {
    Bytes(bytes).short()
}

/// A share of a whole, as a percentage.
pub(super) fn percent(part: u64, whole: u64) -> String {
    match crate::report::over(part, whole) {
        Some(share) => format!("{:.1} %", 100.0 * share),
        None => "-".to_owned(),
    }
}

/// `value` on an axis from 0 to `most`, in [`UNITS`].
pub(super) fn scaled(value: u64, most: u64) -> u64 {
    let units = u128::from(value) * u128::from(UNITS) / u128::from(most.max(1));
    u64::try_from(units).unwrap_or(UNITS).min(UNITS)
}

/// Rows of a table, whose cells are text. Columns after the first `words` hold figures.
pub(super) fn table(caption: &str, header: &[&str], words: usize, rows: &[Vec<String>]) -> String {
    let class = |i: usize| if i < words { "" } else { " class=\"n\"" };
    let mut out = format!("<table><caption>{}</caption><thead><tr>", escape(caption));
    for (i, cell) in header.iter().enumerate() {
        _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(i), escape(cell));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            _ = match i {
                0 => write!(out, "<th scope=\"row\">{}</th>", escape(cell)),
                _ => write!(out, "<td{}>{}</td>", class(i), escape(cell)),
            };
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody></table>\n"
}

/// A picture with axes.
pub(super) struct Plot<'a> {
    /// For readers who do not see it.
    pub(super) title: &'a str,
    /// Height on the page in pixels.
    pub(super) height: u32,
    /// Marks of the vertical axis: unit and text.
    pub(super) rows: Vec<(u64, String)>,
    /// Marks of the horizontal axis: those that are always shown, and those of a wide axis.
    pub(super) columns: [Vec<(u64, String)>; 2],
    /// Whether boxes within can be visited.
    pub(super) boxes: bool,
    /// Elements.
    pub(super) content: String,
}

impl Plot<'_> {
    pub(super) fn html(&self) -> String {
        let mut y = String::new();
        let mut grid = String::new();
        for (at, text) in &self.rows {
            _ = write!(y, "<span style=\"bottom:{:.2}%\">{}</span>", *at as f64 / 1e3, escape(text));
            _ = write!(grid, "<path class=\"grid\" d=\"M0 {}H{UNITS}\"/>", UNITS.saturating_sub(*at));
        }
        let mut x = String::new();
        for (marks, class) in self.columns.iter().zip(["", " fine"]) {
            for (at, text) in marks {
                let left = *at as f64 / 1e3;
                _ = write!(
                    x,
                    "<span class=\"mark{class}\" style=\"left:{left:.2}%\">{}</span>",
                    escape(text)
                );
                _ = write!(grid, "<path class=\"grid{class}\" d=\"M{at} 0V{UNITS}\"/>");
            }
        }
        let (visited, said) = if self.boxes {
            (" class=\"boxes\" role=\"group\" tabindex=\"0\"", "<output class=\"said\"></output>")
        } else {
            (" role=\"img\"", "")
        };
        format!(
            "<div class=\"plot\" style=\"--h:{}px\"><div class=\"y\" aria-hidden=\"true\">{y}</div>\
             <div class=\"scroll\"><div class=\"wide\"><svg{visited} aria-label=\"{}\" \
             viewBox=\"0 0 {UNITS} {UNITS}\" preserveAspectRatio=\"none\">\n{grid}\n{}</svg>\
             <div class=\"x\" aria-hidden=\"true\">{x}</div></div></div></div>{said}\n",
            self.height,
            escape(self.title),
            self.content
        )
    }
}

/// A box with a text that says what it is.
pub(super) fn rect(out: &mut String, class: &str, (x, y): (u64, u64), (w, h): (u64, u64), text: &str) {
    let text = escape(text);
    // A border would hide a small box.
    let small = if w < 200 || h < 500 { " s" } else { "" };
    let place = format!("x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"");
    _ = writeln!(out, "<rect class=\"{class}{small}\" {place}><title>{text}</title></rect>");
}

/// Marks of a time axis that ends at `end_ns`: those that are always shown, and those of a wide axis.
pub(super) fn time_marks(end_ns: u64) -> [Vec<(u64, String)>; 2] {
    let coarse = marks_in(end_ns, 8);
    let mut fine = marks_in(end_ns, 50);
    fine.retain(|mark| coarse.iter().all(|(at, _)| *at != mark.0));
    [coarse, fine]
}

/// At most `count` marks, none so near the end that its text has no room.
fn marks_in(end_ns: u64, count: u64) -> Vec<(u64, String)> {
    let step = steps(end_ns, count, &[1, 2, 5], 10);
    let decimals = (0..=6).find(|d| step.is_multiple_of(10u64.pow(6 - d))).unwrap_or(6) as usize;
    let text = |ns: u64| format!("{:.decimals$} ms", ns as f64 / 1e6);
    let times = (0..).map(|n: u64| n.saturating_mul(step)).take_while(|ns| *ns < end_ns - end_ns / 20);
    times.map(|ns| (scaled(ns, end_ns), text(ns))).collect()
}

/// Marks of an axis of bytes that ends at `most`.
pub(super) fn byte_marks(most: u64) -> Vec<(u64, String)> {
    let step = steps(most, 6, &[1], 2);
    (0..)
        .map(|n: u64| n.saturating_mul(step))
        .take_while(|b| *b <= most)
        .map(|b| (scaled(b, most), size(b)))
        .collect()
}

/// The smallest step of the form `first * base^n` with at most `count` of them in `most`.
fn steps(most: u64, count: u64, first: &[u64], base: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for step in first.iter().map(|first| first.saturating_mul(power)) {
            if most / step.max(1) <= count {
                return step;
            }
        }
        power = power.saturating_mul(base);
    }
}
