"""Writes node_tests.zip: the ONNX standard's backend node tests, and those of `Gradient`, which it keeps among its
tests of small models, as the conformance test wants them.

    python3 -m venv venv && venv/bin/pip install onnx==1.22.0
    venv/bin/python tests/conformance/archive.py tests/conformance/node_tests.zip

1.22.0 is the last wheel of the `onnx` package that has the tests on disk. The archive holds three files:

tests.tsv   every node test of the standard: name, operator, and for those whose files are left out, why
index.tsv   test, file, first byte and length in `data` of every file of the other tests
data        models and tensors; equal ones once, tensors without their names, since a test's tensors go by position

The same package and zlib give the same bytes.
"""

import sys
import zipfile
from pathlib import Path

import onnx

LEFT_OUT = {
    "sequences and optionals": ["Optional", "OptionalGetElement", "OptionalHasElement"],
    "strings": ["StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"],
    "quantised": [
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul", "QLinearConv",
        "ConvInteger", "MatMulInteger",
    ],
    "the result's shape depends on data": ["NonMaxSuppression", "Unique", "NonZero", "Compress"],
    "image files": ["ImageDecoder"],
}
RANDOM = "random values, which the standard does not determine"
DROPOUT = ("test_training_dropout", "test_training_dropout_default")
REASONS = {op: reason for reason, ops in LEFT_OUT.items() for op in ops}


def operator(model, name, operators):
    """The operator that a test is about: a test `X_expanded...` is about that of test `X`."""
    base = name.split("_expanded")[0]
    if base in operators:
        return operators[base]
    nodes = model.graph.node
    telling = [n for n in nodes if n.op_type in [*REASONS, "Gradient"]]
    telling = telling or [n for n in nodes if n.op_type != "Constant"] or nodes
    node = telling[0]
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def left_out(name, model, op):
    if op == "Bernoulli" or name.removesuffix("_mask") in DROPOUT:
        return RANDOM
    if op in REASONS:
        return REASONS[op]
    if op.startswith("ai.onnx.ml::"):
        return "classical machine learning"
    values = list(model.graph.input) + list(model.graph.output)
    if not all(v.type.HasField("tensor_type") for v in values):
        return "sequences and optionals"
    if any(v.type.tensor_type.elem_type == onnx.TensorProto.STRING for v in values):
        return "strings"
    return ""


def tensor(path):
    proto = onnx.TensorProto.FromString(path.read_bytes())
    proto.ClearField("name")
    return proto.SerializeToString(deterministic=True)


def main(target):
    if onnx.__version__ != "1.22.0":
        sys.exit(f"this is onnx {onnx.__version__}, not 1.22.0, whose node tests the manifest lists")
    data_folder = Path(onnx.__file__).parent / "backend/test/data"
    folders = [*data_folder.glob("node/*"), *data_folder.glob("simple/test_gradient_*")]
    operators, tests, index = {}, [], []
    places, data = {}, bytearray()
    for folder in sorted(folders, key=lambda folder: folder.name):
        name = folder.name
        model = onnx.load(folder / "model.onnx")
        operators[name] = op = operator(model, name, operators)
        reason = left_out(name, model, op)
        tests.append((name, op, reason))
        if reason:
            continue
        files = [("model.onnx", model.SerializeToString(deterministic=True))]
        sets = sorted(folder.glob("test_data_set_*"))
        assert len(sets) == 1, name
        for kind in ("input", "output"):
            count = len(list(sets[0].glob(f"{kind}_*.pb")))
            files += [(f"{kind}_{i}.pb", tensor(sets[0] / f"{kind}_{i}.pb")) for i in range(count)]
        for file, content in files:
            if content not in places:
                places[content] = len(data)
                data += content
            index.append((name, file, places[content], len(content)))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        text = lambda rows: "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()
        for name, content in [("tests.tsv", text(tests)), ("index.tsv", text(index)), ("data", bytes(data))]:
            entry = zipfile.ZipInfo(name)  # dated 1980, whenever it is written
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)
    kept = sum(not reason for _, _, reason in tests)
    print(f"{len(tests)} tests, {kept} with files, {len(places)} distinct files, {len(data)} bytes,",
          f"{Path(target).stat().st_size} in the archive")


if __name__ == "__main__":
    main(sys.argv[1])
