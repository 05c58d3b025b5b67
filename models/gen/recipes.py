"""Records what every loss and optimizer of `memc --loss --optimizer` must compute, with ONNX Runtime's gradients.

Packages: those of artifacts.py.

    python models/gen/recipes.py              # writes models/recipes, and the artifacts of the rarer losses

Gradients are those of ONNX Runtime's training graph; the updates are PyTorch's, in double precision, below. A file
models/recipes/NAME.npz belongs to the forward model and the loss that `RECIPES` gives it. Its arrays are x and y [5, ...], and
for every optimizer, called as on memc's command line, losses/OPTIMIZER [5] and final/OPTIMIZER/STATE.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import types

# These two subpackages import torch, which artifacts do not need.
for name in ("onnxruntime.training.optim", "onnxruntime.training.amp"):
    sys.modules[name] = types.ModuleType(name)

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.training import artifacts

from oracle import STATISTICS, Artifact

GEN = pathlib.Path(__file__).resolve().parent
MODELS = GEN.parent
STEPS = 5
SEED = 3

EVERY = [
    "sgd:lr=0.1",
    "sgd:lr=0.1,weight_decay=0.05",
    "momentum:lr=0.05,momentum=0.9",
    "momentum:lr=0.05,momentum=0.9,dampening=0.5,weight_decay=0.05",
    "momentum:lr=0.05,momentum=0.9,nesterov=true",
    "adam:lr=0.01",
    "adam:lr=0.01,beta1=0.8,beta2=0.99,weight_decay=0.1",
    "adamw:lr=0.01,weight_decay=0.1",
    "adagrad:lr=0.05",
    "adagrad:lr=0.05,lr_decay=0.1,weight_decay=0.05",
]
SOME = ["momentum:lr=0.05,momentum=0.9,nesterov=true", "adam:lr=0.01", "adamw:lr=0.01,weight_decay=0.1", "adagrad:lr=0.05"]

# File: forward model, loss of the artifacts, what is trained, optimizers.
RECIPES = {
    "cross_entropy": ("mlp_s", "CrossEntropyLoss", "", EVERY),
    "mse": ("mlp_s", "MSELoss", "", SOME),
    "l1": ("mlp_s", "L1Loss", "", SOME),
    "bce_with_logits": ("mlp_s", "BCEWithLogitsLoss", "", SOME),
    "head": ("cnn_bn", "CrossEntropyLoss", "fc.", ["momentum:lr=0.05,momentum=0.9", "adamw:lr=0.01,weight_decay=0.1"]),
    "dropout": ("mlp_dropout", "CrossEntropyLoss", "", ["sgd:lr=0.1", "adamw:lr=0.01,weight_decay=0.1"]),
    "dropout_mse": ("mlp_dropout", "MSELoss", "", ["momentum:lr=0.05,momentum=0.9"]),
}


class Rule:
    """One of PyTorch's optimizers for one parameter."""

    def __init__(self, spec):
        self.name, _, options = spec.partition(":")
        self.options = dict(o.split("=") for o in options.split(",") if o)
        self.a = self.b = 0.0

    def get(self, option, default=0.0):
        return float(np.float32(self.options.get(option, default)))

    def __call__(self, w, g, t):
        lr, decay = self.get("lr"), self.get("weight_decay")
        w, g = w.astype(np.float64), g.astype(np.float64)
        if self.name == "adamw":
            w = w - lr * decay * w
        else:
            g = g + decay * w
        if self.name == "sgd":
            return w - lr * g
        if self.name == "momentum":
            alpha = self.get("momentum")
            self.a = g if t == 1 else alpha * self.a + (1 - self.get("dampening")) * g
            return w - lr * (g + alpha * self.a if self.options.get("nesterov") else self.a)
        if self.name == "adagrad":
            self.a = self.a + g * g
            return w - lr / (1 + (t - 1) * self.get("lr_decay")) * g / (np.sqrt(self.a) + 1e-10)
        assert self.name in ("adam", "adamw"), self.name
        b1, b2 = self.get("beta1", 0.9), self.get("beta2", 0.999)
        self.a, self.b = b1 * self.a + (1 - b1) * g, b2 * self.b + (1 - b2) * g * g
        return w - lr * (self.a / (1 - b1**t)) / (np.sqrt(self.b / (1 - b2**t)) + 1e-8)


def dropout_model():
    """mlp_s with a dropout behind each of its two Relu nodes."""
    model = onnx.load(GEN / "mlp_s.forward.onnx")
    nodes = list(model.graph.node)
    del model.graph.node[:]
    renamed = {}
    for node in nodes:
        node.input[:] = [renamed.get(i, i) for i in node.input]
        model.graph.node.append(node)
        if node.op_type == "Relu":
            ratio = [0.5, 0.25][len(renamed)]
            out, name = node.output[0], f"drop{len(renamed) + 1}"
            model.graph.initializer.append(numpy_helper.from_array(np.float32(ratio), f"{name}/ratio"))
            model.graph.initializer.append(numpy_helper.from_array(np.array(True), f"{name}/mode"))
            inputs = [out, f"{name}/ratio", f"{name}/mode"]
            model.graph.node.append(helper.make_node("Dropout", inputs, [f"{name}/y", f"{name}/mask"], name=name))
            renamed[out] = f"{name}/y"
    assert len(renamed) == 2
    onnx.checker.check_model(model)
    onnx.save(model, GEN / "mlp_dropout.forward.onnx")


def gradients_of(forward, loss, trained, folder):
    """The training graph and the initial values."""
    model = onnx.load(GEN / f"{forward}.forward.onnx")
    initial = {i.name: numpy_helper.to_array(i).copy() for i in model.graph.initializer}
    named = [n for n, v in initial.items() if v.dtype == np.float32 and "." in n]
    train = [n for n in named if n.startswith(trained) and not n.endswith(STATISTICS)]
    artifacts.generate_artifacts(
        model,
        requires_grad=train,
        frozen_params=[n for n in named if n not in train],
        loss=getattr(artifacts.LossType, loss),
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    return Artifact(f"{folder}/training_model.onnx", SEED), initial


def record(name):
    forward, loss, trained, specs = RECIPES[name]
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        graph, initial = gradients_of(forward, loss, trained, folder)
    shape = lambda n: [STEPS, *(d.dim_value for d in graph.inputs[n].type.tensor_type.shape.dim)]
    data, labels = graph.data
    x = rng.standard_normal(shape(data)).astype(np.float32)
    if loss == "CrossEntropyLoss":
        y = rng.integers(0, 10, shape(labels)).astype(np.int64)
    else:
        y = (rng.random if loss == "BCEWithLogitsLoss" else rng.standard_normal)(shape(labels)).astype(np.float32)
    result = {"x": x, "y": y}
    for spec in specs:
        values = {n: initial[n].copy() for n in graph.values}
        rules = {n: Rule(spec) for n in graph.trained}
        losses = []
        for t in range(1, STEPS + 1):
            found, gradients = graph.run(values, [x[t - 1], y[t - 1]], t)
            losses.append(found)
            for n, rule in rules.items():
                values[n] = rule(values[n], gradients[n], t).astype(np.float32)
        result[f"losses/{spec}"] = np.array(losses, np.float32)
        result |= {f"final/{spec}/{n}": values[n] for n in graph.values}
        print(name, spec, losses)
    np.savez_compressed(MODELS / "recipes" / f"{name}.npz", **result)


def artifact(*args):
    subprocess.run([sys.executable, GEN / "artifacts.py", *map(str, args)], check=True)


def main():
    os.makedirs(MODELS / "recipes", exist_ok=True)
    dropout_model()
    for name in RECIPES:
        record(name)
    sgd = ["--optimizer-model", MODELS / "mlp_s_sgd" / "optimizer_model.onnx", "--name", "reference_sgd.npz", "--lr", 0.1]
    mlp, cnn = GEN / "mlp_s.forward.onnx", GEN / "cnn_bn.forward.onnx"
    for loss, folder, more in [("L1Loss", "mlp_s_l1", []), ("BCEWithLogitsLoss", "mlp_s_bce", ["--soft"])]:
        artifact(mlp, MODELS / folder, "--loss", loss, "--lr", 0.01, *more)
        artifact("--reuse", MODELS / folder, *sgd, *more)
    artifact("--reuse", MODELS / "mlp_s_mse", *sgd)
    artifact(cnn, MODELS / "cnn_bn_head", "--train", "fc.*", "--lr", 0.01)
    artifact("--reuse", MODELS / "cnn_bn_head", *sgd)


if __name__ == "__main__":
    main()
