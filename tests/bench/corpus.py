"""Takes every ONNX model below a folder through memc and prints one JSON object with a row for each, or a table.

Usage: python tests/bench/corpus.py FOLDER [--only TEXT] [--run] [--table]
Needs: a release build of memc and memrun; nothing else.

For each model: import, print, parse, verify; the graph passes; estimate; compile (plan and proof) at 60 % of the
unplanned peak or at the smallest feasible budget, whichever is larger; with --run, memrun --verify of models whose
unplanned step is small. Training artifacts are found by their training_model.onnx; operator tests (model.onnx) are
passed over. Symbolic dimensions and the loss of forward models are given by the tables below.

In the table, ops are counted as imported, in canonical form, and rewritten for memory; `kept` is what the backward pass
needs of the forward pass, in bytes, and `peak` the unplanned step laid out, each before and after that rewriting;
`cost` is the modelled unplanned step with it over that without; `step` is the planned step over the unplanned one at
60 % (or the smallest budget), and a star says that it ran, bit-equal to the unplanned run.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"
DIMS = {"batch": 4, "sequence": 16, "seq": 16, "batch_size": 4}
SMALL_PEAK = 64 << 20


def tool(name, *args):
    start = time.perf_counter()
    run = subprocess.run([str(BIN / name), *map(str, args)], capture_output=True, text=True, cwd=ROOT)
    return run, time.perf_counter() - start


def failure(row, stage, run):
    row["failed"] = stage
    row["exit_code"] = run.returncode
    lines = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()[-1:]
    row["error"] = " ".join(lines)[:400]
    return row


def options(path):
    """Arguments that a model needs beyond its name."""
    if "/fwd/" in str(path):
        loss = "output" if path.name.startswith(("bert_base", "bert_hf", "gpt2", "inception")) else "cross-entropy"
        return ["--loss", loss, "--optimizer", "adamw:lr=1e-3,weight_decay=0.01"]
    return []


def bound(path, args):
    """`args` and a --dim for every symbol that memc asks for."""
    run, _ = tool("memc", "opt", path, *args, "-o", "/dev/null")
    dims = [f"--dim={name}={size}" for name, size in DIMS.items() if f" {name} (" in run.stderr]
    return args + dims


def is_op(line):
    """Whether a line of the text form computes something."""
    return line.startswith("%") and not line.split(" = ", 1)[1].startswith(("input", "state", "const"))


def row_of(path, folder, execute):
    row = {"model": str(path)}
    args = bound(path, options(path))
    row["options"] = " ".join(args)
    text = folder / "m.mir"
    run, _ = tool("memc", "opt", path, *args, "-o", text)
    if run.returncode:
        return failure(row, "import", run)
    again = folder / "again.mir"
    run, _ = tool("memc", "opt", text, "-o", again)
    if run.returncode or text.read_bytes() != again.read_bytes():
        return failure(row, "print and parse", run)
    run, wall = tool("memc", "estimate", path, *args, "--json")
    if run.returncode:
        return failure(row, "estimate", run)
    need = json.loads(run.stdout)
    row.update({key: value for key, value in need.items() if key != "model"})
    run, _ = tool("memc", "estimate", path, *args, "--json", "--no-mem-rewrite")
    if run.returncode:
        return failure(row, "estimate without rewriting", run)
    plain = json.loads(run.stdout)
    row["ops_canonical"], row["peak_bytes_plain"] = plain["ops"], plain["peak_bytes"]
    row["rewrite_cost"] = round(need["ideal_ns"] / max(plain["ideal_ns"], 1), 3)
    row["ops_imported"] = sum(is_op(line) for line in text.read_text().splitlines())
    row["estimate_s"] = round(wall, 3)
    budget = max(need["peak_bytes"] * 6 // 10, need["smallest_feasible_bytes"])
    plan = folder / "m.plan"
    run, wall = tool("memc", "compile", path, *args, "--device", "cpu", "--gpu-mem", f"{budget}B", "-o", plan, "--json")
    if run.returncode:
        return failure(row, "compile", run)
    out = json.loads(run.stdout)
    row["gpu_mem_bytes"] = budget
    row["compile_s"] = round(wall, 3)
    row["step_over_ideal"] = round(out["step_ns"] / max(out["ideal_ns"], 1), 3)
    for key in ("arena_bytes", "swap_in_bytes", "recompute_ops", "checked"):
        row[key] = out[key]
    if execute and need["peak_bytes"] <= SMALL_PEAK:
        run, _ = tool("memrun", plan, "--synthetic", "--steps", 3, "--verify", "--json")
        if run.returncode:
            return failure(row, "run", run)
        row["verified"] = True
    return row


COLUMNS = ("model", "imported", "canonical", "rewritten", "kept", "rewritten", "peak", "rewritten", "smallest", "cost", "step")


def table(rows, folder):
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|---" * len(COLUMNS) + "|"
    for row in rows:
        name = str(pathlib.Path(row["model"]).relative_to(folder)).removesuffix("/training_model.onnx").removesuffix(".onnx")
        if "failed" in row:
            yield f"| {name} | {row['failed']}: {row['error']} |" + " |" * (len(COLUMNS) - 2)
            continue
        stash = row["stash"]
        figures = [row["ops_imported"], row["ops_canonical"], row["ops"], stash["bytes_before"], stash["bytes_after"]]
        figures += [row["peak_bytes_plain"], row["peak_bytes"], row["smallest_feasible_bytes"]]
        ratios = [f"{row['rewrite_cost']:.3f}", f"{row['step_over_ideal']:.3f}{'*' if row.get('verified') else ''}"]
        yield "| " + " | ".join([name, *(f"{n:,}" for n in figures), *ratios]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help="part of the paths to take")
    parser.add_argument("--run", action="store_true", help="execute small models and compare bit for bit")
    parser.add_argument("--table", action="store_true", help="print Markdown instead of JSON")
    args = parser.parse_args()
    models = [
        path for path in sorted(args.folder.rglob("*.onnx"))
        if args.only in str(path) and path.name not in ("eval_model.onnx", "optimizer_model.onnx", "model.onnx")
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows = [row_of(path, pathlib.Path(folder), args.run) for path in models]
    print("\n".join(table(rows, args.folder)) if args.table else json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
