"""SwapAdvisor (Huang et al., ASPLOS 2020): its tables and figures."""

import json
import random

from .common import GB, MIB, NOT_GIVEN, SGD, V100, Table, percent, seconds, speed, table

# Network, batch, memory in GB (table 1), and throughput over ideal of ODSwap and SwapAdvisor as far as the text says it.
SWAPADVISOR = [
    ("wresnet152_10", 64, 180, "80 %", "95 %"), ("inception_v4_4", 16, None, NOT_GIVEN, "80 %"),
    ("inception_v4_4", 64, 71, NOT_GIVEN, "at most 65 %"), ("nasnet_a_r25", 16, None, NOT_GIVEN, "80 %"),
    ("nasnet_a_r25", 64, 193, NOT_GIVEN, "53 %"), ("rnn_8_8k", 256, 118, "below 1 %", "70 to 80 %"),
    ("brnn_4_8k", 128, 99, "below 1 %", "70 to 80 %"),
]


def swapadvisor_6(lab):
    rows = []
    for network, batch, memory, online, paper in SWAPADVISOR:
        problem = lab.problem(network, batch, "v100-16g", SGD)
        plans = [lab.plan(problem, planner, V100) for planner in ("odswap", "swapadvisor", "memc")]
        bounds = [r["ideal_ns"] / r["bound_ns"] for r in plans if r["feasible"]]
        rows.append([f"`{network}`", batch, f"{memory} GB" if memory else NOT_GIVEN,
                     next((f"{r['unplanned_peak_bytes'] / GB:.0f} GB" for r in plans if r["feasible"]), "-"), online, speed(plans[0]), paper,
                     *map(speed, plans[1:]), percent(max(bounds)) if bounds else "-", ", ".join(map(seconds, plans))])
    return table(["network", "batch", "memory, published", "unplanned here", "ODSwap, published", "`odswap`",
                  "SwapAdvisor, published", "`swapadvisor`", "`memc`", "bound", "planning, s"], rows)


def swapadvisor_9(lab):
    problem = lab.problem("inception_v4_4", 64, "v100-16g", SGD)
    curve = lab.curve(problem, "swapadvisor", V100, 3)
    over = lambda ns: f"{ns / curve['ideal_ns']:.3f}"
    alive = curve["alive"]
    shown = [i for i in (0, 1, 2, 4, 8, 16, 32, 48) if i < len(alive) - 1] + [len(alive) - 1]
    rows = [[i, alive[i][1], *map(over, alive[i][2:])] for i in shown]
    return table(["generation", "individuals", "best", "mean", "worst"], rows)


def swapadvisor_ablation(_):
    # Made with variants that are no planners.
    few, many = "4,464", "18,144"
    rows = [
        ["as published", 1, "no", "10 %", "10 %", few, "2.973", "4.30"],
        ["best survives", 1, "yes", "10 %", "10 %", few, "2.822", "4.03"],
        ["P of schedules", 1, "no", "1 %", "10 %", few, "3.016", "4.17"],
        ["", 1, "no", "0.1 %", "10 %", few, "2.978", "4.25"],
        ["P of pools", 1, "no", "10 %", "1 %", few, "2.820", "3.79"],
        ["sharper", 10, "no", "10 %", "10 %", few, "2.787", "3.21"],
        ["", 100, "no", "10 %", "10 %", few, "2.765", "3.00"],
        ["all", 30, "yes", "0.2 %", "1 %", few, "2.349", "2.48"],
        ["all but sharper", 1, "yes", "0.2 %", "1 %", many, "2.502", "3.43"],
        ["all", 30, "yes", "0.2 %", "1 %", many, "2.264", "2.29"],
        ["", 100, "yes", "0.2 %", "2 %", many, "2.199", "2.23"],
        ["as it is: a P for every child", 30, "yes", "0.1 to 10 %", "0.1 to 10 %", few, "2.36 to 2.65", "2.58 to 2.78"],
    ]
    return table(["change", "sharper", "best survives", "P, schedules", "P, pools", "individuals", "best", "mean"], rows)


def shuffled(problem):
    """The ops in a random topological order."""
    draw, ops = random.Random(0), problem["ops"]
    place = {op["id"]: i for i, op in enumerate(ops)}
    writer, readers, before, after = {}, {}, [], [[] for _ in ops]
    for i, op in enumerate(ops):
        need = {place[j] for j in op.get("after", [])} | {writer[t] for t in op["reads"] if t in writer}
        for t in op["writes"]:
            need |= readers.pop(t, set()) | ({writer[t]} if t in writer else set())
            writer[t] = i
        for t in set(op["reads"]) - set(op["writes"]):
            readers.setdefault(t, set()).add(i)
        before.append(len(need - {i}))
        for j in need - {i}:
            after[j].append(i)
    ready, order = [i for i, n in enumerate(before) if n == 0], []
    while ready:
        at = draw.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        order.append(ready.pop())
        for j in after[order[-1]]:
            before[j] -= 1
            if before[j] == 0:
                ready.append(j)
    problem["ops"] = [ops[i] for i in order]
    return problem


def swapadvisor_10(lab):
    rows = []
    for network, batch, edit, effort, published in (
            ("inception_v4_4", 64, None, 2, ("93 %", NOT_GIVEN)), ("rnn_8_8k", 256, None, 2, (NOT_GIVEN, NOT_GIVEN)),
            ("rnn_8_8k", 256, shuffled, 3, ("7 %", NOT_GIVEN))):
        problem = lab.problem(network, batch, "v100-16g", SGD, edit=edit)
        planners = ("odswap", "swapadvisor", "swapadvisor-pool", "swapadvisor-order")
        plans = [lab.plan(problem, planner, V100, "--effort", str(effort)) for planner in planners]
        full = plans[1]["step_ns"]
        part = lambda r: percent(full / r["step_ns"]) if r["feasible"] else speed(r)
        name = f"`{network}`" + (", ops in random order" if edit else "")
        rows.append([name, effort, speed(plans[0]), speed(plans[1]), published[0], part(plans[2]), published[1], part(plans[3])])
    return table(["network", "effort", "`odswap`", "`swapadvisor`", "pool alone ÷ both, published", "`swapadvisor-pool`",
                  "order alone ÷ both, published", "`swapadvisor-order`"], rows)


def forward(problem):
    """What the loss needs of a step: the forward pass."""
    ops, needed, kept = problem["ops"], set(), []
    last = next(i for i, op in enumerate(ops) if op.get("outputs"))
    for op in reversed(ops[:last + 1]):
        if op is ops[last] or needed & set(op["writes"]):
            needed |= set(op["reads"]) | set(op["writes"])
            kept.append(op | {"after": []})
    problem["ops"] = kept[::-1]
    problem["tensors"] = [t for t in problem["tensors"] if t["id"] in needed]
    return problem


def swapadvisor_2(lab):
    published = {64: (0.024, None, None), 128: (0.022, 0.077, None), 192: (0.018, 0.044, None),
                 512: (0.017, 0.040, 0.238), 640: (0.017, 0.040, 0.123)}
    rows = []
    for mb, times in published.items():
        row = [f"{mb} MB"]
        for i, batch in enumerate((1, 16, 64)):
            # Training the last bias alone leaves the forward pass and a few small ops, which are cut off.
            problem = lab.problem("resnet152", batch, "v100-16g", SGD, edit=forward, flags=("--trainable", "fc.bias"))
            full = published[640][i]
            row.append(f"{times[i] / full:.2f}" if times[i] else "none")
            unlimited = lab.plan(problem, "memc", 640 * MIB)["step_ns"]
            for planner in ("swapadvisor", "memc"):
                r = lab.plan(problem, planner, mb * MIB)
                row.append(f"{r['step_ns'] / unlimited:.2f}" if r["feasible"] else "none")
        rows.append(row)
    head = ["memory"]
    for batch in (1, 16, 64):
        head += [f"batch {batch}, published", "`swapadvisor`", "`memc`"]
    return table(head, rows)


def swapadvisor_1(lab):
    rows = []
    for network, batch, memory, ops, sizes in (("wresnet152_10", 64, 180, 882, 26), ("inception_v4_4", 64, 71, 830, 64),
                                               ("nasnet_a_r25", 64, 193, 5533, 65), ("rnn_8_8k", 256, 118, 8594, 7),
                                               ("brnn_4_8k", 128, 99, 9034, 9)):
        problem = lab.problem(network, batch, "v100-16g", SGD)
        posed, kept = json.loads(problem.read_text()), lab.kept(problem)
        # What MXNet keeps: every output of an op for its own, a gradient for every weight.
        apart = sum(t["bytes"] for t in posed["tensors"])
        rows.append([f"`{network}`", batch, f"{memory} GB", f"{kept['unplanned_peak_bytes'] / GB:.0f} GB", f"{apart / GB:.0f} GB",
                     f"{kept['smallest_feasible_bytes'] / GB:.1f} GB", f"{ops:,}", f"{len(posed['ops']):,}", sizes,
                     len({t["bytes"] for t in posed["tensors"] if t["bytes"] >= MIB})])
    return table(["network", "batch", "memory, published", "unplanned here", "tensors apart", "least with a plan", "ops, published",
                  "ops here", "sizes of tensors, published", "sizes here, from 1 MiB"], rows)


def swapadvisor_7(lab):
    rows = []
    for batch in (32, 64, 128):
        problem = lab.problem("wresnet152_4", batch, "v100-16g", SGD)
        plans = [lab.plan(problem, planner, V100) for planner in ("vdnn-all", "odswap", "swapadvisor")]
        stay = ("--keep", "*weight", "--keep", "*bias")
        plans += [lab.plan(problem, "memc", V100, *flags) for flags in ((*stay, "--no-recompute"), ("--no-recompute",), ())]
        over = [f"{plans[0]['step_ns'] / r['step_ns']:.2f}" if plans[0]["feasible"] else "-" for r in plans[1:3]]
        bounds = [r["ideal_ns"] / r["bound_ns"] for r in plans if r["feasible"]]
        rows.append([batch, f"{lab.unplanned(problem) / GB:.0f} GB", speed(plans[0]), speed(plans[1]), "at least 2", over[0],
                     speed(plans[2]), "at least 3", over[1], *map(speed, plans[3:]), percent(max(bounds))])
    return table(["batch", "unplanned here", "`vdnn-all`", "`odswap`", "ODSwap ÷ TFLMS, published", "`odswap` ÷ `vdnn-all`",
                  "`swapadvisor`", "SwapAdvisor ÷ TFLMS, published", "`swapadvisor` ÷ `vdnn-all`", "`memc`, parameters stay",
                  "`memc`, no recomputation", "`memc`", "bound"], rows)


TABLES = {
    "swapadvisor-6": Table("SwapAdvisor, figure 6: training throughput over that with unlimited memory", swapadvisor_6, """
V100 with 16 GB, less 0.5 GiB for its context; SGD. The figure is a plot: published numbers are those of section 6.2 (`95 %`
is said of WResNet without a batch) and memory is that of table 1. *Bound*: no plan in the row is proved to be able to
exceed it. *Planning* are seconds of CPU time of `odswap`, `swapadvisor`, `memc`; the paper searches for 30 minutes on 72 virtual cores.

- `memc` is above what was published in every row, on NasNet at batch 64 by half.
- The steps here need less memory than MXNet's: gradients are applied as soon as they are complete, tensors go with their
  last use, and ops overwrite operands. Inception at batch 16 fits.
- MXNet runs RNNs in a random topological order, which is why ODSwap stays below 1 %. The order that memc's importer gives
  runs a layer's cells together, and `odswap` keeps it.
- `swapadvisor` is ahead of `odswap` on WResNet and on both RNNs, as published, and behind it on Inception and NasNet, with
  many sizes of tensors: pools lose what `odswap`'s arena does not (below). On WResNet no more than 9.0 GB of its pool of 15.0 GB
  are in use at once. Its ops ask for 2.9 GB of scratch (in the paper up to 1 GB).
- Effort 2 is 16 generations of Inception, 3 of an RNN, 2 of NasNet. At effort 3 Inception at batch 64 goes to 74.4 %, still improving.
- On NasNet both published methods are slow here, too: at batch 16 `odswap` waits for copies to the host for 1.2 s and for
  copies to the device for 0.7 s, in a step of 3.3 s.
"""),
    "swapadvisor-1": Table("SwapAdvisor, table 1: the networks", swapadvisor_1, """
The networks of figure 6 at its largest batches; SGD. *Tensors apart*: every tensor has bytes for its own, as where nothing is freed.
*Least*: the smallest budget with any plan.

- The published memory of the three convolutional networks lies between *unplanned* and *tensors apart*. MXNet frees some tensors and reuses
  some.
- Here gradients go into the weights at once, and a tensor goes with its last use.
- The RNNs' published memory is above all tensors that there are here. The paper does not say how many time steps they have.
- Ops here are more: the update of a parameter is an op, and a convolution's gradient is several.
- From 1 MiB there are fewer sizes than published on every network.
- `memc` has a plan in 1 to 9 % of the memory without one.
"""),
    "swapadvisor-7": Table("SwapAdvisor, figure 7: WResNet-152-4 against activations alone", swapadvisor_7, """
V100; SGD. The figure is a plot of three batches, which the text does not name. Its text has the two ratios, at all three batches. No
planner here is TFLMS, the swapping extension of TensorFlow. It swaps activations alone, as `vdnn-all` does, which stands in for it. Two
columns of `memc` without recomputation show what swapping parameters is worth: with them, and without. *Bound* as in figure 6.

- `odswap` and `swapadvisor` are faster than `vdnn-all`, as published, but by 1.2 to 1.4 times where the paper has 2 and 3.
- At batch 128 `vdnn-all` has no plan in 16 GB.
- The paper gives no throughput of TFLMS, so that it may be slower than `vdnn-all` for other reasons.
- The paper blames parameters that stay, 3.7 of 16.4 GB here. By one method on both sides that costs 2 to 3 points, not a factor of 2.
- Most of what `memc` gains over swaps alone is recomputation. At batch 128 without it, updates run on the host.
- `memc` is within 3.2 % of ideal at all three.
"""),
    "swapadvisor-9": Table("SwapAdvisor, figure 9: the search over time", swapadvisor_9, """
Inception-V4 of scale 4, batch 64, effort 3: step over ideal of the individuals alive. The figure is a plot; its text says that best
and mean converge within 100 seconds on 72 virtual cores, and that the worst shows that the population stays diverse. `odswap` takes
1.231 here.

- As published, best and mean fall together, and the worst stays above them. The search goes on improving where the row ends.
- With equation 1 as printed and P = 10 %, the mean of 2,304 individuals stays at 2.1 and the best at 1.59. Selection is weak: the best
  survives at most e times as often as an individual twice as slow. Mutation is strong: it moves a hundred ops of each child. The next table has
  what each change is worth.
"""),
    "swapadvisor-ablation": Table("SwapAdvisor: what the search lacked", swapadvisor_ablation, """
InceptionV3 at batch 64 in 4 GiB of a V100, one change at a time from the published words: step over ideal of the best plan, and of the
individuals alive on average. *Sharper*: the exponents of equation 1 times this. *Best survives*: otherwise it is kept beside the
population. All rows but the last begin with one schedule in the given order, the last with half of them. One seed, but for three
in the last row: seeds differ by up to 0.3.

- Selection is what lacks most: with it alone the mean falls from 4.3 to 3.2. A smaller P alone changes nothing for schedules, and
  0.15 for pools. Both together bring 2.35, and 2.20 after four times the individuals, still improving.
- `odswap` takes 1.708. What remains is the pool: a plan of 2.56 has 2.63 GiB of 4 in use at once, since an object holds one tensor,
  however small, and a pool of the 88 exact sizes needs 4.04 GiB for every op to run at all. `odswap` lays out its arena ahead of
  time without such loss; where it has 2.76 GiB it takes 2.66, with 3.25 GiB 2.32. In the paper it has MXNet's allocator.
- That a parameter must return to its object is not the cause: scans that begin with the residents where the last one left them
  repeat in 2 of 1,000 cases here, and bring 2.55 where giving up such residents brings 2.56. On WResNet-152-10 they repeat in 6 of 100
  and bring 1.24 instead of 1.30, which may be chance.
"""),
    "swapadvisor-10": Table("SwapAdvisor, figure 10: order alone, pool alone, both", swapadvisor_10, """
Throughput of `odswap` and of the whole search over that of the unplanned step, and of the searches over one part over that of the whole
one. The paper's first generation is random, as MXNet's order of an RNN; the last row poses that.

- Inception needs the pool more than the order, as published.
- From the order that memc's importer gives an RNN, each part alone comes within 8 % of both, in three generations.
- From a random order the search over both is ahead of that over the pool alone by 4 % only, where the paper's is ahead fourteenfold:
  10,902 ops get 13 generations at effort 3, in which crossover does not put a layer's cells together again. The paper searches for 36
  hours of a core. The pool alone in a random order has 26 % of the throughput of both from the given one.
"""),
    "swapadvisor-2": Table("SwapAdvisor, table 2: inference of ResNet-152 in little memory", swapadvisor_2, """
Time over that with 640 MB, which is the unlimited one in the paper for every batch. Posed as the ancestors of the loss in
a step that trains the last bias alone: the forward pass with batch normalisation by the batch's statistics, and with the positions
that max pooling keeps for a backward pass (25.7 MB at batch 16). Weights are only read. *None*: no plan.

- The modelled V100 runs batch 1 in a third of the published 17 ms, the link is the published one: weights that do not stay
  (240 MB in all) take 15 ms, so that ratios at batch 1 are worse by about as much.
- At larger batches `memc` hides the weights' copies entirely. `swapadvisor` finds no pool for two of the published cells: of
  7,632 pools that it tried for batch 16 in 128 MB, none has an object for every tensor of every op.
"""),
}
