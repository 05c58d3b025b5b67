"""HOME (He et al., IEEE Transactions on Computers 2022): its tables and figures."""

from functools import cache

from .common import MOMENTUM, RTX2080TI, Table, most, speed, table

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


TABLES = {
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
}
