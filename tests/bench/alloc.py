"""Heights and times of `memc alloc`, beside published ones.

usage: alloc.py [--runs N] [--seeds N] [--table] [INSTANCE.csv...]

Needs nothing but Python. Without instances, those committed in passes/alloc/tests/data are taken: minimalloc's A to K
at the capacity they were made for, and the lowest allocations of all. Published times are those of minimalloc's slides
(hardware not stated); its heights are its capacities. Times are medians of N runs: of the search by the clock (within a
capacity there are two at once), and the processor time of the whole process. With --seeds, the instances with a
capacity are searched with seeds 0 to N - 1: median and worst of the times, and whether the worst is within a fifth of
the published time.
"""

import argparse
import json
import lzma
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "passes/alloc/tests/data"
MEMC = ROOT / "target/release/memc"
PUBLISHED_MS = {
    "A": 4910,
    "B": 3661,
    "C": 637,
    "D": 2674,
    "E": 3717,
    "F": 5358,
    "G": 1181,
    "H": 1808,
    "I": 3908,
    "J": 883,
    "K": 628,
}
CAPACITY = 1 << 20


def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(path, runs, *flags):
    """The last JSON object, and medians of both times in milliseconds."""
    search, process = [], []
    for _ in range(runs):
        before = spent()
        done = subprocess.run([MEMC, "alloc", path, "--json", *flags], capture_output=True, text=True)
        process.append((spent() - before) * 1e3)
        out = json.loads(done.stdout)
        search.append(out.get("solve_ns", 0) / 1e6)
    return out, statistics.median(search), statistics.median(process)


def row(name, path, runs, *flags, capacity=None):
    if capacity:
        flags += ("--capacity", str(capacity))
    out, search, process = measure(path, runs, *flags)
    published = PUBLISHED_MS.get(name) if capacity == CAPACITY else None
    return {
        "instance": name,
        "capacity": capacity,
        "load": out["load"],
        "height": out["height"],
        "ratio": out["height"] / out["load"],
        "optimal": out.get("optimal", False),
        "solved": "error" not in out,
        "search_ms": round(search, 1),
        "cpu_ms": round(process, 1),
        "published_ms": published,
        "published_over_search": round(published / search, 1) if published and "error" not in out else None,
    }


def seeds_row(name, path, runs, seeds):
    """One instance within its capacity, over seeds."""
    flags = ("--effort", "3", "--capacity", str(CAPACITY))
    found = [measure(path, runs, *flags, "--seed", str(seed)) for seed in range(seeds)]
    times = [search for _, search, _ in found]
    return {
        "instance": name,
        "solved": sum("error" not in out for out, _, _ in found),
        "median_ms": round(statistics.median(times), 1),
        "worst_ms": round(max(times), 1),
        "published_ms": PUBLISHED_MS[name],
        "published_over_worst": round(PUBLISHED_MS[name] / max(times), 1),
        "within_a_fifth": sum("error" not in out and t * 5 <= PUBLISHED_MS[name] for out, t, _ in found),
    }


def table(rows):
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for r in rows:
        cells = ["" if r[c] is None else f"{r[c]:.4f}" if c == "ratio" else str(r[c]) for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", nargs="*")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not MEMC.exists():
        sys.exit(f"{MEMC} is not there: cargo build --release")
    rows = []
    if args.instances:
        rows = [row(pathlib.Path(p).stem, p, args.runs) for p in args.instances]
    elif args.seeds:
        rows = [seeds_row(name, DATA / f"{name}.csv", args.runs, args.seeds) for name in PUBLISHED_MS]
    else:
        for name in PUBLISHED_MS:
            rows.append(row(name, DATA / f"{name}.csv", args.runs, "--effort", "3", capacity=CAPACITY))
        rows += [row(name, DATA / f"{name}.csv", args.runs) for name in [*"ABCDE", "resnet50"]]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "pangu.csv"
            path.write_bytes(lzma.decompress((DATA / "pangu_2.6B.csv.xz").read_bytes()))
            rows.append(row("pangu_2.6B", path, args.runs))
    print(table(rows) if args.table else json.dumps({"runs": args.runs, "rows": rows}, indent=1))


main()
