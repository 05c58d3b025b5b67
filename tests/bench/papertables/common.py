"""What the papers' tables share: devices, optimizers, and how figures are written."""

from collections import namedtuple

from lab import largest

Table = namedtuple("Table", "title make notes")

MB, GB, MIB, GIB = 10**6, 10**9, 1 << 20, 1 << 30
SGD, MOMENTUM, ADAM = "sgd:lr=0.01", "momentum:lr=0.1,momentum=0.9", "adam:lr=0.001"
# Device memory less what its context takes, as in memc's profiles.
V100, GTX1080TI, RTX2080TI, A100 = ((m - 512) * MIB for m in (16_160, 11_178, 11_019, 81_251))
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
