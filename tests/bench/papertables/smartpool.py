"""SmartPool and AutoSwap (Zhang et al., 2019): their tables and figures."""

import json
from itertools import accumulate

from lab import lives

from .common import MB, MOMENTUM, NOT_GIVEN, Table, least_time, overhead, percent, table

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
        own = {a: lab.allocation(problem, a) for a in ("first-fit", "smartpool", "smartpool-first-fit", "search")}
        ratio = {a: r["height"] / r["load"] for a, r in own.items()}
        rows.append([f"`{network}`", load, f"{own['search']['load'] / MB:.0f}", cnmem, smartpool,
                     *(f"{ratio[a]:.4f}" for a in own)])
    return table(["network, batch 100", "load, published, MB", "load here, MB", "CnMem", "SmartPool", "`first-fit`",
                  "`smartpool`", "`smartpool-first-fit`", "`memc`"], rows)


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


VGG16 = SMARTPOOL[6]


def smartpool_vgg16(lab):
    """VGG16 at modelled speed, and with ops that together take the published time, as table II has it."""
    network, _, _, _, _, ms = VGG16
    return [lab.problem(network, 100, "gtx1080ti", MOMENTUM, edit=edit) for edit in (None, paced(ms))]


def load_over_time(problem):
    """Bytes alive in every op of a step that keeps everything, with workspaces."""
    spans = [line.split(",") for line in lives(problem).splitlines()[1:]]
    change = [0] * (len(problem["ops"]) + 2)
    for _, low, high, size in spans:
        change[int(low)] += int(size)
        change[int(high)] -= int(size)
    return list(accumulate(change))[:len(problem["ops"])]


def smartpool_8(lab):
    modelled, slower = smartpool_vgg16(lab)
    posed = json.loads(slower.read_text())
    load = load_over_time(posed)
    peak = max(load)
    ready = next(i for i, x in enumerate(load) if x >= 0.95 * peak)
    ramp = sum(op["time_ns"] for op in posed["ops"][:ready]) / 1e6
    rows = [["no swap", 647, "100.0 %", f"{peak / MB:.0f}", "100.0 %", "-", "-", "-", "-"]]
    limits = [("limit 500 MB", 500, 500 / 647), ("limit 400 MB", 400, 400 / 647), ("limit 350 MB", 350, 350 / 647),
              ("slightly above the least", 280, 280 / 647)]
    unplanned = lab.unplanned(slower)
    least = lab.least(slower, "autoswap")
    for name, mb, share in limits + [("least of `autoswap`", None, least / unplanned)]:
        budget = int(unplanned * share)
        plans = [lab.plan(slower, p, budget, *flags) for p, flags in (("autoswap", ()), ("memc", ("--no-recompute",)))]
        own = plans[0]
        copied = f"{own['swap_out_bytes'] / MB:.0f}" if own["feasible"] else "-"
        rows.append([name, mb or NOT_GIVEN, percent(mb / 647) if mb else NOT_GIVEN,
                     f"{own['peak_bytes'] / MB:.0f}" if own["feasible"] else "-", percent(share), copied,
                     *map(overhead, plans), least_time(plans)])
    rows.append(["from the start to 95 % of the peak", "24 ms", "-", f"{ramp:.1f} ms", *["-"] * 5])
    return table(["condition", "load, published, MB", "share", "load here, MB", "share", "copied out, MB", "`autoswap`: more time",
                  "`memc`, no recomputation", "bound"], rows)


def smartpool_9(lab):
    scores = ("autoswap-doa", "autoswap-aoa", "autoswap-wdoa", "autoswap-swdoa", "autoswap")
    rows = []
    for problem, pace in zip(smartpool_vgg16(lab), ("modelled", "published")):
        for mb in (500, 447, 400, 350, 300, 280):
            budget = int(lab.unplanned(problem) * mb / 647)
            plans = [lab.plan(problem, p, budget) for p in scores]
            plans.append(lab.plan(problem, "memc", budget, "--no-recompute"))
            published = "0" if mb >= 447 else f"{7.3 / VGG16[5] * 100:.0f} %" if mb == 350 else "below 20 %"
            rows.append([pace, f"{mb} MB", percent(mb / 647), published, *map(overhead, plans), least_time(plans)])
    return table(["pace of ops", "limit, published", "share", "Bayesian, published", *(f"`{p}`" for p in scores), "`memc`, no recomputation",
                  "bound"], rows)


def smartpool_10(lab):
    rows = []
    for network, _, _, _, _, ms in (SMARTPOOL[2], SMARTPOOL[6]):
        for batch in (50, 100, 200):
            problem = lab.problem(network, batch, "gtx1080ti", MOMENTUM, edit=paced(ms * batch / 100))
            own = {a: lab.allocation(problem, a) for a in ("first-fit", "smartpool")}
            pool, peak = own["first-fit"]["height"], lab.unplanned(problem)
            row = [f"`{network}`", batch, f"{own['smartpool']['load'] / MB:.0f}", *(f"{r['height'] / MB:.0f}" for r in own.values())]
            for most in (1.01, 1.15):
                least = lab.least(problem, "autoswap", lambda r: r["feasible"] and r["step_over_ideal"] <= most, within=100)
                r = lab.plan(problem, "memc", least, "--no-recompute")
                row += [f"{least / MB:.0f}", percent(1 - least / pool), overhead(r)]
            rows.append([*row, f"{lab.kept(problem)['smallest_feasible_bytes'] / MB:.0f}"])
    return table(["network", "batch", "load, MB", "`first-fit`", "`smartpool`", "`autoswap`, no more time", "less than `first-fit`",
                  "`memc` there: more time", "`autoswap`, 15 % more time", "less than `first-fit`", "`memc` there: more time",
                  "least with any plan, MB"], rows)


def smartpool_11(lab):
    rows = []
    for network, _, _, _, _, ms in SMARTPOOL[4:] + SMARTPOOL[:4]:
        problem = lab.problem(network, 100, "gtx1080ti", MOMENTUM, edit=paced(ms))
        peak, row = lab.unplanned(problem), [f"`{network}`"]
        for planner in ("checkpoint-sqrt", "superneurons"):
            budget = lab.least(problem, planner, within=100)
            plans = [lab.plan(problem, p, budget) for p in (planner, "autoswap", "memc")]
            row += [percent(1 - budget / peak), *map(overhead, plans)]
        rows.append(row)
    return table(["network, batch 100", "`checkpoint-sqrt`: most taken away", "its more time", "`autoswap` there", "`memc` there",
                  "`superneurons`: most taken away", "its more time", "`autoswap` there", "`memc` there"], rows)


TABLES = {
    "smartpool-1": Table("SmartPool, table I: pool over load", smartpool_1, """
Nothing swapped, batch 100, momentum. `first-fit` in order of allocation stands beside CnMem, whose pool is not a planner here.

- Loads are lower than in SINGA, which keeps the output of every layer and a gradient for every weight ([models](../../../models/README.md)).
- First fit and best fit by size are comparable, as section VI-A says.
- SmartPool's pools are as close to the load as published. `memc` reaches it on six of eight networks, and is within
  0.2 % on the others.
"""),
    "smartpool-2": Table("AutoSwap, table II: load taken away without overhead", smartpool_2, """
GTX 1080 Ti, batch 100. Without overhead means within 1 %; the reduction is that of the arena. The published step is table I's
cudaMalloc time over SmartPool's speed-up. In the last two columns every op is slower by one factor, so that the step takes the
published time: the link is then as busy as it was.

- At modelled speeds the ResNets of 18 and 34 layers give up what was published, the others less: the modelled step is three
  to five times as fast as SINGA's was, while the link is not. At the published pace `autoswap` hides more than published.
- `memc` gives up in at most 1 % more time what was published, but for the ResNets of 50 and 101 layers at modelled speed.
"""),
    "smartpool-8": Table("AutoSwap, figure 8: load of VGG16 under limits", smartpool_8, """
GTX 1080 Ti, batch 100. Every op is slower by one factor, so that the step takes the published 71 ms. The figure is a plot; its limits are
those of the text, and loads here are of the same share. Limits here are on the arena. The published least lies slightly below 280 MB.

- The load reaches 95 % of its peak after 21.5 ms, where the paper says 24.
- At 500 MB nothing waits, as published. At 350 MB `autoswap` copies 242 MB out and waits 3.3 ms; the paper copies 300 MB and waits 7.3 ms.
- The paper says that at most 1.7 of these 7.3 ms could be avoided. Here `memc` avoids all, without recomputation.
- `autoswap` goes on below the published least, to 18 % of the load. The paper's least is at the start of the step, and its text does not
  say what is there.
- At its least its step takes 79 % more time, and `memc` 16 %.
"""),
    "smartpool-9": Table("AutoSwap, figure 9: time by priority score", smartpool_9, """
GTX 1080 Ti, VGG16 at batch 100; limits are of the same share as published. The figure is a plot; its text has no overhead at 447 MB, 7.3 ms
at 350 MB, all below 20 %, and the four scores within 3 %. `autoswap` is the Bayesian search over the scores' weights, 30 tries. *Pace of
ops*: as modelled, or all slower by one factor so that the step takes the published 71 ms. *Bound*: no plan in the row is proved to be able
to take less.

- At the published pace `autoswap` comes close to the figure: next to nothing to 447 MB, 5 % at 350 MB, below 20 % everywhere.
- Single scores go up to 27 % there, where the paper has less than 20 %. They are within 4.3 % of one another, where the paper says 3 %.
- No score is best throughout, as published.
- The paper says that the Bayesian search is never behind the best score. Here it is once, by 0.7 %, at 400 MB.
- Its tries have the four scores, but it judges them by a model of the step without addresses. The plan then waits for room.
- At modelled pace the ops take a third of the published time, and no score hides its copies.
- `memc` takes no more than 0.2 % more time at the published pace, and at most a third of `autoswap`'s at modelled pace.
"""),
    "smartpool-10": Table("SmartPool and AutoSwap, figure 10: memory at batch sizes", smartpool_10, """
GTX 1080 Ti; ops at the published pace of batch 100, in proportion to the batch. *No more time*: within 1 %. `first-fit` stands for CnMem,
whose pool is no planner here. The figure is a plot: it says up to a third less without time, and no less than 60 % less with 15 % more
time.

- The memory of `autoswap` grows less with the batch than that of the others, as published.
- ResNet-50 gives up more than published: 64 to 77 % without time. VGG16 gives up 27 to 44 % without, and 44 to 61 % with 15 % more.
- VGG16 gives up less at small batches, where weights and momentum, 120 MB, are more of the load.
- At every budget of `autoswap` `memc` takes at most 0.7 % more time, where `autoswap` takes 15 %.
"""),
    "smartpool-11": Table("SmartPool and AutoSwap, figure 11: other methods by depth", smartpool_11, """
GTX 1080 Ti, batch 100, ops at the published pace. The figure is a plot. `checkpoint-sqrt` is the method of MXNet-memonger. `superneurons`
is SuperNeurons. *Most taken away*: the least budget with a plan, within one in a hundred of the unplanned arena; the
other methods are at the same budget.

- The paper says that memonger takes 40 % from VGG with less than 30 % more time, and less from ResNets.
- `checkpoint-sqrt` takes 25 to 33 % from VGG, with 12 to 14 % more time. From ResNets it takes more, unlike published: 30 to 41 %,
  with 12 to 19 % more time.
- The paper has several choices of segments for every network; here their number is the root of the layers'.
- `superneurons` takes more away and always has more overhead than `checkpoint-sqrt`, as published.
- `autoswap` takes the same away with less time than both, on every network.
- `memc` takes at most 1.4 % more time at any of these budgets. It swaps and recomputes.
- GeePS leaves the choice of tensors to its user, so that no planner here stands for it.
"""),
}
