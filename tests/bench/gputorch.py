"""A training step in PyTorch: what gpu.py measures memrun beside, one measurement a process, so that running out of memory ends
nothing else.

Usage: python3 tests/bench/gputorch.py SPEC      SPEC is a JSON object, see MEASUREMENT; prints one JSON object
       python3 tests/bench/gputorch.py --smoke DEVICE    says whether PyTorch runs there, and how fast host memory is locked
       python3 tests/bench/gputorch.py --check   builds every network, and compares the ways' first losses on the CPU
Needs: torch.

ResNet-50, BERT-base and GPT-2 small with the shapes of `models/zoo`, in plain `torch.nn`; PARAMETERS has the zoo's counts. Ways, of
which those with a + are two together:

eager        keeps everything on the GPU, in f32 without TF32, with attention spelled out as in the zoo's models
checkpoint   computes every residual block or layer again in the backward pass (`torch.utils.checkpoint`)
save_on_cpu  keeps what the backward pass reads in pinned host memory (`torch.autograd.graph.save_on_cpu`)
tuned        is eager with what a careful user would switch on: cuDNN's search for algorithms and channels last for ResNet-50,
             PyTorch's fused attention for the others
default      leaves PyTorch's switches as they are: convolutions in TF32, matrix products in f32. With channels last for ResNet-50, and
             fused attention for the others
default_nchw is default without channels last
"""
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WAYS = ["eager", "checkpoint", "save_on_cpu", "tuned", "default", "default_nchw", "default+checkpoint", "default+save_on_cpu"]
# Steps before those that count.
WARM = 3
# Mebibytes that `--smoke` locks.
LOCKED = 4096
PARAMETERS = {"resnet50": 25_557_032, "bert_base": 108_893_186, "gpt2_small": 124_439_808}
# What a specification may say; `cap_bytes` is for PyTorch's allocator, which does not count the driver's context.
MEASUREMENT = {"model": "resnet50", "batch": 64, "way": "eager", "device": "cuda", "steps": 15, "cap_bytes": None, "tf32": False}


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = None
        if stride > 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + (self.downsample(x) if self.downsample else x), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, tuned):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, channels = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                width = 256 << stage
                blocks.append(Bottleneck(channels, 64 << stage, width, 2 if stage > 0 and block == 0 else 1))
                channels = width
        self.blocks, self.fc = nn.ModuleList(blocks), nn.Linear(channels, 1000)
        if tuned:
            self.to(memory_format=torch.channels_last)

    def forward(self, x, run):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for block in self.blocks:
            x = run(block, x)
        return self.fc(x.mean((2, 3)))

    @staticmethod
    def data(batch, size):
        return [torch.randn(batch, 3, size or 224, size or 224), torch.randint(1000, (batch,))]

    def loss(self, run, images, labels):
        return F.cross_entropy(self(images, run), labels)


def attend(q, k, v, heads, mask, fused):
    """Attention with dropout of its weights. `mask` is added to the scores; None is a causal one."""
    n, s, d = q.shape
    q, k, v = (t.view(n, s, heads, d // heads).transpose(1, 2) for t in (q, k, v))
    if fused:
        y = F.scaled_dot_product_attention(q, k, v, mask, 0.1, is_causal=mask is None)
    else:
        scores = q @ k.transpose(2, 3) / math.sqrt(d // heads)
        if mask is None:
            later = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        else:
            scores = scores + mask
        y = F.dropout(scores.softmax(-1), 0.1) @ v
    return y.transpose(1, 2).reshape(n, s, d)


class BertLayer(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, 1e-12), nn.LayerNorm(width, 1e-12)

    def forward(self, x, mask):
        y = attend(self.query(x), self.key(x), self.value(x), self.heads, mask, self.fused)
        x = self.norm1(F.dropout(self.out(y), 0.1) + x)
        return self.norm2(F.dropout(self.output(F.gelu(self.intermediate(x))), 0.1) + x)


class BertBase(nn.Module):
    def __init__(self, tuned, width=768, heads=12, layers=12):
        super().__init__()
        self.words, self.positions, self.types = (nn.Embedding(rows, width) for rows in (30522, 512, 2))
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, tuned) for _ in range(layers))
        self.qa = nn.Linear(width, 2)

    def forward(self, ids, types, mask, run):
        places = self.positions.weight[:ids.shape[1]]
        x = F.dropout(self.norm(self.words(ids) + places + self.types(types)), 0.1)
        mask = ((1.0 - mask) * -10000.0)[:, None, None, :]
        for layer in self.layers:
            x = run(layer, x, mask)
        return self.qa(x)

    @staticmethod
    def data(batch, size):
        s = size or 384
        ids, types, mask = torch.randint(30522, (batch, s)), torch.randint(2, (batch, s)), torch.ones(batch, s)
        return [ids, types, mask, torch.randint(s, (batch, 2))]

    def loss(self, run, ids, types, mask, labels):
        return F.cross_entropy(self(ids, types, mask, run), labels)


class Gpt2Layer(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + F.dropout(self.proj(attend(q, k, v, self.heads, None, self.fused)), 0.1)
        return x + F.dropout(self.out(F.gelu(self.fc(self.norm2(x)), approximate="tanh")), 0.1)


class Gpt2Small(nn.Module):
    def __init__(self, tuned, width=768, heads=12, layers=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50257, width), nn.Embedding(1024, width)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.layers = nn.ModuleList(Gpt2Layer(width, heads, tuned) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, run):
        x = F.dropout(self.wte(ids) + self.wpe.weight[:ids.shape[1]], 0.1)
        for layer in self.layers:
            x = run(layer, x)
        return F.linear(self.norm(x), self.wte.weight)

    @staticmethod
    def data(batch, size):
        return [torch.randint(50257, (batch, size or 1024)), torch.randint(50257, (batch * (size or 1024),))]

    def loss(self, run, ids, labels):
        return F.cross_entropy(self(ids, run).flatten(0, 1), labels)


NETS = {"resnet50": ResNet50, "bert_base": BertBase, "gpt2_small": Gpt2Small}


def train(spec, size=None):
    """The losses and times in ns of the steps after those that warm up; a `size` is for a smaller image or sequence."""
    device, ways = torch.device(spec["device"]), spec["way"].split("+")
    gpu, tuned, default = device.type == "cuda", "tuned" in ways, ways[0].startswith("default")
    if gpu:
        torch.cuda.set_device(device.index or 0)
    torch.manual_seed(1)
    if not default:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec["tf32"]
    torch.backends.cudnn.benchmark = tuned
    if gpu and spec["cap_bytes"]:
        whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, spec["cap_bytes"] / whole))
    fast = tuned or default and (ways[0] == "default" or spec["model"] != "resnet50")
    net = NETS[spec["model"]](fast).to(device).train()
    count = sum(p.numel() for p in net.parameters())
    assert count == PARAMETERS[spec["model"]], f"{count} parameters"
    if spec["model"] == "resnet50":
        optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=gpu)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=gpu)
    host = net.data(spec["batch"], size)
    host = [t.pin_memory() for t in host] if gpu else host
    plain = lambda block, *x: block(*x)
    again = lambda block, *x: checkpoint(block, *x, use_reentrant=False)
    losses, times, events = [], [], []
    for _ in range(WARM + spec["steps"]):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if gpu else None
        begun = time.perf_counter_ns()
        if gpu:
            marks[0].record()
        # A step's data comes from the host, as memrun's does.
        batch = [t.to(device, non_blocking=True) for t in host]
        if "save_on_cpu" in ways:
            with torch.autograd.graph.save_on_cpu(pin_memory=gpu):
                loss = net.loss(plain, *batch)
        else:
            loss = net.loss(again if "checkpoint" in ways else plain, *batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        if gpu:
            marks[1].record()
            events.append(marks)
        times.append(time.perf_counter_ns() - begun)
    if gpu:
        torch.cuda.synchronize()
        times = [a.elapsed_time(b) * 1e6 for a, b in events]
    return [float(loss) for loss in losses], times[WARM:]


def measure(spec):
    gpu = spec["device"].startswith("cuda")
    row = {"torch": torch.__version__}
    if gpu and not torch.cuda.is_available():
        return row | {"skipped": "this PyTorch finds no GPU"}
    try:
        losses, times = train(spec)
        row |= {"step_ns": round(statistics.median(times)), "losses": [losses[0], losses[-1]]}
    except torch.cuda.OutOfMemoryError as error:
        row["oom"] = str(error).splitlines()[0][:200]
    if gpu:
        row |= {"gpu": torch.cuda.get_device_name(), "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved()}
    return row


def smoke(device):
    """Whether PyTorch runs on the device, its switches as it starts, and seconds that locking host memory takes."""
    gpu = device.startswith("cuda")
    row = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
           "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32}}
    x = torch.randn(1024, 1024, device=device)
    row["norm"] = float((x @ x).norm())
    if gpu:
        row["gpu"], begun = torch.cuda.get_device_name(), time.perf_counter()
        torch.empty(LOCKED << 20, dtype=torch.uint8, pin_memory=True)
        row |= {"locked_mib": LOCKED, "locking_s": round(time.perf_counter() - begun, 2)}
    return row


def check():
    """Every network has the zoo's parameters, and the ways' first losses are one."""
    for model in NETS:
        spec = {**MEASUREMENT, "model": model, "batch": 2, "device": "cpu", "steps": 1 - WARM}
        first = {way: train({**spec, "way": way}, 64)[0][0] for way in WAYS}
        print(f"{model}: {PARAMETERS[model]:,} parameters, losses {first}")
        assert all(math.isfinite(loss) for loss in first.values())
        # Fused attention and channels last sum in another order, and draw other masks.
        apart = lambda way: "tuned" in way or "default" in way
        assert all(abs(first[way] - first["eager"]) <= (0.1 if apart(way) else 0) for way in WAYS), first


def main():
    if sys.argv[1:] == ["--check"]:
        check()
    elif sys.argv[1] == "--smoke":
        print(json.dumps(smoke(sys.argv[2])))
    else:
        print(json.dumps(measure({**MEASUREMENT, **json.loads(sys.argv[1])})))


if __name__ == "__main__":
    main()
