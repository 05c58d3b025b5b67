//! Device bytes that a graph-phase module keeps alive when it runs in its order and everything stays on the
//! device.

use memc_ir::{Arena, Id, Module, OpId, aligned};
use memc_planner::TensorId;

use crate::Contradiction;
use crate::device::DeviceProfile;
use crate::plan::storage::{self, TensorKind};

/// The moment of a step at which most bytes are live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peak {
    /// Live bytes: states, constants, the step's tensors and the workspace, each rounded up to the slot
    /// alignment.
    pub bytes: u64,
    /// The op that runs at that moment; `None` when no op does.
    pub op: Option<OpId>,
}

/// The first peak of `module`, which must pass the verifier, with the workspaces of this device.
///
/// Bytes are shared as `bufferize` shares them: views with their operands, results with dying operands where
/// the row allows it, next states with their resident slots. States and constants are live throughout, other
/// tensors from the first op that touches them to the last. Fragmentation of an address space is not
/// considered.
///
/// Fails only where a `copy` that the module needs is rejected, which verified modules do not cause.
pub fn peak_live_bytes(module: &Module, profile: &DeviceProfile) -> Result<Peak, Contradiction> {
    let mut m = module.clone();
    storage::legalise(&mut m)?;
    let storages = storage::assign(&m);
    let bytes: Arena<TensorId, u64> =
        storages.tensors.values().map(|&(v, _)| aligned(m.values[v].ty.bytes().max(1))).collect();
    let run: Vec<OpId> = m.order.iter().copied().filter(|&op| !m.ops[op].is_view()).collect();
    let mut range: Arena<TensorId, Option<(usize, usize)>> = Arena::filled(None, bytes.len());
    for (i, &id) in run.iter().enumerate() {
        for &v in m.ops[id].operands.iter().chain(&m.ops[id].results) {
            let r = &mut range[storages.of[v]];
            *r = Some((r.map_or(i, |(first, _)| first), i));
        }
    }
    let (mut begin, mut end) = (vec![0u64; run.len()], vec![0u64; run.len()]);
    let mut live = 0u64;
    for (t, &(_, kind)) in storages.tensors.iter() {
        match (kind, range[t]) {
            (TensorKind::State(_) | TensorKind::Const(_), _) => live = live.saturating_add(bytes[t]),
            (_, Some((first, last))) => {
                begin[first] = begin[first].saturating_add(bytes[t]);
                end[last] = end[last].saturating_add(bytes[t]);
            }
            (_, None) => {}
        }
    }
    let mut peak = Peak { bytes: live, op: None };
    let mut own = None;
    for (i, &id) in run.iter().enumerate() {
        live = live.saturating_add(begin[i]);
        // A copy that `legalise` added stands for the op before it.
        own = if id.index() < module.ops.len() { Some(id) } else { own };
        let needs = |k| profile.workspace(k, &m.operand_types(id), &m.result_types(id));
        let now = live.saturating_add(aligned(m.ops[id].kind().map_or(0, needs)));
        if now > peak.bytes {
            peak = Peak { bytes: now, op: own };
        }
        live -= end[i];
    }
    Ok(peak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_ir::{parse, value_name};

    fn peak(text: &str) -> (u64, String) {
        let m = parse(text).unwrap();
        let p = peak_live_bytes(&m, DeviceProfile::named("toy").unwrap()).unwrap();
        (p.bytes, p.op.map_or_else(String::new, |op| value_name(&m, m.ops[op].results[0])))
    }

    #[test]
    fn results_take_dying_operands_and_views_are_free() {
        // x (64 bytes) is read once: neg writes in place, the reshape shares, exp writes in place.
        let text = "module @m graph\n%x = input : f32[16]\n%a = neg %x : f32[16]\n\
                    %v = reshape %a {shape = [4, 4]} : f32[4,4]\n%b = exp %v : f32[4,4]\n\
                    yield output %b as \"b\"\n";
        assert_eq!(peak(text), (64, "%a".into()));
        // A second reader of x keeps it alive across the neg.
        let text =
            text.replace("%b = exp %v : f32[4,4]\n", "%c = add %a, %x : f32[16]\n%b = exp %c : f32[16]\n");
        assert_eq!(peak(&text), (128, "%a".into()));
    }

    #[test]
    fn states_count_throughout_and_updates_share_their_slot() {
        let text = "module @m graph\n%w = state {role = param, init = zeros} : f32[32]\n\
                    %g = input : f32[32]\n%lr = const splat 0.1 : f32[]\n%n = sgd %w, %g, %lr : f32[32]\n\
                    carry %w <- %n\n";
        // w and n: 128, lr: 64 (one slot), g: 128.
        assert_eq!(peak(text), (320, "%n".into()));
    }

    #[test]
    fn workspace_counts_while_its_op_runs() {
        let text = "module @m graph\n%x = input : f32[1,1,4,4]\n%w = input : f32[1,1,3,3]\n%y = conv %x, %w \
                    {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1]} : f32[1,1,4,4]\nyield \
                    output %y as \"y\"\n";
        // x 64, w 64, y 64, and a column matrix of 9 rows and 16 pixels: 576.
        assert_eq!(peak(text), (64 * 3 + 576, "%y".into()));
    }
}
