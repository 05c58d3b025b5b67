//! Matrix products and convolutions by libraries, through the command line, on fakes that keep to the
//! libraries' conventions.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write;

use memc_ir::{DType, TensorType, aligned};

mod cases;

use cases::{Case, FLOATS, bias_grad, bias_grads, convolutions, epilogues, fused, gemm, matmul, products};

use crate::fake::{Fake, PARTS};
use crate::{CLASSIFIER, plain, steps};

/// Bytes of workspace that a kernel lists: what the CPU's takes, and more.
fn listed((op, operands): &Case, more: u64) -> u64 {
    let types: Vec<&TensorType> = operands.iter().collect();
    let results = op.infer(&types).unwrap();
    op.cost(&types, &results.iter().collect::<Vec<_>>()).workspace.max(more)
}

/// A plan that runs the cases once a step, each on random operands, with so much workspace; operands and
/// results are states.
pub(crate) fn plan<'a>(cases: impl IntoIterator<Item = (&'a Case, u64)>) -> String {
    let (mut kernels, mut states, mut loads) = (String::new(), String::new(), String::new());
    let (mut launches, mut stores) = (String::new(), String::new());
    let (mut end, mut count) = (0, 0);
    let mut slot = |bytes: u64| {
        let start = end;
        end += aligned(bytes);
        format!("dev+{start}:{bytes}")
    };
    let mut state = |name: String, ty: &TensorType, init: &str, at: &str| {
        writeln!(states, "state s{count} {name} param {ty} {at} {init}").unwrap();
        writeln!(loads, "  host load s{count}").unwrap();
        writeln!(stores, "  host store s{count}").unwrap();
        count += 1;
    };
    for (k, (case, bytes)) in cases.into_iter().enumerate() {
        let (op, operands) = case;
        let made = op.infer(&operands.iter().collect::<Vec<_>>()).unwrap();
        let text =
            |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (name, attrs, workspace) = (op.mnemonic(), op.attrs_text(), listed(case, bytes));
        let (from, to) = (text(operands), text(&made));
        writeln!(kernels, "kernel k{k} = {name}({from}) {attrs:?} -> ({to}) workspace {workspace}").unwrap();
        write!(launches, "  compute launch k{k}").unwrap();
        for (i, ty) in operands.iter().enumerate() {
            let at = slot(ty.bytes());
            // Operands of the same types are the same, so that the same kernels must give the same bits.
            state(format!("k{k}_{i}"), ty, &format!("random {i} normal:0.0:1.0"), &at);
            write!(launches, " r {at}").unwrap();
        }
        for (j, ty) in made.iter().enumerate() {
            let at = slot(ty.bytes());
            state(format!("r{k}_{j}"), ty, "zeros", &at);
            write!(launches, " w {at}").unwrap();
        }
        if workspace > 0 {
            // Not at a boundary of 256 bytes.
            let _gap = slot(64);
            write!(launches, " ws {}", slot(workspace)).unwrap();
        }
        launches.push('\n');
    }
    let end = aligned(end);
    format!(
        "plan 1\nproducer hand\nmodel calls\nbudget {} reserve 0\narena dev {end} host \
         0\n{kernels}{states}events 1\n\
         prologue {{\n{loads}  compute record e0\n}}\nbody {{\n{launches}  compute record e0\n}}\n\
         epilogue {{\n  host wait e0\n{stores}}}\n",
        end + (64 << 20)
    )
}

/// Results by kernel.
pub(crate) type Results = Vec<(DType, Vec<f32>)>;

pub(crate) fn results(file: &[u8]) -> Results {
    let tensors = safetensors::SafeTensors::deserialize(file).unwrap();
    let result = |k: usize, j: usize| tensors.tensor(&format!("r{k}_{j}")).ok();
    let dtype = |ty: safetensors::Dtype| match ty {
        safetensors::Dtype::F32 => DType::F32,
        safetensors::Dtype::F16 => DType::F16,
        _ => DType::BF16,
    };
    let kernel = |k: usize| {
        let views: Vec<_> = (0..).map_while(|j| result(k, j)).collect();
        let dtype = dtype(views.first()?.dtype());
        Some((dtype, views.iter().flat_map(|view| plain::read(dtype, view.data())).collect()))
    };
    (0..).map_while(kernel).collect()
}

/// Results on the fakes, what was called, and what was said.
pub(crate) fn run(fake: &Fake, options: &str, failure: &str) -> (Results, Vec<String>, String) {
    let log = fake.folder.path("calls.log");
    drop(std::fs::remove_file(&log));
    let arguments = format!("model.plan --device cuda --save out.safetensors {options}");
    let output = fake.memrun(&arguments, failure);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{options} {failure}: {said}");
    assert!(said.lines().all(|line| line.starts_with("memrun: note: ")), "{said}");
    let calls = std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect();
    (results(&std::fs::read(fake.folder.path("out.safetensors")).unwrap()), calls, said)
}

pub(crate) fn assert_close(cases: &[Case], got: &Results, want: &Results) {
    assert_eq!((got.len(), want.len()), (cases.len(), cases.len()));
    for ((case, (dtype, got)), (_, want)) in cases.iter().zip(got).zip(want) {
        let limit = match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            _ => 1.6e-2,
        };
        let is_close = |a: f32, b: f32| (a - b).abs() <= limit * (1.0 + b.abs());
        let far = got.iter().zip(want).find(|(a, b)| !is_close(**a, **b));
        assert!(far.is_none() && got.len() == want.len(), "{case:?}: {far:?}");
    }
}

/// Every form of a product and of a convolution gives the CPU's numbers, and is a library's wherever it can
/// be. Poisoned memory and replaying the step as a graph change no bit.
#[test]
fn library_calls_give_the_numbers_of_the_cpu() {
    let mut cases: Vec<Case> =
        FLOATS.into_iter().flat_map(|t| [products(t), convolutions(t), bias_grads(t)].concat()).collect();
    cases.extend(epilogues());
    cases.extend(larger_pointwise_cases());
    let with_room = |case: &Case| memc_cuda::allowance(&case.0, &case.1);
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, with_room(case))))) else { return };
    let want = results(&fake.folder.run_and_save(&steps(1)).1);
    let (got, calls, said) = run(&fake, "--no-graph", "");
    assert!(said.lines().all(|line| line.contains("does not compute")), "{said}");
    assert_close(&cases, &got, &want);
    let (again, _, _) = run(&fake, "--check-memory --steps 4", "");
    assert!(got == again);
    let call = |(op, operands): &&Case| !memc_cuda::forms(op, operands).is_empty();
    let taken = cases.iter().filter(call).count();
    // Of each type the fakes refuse two products of 13 columns, and three or four convolutions dilated by 3.
    assert_eq!(calls.len(), taken - 6 - 4 - 3 - 3, "{calls:#?}");
    let epilogues =
        ["epilogue=2", "epilogue=6", "epilogue=32", "epilogue=36", "epilogue=160", "epilogue=164"];
    let more = ["epilogue=192", "epilogue=256", "epilogue=512", "BiasActivation"];
    for what in epilogues.into_iter().chain(more) {
        assert!(calls.iter().any(|call| call.contains(what)), "{what}: {calls:#?}");
    }
    for (what, count) in [("batch=6", 1), ("batch=3", 1), ("groups=2", 1), ("groups=4", 1), ("scheme=2", 1)] {
        assert!(calls.iter().filter(|call| call.contains(what)).count() >= count, "{what}: {calls:#?}");
    }
}

/// Where a library does not sum an operand with its product, the product is its call all the same, and the
/// sum alone is generated, with the bits that it has without libraries.
#[test]
fn a_sum_that_a_library_refuses_leaves_it_the_product() {
    let cases: Vec<Case> = FLOATS.into_iter().flat_map(bias_grads).collect();
    let with_room = |case: &Case| memc_cuda::allowance(&case.0, &case.1);
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, with_room(case))))) else { return };
    let want = results(&fake.folder.run_and_save(&steps(1)).1);
    let (generated, ..) = run(&fake, "--no-libraries", "");
    let (joined, calls, _) = run(&fake, "--no-graph", "");
    let (apart, alone, _) = run(&fake, "--no-graph", "no sums");
    let sums = |calls: &[String]| calls.iter().filter(|c| c.contains("=256") || c.contains("=512")).count();
    assert_eq!((sums(&calls), sums(&alone)), (3 * 4, 0), "{calls:#?}");
    assert_eq!((calls.len(), alone.len()), (3 * 8, 3 * 8), "all but those of 13 columns: {alone:#?}");
    for got in [&generated, &joined, &apart] {
        assert_close(&cases, got, &want);
    }
    for (((op, operands), (_, generated)), (_, apart)) in cases.iter().zip(&generated).zip(&apart) {
        let y = op.infer(&operands.iter().collect::<Vec<_>>()).unwrap()[0].numel() as usize;
        assert!(generated[y..] == apart[y..] && generated.len() > y, "{op:?}");
    }
}

/// A product with the sum of an operand, which a library computes as a whole.
pub(crate) fn bias_grad_case() -> Case {
    bias_grad(DType::F32, &[7, 5], &[7, 6], "trans_a")
}

/// A convolution by one element and its gradients, and the gradient of the input of one that leaves out every
/// other row and column.
pub(crate) fn pointwise_cases() -> Vec<Case> {
    let is_pointwise = |(op, types): &Case| {
        let window = match op {
            memc_ir::OpKind::ConvGradWeight { kernel, .. } => kernel.as_slice(),
            _ => types.get(1).and_then(|w| w.shape.get(2..)).unwrap_or_default(),
        };
        window == [1, 1] && memc_cuda::forms(op, types).len() > 1
    };
    convolutions(DType::F32).into_iter().filter(is_pointwise).collect()
}

/// Gradients by one element: of so many images that they are added up in two steps, and of a window that
/// moves further across than down.
fn larger_pointwise_cases() -> [Case; 2] {
    let case = |name: &str, attrs: &str, shapes: [[u64; 4]; 2]| {
        let operands = shapes.map(|shape| TensorType::new(DType::F32, shape));
        (memc_ir::parse_op(name, attrs).unwrap(), operands.to_vec())
    };
    let window = "pads = [0, 0, 0, 0], dilations = [1, 1], groups = 1";
    let weight = format!("{{strides = [1, 1], {window}, kernel = [1, 1]}}");
    let input = format!("{{strides = [2, 3], {window}, size = [10, 8]}}");
    [
        case("conv_grad_weight", &weight, [[600, 3, 2, 2], [600, 4, 2, 2]]),
        case("conv_grad_input", &input, [[2, 5, 5, 3], [5, 4, 1, 1]]),
    ]
}

/// A few kernels that libraries take.
pub(crate) fn few() -> Vec<Case> {
    let mut cases = convolutions(DType::F32);
    cases.truncate(6);
    cases.insert(0, matmul(DType::F32, &[3, 5, 7], &[3, 6, 7], [false, true]));
    cases.push(gemm(DType::F32, &[6], 1.0));
    cases.push(fused("gemm(x0, x1, x2); gelu(t0) {tanh}", "[0, 1]", &[&[5, 7], &[7, 8], &[8]]));
    let conv =
        "conv(x0, x1, x2) {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], groups = 1}; relu(t0)";
    cases.push(fused(conv, "[1]", &[&[2, 3, 6, 6], &[8, 3, 3, 3], &[8]]));
    // The second one as a product, and a sum behind it.
    cases.extend([6, 11].map(|n| bias_grad(DType::F32, &[7, 5], &[7, n], "trans_a")));
    cases
}

/// The algorithm depends on the least workspace of all launches of a kernel: with the same operands they give
/// the same bits. Algorithms that take more, or that have no order, or that round, are not taken, unless they
/// are asked for.
#[test]
fn ways_fit_the_workspace_and_the_options() {
    let cases = few();
    let room = |case: &Case| memc_cuda::allowance(&case.0, &case.1);
    let algorithms = |calls: &[String], name: &str| -> Vec<String> {
        let named =
            calls.iter().filter_map(|call| call.strip_prefix(name)).map(|rest| rest.trim().to_owned());
        named.collect()
    };
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, room(case))))) else { return };
    let (_, calls, _) = run(&fake, "", "");
    let matmuls = algorithms(&calls, "cublasLtMatmul");
    assert!(matmuls[0].starts_with("scheme=2 compute=68 workspace=7"), "{matmuls:?}");
    assert!(algorithms(&calls, "cudnnConvolutionForward")[0].starts_with("algorithm=7 math=3"), "{calls:#?}");
    // The transforms of f32 would be rounded in 16 bits.
    let narrow = convolutions(DType::F16);
    let fake16 = Fake::new(&plan(narrow.iter().map(|case| (case, room(case))))).unwrap();
    let (_, calls, _) = run(&fake16, "", "");
    let precise = |call: &String| {
        !call.contains("algorithm=7") && !call.contains("algorithm=5") && !call.contains("math=2")
    };
    assert!(calls.iter().all(precise), "{calls:#?}");
    let (_, calls, _) = run(&fake, "--tf32", "");
    assert!(algorithms(&calls, "cublasLtMatmul")[0].starts_with("scheme=2 compute=77"), "{calls:#?}");
    assert!(calls.iter().any(|call| call.contains("math=0")), "{calls:#?}");
    let (_, calls, _) = run(&fake, "--bf16", "");
    assert!(algorithms(&calls, "cublasLtMatmul")[0].starts_with("scheme=2 compute=75"), "{calls:#?}");
    assert!(!calls.iter().any(|call| call.contains("math=0")), "{calls:#?}");
    let (_, calls, _) = run(&fake, "--allow-nondeterminism", "");
    assert!(algorithms(&calls, "cublasLtMatmul")[0].starts_with("scheme=4"), "{calls:#?}");

    // Twice, of which only one has room beyond what the CPU's kernels list.
    for is_last in [false, true] {
        let bytes = |case: &Case, has_room: bool| if has_room { room(case) } else { 0 };
        let twice =
            [!is_last, is_last].into_iter().flat_map(|has_room| cases.iter().map(move |c| (c, has_room)));
        let fake = Fake::new(&plan(twice.map(|(case, has_room)| (case, bytes(case, has_room))))).unwrap();
        let (got, calls, _) = run(&fake, "", "");
        let (first, second) = got.split_at(cases.len());
        assert!(first == second);
        let matmuls = algorithms(&calls, "cublasLtMatmul");
        assert!(
            matmuls.iter().all(|algorithm| algorithm.starts_with("scheme=0 compute=68 workspace=0")),
            "{matmuls:?}"
        );
    }
}

/// The gradient of a weight has one algorithm that keeps an order, and it takes workspace; without, a kernel
/// is generated.
#[test]
fn no_way_without_order_is_taken_for_lack_of_workspace() {
    let mut cases = convolutions(DType::F32);
    let pointwise = cases.swap_remove(4 * 4 + 3);
    assert!(listed(&pointwise, 0) <= 192, "no more than aligning takes");
    let Some(fake) = Fake::new(&plan([(&pointwise, 0)])) else { return };
    assert_eq!(run(&fake, "", "").1.len(), 0);
    let (_, calls, _) = run(&fake, "--allow-nondeterminism", "");
    assert!(calls[0].contains("BackwardFilter algorithm=0"), "{calls:?}");
}

/// Without a library, with one that is too old, with one that takes nothing, or where none is wanted, the
/// plan runs as generated kernels; what is missing is told once.
#[test]
fn what_is_missing_is_told_once() {
    let cases = few();
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, 4096)))) else { return };
    let want = results(&fake.folder.run_and_save(&steps(1)).1);
    let check = |failure: &str, notes: &[&str]| {
        let (got, calls, said) = run(&fake, "", failure);
        assert_close(&cases, &got, &want);
        assert_eq!((calls.len(), said.lines().count()), (0, notes.len()), "{said}");
        for note in notes {
            assert!(said.contains(note), "{said} lacks {note}");
        }
    };
    check(
        "unsupported",
        &[
            "cuBLASLt does not compute 5 of 5 matrix products, 5 of 5 launches a step: cublasLtMatmulAlgo",
            "cuDNN does not compute 5 of 7 convolutions, 5 of 7 launches a step: cudnnGetConvolutionForward",
            "launches a step: cudnnGetConvolutionBackwardData",
            "launches a step: cudnnGetConvolutionBackwardFilter",
        ],
    );
    let (generated, calls, said) = run(&fake, "--no-libraries", "cublasLtCreate");
    assert_eq!((calls.len(), said.as_str()), (0, ""));
    assert_close(&cases, &generated, &want);
    check(
        "old library",
        &[
            "matrix products run as generated kernels, which are slower: libcublasLt.so is of version \
             11.11.3, and 12 is needed",
            "convolutions run as generated kernels, which are slower: libcudnn.so is of version 8.9.7, and \
             9 is needed",
        ],
    );
    for name in ["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12", "libcudnn.so", "libcudnn.so.9"] {
        std::fs::write(fake.folder.path(name), "not a library").unwrap();
    }
    check("", &["libcublasLt.so was not found", "libcudnn.so was not found"]);
}

/// Functions of a fake that may fail.
fn functions(source: &str) -> Vec<&str> {
    let lines = source.match_indices("MAY_FAIL;").filter_map(|(at, _)| source.get(..at));
    let lines = lines.filter_map(|before| before.lines().rev().find(|line| line.starts_with("int cu")));
    lines.filter_map(|line| line.trim_start_matches("int ").split('(').next()).collect()
}

/// Whatever function fails as it runs, there is one message with its name and the library's words, and
/// nothing is saved. Where it is one that plans or starts, generated kernels run, as a note says.
#[test]
fn failures_of_the_libraries_are_told() {
    let cases = few();
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, 4096)))) else { return };
    let arguments = "model.plan --device cuda --save lost.safetensors";
    let runs = ["cublasLtMatmul", "cudnnConvolution", "cudnnAddTensor", "cudnnActivationForward"];
    let is_run = |name: &str| name == runs[0] || runs[1..].iter().any(|start| name.starts_with(start));
    let want = results(&fake.folder.run_and_save(&steps(1)).1);
    for (source, status) in
        [(include_str!("fake_blas.cpp"), "CUBLAS"), (include_str!("fake_dnn.cpp"), "CUDNN")]
    {
        let functions = functions(source);
        assert!(functions.len() >= 9, "{functions:?}");
        for name in functions {
            let words = format!("{status}_STATUS_EXECUTION_FAILED, as FAKE_LIBRARY asks");
            if name == "cudnnActivationForward" {
                // The way back alone takes it.
                run(&fake, "", name);
            } else if is_run(name) {
                let text = format!("{name} failed: {words}");
                fake.fails(arguments, name, 8, &[&text, "--no-libraries does without cu"]);
                assert!(!fake.folder.path("lost.safetensors").exists());
            } else {
                let (got, _, said) = run(&fake, "", name);
                assert_close(&cases, &got, &want);
                let told = said.contains(&format!("{name} says {words}"))
                    || said.contains(&format!("is there and does not start ({name} failed: {words})"));
                assert!(told, "{name}: {said}");
            }
        }
    }
}

/// Where cuDNN does not add a bias and apply ReLU with the algorithm of the plain convolution, these are
/// calls of their own, in a graph too.
#[test]
fn a_convolution_that_cannot_be_fused_is_taken_apart() {
    let cases = few();
    let room = |case: &Case| memc_cuda::allowance(&case.0, &case.1);
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, room(case))))) else { return };
    let want = results(&fake.folder.run_and_save(&steps(1)).1);
    let (got, calls, said) = run(&fake, "--steps 3", "no fusion");
    assert_close(&cases, &got, &want);
    assert!(calls.iter().any(|call| call.starts_with("cudnnActivationForward")), "{calls:#?}");
    assert!(!calls.iter().any(|call| call.contains("BiasActivation")) && said.is_empty(), "{said}");
}

/// A cuDNN without the libraries that it opens by itself would end the process. It counts as missing, and the
/// message names what is not there.
#[test]
fn a_cudnn_without_its_parts_is_missing() {
    let cases = few();
    for part in PARTS {
        let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, 4096)))) else { return };
        std::fs::remove_file(fake.folder.path(part)).unwrap();
        let (_, _, said) = run(&fake, "", "");
        assert!(said.contains("libcudnn.so was not found") && said.contains(part), "{said}");
        let listed = fake.memrun("devices", "");
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.status.success() && text.contains(&format!("{part} does not open")), "{text}");
        // In a folder that the loader does not know.
        let inner = fake.folder.path("inner");
        std::fs::create_dir(&inner).unwrap();
        for name in PARTS.into_iter().filter(|name| *name != part).chain(["libcudnn.so.9"]) {
            std::fs::rename(fake.folder.path(name), inner.join(name)).unwrap();
        }
        let listed = fake.command("devices", "").env("MEMRUN_CUDA_LIBS", &inner).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.status.success() && text.contains(&format!("{part} does not open")), "{text}");
        // A folder without it is passed over.
        let whole = Fake::new(CLASSIFIER).unwrap();
        let folders = std::env::join_paths([&inner, &whole.folder.path("")]).unwrap();
        let listed = fake.command("devices", "").env("MEMRUN_CUDA_LIBS", folders).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(text.contains("cuDNN    9.19.0"), "{text}");
    }
}

/// A cuDNN of version 8, which the loader finds by the name without a number, is too old, and none of its
/// functions is called.
#[cfg(unix)]
#[test]
fn an_older_cudnn_is_told_without_a_call() {
    let cases = few();
    let Some(fake) = Fake::new(&plan(cases.iter().map(|case| (case, 4096)))) else { return };
    std::fs::rename(fake.folder.path("libcudnn.so.9"), fake.folder.path("libcudnn.so.8")).unwrap();
    std::os::unix::fs::symlink("libcudnn.so.8", fake.folder.path("libcudnn.so")).unwrap();
    PARTS.iter().for_each(|part| std::fs::remove_file(fake.folder.path(part)).unwrap());
    let (_, _, said) = run(&fake, "", "");
    assert!(said.contains("libcudnn.so is of version 8, and 9 is needed; install"), "{said}");
}

/// The calls that a library refuses are listed with their reasons, the workspace that they ask for, and their
/// launches.
#[test]
fn refused_calls_are_listed() {
    let gradient = convolutions(DType::F32).swap_remove(4 * 4 + 3);
    let Some(fake) = Fake::new(&plan([(&gradient, 0)])) else { return };
    let output = fake.memrun("model.plan --device cuda --json", "");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let refused = &object["refused"][0];
    assert_eq!(
        (refused["op"].as_str(), refused["library"].as_str()),
        (Some("conv_grad_weight"), Some("cuDNN"))
    );
    assert!(refused["workspace_asked_bytes"].as_u64() > refused["workspace_allowed_bytes"].as_u64());
    assert_eq!((refused["launches"].as_u64(), object["refused"].as_array().unwrap().len()), (Some(1), 1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("cuDNN does not compute 1 of 1 convolutions, 1 of 1 launches a step: too little work")
            && said.contains("conv_grad_weight asks for 320 B and has 128 B"),
        "{said}"
    );
}

/// Memory that a library lacks as it runs is told as such, with what gives it some.
#[test]
fn a_library_without_memory_is_told_as_memory() {
    for (case, name) in [
        (bias_grad_case(), "cublasLtMatmul"),
        (convolutions(DType::F32).remove(1), "cudnnConvolutionForward"),
    ] {
        let room = memc_cuda::allowance(&case.0, &case.1);
        let Some(fake) = Fake::new(&plan([(&case, room)])) else { return };
        let told = format!("the GPU's memory is full ({name} failed: ");
        fake.fails("model.plan --device cuda", "full library", 5, &[&told, "smaller --gpu-mem", "reserve"]);
    }
}

/// A kernel that crashed is what is told, also where the next command is a library's.
#[test]
fn a_crash_is_told_before_a_failing_library() {
    let Some(fake) = Fake::new(CLASSIFIER) else { return };
    let run = "model.plan --device cuda --steps 9 --no-graph";
    let output = fake.command(run, "crash").env("FAKE_LIBRARY", "").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(8));
    assert!(said.contains("a kernel failed") && !said.contains("--no-libraries"), "{said}");
}

/// A planned run equals an unplanned one on the same device bit for bit, with TF32 and without libraries too.
#[test]
fn planned_and_unplanned_runs_take_the_same_ways() {
    let Some(fake) = Fake::new(CLASSIFIER) else { return };
    for options in ["", "--tf32", "--bf16", "--no-libraries"] {
        let printed = fake.succeeds(&format!("model.plan --device cuda --steps 3 --verify {options}"), "");
        assert!(printed.contains("verified=bit-identical"), "{printed}");
    }
}

/// Options for a GPU alone are refused on the CPU device.
#[test]
fn options_of_libraries_are_refused_on_the_cpu() {
    let Some(fake) = Fake::new(&plan([])) else { return };
    for option in ["--tf32", "--bf16", "--allow-nondeterminism", "--no-libraries", "--no-graph"] {
        fake.fails(&format!("model.plan {option}"), "", 2, &[option, "--device cuda"]);
    }
    fake.fails("profile model.plan -o p.json --tf32", "", 2, &["--tf32", "--device cuda"]);
    let both = fake.memrun("model.plan --device cuda --no-libraries --tf32", "");
    assert_eq!(both.status.code(), Some(2));
}
