"""Plans steps with all starting points of the default planner, without each and without any, and prints a table.

Usage: python tests/bench/ablation.py [PROBLEM.json...] [--effort N] [--shares 0.5,0.25,0] [--networks vgg16,...] [--without NAME,...]
       python tests/bench/ablation.py --rows FILE   (a table of rows that the example printed)
Needs: cargo, and a release build of memc. What is measured is in passes/baselines/examples/ablation.rs.
"""
import argparse
import json
import math
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release" / "memc"
NETWORKS = {
    "vgg16": "gtx1080ti --dim=batch=64 --loss=cross-entropy --optimizer=momentum",
    "vgg11_cifar10": "cpu --dim=batch=32 --loss=cross-entropy --optimizer=adagrad",
    "plain20_cifar10": "gtx1080ti --dim=batch=128 --loss=cross-entropy --optimizer=momentum",
    "squeezenet1_1": "gtx1080ti --dim=batch=128 --loss=cross-entropy --optimizer=momentum",
    "resnet18": "cpu --dim=batch=16 --loss=cross-entropy --optimizer=sgd",
    "bert_base": "v100-16g --dim=batch=8 --loss=mse:output=qa_outputs --optimizer=adamw",
    "mobilenet_v2": "gtx1080ti --dim=batch=64 --loss=cross-entropy --optimizer=momentum",
    "resnet50": "v100-16g --dim=batch=64 --loss=cross-entropy --optimizer=momentum",
    "gpt2_small": "h100 --dim=batch=4 --loss=cross-entropy:axis=-1 --optimizer=adamw",
    "vit_b_16": "h100 --dim=batch=64 --loss=cross-entropy --optimizer=adam",
}


def export(network, folder):
    """File of a network's planning problem."""
    device, *options = NETWORKS[network].split()
    path = pathlib.Path(folder) / f"{network}.json"
    model = ROOT / "models" / "zoo" / f"{network}.onnx"
    subprocess.run([BIN, "export-problem", model, "--device", device, *options, "-o", path], check=True, capture_output=True)
    return str(path)


def measure(args):
    with tempfile.TemporaryDirectory() as folder:
        networks = filter(None, args.networks.split(","))
        problems = [export(n, folder) for n in networks] + [str(pathlib.Path(p).resolve()) for p in args.problems]
        options = [f"effort={args.effort}", f"shares={args.shares}"] + ([f"without={args.without}"] if args.without else [])
        command = ["cargo", "run", "--release", "--quiet", "-p", "memc-baselines", "--example", "ablation", "--"]
        done = subprocess.run([*command, *options, *problems], check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout.splitlines()


def mean(ratios):
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.4f}" if ratios else ""


def row(rows, out):
    """Figures of one variant: it leaves `out` out."""
    pairs = [(r["step"][""], r["step"][out]) for r in rows]
    ratios = [without / full for full, without in pairs if full and without]
    lost = sum(1 for full, without in pairs if full and not without)
    spent = [sum(r["cpu_ms"][which] for r in rows) for which in (out, "")]
    name = {"": "none", "*": "all"}.get(out, out.replace(",", ", "))
    counts = [sum(x > 1 for x in ratios), sum(x < 1 for x in ratios), lost]
    extremes = [f"{f(ratios):.4f}" for f in (max, min)]
    return [name, mean(ratios), *extremes, *map(str, counts), f"{spent[0] / spent[1]:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*")
    parser.add_argument("--effort", type=int, default=2)
    parser.add_argument("--shares", default="0.5,0.25,0")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--without", default="")
    parser.add_argument("--rows")
    args = parser.parse_args()
    lines = pathlib.Path(args.rows).read_text().splitlines() if args.rows else measure(args)
    rows = [json.loads(line) for line in lines]
    print(f"{len(rows)} cells\n")
    head = ["left out", "mean", "worst", "best", "slower", "faster", "plans lost", "planning time"]
    for cells in [head, ["---"] * len(head), *(row(rows, out) for out in rows[0]["step"])]:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
