//! Random small training steps.

use memc_ir::attr::F32;
use memc_ir::{DType, Feed, Init, Module, OutputRole, Role, TensorType, Turn, ValueId, parse_op};

use crate::random::Random;

const ELEMENTS: u64 = 32;
const UNARY: [&str; 7] = ["exp", "tanh", "relu", "sigmoid", "abs", "neg", "sign"];
const BINARY: [&str; 6] = ["add", "sub", "mul", "max", "relu_grad", "tanh_grad"];

fn vector() -> TensorType {
    TensorType::new(DType::F32, [ELEMENTS])
}

fn op(m: &mut Module, mnemonic: &str, attrs: &str, operands: &[ValueId], name: &str) -> Vec<ValueId> {
    let kind = parse_op(mnemonic, attrs).expect("an op of the table");
    m.add_op(kind, operands, &[name], "").expect("operands of the right types")
}

/// A step with parameters, a frozen tensor, a constant, long-lived values, views, results in groups, and a
/// buffer that takes over a value of the step.
pub(crate) fn random_step(random: &mut Random) -> Module {
    let mut m = Module::new("random");
    let data = |source: &str| Feed::Data { source: source.into(), micro: 0, range: None };
    let x = m.add_input("x", vector(), data("x"));
    let lr = m.add_input(
        "lr",
        TensorType::scalar(DType::F32),
        Feed::LearningRate { default: F32(0.5), turn: Turn::default() },
    );
    let step = m.add_input("step", TensorType::scalar(DType::I64), Feed::Step { turn: Turn::default() });
    let params: Vec<_> = (0..1 + random.below(3))
        .map(|i| {
            let init = if i == 0 { Init::Ones } else { Init::symmetric(i as u64, 0.25) };
            m.add_state(&format!("w{i}"), vector(), Role::Param, init)
        })
        .collect();
    let frozen = m.add_state("frozen", vector(), Role::Frozen, Init::Zeros);
    let buffer = m.add_state("buffer", vector(), Role::Buffer, Init::Zeros);
    let payload: Vec<u8> = (0..4 * ELEMENTS).map(|i| i as u8).collect();
    let constant = m.add_const("c", vector(), payload);

    let filter = TensorType::new(DType::F32, [2, 2, 3, 3]);
    let filter = m.add_state("filter", filter, Role::Frozen, Init::symmetric(9, 0.5));
    let filter = m.states[filter].value;
    let scale = m.add_const("scale", TensorType::new(DType::F32, [8]), vec![0u8; 32]);

    let mut pool = vec![x, constant, m.states[frozen].value, m.states[buffer].value];
    pool.extend(params.iter().map(|&s| m.states[s].value));
    for i in 0..6 + random.below(8) {
        let name = format!("v{i}");
        let recent = pool[pool.len() - 1 - random.below(pool.len().min(3))];
        let any = random.choose(&pool);
        let result = match random.below(10) {
            0..=2 => op(&mut m, random.choose(&UNARY), "", &[recent], &name),
            3 => {
                let attrs = if random.one_in(2) { "{tanh}" } else { "" };
                op(&mut m, "gelu", attrs, &[recent], &name)
            }
            4 => {
                let matrix = op(&mut m, "reshape", "{shape = [4, 8]}", &[recent], "view");
                let soft = op(&mut m, "softmax", "{axis = 1}", &matrix, &name);
                op(&mut m, "reshape", "{shape = [32]}", &soft, "flat")
            }
            5 => {
                let image = op(&mut m, "reshape", "{shape = [1, 2, 4, 4]}", &[recent], "view");
                let attrs = "{strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1]}";
                let mapped = op(&mut m, "conv", attrs, &[image[0], filter], &name);
                op(&mut m, "reshape", "{shape = [32]}", &mapped, "flat")
            }
            6 => {
                let matrix = op(&mut m, "reshape", "{shape = [4, 8]}", &[recent], "view");
                let attrs = "{axis = 1, epsilon = 0.001}";
                let normal = op(&mut m, "layer_norm", attrs, &[matrix[0], scale], &name);
                op(&mut m, "reshape", "{shape = [32]}", &normal[..1], "flat")
            }
            _ => op(&mut m, random.choose(&BINARY), "", &[recent, any], &name),
        };
        pool.push(result[0]);
    }
    let last = pool[pool.len() - 1];
    let loss = op(&mut m, "sum_squares", "", &[last], "loss")[0];
    m.outputs.push(memc_ir::Output { value: loss, name: "loss".into(), role: OutputRole::Loss });
    if random.one_in(2) {
        let value = pool[pool.len() - 1 - random.below(3)];
        m.outputs.push(memc_ir::Output { value, name: "y".into(), role: OutputRole::Other });
    }
    for (i, &param) in params.iter().enumerate() {
        let w = m.states[param].value;
        let (a, b) = (random.choose(&pool), pool[pool.len() - 1 - random.below(4)]);
        let g = op(&mut m, random.choose(&BINARY), "", &[a, b], &format!("g{i}"))[0];
        if random.one_in(2) {
            let new = op(&mut m, "sgd", "", &[w, g, lr], &format!("w{i}_new"));
            m.states[param].next = Some(new[0]);
        } else {
            let names = [format!("m{i}"), format!("v{i}_")];
            let moments = names.map(|name| m.add_state(&name, vector(), Role::Optimizer, Init::Zeros));
            let (first, second) = (m.states[moments[0]].value, m.states[moments[1]].value);
            let attrs = "{alpha = 0.9, beta = 0.999, epsilon = 0.001, weight_decay = 0.01}";
            let new = op(&mut m, "adamw", attrs, &[w, g, first, second, lr, step], "new");
            m.states[param].next = Some(new[0]);
            m.states[moments[0]].next = Some(new[1]);
            m.states[moments[1]].next = Some(new[2]);
        }
    }
    if random.one_in(2) {
        let fresh: Vec<ValueId> = pool.into_iter().filter(|&v| m.def_op(v).is_some()).collect();
        m.states[buffer].next = Some(random.choose(&fresh));
    }
    m
}
