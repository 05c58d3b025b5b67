//! Devices on the command line: finding one by name, and the table of all.

use std::borrow::Cow;
use std::path::Path;

use memc_ir::Bytes;
use memc_passes::{DeviceProfile, PROFILES};

use crate::exit::Error;
use crate::source::read_text;

/// The profile that `--device` names: a file's, where it ends in `.json`, or a built-in one.
pub(crate) fn find(name: &str) -> Result<Cow<'static, DeviceProfile>, Error> {
    if Path::new(name).extension().is_some_and(|e| e == "json") {
        return read(Path::new(name)).map(Cow::Owned);
    }
    DeviceProfile::named(name).map(Cow::Borrowed).ok_or_else(|| {
        let known: Vec<&str> = PROFILES.iter().map(|p| &*p.name).collect();
        let meant = nearest(name, &known).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
        Error::Usage(format!(
            "unknown device `{name}`{meant} (known: {}; or a profile file, NAME.json)",
            known.join(", ")
        ))
    })
}

/// The profile that is given for a plan, or else the one that it was made for.
pub(crate) fn of_plan(given: Option<&str>, own: &str) -> Result<Cow<'static, DeviceProfile>, Error> {
    match given {
        Some(name) => find(name),
        None => find(own).map_err(|_| {
            Error::Usage(format!(
                "the plan is for the device `{own}`, which is no built-in one; give its profile file: --device FILE.json"
            ))
        }),
    }
}

/// The profile in a file.
pub(crate) fn read(path: &Path) -> Result<DeviceProfile, Error> {
    let text = read_text(path)?;
    DeviceProfile::parse(&text).map_err(|e| Error::Model(format!("{}: {e}", path.display())))
}

/// Names at least so similar may have been meant.
const ALIKE: f64 = 0.6;

/// The known name that is most like `name`, if one is.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let scored = known.iter().map(|k| (strsim::normalized_damerau_levenshtein(&name, k), *k));
    let best = scored.filter(|s| s.0 >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
    best.map(|(_, known)| known)
}

/// What the columns of [`listing`] are in.
pub(crate) const FOOTNOTE: &str = "f32 to tf32: TFLOP/s, 16-bit ones and tf32 in matrix products; link: GB/s one way, and both ways together\n";

/// The built-in profiles as files have them.
pub(crate) fn profiles() -> Vec<String> {
    PROFILES.iter().map(|p| p.print().trim_end().to_owned()).collect()
}

/// A row for each device.
pub(crate) fn listing() -> (&'static [&'static str], Vec<Vec<String>>) {
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
