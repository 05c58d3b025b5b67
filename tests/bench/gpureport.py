"""What follows from the rows of `gpu.py run`: a verdict for every criterion, and tables for BENCHMARKS.md."""
import statistics

# Largest distance from the CPU: of a loss and an element of a state, relative to 1 and the number; and of a state of the
# large models after one step, relative to the state, since a ReLU within rounding of zero opens on one device alone.
LOSS, STATE, NORM = 1e-4, 5e-3, 0.1
# Of the modelled step; and the models of three budgets that this takes.
ERROR, MODELS = 0.02, 5
EAGER, HALF = 1.0, 0.97
PEERS = {"resnet50": "ResNet-50", "bert_base": "BERT-base"}
# The cap is small where the peak is this many times as much.
SMALL_CAP = 4
SWAPADVISOR = "SwapAdvisor: 53 to 99 % (figure 6, V100 with 16 GB)"


def verdict(missing, wrong, detail=""):
    """A criterion is not met if anything measured is wrong, and not run if something is missing."""
    return {"verdict": "not met" if wrong else "not run" if missing else "met",
            "detail": "; ".join(map(str, wrong[:5] or [missing or detail]))}


def failed(rows):
    return [f"{row['cell']}: {row['error'].splitlines()[-1][:160]}" for row in rows if "error" in row]


def of_bits(rows, complete):
    runs = [row for row in rows if "how" in row]
    first, other = {}, failed(runs)
    for row in runs:
        if "states" in row:
            has = (row["losses"], row["states"])
            if first.setdefault(row["model"], has) != has:
                other.append(f"{row['cell']}: other bits than the first plan")
    beside = [row for row in rows if row["cell"].endswith(" cpu")]
    far = failed(beside)
    for row in beside:
        if "loss_from_cpu" in row:
            states = row["norm_from_cpu"] > NORM if row["cpu_steps"] == 1 else row["state_from_cpu"] > STATE
            if row["loss_from_cpu"] > LOSS or states or not row["finite_alike"]:
                far.append(f"{row['model']}: {row['loss_from_cpu']:.1e} (loss), {row['state_from_cpu']:.1e} ({row['state']}), "
                           f"{row['norm_from_cpu']:.1e} ({row['norm_state']})")
    missing = None if complete and runs else "not all plans ran"
    return {"planned = unplanned, bit for bit": verdict(missing, other, f"{len(runs)} runs of {len(first)} models"),
            "GPU against CPU within tolerances": verdict(missing, far, f"{len(beside)} models")}


def of_sanitizer(rows, complete):
    found = {}
    for tool in ("memcheck", "racecheck"):
        ran = [row for row in rows if row.get("tool") == tool and "skipped" not in row]
        wrong = [f"{row['cell']}: {row.get('error', row['found'])}" for row in ran if row["found"] != 0]
        skipped = [row["skipped"] for row in rows if "skipped" in row and row.get("tool", tool) == tool]
        missing = skipped[-1] if skipped else None if complete and ran else "not all plans ran"
        found[f"compute-sanitizer {tool} clean"] = verdict(missing, wrong, f"{len(ran)} runs")
    return found


def of_accuracy(rows, complete):
    errors = {row["cell"]: row["error_of_step"] for row in rows if "error_of_step" in row}
    wrong = [f"{cell}: {error:+.1%}" for cell, error in errors.items() if abs(error) > ERROR]
    missing = None
    if not complete or len(errors) < 3 * MODELS:
        missing = f"{len(errors)} of at least {3 * MODELS} cells"
    sizes = sorted(map(abs, errors.values()))
    said = f"worst {sizes[-1]:.2%}, median {statistics.median(sizes):.2%}" if sizes else ""
    return {"simulated step within 2 % of the measured, 5 models × 3 budgets": verdict(missing, failed(rows) + wrong, said)}


def of_throughput(rows, complete):
    found = {}
    for net, title in PEERS.items():
        at = {(row["who"], row["share"]): row for row in rows
              if row["model"].startswith(net) and row["of"] in (None, "memrun")}
        speed = lambda who, share: at.get((who, share), {}).get("per_s")
        for text, over, under, least in ((f"{title} unplanned ≥ {EAGER} × eager", ("memrun", 100), ("eager", 100), EAGER),
                                         (f"{title} at 50 % ≥ {HALF} of unplanned", ("memrun", 50), ("memrun", 100), HALF)):
            ratio = speed(*over) / speed(*under) if speed(*over) and speed(*under) else None
            wrong = failed([at[key] for key in (over, under) if key in at])
            wrong += [f"{ratio:.3f}"] if ratio is not None and ratio < least else []
            found[text] = verdict("not measured" if ratio is None else None, wrong, f"{ratio:.3f}" if ratio else "")
        missing, wrong, said = None, [], []
        for who in ("checkpoint", "save_on_cpu"):
            mine, row = speed("memrun", 50), at.get((who, 50), {})
            if mine is None or not ("per_s" in row or "oom" in row):
                missing = "not measured"
            elif "oom" in row:
                said.append(f"{who} runs out of memory")
            else:
                said.append(f"{mine / row['per_s']:.2f} × {who}")
                wrong += [said[-1]] if mine <= row["per_s"] else []
        found[f"{title} at 50 % ahead of PyTorch within the same cap"] = verdict(missing, wrong, ", ".join(said))
    return found


def of_ideal(rows, complete):
    ratios = [ratio for row, ratio in ideal_ratios(rows) if 100 / row["share"] >= SMALL_CAP]
    said = f"{min(ratios):.0%} to {max(ratios):.0%} of ideal; {SWAPADVISOR}" if ratios else ""
    missing = None if complete and ratios else "not all of them" if ratios else "not measured"
    return {f"throughput ÷ ideal where the peak is at least {SMALL_CAP} × the cap": verdict(missing, failed(rows), said)}


def of_more(rows, complete):
    skipped = [row["skipped"] for row in rows if "skipped" in row]
    missing = skipped[-1] if skipped else None if complete and rows else "not all of them"
    return {"reported": verdict(missing, failed(rows), f"{len(rows)} rows")}


def ideal_ratios(rows):
    """Rows with a step, and the model's step without a cap over it."""
    whole = {row["model"]: row["step_ns"] for row in rows if row["share"] == 100 and "step_ns" in row}
    for row in rows:
        if "step_ns" in row and row["model"] in whole:
            yield row, whole[row["model"]] / row["step_ns"]


def ms(row, key="step_ns"):
    return f"{row[key] / 1e6:,.2f}" if key in row else "infeasible" if "infeasible" in row else "failed"


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
    yield ["check", "runs", "found"]
    for key in dict.fromkeys((row["tool"], row["flags"]) for row in rows if "flags" in row):
        of = [row["found"] for row in rows if (row.get("tool"), row.get("flags")) == key]
        yield [" ".join(key).strip(), len(of), "failed" if None in of else sum(of)]


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


# For each stage: its criteria, from its rows and whether all were measured; and its table.
STAGES = {
    "bits": (of_bits, bits_table), "sanitizer": (of_sanitizer, sanitizer_table), "accuracy": (of_accuracy, accuracy_table),
    "throughput": (of_throughput, throughput_table), "ideal": (of_ideal, ideal_table), "tf32": (of_more, throughput_table),
    "torch-caps": (of_more, throughput_table), "ideal-measured": (of_ideal, ideal_table),
}


def judge(stage, rows, complete):
    """The row that ends a stage of a run: passed, if each of its criteria is met."""
    criteria = STAGES[stage][0]([row for row in rows if row.get("stage") == stage and "complete" not in row], complete)
    return {"stage": stage, "complete": complete, "passed": all(c["verdict"] == "met" for c in criteria.values()), "criteria": criteria}


def report(rows):
    """Markdown: the device, a table for each stage, and the verdicts."""
    runs = [row for row in rows if "run" in row]
    gpus = runs[-1]["devices"]["gpus"] if runs and runs[-1]["devices"] else []
    yield f"Device: {runs[-1]['run']['device'] if runs else 'none'}; GPUs: {', '.join(gpu['name'] for gpu in gpus) or 'none'}."
    verdicts = [["stage", "criterion", "verdict", "detail"]]
    for stage, (_, table) in STAGES.items():
        cells = [row for row in rows if row.get("stage") == stage and "cell" in row]
        lines = list(table(cells))
        if len(lines) > 1:
            yield f"\n### {stage}\n"
            yield from markdown(lines)
        ends = [row for row in rows if row.get("stage") == stage and "complete" in row]
        for text, of in judge(stage, rows, bool(ends) and ends[-1]["complete"])["criteria"].items():
            verdicts.append([stage, text, of["verdict"], of["detail"]])
    yield "\n### Verdicts\n"
    yield from markdown(verdicts)


def markdown(lines):
    for n, cells in enumerate(lines):
        yield "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
        if n == 0:
            yield "|---" * len(cells) + "|"
