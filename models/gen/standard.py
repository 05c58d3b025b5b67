"""Records what models in the standard's own training form compute, and writes variants with other attributes.

Packages: onnx==1.16.2, numpy, safetensors.

    python gen/standard.py models/standard

The folder has linear.TrainingInfo.{Momentum,Adam,Adagrad}.onnx. Each gets a variant linear.regularised.*.onnx, whose
optimizer has regularisation, Nesterov's form, decay, and a beta that is not one; all get a reference *.npz of four steps
from the values in init.safetensors:
  x [steps, 5, 4], y [steps, 5]        inputs
  losses [steps], final/<initializer>  losses and values after the last step

The inference graph and the algorithm are joined as the standard says. What remains after taking out the node `Gradient`,
whose outputs are fed, runs in onnx's reference evaluator. The gradients of the model, softmax cross-entropy of x W + B,
are written out here in double precision.
"""

import pathlib
import sys

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import save_file

STEPS, BATCH = 4, 5
REGULARISED = {
    "Momentum": dict(mode="nesterov", beta=0.75, norm_coefficient=0.01),
    "Adam": dict(norm_coefficient=0.02, norm_coefficient_post=0.001, beta=0.99),
    "Adagrad": dict(decay_factor=0.1, norm_coefficient=0.05, epsilon=1e-3),
}


def variant(model, optimizer):
    out = onnx.ModelProto()
    out.CopyFrom(model)
    node = next(n for n in out.training_info[0].algorithm.node if n.op_type == optimizer)
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    del node.attribute[:]
    for name, value in sorted({**given, **REGULARISED[optimizer]}.items()):
        node.attribute.append(onnx.helper.make_attribute(name, value))
    return out


def without_gradient(model):
    """The joined graph; initializers and gradients are inputs."""
    main, algorithm = model.graph, model.training_info[0].algorithm
    nodes = [n for n in [*main.node, *algorithm.node] if n.op_type != "Gradient"]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in [*main.initializer, *algorithm.initializer]}
    names = [*constants, "x", "labels", "dW", "dB"]
    untyped = lambda n: onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)
    outputs = [*main.output, *algorithm.output]
    graph = onnx.helper.make_graph(nodes, "joined", [untyped(n) for n in names], outputs)
    return onnx.helper.make_model(graph, opset_imports=model.opset_import), constants


def gradients(x, labels, w, b):
    scores = x.astype(np.float64) @ w + b
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    shares /= len(labels)
    return (x.T.astype(np.float64) @ shares).astype(np.float32), shares.sum(axis=0).astype(np.float32)


def record(model, common, data):
    joined, now = without_gradient(model)
    evaluator = ReferenceEvaluator(joined)
    names = [o.name for o in joined.graph.output]
    updates = {b.key: b.value for b in model.training_info[0].update_binding}
    now.update(common)
    losses = []
    for x, labels in zip(data["x"], data["y"]):
        dw, db = gradients(x, labels, now["W"], now["B"])
        out = dict(zip(names, evaluator.run(None, dict(now, x=x, labels=labels, dW=dw, dB=db))))
        losses.append(out["loss"])
        now.update({name: np.asarray(out[to], now[name].dtype) for name, to in updates.items()})
    finals = {f"final/{name}": now[name] for name in updates}
    return dict(data, losses=np.array(losses, np.float32), **finals)


def main(folder):
    random = np.random.default_rng(7)
    common = {
        "W": random.uniform(-0.5, 0.5, [4, 3]).astype(np.float32),
        "B": random.uniform(-0.5, 0.5, [3]).astype(np.float32),
    }
    data = {
        "x": random.standard_normal([STEPS, BATCH, 4]).astype(np.float32),
        "y": random.integers(0, 3, [STEPS, BATCH]).astype(np.int64),
    }
    save_file(common, folder / "init.safetensors")
    for optimizer in REGULARISED:
        plain = onnx.load(folder / f"linear.TrainingInfo.{optimizer}.onnx")
        changed = variant(plain, optimizer)
        onnx.checker.check_model(changed)
        onnx.save(changed, folder / f"linear.regularised.{optimizer}.onnx")
        for kind, model in [("TrainingInfo", plain), ("regularised", changed)]:
            np.savez(folder / f"linear.{kind}.{optimizer}.npz", **record(model, common, data))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
