"""DELTA (Tang et al., 2022): its tables and figures."""

import json
from functools import cache
from statistics import median

from .common import A100, ADAM, GB, MIB, NOT_GIVEN, Table, copy_ns, feature_maps, least_time, most, overhead, overlapped, percent, table

DELTA = [("resnet101", 128, 16553, 16059, 4577), ("resnext50_32x4d", 128, 14726, 13988, 5356),
         ("bert_base", 32, 19845.4, 19071.3, 19023.5)]


def delta_2(lab):
    rows = []
    for network, batch, baseline, dtr, delta in DELTA:
        problem = lab.problem(network, batch, "a100-80g", ADAM)
        peak = lab.unplanned(problem)
        least = lambda planner: percent(lab.least(problem, planner, within=50) / peak)
        row = [f"`{network}`, batch {batch}", f"{baseline:,.0f}", f"{peak / MIB:,.0f}", percent(dtr / baseline), least("dtr"),
               percent(delta / baseline), least("delta")]
        plans = [lab.plan(problem, p, int(peak * delta / baseline)) for p in ("dtr", "delta", "memc")]
        smallest = lab.kept(problem)["smallest_feasible_bytes"] / peak
        rows.append([*row, percent(smallest), *map(overhead, plans)])
    return table(["network", "baseline, published, MB", "unplanned here, MiB", "DTR ÷ baseline", "least of `dtr`",
                  "DELTA ÷ baseline", "least of `delta`", "least of `memc`", "`dtr` in DELTA's share: more time", "`delta`",
                  "`memc`"], rows)


def delta_3(lab):
    published = {"resnet50": (891, 1072, 1814), "resnet101": (594, 761, 1336)}
    rows = []
    for network, batches in published.items():
        pose = cache(lambda batch: lab.problem(network, batch, "a100-80g", ADAM))
        own = [most(lab, pose, "keep-all", A100, batches[0])]
        starts = [("dtr", own[0] * batches[1] // batches[0]), ("delta", own[0] * batches[2] // batches[0]), ("memc", 6 * own[0])]
        own += [most(lab, pose, planner, A100, start) for planner, start in starts]
        at = pose(own[0] * batches[2] // batches[0])
        row = [f"`{network}`", batches[0], own[0]]
        row += [x for i in (1, 2) for x in (f"{batches[i] / batches[0]:.2f}", f"{own[i] / own[0]:.2f}")]
        rows.append([*row, f"{own[3] / own[0]:.2f}", *(overhead(lab.plan(at, p, A100)) for p in ("dtr", "delta", "memc"))])
    return table(["network", "largest batch, published", "`keep-all`", "DTR", "`dtr`", "DELTA", "`delta`", "`memc`",
                  "`dtr` at DELTA's growth: more time", "`delta`", "`memc`"], rows)


def delta_figure_3(lab):
    # Batch, and GB of the baseline, DTR and DELTA.
    rows = []
    for batch, baseline, dtr, delta in ((128, 11.2, 10.5, 4.11), (256, 21.3, None, 8.4), (891, 71.54, None, None),
                                        (1072, None, 32.87, None), (1814, None, None, 62.6)):
        problem = lab.problem("resnet50", batch, "a100-80g", ADAM)
        peak = lab.unplanned(problem)
        shown = lambda gb: f"{gb} GB" if gb else NOT_GIVEN
        row = [batch, shown(baseline) if batch < 1072 else "out of memory", f"{peak / GB:.1f} GB", shown(dtr)]
        row += [f"{lab.least(problem, 'dtr', within=50) / GB:.1f} GB", shown(delta), f"{lab.least(problem, 'delta', within=50) / GB:.1f} GB",
                f"{lab.kept(problem)['smallest_feasible_bytes'] / GB:.1f} GB"]
        if delta:
            plans = [lab.plan(problem, p, int(delta * GB)) for p in ("dtr", "delta", "memc")]
            row += [*map(overhead, plans), least_time(plans)]
        else:
            row += ["-"] * 4
        rows.append(row)
    return table(["batch", "baseline, published", "unplanned here", "DTR, published", "least of `dtr`", "DELTA, published", "least of `delta`",
                  "least of `memc`", "in DELTA's memory: `dtr`, more time", "`delta`", "`memc`", "bound"], rows)


# Budgets in the tables of one network, over its memory without a plan.
DELTA_SHARES = (0.75, 0.5, 0.37)


def delta_figure_5(lab):
    rows = []
    for share in DELTA_SHARES:
        problem = lab.problem("resnet50", 128, "a100-80g", ADAM)
        budget = int(lab.unplanned(problem) * share)
        plans = []
        for planner in ("delta", "memc"):
            r = lab.plan(problem, planner, budget)
            plans.append(r)
            spans = lab.timeline("resnet50", 128, "a100-80g", ADAM, planner, budget)
            kernels, copies = (sum(end - start for start, end in spans[k]) for k in ("launch", "copy"))
            ended = lab.explained(problem, planner, budget)["tensors"]
            back = [gap["back_by"] for t in ended if t["bytes"] >= MIB for gap in t["gaps"]]
            rows.append([percent(share), f"`{planner}`", back.count("copy"), len(back) - back.count("copy"), f"{(kernels + copies) / 1e3:.0f}",
                         f"{spans['step'] / 1e3:.0f}", percent(1 - spans["step"] / (kernels + copies)),
                         percent(overlapped(spans) / max(copies, 1)), overhead(r)])
        rows.append([percent(share), "bound", *["-"] * 6, least_time(plans)])
    return table(["budget ÷ unplanned", "method", "back by copy", "back by recomputation", "all in sequence, ms", "overlapped, ms",
                  "less time", "kernel time beside copies ÷ copies", "more time than unplanned"], rows)


FILTERS = ("delta", "delta-lru", "delta-greedy")


def delta_figure_7(lab):
    rows = []
    for network in ("resnet50", "mobilenet_v2", "resnext50_32x4d"):
        problem = lab.problem(network, 128, "a100-80g", ADAM)
        peak = lab.unplanned(problem)
        least = [f"`{network}`", "least"] + [percent(lab.least(problem, p, within=50) / peak) for p in FILTERS]
        rows.append([*least, *["-"] * 4, percent(lab.kept(problem)["smallest_feasible_bytes"] / peak), "-"])
        for share in DELTA_SHARES:
            plans = [lab.plan(problem, p, int(peak * share)) for p in (*FILTERS, "memc")]
            used = [percent(r["arena_bytes"] / peak) if r["feasible"] else "no plan" for r in plans[:3]]
            rows.append([f"`{network}`", percent(share), *used, *map(overhead, plans[:3]), overhead(plans[3]), "-", least_time(plans)])
    return table(["network, batch 128", "budget ÷ unplanned", "memory of `delta`", "`delta-lru`", "`delta-greedy`", "more time of `delta`",
                  "`delta-lru`", "`delta-greedy`", "`memc`", "least of `memc`", "bound"], rows)


def delta_figure_8(lab):
    problem = lab.problem("resnet50", 128, "a100-80g", ADAM)
    rows = []
    for share in DELTA_SHARES[:2]:
        budget = int(lab.unplanned(problem) * share)
        for planner in (*FILTERS, "memc"):
            r, spans = lab.plan(problem, planner, budget), lab.timeline("resnet50", 128, "a100-80g", ADAM, planner, budget)
            if spans is None or not r["feasible"]:
                rows.append([percent(share), f"`{planner}`", *["-"] * 5, "no plan"])
                continue
            gaps = [gap["back_by"] for t in lab.explained(problem, planner, budget)["tensors"] for gap in t["gaps"]]
            kernels = sum(end - start for start, end in spans["launch"])
            rows.append([percent(share), f"`{planner}`", len(gaps), gaps.count("copy"), f"{r['swap_out_bytes'] / GB:.1f}",
                         percent(overlapped(spans) / spans["step"]), percent(1 - kernels / spans["step"]), overhead(r)])
    return table(["budget ÷ unplanned", "method", "tensors away", "back by copy", "copied out, GB", "overlap", "waiting", "more time"], rows)


def delta_5(lab):
    posed = json.loads(lab.problem("resnet50", 128, "a100-80g", ADAM).read_text())
    maps = [m for m in feature_maps(posed) if m.bytes >= MIB]
    rows = []
    for name, mark, swap, again in (("BNForward", "bn", "11,148 to 96,318", "4 to 6"), ("ConvForward", "conv", "22,805", "69"),
                                    ("PoolingForward", "pool", "11,641", "25")):
        of = [m for m in maps if mark in m.ops[0].split(".")[-1]]
        # The paper's costs are of one direction; it finds 35 % of the bandwidth used.
        swaps = sorted(copy_ns(posed, m.bytes) / 1e3 for m in of)
        slow = sorted(x / 0.35 for x in swaps)
        times = sorted(m.time_ns / 1e3 for m in of)
        ratios = sorted(copy_ns(posed, m.bytes) / m.time_ns for m in of)
        spread = lambda xs, form: f"{xs[0]:{form}} to {xs[-1]:{form}}"
        rows.append([name, len(of), swap, spread(swaps, ",.0f"), spread(slow, ",.0f"), again, spread(times, ",.0f"),
                     f"{median(ratios):.1f}", sum(x > 1 for x in ratios)])
    return table(["tensor", "of these in ResNet-50", "swap, published, µs", "swap here, µs", "at 35 % of the link, µs", "recomputation, published, µs",
                  "recomputation here, µs", "swap ÷ recomputation, median", "cheaper to compute again"], rows)


TABLES = {
    "delta-2": Table("DELTA, table II: memory", delta_2, """
A100 with 80 GB; Adam. The paper gives no budget and no step time for these cells. *Least* is the smallest budget with a plan, to
within one in fifty of the unplanned arena, and over it. DELTA evicts activations alone; `memc` moves weights and Adam's moments, too.

- `dtr` and `delta` get by with half and less of what was published: addresses are laid out ahead of time, so that nothing is lost
  to fragmentation, which is what the paper blames for DTR's memory. Steps in so little memory are slow.
- In the share of memory that DELTA took, `memc` adds about half of the time that `delta` adds, or less.
"""),
    "delta-3": Table("DELTA, tables III and IV: largest batch", delta_3, """
A100 with 80 GB; Adam. Growth is over the largest batch without a planner, to within one in fifty, however slow the step
(`dtr` and `delta` at effort 0; for `memc` that there is a plan is what counts). The last columns are at the growth that
DELTA published.

- The paper blames fragmentation for DTR's largest batches (it uses 33 of 80 GB). Here addresses are laid out ahead of time, and
  `dtr` goes up to 2.1 times the batch. Its step takes 25 % more time there.
- `delta` goes on after the paper's batches, to steps of 2.7 and 2.3 times the unplanned one. At the growth that was published it takes
  30 % and 33 % more time, `memc` 7 % and 9 %; the paper gives no time there.
"""),
    "delta-figure-3": Table("DELTA, figure 3: memory of ResNet-50 by batch", delta_figure_3, """
A100 with 80 GB; Adam. Published figures are those of sections 5.2 and 5.3; the paper gives no budgets. *Least* is the smallest budget with
a plan, to within one in fifty of the unplanned arena, for a step of any length. The last columns are in the memory that DELTA took.

- Memory without a plan is within 8 % of the published baseline at all three batches, and in proportion to the batch, as published.
- DELTA took 37 to 40 % of it. `delta` has plans in 14 to 18 %, `memc` in 7 %.
- `dtr` has no plan below 48 %. ReLU overwrites its operand, and what needs an overwritten operand is not computed again.
- At batch 128 the paper's DTR saves 6 %, and at batch 1072 it uses 33 of 80 GB, which the paper lays to fragmentation.
- In the memory that DELTA took `delta` takes 44 to 46 % more time at every batch, `memc` 6 %.
- The paper gives 0.551 s for a step of DELTA on eight devices at batch 128, and none of the baseline.
"""),
    "delta-figure-5": Table("DELTA, figures 4 and 5: a step in sequence and overlapped", delta_figure_5, """
A100 with 80 GB; ResNet-50 at batch 128, Adam. The figures are timelines. Their text: overlapping saves almost 20 % of the step; of nine
tensors that are offloaded two come back by copy and seven by recomputation. *All in sequence*: kernels and copies one after another.
Tensors from 1 MiB count.

- Overlapping saves 35 to 37 % of a step of `delta`, more than published, at each budget.
- The paper gives neither budget nor batch for its timelines. More copies leave more to overlap.
- More tensors of `delta` come back by recomputation than by copy, as published, at 10 to 5, 18 to 12 and 24 to 18.
- Of the copies' time less is beside kernels the smaller the budget: 98, 80 and 72 %. `memc` has 95 % and more at each.
- The bound of a step is the unplanned one at all three budgets.
"""),
    "delta-5": Table("DELTA, table V: a swap against a recomputation", delta_5, """
A100 with 80 GB; ResNet-50 at batch 128, Adam. A swap is one copy, with the link for itself. Recomputation is the time of the ops that write
the tensor, from inputs that are there. Published tensors are six, of a batch that the table does not name. Section 4 says that 35 % of the
bandwidth is used. *Cheaper*: tensors whose recomputation takes less time than the copy.

- As published, recomputing takes less time than a copy: for every normalisation, for 38 of 49 convolutions, and for pooling.
- The published ratio is 330 to 16,000. Here it is 14 for normalisations and 2.3 for convolutions.
- The published swaps agree with tensors of batch 128: 22 ms are the largest ones here at three quarters of the link's pace.
- The published recomputations do not. What takes 11 ms to copy at 35 % is 97 MB, which take 48 µs to write at 2 TB/s. The paper has 4.
- Such times are about those of launching a kernel. Were they so measured, that would explain the ratio.
- *Recompute first* is right for normalisations by this model. For 11 of 49 convolutions the copy takes less time.
"""),
    "delta-figure-7": Table("DELTA, figure 7: three filters", delta_figure_7, """
A100 with 80 GB; batch 128, Adam. The figure plots memory over the budget; it has no numbers. `delta` filters by bytes and staleness,
`delta-lru` by staleness, `delta-greedy` by bytes. The zoo has no EfficientNet; MobileNetV2, which has its blocks, stands in. *Least* is as
in figure 3.

- In the paper memory follows the budget in all three, and the filter by bytes takes most at small budgets.
- Here all three use what they may at 50 % and below. They differ at 75 %, where `delta-greedy` takes most on the ResNets.
- Their least budgets are equal or a step of the bisection (1.6 %) apart. The filter by bytes is behind on ResNeXt alone.
- Time tells them apart, which the paper does not plot: `delta-lru` takes up to 27 points more than `delta`.
- `delta` and `delta-greedy` are alike at 75 and 50 %. At 37 % `delta` is ahead by 3 and 7 points on the ResNets, behind by 1 on
  MobileNetV2.
- `memc` adds at most two fifths of the time that the best of the three adds.
"""),
    "delta-figure-8": Table("DELTA, figure 8: what the filters do", delta_figure_8, """
A100 with 80 GB; ResNet-50 at batch 128, Adam. The figure is of three timelines, at a budget that is not given. Its text: the filter by
staleness swaps more often than the others, and `delta`'s overlaps more and delays less. *Overlap* and *waiting* are shares of the step.

- As published, `delta-lru` makes two to three times as many tensors leave, for as many bytes, and four to six times as many copies.
- Copies are beside its kernels for little more than half as long as with `delta`. It waits for 15 and 29 % of the step.
- `delta` is not ahead of `delta-greedy`, which the paper finds slower. Their steps take nearly the same time here.
- `memc` waits for nothing and overlaps most. It copies less than the three at half the memory.
"""),
}
