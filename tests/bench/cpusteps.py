"""Times training steps of five networks on the CPU, memrun's beside PyTorch's, and prints one JSON object.

Usage: python tests/bench/cpusteps.py [--only resnet18,gpt2] [--threads 2] [--rounds 5] [--steps 6]
       [--bin FOLDER] [--keep FOLDER] [--table]
Needs: a release build of memc and memrun; torch 2.15, torchvision 0.29, transformers 5.23, numpy, onnx.

Both take the same step from the same weights on the same data: the loss, all gradients, and momentum SGD or AdamW.
memc compiles the step without a budget, so nothing is swapped or recomputed. A round times memrun, then PyTorch;
its figure is the median of its steps, the first two left out. The ratio of a round is memrun / PyTorch. With
--keep, models, plans and data stay in a folder, and are not made again.
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARM = 2
MOMENTUM, ADAMW = "momentum:lr=0.01,momentum=0.9", "adamw:lr=0.0001"


def vision(name, batch=8, size=224):
    def make(torch):
        import torchvision
        torch.manual_seed(0)
        model = getattr(torchvision.models, name)()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return model, torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,)), MOMENTUM, "cross-entropy"
    return make


def language(name, batch, tokens):
    def make(torch):
        import transformers
        torch.manual_seed(0)
        still = {"attn_implementation": "eager", "use_cache": False}
        if name == "bert":
            config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **still)
            inner = transformers.BertForMaskedLM(config)
        else:
            config = transformers.GPT2Config(n_embd=384, n_layer=6, n_head=6, resid_pdrop=0.0, embd_pdrop=0.0,
                                             attn_pdrop=0.0, **still)
            inner = transformers.GPT2LMHeadModel(config)

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = inner

            def forward(self, ids):
                return self.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits

        ids, labels = (torch.randint(0, config.vocab_size, (batch, tokens)) for _ in range(2))
        return Logits(), ids, labels, ADAMW, "cross-entropy:axis=-1"
    return make


NETS = {
    "resnet18": vision("resnet18"),
    "resnet50": vision("resnet50"),
    "mobilenet_v2": vision("mobilenet_v2"),
    "bert_base": language("bert", 2, 128),
    "gpt2": language("gpt2", 2, 128),
}


def command(*args):
    run = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=ROOT)
    if run.returncode != 0:
        raise SystemExit(f"{args}: exit {run.returncode}\n{run.stderr}")
    return run.stdout


def prepared(torch, memc, model, x, labels, optimizer, loss, folder):
    """The plan of a model's step, beside the data that it reads."""
    import numpy
    plan = folder / "step.plan"
    if plan.exists():
        return plan
    folder.mkdir(parents=True, exist_ok=True)
    numpy.save(folder / "x.npy", x.numpy())
    numpy.save(folder / "labels.npy", labels.numpy())
    (folder / "parameters.txt").write_text("\n".join(n for n, _ in model.named_parameters(remove_duplicate=False)))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(model, (x,), str(folder / "model.onnx"), input_names=["x"], output_names=["out"],
                          dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    model.load_state_dict(state)
    command(memc, "compile", folder / "model.onnx", "--device", "cpu", "--loss", loss, "--optimizer", optimizer,
            "--parameters", folder / "parameters.txt", "-o", plan)
    return plan


def memrun_step(memrun, plan, threads, steps):
    out = json.loads(command(memrun, plan, "--steps", steps + WARM, "--threads", threads, "--json",
                             "--input", f"x=@{plan.parent / 'x.npy'}",
                             "--input", f"labels=@{plan.parent / 'labels.npy'}"))
    return statistics.median(out["step_ns"][WARM:]) / 1e6, out["losses"]


def torch_steps(torch, model, x, labels, rule):
    """A function that takes steps and returns their median time in milliseconds, and the losses."""
    if rule == MOMENTUM:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0001)

    def run(steps):
        times, losses = [], []
        for _ in range(steps + WARM):
            start = time.perf_counter_ns()
            optimizer.zero_grad()
            out = model(x)
            loss = torch.nn.functional.cross_entropy(out.flatten(0, -2), labels.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times[WARM:]) / 1e6, losses
    return run


def measured(torch, name, args, folder):
    model, x, labels, rule, loss = NETS[name](torch)
    model.train()
    plan = prepared(torch, args.bin / "memc", model, x, labels, rule, loss, folder / name)
    theirs_of = torch_steps(torch, model, x, labels, rule)
    rows, losses = [], []
    for i in range(args.rounds):
        ours, our_losses = memrun_step(args.bin / "memrun", plan, args.threads, args.steps)
        theirs, their_losses = theirs_of(args.steps)
        rows.append((ours, theirs))
        if i == 0:
            losses = [our_losses[1], their_losses[1]]
    ratios = sorted(ours / theirs for ours, theirs in rows)
    return {
        "network": name, "memrun_ms": round(statistics.median(a for a, _ in rows), 1),
        "pytorch_ms": round(statistics.median(b for _, b in rows), 1),
        "ratio_min": round(ratios[0], 3), "ratio_median": round(statistics.median(ratios), 3),
        "second_losses": losses,
    }


def table(rows):
    lines = ["| network | memrun, ms | PyTorch, ms | ratio, least | ratio, median |", "|---|---|---|---|---|"]
    lines += [f"| {r['network']} | {r['memrun_ms']:,.0f} | {r['pytorch_ms']:,.0f} | {r['ratio_min']:.2f} | "
              f"{r['ratio_median']:.2f} |" for r in rows]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        rows = [measured(torch, name, args, folder.resolve()) for name in args.only.split(",")]
    print(table(rows) if args.table else json.dumps({"threads": args.threads, "step": rows}, indent=1))


if __name__ == "__main__":
    main()
