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
from onnx import TensorProto, helper, numpy_helper
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
    "sgd:lr=0.1,clip_norm=0.3",
    "adamw:lr=0.01,eps=0.001,clip_norm=0.3",
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
    "float16": ("mlp_float16", "CrossEntropyLoss", "", ["sgd:lr=0.1", "adamw:lr=0.01,weight_decay=0.1"]),
    "bfloat16": ("mlp_bfloat16", "CrossEntropyLoss", "", ["sgd:lr=0.1", "adamw:lr=0.01,weight_decay=0.1"]),
    "float16_weights": ("mlp_float16", "CrossEntropyLoss", "", ["sgd:lr=0.1", "momentum:lr=0.1,momentum=0.9"]),
    "bfloat16_weights": ("mlp_bfloat16", "CrossEntropyLoss", "", ["sgd:lr=0.1", "momentum:lr=0.1,momentum=0.9"]),
    "dropout_mse": ("mlp_dropout", "MSELoss", "", ["momentum:lr=0.05,momentum=0.9"]),
}


# Those whose parameters and moments are 16 bits wide: the same models with parameters cast once instead of in every step.
NARROW = {"float16_weights": TensorProto.FLOAT16, "bfloat16_weights": TensorProto.BFLOAT16}


class Rule:
    """One of PyTorch's optimizers for one parameter."""

    def __init__(self, spec, kind=None):
        self.kind = kind
        self.name, _, options = spec.partition(":")
        self.options = dict(o.split("=") for o in options.split(",") if o)
        self.a = self.b = 0.0

    def get(self, option, default=0.0):
        return float(np.float32(self.options.get(option, default)))

    def __call__(self, w, g, t):
        new = self.update(w, g, t).astype(np.float32)
        if self.kind:
            new, self.a = rounded(new, self.kind), rounded(np.asarray(self.a), self.kind)
        return new

    def update(self, w, g, t):
        lr, decay = self.get("lr"), self.get("weight_decay", 0.01 if self.name == "adamw" else 0)
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
        return w - lr * (self.a / (1 - b1**t)) / (np.sqrt(self.b / (1 - b2**t)) + self.get("eps", 1e-8))


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
    return model


def narrowed(init, kind):
    """A parameter of 16 bits."""
    value = numpy_helper.to_array(init)
    return helper.make_tensor(init.name, kind, value.shape, bits(rounded(value, kind), kind).tobytes(), raw=True)


def rounded(value, kind):
    """f32 values that are of type `kind`."""
    value = value.astype(np.float32)
    if kind == TensorProto.FLOAT16:
        return value.astype(np.float16).astype(np.float32)
    bits = value.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def bits(value, kind):
    """The 16 bits of values of type `kind`."""
    if kind == TensorProto.FLOAT16:
        return value.astype(np.float16).view(np.uint16)
    return (value.view(np.uint32) >> 16).astype(np.uint16)


def mixed_model(kind, narrow=False):
    """mlp_s with 16-bit tensors between its input and its scores, and with `narrow` 16-bit parameters."""
    model = onnx.load(GEN / "mlp_s.forward.onnx")
    graph = model.graph
    wide = {i.name for i in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    cast = lambda x, y, to: graph.node.append(helper.make_node("Cast", [x], [y], name=f"{y}/cast", to=to))
    data, scores = graph.input[0].name, graph.output[0].name
    cast(data, f"{data}/narrow", kind)
    for init in graph.initializer:
        if narrow:
            init.CopyFrom(narrowed(init, kind))
        else:
            cast(init.name, f"{init.name}/narrow", kind)
    casted = {data} if narrow else wide | {data}
    for node in nodes:
        node.input[:] = [f"{i}/narrow" if i in casted else i for i in node.input]
        node.output[:] = [f"{o}/narrow" if o == scores else o for o in node.output]
        graph.node.append(node)
    cast(f"{scores}/narrow", scores, TensorProto.FLOAT)
    onnx.checker.check_model(model)
    return model


def gradients_of(forward, loss, trained, folder):
    """The training graph and the initial values."""
    model = onnx.load(forward)
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
        graph, initial = gradients_of(GEN / f"{forward}.forward.onnx", loss, trained, folder)
    shape = lambda n: [STEPS, *(d.dim_value for d in graph.inputs[n].type.tensor_type.shape.dim)]
    data, labels = graph.data
    x = rng.standard_normal(shape(data)).astype(np.float32)
    if loss == "CrossEntropyLoss":
        y = rng.integers(0, 10, shape(labels)).astype(np.int64)
    else:
        y = (rng.random if loss == "BCEWithLogitsLoss" else rng.standard_normal)(shape(labels)).astype(np.float32)
    result = {"x": x, "y": y}
    for spec in specs:
        kind = NARROW.get(name)
        values = {n: rounded(initial[n], kind) if kind else initial[n].copy() for n in graph.values}
        rules = {n: Rule(spec, kind) for n in graph.trained}
        losses = []
        for t in range(1, STEPS + 1):
            found, gradients = graph.run(values, [x[t - 1], y[t - 1]], t)
            losses.append(found)
            if clip := float(dict(o.split("=") for o in spec.partition(":")[2].split(",")).get("clip_norm", 0)):
                norm = sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()) ** 0.5
                assert norm > clip, f"{norm} limits nothing"
                gradients = {n: g * (clip / (norm + 1e-6)) for n, g in gradients.items()}
            for n, rule in rules.items():
                values[n] = rule(values[n], gradients[n], t)
        result[f"losses/{spec}"] = np.array(losses, np.float32)
        result |= {f"final/{spec}/{n}": bits(values[n], kind) if kind else values[n] for n in graph.values}
        print(name, spec, losses)
    np.savez_compressed(MODELS / "recipes" / f"{name}.npz", **result)


def artifact(*args):
    subprocess.run([sys.executable, GEN / "artifacts.py", *map(str, args)], check=True)


def bert_dropout():
    """Artifacts of bert_tiny_nodrop with the dropout that it has, but at a ratio of 0.1, trained by SGD."""
    model = onnx.load(GEN / "bert_tiny_nodrop.forward.onnx")
    ratios = {n.input[1] for n in model.graph.node if n.op_type == "Dropout"}
    for node in model.graph.node:
        if node.output[0] in ratios:
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(0.1)))
    folder = MODELS / "bert_tiny_dropout"
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model, file.name)
        graph, values = gradients_of(file.name, "CrossEntropyLoss", "", folder)
    os.remove(folder / "eval_model.onnx")
    rng = np.random.default_rng(7)
    x = rng.integers(0, 100, [STEPS, 4, 16]).astype(np.int64)
    y = rng.integers(0, 4, [STEPS, 4]).astype(np.int64)
    losses, rate = [], np.float32(0.1)
    for t in range(1, STEPS + 1):
        found, gradients = graph.run(values, [x[t - 1], y[t - 1]], t)
        losses.append(found)
        values |= {n: values[n] - rate * gradients[n] for n in graph.trained}
    finals = {f"final/{n}": values[n] for n in graph.trained}
    result = {"x": x, "y": y, "lr": rate, "losses": np.array(losses, np.float32), **finals}
    np.savez_compressed(folder / "reference.npz", **result)
    print("bert_tiny_dropout", losses)


def main():
    os.makedirs(MODELS / "recipes", exist_ok=True)
    onnx.save(dropout_model(), GEN / "mlp_dropout.forward.onnx")
    for kind in ("FLOAT16", "BFLOAT16"):
        for suffix, narrow in [("", False), ("_weights", True)]:
            model = mixed_model(getattr(TensorProto, kind), narrow)
            onnx.save(model, GEN / f"mlp_{kind.lower()}{suffix}.forward.onnx")
    for name in RECIPES:
        record(name)
    bert_dropout()
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
