"""Training through memc beside plain PyTorch: losses, weights, states, and what scripts do around a step."""

import copy
import html
import json
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import memc  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class Net(nn.Module):
    """Convolution, batch normalisation, a frozen layer and a tied one."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = F.avg_pool2d(F.silu(self.norm(self.conv(x))), 2).mean((2, 3))
        return self.head(F.gelu(self.frozen(self.b(torch.tanh(self.a(x))))))


def batches(count, size=8):
    return [(torch.randn(size, 3, 16, 16), torch.randint(0, 10, (size,))) for _ in range(count)]


def plain_steps(model, optimizer, data, scheduler=None, norm=None):
    """Losses of a training loop of PyTorch."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        losses.append(loss.item())
        if scheduler is not None:
            scheduler.step()
    return losses


def alike(ours, theirs, start):
    """Tensors that have changed alike since `start`."""
    for name, value in theirs.items():
        change = (value.double() - start[name].double()).abs().max().item()
        error = (ours[name].double() - value.double()).abs().max().item()
        assert error <= max(1e-6, 0.01 * change), (name, error, change)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, maximize=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adam_maximize": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-3),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-3, centered=True, momentum=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_update_as_pytorch_does(kind):
    model = Net()
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    data = batches(5)
    step = memc.train_step(model, F.cross_entropy, OPTIMIZERS[kind](model.parameters()), data[0], budget="peak*90%")
    ours = [float(step(x, y)) for x, y in data]
    theirs = plain_steps(twin, OPTIMIZERS[kind](twin.parameters()), data)
    assert ours == pytest.approx(theirs, rel=1e-4)
    alike(model.state_dict(), twin.state_dict(), start)
    assert torch.equal(model.frozen.weight, start["frozen.weight"])
    assert model.a.weight is model.b.weight


def test_optimizer_state_is_pytorchs_own():
    """A loop begun by memc goes on in PyTorch, and the other way round, through state dicts."""
    model = Net()
    twin = copy.deepcopy(model)
    data = batches(6)
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)
    theirs = plain_steps(twin, optimizer := make(twin), data)
    ours = make(model)
    step = memc.train_step(model, F.cross_entropy, ours, data[0])
    losses = [float(step(*batch)) for batch in data[:2]]
    step.close()
    losses += plain_steps(model, ours, data[2:4])
    other, again = Net(), None
    other.load_state_dict(model.state_dict())
    again = make(other)
    again.load_state_dict(ours.state_dict())
    step = memc.train_step(other, F.cross_entropy, again, data[0])
    losses += [float(step(*batch)) for batch in data[4:]]
    assert losses == pytest.approx(theirs, rel=1e-4)
    want, have = optimizer.state_dict()["state"], again.state_dict()["state"]
    assert have.keys() == want.keys()
    for i, state in want.items():
        assert have[i].keys() == state.keys()
        assert int(have[i]["step"]) == int(state["step"])
        assert torch.allclose(have[i]["exp_avg_sq"], state["exp_avg_sq"], rtol=1e-3, atol=1e-9)


def test_schedulers_groups_and_clipping():
    model = Net()
    twin = copy.deepcopy(model)
    data = batches(5)

    def made(m):
        body = [p for n, p in m.named_parameters() if not n.startswith("head") and p.requires_grad]
        groups = [{"params": body}, {"params": m.head.parameters(), "lr": 0.2, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)

    optimizer, scheduler = made(model)
    step = memc.train_step(model, F.cross_entropy, optimizer, data[0], budget="peak*90%", clip_grad_norm=0.5)
    ours = []
    for batch in data:
        ours.append(float(step(*batch)))
        scheduler.step()
    theirs = plain_steps(twin, *((made_twin := made(twin))[0], data), made_twin[1], norm=0.5)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_clipping_by_value():
    model = Net()
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    optimizer, (batch,) = torch.optim.SGD(model.parameters(), lr=0.1), batches(1)
    memc.train_step(model, F.cross_entropy, optimizer, batch, clip_grad_value=0.01)(*batch)
    F.cross_entropy(twin(batch[0]), batch[1]).backward()
    assert any((p.grad.abs() > 0.01).any() for p in twin.parameters() if p.grad is not None), "there is nothing to clip"
    nn.utils.clip_grad_value_(twin.parameters(), 0.01)
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    alike(model.state_dict(), twin.state_dict(), start)


def test_no_gradient_through_a_region_without():
    """A target that the same network computes under `no_grad`, as in self-distillation."""
    def compute(model, x):
        with torch.no_grad():
            target = model(x).roll(1, 0)
        return F.mse_loss(model(x), target)

    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
    twin, x = copy.deepcopy(model), torch.randn(5, 6)
    step = memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.5), (x,), compute=compute)
    ours, theirs, optimizer = [float(step(x)) for _ in range(4)], [], torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        loss = compute(twin, x)
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_training_goes_on_from_a_checkpoint(kind, tmp_path):
    """Files written between two steps; safetensors has the weights, and plain SGD needs no more."""
    pytest.importorskip(kind)
    make = (lambda m: torch.optim.AdamW(m.parameters(), lr=0.01)) if kind == "torch" else \
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    model, data, path = Net(), batches(6), tmp_path / "checkpoint"
    optimizer = make(model)
    step = memc.train_step(model, F.cross_entropy, optimizer, data[0])
    for batch in data[:3]:
        step(*batch)
    if kind == "torch":
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    else:
        from safetensors.torch import load_model, save_model
        save_model(model, path)
    want = [float(step(*batch)) for batch in data[3:]]
    again = Net()
    other = make(again)
    if kind == "torch":
        saved = torch.load(path)
        again.load_state_dict(saved["model"])
        other.load_state_dict(saved["optimizer"])
    else:
        load_model(again, path)
    step = memc.train_step(again, F.cross_entropy, other, data[0])
    assert [float(step(*batch)) for batch in data[3:]] == want


def test_accumulation_is_the_mean_of_micro_batches():
    model = Net()
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = memc.train_step(model, F.cross_entropy, optimizer, batches(1, 4)[0], accumulate=2)
    x, y = batches(1, 8)[0]
    ours = float(step(x, y))
    other, losses = torch.optim.SGD(twin.parameters(), lr=0.1), []
    for part in range(2):
        loss = F.cross_entropy(twin(x[4 * part: 4 * part + 4]), y[4 * part: 4 * part + 4])
        (loss / 2).backward()
        losses.append(loss.item())
    other.step()
    assert ours == pytest.approx(sum(losses) / 2, rel=1e-5)
    alike(model.state_dict(), twin.state_dict(), start)


def test_a_planned_step_has_the_bits_of_an_unplanned_one():
    """With dropout, whose bits belong to the step and not to the plan."""
    finals = []
    for budget in (None, "peak*60%"):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = torch.randn(64, 32), torch.randint(0, 8, (64,))
        step = memc.train_step(model, F.cross_entropy, optimizer, (x, y), budget=budget, rewrite=False)
        losses = [float(step(x, y)) for _ in range(4)]
        finals.append((losses, copy.deepcopy(model.state_dict()), step.peak))
    assert finals[0][0] == finals[1][0] and finals[0][0][-1] < finals[0][0][0]
    assert all(torch.equal(a, b) for a, b in zip(finals[0][1].values(), finals[1][1].values()))
    assert finals[1][2] < finals[0][2]


def test_parameters_are_the_steps_memory():
    model = Net()
    data = batches(2)
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), data[0])
    before = model.head.weight.clone()
    step(*data[0])
    assert not torch.equal(before, model.head.weight)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    assert float(step(*data[1])) == pytest.approx(torch.log(torch.tensor(10.0)).item(), rel=1e-5)
    state = copy.deepcopy(model.state_dict())
    for _ in range(3):
        step(*data[0])
    model.load_state_dict(state)
    assert torch.equal(model.conv.weight, state["conv.weight"])


def test_parameters_may_be_changed_within_every_budget():
    """Plans that copy parameters to host memory and back take the change, also one that PyTorch does not count."""
    data = [(torch.randn(96, 64), torch.randint(0, 5, (96,))) for _ in range(3)]

    def made(budget, **options):
        torch.manual_seed(1)
        model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 5))
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, twin, memc.train_step(model, F.cross_entropy, optimizer, data[0], budget=budget, **options)

    def has_copies(step):
        return any(view.has_copies for view in step._views.values())

    with pytest.raises(memc.InfeasibleBudget) as error:
        made("1K")
    least, most = error.value.smallest, made(None)[2].peak
    budgets = [least + (most - least) * i // 16 for i in range(0, 8, 2)]
    assert any(has_copies(made(budget, copies=True)[2]) for budget in budgets), "there is nothing to test"
    for budget in budgets:
        model, twin, step = made(budget)
        assert not has_copies(step)
        optimizer, ours, theirs = torch.optim.SGD(twin.parameters(), lr=0.1), [], []
        for batch in data:
            ours.append(float(step(*batch)))
            theirs += plain_steps(twin, optimizer, [batch])
            for net in (model, twin):
                for parameter in net.parameters():
                    parameter.data.clamp_(-0.05, 0.05)
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_what_a_step_no_longer_trains_is_refused():
    model, data = Net(), batches(1)
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), data[0])
    with pytest.raises(memc.CaptureError, match="assign=True"):
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    step.close()
    with pytest.raises(memc.DataError, match="closed"):
        step(*data[0])


def test_a_teacher_is_read_and_not_changed():
    model, teacher = Net(), Net()
    make = lambda: memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(8, 3, 16, 16),),
                                   compute=lambda m, x: F.mse_loss(m(x), teacher(x)))
    with pytest.raises(memc.CaptureError, match="(?s)not one of the model's at .*evaluation mode"):
        make()
    teacher.eval()
    x = torch.randn(8, 3, 16, 16)
    want = F.mse_loss(copy.deepcopy(model)(x), teacher(x)).item()
    assert float(make()(x)) == pytest.approx(want, rel=1e-4)
    with torch.inference_mode(), pytest.raises(memc.CaptureError, match="inference_mode"):
        make()


def test_what_changes_after_a_step_was_built():
    """Neither trains in silence what the user does not mean."""
    model, data = Net(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = memc.train_step(model, F.cross_entropy, optimizer, data, effort=0)
    model.eval()
    with pytest.warns(UserWarning, match="evaluation mode.*training mode"):
        step(*data)
    model.train()
    model.frozen.requires_grad_(True)
    with pytest.raises(memc.CaptureError, match="`frozen.weight` wants a gradient now"):
        step(*data)
    model.frozen.requires_grad_(False)
    step(*data)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
    with pytest.raises(memc.CaptureError, match="momentum.*cycle_momentum=False"):
        step(*data)
        schedule.step()
        step(*data)
    optimizer = torch.optim.SGD(model.conv.parameters(), lr=0.1)
    step = memc.train_step(model, F.cross_entropy, optimizer, data, effort=0)
    optimizer.add_param_group({"params": model.head.parameters()})
    with pytest.raises(memc.CaptureError, match="other parameters"):
        step(*data)


def test_autocast_for_another_device_is_refused():
    """It would change nothing, where bfloat16 was meant."""
    model, (batch,) = Net(), batches(1)

    def compute(model, x, y):
        with torch.autocast("xpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    with pytest.raises(memc.CaptureError, match="(?s)'xpu'.*test_train.py"):
        memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), batch, compute=compute)


def test_autocast_computes_in_short_numbers():
    """Losses and updates as PyTorch's, within the rounding of bfloat16, and not those of float32."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    x, y = torch.randn(8, 16), torch.randint(0, 10, (8,))

    def compute(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    step = memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.5), (x, y), compute=compute)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    long = F.cross_entropy(twin(x), y).item()
    for _ in range(3):
        loss = compute(twin, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert (ours := float(step(x, y))) == pytest.approx(loss.item(), rel=1e-2)
        assert step.steps_done > 1 or ours != long
    for name, value in twin.state_dict().items():
        change = (value - start[name]).norm()
        assert (model.state_dict()[name] - value).norm() < 0.03 * change, name


class Segments(nn.Module):
    """Two segments. No input of the first has a gradient, so that reentrant checkpointing trains nothing in it."""

    def __init__(self, reentrant, ratio=0.0):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.drop, self.reentrant = nn.Dropout(ratio), reentrant

    def forward(self, x):
        def run(function, x):
            if self.reentrant is None:
                return function(x)
            return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=self.reentrant)

        x = run(lambda x: torch.tanh(self.first(x)), x)
        return run(lambda x: self.head(self.drop(torch.tanh(self.second(self.head(x))))), x + self.head.bias)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_segments_are_planned_like_the_rest(reentrant):
    model = Segments(reentrant)
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    step = memc.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), (x, y))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(twin(x), y)
        loss.backward()
        optimizer.step()
        assert float(step(x, y)) == pytest.approx(loss.item(), rel=1e-5)
    alike(model.state_dict(), twin.state_dict(), start)
    assert torch.equal(model.first.weight, start["first.weight"]) == reentrant


def test_a_checkpointed_segment_has_the_masks_that_it_has_without():
    losses = []
    for reentrant in (None, False):
        torch.manual_seed(3)
        model, x, y = Segments(reentrant, 0.5), torch.randn(4, 8), torch.randn(4, 8)
        step = memc.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), (x, y))
        losses.append([float(step(x, y)) for _ in range(4)] + [model.second.weight.sum().item()])
    assert losses[0] == losses[1]


def test_hooks_on_what_gradients_read():
    """`save_on_cpu` has nothing to do; of other hooks memc cannot know what they do."""
    model, (batch,) = Net(), batches(1)

    def compute(model, x, y, hooks):
        with hooks:
            return F.cross_entropy(model(x), y)

    def built(hooks):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return memc.train_step(model, None, optimizer, batch, compute=lambda m, x, y: compute(m, x, y, hooks))

    graph = torch.autograd.graph
    want = compute(model, *batch, graph.save_on_cpu()).item()
    assert float(built(graph.save_on_cpu())(*batch)) == pytest.approx(want, rel=1e-5)
    with pytest.raises(memc.CaptureError, match="(?s)no hooks on saved tensors.*test_train.py"):
        built(graph.saved_tensors_hooks(lambda x: x, lambda x: x))


def test_a_model_is_not_read_past_its_modules():
    """Such a read would be a constant of the step."""
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer):
            ctx.save_for_backward(x)
            ctx.layer = layer
            return layer(x)

        @staticmethod
        def backward(ctx, grad):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                return torch.autograd.grad(ctx.layer(x), x, grad)[0], None

    model, (batch,) = Net(), batches(1)
    kept = model.head.weight.detach()
    for compute in (lambda m, x, y: F.cross_entropy(m(x), y) + kept.square().sum(),
                    lambda m, x, y: Again.apply(m(x)[:, :8], m.a).square().mean()):
        with pytest.raises(memc.CaptureError, match="(?s)reads `(head|a).weight` past its module.*test_train.py"):
            memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), batch, compute=compute)


class Masked(nn.Module):
    """Dropout of a parameter, whose gradient then is the mask."""

    def __init__(self, ratio=0.3):
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.ones(2000)), nn.Dropout(ratio)

    def forward(self, x):
        return self.drop(x * self.weight)


def test_dropout_keeps_its_share_and_follows_the_seed():
    x, outputs = torch.ones(2000), []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        outputs.append(memc.eval_step(Masked(), (x,))(x))
    kept = outputs[0] != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.05)
    assert torch.allclose(outputs[0][kept], torch.tensor(1 / 0.7))
    assert torch.equal(outputs[0], outputs[2]) and not torch.equal(outputs[0], outputs[1])


def test_micro_batches_have_masks_of_their_own():
    model, x = Masked(), torch.ones(2000)
    loss_fn = lambda out, weight: (out * weight).sum()
    with pytest.warns(UserWarning, match="random numbers of the step are memc's"):
        step = memc.train_step(model, loss_fn, torch.optim.SGD(model.parameters(), lr=1.0), (x, x), accumulate=2)
    loss = step(torch.cat([x, x]), torch.cat([x, x]))
    # The gradient has the masks of the forward pass.
    assert float(loss) == pytest.approx((1 - model.weight).sum().item(), rel=1e-4)
    # Of two masks, none, one or both let a number pass.
    passed = ((1 - model.weight.detach()) * 2 * 0.7).round()
    assert [count in passed for count in (0, 1, 2)] == [True] * 3


def test_wrong_labels_are_refused_before_the_step():
    model, x = nn.Linear(4, 3), torch.ones(2, 4)
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), (x, torch.zeros(2, dtype=torch.int64)))
    for label in (3, -1):
        with pytest.raises(memc.DataError, match=f"`target`.*{label} at .1."):
            step(x, torch.tensor([1, label]))
    want = F.cross_entropy(model(x), torch.tensor([1, -100])).item()
    assert float(step(x, torch.tensor([1, -100]))) == pytest.approx(want, rel=1e-5)
    assert step.steps_done == 1


def test_wrong_indices_are_refused_before_the_step():
    """Kernels would take -1 for the last row."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), (x, y))
    for index, match in ((-1, "the index -1"), (5, "5 at .1, 1.")):
        with pytest.raises(memc.DataError, match=match):
            step(torch.tensor([[0, 1], [2, index]]), y)
    assert step.steps_done == 0


def test_a_batch_norm_of_short_numbers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)).bfloat16()
    twin = copy.deepcopy(model)
    x, y = torch.randn(4, 3, 8, 8).bfloat16(), torch.randint(0, 3, (4,))
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), (x, y))
    loss = F.cross_entropy(twin(x), y)
    assert float(step(x, y)) == pytest.approx(loss.item(), rel=2e-2)
    assert torch.allclose(model[1].running_var.float(), twin[1].running_var.float(), rtol=2e-2)


def test_a_model_that_has_changed_is_told_or_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.drop, self.beta = nn.Linear(4, 4), nn.Dropout(0.5), 1.0
            self.seen = (0, 0)

        def forward(self, x):
            self.seen = (x, x)
            return self.beta * self.layer(self.drop(x))

    def built():
        model = Scaled()
        return model, memc.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), (x, x))

    x = torch.randn(2, 4)
    model, step = built()
    model.beta = 0.5
    with pytest.warns(UserWarning, match="`beta` of the model is 0.5 now"):
        step(x, x)
    model, step = built()
    # What evaluation leaves need not compare.
    model(x)
    with pytest.warns(UserWarning, match="`seen` of the model is tuple now"):
        step(x, x)
    model, step = built()
    model.drop.p = 0.1
    with pytest.warns(UserWarning, match="`p` of module `drop` is 0.1 now"):
        step(x, x)
    model, step = built()
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match="autocast around"):
        step(x, x)
    model.layer = nn.Linear(4, 4)
    with pytest.raises(memc.CaptureError, match="`layer` is another one"):
        step(x, x)
    model, step = built()
    model.layer.weight = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(memc.CaptureError, match="`layer.weight` is another one"):
        step(x, x)


def test_random_numbers_go_on_behind_a_checkpoint(tmp_path):
    """SGD keeps no count of steps, by which masks are drawn."""
    x, rate = torch.ones(2000), torch.optim.SGD

    def built():
        model = Masked()
        return model, memc.train_step(model, lambda out, w: (out * w).sum(), rate(model.parameters(), lr=0.001), (x, x))

    torch.manual_seed(5)
    model, step = built()
    losses = [float(step(x, x)) for _ in range(2)]
    saved = copy.deepcopy(model.state_dict())
    # The whole model can be saved while a step has it.
    torch.save(model, tmp_path / "model.pt")
    losses.append(float(step(x, x)))
    model, again = built()
    model.load_state_dict(saved)
    again.steps_done = 2
    assert float(again(x, x)) == losses[2] != losses[0]


def test_evaluation_between_steps():
    model = Net()
    data = batches(2)
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), data[0])
    model.eval()
    evaluate = memc.eval_step(model, (data[0][0],))
    for batch in data:
        step(*batch)
        with torch.no_grad():
            assert torch.allclose(evaluate(batch[0]), model(batch[0]), atol=1e-5)


def test_errors_say_what_and_where():
    model = Net()
    data = batches(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(memc.InfeasibleBudget) as infeasible:
        memc.train_step(model, F.cross_entropy, optimizer, data[0], budget="2K")
    assert infeasible.value.smallest > 2048 and "--gpu-mem" not in str(infeasible.value)
    with pytest.raises(memc.CaptureError, match="LBFGS is not supported"):
        memc.train_step(model, F.cross_entropy, torch.optim.LBFGS(model.parameters()), data[0])
    with pytest.raises(memc.CaptureError, match="test_train.py"):
        memc.train_step(model, None, optimizer, data[0], compute=lambda m, x, y: m(x).sum() if x.sum() > 0 else m(x).mean())
    with pytest.raises(memc.UnsupportedOp) as unsupported:
        memc.train_step(model, None, optimizer, data[0], compute=lambda m, x, y: torch.special.i0(m(x)).sum())
    assert "i0" in unsupported.value.op and "test_train.py:" in unsupported.value.where
    step = memc.train_step(model, F.cross_entropy, optimizer, data[0])
    with pytest.raises(memc.DataError, match=r"input `x`.*\(2, 3, 16, 16\)"):
        step(data[0][0][:2], data[0][1][:2])
    with pytest.raises(memc.DataError, match="closure"):
        step(lambda: 0)
    optimizer.param_groups[0]["weight_decay"] = 1.0
    with pytest.raises(memc.CaptureError, match="weight_decay"):
        step(*data[0])


def test_export_for_the_command_line(tmp_path):
    pytest.importorskip("safetensors")
    model = Net()
    module, states = memc.export_step(tmp_path / "net", model, F.cross_entropy, torch.optim.Adam(model.parameters()), batches(1)[0])
    assert module.read_text().startswith("module @Net graph")
    assert states.stat().st_size > 0
    module, states = memc.export_step(tmp_path / "run.1", model, F.cross_entropy, torch.optim.Adam(model.parameters()), batches(1)[0])
    assert (module.name, states.name) == ("run.1.mir", "run.1.safetensors")


def test_an_exported_step_runs_by_the_programs_of_the_wheel(tmp_path):
    """The first loss of memrun, and the weights that it saves, are those of PyTorch."""
    pytest.importorskip("safetensors")
    numpy = pytest.importorskip("numpy")
    from safetensors.torch import load_file
    model = Net()
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    (x, y), = data = batches(1)
    module, states = memc.export_step(tmp_path / "net", model, F.cross_entropy, OPTIMIZERS["momentum"](model.parameters()), data[0])
    for name, tensor in (("x", x), ("target", y)):
        numpy.save(tmp_path / f"{name}.npy", tensor.numpy())

    def program(name, *args):
        package = str(pathlib.Path(memc.__file__).resolve().parents[1])
        code = f"import sys; sys.path.insert(0, {package!r}); from memc import _cli; sys.exit(_cli.{name}())"
        ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    program("memc", "compile", module.name, "--device", "cpu", "--gpu-mem", "peak*90%", "-o", "net.plan")
    said = program("memrun", "net.plan", "--init", states.name, "--input", "x=@x.npy", "--input", "target=@target.npy",
                   "--steps", "1", "--save", "after.safetensors", "--json")
    losses = plain_steps(twin, OPTIMIZERS["momentum"](twin.parameters()), data)
    assert json.loads(said)["losses"] == pytest.approx(losses, rel=1e-4)
    alike(load_file(tmp_path / "after.safetensors"), {n: p for n, p in twin.named_parameters() if p.requires_grad}, start)


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_steps_of_two_sizes_share_a_model(kind):
    """A smaller last batch has a step of its own; states go on from one to the other."""
    model = Net()
    twin = copy.deepcopy(model)
    data = [batch for pair in zip(batches(3, 8), batches(3, 4)) for batch in pair]
    optimizer = OPTIMIZERS[kind](model.parameters())
    steps = {size: memc.train_step(model, F.cross_entropy, optimizer, batches(1, size)[0]) for size in (8, 4)}
    ours = [float(steps[len(y)](x, y)) for x, y in data]
    theirs = plain_steps(twin, OPTIMIZERS[kind](twin.parameters()), data)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert torch.allclose(model.norm.running_var, twin.norm.running_var, rtol=1e-4)


def test_two_players_with_two_optimizers():
    """A DCGAN: each step trains one of two networks, and sees what the other has learnt."""
    def make():
        up = lambda i, o, stride, pad: (nn.ConvTranspose2d(i, o, 4, stride, pad, bias=False), nn.BatchNorm2d(o), nn.ReLU(True))
        g = nn.Sequential(*up(6, 8, 1, 0), *up(8, 8, 2, 1), nn.Conv2d(8, 3, 3, padding=1), nn.Tanh())
        d = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(8, 8, 4, 2, 1, bias=False),
                          nn.BatchNorm2d(8), nn.LeakyReLU(0.2, True), nn.Conv2d(8, 1, 2), nn.Flatten(0))
        return nn.ModuleDict({"g": g, "d": d})

    players = make()
    twin = copy.deepcopy(players)
    bce = F.binary_cross_entropy_with_logits
    says = lambda out, label: bce(out, torch.full_like(out, label))
    judge = lambda m, noise, real: says(m["d"](real), 1.0) + says(m["d"](m["g"](noise).detach()), 0.0)
    forge = lambda m, noise: says(m["d"](m["g"](noise)), 1.0)
    data = [(torch.randn(8, 6, 1, 1), torch.randn(8, 3, 8, 8)) for _ in range(4)]

    def optimizers(m):
        return [torch.optim.Adam(m[name].parameters(), lr=0.002, betas=(0.5, 0.999)) for name in "dg"]

    first, second = optimizers(players)
    of_d = memc.train_step(players, None, first, data[0], compute=judge)
    of_g = memc.train_step(players, None, second, data[0][:1], compute=forge)
    ours = [loss for noise, real in data for loss in (float(of_d(noise, real)), float(of_g(noise)))]
    theirs, (d, g) = [], optimizers(twin)
    for noise, real in data:
        for optimizer, loss in ((d, lambda: judge(twin, noise, real)), (g, lambda: forge(twin, noise))):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
            theirs.append(value.item())
    assert ours == pytest.approx(theirs, rel=1e-3)
    # Statistics have seen every batch of both players' steps.
    for name, have in players.named_buffers():
        assert torch.allclose(have, dict(twin.named_buffers())[name], rtol=1e-3, atol=1e-5), name


def test_inputs_by_name_come_in_any_order():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, left, right):
            return {"loss": (self.a(left) - right).square().mean()}

    model, x, y = Named(), torch.randn(3, 4), torch.zeros(3, 4)
    want = model(x, y)["loss"].item()
    step = memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), {"left": x, "right": y})
    assert float(step(right=y, left=x)) == pytest.approx(want, rel=1e-5)
    want = model(x, y)["loss"].item()
    assert float(step({"right": y, "left": x})) == pytest.approx(want, rel=1e-5)
    nested = lambda m, pair: m(pair["left"], pair["right"])["loss"]
    step = memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), ({"left": x, "right": y},), compute=nested)
    want = model(x, y)["loss"].item()
    assert float(step({"right": y, "left": x})) == pytest.approx(want, rel=1e-5)


def test_arrays_and_constants_are_inputs():
    """Arrays are taken as tensors. What is neither is a constant, which a step cannot follow."""
    numpy = pytest.importorskip("numpy")
    model, twin = nn.Linear(6, 3), nn.Linear(6, 3)
    twin.load_state_dict(model.state_dict())
    x, y = numpy.random.default_rng(0).normal(size=(4, 6)).astype("f4"), numpy.array([0, 2, 1, 1])
    weighted = lambda m, left, right, weight: weight * F.cross_entropy(m(left), right)
    of = lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    step = memc.train_step(model, None, of(model), (x, y, 0.5), compute=weighted)
    theirs = of(twin)
    for at in (numpy.ascontiguousarray, numpy.asfortranarray):
        loss = weighted(twin, torch.tensor(x), torch.tensor(y), 0.5)
        assert float(step(at(x), y, 0.5)) == pytest.approx(loss.item(), rel=1e-5)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
    class Foreign:
        """An array of a library that speaks DLPack."""

        def __init__(self, tensor):
            self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__

    want = weighted(twin, torch.tensor(x), torch.tensor(y), 0.5).item()
    assert float(step(Foreign(torch.tensor(x)), Foreign(torch.tensor(y)), 0.5)) == pytest.approx(want, rel=1e-5)
    with pytest.raises(memc.DataError, match="`weight` is 0.7.*built for 0.5"):
        step(x, y, 0.7)
    with pytest.raises(memc.DataError, match="`right` is 1"):
        step(x, 1, 0.5)
    with pytest.raises(memc.CaptureError, match="both given"):
        memc.train_step(model, F.cross_entropy, of(model), (x, y), compute=weighted)


def test_a_notebook_has_the_page_in_a_frame():
    model, (batch,) = nn.Linear(4, 2), [(torch.randn(3, 4), torch.zeros(3, dtype=torch.int64))]
    step = memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch)
    page = re.search('<iframe title="[^"]*" srcdoc="([^"]*)"', step._repr_html_())[1]
    assert html.unescape(page) == step.report()


def test_an_exported_step_compiles_with_groups(tmp_path):
    pytest.importorskip("safetensors")
    model = Net()
    groups = [{"params": model.conv.parameters()}, {"params": model.head.parameters(), "lr": 0.01}]
    module, _ = memc.export_step(tmp_path / "net", model, F.cross_entropy, torch.optim.SGD(groups, lr=0.1), batches(1)[0])
    plan = memc.compile(module.read_text(), effort=0)
    assert [name for name, *_ in plan.inputs] == ["x", "target", "lr"]


def test_a_model_in_evaluation_mode_is_told():
    model = Net().eval()
    with pytest.warns(UserWarning, match="model.train"):
        memc.train_step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batches(1)[0])


def test_an_estimate_needs_no_contents():
    with torch.device("meta"):
        model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    empty = memc.estimate(model, F.cross_entropy, optimizer, batches(1)[0])
    full = Net()
    step = memc.train_step(full, F.cross_entropy, torch.optim.Adam(full.parameters()), batches(1)[0])
    assert empty == step.unplanned_peak == memc.estimate(full, F.cross_entropy, torch.optim.Adam(full.parameters()), batches(1)[0])


def test_random_numbers_have_their_ranges():
    model = nn.Linear(4, 4)
    x = torch.full((1000, 4), 0.25)

    def compute(m, x):
        drawn = torch.randint_like(x, 3, 7) + torch.randint(2, x.shape) + torch.bernoulli(x)
        return drawn.mean() + torch.rand_like(x).mean() + 0.0 * m(x).sum()

    step = memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), (x,), compute=compute)
    first, second = float(step(x)), float(step(x))
    # Means of 3 to 6, of 0 and 1, of the odds, and of the unit interval.
    assert first == pytest.approx(4.5 + 0.5 + 0.25 + 0.5, abs=0.15)
    assert first != second
