"""The extension by itself: steps written in IR text, data from numpy, no PyTorch."""

import ast
import gc
import inspect
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

from memc import _native

LAYERS = 6
WIDTH = 64
BATCH = 96


def text(layers=LAYERS, width=WIDTH, batch=BATCH, optimizer="sgd"):
    """A classifier of `layers` hidden layers; each step one of stochastic gradient descent, or of Adam."""
    lines = ["module @mlp graph", ""]
    lines.append(f"%x = input : f32[{batch},{width}]")
    lines.append(f"%labels = input {{range = [0, {width}]}} : i64[{batch}]")
    lines.append("%lr = input {feed = learning_rate, default = 0.001} : f32[]")
    if optimizer == "adamw":
        lines.append("%step = input {feed = step} : i64[]")
    for i in range(layers):
        lines.append(f"%w{i} = state {{role = param, init = uniform({i}, 0.25)}} : f32[{width},{width}]")
        if optimizer == "adamw":
            lines.append(f"%m{i} = state {{role = optimizer, init = zeros}} : f32[{width},{width}]")
            lines.append(f"%v{i} = state {{role = optimizer, init = zeros}} : f32[{width},{width}]")
    lines.append("%one = const splat 1.0 : f32[]")
    ty, square = f"f32[{batch},{width}]", f"f32[{width},{width}]"
    lines.append(f"%a0 = matmul %x, %w0 : {ty}")
    for i in range(1, layers):
        lines.append(f"%r{i} = relu %a{i - 1} : {ty}")
        lines.append(f"%a{i} = matmul %r{i}, %w{i} : {ty}")
    last = layers - 1
    lines.append(f"%loss, %log_prob = cross_entropy %a{last}, %labels : f32[], {ty}")
    lines.append(f"%d{last} = cross_entropy_grad %one, %log_prob, %labels : {ty}")
    for i in range(last, 0, -1):
        lines.append(f"%g{i} = matmul %r{i}, %d{i} {{trans_a}} : {square}")
        lines.append(f"%e{i} = matmul %d{i}, %w{i} {{trans_b}} : {ty}")
        lines.append(f"%d{i - 1} = relu_grad %e{i}, %r{i} : {ty}")
    lines.append(f"%g0 = matmul %x, %d0 {{trans_a}} : {square}")
    for i in range(layers):
        if optimizer == "adamw":
            rates = "{alpha = 0.9, beta = 0.999, epsilon = 1e-08, weight_decay = 0.01, bias_correction}"
            operands = f"%w{i}, %g{i}, %m{i}, %v{i}, %lr, %step {rates}"
            lines.append(f"%w{i}_new, %m{i}_new, %v{i}_new = adamw {operands} : {square}, {square}, {square}")
        else:
            lines.append(f"%w{i}_new = sgd %w{i}, %g{i}, %lr : {square}")
    lines.append('yield loss %loss as "loss"')
    for i in range(layers):
        for state in "wmv" if optimizer == "adamw" else "w":
            lines.append(f"carry %{state}{i} <- %{state}{i}_new")
    return "\n".join(lines) + "\n"


class Data:
    """Arrays as the session takes them: addresses and lengths."""

    def __init__(self, **arrays):
        self.arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def __call__(self):
        return {name: (array.ctypes.data, array.nbytes) for name, array in self.arrays.items()}


def batch(seed=0, lr=0.1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((BATCH, WIDTH), dtype=np.float32)
    labels = rng.integers(0, WIDTH, BATCH)
    return Data(x=x, labels=labels, lr=np.float32(lr))


def weights(seed=1, layers=LAYERS):
    rng = np.random.default_rng(seed)
    scale = (2 / WIDTH) ** 0.5
    return {f"w{i}": scale * rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) for i in range(layers)}


def numpy_step(w, data):
    """The step of stochastic gradient descent, as numpy computes it."""
    x, labels, lr = (data.arrays[name] for name in ("x", "labels", "lr"))
    layers = len(w)
    inputs, a = [x], x @ w["w0"]
    for i in range(1, layers):
        inputs.append(np.maximum(a, 0))
        a = inputs[i] @ w[f"w{i}"]
    a = a - a.max(axis=1, keepdims=True)
    log_prob = a - np.log(np.exp(a).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    loss = -log_prob[rows, labels].mean()
    d = np.exp(log_prob)
    d[rows, labels] -= 1
    d /= len(labels)
    new = {}
    for i in reversed(range(layers)):
        new[f"w{i}"] = w[f"w{i}"] - lr * (inputs[i].T @ d)
        d = (d @ w[f"w{i}"].T) * (inputs[i] > 0)
    return loss, new


def start(plan, w=None, **kwargs):
    """A session whose states are the arrays `w`."""
    data = Data(**(w or {}))
    return plan.start(data(), **{"threads": 1, **kwargs})


def step(session, data):
    """Runs a step, with the arrays alive until it is done."""
    session.step(data())


def loss_of(session):
    (loss,) = np.frombuffer(session.output("loss"), np.float32)
    return loss


def read(session, name, shape=(WIDTH, WIDTH)):
    array = np.empty(shape, np.float32)
    session.read(name, array.ctypes.data, array.nbytes)
    return array


def smallest(ir):
    with pytest.raises(_native.InfeasibleBudget) as info:
        _native.compile(ir, budget="1K")
    return info.value.smallest


@pytest.fixture(scope="module")
def plans():
    """Plans of one step at its own peak, at the smallest budget, and between."""
    least, most = smallest(text()), _native.compile(text()).unplanned_peak_bytes
    return {
        name: _native.compile(text(), budget=f"{budget}B")
        for name, budget in [("least", least), ("half", (least + most) // 2), ("most", most)]
    }


def test_figures_and_tables(plans):
    least, most = plans["least"], plans["most"]
    assert least.peak_bytes <= least.budget_bytes < most.peak_bytes <= most.unplanned_peak_bytes
    assert least.dev_bytes <= least.budget_bytes
    assert least.unplanned_peak_bytes == most.unplanned_peak_bytes
    assert least.step_ns >= least.ideal_ns > 0
    assert least.swapped_bytes > 0 or least.recompute_ns > 0
    assert most.swapped_bytes == most.recompute_ns == 0
    assert least.device == "cpu" and least.name == "mlp"
    assert least.inputs == [
        ("x", "f32", [BATCH, WIDTH], "data"),
        ("labels", "i64", [BATCH], "data"),
        ("lr", "f32", [], "learning_rate"),
    ]
    assert least.outputs == [("loss", "f32", [], "loss")]
    assert least.states == [(f"w{i}", "f32", [WIDTH, WIDTH], "param") for i in range(LAYERS)]
    assert "proved by the checker" in least.summary() and "mlp" in repr(least)


@pytest.mark.parametrize("budget", ["least", "half", "most"])
def test_steps_compute_what_numpy_does(plans, budget):
    w = weights()
    with start(plans[budget], w, threads=2) as session:
        for number in range(5):
            data = batch(number)
            loss, w = numpy_step(w, data)
            step(session, data)
            assert loss_of(session) == pytest.approx(loss, rel=1e-4)
        assert session.steps_done == 5
        for name in w:
            np.testing.assert_allclose(read(session, name), w[name], atol=1e-5)


def test_budgets_compute_the_same_bits(plans):
    results = []
    for plan in plans.values():
        session = start(plan, weights())
        for number in range(3):
            step(session, batch(number))
        results.append((session.output("loss"), [read(session, f"w{i}").tobytes() for i in range(LAYERS)]))
    assert results[0] == results[1] == results[2]


def test_states_begin_as_the_text_says():
    plan = _native.compile(text())
    session = plan.start()
    w0 = read(session, "w0")
    assert np.abs(w0).max() <= 0.25 and np.abs(w0).std() > 0.05


def states_at(ir, budgets, wanted):
    """A session with a state for which `wanted` holds, and the state."""
    for budget in budgets:
        session = _native.compile(ir, budget=f"{budget}B").start(threads=1)
        for i in range(LAYERS):
            if wanted(session, f"w{i}"):
                return session, f"w{i}"
    pytest.skip("no plan has such a state")


def test_addresses_are_the_states_between_steps(plans):
    for plan in plans.values():
        w = weights()
        session = start(plan, w)
        for number in range(2):
            data = batch(number)
            for name in w:
                found = session.view(name)
                view = np.asarray(found)
                assert view.ctypes.data == found.address and not found.is_on_gpu
                assert not hasattr(found, "__cuda_array_interface__")
                np.testing.assert_array_equal(view, read(session, name))
                if found.has_copies:
                    continue
                # The next step takes what is written here.
                view *= 0.5
                w[name] = read(session, name)
            step(session, data)
            loss, _ = numpy_step(w, data)
            assert loss_of(session) == pytest.approx(loss, rel=1e-4)
            w = {name: read(session, name) for name in w}


def test_write_reaches_every_copy(plans):
    for plan in plans.values():
        session = start(plan)
        step(session, batch())
        for seed in (7, 8):
            w = weights(seed)
            for name, (address, nbytes) in Data(**w)().items():
                session.write(name, address, nbytes)
                np.testing.assert_array_equal(read(session, name), w[name])
            data = batch(seed)
            step(session, data)
            loss, w = numpy_step(w, data)
            assert loss_of(session) == pytest.approx(loss, rel=1e-4)
            for name in w:
                np.testing.assert_allclose(read(session, name), w[name], atol=1e-5)


def test_states_with_copies_say_so():
    """Some plan keeps a state on both sides, and writing it is writing both."""
    ir = text(optimizer="adamw")
    least, most = smallest(ir), _native.compile(ir).unplanned_peak_bytes
    budgets = [least + (most - least) * i // 16 for i in range(16)]
    copied = lambda session, name: session.view(name).has_copies  # noqa: E731
    session, name = states_at(ir, budgets, copied)
    w = weights()
    for state, (address, nbytes) in Data(**w)().items():
        session.write(state, address, nbytes)
    data = batch()
    step(session, data)
    loss, _ = numpy_step(w, data)
    assert loss_of(session) == pytest.approx(loss, rel=1e-4)


def test_the_step_number_is_the_session_s():
    ir = text(optimizer="adamw")
    plan = _native.compile(ir)
    first, later = start(plan), start(plan)
    assert ("step", "i64", [], "step") in plan.inputs
    later.set_steps(1000)
    for session in (first, later):
        step(session, batch())
    assert (first.steps_done, later.steps_done) == (1, 1001)
    # Bias correction makes the first step of Adam a larger one.
    assert np.abs(read(first, "m0") - read(later, "m0")).max() == 0
    assert (read(first, "w0") != read(later, "w0")).any()


def test_a_view_outlives_its_session(plans):
    session = start(plans["most"], weights())
    array = np.asarray(session.view("w0"))
    expected = array.copy()
    session.close()
    session.close()
    assert session.closed
    del session
    gc.collect()
    np.testing.assert_array_equal(array, expected)
    array += 1


def test_a_closed_session_says_so(plans):
    session = plans["most"].start()
    session.close()
    with pytest.raises(_native.Error, match="closed"):
        step(session, batch())


def test_output_into(plans):
    session = start(plans["most"])
    step(session, batch())
    out = np.zeros((), np.float32)
    session.output_into("loss", out.ctypes.data, out.nbytes)
    assert out == loss_of(session) > 0
    with pytest.raises(_native.DataError, match="8 bytes"):
        session.output_into("loss", out.ctypes.data, 8)
    with pytest.raises(_native.DataError, match="it has loss"):
        session.output("accuracy")


def test_wrong_data_leaves_the_session_as_it_was(plans):
    session = start(plans["half"], weights())
    good = batch()
    missing = {name: memory for name, memory in good().items() if name != "lr"}
    with pytest.raises(_native.DataError, match="`lr` is missing"):
        session.step(missing)
    with pytest.raises(_native.DataError, match="no input `y`"):
        session.step({**good(), "y": good()["x"]})
    with pytest.raises(_native.DataError, match=r"has 4 bytes; f32\[96,64\] has 24576"):
        session.step({**good(), "x": (good()["x"][0], 4)})
    with pytest.raises(_native.DataError, match="no memory"):
        session.step({**good(), "x": (0, 24576)})
    wrong = batch()
    wrong.arrays["labels"][3] = WIDTH
    with pytest.raises(_native.DataError, match="64 at .3. of"):
        session.step(wrong())
    with pytest.raises(_native.DataError, match="no state"):
        session.view("w99")
    assert session.steps_done == 0
    loss, _ = numpy_step(weights(), good)
    step(session, good)
    assert loss_of(session) == pytest.approx(loss, rel=1e-4)


def test_wrong_states_are_refused(plans):
    with pytest.raises(_native.DataError, match="no state `w99`"):
        plans["most"].start(Data(w99=np.zeros(4))())
    with pytest.raises(_native.DataError, match="state `w0` has 32 bytes"):
        plans["most"].start(Data(w0=np.zeros(4))())


def test_files(plans, tmp_path):
    path = tmp_path / "mlp.plan"
    plans["half"].write(path)
    loaded = _native.load(path)
    assert loaded.hash == plans["half"].hash
    assert loaded.states == plans["half"].states
    session = start(loaded, weights())
    step(session, batch())
    with pytest.raises(_native.InvalidModel):
        _native.load(__file__)
    with pytest.raises(_native.Error):
        _native.load(tmp_path / "other.plan")


def test_reports(plans):
    page = plans["half"].report()
    assert page.startswith("<!") and "mlp" in page


def test_names(plans):
    assert _native.compile(text(), name="other").name == "other"


def test_infeasible_budgets_say_what_is_feasible():
    with pytest.raises(_native.InfeasibleBudget) as info:
        _native.compile(text(), budget="1K")
    error = info.value
    assert isinstance(error, _native.Error)
    assert error.smallest > 1024 and error.peak_op
    assert all(isinstance(name, str) and size > 0 for name, _, size in error.tensors)
    assert _native.compile(text(), budget=f"{error.smallest}B").peak_bytes <= error.smallest


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"budget": "8"}, "no unit"),
        ({"budget": "120%"}, "100%"),
        ({"host_memory": "50%"}, "64G"),
        ({"device": "h1000"}, "h100"),
        ({"effort": 9}, "0 to 5"),
    ],
)
def test_wrong_arguments(kwargs, match):
    with pytest.raises(_native.Error, match=match):
        _native.compile(text(), **kwargs)


@pytest.mark.parametrize(
    "ir", ["", "module @m graph\n%y = nonsense %x : f32[]\n", text() + "carry %x <- %x\n"]
)
def test_wrong_texts(ir):
    with pytest.raises(_native.InvalidModel) as info:
        _native.compile(ir)
    assert info.value.hint is None or isinstance(info.value.hint, str)


def test_progress_is_told_and_may_raise():
    told = []
    _native.compile(text(), budget="60%", progress=told.append)
    assert "planning" in told

    def stop(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _native.compile(text(), progress=stop)


def test_warnings_are_python_s():
    with pytest.warns(UserWarning, match="may take"):
        _native.compile(text(), device="t4", budget="1000G")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals by a timer")
def test_interrupts_end_a_search():
    ir = text(layers=40)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    # A process in the background of a shell ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            _native.compile(ir, budget=f"{smallest(ir)}B", effort=5)
            time.sleep(60)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 50


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals by a timer")
def test_an_interrupt_comes_between_two_steps(plans):
    session, data = start(plans["half"], weights()), batch()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            while time.monotonic() - begin < 30:
                step(session, data)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    w, done = weights(), session.steps_done
    for _ in range(done):
        _, w = numpy_step(w, data)
    step(session, data)
    assert session.steps_done == done + 1
    assert loss_of(session) == pytest.approx(numpy_step(w, data)[0], rel=1e-2)


def described(arguments):
    """Names of a stub's arguments, and the constants that are defaults of those by name."""
    named = zip(arguments.kwonlyargs, arguments.kw_defaults)
    names = [a.arg for a in arguments.args if a.arg != "self"] + [a.arg for a in arguments.kwonlyargs]
    return names, {a.arg: ast.literal_eval(d) for a, d in named if d is not None}


def test_the_stub_describes_the_extension():
    stub = ast.parse((pathlib.Path(_native.__file__).parent / "_native.pyi").read_text())
    found = {"__version__"}
    for item in stub.body:
        if not isinstance(item, (ast.ClassDef, ast.FunctionDef)):
            continue
        found.add(item.name)
        owner = getattr(_native, item.name)
        if isinstance(item, ast.ClassDef) and issubclass(owner, Exception):
            continue
        functions = item.body if isinstance(item, ast.ClassDef) else [item]
        functions = [f for f in functions if isinstance(f, ast.FunctionDef)]
        for function in functions:
            have = getattr(owner, function.name) if isinstance(item, ast.ClassDef) else owner
            if function.decorator_list or function.name.startswith("__"):
                continue
            known = [p for p in inspect.signature(have).parameters.values() if p.name != "self"]
            names, defaults = described(function.args)
            assert names == [p.name for p in known], function.name
            assert defaults == {p.name: p.default for p in known if p.kind == p.KEYWORD_ONLY}, function.name
        if isinstance(item, ast.ClassDef):
            public = {name for name in vars(owner) if not name.startswith("_")}
            assert public == {f.name for f in functions if not f.name.startswith("_")}, item.name
    assert {name for name in vars(_native) if not name.startswith("__") or name == "__version__"} == found


def test_the_lock_is_released_while_steps_run(plans):
    session = start(plans["least"])
    ran, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            ran[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    data = batch()
    for _ in range(20):
        step(session, data)
    stop.set()
    thread.join()
    assert ran[0] > 0 and session.steps_done == 20


def test_threads_take_turns(plans):
    session = start(plans["half"])
    data = batch()
    threads = [threading.Thread(target=lambda: [step(session, data) for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.steps_done == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_hang(plans):
    session = start(plans["most"])
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(_native.Error, match="fork"):
                step(session, batch())
            session.close()
            with pytest.raises(_native.Error, match="fork"):
                _native.compile(text())
            os._exit(0)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the fork hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    step(session, batch())


def test_a_gpu_that_is_not_there_is_a_device_error(plans):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a GPU")
    with pytest.raises(_native.DeviceError):
        plans["most"].start(device="cuda:0")
    with pytest.raises(_native.Error, match="cuda:N"):
        plans["most"].start(device="tpu")
    with pytest.raises(_native.Error, match="profile"):
        _native.compile(text(), device="cuda")
