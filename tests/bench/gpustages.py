"""The stages of `gpu.py run`. Each measures cells and keeps their rows; what follows from them is gpureport.py's."""
import glob
import json
import os
import pathlib
import re
import shutil
import sys

from gpulab import OutOfTime, SMALL, difference, digest

GPU_HOWS = [[], ["--no-graph"], ["--check-memory"], ["--no-graph", "--check-memory"], ["--verify"]]
# Large models run in fewer ways: a process takes seconds to start and save.
LARGE_HOWS = [[], ["--no-graph", "--check-memory"], ["--verify"]]
CPU_HOWS = [[], ["--check-memory"], ["--verify"]]
TIMED = 15
CAPS = [50, 25, 12.5]
PEER = pathlib.Path(__file__).with_name("gputorch.py")


def bits(lab):
    """Every plan in several ways: losses and states; and the first steps' distance from the CPU's."""
    for model, (_, plans) in lab.models("bits").items():
        hows = CPU_HOWS if not lab.gpu else GPU_HOWS if model in SMALL else LARGE_HOWS
        for share, plan in plans.items():
            for how in hows:
                def measure():
                    row, states = lab.states(plan["plan"], lab.device, *how)
                    return {"model": model, "share": share, "how": " ".join(how), **row,
                            **({"states": digest(states)} if states else {})}
                lab.cell("bits", f"{model} {share:g} {' '.join(how)}".strip(), measure)
        lab.cell("bits", f"{model} cpu", lambda: {"model": model, **from_cpu(lab, plans[100]["plan"], model in SMALL)})


def from_cpu(lab, plan, small):
    steps = lab.steps if small else 1
    (mine, states), (other, on_cpu) = lab.states(plan, lab.device, steps=steps), lab.states(plan, "cpu", steps=steps)
    if states is None or on_cpu is None:
        return {"error": mine.get("error") or other["error"]}
    pairs = list(zip(mine["losses"], other["losses"]))
    far = max((abs(a - b) / (1 + abs(b)) for a, b in pairs if None not in (a, b)), default=0.0)
    element, norm = difference(states, on_cpu)
    return {"cpu_steps": steps, "loss_from_cpu": far, "finite_alike": all((a is None) == (b is None) for a, b in pairs),
            "state_from_cpu": element[0], "state": element[1], "norm_from_cpu": norm[0], "norm_state": norm[1]}


def sanitizer_path():
    """compute-sanitizer: on the path, of a toolkit, or of NVIDIA's wheel."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [f"{home}/bin/compute-sanitizer" for home in filter(None, homes)] + ["/usr/local/cuda/bin/compute-sanitizer"]
    for folder in sys.path:
        # The wheel's command is a script that calls the program in this folder.
        places += glob.glob(f"{folder}/nvidia/*/compute-sanitizer/compute-sanitizer")
    return shutil.which("compute-sanitizer") or next((p for p in places if os.access(p, os.X_OK)), None)


def sanitizer(lab):
    """Memory errors and races of every kernel of the small models, issued one by one. The smallest plan has the most copies."""
    tool = sanitizer_path()
    why = None if tool and lab.gpu else "compute-sanitizer was not found" if lab.gpu else "no GPU: --device cuda"
    if why:
        # No cell: a later run may find it.
        lab.say(stage="sanitizer", skipped=why)
        return
    models = [(name, plans[min(plans)]["plan"]) for name, (_, plans) in lab.models("bits").items() if name in SMALL]
    for check, flags in (("memcheck", ["--no-libraries"]), ("racecheck", ["--no-libraries"]), ("memcheck", [])):
        for model, plan in models:
            def measure():
                out, wrong = lab.call(tool, "--tool", check, "--error-exitcode", 99, lab.folder / "memrun", lab.folder / plan,
                                      "--device", lab.device, "--steps", 2, "--no-graph", "--no-progress", *flags)
                text = (out or "") + (wrong["error"] if wrong else "")
                if "Device not supported" in text:
                    return {"model": model, "tool": check, "skipped": text[-300:]}
                said = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
                return {"model": model, "tool": check, "flags": " ".join(flags), "found": int(said[1]) if said else None,
                        **(wrong or {})}
            lab.cell("sanitizer", " ".join([check, model, *flags]), measure)


def accuracy(lab):
    """The step that memc says a plan takes, planned with the measured profile, beside the step that it takes."""
    for model, (_, plans) in lab.models("accuracy").items():
        shares = [100, 60, 40]
        if lab.done("accuracy", [f"{model} {share}" for share in shares]):
            continue
        caps = at_shares(plans[100], shares)
        profile, made = lab.replanned(model, plans[100], caps.values())
        for share in shares:
            def measure():
                row = {"model": model, "share": share, **made[caps[share]]}
                if "plan" in row:
                    row |= lab.memrun(row["plan"], lab.device, steps=TIMED)
                if "step_ns" in row:
                    row["error_of_step"] = row["planned_ns"] / row["step_ns"] - 1
                    row |= traces(lab, row["plan"], profile)
                return row
            lab.cell("accuracy", f"{model} {share}", measure)


def at_shares(plan, shares):
    """Bytes of arena: shares of the unplanned one, which as a whole is as large as it becomes."""
    return {share: int(plan["arena_bytes"] * share / 100) if share < 100 else 1 << 60 for share in shares}


def traces(lab, plan, profile):
    """The planned and a measured step, for whoever looks into a difference."""
    stem = lab.folder / pathlib.Path(plan).stem
    _, wrong = lab.call(lab.folder / "memrun", lab.folder / plan, "--device", lab.device, "--steps", 5, "--no-progress",
                        "--trace", f"{stem}.measured-trace.json")
    if not wrong:
        _, wrong = lab.call(lab.folder / "memc", "trace", lab.folder / plan, "--device", profile, "-o", f"{stem}.planned-trace.json")
    return {"traces": wrong["error"]} if wrong else {}


def peer(lab, model, way, cap, tf32):
    """A row about a step of PyTorch, in a process of its own."""
    spec = {"model": model["net"], "batch": model["batch"], "way": way, "device": lab.device, "cap_bytes": cap, "tf32": tf32,
            "steps": TIMED if lab.gpu else 1}
    out, wrong = lab.call(sys.executable, PEER, json.dumps(spec))
    if wrong:
        missing = "No module named 'torch'" in wrong["error"]
        return {"skipped": "PyTorch is not installed"} if missing else wrong
    return json.loads(out.splitlines()[-1])


def throughput(lab, stage="throughput", of="memrun", flags=()):
    """memrun and PyTorch, unplanned and at caps: shares of memrun's unplanned arena, or of PyTorch's unplanned peak. A cap is that of
    the tensors: of the arena, and of PyTorch's allocator."""
    for name, (model, plans) in lab.models("throughput").items():
        compare(lab, stage, name, model, plans[100], of, flags)


def compare(lab, stage, name, model, plan, of, flags):
    tf32 = bool(flags)
    # What has no cap is the same for every way of choosing one.
    home = "throughput" if of == "torch" else stage

    def key(who, share):
        return f"{name} {who} {share:g} of {of}" if share < 100 else f"{name} {who}"

    def cell(who, share, cap, measure):
        def row():
            about = {"of": of, "cap_bytes": cap} if share < 100 else {"of": None, "cap_bytes": None}
            found = {"model": name, "who": who, "share": share, **about, **measure()}
            if "step_ns" in found:
                found["per_s"] = round(model["units"] / found["step_ns"] * 1e9, 2)
            return found
        return lab.cell(stage if share < 100 else home, key(who, share), row)

    whos, shares = ("memrun", "checkpoint", "save_on_cpu"), CAPS[:1] if tf32 else CAPS
    unplanned, capped = ("eager", "tuned", "memrun"), [key(who, share) for who in whos for share in shares]
    if lab.done(home, [key(who, 100) for who in unplanned]) and lab.done(stage, capped):
        return
    eager, _ = (cell(who, 100, None, lambda: peer(lab, model, who, None, tf32)) for who in ("eager", "tuned"))
    if of == "torch" and "peak_bytes" not in eager:
        return
    caps = at_shares({"arena_bytes": eager["peak_bytes"]} if of == "torch" else plan, [100, *shares])
    _, made = lab.replanned(name, plan, caps.values(), *flags)
    for share, cap in caps.items():
        def measure():
            row = made[cap]
            return row | (lab.memrun(row["plan"], lab.device, *flags, steps=TIMED) if "plan" in row else {})
        cell("memrun", share, cap, measure)
    for who in whos[1:]:
        for share in shares:
            cell(who, share, caps[share], lambda: peer(lab, model, who, caps[share], tf32))


def ideal(lab, stage="ideal", measured=False):
    """Models of several times the cap, beside themselves without one: the plans for the built-in profile, or for the measured one."""
    for name, (model, plans) in lab.models("ideal").items():
        keys = {share: f"{name} {share:g}" for share in plans}
        if lab.done(stage, keys.values()):
            continue
        made = plans
        if measured:
            caps = at_shares(plans[100], plans)
            _, by_cap = lab.replanned(name, plans[100], caps.values())
            made = {share: by_cap[cap] for share, cap in caps.items()}
        for share, at in keys.items():
            def measure():
                row = {"model": name, "share": share, **made[share]}
                if row.get("plan"):
                    row |= lab.memrun(row["plan"], lab.device, steps=6)
                return row
            lab.cell(stage, at, measure)


# Stages in the order in which they run, each with the share of a run's time that it may take. They are more than one together: what
# is left goes on in the next run.
STAGES = {
    "bits": (bits, 0.33),
    "sanitizer": (sanitizer, 0.2),
    "accuracy": (accuracy, 0.5),
    "throughput": (throughput, 0.6),
    "ideal": (ideal, 0.6),
    "tf32": (lambda lab: throughput(lab, "tf32", flags=["--tf32"]), 0.25),
    "torch-caps": (lambda lab: throughput(lab, "torch-caps", "torch"), 0.5),
    "ideal-measured": (lambda lab: ideal(lab, "ideal-measured", True), 0.6),
}


def run_stage(lab, name):
    """Whether every cell of a stage has been measured."""
    try:
        STAGES[name][0](lab)
    except OutOfTime:
        return False
    return True
