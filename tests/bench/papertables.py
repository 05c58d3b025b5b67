"""The tables of the papers: what was published, and how it is posed here. Used by papers.py."""

import json
import random
from collections import namedtuple
from functools import cache

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
                     next((f"{r['unplanned_peak_bytes'] / GB:.0f} GB" for r in plans if r["feasible"]), "-"), online, speed(plans[0]), paper, *map(speed, plans[1:]), percent(max(bounds)) if bounds else "-",
                     ", ".join(map(seconds, plans))])
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


def most(lab, pose, planner, budget, start):
    """The largest batch that a planner finds a plan for, within one in fifty."""
    if planner == "keep-all":
        return largest(start, lambda batch: lab.unplanned(pose(batch)) <= budget)
    if planner == "memc":
        return largest(start, lambda batch: lab.kept(pose(batch))["smallest_feasible_bytes"] <= budget)
    return largest(start, lambda batch: bool(lab.plan(pose(batch), planner, budget, "--effort", "0")["feasible"]))


# Network in the zoo, and HOME's figures: largest batches and samples per second of PyTorch, Capuchin and HOME.
HOME = [
    ("mobilenet", "MobileNet", (2012, 3954, 4200), (1706, 2999, 3426)),
    ("plain20_cifar10", "Plain20", (1040, 2843, 2926), (2368, 2012, 2554)),
    ("squeezenet1_0", "SqueezeNet", (1667, 4056, 4347), (6273, 5719, 6613)),
    ("vgg16_cifar10", "VGG16", (2759, 4250, 5125), (2786, 5120, 6211)),
    ("resnet18_cifar10", "ResNet", (1255, 2014, 2576), (2285, 2179, 2519)),
    ("inception_v3", "InceptionV3", (125, 345, 365), (257, 240, 280)),
]


def home_pose(lab, network):
    return cache(lambda batch: lab.problem(network, batch, "rtx2080ti", MOMENTUM))


def home_kept(lab, network):
    pose = home_pose(lab, network)
    return most(lab, pose, "keep-all", RTX2080TI, int(64 * RTX2080TI / lab.unplanned(pose(64))))


def home_2(lab):
    rows = []
    for network, name, batches, speeds in HOME:
        pose = home_pose(lab, network)
        kept = home_kept(lab, network)
        row = [f"{name} (`{network}`)", batches[0], kept]
        for i, planner in ((1, "capuchin"), (2, "home")):
            grown = kept * batches[i] // batches[0]
            own = most(lab, pose, planner, RTX2080TI, grown)
            row += [f"{batches[i] / batches[0]:.2f}", f"{speeds[i] / speeds[0]:.2f}",
                    speed(lab.plan(pose(grown), planner, RTX2080TI)), f"{own / kept:.1f}"]
        limit = most(lab, pose, "memc", RTX2080TI, 5 * kept)
        rows.append([*row, speed(lab.plan(pose(grown), "memc", RTX2080TI)), f"{limit / kept:.1f}"])
    return table(["network", "PyTorch's largest batch", "`keep-all`", "Capuchin's growth", "its speed ÷ PyTorch's",
                  "`capuchin` there", "its limit", "HOME's growth", "its speed ÷ PyTorch's", "`home` there", "its limit",
                  "`memc` there", "its limit"], rows)


def home_6(lab):
    # Batches of the text over the largest of PyTorch: figures 7(a), 7(b) and section 4.2.
    shares = {"VGG16": 3950 / 2759, "InceptionV3": 170 / 125, "MobileNet": 3500 / 2012}
    planners = ("vdnn-conv", "superneurons", "capuchin", "home", "memc")
    rows = []
    for network, name, *_ in HOME:
        pose = home_pose(lab, network)
        share = shares.get(name, 1.5)
        batch = int(home_kept(lab, network) * share)
        plans = {planner: lab.plan(pose(batch), planner, RTX2080TI) for planner in planners}
        over = [f"{plans[p]['step_ns'] / plans['home']['step_ns']:.2f}"
                if plans[p]["feasible"] and plans["home"]["feasible"] else "-" for p in planners[:3]]
        rows.append([f"{name} (`{network}`)", f"{share:.2f}", batch, *(speed(plans[p]) for p in planners), *over])
    return table(["network", "batch ÷ PyTorch's largest", "batch", *(f"`{p}`" for p in planners), "`home` ÷ `vdnn-conv`",
                  "÷ `superneurons`", "÷ `capuchin`"], rows)


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


def slow(problem):
    """Ops that take ten times as long."""
    for op in problem["ops"]:
        op["time_ns"] *= 10
    return problem


def tensile_1(lab):
    rows = []
    for edit in (None, slow):
        problem = lab.problem("vgg16", 2, "rtx2080ti", SGD, edit=edit)
        posed = json.loads(problem.read_text())
        # The paper's vanilla run: nothing is freed before the step ends.
        vanilla = sum(t["bytes"] for t in posed["tensors"]) + max(op["workspace_bytes"] for op in posed["ops"])
        for name, planner, saved, extra in (("vDNN", "vdnn-all", 0.2733, 0.8580), ("Capuchin", "capuchin", 0.1003, 0.8971),
                                            ("TENSILE", "tensile", 0.2241, 0.0971)):
            budget = lab.least(problem, planner)
            own = lab.plan(problem, planner, budget)
            at = [lab.plan(problem, "memc", b) for b in (budget, int(vanilla * (1 - saved)))]
            rows.append([name, "10 times slower" if edit else "modelled", percent(saved), percent(extra),
                         percent(1 - budget / vanilla), overhead(own), *map(overhead, at)])
    return table(["method", "ops", "memory saved, published", "more time, published", "most saved here", "more time",
                  "`memc`, the same saved", "`memc`, as much saved as published"], rows)


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
    "swapadvisor-9": Table("SwapAdvisor, figure 9: the search over time", swapadvisor_9, """
Inception-V4 of scale 4, batch 64, effort 3: step over ideal of the individuals alive. The figure is a plot; its text says that best
and mean converge within 100 seconds on 72 virtual cores, and that the worst shows that the population stays diverse. `odswap` takes
1.231 here.

- As published, best and mean fall together, and the worst stays above them. The search goes on improving where the row ends.
- By equation 1 as printed and P = 10 % the mean of 2,304 individuals stays at 2.1 and the best at 1.59: the best has no more than e
  times the chance of an individual twice as slow, and a hundred ops of every child move at once. The next table has
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
    "home-2": Table("HOME, table 2: largest batch", home_2, """
RTX 2080 Ti with 11 GB, less 0.5 GiB; momentum. Growth is the largest batch over PyTorch's; *there* is throughput over the
unplanned step's at as much growth over `keep-all`. A limit is the largest growth that a planner finds any plan for,
however slow (at effort 0, to within one in fifty; for `memc` that there is one is what counts). HOME trains on CIFAR-10;
MobileNet, SqueezeNet and InceptionV3 are here at ImageNet's sizes, as the zoo has them, and its ResNet is taken to have
18 layers, so that batches compare by ratio alone.

- The published speeds have in them what a larger batch gains on the device; *there* is against the unplanned step of the
  same batch, which does not.
- `capuchin` and `home` reach every growth that was published, and go on: without a bound on the time of a step there is a
  plan for three to twelve times the batch. `memc` is ahead of both there, by 4 to 31 points of HOME.
"""),
    "home-6": Table("HOME, figure 6: throughput beyond the largest batch without swapping", home_6, """
The figure is a plot. Its text: HOME is up to 5.7 times as fast as vDNN, 2 times as SuperNeurons, 1.3 times as Capuchin, at equal
batches. VGG16 and InceptionV3 are at the batches of figure 7 (3950 and 170) over PyTorch's largest, MobileNet at that of section 4.2
(3500), the others at 1.5 times. Throughput is over the unplanned step's; the last columns are HOME's over theirs.

- `home` is fastest of the published methods on all six: up to 2.4 times as fast as `vdnn-conv`, 1.6 times as `superneurons`, 1.7
  times as `capuchin`. `memc` is faster than `home` on all six, by 1 to 9 %.
- The paper has 500 particles and 500 iterations. Within the bound on evaluations InceptionV3's 1,391 ops have 33 particles, and
  nothing changes any more after ten iterations. More particles bring more: 4, 8 and 33 of them give 1.099, 1.079 and 1.059 of ideal.
- `vdnn-conv` has no plan on three networks: the inputs of convolutions alone do not make enough room. The paper says that of
  InceptionV3 beyond batch 160.
"""),
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
    "tensile-1": Table("TENSILE, table 1: one job", tensile_1, """
RTX 2080 Ti. The paper says *VGG* at batch 2; here VGG-16 at 224x224 with SGD. Memory saved is of the vanilla run, which frees
nothing before the end: freeing at the last use is part of TENSILE (algorithm 3, line 2). Capuchin's published saving is what its
11 GB left it to do.

- At batch 2 the 0.5 GB of weights take longer to copy than the step takes to compute (25 ms), so that what hides is little. The paper's
  own framework synchronises after every op from Python. With ops ten times as slow `tensile` saves 24.0 % without waiting, and
  `vdnn-all` 29.3 %.
- `memc` saves as much without more time, at modelled speed, too, mostly by another order of the ops; but for the least that
  `capuchin` gets by with, where that takes 490 % more and `memc` 27 %.
"""),
}
HEAD = """# The papers' tables

Published figures of five papers on memory planning, what their methods give here on the same networks, and `memc`. Written by
`tests/bench/papers.py`, which runs everything again (`--planners memc` for the default planner alone).

Steps are simulated on the published hardware's profile (`memc list devices`); networks are those of
[the zoo](../../../models/README.md#the-zoo), with the backward pass as written (`--no-mem-rewrite`), since the papers' frameworks keep
what it reads. So ratios compare, milliseconds do not. *Not given*: the paper has no number. More time is over the unplanned
step; it is negative where a planner overlaps the input's copy with the step before. *No plan*: the method does not reach the budget;
*out of time*: it was stopped; *not measured*: left out (`--skip`). Planning times are from two cores that others used, too.
`memc` is of a later build than the other planners, of which only `swapadvisor` and `home` have changed since: figures 6, 9 and 10 have
them as they are, tables 2 as they were. Planning times of `swapadvisor` are left out where it was run by the example `curve`.
"""
