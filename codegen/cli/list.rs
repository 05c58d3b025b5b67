//! `memc list`.

use memc_baselines::PLANNERS;
use memc_ir::{Bytes, Phase};
use memc_passes::graph::{RAISE_RULES, RULES, memory};
use memc_passes::{DeviceProfile, PASSES, PROFILES};
use memc_planner::Planner;
use serde_json::Value;

use crate::figures::table;
use crate::output::{Failure, emit, emit_json};

/// The op at the root of a pattern.
fn root(pattern: &str) -> &str {
    let word = pattern.trim_start_matches('(').split([' ', '=', ':', ')']).next();
    word.unwrap_or_default()
}

pub(crate) fn list(what: &str, json: bool) -> Result<(), Failure> {
    if json && what == "devices" {
        let profiles: Vec<String> = PROFILES.iter().map(|p| p.print().trim_end().to_owned()).collect();
        return Ok(emit(&format!("[{}]\n", profiles.join(",\n")))?);
    }
    let phases = |(a, b): (Phase, Phase)| format!("{} -> {}", a.name(), b.name());
    let (header, rows): (&[&str], Vec<Vec<String>>) = match what {
        "devices" => devices(),
        "passes" => {
            let options =
                |p: &memc_passes::PassDef| p.options.iter().map(|o| o.name).collect::<Vec<_>>().join(",");
            let row = |p: &memc_passes::PassDef| {
                vec![p.name.into(), phases(p.phases), options(p), p.summary.into()]
            };
            (&["pass", "phase", "options", "summary"], PASSES.iter().map(row).collect())
        }
        "rewrites" => {
            let simplify = RULES.iter().map(|r| ("simplify", r.name, r.on.join(" "), r.doc));
            let roots = |patterns: &[&'static str]| {
                let mut roots: Vec<&str> = patterns.iter().map(|p| root(p)).collect();
                roots.dedup();
                roots.join(" ")
            };
            let raise = RAISE_RULES.iter().map(|r| ("raise", r.name, roots(r.patterns), r.doc));
            let keep = memory::RULES.iter().map(|r| (memory::NAME, r.name, r.on().join(" "), r.doc));
            let row = |(pass, name, on, doc): (&str, &str, String, &str)| {
                vec![name.to_string(), pass.to_string(), on, doc.to_string()]
            };
            let rows = simplify.chain(raise).chain(keep).map(row);
            (&["rewrite", "pass", "looks at", "does"], rows.collect())
        }
        "planners" => {
            let row = |p: &Planner| vec![p.name.to_string(), p.summary.to_string(), p.source.to_string()];
            (&["planner", "does", "from"], PLANNERS.iter().map(row).collect())
        }
        "optimizers" => (
            &["--optimizer", "options and their defaults", "is"],
            memc_ir::recipe::optimizers().into_iter().map(Vec::from).collect(),
        ),
        "losses" => {
            (&["--loss", "options", "is"], memc_ir::recipe::losses().into_iter().map(Vec::from).collect())
        }
        "rules" => {
            let row = |r: &memc_ir::Rule| vec![r.code.to_string(), r.summary.to_string()];
            (&["rule", "what holds"], memc_ir::RULES.iter().map(row).collect())
        }
        _ => {
            let row = |d: &memc_ir::ops::OpDef| {
                vec![d.mnemonic.to_string(), d.operands.join(" "), d.results.join(" "), d.attrs.join(" ")]
            };
            (&["op", "operands", "results", "attributes"], memc_ir::ops::OP_DEFS.iter().map(row).collect())
        }
    };
    if json {
        let object = |row: &Vec<String>| -> serde_json::Map<String, Value> {
            header.iter().zip(row).map(|(h, cell)| (h.to_string(), Value::from(cell.as_str()))).collect()
        };
        return Ok(emit_json(&rows.iter().map(object).collect::<Vec<_>>())?);
    }
    if what == "devices" {
        return Ok(emit(&format!("{}\n{}", table(header, &rows), FOOTNOTE))?);
    }
    Ok(emit(&table(header, &rows))?)
}

/// Units of the columns of [`devices`].
const FOOTNOTE: &str = "f32 to tf32: TFLOP/s, 16-bit ones and tf32 in matrix products; link: GB/s one way, \
     and both ways together\n";

/// A row for each device.
fn devices() -> (&'static [&'static str], Vec<Vec<String>>) {
    let figure = |x: f64, unit: f64| {
        let x = x / unit;
        let scale = 10f64.powi(2 - x.abs().max(1e-3).log10().floor() as i32);
        format!("{}", if scale >= 1.0 { (x * scale).round() / scale } else { x.round() })
    };
    let row = |p: &DeviceProfile| {
        let units = |x: Option<f64>| x.map_or_else(|| "-".into(), |x| figure(x, 1e12));
        let link = p.d2h_bytes_per_s.min(p.h2d_bytes_per_s);
        vec![
            p.name.to_string(),
            p.memory_bytes.map_or_else(|| "-".into(), |m| Bytes(m).short()),
            Bytes(p.reserve_bytes).short(),
            figure(p.peaks.f32, 1e12),
            units(p.peaks.f16),
            units(p.peaks.bf16),
            units(p.peaks.tf32),
            figure(p.memory_bytes_per_s, 1e9),
            format!("{} ({})", figure(link, 1e9), figure(p.duplex_total_bytes_per_s, 1e9)),
            p.summary.to_string(),
        ]
    };
    let header =
        &["device", "memory", "reserve", "f32", "f16", "bf16", "tf32", "GB/s", "link (both ways)", "is"];
    (header, PROFILES.iter().map(row).collect())
}
