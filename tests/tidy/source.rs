//! Names and constructs that source code may not hold.

use crate::repo::{after_word, code, has_word, is_library, none, read, rust_files};

/// The only files with `unsafe`, each with the reason.
const UNSAFE: &[(&str, &str)] = &[
    ("codegen/support/src/map.rs", "maps files instead of copying them"),
    ("frontend/python/src/memory.rs", "Python hands over addresses"),
    ("ir/kernels/src/matmul.rs", "the gemm crate takes raw pointers"),
    ("ir/kernels/tests/allocation.rs", "counts allocations with a global allocator"),
    ("passes/planner/tests/allocation.rs", "counts allocations with a global allocator"),
    ("runtime/gpu/src/api.rs", "the driver is a C library"),
    ("runtime/gpu/src/blas.rs", "cuBLASLt is a C library"),
    ("runtime/gpu/src/cuda.rs", "the driver is a C library; the arenas are raw memory"),
    ("runtime/gpu/src/cuda/graph.rs", "the driver is a C library"),
    ("runtime/gpu/src/cuda/modules.rs", "the driver is a C library"),
    ("runtime/gpu/src/devices.rs", "the driver is a C library"),
    ("runtime/gpu/src/meter.rs", "the driver is a C library"),
    ("runtime/gpu/src/dnn.rs", "cuDNN is a C library"),
    ("runtime/gpu/src/dnn/functions.rs", "cuDNN is a C library"),
    ("runtime/gpu/src/dnn/handles.rs", "cuDNN is a C library"),
    ("runtime/gpu/src/host.rs", "memory that the driver and the host share is raw"),
    ("runtime/gpu/src/library.rs", "frees what the libraries made"),
    ("runtime/gpu/src/locate.rs", "opens libraries and asks them for their versions"),
    ("runtime/gpu/src/nvrtc.rs", "the compiler is a C library"),
    ("runtime/src/cpu/arena.rs", "one allocation of an exact size, shared by the stream threads"),
    ("runtime/tests/run/arena.rs", "queues share memory"),
    ("runtime/tests/run/mock.rs", "queues share memory"),
    ("runtime/tests/run/mock/program.rs", "kernels are called by name"),
    ("runtime/tests/allocation.rs", "counts allocations with a global allocator"),
    ("tests/fuzz/src/limit.rs", "limits allocations with a global allocator"),
];

/// Folders whose code decides what a plan is: same input, seed and flags, byte-identical plan.
const COMPILE: &[&str] = &[
    "ir/src/",
    "ir/kernels/src/",
    "frontend/src/",
    "passes/src/",
    "passes/baselines/src/",
    "passes/alloc/src/",
    "passes/planner/src/",
    "codegen/lower/src/",
    "codegen/plan/src/",
    "codegen/check/src/",
    "codegen/cuda/src/",
];

/// Names that bring the machine, the moment or the hasher into a plan.
const VARYING: &[&str] = &[
    "HashMap",
    "HashSet",
    "DefaultHasher",
    "RandomState",
    "Instant",
    "SystemTime",
    "ThreadId",
    "available_parallelism",
    "current_num_threads",
    "current_thread_index",
    "std::env",
    "option_env",
];

/// Macros that are for a program under construction, and printing, which is for the two command lines.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];
const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln"];

/// `path:line: text` for every line of code in `path` that `bad` finds fault with.
fn lines_of_code(path: &str, bad: impl Fn(&str) -> bool) -> Vec<String> {
    let code = code(&read(path));
    let found = code.lines().enumerate().filter(|(_, line)| bad(line));
    found.map(|(i, line)| format!("{path}:{}: {}", i + 1, line.trim())).collect()
}

fn calls(line: &str, macros: &[&str]) -> bool {
    macros.iter().any(|m| after_word(line, m).iter().any(|rest| rest.starts_with('!')))
}

#[test]
fn unsafe_code_is_where_it_must_be() {
    let mut wrong = Vec::new();
    for path in rust_files() {
        let found = lines_of_code(&path, |line| has_word(line, "unsafe"));
        let allowed = UNSAFE.iter().any(|(file, _)| *file == path);
        if !allowed {
            wrong.extend(found);
        } else if found.is_empty() {
            wrong.push(format!("{path}: has no unsafe code and no longer needs its exception"));
        }
    }
    let listed = UNSAFE.iter().filter(|(file, _)| read(file).is_empty());
    wrong.extend(listed.map(|(file, _)| format!("{file}: listed, but not there")));
    none("unsafe code outside the listed files", &wrong);
}

#[test]
fn unsafe_code_says_why_it_is_sound() {
    let mut wrong = Vec::new();
    for (path, _) in UNSAFE {
        let text = read(path);
        let written: Vec<&str> = text.lines().collect();
        for (i, line) in code(&text).lines().enumerate() {
            let claims = after_word(line, "unsafe").iter().any(|rest| !rest.trim_start().starts_with("fn "));
            let reasons = written[i.saturating_sub(6)..=i].iter().any(|line| line.contains("// SAFETY: "));
            if claims && !reasons {
                wrong.push(format!("{path}:{}: no `// SAFETY:` above", i + 1));
            }
        }
    }
    none("unsafe code without its reason", &wrong);
}

#[test]
fn nothing_is_unfinished() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
    let mut wrong = Vec::new();
    for path in rust_files() {
        wrong.extend(lines_of_code(&path, |line| calls(line, UNFINISHED)));
        let text = read(&path);
        let marked = text.lines().enumerate().filter(|(_, line)| marks.iter().any(|m| has_word(line, m)));
        wrong.extend(marked.map(|(i, line)| format!("{path}:{}: {}", i + 1, line.trim())));
    }
    none("unfinished code", &wrong);
}

#[test]
fn tests_are_not_skipped() {
    let mut wrong = Vec::new();
    for path in rust_files() {
        wrong.extend(lines_of_code(&path, |line| line.trim_start().starts_with("#[ignore")));
    }
    none("a test that nobody runs", &wrong);
}

#[test]
fn libraries_do_not_print() {
    let mut wrong = Vec::new();
    for path in rust_files().iter().filter(|f| is_library(f)) {
        wrong.extend(lines_of_code(path, |line| calls(line, PRINTING)));
    }
    none("a library prints", &wrong);
}

#[test]
fn libraries_expect_only_invariants() {
    // A call whose result is handed on with `?` is a parser's own `expect`, which does not panic.
    let panics = |rest: &str| !rest.starts_with("invariant: ") && !rest.contains("\")?");
    let mut wrong = Vec::new();
    for path in rust_files().iter().filter(|f| is_library(f)) {
        let text = read(path);
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (i, line) in product.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
        {
            if line.split(".expect(\"").skip(1).any(panics) {
                wrong.push(format!("{path}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    none("an `expect` that does not name the invariant it relies on", &wrong);
}

#[test]
fn plans_depend_on_nothing_but_the_input() {
    let mut wrong = Vec::new();
    let compiles = |f: &String| COMPILE.iter().any(|folder| f.starts_with(folder));
    let sources: Vec<String> = rust_files().into_iter().filter(compiles).collect();
    for folder in COMPILE {
        assert!(sources.iter().any(|f| f.starts_with(folder)), "{folder} has moved");
    }
    for path in sources {
        wrong.extend(lines_of_code(&path, |line| VARYING.iter().any(|name| has_word(line, name))));
    }
    none("the clock, the environment, the threads or a hash map in a compile crate", &wrong);
}

#[test]
fn onnx_messages_stay_in_one_file() {
    const HOME: &str = "frontend/src/proto.rs";
    let names = |line: &str| {
        let of_crate = after_word(line, "protobuf").iter().any(|rest| rest.starts_with("::"));
        has_word(line, "onnx_protobuf") || of_crate
    };
    assert!(!lines_of_code(HOME, names).is_empty(), "{HOME} no longer decodes ONNX");
    let mut wrong = Vec::new();
    for path in rust_files().iter().filter(|f| *f != HOME && !f.starts_with("frontend/tests/")) {
        wrong.extend(lines_of_code(path, names));
    }
    none("a generated ONNX type outside its file", &wrong);
}
