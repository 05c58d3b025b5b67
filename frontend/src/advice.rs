//! Replacements for operators that are not supported.
//!
//! It covers the standard's operators, and those of other domains that training graphs are known to have.

use crate::model::MS;

/// Advice on `domain::op`; `None` for operators that nothing is known of.
pub(crate) fn of(domain: &str, op: &str) -> Option<&'static str> {
    match domain {
        "" => standard(op),
        MS => microsoft(op),
        "org.pytorch.aten" => Some(ORT_MODULE),
        "ai.onnx.ml" => {
            Some("classical machine learning is not differentiated; compute its results before and feed them")
        }
        "ai.onnx.preview" if op == "FlexAttention" => Some("write Attention, or MatMul, Softmax and MatMul"),
        _ => None,
    }
}

const ORT_MODULE: &str = "this is an ORTModule graph; generate training artifacts instead";
const CONTROL_FLOW: &str =
    "what it does depends on data; write Where, or a condition or trip count that shapes decide";
/// Advice on operators whose results have as many elements as data say.
pub(crate) const DEPENDS_ON_DATA: &str =
    "its result's shape depends on data; keep the shape, and mask elements with Where or Mul";
const SEQUENCE: &str = "an optional value must be there or not; leave the operator out";
const STRINGS: &str = "strings cannot be trained on; turn them into numbers before, and feed those";
const QUANTISED: &str = "quantised operators have no gradient; train the float model, with MatMul or Conv, \
                         and quantise it afterwards";
const WINDOW: &str = "compute the matrix once and store it as an initializer";
const SAMPLING: &str = "write Resize for fixed scales, or Gather and Mul for fixed positions";
const BITS: &str = "And, Or, Xor and Not of booleans are supported; compute integers before, and feed them";

fn standard(op: &str) -> Option<&'static str> {
    Some(match op {
        "If" | "Loop" | "Scan" | "SequenceMap" => CONTROL_FLOW,

        "Det" => "write the products of its expansion with Mul and Sub",
        "Compress" | "Unique" | "NonMaxSuppression" => DEPENDS_ON_DATA,
        "Optional" | "OptionalGetElement" | "OptionalHasElement" => SEQUENCE,
        "StringConcat" | "StringNormalizer" | "StringSplit" | "RegexFullMatch" | "TfIdfVectorizer" => STRINGS,
        "QuantizeLinear"
        | "DequantizeLinear"
        | "DynamicQuantizeLinear"
        | "QLinearMatMul"
        | "QLinearConv"
        | "ConvInteger"
        | "MatMulInteger" => QUANTISED,
        "MelWeightMatrix" => WINDOW,
        "RoiAlign" | "MaxRoiPool" => SAMPLING,
        "DeformConv" => "write Conv, whose positions are fixed",
        "ReverseSequence" => "write Slice with step -1, for sequences of one length",
        "TensorScatter" => "write ScatterND or ScatterElements",
        "LinearAttention" => "write Attention, or MatMul and CumSum",
        "CausalConvWithState" => "write Concat of the state and Conv",
        "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "BitwiseNot" => BITS,
        "BitShift" => "write Mul or Div by a power of two",
        "BitCast" => "Cast converts values; bits cannot be taken as another type",
        "Multinomial" => "feed the random tensor as an input",
        "ImageDecoder" => "decode images before, and feed their tensors",
        _ => return None,
    })
}

fn microsoft(op: &str) -> Option<&'static str> {
    Some(match op {
        "GRUTraining" | "GRUGrad" => {
            "import the forward model with --loss instead; memc differentiates GRU layers itself"
        }
        "YieldOp" => ORT_MODULE,
        "AdamWOptimizer" | "SGDOptimizerV2" | "InplaceClipGradNorm" => {
            "this is an optimizer model; give the training model and pass this one as its optimizer"
        }
        "FusedConv"
        | "FusedGemm"
        | "SkipLayerNormalization"
        | "EmbedLayerNormalization"
        | "BiasGelu"
        | "Attention"
        | "MultiHeadAttention"
        | "QuickGelu"
        | "SkipSimplifiedLayerNormalization" => {
            "it is a fusion for inference; give the model as it was before ONNX Runtime optimised it"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operator of the standard whose node tests are refused for the operator's sake has advice of its
    /// own.
    #[test]
    fn the_standard_is_covered() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/conformance/manifest.tsv");
        let manifest = std::fs::read_to_string(path).expect("manifest of the node tests");
        let mut seen = 0;
        for row in manifest.lines() {
            let Some((_, op)) = row.split_once("\tunsupported\toperator ") else { continue };
            let op = op.split([',', ':']).next().unwrap_or_default();
            let known = of("", op).is_some() || op.starts_with("ai.onnx");
            assert!(known, "{op}: there is no advice");
            seen += 1;
        }
        assert!(seen > 50, "{seen} rows");
    }
}
