"""Writes models/zoo: the networks that papers on memory planning train, as forward models without weights.

Packages: onnx==1.16.2 (with numpy); with --run also onnxruntime (1.19.2 was used).

    python models/gen/zoo.py                 # writes models/zoo/*.onnx; same bytes every time
    python models/gen/zoo.py --check         # writes nothing; fails if a committed file is not what would be written
    python models/gen/zoo.py --run           # also runs a small instance of every network forward
    python models/gen/zoo.py NAME...         # only these

For every network it asserts that the file passes onnx's checker with full shape inference, that all shapes are the
builder's, and that the number of trained elements is the published one.
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True

from nets import NETS
from nets.graph import check, encode

ZOO = Path(__file__).resolve().parent.parent / "zoo"


def run_small(net):
    """Initialises a small instance by its initialization graph and runs it, both with ONNX Runtime."""
    import numpy as np
    import onnx
    import onnxruntime as ort

    graph = net.graph(**net.small)
    model = graph.model()
    check(graph, model)
    ort.set_default_logger_severity(3)
    session = lambda m: ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    info = model.training_info[0]
    start = onnx.helper.make_model(info.initialization, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(start, full_check=True)
    values = dict(zip([o.name for o in info.initialization.output], session(start).run(None, {})))
    feeds = {b.key: values[b.value] for b in info.initialization_binding}
    rng = np.random.default_rng(1)
    batch = 2
    for value in graph.inputs:
        shape = [d.dim_value or batch for d in value.type.tensor_type.shape.dim]
        integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feeds[value.name] = rng.integers(0, 2, shape) if integer else rng.standard_normal(shape, np.float32)
    del model.training_info[:]
    # The runtime computes wrong values where nothing reads a batch normalisation's new statistics.
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    model.graph.output.extend(v for v in inferred if v.name.endswith(("running_mean_new", "running_var_new")))
    out, *statistics = session(model).run(None, feeds)
    assert all(np.isfinite(s).all() for s in statistics), net.name
    declared = [d.dim_value if d.HasField("dim_value") else None for d in graph.outputs[0].type.tensor_type.shape.dim]
    assert len(declared) == out.ndim and all(d in (None, n) for d, n in zip(declared, out.shape)), (declared, out.shape)
    assert np.isfinite(out).all() and (out.ndim == 0 or out.std() > 0), net.name
    return out.shape


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", action="store_true")
    args = parser.parse_args()
    unknown = set(args.names) - {n.name for n in NETS}
    if unknown:
        parser.error(f"no network is called {', '.join(sorted(unknown))}; there are {', '.join(n.name for n in NETS)}")
    nets = [n for n in NETS if not args.names or n.name in args.names]
    ZOO.mkdir(exist_ok=True)
    differ = []
    for net in nets:
        graph = net.graph()
        model = graph.model()
        check(graph, model)
        assert net.parameters in (None, graph.parameters), f"{net.name}: {graph.parameters}, not {net.parameters}"
        data = encode(model)
        path = ZOO / f"{net.name}.onnx"
        if net.committed and args.check:
            if not path.is_file() or path.read_bytes() != data:
                differ.append(str(path))
        elif net.committed:
            path.write_bytes(data)
        ran = f", small instance gives {run_small(net)}" if args.run else ""
        print(f"{net.name}: {graph.parameters} parameters in {graph.parameter_tensors} tensors, "
              f"{len(graph.nodes)} nodes, {len(data)} bytes{ran}", flush=True)
    if not args.names:
        expected = {f"{n.name}.onnx" for n in nets if n.committed}
        differ += [f"{p} is no network of this list" for p in sorted(ZOO.iterdir()) if p.name not in expected]
    if differ:
        sys.exit("not as generated:\n" + "\n".join(differ))


if __name__ == "__main__":
    main()
