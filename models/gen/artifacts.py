"""Generates ONNX Runtime training artifacts from a forward ONNX model, trains a few steps, records the result.

Packages: onnxruntime-training-cpu==1.19.2 onnx==1.16.2 numpy==1.26.4 "protobuf<5" cerberus flatbuffers h5py
packaging setuptools sympy (torch is not needed).

    python artifacts.py FORWARD.onnx OUT_DIR [--loss CrossEntropyLoss] [--optimizer AdamW] [--lr 0.001] ...
    python artifacts.py --reuse OUT_DIR            # only record, from artifacts that are already in OUT_DIR

OUT_DIR gets training_model.onnx, optimizer_model.onnx, checkpoint and reference.npz (with --accumulate N
reference_accumulateN.npz) with
  x [micro-steps, ...], y [micro-steps, ...]   inputs, seed 7
  losses [micro-steps], lr                     losses, learning rate
  grad0/<parameter>                            gradients, summed over the first step's micro-steps
  final/<parameter or statistic>               values after the last step
"""

import argparse
import fnmatch
import os
import sys
import types

# These two subpackages import torch, which artifacts and training do not need.
for name in ("onnxruntime.training.optim", "onnxruntime.training.amp"):
    sys.modules[name] = types.ModuleType(name)

import numpy as np
import onnx
import onnxruntime
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer

onnxruntime.set_default_logger_severity(3)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def generate(args):
    model = onnx.load(args.forward)
    floats = [i.name for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT]
    named = [n for n in floats if "." in n and "/" not in n and "::" not in n]
    clip = onnxblock.optim.ClipGradNorm(args.clip) if args.clip else None
    if args.optimizer == "AdamW":
        optimizer = onnxblock.optim.AdamW(
            weight_decay=args.weight_decay, eps=args.eps, betas=tuple(args.betas), clip_grad=clip
        )
    else:
        optimizer = onnxblock.optim.SGD(clip_grad=clip)
    train = [n for n in named if not n.endswith(STATISTICS) and any(fnmatch.fnmatch(n, g) for g in args.train)]
    artifacts.generate_artifacts(
        model,
        requires_grad=train,
        frozen_params=[n for n in named if n not in train],
        loss=getattr(artifacts.LossType, args.loss),
        optimizer=optimizer,
        artifact_directory=args.out,
    )
    os.remove(os.path.join(args.out, "eval_model.onnx"))


def record(out, steps, accumulate, lr, classes, keep_tensors, soft=False, optimizer_model=None, name=None):
    path = lambda name: os.path.join(out, name)
    onnxruntime.set_seed(1234)
    state = CheckpointState.load_checkpoint(path("checkpoint"))
    module = Module(path("training_model.onnx"), state)
    optimizer = Optimizer(optimizer_model or path("optimizer_model.onnx"), module)
    if lr is not None:
        optimizer.set_learning_rate(lr)
    graph = onnx.load(path("training_model.onnx")).graph
    shape = lambda v: [d.dim_value for d in v.type.tensor_type.shape.dim]
    integer = lambda v: v.type.tensor_type.elem_type == onnx.TensorProto.INT64
    rng = np.random.default_rng(7)

    def sample(value, high):
        extent = [steps * accumulate] + shape(value)
        if integer(value):
            return rng.integers(0, high, extent).astype(np.int64)
        return rng.standard_normal(extent).astype(np.float32)

    x, y = sample(graph.input[0], 100), sample(graph.input[1], classes)
    if soft:
        y = rng.random(y.shape).astype(np.float32)
    inputs = {v.name for v in graph.input}
    suffix = "_grad.accumulation.buffer"
    trained = [n[: -len(suffix)] for n in sorted(inputs) if n.endswith(suffix)]
    statistics = [n for n in sorted(inputs) if n.endswith(STATISTICS)]
    result = {"x": x, "y": y, "lr": np.float32(optimizer.get_learning_rate())}
    losses = []
    module.train()
    for step in range(steps):
        for i in range(step * accumulate, (step + 1) * accumulate):
            losses.append(np.asarray(module(x[i], y[i])).reshape(-1)[0])
        if step == 0 and keep_tensors and not name:
            result |= {f"grad0/{n}": state.parameters[n].grad.copy() for n in trained}
        optimizer.step()
        module.lazy_reset_grad()
    result["losses"] = np.array(losses, np.float32)
    kept = trained + statistics if keep_tensors else statistics
    result |= {f"final/{n}": state.parameters[n].data.copy() for n in kept}
    name = name or ("reference.npz" if accumulate == 1 else f"reference_accumulate{accumulate}.npz")
    np.savez_compressed(path(name), **result)
    print(out, "losses", result["losses"].tolist())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forward", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--reuse", metavar="OUT_DIR")
    parser.add_argument("--loss", default="CrossEntropyLoss")
    parser.add_argument("--optimizer", default="AdamW", choices=["AdamW", "SGD"])
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.999])
    parser.add_argument("--clip", type=float, default=0.0, help="largest gradient norm, 0 for none")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--train", action="append", metavar="GLOB", help="parameters to train, others are frozen")
    parser.add_argument("--optimizer-model", metavar="FILE", help="record with another optimizer model")
    parser.add_argument("--name", metavar="FILE", help="what to record into, in OUT_DIR")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-steps per step, gradients summed")
    parser.add_argument("--losses-only", action="store_true", help="leave parameters and gradients out")
    parser.add_argument("--soft", action="store_true", help="targets in [0, 1)")
    args = parser.parse_args()
    args.train = args.train or ["*"]
    if args.reuse:
        args.out = args.reuse
    elif args.forward and args.out:
        os.makedirs(args.out, exist_ok=True)
        generate(args)
    else:
        parser.error("give FORWARD and OUT_DIR, or --reuse OUT_DIR")
    keep = not args.losses_only
    more = (args.soft, args.optimizer_model, args.name)
    record(args.out, args.steps, args.accumulate, args.lr, args.classes, keep, *more)


if __name__ == "__main__":
    main()
