"""What the papers' tables share: devices, optimizers, and how figures are written."""

from bisect import bisect_right
from collections import namedtuple

from lab import RESERVE, largest

Table = namedtuple("Table", "title make notes")

MB, GB, MIB, GIB = 10**6, 10**9, 1 << 20, 1 << 30
SGD, MOMENTUM, ADAM = "sgd:lr=0.01", "momentum:lr=0.1,momentum=0.9", "adam:lr=0.001"
# Device memory less what its context takes, as in memc's profiles.
V100, GTX1080TI, RTX2080TI, A100 = (m * MIB - RESERVE for m in (16_160, 11_178, 11_019, 81_251))
NOT_GIVEN = "not given"


def percent(x):
    return f"{100 * x:.1f} %"


def speed(report):
    """Throughput over that of the unplanned step."""
    if report["feasible"]:
        return percent(report["ideal_ns"] / report["step_ns"])
    if report.get("skipped"):
        return "not measured"
    return "no plan" if report["feasible"] is False else "out of time"


def overhead(report):
    return percent(report["step_over_ideal"] - 1) if report["feasible"] else speed(report)


def least_time(reports):
    """More time that every plan of these takes, as far as it is proved."""
    proved = [r["bound_ns"] / r["ideal_ns"] - 1 for r in reports if r["feasible"]]
    return percent(min(proved)) if proved else "-"


def seconds(report):
    if report.get("skipped"):
        return "-"
    return f"{report['cpu_s']:.1f}" if report["feasible"] is not None else f"over {report['cpu_s']:.0f}"


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def most(lab, pose, planner, budget, start):
    """The largest batch that a planner finds a plan for, within one in fifty."""
    if planner == "keep-all":
        return largest(start, lambda batch: lab.unplanned(pose(batch)) <= budget)
    if planner == "memc":
        return largest(start, lambda batch: lab.kept(pose(batch))["smallest_feasible_bytes"] <= budget)
    return largest(start, lambda batch: bool(lab.plan(pose(batch), planner, budget, "--effort", "0")["feasible"]))


FeatureMap = namedtuple("FeatureMap", "name ops bytes time_ns")


def feature_maps(problem):
    """What the forward pass makes and the backward pass reads: tensor, the ops that write it, bytes, and these ops' time."""
    ops, writers = problem["ops"], {}
    last = next(i for i, op in enumerate(ops) if op.get("outputs"))
    for op in ops[:last]:
        for t in op["writes"]:
            writers.setdefault(t, []).append(op)
    later = {t for op in ops[last + 1:] for t in op["reads"]}
    return [FeatureMap(t["name"], [op["name"] for op in writers[t["id"]]], t["bytes"], sum(op["time_ns"] for op in writers[t["id"]]))
            for t in problem["tensors"] if t["kind"] == "transient" and t["id"] in later & writers.keys()]


def copy_ns(problem, size, rate="d2h_bytes_per_s"):
    """Time of one copy that has the link for itself."""
    return size / problem["device"][rate] * 1e9 + problem["device"]["copy_latency_ns"]


def overlapped(timeline):
    """How much of the kernels' time has a copy beside it, in microseconds."""
    union = []
    for start, end in sorted(timeline["copy"]):
        if union and start <= union[-1][1]:
            union[-1][1] = max(end, union[-1][1])
        else:
            union.append([start, end])
    starts, total = [u[0] for u in union], 0
    for start, end in timeline["launch"]:
        at = max(0, bisect_right(starts, start) - 1)
        while at < len(union) and union[at][0] < end:
            total += max(0, min(end, union[at][1]) - max(start, union[at][0]))
            at += 1
    return total
