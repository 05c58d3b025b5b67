"""Plans that gpu.py makes on the machine itself: measured profiles, plans for them, and tuning."""
import concurrent.futures
import pathlib
import time

from gpulab import OutOfTime, parsed

# Options of memc: the step as it is without memc, and a search that ends well before the command's limit.
UNPLANNED, SEARCH = ["--no-mem-rewrite"], ["--time-limit", "60s"]
# What PyTorch's convolutions take of the device, ours may.
CONVOLUTIONS = ["--conv-workspace", "512M"]
# Seconds at load before a profile is measured, and of a run whose step is compared with the modelled one.
WARM, LOAD = 5, 3


def compiled(lab, model, profile, plan, budget=None, *more):
    """A row about a plan that is made here; without a budget, of the step as it is without memc."""
    limit = ["--gpu-mem", f"{budget}B"] if budget else UNPLANNED
    out, wrong = lab.call(lab.folder / "memc", "compile", lab.folder / pathlib.Path(model["file"]).name, *model["options"],
                           "--device", profile, "-o", lab.folder / plan, "--json", *limit, *SEARCH, *CONVOLUTIONS, *more)
    if wrong:
        said = parsed(out) if wrong.get("exit_code") == 4 else {}
        return {"infeasible": said["smallest_feasible_bytes"]} if said else wrong
    return {"plan": plan, **kept(parsed(out))}


def tune(lab, plan, precision):
    """Lets a plan have the algorithms of libraries that are measured to be the fastest, where this memrun can."""
    if lab.gpu and lab.takes("tune", "--device"):
        out, wrong = lab.call(lab.folder / "memrun", "tune", lab.folder / plan, "--device", lab.device, "--json", *precision,
                              *lab.host("tune"))
        if not wrong:
            (lab.folder / plan).with_suffix(".tune.json").write_text(out)
        else:
            lab.say(failure=f"{plan} is not tuned", **wrong)
            # What was stopped would hang with the next plan, too.
            lab.helps["tune"] = "" if wrong["exit_code"] is None else lab.helps["tune"]


def warm(lab, plan, step_ns):
    """Keeps the GPU at load for some seconds, so that its clocks are those of the steps to be measured."""
    if lab.gpu:
        steps = min(1000, max(10, int(WARM * 1e9 / max(1, step_ns))))
        lab.memrun(plan, lab.device, steps=steps)


def at_load(step_ns):
    """Steps that keep a GPU at load for some seconds, 30 at least."""
    return min(300, max(30, int(LOAD * 1e9 / max(1, step_ns))))


def measured(lab, name, budget, *precision):
    """The measured profile of a model, made once: of the unplanned step, and of a first plan for that budget, which has the kernels
    that plans run beside those. The file, and what went wrong."""
    model, stem = lab.prepared["models"][name], lab.folder / "".join([name, *precision, f".{lab.tag}"])
    path = pathlib.Path(f"{stem}.profile.json")
    parts = [f"{stem}.{n}.json" for n in (1, 2)]
    if path.exists():
        return path, None
    # As it is planned for the measured profile, with all the workspace that there is room for.
    made = compiled(lab, model, lab.prepared["profile"], f"{stem.name}.first.plan")
    if "plan" not in made:
        return None, made
    for n, part in enumerate(parts):
        if n > 0:
            made = compiled(lab, model, parts[0], f"{stem.name}.measured.plan", budget, "--effort", 0)
            if "infeasible" in made:
                made = compiled(lab, model, parts[0], f"{stem.name}.measured.plan")
            if "plan" not in made:
                return None, made
        tune(lab, made["plan"], precision)
        warm_up = ["--warm-up", WARM if n == 0 else 1] if lab.takes("profile", "--warm-up") else []
        if n == 0 and not warm_up:
            warm(lab, made["plan"], made["planned_ns"])
        start = time.monotonic()
        _, wrong = lab.call(lab.folder / "memrun", "profile", lab.folder / made["plan"], "--device", lab.device, "-o", part,
                             "--steps", 7, *precision, *warm_up, *lab.host("profile"))
        if wrong:
            return None, wrong
        if lab.meter:
            lab.say(measured=pathlib.Path(part).name, model=name, meter=lab.meter.since(start))
    # The whole file or none.
    fitted = path.with_suffix(".part")
    _, wrong = lab.call(lab.folder / "memc", "fit-profile", *parts, "-o", fitted)
    if wrong:
        return None, wrong
    fitted.replace(path)
    lab.keep("profiles.tar.gz", f"*.{lab.tag}.profile.json")
    return path, None


def at_shares(plan, shares):
    """Bytes of arena: shares of the unplanned one, which as a whole is as large as it becomes."""
    return {share: int(plan["arena_bytes"] * share / 100) if share < 100 else 1 << 60 for share in shares}


def least_budget(plan, caps):
    """The smallest of the budgets that have these bytes of arena."""
    return min(caps) + plan["gpu_mem_bytes"] - plan["arena_bytes"]


def ahead(lab, name, plan, shares):
    """Measures the profile of a model, and begins to make its plans while other things are measured: how long that took, or why not."""
    caps = at_shares(plan, shares).values()
    start = time.monotonic()
    profile, wrong = measured(lab, name, least_budget(plan, caps))
    if wrong:
        return wrong
    begin(lab, name, profile, caps)
    return {"took_s": round(time.monotonic() - start, 1)}


def begin(lab, name, profile, caps, *precision):
    """Begins to make the plans that nobody has begun: the unplanned one, and one for each cap below its arena. Their files and rows,
    by cap."""
    model, stem = lab.prepared["models"][name], "".join([name, *precision, f".{lab.tag}"])

    def once(plan, make):
        # One that a stage's end stopped is begun again.
        if plan not in lab.plans or lab.plans[plan].done() and isinstance(lab.plans[plan].exception(), OutOfTime):
            lab.plans[plan] = lab.pool.submit(make)
        return lab.plans[plan]

    whole = once(f"{stem}.unplanned.plan", lambda: compiled(lab, model, profile, f"{stem}.unplanned.plan"))

    def capped(cap):
        row = whole.result()
        if "plan" not in row or cap >= row["arena_bytes"]:
            return row
        return compiled(lab, model, profile, f"{stem}.{cap}.plan", row["gpu_mem_bytes"] - row["arena_bytes"] + cap)

    return {cap: once(f"{stem}.{cap}.plan", lambda cap=cap: capped(cap)) for cap in caps}


def replanned(lab, name, plan, caps, *precision):
    """Plans for the measured profile, with these bytes of arena: the profile, and a row for each, or one error for all.
    A cap that the unplanned step does not exceed has its plan."""
    profile, wrong = measured(lab, name, least_budget(plan, caps), *precision)
    if wrong:
        return None, dict.fromkeys(caps, wrong)
    made = {cap: row.result() for cap, row in begin(lab, name, profile, caps, *precision).items()}
    # What else is being planned would disturb what is measured next: updates on the host take its cores.
    concurrent.futures.wait(lab.plans.values(), max(0, lab.stage_end - time.monotonic()))
    for path in sorted({row["plan"] for row in made.values() if "plan" in row} - lab.tuned):
        tune(lab, path, precision)
        lab.tuned.add(path)
    return profile, made


def kept(compiled):
    """What the record keeps of what `memc compile --json` says."""
    names = ("gpu_mem_bytes", "arena_bytes", "host_bytes", "swap_in_bytes", "recompute_ns", "stopped")
    return {name: compiled[name] for name in names if name in compiled} | {"planned_ns": compiled["step_ns"]}
