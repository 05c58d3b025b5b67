#!/usr/bin/env python3
"""What fusing element-wise ops brings: kernels, bytes that they move, modelled time and peak of a step, without and with.

Usage: python3 tests/bench/fusion.py [--device h100] [--only NAME]
Needs: a release build of memc."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target/release/memc"
MOMENTUM = ["--loss=cross-entropy", "--optimizer=momentum"]
ADAM = ["--optimizer=adamw"]

# Name, model, options.
MODELS = [
    *((name, f"{name}/training_model.onnx", [])
      for name in ("cnn_bn", "bert_tiny_nodrop", "bert_tiny_dropout", "lstm_sgd", "resnet_tiny")),
    *((f"{name} {batch}", f"zoo/{name}.onnx", [f"--dim=batch={batch}", *MOMENTUM])
      for name, batch in (("resnet50", 64), ("vgg16", 64), ("mobilenet_v2", 64), ("densenet121", 64), ("squeezenet1_1", 64))),
    ("inception_v3 64", "zoo/inception_v3.onnx", ["--dim=batch=64", "--loss=output", MOMENTUM[1]]),
    ("bert_base 16", "zoo/bert_base.onnx", ["--dim=batch=16", "--loss=cross-entropy:axis=1", *ADAM]),
    ("gpt2_small 8", "zoo/gpt2_small.onnx", ["--dim=batch=8", "--loss=cross-entropy:axis=-1", *ADAM]),
    ("vit_b_16 64", "zoo/vit_b_16.onnx", ["--dim=batch=64", "--loss=cross-entropy", *ADAM]),
    ("rnn_8_8k 64", "zoo/rnn_8_8k.onnx", ["--dim=batch=64", "--loss=cross-entropy", "--optimizer=sgd"]),
]


def estimate(model, options, device, *flags):
    command = [BIN, "estimate", ROOT / "models" / model, *options, "--device", device, "--json", *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="h100")
    parser.add_argument("--only", default="", help="models whose name holds this text")
    args = parser.parse_args()
    print("| model, batch | kernels | fused | MiB moved | fused | step, ms | fused | fused / step | peak, MiB | fused | smallest budget, MiB | fused |")
    print("|---" * 12 + "|")
    for name, model, options in MODELS:
        if args.only not in name:
            continue
        one, two = (estimate(model, options, args.device, *flags) for flags in (["--no-fuse"], []))
        cells = [name]
        for of, text in [
            (lambda e: e["work"]["kernels"], "{:,}"),
            (lambda e: e["work"]["bytes"] / 2**20, "{:,.1f}"),
            (lambda e: e["work"]["ns"] / 1e6, "{:,.3f}"),
        ]:
            cells += [text.format(of(one)), text.format(of(two))]
        cells.append(f"{two['work']['ns'] / one['work']['ns']:.3f}")
        for what in ("peak_bytes", "smallest_feasible_bytes"):
            cells += [f"{e[what] / 2**20:,.1f}" for e in (one, two)]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
