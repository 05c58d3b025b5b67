"""Times memc and memrun on committed models, beside ONNX Runtime's own training step, and prints one JSON object.

Usage: python tests/bench/peers.py [--threads 2] [--steps 40] [--rounds 5]
Needs: onnxruntime-training-cpu==1.19.2, onnx==1.16.2, "numpy<2" (no torch), and a release build of memc and memrun.

A round times memrun and ONNX Runtime one after the other on the same data and thread count; a figure is the median
over rounds of the median step, so that a slow moment of the machine hits both. Ratios are memrun / ONNX Runtime.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types

import numpy

# onnxruntime.training imports two torch-only modules that artifacts do not need.
for name in ("onnxruntime.training.optim", "onnxruntime.training.amp"):
    sys.modules[name] = types.ModuleType(name)
import onnxruntime  # noqa: E402
from onnxruntime.training.api import CheckpointState, Module, Optimizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"
COMPILED = [
    "mlp_s/training_model.onnx", "mlp_s_sgd/training_model.onnx", "mlp_s_mse/training_model.onnx",
    "mlp_clip/training_model.onnx", "cnn_bn/training_model.onnx", "cnn_bn_sgd/training_model.onnx",
    "resnet_tiny/training_model.onnx", "bert_tiny_nodrop/training_model.onnx",
    "mlp_s_step/adamw.onnx", "cnn_bn_step/adamw.onnx", "bert_tiny_nodrop_step/adamw.onnx",
]
TIMED = ["resnet_tiny", "cnn_bn", "bert_tiny_nodrop", "mlp_s"]


def command(*args):
    run = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=ROOT)
    if run.returncode != 0:
        raise SystemExit(f"{args}: exit {run.returncode}\n{run.stderr}")
    return json.loads(run.stdout)


def compile_times(folder):
    """Whole-process wall time and modelled cost at 100, 75 and 50 % of the peak and the smallest budget."""
    rows = []
    for model in COMPILED:
        path = f"models/{model}"
        need = command(BIN / "memc", "estimate", path, "--json")
        peak, smallest = need["peak_bytes"], need["smallest_feasible_bytes"]
        for share, budget in (("100%", peak), ("75%", peak * 3 // 4), ("50%", peak // 2), ("smallest", smallest)):
            budget = max(budget, smallest)
            start = time.perf_counter()
            out = command(BIN / "memc", "compile", path, "--device", "cpu", "--gpu-mem", f"{budget}B", "-o", folder / "m.plan", "--json")
            wall = time.perf_counter() - start
            rows.append({
                "model": model, "budget": share, "gpu_mem_bytes": budget, "arena_bytes": out["arena_bytes"],
                "ops": out["ops"], "step_over_ideal": round(out["step_ns"] / out["ideal_ns"], 3),
                "step_over_bound": round(out["step_ns"] / out["bound_ns"], 3),
                "swap_in_bytes": out["swap_in_bytes"], "recompute_ops": out["recompute_ops"],
                "compile_s": round(wall, 3),
            })
    return rows


def ort_step(model, threads, data, labels, lr, steps):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    folder = ROOT / "models" / model
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(lr)
    module.train()
    times = []
    for _ in range(steps):
        start = time.perf_counter_ns()
        module(data, labels)
        optimizer.step()
        module.lazy_reset_grad()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times[steps // 4:])


def memrun_step(plan, folder, threads, lr, steps):
    out = command(BIN / "memrun", plan, "--steps", steps, "--threads", threads, "--lr", lr, "--json",
                  "--input", f"input=@{folder / 'x.npy'}", "--input", f"labels=@{folder / 'y.npy'}")
    return statistics.median(out["step_ns"][steps // 4:])


def step_times(folder, threads, steps, rounds):
    rows = []
    for model in TIMED:
        reference = numpy.load(ROOT / "models" / model / "reference.npz")
        data, labels, lr = reference["x"][0], reference["y"][0], float(reference["lr"])
        numpy.save(folder / "x.npy", data)
        numpy.save(folder / "y.npy", labels)
        path = f"models/{model}/training_model.onnx"
        need = command(BIN / "memc", "estimate", path, "--json")
        row = {"model": model, "threads": threads}
        for share, budget in (("unplanned", need["peak_bytes"]), ("half", need["peak_bytes"] // 2)):
            budget = max(budget, need["smallest_feasible_bytes"])
            command(BIN / "memc", "compile", path, "--device", "cpu", "--gpu-mem", f"{budget}B", "-o", folder / "m.plan", "--json")
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(memrun_step(folder / "m.plan", folder, threads, lr, steps))
                theirs.append(ort_step(model, threads, data, labels, lr, steps))
            ours, theirs = statistics.median(ours), statistics.median(theirs)
            row[share] = {"memrun_us": round(ours / 1e3), "ort_us": round(theirs / 1e3), "ratio": round(ours / theirs, 2)}
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    onnxruntime.set_default_logger_severity(3)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        print(json.dumps({
            "compile": compile_times(folder),
            "step": step_times(folder, args.threads, args.steps, args.rounds),
        }, indent=1))


main()
