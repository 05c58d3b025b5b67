//! Devices: found by name, read from files, merged.

use std::borrow::Cow;
use std::path::Path;

pub use memc_passes::DeviceProfile;
use memc_passes::{Judgement, PROFILES};

use crate::error::Error;
use crate::machine::read_text;

/// Name that stands for the device of this machine.
pub const AUTO: &str = "auto";

/// The device of this machine, as a name that [`find`] knows, and the line that tells people of it.
///
/// It is the first GPU's measured profile where that is kept, or the built-in one of its model, and otherwise
/// the embedded CPU device.
pub fn automatic() -> (String, String) {
    chosen(memc_support::gpus().first().map(String::as_str), |path| path.is_file())
}

fn chosen(gpu: Option<&str>, exists: impl Fn(&Path) -> bool) -> (String, String) {
    let Some(gpu) = gpu else {
        return ("cpu".into(), "device: cpu (no NVIDIA GPU is here; --device plans for another)".into());
    };
    if let Some(kept) = memc_support::kept_profile(gpu).filter(|path| exists(path)) {
        let name = kept.display().to_string();
        return (name.clone(), format!("device: {name} (measured, {gpu})"));
    }
    if let Some(name) = memc_support::builtin_profile(gpu) {
        let line = format!(
            "device: {name} ({gpu}{}; memrun profile --device cuda --keep measures this one)",
            assumed(name)
        );
        return (name.into(), line);
    }
    let line = format!(
        "device: cpu (no built-in profile is for {gpu}; give a similar one with --device, and measure with \
         memrun profile --device cuda --keep)"
    );
    ("cpu".into(), line)
}

/// Throughputs that a built-in profile takes for granted, as the end of a list.
fn assumed(name: &str) -> String {
    let Some(profile) = DeviceProfile::named(name) else { return String::new() };
    let giga = |bytes_per_s: f64| bytes_per_s / 1e9;
    let (memory, link) = (giga(profile.memory_bytes_per_s), giga(profile.h2d_bytes_per_s));
    format!("; assumed: memory {memory:.0} GB/s, link {link:.1} GB/s")
}

/// The profile that a name stands for: this machine's, where it is [`AUTO`], a file's, where it ends in
/// `.json`, or a built-in one.
pub fn find(name: &str) -> Result<Cow<'static, DeviceProfile>, Error> {
    if name == AUTO {
        return find(&automatic().0);
    }
    if Path::new(name).extension().is_some_and(|e| e == "json") {
        return read(Path::new(name)).map(Cow::Owned);
    }
    DeviceProfile::named(name).map(Cow::Borrowed).ok_or_else(|| {
        let known: Vec<&str> = PROFILES.iter().map(|p| &*p.name).collect();
        let meant = meant(name, &known);
        Error::Usage(format!(
            "unknown device `{name}`{meant} (known: auto, this machine's GPU or else the CPU, {}; or \
             a profile file, NAME.json)",
            known.join(", ")
        ))
    })
}

/// The profile that is given for a plan, or else the one that it was made for.
pub fn of_plan(given: Option<&str>, own: &str) -> Result<Cow<'static, DeviceProfile>, Error> {
    match given {
        Some(name) => find(name),
        None => find(own).map_err(|_| {
            Error::Usage(format!(
                "the plan is for the device `{own}`, which is no built-in one; give its profile file: \
                 --device FILE.json"
            ))
        }),
    }
}

/// The profile in a file.
pub fn read(path: &Path) -> Result<DeviceProfile, Error> {
    let text = read_text(path)?;
    DeviceProfile::parse(&text).map_err(|e| Error::Model(format!("{}: {e}", path.display())))
}

/// Names at least so similar may have been meant.
const ALIKE: f64 = 0.6;

/// Question for the names that `name` is the beginning of, or else the one that is most like it.
fn meant(name: &str, known: &[&str]) -> String {
    let low = name.to_ascii_lowercase();
    let family: Vec<&str> =
        known.iter().copied().filter(|k| !low.is_empty() && k.starts_with(&low)).collect();
    match (family.as_slice(), nearest(name, known)) {
        ([_, ..], _) => format!("; did you mean `{}`?", family.join("` or `")),
        ([], Some(near)) => format!("; did you mean `{near}`?"),
        ([], None) => String::new(),
    }
}

/// The known name that is most like `name`, if one is.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let scored = known.iter().map(|k| (strsim::normalized_damerau_levenshtein(&name, k), *k));
    let best = scored.filter(|s| s.0 >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(a.1)));
    best.map(|(_, known)| known)
}

/// Merges measured profiles of one kind of device, and judges how well they predict op times.
///
/// Device figures are those of the first.
pub fn merge(mut profiles: Vec<DeviceProfile>) -> Result<(DeviceProfile, Judgement), Error> {
    let others = profiles.split_off(1.min(profiles.len()));
    let Some(mut profile) = profiles.pop() else {
        return Err(Error::Usage("give a measured profile, as `memrun profile` writes it".into()));
    };
    if let Some(other) = others.iter().find(|other| other.kernels != profile.kernels) {
        let (a, b) = (&profile.name, &other.name);
        let text =
            format!("`{a}` and `{b}` have kernels of different kinds, which teach nothing of each other");
        return Err(Error::Usage(text));
    }
    profile.merge(&others);
    let Some(judgement) = profile.judge() else {
        return Err(Error::Model(format!("`{}` has no measured ops to learn from", profile.name)));
    };
    Ok((profile, judgement))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_the_machine_is_measured_or_known_or_the_cpu() {
        let (name, line) = chosen(None, |_| false);
        assert_eq!(name, "cpu");
        assert!(line.contains("no NVIDIA GPU"), "{line}");
        let (name, line) = chosen(Some("NVIDIA H100 80GB HBM3"), |_| false);
        assert_eq!(name, "h100");
        assert!(line.contains("NVIDIA H100 80GB HBM3") && line.contains("link 5"), "{line}");
        let (name, line) = chosen(Some("NVIDIA H100 80GB HBM3"), |_| true);
        assert!(name.ends_with("memc/profiles/nvidia-h100-80gb-hbm3.json"), "{name}");
        assert!(line.contains("measured"), "{line}");
        let (name, line) = chosen(Some("NVIDIA GeForce RTX 4060"), |_| false);
        assert_eq!(name, "cpu");
        assert!(line.contains("RTX 4060"), "{line}");
    }
}
