"""Plans the inference of networks of the zoo at decreasing budgets, and prints a table: memory, throughput, traffic.

Usage: python3 tests/bench/inference.py [--bin MEMC] [--device NAME] [--effort N] [--only NAME] [--out ROWS.jsonl]
Needs: a build of memc. Takes minutes.

Times are modelled. Memory is that of the plan's buffers: the device's reserve is left out. The largest budget is the
unplanned peak, the smallest the least that memc finds a plan for.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# SwapAdvisor's models for inference, and others, each with a batch.
NETS = (("resnet50", 64), ("inception_v4", 64), ("vgg16", 64), ("nasnet_a_r25", 32), ("wresnet152_10", 8),
        ("rnn_8_8k", 64), ("bert_large", 16), ("gpt2_medium", 8), ("vit_l_16", 32))
SHARES = (1.0, 0.5, 0.25)


def memc(args, command, *more):
    line = [args.bin, *command, "--device", args.device, *more, "--json"]
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        print(f"memc {' '.join(map(str, command))}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def rows(args, net, batch):
    source = [f"models/zoo/{net}.onnx", "--inference", "--dim", f"batch={batch}"]
    need = memc(args, ["estimate", *source])
    if need is None:
        return
    peak, least, reserve = (need[name] for name in ("peak_bytes", "smallest_feasible_bytes", "reserve_bytes"))
    budgets = [max(least, reserve + int((peak - reserve) * share)) for share in SHARES] + [least]
    for budget in sorted(set(budgets), reverse=True):
        plan = memc(args, ["plan", *source], "--gpu-mem", f"{budget}B", "--effort", args.effort)
        if plan is not None:
            yield {"net": net, "batch": batch, "peak": peak - reserve, "weights": need["weights_bytes"],
                   "arena": budget - reserve, "step_ns": plan["step_ns"], "ideal_ns": plan["ideal_ns"],
                   "in": plan["swap_in_bytes"], "out": plan["swap_out_bytes"],
                   "bound_ns": plan.get("bound_ns"), "recompute": plan.get("recompute_ops")}


def mib(bytes):
    return f"{bytes / 2**20:,.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=ROOT / "target" / "release" / "memc")
    parser.add_argument("--device", default="v100-16g")
    parser.add_argument("--effort", default="2")
    parser.add_argument("--only")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    print("| network, batch | weights, MiB | memory, MiB | of the unplanned | samples/s | step / ideal | in, MiB | out, MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for net, batch in NETS:
        if args.only and args.only != net:
            continue
        for row in rows(args, net, batch):
            if args.out:
                with args.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")
            rate = batch / (row["step_ns"] / 1e9)
            print(f"| {net}, {batch} | {mib(row['weights'])} | {mib(row['arena'])} | {row['arena'] / row['peak']:.0%} "
                  f"| {rate:,.0f} | {row['step_ns'] / row['ideal_ns']:.3f} | {mib(row['in'])} | {mib(row['out'])} |",
                  flush=True)


if __name__ == "__main__":
    main()
