"""Checks and measures memrun on a GPU: throughput beside PyTorch, the cost model, bits, and memory errors.

Usage: python3 tests/bench/gpu.py prepare FOLDER [--bin target/release] [--profile h100] [--quick] [--only STAGES] [--most MIB]
       python3 tests/bench/gpu.py run FOLDER [--device cuda] [--steps 5] [--limit 540] [--only bits,accuracy] [--again]
                                             [--out FOLDER] [--resume FOLDER] [--host-mem 112G]
       python3 tests/bench/gpu.py report FOLDER
Needs nothing but Python, for `prepare` and `run` release builds of memc and memrun. GPU.md beside this file says what to carry to a
machine with a GPU, what is needed there, what its time goes to, and what the criteria are.

`prepare` compiles plans for a built-in profile and puts memc, memrun and models beside them (half an hour; nothing is made again that
is there). FOLDER.tar.xz has what it made: that and these scripts are what a machine with a GPU needs, and `run` unpacks it where there
is no folder. With --quick it takes a minute and makes plans of a few small models, to see that everything runs; no criterion is met
by those.

`run` measures stage after stage, each within its share of `--limit`, and adds a JSON object for every cell to FOLDER/results.jsonl;
what is there is not measured again, so that the same command goes on where it was cut short, and it says what is left. Rows go to
standard output, a line for each of them and the verdicts to standard error. `--out` gets the rows after every one, measured
profiles, and at the end traces and the report; `--resume` takes them on another machine. Stages:

smoke       the machine, short runs of small models in every way, inputs that change in every step: within a minute and a half. If
            memrun's usual way does not run there, the other stages do not begin
profiles    measured profiles of the models of throughput and accuracy; plans for them are made while bits runs
bits        every plan of small models, ResNet-18, ResNet-50 and BERT, at 100, 60 and 40 % of the unplanned arena, captured as a graph
            and not, with poisoned memory, and beside an unplanned run on the same GPU: the same losses and states after
            `--steps` steps with another batch in each. And near the CPU's
throughput  steps without a cap and at falling caps beside PyTorch's (gputorch.py), in f32 without TF32 and in PyTorch's defaults
accuracy    what memc says that a step takes, planned on that machine with the profile measured there, beside what it takes
jobs        two jobs in one plan, jobs that come and go, and requests over HTTP: the bits of each alone
caps        the rest of throughput: smaller caps, and PyTorch with its search for algorithms
sanitizer   compute-sanitizer's memcheck and racecheck on plans of the small models
ideal       models of several times the cap beside themselves without one
tf32        some of throughput in TF32
torch-caps, ideal-measured: throughput at shares of PyTorch's peak, and ideal planned for the measured profile

Times are medians of steps without the first two, or of more than 20 steps without the first twelve. A stage ends with a row that has its criteria (met, not met, not run and why, or
reported where there is no threshold) and `passed`: all were met or reported. What fails is a row with its command, exit code and
last words. The exit code is 1 if a criterion was not met.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import gpulab
import gpumodels
import gpuplans
import gpureport
import gpusmoke
import gpustages

ROOT = pathlib.Path(__file__).resolve().parents[2]


def memc(folder, *line):
    """What memc prints, of a feasible plan or an infeasible one."""
    run = subprocess.run([folder / "memc", *map(str, line)], capture_output=True, text=True, cwd=ROOT)
    if run.returncode not in (0, 4):
        raise SystemExit(f"memc {' '.join(map(str, line))}: exit {run.returncode}\n{run.stderr}")
    return json.loads(run.stdout)


def prepare(args):
    folder = pathlib.Path(args.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in gpulab.BINARIES:
        shutil.copy(pathlib.Path(args.bin) / name, folder / name)
        if shutil.which("strip"):
            subprocess.run(["strip", folder / name], check=True)
    args.by = f"{gpulab.file_digest(pathlib.Path(args.bin) / 'memc')} for {args.profile}, {gpuplans.UNPLANNED}"
    models, stages = {}, {}
    for stage, of in (gpumodels.QUICK if args.quick else gpumodels.FULL).items():
        if stage not in (args.only.split(",") if args.only else gpumodels.SHARES):
            continue
        models |= of
        for name in of:
            for share in gpumodels.SHARES[stage]:
                stages.setdefault((name, share), []).append(stage)
    graphs = sorted({pathlib.Path(model["file"]).name for model in models.values() if model["file"].startswith("zoo/")})
    for graph in graphs:
        shutil.copy(ROOT / "models" / "zoo" / graph, folder)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        plans = list(pool.map(lambda item: plan(args, folder, models[item[0][0]], *item[0], item[1]), stages.items()))
    whole(folder / "plans.json", json.dumps({"models": models, "plans": plans, "quick": args.quick, "profile": args.profile}, indent=1))
    parts = {"programs": gpulab.BINARIES, "plans": [row["plan"] for row in plans if row["plan"]], "models": graphs,
             "list": ["plans.json"]}
    packed, part = pathlib.Path(f"{folder}.tar.xz"), pathlib.Path(f"{folder}.tar.xz.part")
    with tarfile.open(part, "w:xz") as kept:
        for name in sorted(name for names in parts.values() for name in names):
            kept.add(folder / name, name)
    part.replace(packed)
    sizes = {of: sum((folder / name).stat().st_size for name in names) / 2**20 for of, names in parts.items()}
    said = ", ".join(f"{of} {size:.1f} MiB" for of, size in sizes.items() if size >= 0.05)
    scripts = [path for path in sorted(pathlib.Path(__file__).parent.glob("gpu*.py")) if path.name != "gpucheck.py"]
    total = (packed.stat().st_size + sum(path.stat().st_size for path in scripts)) / 2**20
    print(f"{len(plans)} plans in {folder} ({said})")
    print(f"to carry: {packed} and {', '.join(path.name for path in scripts)}, {total:.2f} MiB in all")
    if args.most is not None and total > args.most:
        print(f"warning: that is more than {args.most:g} MiB", file=sys.stderr)


def whole(path, text):
    """Writes the whole file or none."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def plan(args, folder, model, name, share, stages):
    """A plan and what is known of it, which is kept beside it with who made it. The whole budget is that of the step without memc. Of
    the models of `bits`, the smallest budget where less has no plan."""
    path = folder / f"{name}.{share:g}.plan"
    about = path.with_suffix(".json")
    if not about.exists() or json.loads(about.read_text()).get("by") != args.by:
        base = [ROOT / "models" / model["file"], *model["options"], "--device", args.profile, "--json"]
        need = memc(folder, "estimate", *base, *gpuplans.UNPLANNED)
        reserve, budget = need["reserve_bytes"], gpuplans.UNPLANNED
        if share < 100:
            size = reserve + (need["peak_bytes"] - reserve) * share / 100
            least = memc(folder, "estimate", *base)["smallest_feasible_bytes"] if "bits" in stages else 0
            budget = ["--gpu-mem", f"{max(int(size), least)}B"]
        made = memc(folder, "compile", *base, "-o", path, *budget)
        row = gpuplans.kept(made) if "error" not in made else {"infeasible": made["smallest_feasible_bytes"]}
        whole(about, json.dumps(row | {"by": args.by}))
        print(f"{path.name}: {'no plan' if 'infeasible' in row else 'planned'}", file=sys.stderr, flush=True)
    row = json.loads(about.read_text())
    row.pop("by")
    return {"plan": None if "infeasible" in row else path.name, "model": name, "share": share, "stages": stages, **row}


def unpack(folder, packed):
    """The folder that `prepare` packed, as a whole or not at all."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    gpulab.extract(packed, part)
    part.rename(folder)


def run(args):
    stages = args.only.split(",") if args.only else list(gpustages.STAGES)
    if unknown := set(stages) - set(gpustages.STAGES):
        raise SystemExit(f"no stage is called {', '.join(sorted(unknown))}; there are {', '.join(gpustages.STAGES)}")
    folder, packed = pathlib.Path(args.folder), pathlib.Path(f"{args.folder}.tar.xz")
    if packed.exists() and not folder.exists():
        unpack(folder, packed)
    lab, ends = gpulab.Lab(args), {}
    try:
        # A second time round, what the first left over of the time is for the stages that were cut short.
        for shared in (True, False):
            for stage in stages:
                if shared or stage in ends and timed(ends[stage]) and time.monotonic() < lab.end:
                    share = gpustages.STAGES[stage][2] if shared else 1
                    lab.stage_end = min(lab.end, time.monotonic() + share * args.limit)
                    end = gpustages.run_stage(lab, stage)
                    ends[stage] = gpureport.judge(stage, list(lab.rows.values()), lab.ran, end)
                    lab.say(**ends[stage])
                if stage == "smoke" and (why := gpusmoke.hopeless(lab)):
                    print(f"nothing else is measured, to save the machine's time: {why}. Without smoke in --only it is", file=sys.stderr)
                    return 1
    finally:
        lab.stop()
        lab.keep("tunings.tar.gz", f"*.{lab.tag}.*tune.json")
        lab.keep("traces.tar.gz", f"*.{lab.tag}.*-trace.json")
        if lab.out:
            keep_report(lab)
    ends = list(ends.values())
    over = [f"{end['stage']} ({end['left']} of {end['cells']} cells)" for end in ends if timed(end)]
    other = [f"{end['stage']} ({end['left']} of {end['cells']} cells: {end['why']})" for end in ends
             if not end["complete"] and not timed(end)]
    if over:
        print(f"the time (--limit {args.limit:g} s) was over; left undone: {', '.join(over)}. The same command goes on where this one "
              "stopped", file=sys.stderr)
    if other:
        print(f"cannot run as things are: {', '.join(other)}", file=sys.stderr)
    if not over and not other:
        print(f"complete: {', '.join(stages)}", file=sys.stderr)
    return 1 if any(of["verdict"] == "not met" for end in ends for of in end["criteria"].values()) else 0


def keep_report(lab):
    """A report for a first look. The rows are kept by now, so that nothing is lost where it fails."""
    try:
        (lab.out / "report.md").write_text("\n".join(gpureport.lines(lab.rows, lab.ran)) + "\n")
    except Exception as error:
        print(f"no report ({type(error).__name__}: {error}): `report` makes it of the results", file=sys.stderr)


def binary(text):
    """Bytes of a size such as 112G."""
    return int(float(text.rstrip("GiB")) * 2**30)


def timed(end):
    """Whether a stage ended because its time was over."""
    return not end["complete"] and end["why"].startswith(gpustages.TIME)


def report(args):
    print("\n".join(gpureport.report(args.results)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("prepare")
    one.add_argument("folder")
    one.add_argument("--bin", default=ROOT / "target" / "release")
    one.add_argument("--profile", default="h100", help="of `memc list devices`")
    one.add_argument("--quick", action="store_true", help="a few small models: to see in minutes that everything runs; no verdict counts")
    one.add_argument("--only", default="", help="stages whose plans are made, separated by commas; `bits` has those of smoke")
    one.add_argument("--most", type=float, metavar="MIB", help="warn if what is to be carried is more than this")
    two = verbs.add_parser("run")
    two.add_argument("folder")
    two.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu: to try it, no criterion of a GPU is met by that")
    two.add_argument("--steps", type=int, default=5, help="of the runs whose bits are compared")
    two.add_argument("--limit", type=float, default=540, help="seconds for all of it (540); the same command goes on after that")
    two.add_argument("--only", default="", help="stages, separated by commas; they run in the order given")
    two.add_argument("--models", default="", help="networks, such as bert_base,resnet50, of all stages but smoke, bits, jobs and sanitizer")
    two.add_argument("--peers", default="", help="what of PyTorch is measured, such as eager@100,checkpoint: a way at all shares of the arena, or at one")
    two.add_argument("--again", action="store_true", help="measure again what failed")
    two.add_argument("--out", help="a folder for what is to be kept")
    two.add_argument("--resume", metavar="FOLDER", help="go on from what --out kept on another machine of the same kind")
    two.add_argument("--host-mem", type=binary, metavar="SIZE", help="memory that the machine has, such as 112G, where it shows less")
    three = verbs.add_parser("report")
    three.add_argument("results")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return {"prepare": prepare, "run": run, "report": report}[args.verb](args)
    except FileNotFoundError as missing:
        hints = {"prepare": "build memc and memrun with `cargo build --release --workspace`, or say with --bin where they are",
                 "run": "make the folder with `prepare`; --resume takes what `run --out` kept", "report": "`run` writes it"}
        raise SystemExit(f"{missing.filename} is not there: {hints[args.verb]}") from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
