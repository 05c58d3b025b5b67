"""HOME (He et al., IEEE Transactions on Computers 2022): its tables and figures."""

import json
from functools import cache
from statistics import median

from .common import MIB, MOMENTUM, NOT_GIVEN, RTX2080TI, Table, copy_ns, feature_maps, most, overlapped, percent, speed, table

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


# Batches of the text over the largest of PyTorch: figures 7(a), 7(b) and section 4.2.
SHARES = {"VGG16": 3950 / 2759, "InceptionV3": 170 / 125, "MobileNet": 3500 / 2012}


def home_beyond(lab, network, name):
    """The batch of figure 6: beyond the largest without a planner by the share of the text, or by half."""
    share = SHARES.get(name, 1.5)
    return share, int(home_kept(lab, network) * share)


def home_6(lab):
    planners = ("vdnn-conv", "superneurons", "capuchin", "home", "memc")
    rows = []
    for network, name, *_ in HOME:
        pose = home_pose(lab, network)
        share, batch = home_beyond(lab, network, name)
        plans = {planner: lab.plan(pose(batch), planner, RTX2080TI) for planner in planners}
        over = [f"{plans[p]['step_ns'] / plans['home']['step_ns']:.2f}"
                if plans[p]["feasible"] and plans["home"]["feasible"] else "-" for p in planners[:3]]
        rows.append([f"{name} (`{network}`)", f"{share:.2f}", batch, *(speed(plans[p]) for p in planners), *over])
    return table(["network", "batch ÷ PyTorch's largest", "batch", *(f"`{p}`" for p in planners), "`home` ÷ `vdnn-conv`",
                  "÷ `superneurons`", "÷ `capuchin`"], rows)


def home_4(lab):
    rows = []
    kinds = {"convolution": ("conv", "squeeze", "expand", "depthwise", "pointwise"), "normalisation and ReLU": ("bn",), "pooling": ("pool",)}
    kind = lambda m: next((k for k, marks in kinds.items() if any(mark in m.ops[0].split(".")[-1] for mark in marks)), "other")
    for network, name, *_ in HOME:
        posed = json.loads(home_pose(lab, network)(home_beyond(lab, network, name)[1]).read_text())
        # Statistics and masks are small.
        maps = [m for m in feature_maps(posed) if m.bytes >= MIB]
        over = lambda m: copy_ns(posed, m.bytes) / m.time_ns
        row = [f"{name} (`{network}`)", len(maps), percent(sum(over(m) > 2 for m in maps) / len(maps))]
        for k in kinds:
            of = [over(m) for m in maps if kind(m) == k]
            row.append(f"{median(of):.1f}" if of else "-")
        copies = sum(copy_ns(posed, m.bytes) for m in maps)
        forward = sum(m.time_ns for m in maps)
        rows.append([*row, f"{copies / 1e6:.0f}", f"{forward / 1e6:.0f}"])
    return table(["network", "feature maps", "with a copy of more than twice the layer's time", *(f"{k}: copy ÷ layer, median" for k in kinds),
                  "copies out in all, ms", "layers in all, ms"], rows)


# Overlap, waiting and recomputation of figure 7 as far as the text gives shares of the step.
BREAKDOWN = {
    "VGG16": {"vdnn-conv": (None, "75 %", None), "superneurons": (None, "9 %", "20.5 %"), "home": ("57 %", "nearly 0", "small")},
    "InceptionV3": {"vdnn-conv": (None, "34 %", None), "capuchin": (None, "5 %", None), "home": (None, "1 %", None)},
}


def home_7(lab):
    rows = []
    for network, name, *_ in (HOME[3], HOME[5]):
        _, batch = home_beyond(lab, network, name)
        kept = lab.kept(home_pose(lab, network)(batch))
        bounds = []
        for planner in ("vdnn-conv", "vdnn-all", "superneurons", "capuchin", "home", "memc"):
            published = [p or NOT_GIVEN for p in BREAKDOWN[name].get(planner, (None,) * 3)]
            if planner in ("vdnn-all", "memc"):
                published = ["-"] * 3
            spans = lab.timeline(network, batch, "rtx2080ti", MOMENTUM, planner, RTX2080TI)
            bounds.append(lab.plan(home_pose(lab, network)(batch), planner, RTX2080TI))
            if spans is None:
                rows.append([f"{name}, batch {batch}", f"`{planner}`", *published, *["-"] * 4, "no plan"])
                continue
            kernels, ideal = sum(end - start for start, end in spans["launch"]), kept["ideal_ns"] / 1e3
            beside, share = overlapped(spans), lambda us: percent(max(0, us) / spans["step"])
            rows.append([f"{name}, batch {batch}", f"`{planner}`", *published, share(beside), share(spans["step"] - kernels),
                         share(kernels - ideal), share(kernels - beside), f"{spans['step'] / ideal:.3f}"])
        rows.append([f"{name}, batch {batch}", "bound", *["-"] * 7, f"{min(r['bound_ns'] for r in bounds if r['feasible']) / kept['ideal_ns']:.3f}"])
    return table(["network", "method", "overlap, published", "waiting, published", "recomputation, published", "overlap", "waiting",
                  "recomputation", "kernels with no copy beside", "step over ideal"], rows)


# Figure 8: iterations until the search is close to its end, as far as the text says.
CONVERGED = {"ResNet": 16, "SqueezeNet": 30, "InceptionV3": 89}


def home_8(lab):
    rows = []
    for network, name, *_ in HOME:
        curve = lab.curve(home_pose(lab, network)(home_beyond(lab, network, name)[1]), "home", RTX2080TI, 2)
        over = lambda ns: f"{ns / curve['ideal_ns']:.3f}"
        alive = curve["alive"]
        close = next(i for i, a in enumerate(alive) if a[2] <= 1.01 * alive[-1][2])
        ahead = lambda a: percent(a[3] / a[2] - 1)
        rows.append([f"{name} (`{network}`)", CONVERGED.get(name, NOT_GIVEN), close, len(alive) - 1, *map(over, alive[0][2:]),
                     *map(over, alive[-1][2:]), "30 %, 13 %" if name == "SqueezeNet" else NOT_GIVEN, f"{ahead(alive[0])}, {ahead(alive[-1])}"])
    return table(["network", "iterations until close, published", "until within 1 % here", "iterations here", "first: best", "mean", "worst",
                  "last: best", "mean", "worst", "mean over best, first and last, published", "here"], rows)


# Table 3: seconds of the search and milliseconds of one evaluation.
SEARCH = {"MobileNet": (28, 1.7), "Plain20": (41, 2.2), "SqueezeNet": (9, 0.5), "VGG16": (25, 1.4), "ResNet": (10, 0.6), "InceptionV3": (350, 21.8)}


def home_3(lab):
    rows = []
    for network, name, *_ in HOME:
        problem = home_pose(lab, network)(home_beyond(lab, network, name)[1])
        row = [f"{name} (`{network}`)", f"{len(json.loads(problem.read_text())['ops']):,}", SEARCH[name][0], SEARCH[name][1]]
        for planner in ("home", "memc"):
            r = lab.plan(problem, planner, RTX2080TI)
            row += [f"{r['plan_ns'] / 1e9:.1f}", f"{r['evaluations']:,}", f"{r['plan_ns'] / r['evaluations'] / 1e6:.3f}"]
        rows.append(row)
    return table(["network", "ops here", "search, published, s", "evaluation, published, ms", "`home`: search, s", "evaluations",
                  "ms an evaluation", "`memc`: search, s", "evaluations", "ms an evaluation"], rows)


TABLES = {
    "home-2": Table("HOME, table 2: largest batch", home_2, """
RTX 2080 Ti with 11 GB, less 0.5 GiB; momentum. Growth is the largest batch over PyTorch's; *there* is throughput over the
unplanned step's at as much growth over `keep-all`. A limit is the largest growth that a planner finds any plan for,
however slow (at effort 0, to within one in fifty; for `memc`, any plan counts). HOME trains on CIFAR-10;
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
    "home-7": Table("HOME, figure 7: where the time of a step goes", home_7, """
RTX 2080 Ti; batches of figure 6. Shares are of the step; published ones as far as the text of section 4.3 gives them. *Overlap*: time of
kernels with a copy beside them. *Waiting*: no kernel runs. *Recomputation*: time of kernels beyond those of the step. The bound holds for
every row of a network.

- `home` has the shortest step of the published methods, as in the paper. On VGG16 it waits for the input alone, as `superneurons` does.
- `home` overlaps less than the published 57 %: it keeps more maps. It copies 1.3 GB out on VGG16, `memc` 2.8 GB.
- On VGG16 `vdnn-conv` has no plan. `vdnn-all` waits for 71 % of the step there, where the paper has 75 % for vDNN.
- On InceptionV3 `vdnn-conv` waits for 60 %, where the paper has 34 %. In both, vDNN waits less than on VGG16.
- `superneurons` recomputes for 5 % of the step on VGG16 where the paper has 20.5 %, and copies nothing. Dropping cheap layers makes room
  enough.
- `capuchin` waits for 16 % on InceptionV3 where the paper has 5 %, mostly for room that copies to the host have not made yet.
- `memc` never waits on either, and is within 0.8 % of the bound.
"""),
    "home-8": Table("HOME, figure 8: the swarm over its iterations", home_8, """
RTX 2080 Ti; batches of figure 6, effort 2: step over ideal of the best policy so far, and mean and worst of the particles. The figure is a
plot; its text names some iterations and SqueezeNet's distance. The paper has 500 particles and 500 iterations. *Until within 1 %* is of the
last best.

- As published, the swarm finds a good policy early and goes on improving it, and the mean comes close to the best.
- The search ends when an iteration changes nothing, after six to nine. An iteration tries both candidates for every map of every
  particle, where they differ.
- Particles begin farther apart than published: each draws its own mix of the three actions. The paper does not say how it draws.
- InceptionV3 needs no more iterations than the others here. It has 33 particles, since evaluations are bounded.
"""),
    "home-3": Table("HOME, table 3: time of the search", home_3, """
RTX 2080 Ti; batches of figure 6. The paper's search has 16 threads and 500 iterations of 500 particles; here both searches have two cores
that others used, and a bound on evaluations. An evaluation is of one whole policy; the paper's milliseconds are those of its evaluator.

- `home` searches 6 to 83 times as fast as published, and an evaluation takes 0.4 to 2.8 % of the published one.
- 28 s at 1.7 ms are 264,000 evaluations on 16 threads. That is one for each particle and iteration.
- Algorithm 3 asks for two for every map as well, for which the published times leave no room.
- `memc` takes 3 to 13 times as long as `home`: its evaluations take three to five times as long.
- InceptionV3 is slowest in both, as published.
"""),
    "home-4": Table("HOME, figure 4 and section 2.2: a copy against its layer", home_4, """
RTX 2080 Ti; networks and batches of figure 6. The figure is a drawing of the cost model. Section 2.2 says that swapping a tensor takes more
than twice the time of its layer for most layers. A copy is one way with the link for itself, a layer's time that of the ops that write the
map. Maps below 1 MiB are left out; a hyphen: none is named so. A layer of normalisation overwrites nothing, ReLU overwrites its operand.

- As published, most feature maps take more than twice as long to copy as to make: 76 to 98 of 100.
- Convolutions differ from the rest. In VGG16 and InceptionV3 the median convolution takes more than half as long as its copy.
- Copying all maps out takes four to nine times as long as the layers. So a plan must choose, and recompute what is cheap.
"""),
}
