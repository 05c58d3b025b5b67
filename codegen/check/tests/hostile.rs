//! Plans that no compiler would make: the checker answers, whatever they are.

use std::fmt::Write;

use arbtest::arbitrary::{Result, Unstructured};
use memc_check::{MAX_ERRORS, check};
use memc_ir::{Module, parse_op, parse_type};
use memc_plan::{Action, Command, Init, Plan, Queue, Section, Slice, Space};

const NUMBERS: [u64; 12] = [0, 1, 4, 63, 64, 128, 448, 512, 1 << 40, u64::MAX - 64, u64::MAX - 1, u64::MAX];
const TYPES: [&str; 3] = ["f32[16]", "f32[9223372036854775807,2]", "f32[281474976710656]"];
const OPS: [(&str, &str); 8] = [
    ("relu", ""),
    ("softmax", "{axis = 1}"),
    ("concat", "{axis = 1}"),
    ("reshape", "{shape = [281474976710656]}"),
    ("conv", "{strides = [0, 1], pads = [1, 1, 1, 1], dilations = [1, 1]}"),
    ("adamw", "{alpha = 0.9, beta = 0.999, epsilon = 0.001, weight_decay = 0.01}"),
    ("fused", "{body = \"neg(x0); add(t0, x1)\", outs = [1]}"),
    ("fused", "{body = \"neg(t0)\", outs = [7]}"),
];

fn accepted() -> (Module, Plan) {
    let text = include_str!("../../../tests/golden/check/accept-swap.mir");
    let input = text.lines().filter(|line| !line.starts_with(';')).fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    });
    let (module, plan) = input.split_once("---\n").expect("a module and a plan");
    let source = memc_ir::parse(module).expect("the module parses");
    let mut plan = memc_plan::text::parse(plan).expect("the plan parses");
    plan.meta.set_source(memc_ir::print(&source));
    (source, plan)
}

fn number(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(*u.choose(&NUMBERS)?)
}

fn index(u: &mut Unstructured<'_>) -> Result<u32> {
    Ok(*u.choose(&[0, 1, 2, 6, 7, 100, u32::MAX])?)
}

fn slice(u: &mut Unstructured<'_>) -> Result<Slice> {
    let space = if u.arbitrary()? { Space::Dev } else { Space::Host };
    Ok(Slice { space, offset: number(u)?, bytes: number(u)? })
}

fn slices(u: &mut Unstructured<'_>) -> Result<Vec<Slice>> {
    (0..u.int_in_range(0..=3)?).map(|_| slice(u)).collect()
}

fn action(u: &mut Unstructured<'_>) -> Result<Action> {
    Ok(match u.int_in_range(0..=8)? {
        0 => Action::Launch {
            kernel: index(u)?,
            reads: slices(u)?,
            writes: slices(u)?,
            workspace: if u.arbitrary()? { Some(slice(u)?) } else { None },
        },
        1 => Action::Copy { src: slice(u)?, dst: slice(u)? },
        2 => Action::Record { event: index(u)? },
        3 => Action::Wait { event: index(u)? },
        4 => Action::Free { slice: slice(u)? },
        5 => Action::Load { state: index(u)? },
        6 => Action::Store { state: index(u)? },
        7 => Action::HostWrite { input: index(u)? },
        _ => Action::HostRead { output: index(u)? },
    })
}

/// Changes one thing of the plan.
fn disturb(plan: &mut Plan, u: &mut Unstructured<'_>) -> Result<()> {
    let section = *u.choose(&Section::ALL)?;
    match u.int_in_range(0..=9)? {
        0..=3 => {
            let command =
                Command { queue: *u.choose(&Queue::ALL)?, action: action(u)?, label: "é".repeat(100) };
            let list = plan.section_mut(section);
            let at = u.int_in_range(0..=list.len())?;
            list.insert(at, command);
        }
        4 => {
            let list = plan.section_mut(section);
            if !list.is_empty() {
                let at = u.int_in_range(0..=list.len() - 1)?;
                list.remove(at);
            }
        }
        5 => {
            let ty = parse_type(u.choose(&TYPES)?).expect("a type");
            let (op, attrs) = *u.choose(&OPS)?;
            let choice = u.int_in_range(0..=3)?;
            if let Some(kernel) = plan.kernels.get_mut(u.int_in_range(0..=4)?) {
                match choice {
                    0 | 1 => kernel.op = parse_op(op, attrs).expect("an op of the table"),
                    2 => kernel.operands.resize(u.int_in_range(0..=9000)?, ty),
                    _ => kernel.results.push(ty),
                }
            }
        }
        6 => {
            let resident = slice(u)?;
            if let Some(state) = plan.states.first_mut() {
                state.resident = resident;
                state.init = Init::Random { seed: 0, kind: String::new() };
            }
        }
        7 => {
            let state = plan.states.first().cloned();
            plan.states.extend(state);
            plan.inputs.pop();
        }
        8 => {
            plan.outputs.pop();
            plan.events = index(u)?;
        }
        _ => {
            plan.meta.dev_bytes = number(u)?;
            plan.meta.host_bytes = number(u)?;
            plan.meta.reserve_bytes = number(u)?;
        }
    }
    Ok(())
}

#[test]
fn any_plan_gets_an_answer_and_the_same_one_twice() {
    let (source, plan) = accepted();
    assert!(check(&source, &plan).is_ok());
    arbtest::arbtest(|u| {
        let mut plan = plan.clone();
        for _ in 0..u.int_in_range(1..=12)? {
            disturb(&mut plan, u)?;
        }
        let first = check(&source, &plan);
        if let Err(errors) = &first {
            assert!((1..=MAX_ERRORS).contains(&errors.0.len()));
            assert!(errors.to_string().starts_with('C'));
        }
        assert_eq!(first, check(&source, &plan));
        Ok(())
    });
}

#[test]
fn a_plan_for_an_invalid_source_is_refused() {
    let (mut source, plan) = accepted();
    source.order.reverse();
    let errors = check(&source, &plan).expect_err("operands are used before they are defined");
    assert!(errors.to_string().contains("invalid at"), "{errors}");
}

#[test]
fn a_chain_of_ten_thousand_launches_is_accepted() {
    const N: usize = 10_000;
    let mut module = "module @chain graph\n%x = input : f32[16]\n%v0 = exp %x : f32[16]\n".to_owned();
    let mut plan = format!(
        "plan 1\nbudget 128 reserve 0\narena dev 128 host 128\nclaim peak_bytes 128\nclaim ops {N}\n\
         kernel k0 = exp(f32[16]) -> (f32[16])\ninput i0 x f32[16] host+0:64 data x micro 0 range 0..0\n\
         output o0 y f32[16] host+64:64 output\nevents 2\nbody {{\n  host write i0\n\
         h2d copy host+0:64 -> dev+64:64\n h2d record e0\n compute wait e0\n\
         compute launch k0 r dev+64:64 w dev+0:64\n"
    );
    for i in 1..N {
        let (from, to) = ((i + 1) % 2 * 64, i % 2 * 64);
        let _ = writeln!(module, "%v{i} = exp %v{} : f32[16]", i - 1);
        let _ = writeln!(plan, "compute launch k0 r dev+{from}:64 w dev+{to}:64");
    }
    let _ = writeln!(module, "yield output %v{} as \"y\"", N - 1);
    let last = (N - 1) % 2 * 64;
    let _ = writeln!(
        plan,
        "compute record e1\nd2h wait e1\nd2h copy dev+{last}:64 -> host+64:64\nd2h record e0\n\
         host wait e0\nhost read o0\n}}"
    );
    let source = memc_ir::parse(&module).expect("the module parses");
    let mut plan = memc_plan::text::parse(&plan).expect("the plan parses");
    plan.meta.set_source(memc_ir::print(&source));
    let report = check(&source, &plan).expect("the chain is right");
    assert_eq!(report.counted.ops, N as u64);
}
