"""Records what onnxruntime computes with one-file training steps: initial values, inputs, losses, final states.

Packages: onnxruntime (or onnxruntime-training-cpu==1.19.2), onnx, numpy, safetensors.

    python step_reference.py OUT_DIR sgd=STEP.onnx momentum=STEP.onnx adamw=STEP.onnx --classes 10

The steps are of one model: an output X_new belongs to the input X, and inputs without one are x, y and step. OUT_DIR gets
each step as NAME.onnx, init.safetensors (parameters and buffers, seed 7, the same for all; what only one optimizer has
starts at zero), and NAME.npz with x, y [5, ...], losses [5] and final/<parameter or buffer>.
"""
import argparse
import math
import pathlib
import shutil

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

STEPS = 5


def tensor(info):
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    return shape, onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)


def states(model):
    outputs = {o.name for o in model.graph.output}
    return [i for i in model.graph.input if f"{i.name}_new" in outputs]


def start(info, random):
    shape, dtype = tensor(info)
    if dtype != np.float32 or not shape:
        return np.zeros(shape, dtype)
    if "running_var" in info.name:
        return np.ones(shape, dtype)
    bound = 1 / math.sqrt(np.prod(shape[1:]) if len(shape) > 1 else shape[0])
    return random.uniform(-bound, bound, shape).astype(dtype)


def record(path, common, data):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = onnx.load(str(path))
    names = [o.name for o in session.get_outputs()]
    now = {i.name: common.get(i.name, np.zeros(*tensor(i))) for i in states(model)}
    fed = {i.name for i in session.get_inputs()}
    losses = []
    for step in range(STEPS):
        feed = dict(now, x=data["x"][step], y=data["y"][step], step=np.array(step + 1, np.float32))
        out = dict(zip(names, session.run(None, {k: v for k, v in feed.items() if k in fed})))
        losses.append(out["loss"])
        now = {name: out[f"{name}_new"] for name in now}
    finals = {f"final/{name}": value for name, value in now.items() if name in common}
    return dict(data, losses=np.array(losses, np.float32), **finals)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("step", nargs="+", help="NAME=FILE")
    parser.add_argument("--classes", type=int, required=True, help="labels are below this")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    files = dict(step.split("=", 1) for step in args.step)
    models = {name: onnx.load(file) for name, file in files.items()}
    shared = set.intersection(*({i.name for i in states(m)} for m in models.values()))
    random = np.random.default_rng(7)
    first = next(iter(models.values()))
    common = {i.name: start(i, random) for i in states(first) if i.name in shared}
    info = {i.name: tensor(i) for i in first.graph.input}
    x, y = info["x"][0], info["y"][0]
    data = {
        "x": random.standard_normal([STEPS, *x]).astype(np.float32),
        "y": random.integers(0, args.classes, [STEPS, *y]).astype(info["y"][1]),
    }
    save_file(common, args.out / "init.safetensors")
    for name, file in files.items():
        shutil.copyfile(file, args.out / f"{name}.onnx")
        np.savez_compressed(args.out / f"{name}.npz", **record(args.out / f"{name}.onnx", common, data))


if __name__ == "__main__":
    main()
