"""Ops of PyTorch that memc composes of others, and what modules do beside computing: each beside plain PyTorch."""

import copy
import math
import warnings

import pytest

torch = pytest.importorskip("torch")
import memc  # noqa: E402

nn, F = torch.nn, torch.nn.functional
COUNT = torch.arange(1.0, 5.0)

# Numbers of a matrix of 6 by 4, most of which is between -1 and 1.
FUNCTIONS = {
    "trigonometric": lambda o: (o.tan() + o.sinh() + o.cosh() + o.asinh() + (o.abs() + 1.1).acosh() + (o * 0.2).atanh()).sum(),
    "angles": lambda o: torch.atan2(o, o.flip(0)).sum() + torch.atan2(o, -o.flip(1)).square().sum(),
    "exponential": lambda o: (torch.erfc(o) + torch.exp2(o) + (o.abs() + 1).log10() + torch.hypot(o, o + 3)).sum(),
    "gamma": lambda o: torch.lgamma(o.abs() + 0.1).sum() + torch.lgamma(o * 0.3 - 0.5).sum() + torch.digamma(o.detach() + 3).sum(),
    "steps": lambda o: (o.trunc() * o).sum() + torch.fmin(o, o.flip(1)).sum() + torch.fmax(o, torch.full_like(o, math.nan)).sum(),
    "activations": lambda o: sum(f(o).square().sum() for f in (F.elu, F.selu, F.celu, F.leaky_relu, F.hardshrink, F.softshrink, F.rrelu)),
    "running": lambda o: (o.cumprod(1) + o.cumprod(0) + o.cumsum(0) + (o > 0).cumsum(1) + o.cummax(1).values * COUNT + o.cummin(0).values + o.logcumsumexp(1)).square().sum(),
    "products": lambda o: o.prod(1).sum() + o.relu().prod(0).square().sum() + o.prod(),
    "order": lambda o: o.median(0).values.square().sum() + o.median() + o.kthvalue(2, 0).values.sum() + o.kthvalue(1, 1, True).values.sum(),
    "buckets": lambda o: (torch.bucketize(o, COUNT - 2) * o + torch.searchsorted(o.detach().sort(1)[0], o, right=True) * o).sum(),
    "windows": lambda o: o.unfold(0, 3, 2).square().sum() + o.unfold(1, 2, 1).unfold(0, 2, 2).pow(3).sum(),
    "places": lambda o: o.take(torch.tensor([0, 5, 5, -1])).square().sum() + o.put(torch.tensor([1, 2]), o[0, :2] * 3, True).square().sum(),
    "by index": lambda o: torch.zeros(4, 4).index_reduce(0, torch.tensor([0, 1, 1, 3, 3, 3]), o, "amax").square().sum(),
    "diagonals": lambda o: torch.diagonal(o.T @ o, 1).square().sum() + torch.diagonal_scatter(o.T @ o, o[0] * 2).square().sum(),
    "masks": lambda o: o.masked_scatter(o > 0, o.flip(0).square()).square().sum(),
    "distances": lambda o: sum(torch.cdist(o, o.flip(0) + 1, p=p).square().sum() for p in (1.0, 2.0, 3.0, math.inf)),
    "many distances": lambda o: torch.cdist(torch.cat([o] * 6) * torch.arange(1, 37.0)[:, None], o.detach()).sum(),
    "equal rows": lambda o: torch.cdist(o, o).sum(),
    "adaptive maxima": lambda o: F.adaptive_max_pool2d(o[None, None], (4, 3)).square().sum() + F.adaptive_max_pool1d(o[None], 2).sum(),
    "volumes": lambda o: F.avg_pool3d(o.reshape(1, 1, 2, 3, 4), (2, 2, 2), 1, (0, 1, 1)).square().sum(),
    "edges": lambda o: F.pad(o[None, None], (1, 2, 2, 1), mode="replicate").pow(3).sum() + F.pad(o[None], (1, 1), mode="replicate").square().sum(),
    "antialiased": lambda o: sum(F.interpolate(o[None, None], s, mode="bilinear", antialias=True).square().sum() for s in ((9, 7), (3, 2))),
    "variances": lambda o: F.gaussian_nll_loss(o[:, :2], o.detach()[:, 2:], F.softplus(o[:, 2:])) + F.gaussian_nll_loss(o, o.flip(0), 0.5),
    "distributions": lambda o: -torch.distributions.Beta(F.softplus(o) + 1, 2.0).log_prob(torch.full((6, 4), 0.3)).mean(),
    "places that never change": lambda o: (o.T @ o)[tuple(torch.tril_indices(4, 4, -1))].square().sum() + (o * torch.vander(COUNT)[1]).sum(),
    "spectra": lambda o: sum(spectrum(o, norm) for norm in ("forward", "backward", "ortho")),
    "transforms": lambda o: torch.fft.fft2(o).real.square().sum() + torch.fft.ifft(torch.fft.fft(o) * 1j ** COUNT).imag.square().sum(),
    "complex": lambda o: ((torch.complex(o, o.flip(0)) + 1j) / torch.complex(o + 3, o.flip(1))).conj().imag.square().sum(),
    "polar": lambda o: torch.polar(o.abs(), o).real.sum() + (torch.complex(o, o.flip(0)).T @ torch.complex(o, o)).abs().sum(),
    "marks": lambda o: marked(o),
}


def spectrum(o, norm):
    half = torch.fft.rfft(o, norm=norm)
    return half.abs().square().sum() + torch.fft.irfft(half, n=5, norm=norm).square().sum()


def marked(o):
    with torch.profiler.record_function("here"):
        return o.square().sum()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.001)


def beside(model, inputs, compute, make=sgd, **options):
    """Holds three compiled steps against PyTorch's, and returns what PyTorch has trained, and both optimizers."""
    twin = copy.deepcopy(model)
    ours, theirs = make(model), make(twin)
    step = memc.train_step(model, None, ours, inputs, compute=compute, effort=0, **options)
    for _ in range(3):
        have = float(step(*inputs))
        theirs.zero_grad()
        loss = compute(twin, *inputs)
        loss.backward()
        theirs.step()
        assert have == pytest.approx(loss.item(), rel=1e-4)
    for (name, a), b in zip(model.state_dict().items(), twin.state_dict().values()):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), name
    return twin, ours, theirs


@pytest.mark.parametrize("what", FUNCTIONS)
def test_functions_compute_what_pytorch_does(what):
    beside(nn.Linear(8, 4), (torch.randn(6, 8),), lambda m, x: FUNCTIONS[what](m(x)))


class Gathered(nn.Module):
    """What networks on graphs do with rows that belong together. One row gets nothing."""

    def __init__(self, kind, of_self):
        super().__init__()
        self.kind, self.of_self = kind, of_self
        self.w, self.b = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(5, 3))

    def forward(self, at):
        return self.b.scatter_reduce(0, at, self.w, self.kind, include_self=self.of_self).square().mean()


@pytest.mark.parametrize("of_self", [True, False])
@pytest.mark.parametrize("kind", ["sum", "mean", "prod", "amax", "amin"])
def test_reductions_by_index(kind, of_self):
    beside(Gathered(kind, of_self), (torch.randint(0, 4, (6, 3)),), lambda m, at: m(at))


class FourierOperator(nn.Module):
    """A layer of a Fourier neural operator, with complex weights, and positions as complex numbers in a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(3, 3, 2, 2, dtype=torch.cfloat))
        self.beside = nn.Conv2d(3, 3, 1)
        self.register_buffer("turn", torch.polar(torch.ones(8, 4), torch.arange(32.0).reshape(8, 4)))

    def forward(self, x):
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :2, :2], self.weight)
        y = torch.fft.irfft2(out, s=x.shape[-2:]) + self.beside(x)
        pairs = torch.view_as_complex(y.unflatten(-1, (4, 2)).contiguous())
        return torch.view_as_real(pairs * self.turn).flatten(-2)


@pytest.mark.parametrize("budget", [None, "peak*70%"])
def test_complex_weights_and_their_optimizer(budget):
    model = FourierOperator()
    x, y = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    make = lambda m: torch.optim.Adam(m.parameters(), lr=0.01)
    twin, ours, theirs = beside(model, (x, y), lambda m, x, y: F.mse_loss(m(x), y), make, budget=budget)
    mean = ours.state[model.weight]["exp_avg"]
    assert mean.is_complex() and torch.allclose(mean, theirs.state[twin.weight]["exp_avg"], atol=1e-5)
    # Another optimizer goes on from the states, and the step from what it leaves.
    theirs.load_state_dict(ours.state_dict())
    assert torch.allclose(memc.eval_step(model, (x,))(x), model(x), atol=1e-5)


def test_transforms_have_a_limit():
    model = nn.Linear(4, 5000)
    with pytest.raises(memc.UnsupportedOp, match="4096 points"):
        beside(model, (torch.randn(1, 4),), lambda m, x: torch.fft.rfft(m(x)).abs().sum())


def test_a_gradient_within_the_loss():
    """The penalty of a Wasserstein GAN."""
    def penalty(m, x):
        x = x.clone().requires_grad_()
        slope, = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return (slope.flatten(1).norm(dim=1) - 1).square().mean()

    judge = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1))
    beside(judge, (torch.randn(4, 1, 8, 8),), penalty)


class Odd(nn.Module):
    """A layer, and what `more(self, y)` does with its result."""

    def __init__(self, more, **parts):
        super().__init__()
        self.layer, self.more = nn.Linear(8, 4), more
        for name, part in parts.items():
            (self.register_buffer if type(part) is torch.Tensor else self.__setattr__)(name, part)

    def forward(self, x):
        return self.more(self, self.layer(x)).square().sum()


def replaced(m, y):
    m.mean = 0.9 * m.mean + 0.1 * y.mean(0).detach()
    return y - m.mean


def limited(m, y):
    with torch.no_grad():
        m.layer.weight.clamp_(-0.2, 0.2)
    return y


def fading(m, y):
    m.scale.mul_(0.9)
    return y * m.scale


def test_what_the_forward_pass_leaves_in_tensors():
    x = (torch.randn(6, 8),)
    loss = lambda m, x: m(x)
    beside(Odd(replaced, mean=torch.zeros(4)), x, loss)
    beside(Odd(limited), x, loss)
    fade = lambda: nn.Parameter(torch.ones(4), requires_grad=False)
    beside(Odd(fading, scale=fade()), x, loss)

    def growing(m, y):
        m.seen = torch.cat([m.seen, y.detach()])
        return y

    with pytest.raises(memc.CaptureError, match=r"`seen`.*\(1, 4\).*\(7, 4\)"):
        beside(Odd(growing, seen=torch.zeros(1, 4)), x, loss)


def test_changes_of_attributes_are_told_and_taken_back():
    def counting(m, y):
        m.calls += 1
        m.cache = y * m.calls
        return m.cache

    model = Odd(counting, calls=0)
    with pytest.warns(UserWarning, match="`calls` .0 to 1.*`cache`, which is new"):
        memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(6, 8),))
    assert model.calls == 0 and not hasattr(model, "cache")
    # What PyTorch's own modules and hooks compute in each step is no state.
    own = nn.utils.spectral_norm(Odd(lambda m, y: y @ m.turn, turn=nn.Parameter(torch.randn(4, 4))), "turn")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the step changes attributes")
        beside(own, (torch.randn(6, 8),), lambda m, x: m(x))
        beside(nn.LSTM(8, 4), (torch.randn(3, 2, 8),), lambda m, x: m(x)[0].square().sum())


def test_wrapped_modules():
    x = (torch.randn(6, 8),)
    beside(nn.DataParallel(nn.Linear(8, 4)), x, lambda m, x: m(x).square().sum())
    inner = nn.Linear(8, 4)
    want = inner(*x).square().sum().item()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    step = memc.train_step(torch.compile(inner), None, optimizer, x, compute=lambda m, x: m(x).square().sum())
    assert float(step(*x)) == pytest.approx(want, rel=1e-5)
    with pytest.raises(memc.CaptureError, match="`0.weight` has no shape yet"):
        lazy = nn.Sequential(nn.LazyLinear(4))
        memc.train_step(lazy, None, torch.optim.SGD(lazy.parameters(), lr=0.1), x, compute=lambda m, x: m(x).sum())


def test_refusals_name_the_line_of_a_helper():
    model = nn.Linear(8, 4)
    make = lambda compute: memc.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1), (torch.randn(6, 8),), compute=compute)

    def helper(y):
        return torch.special.i0(y).sum()

    line = helper.__code__.co_firstlineno + 1
    with pytest.raises(memc.UnsupportedOp, match=rf"i0.*test_ops.py:{line}"):
        make(lambda m, x: helper(m(x)))
    with pytest.raises(memc.UnsupportedOp, match="linalg.*test_ops.py"):
        make(lambda m, x: torch.linalg.inv(m(x).T @ m(x)).sum())
