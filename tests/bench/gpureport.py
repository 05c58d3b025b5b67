"""What follows from the rows of `gpu.py run`: a verdict for every criterion, and tables for results/gpu.md. GPU.md defines the criteria."""
import statistics

import gpurows

# Largest distance from the CPU: of a loss and an element of a state, relative to 1 and the number; and of a state of the
# large models after one step, relative to the state, since a ReLU within rounding of zero opens on one device alone.
LOSS, STATE, NORM = 1e-4, 5e-3, 0.1
# Of the modelled step; and the models and budgets that this takes.
ERROR, MODELS, BUDGETS = 0.02, 5, 3
EAGER, HALF = 1.0, 0.97
PEERS = {"resnet50": "ResNet-50", "bert_base": "BERT-base"}
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

        for text, over, under, least in ((f"{title} unplanned ≥ {EAGER} × eager", ("memrun", 100), ("eager", 100), EAGER),
                                         (f"{title} at 50 % ≥ {HALF} of unplanned", ("memrun", 50), ("memrun", 100), HALF)):
            ratio = speed(*over) / speed(*under) if speed(*over) and speed(*under) else None
            own, other = why(over, under)
            wrong = own + ([f"{ratio:.3f}"] if ratio is not None and ratio < least else [])
            found[text] = judged(other if ratio is None else None, wrong, f"{ratio:.3f}" if ratio else "")
        mine, (wrong, none) = speed("memrun", 50), why(("memrun", 50))
        none, said = none if mine is None else None, []
        for who in ("checkpoint", "save_on_cpu") if mine else ():
            theirs = speed(who, 50)
            if theirs is None and "oom" not in at.get((who, 50), {}):
                none = why((who, 50))[1]
                continue
            said.append(f"{mine / theirs:.2f} × {who}" if theirs else f"{who} runs out of memory")
            wrong += [said[-1]] if theirs and mine <= theirs else []
        found[f"{title} at 50 % ahead of PyTorch within the same cap"] = judged(none, wrong, ", ".join(said))
    return found


def of_ideal(rows, missing, about):
    ratios = [ratio for row, ratio in ideal_ratios(rows) if 100 / row["share"] >= SMALL_CAP]
    said = f"{min(ratios):.0%} to {max(ratios):.0%} of ideal; {SWAPADVISOR}" if ratios else ""
    none = missing or next(iter(failed(rows)), None if ratios else "no such cap has a plan that ran")
    return {f"throughput ÷ ideal where the peak is at least {SMALL_CAP} × the cap": verdict(none, [], said, "reported")}


def of_more(rows, missing, about):
    none = missing or next(iter(failed(rows)), None if rows else "nothing ran")
    return {"measured": verdict(none, [], f"{len(rows)} rows" if rows else "", "reported")}


def ideal_ratios(rows):
    """Rows with a step, and the model's step without a cap over it."""
    whole = {row["model"]: row["step_ns"] for row in rows if row["share"] == 100 and "step_ns" in row}
    for row in rows:
        if "step_ns" in row and row["model"] in whole:
            yield row, whole[row["model"]] / row["step_ns"]


def ms(row, key="step_ns"):
    return f"{row[key] / 1e6:,.2f}" if key in row else next((w for w in ("infeasible", "skipped") if w in row), "failed")


def gib(count):
    return f"{count / 2**30:,.2f}" if count else ""


def bits_table(rows):
    yield ["model", "runs", "different bits", "steps", "loss from CPU", "state from CPU (element, norm)"]
    for row in rows:
        if "loss_from_cpu" in row:
            runs = [r for r in rows if r["model"] == row["model"] and "states" in r]
            apart = sum((r["losses"], r["states"]) != (runs[0]["losses"], runs[0]["states"]) for r in runs)
            yield [row["model"], len(runs), apart, row["cpu_steps"], f"{row['loss_from_cpu']:.1e}",
                   f"{row['state_from_cpu']:.1e}, {row['norm_from_cpu']:.1e}"]


def sanitizer_table(rows):
    yield ["check", "runs", "found", "failed or skipped"]
    for key in dict.fromkeys((row["tool"], row["flags"]) for row in rows):
        of = [row for row in rows if (row["tool"], row["flags"]) == key]
        without = sum("error" in row and not row.get("found") or "skipped" in row for row in of)
        yield [" ".join(key).strip(), len(of), sum(row.get("found") or 0 for row in of), without]


def accuracy_table(rows):
    yield ["model", "budget", "simulated, ms", "measured, ms", "error"]
    for row in rows:
        error = f"{row['error_of_step']:+.2%}" if "error_of_step" in row else ""
        yield [row["model"], f"{row['share']} %", ms(row, "planned_ns"), ms(row), error]


def throughput_table(rows):
    yield ["model", "cap", "GiB", "memrun, per s", "÷ unplanned", "eager", "tuned", "checkpoint", "save_on_cpu", "memrun ÷ best at cap"]
    for model, share, of in dict.fromkeys((row["model"], row["share"], row["of"]) for row in rows):
        at = {row["who"]: row for row in rows if (row["model"], row["share"], row["of"]) == (model, share, of)}
        speed = {who: row["per_s"] for who, row in at.items() if "per_s" in row}
        whole = next((row.get("per_s") for row in rows if (row["model"], row["who"], row["share"]) == (model, "memrun", 100)), None)
        cells = [model, "none" if share == 100 else f"{share:g} % of {'memrun' if of == 'memrun' else 'PyTorch'}'s peak"]
        cells.append(gib(next(iter(at.values()))["cap_bytes"]))
        for who in ("memrun", None, "eager", "tuned", "checkpoint", "save_on_cpu"):
            if who is None:
                cells.append(f"{speed['memrun'] / whole:.3f}" if whole and "memrun" in speed else "")
            elif who in speed:
                cells.append(f"{speed[who]:,.1f}")
            else:
                row = at.get(who)
                cells.append("" if row is None else next((w for w in ("oom", "infeasible", "skipped") if w in row), "failed"))
        best = max((speed[who] for who in speed if who not in ("memrun", "tuned")), default=None)
        cells.append(f"{speed['memrun'] / best:.2f}" if best and "memrun" in speed else "")
        yield cells


def ideal_table(rows):
    yield ["model", "peak ÷ cap", "arena, GiB", "host, GiB", "step, ms", "÷ ideal"]
    ratios = {row["cell"]: ratio for row, ratio in ideal_ratios(rows)}
    for row in rows:
        ratio = f"{ratios[row['cell']]:.1%}" if row["cell"] in ratios else ""
        yield [row["model"], f"{100 / row['share']:.3g}", gib(row.get("arena_bytes")), gib(row.get("host_bytes")), ms(row), ratio]


# For each stage: its criteria, from its rows, why not all were measured, and what was run; and its table.
STAGES = {
    "bits": (of_bits, bits_table), "accuracy": (of_accuracy, accuracy_table), "throughput": (of_throughput, throughput_table),
    "sanitizer": (of_sanitizer, sanitizer_table), "ideal": (of_ideal, ideal_table), "tf32": (of_more, throughput_table),
    "torch-caps": (of_more, throughput_table), "ideal-measured": (of_ideal, ideal_table),
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
        elif about["quick"] and of["verdict"] == "not met" and stage not in ("bits", "sanitizer"):
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
    """Markdown: the device, a table for each stage, the verdicts, and what failed."""
    rows = gpurows.load(path)
    about, rows = gpurows.one_run(path, rows), list(rows.values())
    torch = next((row["torch"] for row in rows if "torch" in row), "none")
    yield f"Device: {about['device']}; GPU: {about['gpu'] or 'none'}. Programs and plans: {about['programs']}."
    if about["gpu"]:
        yield f"Libraries: {gpurows.short(about['libraries'])}; PyTorch: {torch}."
    if about["quick"]:
        yield "The plans are those of `prepare --quick`: they show that everything runs, and no criterion is met by them."
    verdicts = [["stage", "criterion", "verdict", "detail"]]
    for stage, (_, table) in STAGES.items():
        cells = [row for row in rows if row.get("stage") == stage and "cell" in row]
        lines = list(table(cells))
        if len(lines) > 1:
            yield f"\n### {stage}\n"
            yield from markdown(lines)
        for text, of in judge(stage, rows, about, ended(stage, rows))["criteria"].items():
            verdicts.append([stage, text, of["verdict"], of["detail"]])
    yield "\n### Verdicts\n"
    yield from markdown(verdicts)
    wrong = [row for row in rows if "error" in row]
    if wrong:
        yield "\n### Failures\n"
        lines = [["what", "exit code", "command", "last line"]]
        for row in wrong:
            what = row.get("failure") or f"{row['stage']}: {row['cell']}"
            last = (row["error"].splitlines() or [""])[-1][:240]
            lines.append([what, row.get("exit_code", ""), f"`{row['command']}`" if "command" in row else "", last])
        yield from markdown(lines)


def markdown(lines):
    for n, cells in enumerate(lines):
        yield "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
        if n == 0:
            yield "|---" * len(cells) + "|"
