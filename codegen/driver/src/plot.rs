//! A sweep as a picture: time of the step by budget, with the bound, as one SVG file.
//!
//! The same sweep gives the same bytes.

use std::fmt::Write;

use crate::page::svg::{escape, ms, size};
use crate::sweep::{Point, Sweep};

/// Extent of the picture and margins of the plot within it, in pixels.
const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 56.0;
/// A cross at a place.
const CROSS: &str = "m-5 -5l10 10m0 -10l-10 10";
/// Most marks of an axis.
const MARKS: u64 = 8;

const STYLE: &str = "\
:root { color-scheme: light dark; }
svg { background: #fff; } text { font: 13px system-ui, sans-serif; fill: #3c4552; }
.title { font-size: 16px; fill: #1d2430; } .grid { stroke: #e2e5ea; }
.step { stroke: #1f5fbf; stroke-width: 2; fill: none; } .pareto { fill: #1f5fbf; }
.other { fill: #fff; stroke: #1f5fbf; stroke-width: 2; }
.bound { stroke: #c2182b; stroke-dasharray: 6 4; fill: none; }
.ideal, .peak { stroke: #6b7480; stroke-dasharray: 2 4; } .none { stroke: #c2182b; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
svg { background: #1c2027; } text { fill: #a3adba; } .title { fill: #e6e9ee; } .grid { stroke: #39404b; }
.step, .other { stroke: #7fb0ff; } .pareto { fill: #7fb0ff; } .other { fill: #1c2027; }
.bound, .none { stroke: #ff7080; } }
";

/// An axis: the values at its two ends, and the pixels there.
struct Axis {
    values: (u64, u64),
    pixels: (f64, f64),
}

impl Axis {
    fn at(&self, value: u64) -> f64 {
        let (low, high) = self.values;
        let share = value.saturating_sub(low) as f64 / high.saturating_sub(low).max(1) as f64;
        self.pixels.0 + share.min(1.0) * (self.pixels.1 - self.pixels.0)
    }

    /// Multiples of a round step within the axis. Steps are 1, 2 or 5 times a power of ten of `unit`, or
    /// where it is `None` powers of two.
    fn marks(&self, unit: Option<u64>) -> impl Iterator<Item = u64> + use<> {
        let (low, high) = self.values;
        let mut step = unit.unwrap_or(1);
        let mut factors = if unit.is_some() { [2, 5, 10] } else { [2, 4, 8] }.into_iter().cycle();
        let mut decade = step;
        while (high - low) / step.max(1) > MARKS {
            let factor = factors.next().unwrap_or(2);
            step = decade.saturating_mul(factor);
            if factor == 10 || factor == 8 {
                decade = step;
            }
        }
        let step = step.max(1);
        (low.div_ceil(step)..=high / step).map(move |n| n * step)
    }
}

/// The picture of a sweep of one model: time of the step in each budget, the certified bound, the ideal step
/// and the peak without a plan. Budgets without a plan are crosses at its foot.
pub fn plot(sweep: &Sweep) -> String {
    let reports = || sweep.points.iter().map(|point| &point.report);
    let (title, planner) = reports().next().map_or(("", ""), |r| (r.problem.as_str(), r.planner.as_str()));
    let (x, y) = axes(&sweep.points);
    let ideal = reports().next().map_or(0, |report| report.ideal_ns);
    let peak = reports().next().map_or(0, |report| report.unplanned_peak_bytes);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-labelledby=\"t d\">\n<title id=\"t\">{0}: time of a step by budget</title>\n<desc id=\"d\">{1}\
         </desc>\n<style>{STYLE}</style>\n<text class=\"title\" x=\"{LEFT}\" y=\"26\">{0}: time of a step by \
         budget, planned by {2}</text>\n",
        escape(title),
        escape(&described(sweep)),
        escape(planner),
    );
    grid(&mut out, &x, &y);
    let line = |class: &str, (x1, y1), (x2, y2)| {
        format!("<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>\n")
    };
    let (foot, end) = (y.pixels.0, x.pixels.1);
    out += &line("ideal", (LEFT, y.at(ideal)), (end, y.at(ideal)));
    if peak <= x.values.1 {
        out += &line("peak", (x.at(peak), TOP), (x.at(peak), foot));
    }
    let known = |ns: fn(&Point) -> Option<u64>| {
        let place = |point: &Point| Some((x.at(point.report.gpu_mem_bytes), y.at(ns(point)?)));
        sweep.points.iter().filter_map(place).collect::<Vec<_>>()
    };
    out += &path("bound", &known(|point| point.report.bound_ns.filter(|_| point.report.step_ns.is_some())));
    out += &path("step", &known(|point| point.report.step_ns));
    for point in &sweep.points {
        dot(&mut out, point, &x, &y);
    }
    legend(&mut out);
    out + "</svg>\n"
}

/// Axes that have every point of the sweep within them.
fn axes(points: &[Point]) -> (Axis, Axis) {
    let budgets = || points.iter().map(|point| point.report.gpu_mem_bytes);
    let (low, high) = (budgets().min().unwrap_or(0), budgets().max().unwrap_or(1));
    let margin = (high - low) / 20 + 1;
    let times = || points.iter().flat_map(|p| [p.report.step_ns, p.report.bound_ns, Some(p.report.ideal_ns)]);
    let (fast, slow) = (times().flatten().min().unwrap_or(0), times().flatten().max().unwrap_or(1));
    let room = (slow - fast) / 10 + slow / 100 + 1;
    let x = (low.saturating_sub(margin), high.saturating_add(margin));
    let y = (fast.saturating_sub(room), slow.saturating_add(room));
    (Axis { values: x, pixels: (LEFT, WIDTH - RIGHT) }, Axis { values: y, pixels: (HEIGHT - BOTTOM, TOP) })
}

/// The sweep in words.
fn described(sweep: &Sweep) -> String {
    let told = |point: &Point| match point.report.step_ns {
        Some(ns) => format!("{}: {}", size(point.report.gpu_mem_bytes), ms(ns)),
        None => format!("{}: no plan", size(point.report.gpu_mem_bytes)),
    };
    sweep.points.iter().map(told).collect::<Vec<_>>().join("; ")
}

fn grid(out: &mut String, x: &Axis, y: &Axis) {
    let (foot, end) = (y.pixels.0, x.pixels.1);
    for bytes in x.marks(None) {
        let at = x.at(bytes);
        _ = writeln!(out, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{foot}\"/>");
        let text = size(bytes);
        _ = writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            foot + 18.0
        );
    }
    let step = y.marks(Some(1)).take(2).fold((0, 0), |(_, a), b| (a, b));
    let decimals = (0..=6).find(|d| (step.1 - step.0).is_multiple_of(10u64.pow(6 - d))).unwrap_or(6);
    for ns in y.marks(Some(1)) {
        let at = y.at(ns);
        _ = writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{end}\"/>");
        let text = format!("{:.1$} ms", ns as f64 / 1e6, decimals as usize);
        _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let middle = f64::midpoint(LEFT, end);
    let below = HEIGHT - 12.0;
    _ = writeln!(out, "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">budget</text>");
}

/// A line through points.
fn path(class: &str, points: &[(f64, f64)]) -> String {
    let to = |(i, (x, y)): (usize, &(f64, f64))| format!("{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    let path: String = points.iter().enumerate().map(to).collect();
    if path.is_empty() { String::new() } else { format!("<path class=\"{class}\" d=\"{path}\"/>\n") }
}

/// A budget: a dot with its figures, or a cross where it has no plan.
fn dot(out: &mut String, point: &Point, x: &Axis, y: &Axis) {
    let report = &point.report;
    let (at, budget) = (x.at(report.gpu_mem_bytes), size(report.gpu_mem_bytes));
    _ = match report.step_ns {
        Some(ns) => {
            let class = if point.pareto { "pareto" } else { "other" };
            let bound = report.bound_ns.map_or_else(String::new, |ns| format!(", bound {}", ms(ns)));
            let text = format!("{budget}: {}{bound}", ms(ns));
            writeln!(
                out,
                "<circle class=\"{class}\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"4.5\"><title>{text}</title>\
                 </circle>",
                y.at(ns)
            )
        }
        None => {
            let foot = y.pixels.0 - 8.0;
            let text = format!("<title>{budget}: no plan</title>");
            writeln!(out, "<path class=\"none\" d=\"M{at:.1} {foot:.1}{CROSS}\">{text}</path>")
        }
    };
}

fn legend(out: &mut String) {
    let y = 48.0;
    let marks: [(&str, f64, &str); 5] = [
        ("step; filled: no smaller budget is as fast", 310.0, "step"),
        ("bound", 85.0, "bound"),
        ("ideal", 80.0, "ideal"),
        ("peak without a plan", 170.0, "peak"),
        ("no plan", 0.0, "none"),
    ];
    let mut x = LEFT;
    for (text, width, class) in marks {
        let at = y - 4.0;
        _ = match class {
            "none" => writeln!(out, "<path class=\"none\" d=\"M{:.1} {at:.1}{CROSS}\"/>", x + 12.0),
            _ => writeln!(out, "<path class=\"{class}\" d=\"M{x:.1} {at:.1}h24\"/>"),
        };
        _ = writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\">{text}</text>", x + 30.0);
        x += width;
    }
}
