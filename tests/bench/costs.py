#!/usr/bin/env python3
"""The cost model beside what was measured: tables for results/costs.md.

    costs.py gpu            modelled throughput of networks of models/zoo beside published figures
    costs.py cpu FOLDER     measures networks on the CPU device (profiles and plans go to FOLDER), fits, compares steps

Needs `cargo build --release --workspace`, and Python without packages."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target/release"
ZOO = ROOT / "models/zoo"
MOMENTUM = ["--loss", "cross-entropy", "--optimizer", "momentum:lr=0.1"]
LAMBDA = "Lambda, TensorFlow 1.12"
HOME = "HOME, table 2 (CIFAR-10)"

# Network, batch, options, and published samples per second by device, with the source.
PUBLISHED = [
    ("resnet50", 64, MOMENTUM, LAMBDA, {"v100-16g": 405, "rtx2080ti": 294, "gtx1080ti": 209}),
    ("resnet152", 32, MOMENTUM, LAMBDA, {"v100-16g": 155, "rtx2080ti": 110, "gtx1080ti": 81}),
    ("inception_v3", 64, ["--loss", "output", *MOMENTUM[2:]], LAMBDA,
     {"v100-16g": 259, "rtx2080ti": 194, "gtx1080ti": 136}),
    ("inception_v4", 16, MOMENTUM, LAMBDA, {"v100-16g": 112, "rtx2080ti": 79, "gtx1080ti": 58}),
    ("resnet50", 128, MOMENTUM, "NVIDIA DeepLearningExamples", {"v100-16g": 367}),
    ("bert_large", 4, ["--loss", "cross-entropy:axis=1", "--optimizer", "adam"], "NVIDIA DeepLearningExamples",
     {"v100-16g": 8.96}),
    ("vgg16_cifar10", 2759, MOMENTUM, HOME, {"rtx2080ti": 2786}),
    ("plain20_cifar10", 1040, MOMENTUM, HOME, {"rtx2080ti": 2368}),
]

# Name, model, options, timed steps.
MEASURED = [
    ("mlp_s", "mlp_s/training_model.onnx", [], 11),
    ("cnn_bn", "cnn_bn/training_model.onnx", [], 11),
    ("bert_tiny_nodrop", "bert_tiny_nodrop/training_model.onnx", [], 11),
    ("resnet_tiny", "resnet_tiny/training_model.onnx", [], 11),
    ("lstm_sgd", "lstm_sgd/training_model.onnx", [], 11),
    *((name, f"zoo/{name}.onnx", [*MOMENTUM, "--dim", "batch=8"], 7)
      for name in ("resnet20_cifar10", "vgg11_cifar10", "resnet18_cifar10")),
    *((name, f"zoo/{name}.onnx", [*MOMENTUM, "--dim", "batch=2"], 5)
      for name in ("squeezenet1_1", "mobilenet_v2", "resnet18", "resnet50")),
    ("inception_v3", "zoo/inception_v3.onnx", ["--loss", "output", *MOMENTUM[2:], "--dim", "batch=1"], 5),
    ("bert_base", "zoo/bert_base.onnx", ["--loss", "cross-entropy:axis=1", "--optimizer", "adam", "--dim", "batch=1"], 5),
]


def run(program, *arguments):
    command = [str(BIN / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def ideal_ns(model, options, device):
    return json.loads(run("memc", "estimate", model, *options, "--device", device, "--json"))["ideal_ns"]


def gpu():
    print("| network | batch | device | modelled, samples/s | published | modelled / published | source |")
    print("|---|---|---|---|---|---|---|")
    for name, batch, options, source, devices in PUBLISHED:
        for device, published in devices.items():
            # Published steps keep what their frameworks keep, and run op by op.
            flags = ["--dim", f"batch={batch}", "--no-mem-rewrite", "--no-fuse"]
            ns = ideal_ns(ZOO / f"{name}.onnx", [*options, *flags], device)
            speed = batch / ns * 1e9
            print(f"| {name} | {batch} | {device} | {speed:,.1f} | {published:,} | {speed / published:.2f} | {source} |")


def cpu(folder):
    folder.mkdir(parents=True, exist_ok=True)
    steps, profiles = {}, {}
    for name, model, options, samples in MEASURED:
        plan, profiles[name] = folder / f"{name}.plan", folder / f"{name}.json"
        run("memc", "compile", ROOT / "models" / model, "--device", "cpu", *options, "-o", plan)
        run("memrun", "profile", plan, "-o", profiles[name], "--steps", samples)
        times = json.loads(run("memrun", plan, "--synthetic", "--steps", samples + 1, "--json", "--no-progress"))["step_ns"][1:]
        steps[name] = sorted(times)[len(times) // 2]
    everything = folder / "all.profile.json"
    print(run("memc", "fit-profile", *profiles.values(), "-o", everything))
    print("| network | measured step, ms | nominal `cpu` | measured profile | profile without this network's ops |")
    print("|---|---|---|---|---|")
    for name, model, options, _ in MEASURED:
        others = folder / f"{name}.others.json"
        run("memc", "fit-profile", *(p for n, p in profiles.items() if n != name), "-o", others)
        ratios = (ideal_ns(ROOT / "models" / model, options, device) / steps[name] for device in ("cpu", everything, others))
        print(f"| {name} | {steps[name] / 1e6:,.3f} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gpu"]:
            gpu()
        case ["cpu", folder]:
            cpu(Path(folder))
        case _:
            sys.exit(__doc__)
