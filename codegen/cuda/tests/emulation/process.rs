//! Compiling kernels with g++ and running them in a process of their own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use memc_cuda::{Arg, Kernel, Lowering, NO_REPORT, PREAMBLE};
use memc_ir::TensorType;
use memc_kernels::interp::Tensor;

use crate::common::Sample;
use crate::compiler::has_compiler;

/// One op to run.
pub(crate) struct Job<'a> {
    pub(crate) sample: &'a Sample,
    pub(crate) results: Vec<TensorType>,
    pub(crate) lowering: Lowering,
    /// An operand that shares its bytes with a result.
    pub(crate) shared: Option<(usize, usize)>,
}

/// Translation units, compiled side by side.
const UNITS: usize = 2;
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O0",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

fn compile(folder: &Path, flags: &[&str], kernels: &BTreeMap<&str, (usize, &Kernel)>) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/emulation");
    let mut units = vec![format!("#include \"shim.h\"\n{PREAMBLE}"); UNITS];
    for (index, kernel) in kernels.values() {
        let unit = &mut units[index % UNITS];
        unit.push_str(&kernel.source);
        let _ = writeln!(unit, "static emulation::Register register_{index}({index}, &{});", kernel.name);
    }
    let mut objects = Vec::new();
    let mut compilers = Vec::new();
    let mut start = |from: PathBuf, to: PathBuf| {
        let mut command = Command::new("g++");
        command.args(FLAGS).args(flags).args(["-I", source, "-c", "-o"]).args([&to, &from]);
        compilers.push(command.spawn().unwrap());
        objects.push(to);
    };
    for (i, unit) in units.iter().enumerate() {
        let path = folder.join(format!("unit{i}.cpp"));
        std::fs::write(&path, unit).unwrap();
        start(path.clone(), path.with_extension("o"));
    }
    start(Path::new(source).join("main.cpp"), folder.join("main.o"));
    for mut compiler in compilers {
        assert!(compiler.wait().unwrap().success(), "g++ refuses a unit in {}", folder.display());
    }
    let program = folder.join("kernels");
    let linked = Command::new("g++").args(FLAGS).arg("-o").arg(&program).args(&objects).status().unwrap();
    assert!(linked.success(), "g++ does not link");
    program
}

/// The words that main.cpp reads.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_le_bytes());
    }

    fn buffer(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Operands, results, workspace; what a kernel must write is poisoned.
    fn job(&mut self, job: &Job, kernels: &BTreeMap<&str, (usize, &Kernel)>) {
        let (operands, results) = (job.sample.operands.len(), job.results.len());
        self.word((operands + results + 2) as u64);
        job.sample.operands.iter().for_each(|t| self.buffer(t.data.bytes()));
        for (j, ty) in job.results.iter().enumerate() {
            match job.shared.filter(|&(_, result)| result == j) {
                Some((i, _)) => self.buffer(job.sample.operands[i].data.bytes()),
                None => self.buffer(&vec![0xaa; ty.bytes() as usize]),
            }
        }
        self.buffer(&vec![0xaa; job.lowering.workspace as usize]);
        self.buffer(&NO_REPORT.to_le_bytes().repeat(job.lowering.checks.len()));
        self.word(job.lowering.launches.len() as u64);
        for launch in &job.lowering.launches {
            self.word(kernels[&*launch.kernel.name].0 as u64);
            launch.grid.iter().for_each(|&g| self.word(g.into()));
            self.word(launch.block.into());
            self.word(launch.args.len() as u64);
            for arg in &launch.args {
                let result = |j: usize| (1, (operands + j) as u64, 0);
                let (is_address, value, offset) = match *arg {
                    Arg::Operand(i) => match job.shared.filter(|&(operand, _)| operand == i) {
                        Some((_, j)) => result(j),
                        None => (1, i as u64, 0),
                    },
                    Arg::Result(j) => result(j),
                    Arg::Workspace(offset) => (1, (operands + results) as u64, offset),
                    Arg::Report(check) => (1, (operands + results + 1) as u64, 8 * check as u64),
                    Arg::I64(value) => (0, value as u64, 0),
                };
                [is_address, value, offset].into_iter().for_each(|w| self.word(w));
            }
        }
        self.word(results as u64 + 1);
        (0..results).for_each(|j| self.word((operands + j) as u64));
        self.word((operands + results + 1) as u64);
    }
}

/// Results of a job.
pub(crate) struct Outcome {
    pub(crate) results: Vec<Tensor>,
    /// A word for each check.
    pub(crate) reports: Vec<u64>,
}

/// Results of every job, in a folder of this name, compiled with further flags; `None` where there is no
/// compiler.
pub(crate) fn run(name: &str, flags: &[&str], jobs: &[Job]) -> Option<Vec<Outcome>> {
    if !has_compiler() {
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut kernels: BTreeMap<&str, (usize, &Kernel)> = BTreeMap::new();
    for launch in jobs.iter().flat_map(|job| &job.lowering.launches) {
        let next = kernels.len();
        let (_, same) = kernels.entry(&launch.kernel.name).or_insert((next, &launch.kernel));
        assert_eq!(same.source, launch.kernel.source, "two texts with one name");
    }
    let program = compile(&folder, flags, &kernels);
    let mut script = Script::default();
    script.word(jobs.len() as u64);
    jobs.iter().for_each(|job| script.job(job, &kernels));
    let (input, output) = (folder.join("input"), folder.join("output"));
    std::fs::write(&input, &script.0).unwrap();
    let ran = Command::new(program).args([&input, &output]).output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    let bytes = std::fs::read(&output).unwrap();
    let mut rest = bytes.as_slice();
    let mut take = |bytes: u64| {
        let (head, tail) = rest.split_at(bytes as usize);
        rest = tail;
        head
    };
    let mut outcome = |job: &Job| {
        let mut tensor = |ty: &TensorType| {
            let mut tensor = Tensor::zeros(ty.clone()).unwrap();
            tensor.data.bytes_mut().copy_from_slice(take(ty.bytes()));
            tensor
        };
        let results = job.results.iter().map(&mut tensor).collect();
        let words = take(8 * job.lowering.checks.len() as u64).chunks_exact(8);
        let reports = words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        Outcome { results, reports }
    };
    let outcomes = jobs.iter().map(&mut outcome).collect();
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
    eprintln!("{} runs of {} kernels", jobs.len(), kernels.len());
    Some(outcomes)
}
