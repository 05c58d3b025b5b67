"""The tables of the papers: what was published, and how it is posed here. Used by papers.py."""

from . import delta, home, smartpool, swapadvisor, tensile

TABLES = swapadvisor.TABLES | home.TABLES | smartpool.TABLES | delta.TABLES | tensile.TABLES
HEAD = """# The papers' tables

Published figures of five papers on memory planning, what their methods give here on the same networks, and `memc`. Written by
`tests/bench/papers.py`, which runs everything again (`--planners memc` for the default planner alone).

Steps are simulated on the published hardware's profile (`memc list devices`); networks are those of
[the zoo](../../../models/README.md#the-zoo), with the backward pass as written (`--no-mem-rewrite`), since the papers' frameworks keep
what it reads. So ratios compare, milliseconds do not. *Not given*: the paper has no number. More time is over the unplanned
step; it is negative where a planner overlaps the input's copy with the step before. *No plan*: the method does not reach the budget;
*out of time*: it was stopped; *not measured*: left out (`--skip`). Planning times are from two cores that others used, too.
`memc` is of a later build than the other planners. Since then only `swapadvisor` and `home` changed: figures 6, 9 and 10 show the
new ones, both tables 2 the old ones. `odswap` of figure 6 is of an older build, and has up to 0.6 points less than in figures 9 and
10. Planning times of `swapadvisor` are left out where it was run for the course of its search. All planners are of one build in SwapAdvisor's table 1 and figure 7, HOME's figures 4, 7 and 8 and table 3, AutoSwap's figures, DELTA's
figures and table V, and TENSILE's five networks.
"""
TAIL = """## What is not here

Tables and figures that a planner and a cost model cannot show, and why. Drawings of systems and algorithms are left out, too.

- **SwapAdvisor, figure 1**: an example of six forward ops. Where its activations go depends on a backward pass that is not given.
- **SwapAdvisor, figure 8**: latency of serving several models. It is measured with `memrun serve`, not modelled ([serving](serving.md)).
- **SwapAdvisor, figure 11**, and **HOME, figure 9**: how well simulated times predict measured ones. No paper's device is at hand.
- **SmartPool, figure 2**: load over five iterations. Every step is planned as the one before it, so that all five are figure 8's.
- **SmartPool, table I**: speed-up over cudaMalloc. A planned step calls no allocator.
- **DELTA, figure 6**: convergence. A plan changes no value, so that losses are those of the unplanned step.
- **TENSILE, table 2 and figure 6**: several jobs at once. Both are in [jobs](jobs.md#tensiles-workloads).
- **DELTA** on eight devices: a plan is for one device.
"""
