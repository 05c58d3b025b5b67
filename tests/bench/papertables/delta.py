"""DELTA (Tang et al., 2022): its tables and figures."""

from functools import cache

from .common import A100, ADAM, MIB, Table, most, overhead, percent, table

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
}
