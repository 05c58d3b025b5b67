#!/usr/bin/env python3
"""Serves several models in the memory of one (SwapAdvisor, figure 8), and prints a table: times of requests by load.

Usage: python3 tests/bench/shared.py [--memc FILE] [--memrun FILE] [--models 4] [--network NAME] [--seconds S]
Needs: builds of memc and memrun; Python alone. Takes some minutes.

The memory is what one model takes unplanned, at batch 1. `alone` is one model in all of it (the paper's not_shared).
`parts` gives each model a plan of its own in an equal part of the memory, as the paper does. `joint` is one plan of all
models, which runs all of them for a request. Requests arrive as a Poisson process, each for one of the models at
random, at shares of what `alone` carries. All servers are there from the start, and at each rate the ways take turns,
several times: a cell has the least p50 and p99 of these, since others run on the machine. The clients run on it, too.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import serve

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARES = (0.25, 0.5, 0.75)


def memc(args, *words):
    line = [str(word) for word in (args.memc, *words, "--device", "cpu", "--json")]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    answer = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}
    return answer


def ways(args, folder):
    """Plans of each way to serve, with the names of the models and what each plan takes."""
    model = ROOT / "models" / "zoo" / f"{args.network}.onnx"
    source = ["--inference", "--dim", "batch=1", "--effort", args.effort]
    whole = memc(args, "estimate", model, *source[:3])["peak_bytes"]
    part, names = whole // args.models, [f"m{i}" for i in range(args.models)]
    jobs = [word for name in names for word in ("--job", f"{name}={model}")]
    asked = {
        "alone": ([model], whole, {"m0": "m0={}"}),
        "parts": ([model], part, {name: f"{name}={{}}" for name in names}),
        "joint": (jobs, whole, {"joint": "{}"}),
    }
    for way, (what, budget, plans) in asked.items():
        file = folder / f"{way}.plan"
        made = memc(args, "compile", *source, *what, "--gpu-mem", f"{budget}B", "-o", file)
        served = names if way != "alone" else names[:1]
        yield way, [text.format(file) for text in plans.values()], served, made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memc", default=ROOT / "target" / "release" / "memc")
    parser.add_argument("--memrun", default=ROOT / "target" / "release" / "memrun")
    parser.add_argument("--network", default="resnet20_cifar10")
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--effort", default="2")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--max-delay", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = list(ways(args, pathlib.Path(folder)))
        wrong = [f"{way}: {plan['error']}" for way, _, _, plan in made if "error" in plan]
        if wrong:
            raise SystemExit("\n".join(wrong))
        servers = []
        for way, plans, names, plan in made:
            server = serve.Server(args, *plans)
            servers.append((way, server, serve.request(server, names[0]), names, plan))
        _, server, message, names, _ = servers[0]
        rate = max(serve.carried(serve.Load(server, message, 4, names), args.seconds / 2) for _ in range(3))
        found = {}
        for share in SHARES:
            for _ in range(args.rounds):
                for way, server, message, names, _ in servers:
                    load = serve.Load(server, message, 2 * args.queue, names)
                    found.setdefault((way, share), []).append(serve.row(load, share * rate, args.seconds))
        heads = [f"at {share * rate:.1f}/s" for share in SHARES]
        print("| way | models | arena of each plan, MiB | copied in, MiB | " + " | ".join(heads)
              + " | 429 | other errors |")
        print("|---|---|---|---|" + "---|" * len(SHARES) + "---|---|")
        for way, server, _, names, made in servers:
            runs = [found[way, share] for share in SHARES]
            cells = [f"{min(r['p50_ms'] for r in run):.0f}, {min(r['p99_ms'] for r in run):.0f}" for run in runs]
            refused, other = (sum(r[key] for run in runs for r in run) for key in ("refused", "other"))
            arena, copied = (made[key] / 2**20 for key in ("arena_bytes", "swap_in_bytes"))
            print(f"| `{way}` | {len(names)} | {arena:.1f} | {copied:.1f} | "
                  + " | ".join(cells) + f" | {refused} | {other} |")
            server.end()
        print(f"carried by `alone`: {rate:.1f} requests/s")


if __name__ == "__main__":
    main()
