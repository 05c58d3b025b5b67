//! Activation functions of recurrent cells.

use memc_ir::{OpKind, ValueId};

use crate::context::{Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::ops::activation::below_zero;

/// A function with its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Activation {
    Sigmoid,
    Tanh,
    Relu,
    /// `alpha * x + beta`.
    Affine(f32, f32),
    /// `x` where it is not negative, else `alpha * x`.
    LeakyRelu(f32),
    /// `alpha * tanh(beta * x)`.
    ScaledTanh(f32, f32),
    /// `min(max(alpha * x + beta, 0), 1)`.
    HardSigmoid(f32, f32),
}

impl Activation {
    /// The functions of all directions, direction outermost; `defaults` are those of one direction.
    ///
    /// Parameters are lists that only the functions with parameters consume, in order.
    pub(super) fn read(
        n: &NodeCx<'_, '_>,
        defaults: &[&str],
        directions: usize,
    ) -> Result<Vec<Activation>, Fault> {
        let names: Vec<&str> = match n.texts("activations")? {
            Some(list) => list.iter().map(String::as_str).collect(),
            None => defaults.repeat(directions),
        };
        if names.len() != defaults.len() * directions {
            return Err(format!(
                "there are {} activations for {directions} directions, which need {} each",
                names.len(),
                defaults.len()
            )
            .into());
        }
        let mut alphas = n.floats("activation_alpha")?.unwrap_or_default().iter().copied();
        let mut betas = n.floats("activation_beta")?.unwrap_or_default().iter().copied();
        let mut out = Vec::new();
        for name in names {
            let mut alpha = |default| alphas.next().unwrap_or(default);
            let mut beta = |default| betas.next().unwrap_or(default);
            out.push(match name.to_ascii_lowercase().as_str() {
                "sigmoid" => Activation::Sigmoid,
                "tanh" => Activation::Tanh,
                "relu" => Activation::Relu,
                "affine" => Activation::Affine(alpha(1.0), beta(0.0)),
                "leakyrelu" => Activation::LeakyRelu(alpha(0.01)),
                "scaledtanh" => Activation::ScaledTanh(alpha(1.0), beta(1.0)),
                "hardsigmoid" => Activation::HardSigmoid(alpha(0.2), beta(0.5)),
                _ => {
                    return unsupported(format!(
                        "activation `{name}` is not supported; supported are Sigmoid, Tanh, Relu, Affine, \
                         LeakyRelu, ScaledTanh and HardSigmoid"
                    ));
                }
            });
        }
        Ok(out)
    }

    /// The function of `x`, which is first limited to `[-clip, clip]`.
    pub(super) fn of(self, n: &mut NodeCx<'_, '_>, mut x: ValueId, clip: Option<f32>) -> Made {
        if let Some(clip) = clip {
            x = limited(n, x, -clip, clip)?;
        }
        match self {
            Activation::Sigmoid => n.temp(OpKind::Sigmoid {}, &[x]),
            Activation::Tanh => n.temp(OpKind::Tanh {}, &[x]),
            Activation::Relu => n.temp(OpKind::Relu {}, &[x]),
            Activation::Affine(alpha, beta) => affine(n, x, alpha, beta),
            Activation::LeakyRelu(alpha) => {
                let low = affine(n, x, alpha, 0.0)?;
                below_zero(n, x, low)
            }
            Activation::ScaledTanh(alpha, beta) => {
                let x = affine(n, x, beta, 0.0)?;
                let y = n.temp(OpKind::Tanh {}, &[x])?;
                affine(n, y, alpha, 0.0)
            }
            Activation::HardSigmoid(alpha, beta) => {
                let y = affine(n, x, alpha, beta)?;
                limited(n, y, 0.0, 1.0)
            }
        }
    }
}

fn affine(n: &mut NodeCx<'_, '_>, x: ValueId, alpha: f32, beta: f32) -> Made {
    let x = n.scaled(x, "alpha", alpha)?;
    n.shifted(x, "beta", beta)
}

fn limited(n: &mut NodeCx<'_, '_>, x: ValueId, low: f32, high: f32) -> Made {
    let (low, high) = (n.scalar("low", low)?, n.scalar("high", high)?);
    let x = n.temp(OpKind::Max {}, &[x, low])?;
    n.temp(OpKind::Min {}, &[x, high])
}
