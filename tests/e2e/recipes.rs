//! Every loss and optimizer of the command line on forward models, against ONNX Runtime's gradients and
//! PyTorch's updates (`models/recipes`), at several budgets; dropout and frozen parameters among them.

use crate::hold::{Training, hold};
use crate::support::{npz, root};

/// Largest difference of a state from the reference where no root of small moments magnifies rounding.
const STATE: f32 = 2e-6;
/// The same with Adam and Adagrad.
const ADAPTIVE: f32 = 1e-5;

/// Trains `model` with every optimizer of `models/recipes/NAME.npz`; how many there are.
fn check(name: &str, model: &str, flags: &[&str]) -> usize {
    let arrays = npz(&root().join(format!("models/recipes/{name}.npz")));
    let specs: Vec<&str> = arrays.keys().filter_map(|n| n.strip_prefix("losses/")).collect();
    for spec in &specs {
        let flags = [flags, &["--optimizer", spec]].concat();
        let (losses, finals) = (format!("losses/{spec}"), format!("final/{spec}/"));
        let ran = hold(&Training {
            model: &format!("gen/{model}.forward.onnx"),
            flags: &flags,
            init: None,
            inputs: ["input", "labels"],
            arrays: &arrays,
            losses: &losses,
            finals: &finals,
            tolerance: if spec.starts_with("ada") { ADAPTIVE } else { STATE },
            noise: &[],
        });
        assert!(ran.losses.windows(2).all(|w| w[0] != w[1]), "{name} {spec}: nothing is trained");
    }
    specs.len()
}

#[test]
fn cross_entropy() {
    assert_eq!(check("cross_entropy", "mlp_s", &["--loss", "cross-entropy"]), 12);
}

#[test]
fn mse() {
    assert_eq!(check("mse", "mlp_s", &["--loss", "mse"]), 4);
}

#[test]
fn l1() {
    assert_eq!(check("l1", "mlp_s", &["--loss", "l1"]), 4);
}

#[test]
fn bce_with_logits() {
    assert_eq!(check("bce_with_logits", "mlp_s", &["--loss", "bce-with-logits"]), 4);
}

/// Fine-tuning: the last layer is trained, running statistics move, all else stays.
#[test]
fn the_last_layer() {
    for choice in [["--trainable", "fc.*"], ["--freeze", "[bc][12].*"]] {
        let flags = [&["--loss", "cross-entropy"], &choice[..]].concat();
        assert_eq!(check("head", "cnn_bn", &flags), 2);
    }
}

/// Masks are those of Philox under the seed, node and step that the reference drew them with, at every
/// budget.
#[test]
fn dropout() {
    assert_eq!(check("dropout", "mlp_dropout", &["--loss", "cross-entropy", "--seed", "3"]), 2);
    assert_eq!(check("dropout_mse", "mlp_dropout", &["--loss", "mse", "--seed", "3"]), 1);
}

/// 16-bit tensors between 32-bit parameters and loss, and 16-bit parameters and moments, which come out bit
/// for bit.
#[test]
fn sixteen_bits() {
    for kind in ["float16", "bfloat16"] {
        let (wide, narrow) = (kind.to_string(), format!("{kind}_weights"));
        for name in [&wide, &narrow] {
            assert_eq!(check(name, &format!("mlp_{name}"), &["--loss", "cross-entropy"]), 2);
        }
    }
}
