#![doc = include_str!("../README.md")]
#![allow(clippy::panic, reason = "a panic is how a target says that a promise is broken")]

mod damage;
mod graph;
mod limit;
mod onnx;
mod plans;
mod step;
mod tensors;
mod texts;
mod wire;

use std::path::{Path, PathBuf};

use arbtest::arbitrary::{Result, Unstructured};

pub use limit::Limit;

/// A reader of files that others wrote, with what makes such files.
pub struct Target {
    /// Name, and folder of its corpus.
    pub name: &'static str,
    /// Content of the input.
    pub about: &'static str,
    /// Reads the input, and goes on with what is accepted. Panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Changes an input so that readers get past its framing.
    pub mutate: fn(&mut Unstructured<'_>, &mut Vec<u8>) -> Result<()>,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "onnx",
        about: "an ONNX model, imported, planned, run",
        run: onnx::bytes,
        mutate: onnx::mutate,
    },
    Target {
        name: "graph",
        about: "bytes that describe a small ONNX model",
        run: graph::run,
        mutate: damage::bytes,
    },
    Target {
        name: "module",
        about: "a module's text, planned, run",
        run: texts::module,
        mutate: damage::text,
    },
    Target { name: "plan", about: "a plan file, checked, run", run: plans::file, mutate: plans::mutate },
    Target { name: "plan_text", about: "a plan's text", run: plans::text, mutate: damage::text },
    Target {
        name: "problem",
        about: "a planning problem, planned",
        run: texts::problem,
        mutate: damage::text,
    },
    Target { name: "profile", about: "a device profile", run: texts::profile, mutate: damage::text },
    Target { name: "decisions", about: "decisions, evaluated", run: texts::decisions, mutate: damage::text },
    Target { name: "layout", about: "buffers as CSV, allocated", run: texts::layout, mutate: damage::text },
    Target { name: "npy", about: "a NumPy array, fed", run: tensors::npy, mutate: tensors::mutate_npy },
    Target {
        name: "safetensors",
        about: "states, resumed and imported",
        run: tensors::safetensors,
        mutate: tensors::mutate_safetensors,
    },
    Target {
        name: "ort_checkpoint",
        about: "an ONNX Runtime checkpoint",
        run: tensors::ort_checkpoint,
        mutate: damage::bytes,
    },
    Target {
        name: "options",
        about: "values of the command line",
        run: texts::options,
        mutate: damage::text,
    },
];

impl Target {
    /// The target of a name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Files of the corpus, sorted.
    pub fn corpus(&self) -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
        files.sort();
        files
    }

    /// An input made of one of `seeds`, the same for the same number.
    pub fn mutant(&self, seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
        let noise = noise(number, 512);
        let mut u = Unstructured::new(&noise);
        let mut data = u.choose(seeds).cloned().unwrap_or_default();
        let rounds = u.int_in_range(1..=3).unwrap_or(1);
        for _ in 0..rounds {
            // Noise that ends leaves the input as far as it came.
            let _ = (self.mutate)(&mut u, &mut data);
        }
        data
    }
}

/// Random bytes, the same for the same number.
pub fn noise(number: u64, bytes: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    let mut word = || {
        // Marsaglia, "Xorshift RNGs", 2003, with a multiplication at the end.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| word()).take(bytes).collect()
}

/// The model that an input of the target `graph` describes.
pub fn described(data: &[u8]) -> Option<Vec<u8>> {
    graph::file(data)
}
