"""What follows from the rows of `gpu.py run`: a verdict for every criterion, and tables for results/gpu.md. GPU.md defines the criteria."""
import statistics

import gpurows
import gputables

# Largest distance from the CPU: of a loss and an element of a state, relative to 1 and the number; and of a state of the
# large models after one step, relative to the state, since a ReLU within rounding of zero opens on one device alone.
LOSS, STATE, NORM = 1e-4, 5e-3, 0.1
# Of the modelled step; and the models and budgets that this takes.
ERROR, MODELS, BUDGETS = 0.02, 5, 3
EAGER, HALF = 1.0, 0.97
PEERS = {"resnet50": "ResNet-50", "bert_base": "BERT-base"}
# What a user has within a cap: PyTorch of the same precision, and with its switches as they are.
SAME = ("eager", "checkpoint", "save_on_cpu")
DEFAULTS = ("default", "default+checkpoint", "default+save_on_cpu")
# The cap is small where the peak is this many times as much.
SMALL_CAP = 4
SWAPADVISOR = "SwapAdvisor: 53 to 99 % (figure 6, V100 with 16 GB)"
# What also holds, or not, of a device that is no GPU.
BITS = "planned = unplanned, bit for bit"


def verdict(missing, wrong, detail="", best="met"):
    """A criterion is not met if anything measured is wrong, and not run if something is missing; what has no threshold is reported."""
    if wrong:
        return {"verdict": "not met", "detail": "; ".join(map(str, wrong[:5]))}
    if missing:
        return {"verdict": "not run", "detail": f"because {missing}" + (f"; so far: {detail}" if detail else "")}
    return {"verdict": best, "detail": detail}


def reason(row):
    """In a line, why a row has no measurement."""
    if "error" in row:
        said = row["error"].splitlines() or [""]
        return f"{row['cell']}: {said[-1][:240]}"
    return row.get("skipped") or (f"{row['cell']}: no plan" if "infeasible" in row else f"{row['cell']}: not measured")


def failed(rows):
    return [reason(row) for row in rows if "error" in row]


def of_smoke(rows, missing, about):
    """Each step ran, and inputs that change reach the steps that they are for."""
    lacks = missing or next((reason(row) for row in rows if "skipped" in row), None) or (None if rows else "nothing ran")
    pairs = [row for row in rows if "alike" in row]
    apart = [f"{row['cell']}: other bits, of the losses from step {row['first_other_step'] or 'none'}" for row in pairs if not row["alike"]]
    fed = [row for row in pairs if row["batches"]]
    none = missing or (None if fed else "no inputs changed")
    return {"every step runs": verdict(lacks, failed(rows), f"{len(rows)} steps" if rows else ""),
            "another batch in every step: graph = no graph, bit for bit": verdict(none, apart, f"{len(pairs)} models" if pairs else "")}


def of_bits(rows, missing, about):
    runs = [row for row in rows if "how" in row]
    first, other = {}, failed(runs)
    for row in runs:
        if "states" in row:
            has = (row["losses"], row["states"])
            if first.setdefault(row["model"], has) != has:
                other.append(f"{row['cell']}: other bits than the first plan")
    without = [reason(row) for row in runs if not {"states", "error"} & row.keys()]
    beside = [row for row in rows if row["cell"].endswith(" cpu")]
    far = failed(beside)
    for row in beside:
        if "loss_from_cpu" in row:
            states = row["norm_from_cpu"] > NORM if row["cpu_steps"] == 1 else row["state_from_cpu"] > STATE
            if row["loss_from_cpu"] > LOSS or states or not row["finite_alike"]:
                far.append(f"{row['model']}: {row['loss_from_cpu']:.1e} (loss), {row['state_from_cpu']:.1e} ({row['state']}), "
                           f"{row['norm_from_cpu']:.1e} ({row['norm_state']})")
            elif not row["losses_compared"] or not row["states_compared"]:
                far.append(f"{row['model']}: nothing finite to compare")
    none = None if runs else "nothing ran"
    return {BITS: verdict(missing or none or next(iter(without), None), other, f"{len(runs)} runs of {len(first)} models" if runs else ""),
            "GPU against CPU within tolerances": verdict(missing or (None if beside else "nothing ran"), far,
                                                         f"{len(beside)} models" if beside else "")}


def of_sanitizer(rows, missing, about):
    found = {}
    for tool in ("memcheck", "racecheck"):
        ran = [row for row in rows if row["tool"] == tool]
        wrong = [f"{row['cell']}: {row['found']} found" for row in ran if row.get("found")]
        without = [reason(row) for row in ran if not row.get("found") and ("error" in row or "skipped" in row)]
        none = missing or next(iter(without), None) or (None if ran else "nothing ran")
        found[f"compute-sanitizer {tool} clean"] = verdict(none, wrong, f"{len(ran)} runs" if ran else "")
    return found


def of_accuracy(rows, missing, about):
    errors = {row["cell"]: row["error_of_step"] for row in rows if "error_of_step" in row}
    rows = [row for row in rows if row["share"] is not None]
    wrong = failed(rows) + [f"{cell}: {error:+.1%}" for cell, error in errors.items() if abs(error) > ERROR]
    budgets = {}
    for row in rows:
        budgets.setdefault(row["model"], []).append("error_of_step" in row)
    whole = sum(sum(has) >= BUDGETS for has in budgets.values())
    few = f"{whole} of at least {MODELS} models have {BUDGETS} budgets measured" if whole < MODELS else None
    sizes = sorted(map(abs, errors.values()))
    said = f"{len(sizes)} cells, worst {sizes[-1]:.2%}, median {statistics.median(sizes):.2%}" if sizes else ""
    text = f"simulated step within {ERROR * 100:g} % of the measured, {MODELS} models × {BUDGETS} budgets"
    return {text: verdict("; ".join(filter(None, [missing, few])), wrong, said)}


def of_throughput(rows, missing, about):
    found = {}
    lacks = [name for name in ("cuBLASLt", "cuDNN") if about["libraries"].get(name) is None]
    lacks = f"memrun ran without {' and '.join(lacks)}" if lacks else None

    def judged(why, wrong, said):
        # Without the libraries that PyTorch has, being slower says nothing; being as fast does.
        return verdict(lacks, [], "; ".join(wrong)) if wrong and lacks else verdict(why, wrong, said)

    for net, title in PEERS.items():
        at = {(row["who"], row["share"]): row for row in rows
              if row["model"].startswith(net) and row["of"] in (None, "memrun")}
        speed = lambda who, share: at.get((who, share), {}).get("per_s")

        def why(*keys):
            """What keeps memrun from a criterion, and what keeps the others from being compared with it."""
            none = [(key, reason(at[key]) if key in at else None) for key in keys if speed(*key) is None]
            own = [text for (who, _), text in none if who == "memrun" and text and "skipped" not in at[who, _]]
            return own, next((text for _, text in none if text), missing or "it was not measured")

        def at_least(over, unders, least):
            """The ratio of a speed to the best of others, held against a threshold."""
            others = [key for key in unders if speed(*key)]
            ratio = speed(*over) / max(speed(*key) for key in others) if speed(*over) and len(others) == len(unders) else None
            own, other = why(over, *unders)
            wrong = own + ([f"{ratio:.3f}"] if ratio is not None and ratio < least else [])
            return judged(other if ratio is None else None, wrong, f"{ratio:.3f}" if ratio else "")

        def ahead(whos):
            """memrun at half, faster than each of these within the same bytes; who runs out of memory is behind."""
            mine, (wrong, none) = speed("memrun", 50), why(("memrun", 50))
            none, said = none if mine is None else None, []
            for who in whos if mine else ():
                theirs = speed(who, 50)
                if theirs is None and "oom" not in at.get((who, 50), {}):
                    none = why((who, 50))[1]
                    continue
                said.append(f"{mine / theirs:.2f} × {who}" if theirs else f"{who} runs out of memory")
                wrong += [said[-1]] if theirs and mine <= theirs else []
            return judged(none, wrong, ", ".join(said))

        defaults = [("default", 100), *([("default_nchw", 100)] if net == "resnet50" else [])]
        found |= {
            f"{title} unplanned ≥ {EAGER} × PyTorch of the same precision": at_least(("memrun", 100), [("eager", 100)], EAGER),
            f"{title} unplanned ≥ {EAGER} × PyTorch's defaults": at_least(("memrun", 100), defaults, EAGER),
            f"{title} at 50 % ≥ {HALF} of unplanned": at_least(("memrun", 50), [("memrun", 100)], HALF),
            f"{title} at 50 % ahead of PyTorch of the same precision within the same cap": ahead(SAME),
            f"{title} at 50 % ahead of PyTorch's defaults within the same cap": ahead(DEFAULTS)}
    return found


def of_ideal(rows, missing, about):
    ratios = [ratio for row, ratio in gputables.ideal_ratios(rows) if 100 / row["share"] >= SMALL_CAP]
    said = f"{min(ratios):.0%} to {max(ratios):.0%} of ideal; {SWAPADVISOR}" if ratios else ""
    none = missing or next(iter(failed(rows)), None if ratios else "no such cap has a plan that ran")
    return {f"throughput ÷ ideal where the peak is at least {SMALL_CAP} × the cap": verdict(none, [], said, "reported")}


def of_jobs(rows, missing, about):
    apart = failed(rows) + [f"{row['cell']}: other bits" for row in rows if not row.get("alike", True)]
    none = missing or (None if rows else "nothing ran")
    return {"jobs beside each other = alone, bit for bit": verdict(none, apart, f"{len(rows)} ways" if rows else "")}


def of_more(rows, missing, about):
    none = missing or next(iter(failed(rows)), None if rows else "nothing ran")
    return {"measured": verdict(none, [], f"{len(rows)} rows" if rows else "", "reported")}


# For each stage: its criteria, from its rows, why not all were measured, and what was run; and its table.
STAGES = {
    "smoke": (of_smoke, gputables.smoke), "profiles": (of_more, gputables.profiles), "bits": (of_bits, gputables.bits),
    "throughput": (of_throughput, gputables.throughput), "accuracy": (of_accuracy, gputables.accuracy),
    "jobs": (of_jobs, gputables.jobs), "caps": (of_more, gputables.throughput),
    "sanitizer": (of_sanitizer, gputables.sanitizer), "ideal": (of_ideal, gputables.ideal), "tf32": (of_more, gputables.throughput),
    "torch-caps": (of_more, gputables.throughput), "ideal-measured": (of_ideal, gputables.ideal),
}


def judge(stage, rows, about, end):
    """The row that ends a stage of a run, from how it ended: passed, if each of its criteria is met or reported."""
    cells = [row for row in rows if row.get("stage") == stage and "cell" in row]
    left = f"{end['left']} of {end['cells']} cells are left: " if "cells" in end else ""
    missing = None if end["complete"] else f"{left}{end['why']}"
    criteria = STAGES[stage][0](cells, missing, about)
    for text, of in criteria.items():
        if about["gpu"] is None and text != BITS:
            criteria[text] = verdict(f"there is no GPU: --device {about['device']}", [])
        elif about["quick"] and of["verdict"] in ("met", "reported"):
            criteria[text] = verdict("the plans are those of --quick", [], of["detail"])
        elif about["quick"] and of["verdict"] == "not met" and stage not in ("smoke", "bits", "sanitizer"):
            criteria[text] = verdict("the plans are those of --quick", [], of["detail"])
    passed = bool(criteria) and all(c["verdict"] in ("met", "reported") for c in criteria.values())
    return {"stage": stage, **end, "passed": passed, "criteria": criteria}


def ended(stage, rows):
    """How a stage ended in the last run that came to its end."""
    if end := next((row for row in rows if row.get("stage") == stage and "complete" in row), None):
        return {name: end[name] for name in ("complete", "cells", "left", "why")}
    begun = any(row.get("stage") == stage for row in rows)
    return {"complete": False, "why": "a run was cut off" if begun else "no run came to this stage"}


def report(path):
    """Markdown, of a file of results."""
    rows = gpurows.load(path)
    return lines(rows, gpurows.one_run(path, rows))


def lines(rows, about):
    """Markdown: the device, the verdicts, what failed, a table for each stage, and kernels that libraries refused."""
    rows = list(rows.values())
    torch = next((row["torch"] for row in rows if "torch" in row), "none")
    yield f"Device: {about['device']}; GPU: {about['gpu'] or 'none'}. Programs and plans: {about['programs']}."
    if about["gpu"]:
        yield f"Libraries: {gpurows.short(about['libraries'])}; PyTorch: {torch}."
    if about["quick"]:
        yield "The plans are those of `prepare --quick`: they show that everything runs, and no criterion is met by them."
    verdicts, tables = [["stage", "criterion", "verdict", "detail"]], []
    for stage, (_, table) in STAGES.items():
        cells = [row for row in rows if row.get("stage") == stage and "cell" in row]
        found = list(table(cells))
        if len(found) > 1:
            tables += [f"\n### {stage}\n", *markdown(found)]
        for text, of in judge(stage, rows, about, ended(stage, rows))["criteria"].items():
            verdicts.append([stage, text, of["verdict"], of["detail"]])
    yield "\n### Verdicts\n"
    yield from markdown(verdicts)
    wrong = [row for row in rows if "error" in row]
    if wrong:
        yield "\n### Failures\n"
        found = [["what", "exit code", "command", "last lines"]]
        for row in wrong:
            what = row.get("failure") or f"{row['stage']}: {row['cell']}"
            last = " ⏎ ".join(row["error"].splitlines()[-3:])[-400:]
            found.append([what, row.get("exit_code", ""), f"`{row['command']}`" if "command" in row else "", last])
        yield from markdown(found)
    yield from tables
    refused = list(gputables.refused(rows))
    if len(refused) > 1:
        yield "\n### Kernels that a library refused\n"
        yield from markdown(refused)


def markdown(lines):
    for n, cells in enumerate(lines):
        yield "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
        if n == 0:
            yield "|---" * len(cells) + "|"
