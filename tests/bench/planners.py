"""Plans problems and models with every planner at several budgets and prints one JSON object, or tables with --table.

Usage: python tests/bench/planners.py [PROBLEM.json...] [--shares 1,0.75,0.5] [--modes swap,both] [--models] [--planners memc,belady]
                                   [--seeds N]
Needs: a release build of memc.

A cell is a problem, a budget and what is allowed: `swap` in the given order, `recompute`, or `both`. Shares are of the device memory of a
problem file, and of the unplanned peak of a model; --models adds those of MODELS at 75 % and 50 %. `over_ideal` is the
step's time over that of the unplanned step, by the one evaluator; `over_bound` that over the certified bound for the
cell; `over_best` the default planner's time over that of the fastest other; `published` is what the problem file reports
of other systems, over its ideal. Every row says at which `effort` and by which `build` (the beginning of the program's SHA-256) it was
planned. --known takes rows of earlier outputs over: those of another effort are planned again, those of other builds are
counted in the summary. With --seeds N the default planner plans every cell N times, each with another seed of its search,
and a line a cell has the best and the worst of the steps over the ideal one.
"""
import argparse
import collections
import functools
import hashlib
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release" / "memc"
# Model, device profile, arguments that the model needs.
MODELS = [
    ("models/cnn_bn/training_model.onnx", "cpu", []),
    ("models/bert_tiny_nodrop/training_model.onnx", "cpu", []),
    ("models/zoo/vgg16.onnx", "gtx1080ti", ["--dim=batch=64", "--loss=cross-entropy", "--optimizer=momentum"]),
    ("models/zoo/resnet50.onnx", "v100-16g", ["--dim=batch=64", "--loss=cross-entropy", "--optimizer=momentum"]),
    ("models/zoo/inception_v3.onnx", "v100-16g", ["--dim=batch=64", "--loss=output", "--optimizer=momentum"]),
    ("models/zoo/bert_base.onnx", "v100-16g", ["--dim=batch=16", "--loss=mse:output=qa_outputs", "--optimizer=adamw"]),
    ("models/zoo/rnn_8_8k.onnx", "v100-16g", ["--dim=batch=64", "--loss=cross-entropy", "--optimizer=sgd"]),
]
MODEL_SHARES = [0.75, 0.5]
MODES = {"both": [], "swap": ["--no-recompute", "--fixed-order"], "recompute": ["--no-swap"]}
DEFAULT = "memc"
# Times equal to the nanosecond but for rounding in a ratio.
SAME = 1 + 1e-9
NEAR = 1.05


def memc(*args, limit=None):
    return subprocess.run([BIN, *map(str, args)], capture_output=True, text=True, cwd=ROOT, timeout=limit)


def known():
    names = [row["planner"] for row in json.loads(memc("list", "planners", "--json").stdout)]
    return [name for name in names if name != "keep-all"]


@functools.cache
def build():
    return hashlib.sha256(BIN.read_bytes()).hexdigest()[:12]


def planned(cell, planner, args):
    return {"planner": planner, "effort": args.effort, "build": build(), **outcome(cell, planner, args)}


def outcome(cell, planner, args, *more):
    command = ["plan", cell["path"], *cell["arguments"], *MODES[cell["mode"]], "--gpu-mem", f"{cell['budget']}B",
               "--planner", planner, "--json", "--effort", args.effort, *more]
    command += ["--time-limit", f"{args.time_limit}s"] if args.time_limit else []
    try:
        run = memc(*command, limit=args.limit)
    except subprocess.TimeoutExpired:
        return {"timeout_s": args.limit}
    if run.returncode not in (0, 4) or not run.stdout:
        return {"error": run.stderr.strip()}
    report = json.loads(run.stdout)
    bound = report.get("bound_ns")
    return {
        "feasible": report["feasible"], "step_ns": report.get("step_ns"),
        "over_ideal": report.get("step_over_ideal"), "bound_ns": bound,
        "bound_over_ideal": bound / report["ideal_ns"] if bound else None,
        "swap_out_bytes": report.get("swap_out_bytes"), "swap_in_bytes": report.get("swap_in_bytes"),
        "recompute_ns": report.get("recompute_ns"), "arena_bytes": report.get("arena_bytes"),
        "plan_s": round(report["plan_ns"] / 1e9, 2) if "plan_ns" in report else None,
    }


def cells_of_problem(path, args):
    problem = json.loads(path.read_text())
    reference = problem.get("reference", {})
    ideal = reference.get("ideal_ns")
    published = {k: v / ideal for k, v in reference.items() if ideal and k != "ideal_ns"}
    for share in map(float, args.shares.split(",")):
        budget = int(problem["device"]["memory_bytes"] * share)
        for mode in args.modes.split(","):
            yield {"problem": path.stem, "path": path.resolve(), "arguments": [], "share": share, "mode": mode, "budget": budget,
                   "published": published}


def cells_of_model(path, device, arguments, args):
    # Published systems plan the ops as frameworks run them.
    arguments = [*arguments, "--device", device, "--no-fuse"]
    estimate = memc("estimate", path, *arguments, "--json")
    if estimate.returncode:
        raise SystemExit(f"{path}: {estimate.stderr.strip()}")
    need = json.loads(estimate.stdout)
    name = pathlib.Path(path)
    name = name.parent.name if name.stem == "training_model" else name.stem
    for share in MODEL_SHARES:
        budget = max(int(need["peak_bytes"] * share), need["smallest_feasible_bytes"])
        for mode in args.modes.split(","):
            yield {"problem": f"{name} on {device}", "path": path, "arguments": arguments, "share": share, "mode": mode,
                   "budget": budget, "published": {}}


def rows_of(files, effort):
    """Rows of earlier outputs, by cell and planner; those that failed, were given up or are of another effort are planned again."""
    cells = (c for f in files for c in json.loads(f.read_text())["cells"])
    rows = (((c["problem"], c["share"], c["mode"], c["budget"], r["planner"]), r) for c in cells for r in c["rows"])
    return {key: row for key, row in rows if "feasible" in row and row.get("effort", effort) == effort}


def judge(cell):
    """How the default planner does beside the others and the bound."""
    times = {r["planner"]: r["step_ns"] for r in cell["rows"] if r.get("feasible") and r.get("step_ns")}
    mine = times.pop(DEFAULT, None)
    bound = max((r["bound_ns"] for r in cell["rows"] if r["planner"] == DEFAULT and r.get("bound_ns")), default=None)
    best = min(times, key=times.get, default=None)
    cell["best_other"] = best
    cell["over_best"] = mine / times[best] if mine and best else None
    cell["over_bound"] = mine / bound if mine and bound else None
    cell["wins"] = mine is not None and (best is None or mine <= times[best] * SAME) or mine is None and best is None


def cell_text(row):
    if row.get("over_ideal") is None or not row.get("feasible"):
        return "-" if row.get("feasible") is False else "timeout" if "timeout_s" in row else "failed"
    return f"{row['over_ideal']:.4f} ({row['plan_s']:.1f} s)"


def ratio(value):
    return f"{value:.4f}" if value is not None else "-"


def seeds(cells, args):
    for cell in cells:
        rows = [outcome(cell, DEFAULT, args, "--search-seed", seed) for seed in range(args.seeds)]
        steps = [row["over_ideal"] for row in rows if row.get("feasible")]
        row = {name: cell[name] for name in ("problem", "share", "mode", "budget")} | {"build": build(), "plans": len(steps)}
        if steps:
            row |= {"best": min(steps), "worst": max(steps), "worst_over_best": max(steps) / min(steps)}
        print(json.dumps(row), flush=True)


def summary(cells):
    wins = sum(c["wins"] for c in cells)
    builds = collections.Counter(r.get("build", "unknown") for c in cells for r in c["rows"])
    others = sum(n for name, n in builds.items() if name != build())
    near = sum(c["over_bound"] is not None and c["over_bound"] <= NEAR for c in cells)
    text = f"{DEFAULT} <= all others in {wins} of {len(cells)} cells; step / bound <= {NEAR} in {near} of {len(cells)}"
    text += f"; {others} of {builds.total()} rows are of other builds" if others else ""
    return {"cells": len(cells), "not_beaten": wins, "near_bound": near, "builds": builds, "text": text}


def table(cells):
    heads = [f"{c['problem']} × {c['share']:g} {c['mode']}" for c in cells]
    print("| cell | " + f"{DEFAULT} / ideal | {DEFAULT} / best other | best other | {DEFAULT} / bound |")
    print("|---" * 5 + "|")
    for head, c in zip(heads, cells):
        mine = next((r.get("over_ideal") for r in c["rows"] if r["planner"] == DEFAULT), None)
        print(f"| {head} | {ratio(mine)} | {ratio(c['over_best'])} | {c['best_other'] or '-'} | {ratio(c['over_bound'])} |")
    print(f"\n{summary(cells)['text']}\n")
    print("| planner | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for i, row in enumerate(cells[0]["rows"]):
        print(f"| {row['planner']} | " + " | ".join(cell_text(c["rows"][i]) for c in cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=pathlib.Path, nargs="*")
    parser.add_argument("--shares", default="1,0.75,0.5")
    parser.add_argument("--modes", default="swap,both", help="of " + ", ".join(MODES))
    parser.add_argument("--models", action="store_true", help="those of MODELS as well")
    parser.add_argument("--only", default="", help="cells whose name holds this text")
    parser.add_argument("--planners", default="")
    parser.add_argument("--effort", type=int, default=2)
    parser.add_argument("--time-limit", type=int, help="seconds after which a search gives its best")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a plan is given up")
    parser.add_argument("--known", type=pathlib.Path, nargs="*", default=[], help="earlier outputs: what they hold is not planned again")
    parser.add_argument("--seeds", type=int, help="seeds of the search for every cell")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    planners = args.planners.split(",") if args.planners else known()
    cells = [cell for path in args.problems for cell in cells_of_problem(path, args)]
    if args.models:
        cells += [cell for model in MODELS if args.only in model[0] for cell in cells_of_model(*model, args)]
    cells = [cell for cell in cells if args.only in f"{cell['path']}"]
    if not cells:
        parser.error("no problem: name files, or give --models")
    if args.seeds:
        return seeds(cells, args)
    earlier = rows_of(args.known, args.effort)
    for cell in cells:
        key = (cell["problem"], cell["share"], cell["mode"], cell["budget"])
        cell["rows"] = [earlier.get((*key, name)) or planned(cell, name, args) for name in planners]
        judge(cell)
        cell["path"] = str(cell["path"])
    if args.table:
        table(cells)
    else:
        print(json.dumps({"summary": summary(cells), "cells": cells}))


if __name__ == "__main__":
    main()
