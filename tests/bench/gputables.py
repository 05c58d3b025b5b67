"""Tables of gpureport.py: for each stage the lines of one, from its rows."""


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


def metered(row):
    """SM clock, memory in use and refused kernels of a row, where it tells them."""
    meter = row.get("meter", {})
    held = f" ({', '.join(meter['clock_held_by'])})" if meter.get("clock_held_by") else ""
    return [f"{meter['sm_mhz']}{held}" if "sm_mhz" in meter else "", gib(meter.get("used_bytes")), refusals(row)]


METERED = ["SM, MHz", "used, GiB", "refused"]


def refusals(row):
    """Kernels that libraries refused, with their launches; nothing where memrun does not tell."""
    if "refused" not in row:
        return ""
    launches = sum(one.get("launches", 0) for one in row["refused"])
    return f"{len(row['refused'])}, {launches} launches" if row["refused"] else "0"


def refused(rows):
    """Each reason of an op once: how many calls have it, the launches of a step, the most workspace, a call of it, and where."""
    yield ["op", "library", "reason", "calls", "launches", "workspace asked, MiB", "allowed, MiB", "such as", "in"]
    kinds = {}
    for row in rows:
        for one in row.get("refused") or ():
            kinds.setdefault(tuple(one.get(name, "") for name in ("op", "library", "reason")), []).append((one, row))
    for kind, found in kinds.items():
        calls = [one for one, _ in found]
        most = lambda name: max((one[name] for one in calls if one.get(name) is not None), default=None)
        size = lambda name: "" if most(name) is None else f"{most(name) / 2**20:,.1f}"
        shapes = dict.fromkeys(f"{' '.join(one.get('operands', []))} {one.get('attrs', '')}".strip() for one in calls)
        places = dict.fromkeys(f"{row.get('stage')}: {row.get('cell')}" for _, row in found)
        launches = max(sum(one.get("launches", 0) for one, of in found if of is row) for _, row in found)
        yield [*kind, len(shapes), launches, size("workspace_asked_bytes"), size("workspace_allowed_bytes"), next(iter(shapes)),
               "; ".join(list(places)[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")]


def smoke(rows):
    yield ["step", "result", "start, s", "step, ms", *METERED, "what it said"]
    for row in rows:
        wrong = "failed" if "error" in row else "skipped" if "skipped" in row else None
        alike = {True: "same bits", False: f"other bits from step {row.get('first_other_step')}"}.get(row.get("alike"))
        said = row.get("error") or row.get("skipped") or ""
        logs = [f"{name}: {text.strip()}" for name, text in row.get("libraries_say", {}).items() if text]
        says = row.get("says", "")
        told = [says] if isinstance(says, str) else [says[of] for of in ("system", "memory", "driver") if of in says]
        text = " ⏎ ".join(" ⏎ ".join([*said.splitlines()[-3:], *logs, *told]).splitlines())
        step = ms(row) if "step_ns" in row else ""
        yield [row["cell"], wrong or alike or "ran", row.get("start_s", ""), step, *metered(row), text[-500:].strip()]


def profiles(rows):
    yield ["model", "took, s"]
    for row in rows:
        yield [row["model"], row.get("took_s", "failed")]


def jobs(rows):
    yield ["what", "result", "step, ms", "took, s", "request, ms"]
    for row in rows:
        alike = {True: "same bits", False: "other bits"}.get(row.get("alike"), "failed")
        yield [row["cell"], alike, ms(row) if "step_ns" in row else "", row.get("took_s", ""), ms(row, "request_ns") if "request_ns" in row else ""]


def bits(rows):
    yield ["model", "runs", "different bits", "steps", "loss from CPU", "state from CPU (element, norm)"]
    for row in rows:
        if "loss_from_cpu" in row:
            runs = [r for r in rows if r["model"] == row["model"] and "states" in r]
            apart = sum((r["losses"], r["states"]) != (runs[0]["losses"], runs[0]["states"]) for r in runs)
            yield [row["model"], len(runs), apart, row["cpu_steps"], f"{row['loss_from_cpu']:.1e}",
                   f"{row['state_from_cpu']:.1e}, {row['norm_from_cpu']:.1e}"]


def sanitizer(rows):
    yield ["check", "runs", "found", "failed or skipped"]
    for key in dict.fromkeys((row["tool"], row["flags"]) for row in rows):
        of = [row for row in rows if (row["tool"], row["flags"]) == key]
        without = sum("error" in row and not row.get("found") or "skipped" in row for row in of)
        yield [" ".join(key).strip(), len(of), sum(row.get("found") or 0 for row in of), without]


def accuracy(rows):
    yield ["model", "budget", "simulated, ms", "measured, ms", "error", *METERED]
    for row in rows:
        error = f"{row['error_of_step']:+.2%}" if "error_of_step" in row else f"drift {row['drift']:+.2%}" if "drift" in row else ""
        share = f"{row['share']} %" if row["share"] is not None else "100 %, again"
        yield [row["model"], share, ms(row, "planned_ns"), ms(row), error, *metered(row)]


OTHERS = ("issued", "eager", "tuned", "checkpoint", "save_on_cpu", "default", "default_nchw", "default+checkpoint", "default+save_on_cpu")


def throughput(rows):
    yield ["model", "cap", "GiB", "memrun, per s", "÷ unplanned", *OTHERS, "memrun ÷ best of the same precision", "÷ best of the defaults",
           *METERED]
    for model, share, of in dict.fromkeys((row["model"], row["share"], row["of"]) for row in rows):
        at = {row["who"]: row for row in rows if (row["model"], row["share"], row["of"]) == (model, share, of)}
        speed = {who: row["per_s"] for who, row in at.items() if "per_s" in row}
        cells = [model, "none" if share == 100 else f"{share:g} % of {'memrun' if of == 'memrun' else 'PyTorch'}'s peak"]
        cells.append(gib(next(iter(at.values()))["cap_bytes"]))
        ratio = at.get("memrun", {}).get("of_unplanned")
        cells += [told(at, "memrun"), f"{ratio:.3f}" if ratio else ""]
        cells += [told(at, who) for who in OTHERS]
        for default in (False, True):
            held = [speed[who] for who in speed if who not in ("memrun", "issued", "tuned") and who.startswith("default") == default]
            best = max(held, default=None)
            cells.append(f"{speed['memrun'] / best:.2f}" if best and "memrun" in speed else "")
        yield [*cells, *metered(at.get("memrun", {}))]


def told(at, who):
    """The speed of one of the programs, or why there is none."""
    row = at.get(who)
    if row is None or "per_s" in row:
        return f"{row['per_s']:,.1f}" if row else ""
    return next((word for word in ("oom", "infeasible", "skipped") if word in row), "failed")


def ideal(rows):
    yield ["model", "peak ÷ cap", "arena, GiB", "host, GiB", "step, ms", "÷ ideal", *METERED]
    ratios = {row["cell"]: ratio for row, ratio in ideal_ratios(rows)}
    for row in rows:
        ratio = f"{ratios[row['cell']]:.1%}" if row["cell"] in ratios else ""
        arenas = [gib(row.get(name)) for name in ("arena_bytes", "host_bytes")]
        yield [row["model"], f"{100 / row['share']:.3g}", *arenas, ms(row), ratio, *metered(row)]
