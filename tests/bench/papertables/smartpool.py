"""SmartPool and AutoSwap (Zhang et al., 2019): their tables and figures."""

from .common import MB, MOMENTUM, Table, overhead, percent, table

# SmartPool: load in MB, competitive ratios of CnMem and SmartPool, load without overhead; an iteration's time in ms (that
# with cudaMalloc over SmartPool's speed-up).
SMARTPOOL = [
    ("resnet18_cifar10", 1452, 1.033, 1.003, 1152, 359 / 1.83), ("resnet34_cifar10", 2824, 1.028, 1.001, 2124, 684 / 1.85),
    ("resnet50_cifar10", 4418, 1.030, 1.003, 2906, 993 / 1.88), ("resnet101_cifar10", 8367, 1.028, 1.0005, 5658, 2086 / 1.97),
    ("vgg11_cifar10", 389, 1.169, 1.013, 284, 76 / 1.75), ("vgg13_cifar10", 509, 1.115, 1.016, 360, 94 / 1.71),
    ("vgg16_cifar10", 647, 1.113, 1.012, 447, 122 / 1.73), ("vgg19_cifar10", 785, 1.072, 1.011, 561, 162 / 1.94),
]


def smartpool_1(lab):
    rows = []
    for network, load, cnmem, smartpool, *_ in SMARTPOOL:
        problem = lab.problem(network, 100, "gtx1080ti", MOMENTUM)
        own = {a: lab.allocation(problem, a) for a in ("first-fit", "smartpool", "search")}
        ratio = {a: r["height"] / r["load"] for a, r in own.items()}
        rows.append([f"`{network}`", load, f"{own['search']['load'] / MB:.0f}", cnmem, smartpool,
                     *(f"{ratio[a]:.4f}" for a in own)])
    return table(["network, batch 100", "load, published, MB", "load here, MB", "CnMem", "SmartPool", "`first-fit`",
                  "`smartpool`", "`memc`"], rows)


def paced(ms):
    """Ops slower or faster by one factor, so that together they take `ms`."""
    def edit(problem):
        factor = ms * 1e6 / sum(op["time_ns"] for op in problem["ops"])
        for op in problem["ops"]:
            op["time_ns"] = round(op["time_ns"] * factor)
        return problem
    edit.__name__ = f"paced {ms:.3f}"
    return edit


def smartpool_2(lab):
    rows = []
    # A wait of less than a hundredth of the step is taken as none: the figures of the paper cannot show it.
    hidden = lambda r: r["feasible"] and r["step_over_ideal"] <= 1.01
    for network, load, _, _, reduced, ms in SMARTPOOL:
        problem = lab.problem(network, 100, "gtx1080ti", MOMENTUM)
        slower = lab.problem(network, 100, "gtx1080ti", MOMENTUM, edit=paced(ms))
        peak = lab.unplanned(problem)
        budget = lab.least(problem, "autoswap", hidden)
        plans = [lab.plan(problem, "memc", b, "--no-recompute") for b in (budget, int(peak * reduced / load))]
        at_pace = lab.least(slower, "autoswap", hidden)
        plans.append(lab.plan(slower, "memc", at_pace, "--no-recompute"))
        rows.append([f"`{network}`", percent(1 - reduced / load), f"{ms:.0f}", f"{plans[0]['ideal_ns'] / 1e6:.0f}",
                     percent(1 - budget / peak), *map(overhead, plans[:2]), percent(1 - at_pace / peak), overhead(plans[2])])
    return table(["network, batch 100", "reduction, published", "step, published, ms", "step, modelled, ms", "`autoswap`",
                  "`memc` there: more time", "`memc` at the published reduction: more time",
                  "`autoswap`, ops at the published pace", "`memc` there: more time"], rows)


TABLES = {
    "smartpool-1": Table("SmartPool, table I: pool over load", smartpool_1, """
Nothing swapped, batch 100, momentum. `first-fit` in order of allocation stands beside CnMem, whose pool is not a planner here.

- Loads are lower than in SINGA, which keeps the output of every layer and a gradient for every weight ([models](../../../models/README.md)).
- SmartPool's pools are as close to the load as published; `memc alloc` reaches it on every network.
"""),
    "smartpool-2": Table("AutoSwap, table II: load taken away without overhead", smartpool_2, """
GTX 1080 Ti, batch 100. Without overhead means within 1 %; the reduction is that of the arena. The published step is table I's
cudaMalloc time over SmartPool's speed-up. In the last two columns every op is slower by one factor, so that the step takes the
published time: the link is then as busy as it was.

- At modelled speeds the ResNets of 18 and 34 layers give up what was published, the others less: the modelled step is three
  to five times as fast as SINGA's was, while the link is not. At the published pace `autoswap` hides more than published.
- `memc` gives up in at most 1 % more time what was published, but for the ResNets of 50 and 101 layers at modelled speed.
"""),
}
