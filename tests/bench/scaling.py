"""Times import and graph passes of a one-file step and of the same step several times over, and prints one JSON object.

Usage: python tests/bench/scaling.py STEP.onnx [--copies 10] [--rounds 3]
Needs: onnx, and a release build of memc.

The larger model holds independent copies under prefixed names. `ratio` is its time over the single model's, which stays
near the number of copies where the cost is linear. Times are of the processor, the least of the rounds.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import tempfile

import onnx
from onnx.compose import add_prefix, merge_graphs

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"


def repeated(model, copies):
    """`copies` independent instances of the model in one graph; states keep their X and X_new pairing."""
    whole = None
    for i in range(copies):
        graph = add_prefix(model, f"c{i}.").graph
        whole = graph if whole is None else merge_graphs(whole, graph, io_map=[])
    return onnx.helper.make_model(whole, opset_imports=model.opset_import, ir_version=model.ir_version)


def seconds(path, rounds):
    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([BIN / "memc", "opt", path, "--pass", "graph", "-o", "/dev/null"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(once() for _ in range(rounds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", type=pathlib.Path)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    model = onnx.load(str(args.step))
    with tempfile.TemporaryDirectory() as folder:
        large = pathlib.Path(folder) / "large.onnx"
        onnx.save(repeated(model, args.copies), str(large))
        one, many = seconds(args.step, args.rounds), seconds(large, args.rounds)
    print(json.dumps({
        "model": str(args.step), "nodes": len(model.graph.node), "copies": args.copies,
        "one_s": round(one, 3), "copies_s": round(many, 3), "ratio": round(many / one, 2),
    }))


if __name__ == "__main__":
    main()
