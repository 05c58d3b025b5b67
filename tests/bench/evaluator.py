"""Times evaluations of plans, for training steps of VGG-16, Inception v3, BERT base and RNN-8-8K and any problem files, and prints
one JSON object, or a table with --table.

Usage: python tests/bench/evaluator.py [PROBLEM.json...] [--table]
Needs: cargo, and a release build of memc. What is measured is in passes/planner/examples/evaluator.rs.

HOME's published times of one evaluation (its Table 3: VGG16 1.4 ms, InceptionV3 21.8 ms) are beside those
of the discrete-event model on graphs of the same models.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release" / "memc"
MODELS = {
    "vgg16": ["--loss=cross-entropy"], "inception_v3": ["--loss=output"],
    "bert_base": ["--loss=mse:output=qa_outputs"], "rnn_8_8k": ["--loss=cross-entropy"],
}
HOME_US = {"vgg16": 1400, "inception_v3": 21800}
COLUMNS = {
    "problem": "problem", "ops": "ops", "copies": "copies", "evaluate_us": "recurrence, µs", "evaluations_per_s": "per second",
    "op_events_per_s": "op-events/s", "simulate_us": "discrete events, µs", "simulations_per_s": "per second",
    "simulated_op_events_per_s": "op-events/s", "home_over_simulate": "HOME / ours",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = [str(pathlib.Path(p).resolve()) for p in args.problems]
        for name, options in MODELS.items():
            problem = pathlib.Path(folder) / f"{name}.json"
            model = ROOT / "models" / "zoo" / f"{name}.onnx"
            subprocess.run([BIN, "export-problem", model, "--dim=batch=32", "--optimizer=sgd", *options, "--device=v100-16g", "--no-fuse",
                            "-o", problem], check=True, capture_output=True)
            problems.append(str(problem))
        command = ["cargo", "run", "--release", "--quiet", "-p", "memc-planner", "--example", "evaluator", "--", *problems]
        lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        published = HOME_US.get(row["problem"])
        row["home_over_simulate"] = published / row["simulate_us"] if published else None
    if not args.table:
        print(json.dumps({"rows": rows}))
        return
    print("| " + " | ".join(COLUMNS.values()) + " |")
    print("|---" * len(COLUMNS) + "|")
    for row in rows:
        values = [row[key] for key in COLUMNS]
        print("| " + " | ".join("" if v is None else f"{v:.3g}" if isinstance(v, float) else str(v) for v in values) + " |")


if __name__ == "__main__":
    main()
