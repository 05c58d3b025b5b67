//! Draws the device memory of a training step over its time, unplanned and planned, as SVG:
//! `cargo run --release --package memc --example memory > codegen/driver/memory.svg`.

use std::fmt::Write;
use std::path::Path;

use memc::{Error, Model, Options, Sample, Search, Silent, Size, Source, Target, compile, memory_over_time};
use memc_frontend::ImportOptions;

/// Size of the picture and of the axes' margins, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 40.0;

const GIB: f64 = (1u64 << 30) as f64;
const MS: f64 = 1e6;

#[allow(dead_code, clippy::print_stdout, reason = "an example shows its result; a test calls `picture`")]
fn main() -> Result<(), Error> {
    print!("{}", picture()?);
    Ok(())
}

/// ResNet-50 with momentum, batch 32, on an A100 with 1 GiB for its buffers.
pub(crate) fn picture() -> Result<String, Error> {
    let import = ImportOptions {
        loss: "cross-entropy".parse().ok(),
        optimizer: "momentum:lr=0.1".parse().ok(),
        dims: vec![("batch".into(), 32)],
        ..ImportOptions::default()
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/zoo/resnet50.onnx");
    let target = Target { device: "a100-40g".into(), ..Target::default() };
    let model = Model::read(&Source { path, import }.into(), &target, &Silent)?;
    let budget = (1 << 30) + model.profile.reserve_bytes;
    let search = Search { effort: 1, ..Search::default() };
    let compiled =
        compile(&model, &Options { budget: Some(Size::Bytes(budget)), search, ..Options::default() })?;

    let unplanned = &compiled.instance.given().kept();
    let (_, planned) = compiled.outcome.require(&compiled.instance, compiled.allow)?;
    let (before, after) = (unplanned.evaluation.step_ns, planned.evaluation.step_ns);
    let curves = [
        Curve { samples: memory_over_time(unplanned), step_ns: before, name: "unplanned", colour: "#9aa5b1" },
        Curve { samples: memory_over_time(planned), step_ns: after, name: "planned", colour: "#2266bb" },
    ];
    Ok(draw(
        "Live device memory in a step of ResNet-50, batch 32, with 1 GiB for buffers (modelled, A100)",
        &curves,
        1 << 30,
    ))
}

/// Live bytes over one step.
struct Curve {
    samples: Vec<Sample>,
    step_ns: u64,
    name: &'static str,
    colour: &'static str,
}

impl Curve {
    fn peak(&self) -> u64 {
        self.samples.iter().map(|s| s.bytes).max().unwrap_or(0)
    }
}

/// The curves as filled steps over one another, with a dashed line at the budget.
fn draw(title: &str, curves: &[Curve], budget: u64) -> String {
    let longest = curves.iter().map(|c| c.step_ns).max().unwrap_or(1) as f64;
    let highest = curves.iter().map(Curve::peak).max().unwrap_or(1) as f64 * 1.08;
    let x = |ns: u64| LEFT + ns as f64 / longest * (WIDTH - LEFT - RIGHT);
    let y = |bytes: f64| HEIGHT - BOTTOM - bytes / highest * (HEIGHT - BOTTOM - TOP);

    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n"
    );
    let mut line = |text: std::fmt::Arguments<'_>| _ = writeln!(out, "{text}");
    for curve in curves {
        let mut path = format!("M{:.1} {:.1}", x(0), y(0.0));
        for s in &curve.samples {
            _ = write!(path, "H{:.1}V{:.1}", x(s.ns), y(s.bytes as f64));
        }
        _ = write!(path, "H{:.1}V{:.1}Z", x(curve.step_ns), y(0.0));
        let colour = curve.colour;
        line(format_args!(
            "<path d=\"{path}\" fill=\"{colour}\" fill-opacity=\"0.45\" stroke=\"{colour}\"/>"
        ));
    }
    for (i, curve) in curves.iter().enumerate() {
        let at = LEFT + 300.0 * i as f64;
        let (peak, ms) = (curve.peak() as f64 / GIB, curve.step_ns as f64 / MS);
        let text = format!("{}: peak {peak:.2} GiB, step {ms:.1} ms", curve.name);
        line(format_args!(
            "<rect x=\"{at}\" y=\"27\" width=\"10\" height=\"10\" fill=\"{}\"/>",
            curve.colour
        ));
        line(format_args!("<text x=\"{}\" y=\"36\">{text}</text>", at + 15.0));
    }
    let (right, level) = (WIDTH - RIGHT, y(budget as f64));
    line(format_args!(
        "<path d=\"M{LEFT} {level:.1}H{right}\" stroke=\"#c22\" stroke-dasharray=\"6 4\" fill=\"none\"/>"
    ));
    line(format_args!(
        "<text x=\"{}\" y=\"{:.1}\" fill=\"#c22\" text-anchor=\"end\">budget</text>",
        right - 4.0,
        level - 5.0
    ));
    for quarter in (0..).map(|n| 0.25 * f64::from(n)).take_while(|gib| gib * GIB < highest) {
        let at = y(quarter * GIB);
        line(format_args!("<path d=\"M{} {at:.1}H{LEFT}\" stroke=\"#333\"/>", LEFT - 5.0));
        line(format_args!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{quarter:.2}</text>",
            LEFT - 8.0,
            at + 4.0
        ));
    }
    for ms in (0..).step_by(10).take_while(|&ms| f64::from(ms) * MS < longest) {
        let at = LEFT + f64::from(ms) * MS / longest * (WIDTH - LEFT - RIGHT);
        let floor = HEIGHT - BOTTOM;
        line(format_args!("<path d=\"M{at:.1} {floor}v5\" stroke=\"#333\"/>"));
        line(format_args!("<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{ms}</text>", floor + 18.0));
    }
    line(format_args!("<text x=\"{LEFT}\" y=\"{}\">time in the step, ms</text>", HEIGHT - 6.0));
    line(format_args!(
        "<text x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {0:.1})\">GiB</text>",
        HEIGHT / 2.0
    ));
    line(format_args!("</svg>"));
    out
}
