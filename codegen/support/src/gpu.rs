//! NVIDIA GPUs of this machine by name, and the profiles that plans for them are made with.

use std::path::{Path, PathBuf};

/// Where the driver describes its GPUs, a folder for each.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// Model names of the GPUs that the driver lets this process see, the first that `CUDA_VISIBLE_DEVICES` names
/// by a number or by MIG first, the others in order of their bus addresses. Empty without a driver, and where
/// that variable hides them all.
pub fn gpus() -> Vec<String> {
    #[allow(clippy::disallowed_methods, reason = "CUDA reads this variable, too")]
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    seen(gpus_in(Path::new(DRIVER)), visible.as_deref())
}

fn seen(mut gpus: Vec<String>, visible: Option<&str>) -> Vec<String> {
    let Some(first) = visible.map(|v| v.split(',').next().unwrap_or_default().trim()) else { return gpus };
    if first.is_empty() || first.starts_with('-') {
        return Vec::new();
    }
    if first.starts_with("MIG-") {
        gpus.iter_mut().for_each(|gpu| gpu.push_str(" MIG"));
    }
    match first.parse::<usize>() {
        Ok(number) if number < gpus.len() => gpus[..=number].rotate_right(1),
        Ok(_) => gpus.clear(),
        // By its UUID, which the driver's folder does not tell.
        Err(_) => {}
    }
    gpus
}

fn gpus_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    let model = |folder: &PathBuf| {
        let text = std::fs::read_to_string(folder.join("information")).ok()?;
        Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned())
    };
    folders.iter().filter_map(model).collect()
}

/// Name of the measured profile of a GPU: its model name as one word, such as `nvidia-h100-80gb-hbm3`.
pub fn profile_name(gpu: &str) -> String {
    let parts = gpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// File where the measured profile of a GPU is kept: `memc/profiles` in `XDG_DATA_HOME`, or in
/// `~/.local/share`. `None` without a home.
pub fn kept_profile(gpu: &str) -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "the environment says where a user's data are")]
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")))?;
    Some(data.join("memc").join("profiles").join(format!("{}.json", profile_name(gpu))))
}

/// Whether the profile of this name is a GPU's: built in, or measured under the GPU's own name.
pub fn is_gpu_profile(name: &str) -> bool {
    let prefixes = ["nvidia-", "tesla-", "rtx", "gtx"];
    KNOWN.iter().any(|(_, known)| *known == name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Words in the names of GPUs that are slower than the profile of their model, or faster.
const OTHERS: [&str; 5] = ["mig", "laptop", "max", "d", "super"];

/// Words of a GPU's name, all of which it has, and the built-in profile of such GPUs. H100s of other forms
/// have slower memory. Names that cards with different memory share are left out.
const KNOWN: [(&[&str], &str); 20] = [
    (&["b200"], "b200"),
    (&["h200"], "h200"),
    (&["h100", "80gb", "hbm3"], "h100"),
    (&["a100", "80gb"], "a100-80g"),
    (&["a100", "40gb"], "a100-40g"),
    (&["v100", "sxm2", "16gb"], "v100-16g"),
    (&["1080", "ti"], "gtx1080ti"),
    (&["2080", "ti"], "rtx2080ti"),
    (&["2080ti"], "rtx2080ti"),
    (&["t4"], "t4"),
    (&["rtx", "3060"], "rtx3060"),
    (&["rtx", "3090"], "rtx3090"),
    (&["a10"], "a10"),
    (&["rtx", "a6000"], "a6000"),
    (&["rtx", "4090"], "rtx4090"),
    (&["l4"], "l4"),
    (&["l40s"], "l40s"),
    (&["rtx", "5090"], "rtx5090"),
    (&["rtx", "pro", "6000", "blackwell", "workstation"], "rtxpro6000"),
    (&["rtx", "pro", "6000", "blackwell", "server"], "rtxpro6000"),
];

/// Name of the built-in profile of a GPU, where there is one for its model.
pub fn builtin_profile(gpu: &str) -> Option<&'static str> {
    let name = profile_name(gpu);
    let part = |word: &str| name.split('-').any(|part| part == word);
    let has = |words: &[&str]| words.iter().all(|word| part(word)) && part("ti") == words.contains(&"ti");
    // An instance of a divided GPU has a part of its memory and of its processors; cards for notebooks and
    // of reduced forms are slower than those that they are named after.
    let is_whole = !name.split('-').any(|part| OTHERS.contains(&part));
    KNOWN.iter().find(|(words, _)| is_whole && has(words)).map(|(_, profile)| *profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_read_in_order_of_their_addresses() {
        let folder = tempfile::tempdir().unwrap();
        for (address, model) in [("0000:81:00.0", "NVIDIA A100-SXM4-40GB"), ("0000:1b:00.0", "NVIDIA L4")] {
            let gpu = folder.path().join(address);
            std::fs::create_dir(&gpu).unwrap();
            std::fs::write(gpu.join("information"), format!("Model: \t\t {model}\nIRQ:   \t\t 18\n"))
                .unwrap();
        }
        std::fs::create_dir(folder.path().join("0000:00:00.0")).unwrap();
        assert_eq!(gpus_in(folder.path()), ["NVIDIA L4", "NVIDIA A100-SXM4-40GB"]);
        assert!(gpus_in(&folder.path().join("absent")).is_empty());
    }

    /// The GPU that CUDA counts as the first comes first.
    #[test]
    fn the_visible_gpu_comes_first() {
        let all = || vec!["NVIDIA L4".to_owned(), "NVIDIA H200".to_owned()];
        assert_eq!(seen(all(), None), all());
        assert_eq!(seen(all(), Some("1,0")), ["NVIDIA H200", "NVIDIA L4"]);
        assert_eq!(seen(all(), Some("0")), all());
        assert_eq!(seen(all(), Some("GPU-4f1b")), all());
        for none in ["", "-1", "7"] {
            assert!(seen(all(), Some(none)).is_empty(), "{none}");
        }
        let part = seen(vec!["NVIDIA H100 80GB HBM3".into()], Some("MIG-4f1b"));
        assert_eq!(builtin_profile(&part[0]), None, "{part:?}");
    }

    #[test]
    fn models_have_the_profiles_of_their_kind_alone() {
        let of = builtin_profile;
        assert_eq!(of("NVIDIA H100 80GB HBM3"), Some("h100"));
        assert_eq!(of("NVIDIA H100 PCIe"), None);
        assert_eq!(of("NVIDIA H200"), Some("h200"));
        assert_eq!(of("NVIDIA A100-SXM4-80GB"), Some("a100-80g"));
        assert_eq!(of("NVIDIA A100-PCIE-40GB"), Some("a100-40g"));
        assert_eq!(of("Tesla V100-SXM2-16GB"), Some("v100-16g"));
        assert_eq!(of("NVIDIA GeForce GTX 1080 Ti"), Some("gtx1080ti"));
        assert_eq!(of("NVIDIA GeForce RTX 2080"), None);
        assert_eq!(of("NVIDIA GeForce RTX 4090"), Some("rtx4090"));
        assert_eq!(of("NVIDIA GeForce RTX 4090 D"), None);
        assert_eq!(of("NVIDIA GeForce RTX 4090 Laptop GPU"), None);
        assert_eq!(of("NVIDIA GeForce RTX 3090 Ti"), None);
        assert_eq!(of("NVIDIA GeForce RTX 5060 Ti"), None, "8 and 16 GB share the name");
        assert_eq!(of("NVIDIA L40S"), Some("l40s"));
        assert_eq!(of("NVIDIA RTX A6000"), Some("a6000"));
        assert_eq!(of("NVIDIA RTX PRO 6000 Blackwell Workstation Edition"), Some("rtxpro6000"));
        assert_eq!(of("Tesla T4"), Some("t4"));
        assert_eq!(profile_name("NVIDIA H100 80GB HBM3"), "nvidia-h100-80gb-hbm3");
        assert!(is_gpu_profile("h100") && is_gpu_profile("nvidia-h100-80gb-hbm3"));
        assert!(!is_gpu_profile("cpu") && !is_gpu_profile(""));
    }
}
