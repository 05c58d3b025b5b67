"""Runs every script of tests/bench that measures something for the record, one after the other.

Usage: python tests/bench/all.py OUT [--quick] [--only alloc,evaluator] [--problems FILE.json...] [--corpus FOLDER]
Needs: `cargo build --release --workspace`; what a script needs beyond that is in its head. Run it by the Python that has ONNX Runtime
(see BENCHMARKS.md), or the scripts that need a package are skipped, with a line that says so; so are those for which this machine has no
GPU, or the command line no files.

What a script prints goes to OUT/NAME.json (tables: NAME.md) and what it says to OUT/NAME.err; OUT/all.json says
what ran, for how long, and what failed. With --quick, fewer rounds, models or planners: to see that all scripts run. In full it takes
many hours. papers.py rewrites results/papers.md, and is left out of --quick. A failure does not end the run; the exit code is then 1.
"""
import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import time

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parents[1]
BIN = ROOT / "target" / "release"
# The models of "Gradients of larger models" that are committed, and a step to repeat.
GRAPHS = [ROOT / "models" / m for m in ("resnet_tiny/training_model.onnx", "lstm_sgd/training_model.onnx")]
STEP = ROOT / "models/bert_tiny_nodrop_step/adamw.onnx"


def runs(args):
    """For each name: a script with arguments, those added by --quick (None: left out), and Python packages needed."""
    out, quick, problems = args.out, args.quick, args.problems
    few = GRAPHS[:1] if quick else GRAPHS
    return {
        "alloc": (["alloc.py"], ["--runs", "1"], []),
        "evaluator": (["evaluator.py", *problems], [], []),
        "ablation": (["ablation.py", *problems], ["--networks", "vgg16", "--effort", "0"], []),
        "weights": (["weights.py"], [], ["onnx"]),
        "models": (["models.py"], ["--only", "logistic,conv3d,bilstm_lm,nanogpt_tied"],
                   ["onnx", "safetensors", "timm", "torch", "torchvision", "transformers"]),
        "capture": (["capture.py"], ["--only", "logistic,bilstm_lm,nanogpt_tied"],
                    ["memc", "timm", "torch", "torchvision", "transformers"]),
        "pystep": (["pystep.py"], ["--rounds", "1"], ["memc", "torch", "torchvision", "transformers"]),
        "fuzz": (["fuzz.py", "--out", out / "fuzz"], ["--hours", "0.02"], []),
        "scaling": (["scaling.py", STEP], ["--copies", "2", "--rounds", "1"], ["onnx"]),
        "peers": (["peers.py"], ["--steps", "5", "--rounds", "1"], ["numpy", "onnx", "onnxruntime"]),
        "cpusteps": (["cpusteps.py"], ["--only", "gpt2", "--rounds", "1"], ["onnx", "torch", "torchvision", "transformers"]),
        "gradients": (["gradients.py", *few], [], ["numpy", "onnx", "onnxruntime", "safetensors"]),
        "training": (["training.py"], ["--only", "LSTM"], ["torch", "transformers", "safetensors", "onnx"]),
        "fusion": (["fusion.py"], ["--only", "cnn_bn"], []),
        "buckets": (["buckets.py"], ["--no-run", "--layers", "1"], ["numpy", "onnx"]),
        "serve": (["serve.py"], ["--seconds", "2"], []),
        "shared": (["shared.py"], ["--seconds", "2"], []),
        "dynamic-least": (["dynamic.py", "--least", "resnet20_cifar10"], None, []),
        "dynamic-grow": (["dynamic.py", "--grow", "resnet20_cifar10"], None, []),
        "inference": (["inference.py"], ["--only", "resnet50", "--effort", "0"], []),
        "costs-gpu": (["costs.py", "gpu"], [], []),
        "costs-cpu": (["costs.py", "cpu", out / "profiles"], None, []),
        "corpus": (["corpus.py", args.corpus, "--run"], ["--only", "tiny"], []),
        "planners": (["planners.py", *problems, "--models"], ["--planners", "memc", "--only", "cnn_bn"], []),
        "transformers": (["transformer_plans.py"], ["--only", "gpt2_small", "--devices", "h100"], []),
        "papers": (["papers.py", "--json", out / "plans.json"], None, []),
        "gpu-prepare": (["gpu.py", "prepare", out / "gpu"], ["--quick"], []),
        "gpu": (["gpu.py", "run", out / "gpu", "--limit", "3600"], ["--limit", "300"], []),
        "gpu-report": (["gpu.py", "report", out / "gpu" / "results.jsonl"], [], []),
    }


def reason(name, quick, packages, args):
    """Why a script is skipped; nothing where it is not."""
    if args.quick and quick is None:
        return "takes hours: not with --quick"
    if name == "corpus" and args.corpus is None:
        return "no --corpus FOLDER of models"
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        return f"{sys.executable} has no package {', '.join(missing)}"
    if not name.startswith("gpu"):
        return None
    return json.loads(subprocess.check_output([BIN / "memrun", "devices", "--json"]))["no_gpu_because"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--problems", type=pathlib.Path, nargs="*", default=[], help="problem files, memc-problem/1")
    parser.add_argument("--corpus", type=pathlib.Path, help="a folder of models")
    args = parser.parse_args()
    args.out, args.problems = args.out.resolve(), [p.resolve() for p in args.problems]
    args.corpus = args.corpus and args.corpus.resolve()
    table, only = runs(args), [n for n in args.only.split(",") if n]
    if unknown := set(only) - set(table):
        parser.error(f"nothing is called {', '.join(sorted(unknown))}; there are {', '.join(table)}")
    if not (BIN / "memrun").exists():
        sys.exit(f"{BIN / 'memrun'} is not there: cargo build --release --workspace")
    args.out.mkdir(parents=True, exist_ok=True)
    done = []
    for name, ((script, *flags), quick, packages) in table.items():
        if only and name not in only:
            continue
        row = {"name": name, "skipped": reason(name, quick, packages, args), "failed": None, "seconds": 0}
        if row["skipped"] is None:
            command = [sys.executable, BENCH / script, *flags, *(quick if args.quick else [])]
            begun = time.monotonic()
            stdout = args.out / f"{name}{'.md' if name.startswith(('costs', 'fusion', 'fuzz', 'gpu-report')) else '.json'}"
            with stdout.open("w") as out, (args.out / f"{name}.err").open("w") as err:
                code = subprocess.run(list(map(str, command)), stdout=out, stderr=err, cwd=ROOT).returncode
            row["seconds"] = round(time.monotonic() - begun, 1)
            row["failed"] = f"exit code {code}, see {args.out / name}.err" if code else None
        verdict = f"skipped: {row['skipped']}" if row["skipped"] else f"failed: {row['failed']}" if row["failed"] else "ran"
        print(f"{name}: {row['seconds']} s, {verdict}", flush=True)
        done.append(row)
        (args.out / "all.json").write_text(json.dumps(done, indent=1) + "\n")
    return 1 if any(row["failed"] for row in done) else 0


if __name__ == "__main__":
    sys.exit(main())
