"""Plans problems with every planner at several budgets and prints one JSON object, or a table with --table.

Usage: python tests/bench/planners.py PROBLEM.json... [--shares 1,0.75,0.5] [--planners memc,belady] [--no-recompute]
Needs: a release build of memc.

Shares are of the problem's device memory. `over_ideal` is the step's time over that of the unplanned step, by the one
evaluator; `published` is what the problem file reports of other systems, over its ideal.
"""
import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release" / "memc"


def known():
    lines = subprocess.run([BIN, "list", "planners"], check=True, capture_output=True, text=True).stdout.splitlines()
    names = [line.split()[0] for line in lines[1:] if line.strip()]
    return [name for name in names if name != "keep-all"]


def planned(problem, budget, planner, args):
    command = [BIN, "plan", problem, "--gpu-mem", f"{budget}B", "--planner", planner, "--json", "--effort", str(args.effort)]
    if args.no_recompute:
        command += ["--no-recompute"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
    except subprocess.TimeoutExpired:
        return {"planner": planner, "timeout_s": args.limit}
    if run.returncode not in (0, 4):
        return {"planner": planner, "error": run.stderr.strip()}
    report = json.loads(run.stdout)
    return {
        "planner": planner, "feasible": report["feasible"], "over_ideal": report["step_over_ideal"],
        "bound_over_ideal": report["bound_ns"] / report["ideal_ns"] if report.get("bound_ns") else None,
        "swap_out_bytes": report["swap_out_bytes"], "swap_in_bytes": report["swap_in_bytes"],
        "recompute_ns": report["recompute_ns"], "arena_bytes": report["arena_bytes"],
        "plan_s": round(report["plan_ns"] / 1e9, 2),
    }


def cell(row):
    if row.get("over_ideal") is None:
        return "-" if row.get("feasible") is False else "failed"
    return f"{row['over_ideal']:.4f} ({row['plan_s']:.1f} s)"


def table(results):
    budgets = [(r["problem"], r["share"]) for r in results]
    print("| planner | " + " | ".join(f"{p} × {s:g}" for p, s in budgets) + " |")
    print("|---" * (len(budgets) + 1) + "|")
    for i, row in enumerate(results[0]["rows"]):
        print(f"| {row['planner']} | " + " | ".join(cell(r["rows"][i]) for r in results) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=pathlib.Path, nargs="+")
    parser.add_argument("--shares", default="1,0.75,0.5")
    parser.add_argument("--planners", default="")
    parser.add_argument("--no-recompute", action="store_true")
    parser.add_argument("--effort", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600, help="seconds for one plan")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    planners = args.planners.split(",") if args.planners else known()
    results = []
    for path in args.problems:
        problem = json.loads(path.read_text())
        reference = problem.get("reference", {})
        ideal = reference.get("ideal_ns")
        published = {k: v / ideal for k, v in reference.items() if ideal and k != "ideal_ns"}
        for share in map(float, args.shares.split(",")):
            budget = int(problem["device"]["memory_bytes"] * share)
            rows = [planned(path, budget, name, args) for name in planners]
            results.append({"problem": path.stem, "share": share, "published": published, "rows": rows})
    if args.table:
        table(results)
    else:
        print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
