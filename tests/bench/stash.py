"""Prints, for every training step below a folder, what rewriting for memory saves and costs, as a Markdown table.

Usage: python tests/bench/stash.py FOLDER [--device cpu]
Needs: a release build of memc; nothing else.

`stash` is what the backward pass needs of the forward pass; `peak` is the unplanned step laid out; `smallest` the
smallest feasible budget; `step` the modelled unplanned step with rewriting over that without.
"""
import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMC = ROOT / "target" / "release" / "memc"


def estimate(path, device, *flags):
    command = [MEMC, "estimate", path, "--device", device, "--json", *flags]
    run = subprocess.run([str(a) for a in command], capture_output=True, text=True)
    return json.loads(run.stdout) if run.returncode == 0 else None


def row(name, before, after):
    stash = after["stash"]
    share = 100 * stash["bytes_after"] / max(1, stash["bytes_before"])
    used = ", ".join(f"{n} {rule}" for rule, n in stash["rules"].items())
    cells = [
        name, before["ops"], after["ops"], f"{stash['bytes_before']:,}", f"{stash['bytes_after']:,}", f"{share:.0f} %",
        f"{before['peak_bytes']:,}", f"{after['peak_bytes']:,}",
        f"{before['smallest_feasible_bytes']:,}", f"{after['smallest_feasible_bytes']:,}",
        f"{after['ideal_ns'] / before['ideal_ns']:.3f}", stash["ops_run_again"], used,
    ]
    return "| " + " | ".join(str(c) for c in cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print("| step | ops | rewritten | stash | rewritten | left | peak | rewritten | smallest | rewritten | step | run again | rules |")
    print("|" + "---|" * 13)
    for path in sorted(args.folder.rglob("*.onnx")):
        if path.name in ("optimizer_model.onnx", "eval_model.onnx"):
            continue
        name = str(path.relative_to(args.folder)).removesuffix("/training_model.onnx")
        before = estimate(path, args.device, "--no-mem-rewrite")
        after = estimate(path, args.device)
        if before and after and after["stash"]["bytes_before"] > 0:
            print(row(name, before, after), flush=True)


if __name__ == "__main__":
    main()
