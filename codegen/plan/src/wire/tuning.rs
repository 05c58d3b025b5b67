//! The tuning section as messages, both ways.

use super::message::{WireTuned, WireTuning};
use crate::{PlanError, TunedKernel, Tuning, Way};

/// All but the kernels, which are a table of their own.
pub(super) fn to_wire(tuning: &Tuning) -> WireTuning {
    let libraries = tuning.libraries.iter();
    WireTuning {
        device: tuning.device.clone(),
        arch: tuning.arch.clone(),
        libraries: libraries.flat_map(|(name, version)| [name.clone(), version.clone()]).collect(),
        rounding: tuning.rounding.clone(),
        allow_nondeterminism: tuning.allow_nondeterminism,
    }
}

/// The section with its kernels.
pub(super) fn from_wire(
    wire: Option<WireTuning>,
    kernels: Vec<TunedKernel>,
) -> Result<Option<Tuning>, PlanError> {
    let Some(wire) = wire else {
        return match kernels.as_slice() {
            [] => Ok(None),
            _ => Err(PlanError::damaged("it has tuned kernels, but does not say for what device")),
        };
    };
    let (pairs, rest) = wire.libraries.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(PlanError::damaged("tuning: a library has no version"));
    }
    Ok(Some(Tuning {
        device: wire.device,
        arch: wire.arch,
        libraries: pairs.iter().map(|[name, version]| (name.clone(), version.clone())).collect(),
        rounding: wire.rounding,
        allow_nondeterminism: wire.allow_nondeterminism,
        kernels,
    }))
}

pub(super) fn kernel_to_wire(kernel: &TunedKernel) -> WireTuned {
    let (product, convolution) = match &kernel.way {
        Way::Product(bytes) => (Some(bytes.to_vec()), Vec::new()),
        Way::Convolution { algorithm, math } => (None, vec![*algorithm, *math]),
    };
    WireTuned {
        kernel: kernel.kernel,
        product,
        convolution,
        workspace_bytes: kernel.workspace_bytes,
        ns: kernel.ns,
        default_ns: kernel.default_ns,
    }
}

pub(super) fn kernel_from_wire(wire: WireTuned) -> Result<TunedKernel, String> {
    let way = match (wire.product, wire.convolution.as_slice()) {
        (Some(bytes), []) => {
            let bytes =
                bytes.try_into().map_err(|bytes: Vec<u8>| format!("a product of {} bytes", bytes.len()))?;
            Way::Product(Box::new(bytes))
        }
        (None, &[algorithm, math]) => Way::Convolution { algorithm, math },
        _ => return Err("it is neither a product nor a convolution".to_owned()),
    };
    Ok(TunedKernel {
        kernel: wire.kernel,
        way,
        workspace_bytes: wire.workspace_bytes,
        ns: wire.ns,
        default_ns: wire.default_ns,
    })
}
