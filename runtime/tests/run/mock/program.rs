//! Kernels of the mock: g++ compiles their text for the CPU.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A program that g++ compiled.
pub(super) struct Program {
    pub(super) names: Vec<String>,
    /// Parameters of a kernel.
    pub(super) arity: extern "C" fn(u64) -> u64,
    launch: extern "C" fn(u64, *const u64, u64, *const u64),
    _library: Library,
}

/// Fibers of the emulation are global.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-w",
    "-shared",
    "-fPIC",
    "-fno-gnu-unique",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
];

const ENTRY: &str = "
extern \"C\" uint64_t mock_arity(uint64_t kernel) { return emulation::table().at(kernel).arity; }
extern \"C\" void mock_launch(uint64_t index, const uint64_t* grid, uint64_t block, const uint64_t* words) {
  struct Call { const emulation::Kernel* kernel; const uint64_t* words; }
      call{&emulation::table().at(index), words};
  auto run = [](void* p) { ((Call*)p)->kernel->call(((Call*)p)->kernel->function, ((Call*)p)->words); };
  emulation::launch(grid, (unsigned)block, run, &call);
}
";

impl Program {
    #[allow(unsafe_code, reason = "opens the compiled program")]
    pub(super) fn build(text: &str) -> Program {
        let names: Vec<String> = memc_cuda::kernel_names(text).map(str::to_owned).collect();
        assert_eq!(names.len(), text.matches("__global__").count(), "a kernel is not found in the text");
        let mut unit = format!("#include \"shim.h\"\n{text}");
        for (i, name) in names.iter().enumerate() {
            let _ = writeln!(unit, "static emulation::Register register_{i}({i}, &{name});");
        }
        unit.push_str(ENTRY);
        let path = compile(&unit);
        // SAFETY: the library was just built from the texts above; its functions have the types of ENTRY.
        unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).unwrap();
            let arity = *library.get(b"mock_arity").unwrap();
            let launch = *library.get(b"mock_launch").unwrap();
            Program { names, arity, launch, _library: library }
        }
    }

    pub(super) fn run(&self, kernel: usize, grid: [u32; 3], block: u32, words: &[u64]) {
        let _one = ONE_AT_A_TIME.lock().unwrap();
        (self.launch)(kernel as u64, grid.map(u64::from).as_ptr(), block.into(), words.as_ptr());
    }
}

/// The folder of the header that emulates a GPU's built-ins.
pub(crate) fn shim() -> PathBuf {
    let mut here = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    here.find_map(|up| Some(up.join("codegen/cuda/tests/emulation")).filter(|shim| shim.exists())).unwrap()
}

/// The shared library of a unit; the one of an earlier call or run for the same text.
fn compile(unit: &str) -> PathBuf {
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one = COMPILER.lock().unwrap();
    let shim = shim();
    let mut hash = blake3::Hasher::new();
    hash.update(unit.as_bytes()).update(&std::fs::read(shim.join("shim.h")).unwrap());
    hash.update(FLAGS.concat().as_bytes());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}.so", hash.finalize().to_hex()));
    if !path.exists() {
        let (source, beside) = (path.with_extension("cpp"), path.with_extension("new"));
        std::fs::write(&source, unit).unwrap();
        let mut command = Command::new("g++");
        command.args(FLAGS).arg("-I").arg(&shim).arg("-o").args([&beside, &source]);
        assert!(command.status().unwrap().success(), "g++ refuses {}", source.display());
        std::fs::rename(beside, &path).unwrap();
    }
    path
}
