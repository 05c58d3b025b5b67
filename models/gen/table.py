"""Writes the zoo's table of models/README.md: what `memc estimate` says of every network, beside the papers' figures.

    cargo build --release && python models/gen/table.py [--memc target/release/memc] [NAME...]

Standard library only. With names it prints the rows of these networks and leaves the page alone.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "models" / "README.md"
BEGIN, END = "<!-- begin: models/gen/table.py -->\n", "<!-- end: models/gen/table.py -->\n"
SGD, MOMENTUM, ADAM = "sgd:lr=0.01", "momentum:lr=0.1,momentum=0.9", "adam:lr=0.001"

# Network, batch, optimizer, the paper's figure.
RUNS = [
    ("wresnet152_10", 64, SGD, "SwapAdvisor: 180 GB, 882 ops, 26 sizes"),
    ("wresnet152_4", 64, SGD, ""),
    ("inception_v4_4", 64, SGD, "SwapAdvisor: 71 GB, 830 ops, 64 sizes"),
    ("nasnet_a_r25", 64, SGD, "SwapAdvisor: 193 GB, 5533 ops, 65 sizes"),
    ("rnn_8_8k", 256, SGD, "SwapAdvisor: 118 GB, 8594 ops, 7 sizes"),
    ("brnn_4_8k", 128, SGD, "SwapAdvisor: 99 GB, 9034 ops, 9 sizes"),
    ("resnet18_cifar10", 100, MOMENTUM, "SmartPool: 1452 MB"),
    ("resnet34_cifar10", 100, MOMENTUM, "SmartPool: 2824 MB"),
    ("resnet50_cifar10", 100, MOMENTUM, "SmartPool: 4418 MB"),
    ("resnet101_cifar10", 100, MOMENTUM, "SmartPool: 8367 MB"),
    ("vgg11_cifar10", 100, MOMENTUM, "SmartPool: 389 MB"),
    ("vgg13_cifar10", 100, MOMENTUM, "SmartPool: 509 MB"),
    ("vgg16_cifar10", 100, MOMENTUM, "SmartPool: 647 MB"),
    ("vgg19_cifar10", 100, MOMENTUM, "SmartPool: 785 MB"),
    ("resnet50", 128, ADAM, "DELTA: 11.2 GB"),
    ("resnet101", 128, ADAM, "DELTA: 16553 MB"),
    ("resnext50_32x4d", 128, ADAM, "DELTA: 14726 MB"),
    ("bert_base", 32, ADAM, "DELTA: 19845 MB"),
    ("vgg11", 32, MOMENTUM, ""),
    ("vgg13", 32, MOMENTUM, ""),
    ("vgg16", 32, MOMENTUM, ""),
    ("vgg19", 32, MOMENTUM, ""),
    ("resnet18", 32, MOMENTUM, ""),
    ("resnet34", 32, MOMENTUM, ""),
    ("resnet152", 32, MOMENTUM, ""),
    ("plain20_cifar10", 128, MOMENTUM, ""),
    ("resnet20_cifar10", 128, MOMENTUM, ""),
    ("mobilenet", 32, MOMENTUM, ""),
    ("mobilenet_v2", 32, MOMENTUM, ""),
    ("squeezenet1_0", 32, MOMENTUM, ""),
    ("squeezenet1_1", 32, MOMENTUM, ""),
    ("densenet121", 32, MOMENTUM, ""),
    ("inception_v3", 32, MOMENTUM, ""),
    ("inception_v4", 32, MOMENTUM, ""),
    ("bert_large", 32, ADAM, ""),
    ("gpt2_small", 4, ADAM, ""),
    ("gpt2_medium", 4, ADAM, ""),
    ("gpt2_large", 4, ADAM, ""),
    ("gpt2_xl", 4, ADAM, ""),
    ("vit_b_16", 64, ADAM, ""),
    ("vit_l_16", 64, ADAM, ""),
]


def estimate(memc, name, batch, optimizer):
    # Inception is the only network whose loss is in the graph. BERT's classes are positions, GPT-2's are words.
    special = {"inception_v3": "output", "bert": "cross-entropy:axis=1", "gpt2": "cross-entropy:axis=-1"}
    loss = next((loss for prefix, loss in special.items() if name.startswith(prefix)), "cross-entropy")
    command = [memc, "estimate", f"models/zoo/{name}.onnx", "--dim", f"batch={batch}"]
    command += ["--loss", loss, "--optimizer", optimizer, "--json"]
    start = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    print(f"{name}: exit {run.returncode}, {time.monotonic() - start:.1f} s", run.stderr.strip(), file=sys.stderr)
    return json.loads(run.stdout) if run.returncode == 0 else None


def size(n):
    return f"{n / 2**30:.1f} GiB" if n >= 10 * 2**30 else f"{n / 2**20:,.0f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memc", type=Path, default=ROOT / "target/release/memc")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    names = args.names
    rows = ["| network | batch | optimizer | parameters | ops | tensors | sizes | peak | smallest | paper |\n",
            "|---|---|---|---|---|---|---|---|---|---|\n"]
    for name, batch, optimizer, paper in RUNS:
        if names and name not in names:
            continue
        out = estimate(args.memc.resolve(), name, batch, optimizer)
        if out is None:
            sys.exit(f"no estimate of {name}; the page is as it was")
        figures = [f"{out[k]:,}" for k in ("parameters", "ops", "tensors", "distinct_tensor_sizes")]
        figures += [size(out[k]) for k in ("peak_bytes", "smallest_feasible_bytes")]
        rows.append(f"| {' | '.join([f'`{name}`', str(batch), optimizer.split(':')[0], *figures, paper])} |\n")
    if names:
        print("".join(rows), end="")
        return
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + "".join(rows) + END + after)


if __name__ == "__main__":
    main()
