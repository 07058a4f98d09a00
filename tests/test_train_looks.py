"""Looking at a model while it trains: times, evaluations, snapshots, checkpoints of all of it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from repalign import train
from repalign._files import seal
from repalign.kernels import cka, cka_grid
from repalign.probes import fit_probes
from repalign.train import SeesModel, Snapshots, fit, fit_many, log_steps
from repalign.train.targets import evaluate
from test_train import batch, mlp, weights


def test_looks_at_steps_see_the_very_steps():
    """A plain loop over the batches that the run saw gives the weights that were measured."""
    x, y = batch()
    seen = []

    def spying(model, inputs, labels):
        if model.training:
            seen.append((inputs, labels))
        return nn.functional.cross_entropy(model(inputs), labels, reduction="none")

    options = dict(epochs=2, batch_size=16, optimizer="sgd", lr=0.1, loss=SeesModel(spying))
    every = range(9)
    history = fit(mlp(), x, y, measure=lambda m, _: weights(m), at=[2], at_steps=every, **options)
    plain = mlp()
    assert list(history.measured_steps) == list(every)
    assert list(history.measured) == [2]
    assert torch.equal(history.measured[2], history.measured_steps[8])
    for step, (inputs, labels) in enumerate(seen):
        torch.testing.assert_close(history.measured_steps[step], weights(plain))
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(plain(inputs), labels), list(plain.parameters())
        )
        with torch.no_grad():
            for p, g in zip(plain.parameters(), gradients, strict=True):
                p -= 0.1 * g
    torch.testing.assert_close(history.measured_steps[8], weights(plain))
    assert history.accuracy == []  # such a loss has no outputs to count from


def test_looking_changes_nothing_and_is_told_when():
    x, y = batch()
    plain, watched = mlp(dropout=0.5), mlp(dropout=0.5)
    fit(plain, x, y, epochs=3, batch_size=16)
    times = []

    def measure(model, epoch):
        assert not any(part.training for part in model.modules())
        times.append(epoch)
        return torch.rand(2).tolist()

    options = dict(epochs=3, batch_size=16, at=(0, 3), at_steps=[2, 4, 5], test=(x, y), full_train=True)
    history = fit(watched, x, y, measure=measure, **options)
    assert torch.equal(weights(plain), weights(watched))
    assert times == [0, 0.5, 1, 1.25, 3]
    assert [type(t) for t in times] == [int, float, int, float, int]
    assert list(history.measured) == [0, 3]
    assert list(history.measured_steps) == [2, 4, 5]  # step 4 ends epoch 1, which was not asked for
    drawn = [*history.measured.values(), *history.measured_steps.values()]
    assert len({tuple(v) for v in drawn}) == 5  # randomness of its own each time
    arrays = {"at": np.array([0, 3]), "at_steps": torch.tensor([2, 4, 5])}
    again = fit(mlp(dropout=0.5), x, y, measure=measure, **{**options, **arrays})
    assert again.measured == history.measured  # and the same in every run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(at=[3]), "at should be whole numbers from 0 to 2"),
        (dict(at_steps=[3]), "at_steps should be whole numbers from 0 to 2"),
        (dict(at_steps=[0.5]), "at_steps should be whole numbers"),
        (dict(patience=2), "pass test="),
        (dict(patience=0), "patience should be 1 or more"),
        (dict(stop_fit=0), "stop_fit should be 1 or more"),
        (
            dict(test=(torch.zeros(3, 5), torch.zeros(2, dtype=torch.long))),
            "one row per sample each|labels should be of shape",
        ),
        (dict(test=(torch.zeros(2, 5), torch.tensor([0, 3]))), "class numbers should be from 0 to 2"),
    ],
)
def test_looks_that_cannot_be(options, message):
    x, y = batch()
    for run in (fit, partial(fit_many, seeds=[0])):
        with pytest.raises(ValueError, match=message):
            run(mlp() if run is fit else [mlp()], x, y, epochs=2, batch_size=50, **options)


def test_log_steps():
    steps = log_steps(n=1000, batch_size=64, count=8)
    assert steps[:3] == [0, 1, 2]
    assert steps[-1] == 16  # the last step of the first epoch
    assert log_steps(n=1000, batch_size=64, epochs=3)[-1] == 48


# Evaluations


def test_evaluations_are_those_of_whole_sets():
    x, y = batch(50)
    other = batch(1500, seed=1)  # more than an evaluation takes at once
    found = []

    def measure(model, epoch):
        for inputs, labels in ((x, y), other):
            output = model(inputs)
            found.append(nn.functional.cross_entropy(output, labels).item())
            found.append((output.argmax(1) == labels).double().mean().item())

    history = fit(mlp(), x, y, epochs=3, measure=measure, at_steps=[1], test=other, full_train=True)
    columns = zip(
        history.train_loss, history.train_accuracy, history.test_loss, history.test_accuracy, strict=True
    )
    assert [v for row in columns for v in row] == pytest.approx(found, rel=1e-5)
    assert history.steps == [0, 1, 2, 3]
    rows = history.rows()
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert rows[3]["test_accuracy"] == history.test_accuracy[3]


@pytest.mark.parametrize("many", [False, True])
def test_an_epochs_averages_are_over_samples(many):
    """50 samples in batches of 48 and 2: at a tiny lr the epoch's averages are those of the whole set."""
    x, y = batch()
    options = dict(epochs=1, batch_size=48, lr=1e-12, full_train=True, at=[0])
    model = mlp()
    history = fit_many([model], x, y, seeds=[0], **options)[0] if many else fit(model, x, y, **options)
    assert history.loss == pytest.approx(history.train_loss[:1], rel=1e-5)
    assert history.accuracy == pytest.approx(history.train_accuracy[:1])
    assert history.accuracy[0] == pytest.approx(train.accuracy(model, x, y))


def test_there_is_no_accuracy_of_numbers():
    x, y = batch()
    numbers = x @ torch.ones(5, 3)
    history = fit(mlp(), x, numbers, loss="squared", epochs=1, test=(x, numbers))
    assert history.accuracy == history.test_accuracy == []
    assert len(history.test_loss) == 2
    assert "test_accuracy" not in history.rows()[0]
    for labels in (torch.eye(3)[y], torch.eye(3)[y] - 1 / 3):  # one-hot, and without its mean
        assert fit(mlp(), x, labels, loss="squared", epochs=1).accuracy == pytest.approx(
            fit(mlp(), x, y, loss="squared", epochs=1).accuracy, abs=0.1
        )


@pytest.mark.parametrize("stop", [dict(epochs=300, patience=3), dict(epochs=60)])
def test_the_best_weights_are_those_of_the_lowest_test_loss(stop, tmp_path):
    (x, y), test = batch(40), batch(40, seed=7)
    model, last = mlp(), mlp()
    history = fit(model, x, y, lr=0.05, test=test, best=True, **stop)
    lowest = min(history.test_loss)
    assert evaluate(model, *test, train.LOSSES["cross_entropy"])[0] == pytest.approx(lowest)
    fit(last, x, y, lr=0.05, test=test, **stop)
    assert evaluate(last, *test, train.LOSSES["cross_entropy"])[0] > lowest
    # A run that is interrupted behind the best epoch still has it.
    place, cut = tmp_path / "state", len(history.loss) - 2
    resumed = mlp()

    def interrupt(epoch, history):
        if epoch == cut:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(mlp(), x, y, lr=0.05, test=test, best=True, checkpoint=place, progress=interrupt, **stop)
    fit(resumed, x, y, lr=0.05, test=test, best=True, checkpoint=place, **stop)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), model.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"best keeps the weights of the lowest test loss: pass test="):
        fit(mlp(), x, y, best=True, epochs=1)


def test_patience_stops_where_the_test_loss_no_longer_falls():
    x, y = batch()
    history = fit(mlp(), x, y, epochs=300, lr=0.05, patience=3, test=batch(40, seed=7))
    assert history.stopped == "plateau"
    *_, low, a, b, c = history.test_loss
    assert low == min(history.test_loss)
    assert min(a, b, c) >= low
    assert len(history.loss) < 300


# Snapshots


def test_snapshots_are_read_one_by_one(tmp_path):
    x, y = batch()
    live = []

    def hidden(model):
        return model[1](model[0](x))

    model = mlp()
    place = tmp_path / "kept"
    options = dict(epochs=6, lr=0.03, at=[0, 3, 6], at_steps=[2])
    fit(model, x, y, measure=lambda m, _: live.append(hidden(m)), snapshots=place, **options)
    kept = Snapshots(place)
    assert kept.steps == [0, 2, 3, 6]
    assert kept.epochs == [0, 2, 3, 6]
    assert [one.step for one in kept[1:3]] == [2, 3]
    blank = mlp(seed=9)
    before = weights(blank)
    loads = kept.map(blank, hidden)
    grid = cka_grid(loads)
    for i, a in enumerate(live):
        assert torch.equal(loads[i](), a)
        for j, b in enumerate(live):
            assert grid[i, j].item() == pytest.approx(cka(a, b).item(), abs=1e-5)
    probes = fit_probes(loads, y, method="ridge")
    torch.testing.assert_close(probes.weight, fit_probes(live, y, method="ridge").weight)
    assert torch.equal(weights(blank), before)
    assert torch.equal(weights(kept[-1].load(blank)), weights(model))
    assert [torch.equal(hidden(net), phi) for net, phi in zip(kept.models(blank), live, strict=True)] == [
        True
    ] * 4
    # The same run again writes the same; another one is refused, and so is a directory of something else.
    fit(mlp(), x, y, snapshots=place, **options)
    with pytest.raises(ValueError, match="belong to another model, data or configuration"):
        fit(mlp(), x, y, snapshots=place, **{**options, "lr": 0.1})
    with pytest.raises(ValueError, match="holds something else"):
        fit(mlp(), x, y, snapshots=tmp_path, **options)
    with pytest.raises(FileNotFoundError, match="should be a directory that fit"):
        Snapshots(tmp_path)


# Checkpoints


class Pair(NamedTuple):
    low: object
    high: object


def test_all_kinds_of_measurements_survive(tmp_path):
    x, y = batch()

    def measure(model, epoch):
        numbers = np.linspace(0, 1, 4, dtype=np.float32)
        return {
            "array": numbers.reshape(2, 2).T, "scalar": np.float64(epoch) / 3, "whole": np.int64(epoch),
            "truth": np.bool_(True), "text": np.array(["a", "bc"]), "empty": np.zeros((0, 3)),
            "pair": Pair(numbers[0], (1, [2.5, None])), np.int64(3): torch.ones(2), ("a", 1): "tuple key",
        }  # fmt: skip

    def interrupt(epoch, history):
        if epoch == 2:
            raise KeyboardInterrupt

    options = dict(epochs=4, measure=measure, checkpoint=tmp_path / "state.pt")
    with pytest.raises(KeyboardInterrupt):
        fit(mlp(), x, y, progress=interrupt, **options)
    found = fit(mlp(), x, y, **options).measured
    assert list(found) == [0, 1, 2, 3, 4]
    for epoch in range(5):
        expected = measure(None, epoch)
        assert list(found[epoch]) == list(expected)
        for key, value in expected.items():
            got = found[epoch][key]
            assert type(got) is type(value)
            if isinstance(value, (np.ndarray, np.generic)):
                assert got.dtype == value.dtype
                assert np.array_equal(got, value)
        assert found[epoch]["pair"] == expected["pair"]
        assert type(found[epoch]["pair"].low) is np.float32
        assert [type(k) for k in found[epoch]] == [type(k) for k in expected]
    with pytest.raises(TypeError, match=r"measure should return numbers.*returned a set"):
        fit(mlp(), x, y, epochs=1, measure=lambda m, e: {1, 2}, checkpoint=tmp_path / "other.pt")


class Triple(tuple):
    __slots__ = ()


class Around:
    class Inner(NamedTuple):
        low: object


def test_a_name_in_a_checkpoint_is_not_an_order_to_import_or_call(tmp_path):
    """A file may name any class: only NamedTuples with the same fields, of modules that are there."""
    x, y = batch()
    path = tmp_path / "state.pt"
    options = dict(epochs=1, measure=lambda m, e: Pair(e, e), checkpoint=path)
    fit(mlp(), x, y, **options)
    state, made = torch.load(path, weights_only=True), tmp_path / "made"
    for module, name, message in (
        ("antigravity", "Pair", "no NamedTuple Pair in antigravity"),
        (__name__, "Triple", "other fields"),
        ("os", "mkdir", "no NamedTuple mkdir in os"),
        (__name__, "os.mkdir", "no NamedTuple os.mkdir"),
        ("repalign.__main__", "main", "no NamedTuple main in"),
        ("repalign.nowhere", "Pair", "no module repalign.nowhere"),
    ):
        measured = ("dict", [(0, ("named", (module, name, ["low", "high"], [str(made), 0o755])))])
        torch.save({**state, "history": ("dict", [("measured", measured)])}, path)
        seal(path)
        model = mlp(seed=9)
        before = weights(model)
        with pytest.raises(ValueError, match=message):
            fit(model, x, y, **options)
        assert torch.equal(weights(model), before)
    assert "antigravity" not in sys.modules
    assert not made.exists()


def test_a_snapshot_with_one_bit_flipped_is_refused_by_name(tmp_path):
    fit(mlp(), *batch(), epochs=1, snapshots=tmp_path / "kept", at_steps=[1])
    kept = Snapshots(tmp_path / "kept")[-1]
    raw = kept.path.read_bytes()
    kept.path.write_bytes(raw[:300] + bytes([raw[300] ^ 1]) + raw[301:])
    with pytest.raises(ValueError, match=r"step-\d+\.pt cannot be read"):
        kept.load(mlp())


def test_tuples_that_a_checkpoint_could_not_find_again_are_refused(tmp_path):
    x, y = batch()

    class Local(NamedTuple):
        low: object

    for value, message in (
        (Local(1), "Local cannot be found again by its name"),
        (Triple((1,)), "not Triple"),
    ):
        with pytest.raises(TypeError, match=message):
            fit(mlp(), x, y, epochs=1, measure=lambda m, e, v=value: v, checkpoint=tmp_path / "no.pt")
    assert not (tmp_path / "no.pt").exists()
    for value in (Around.Inner(1), torch.eye(2).shape, torch.eye(2).max(0)):
        options = dict(epochs=1, measure=lambda m, e, v=value: v, checkpoint=tmp_path / f"{type(value)}.pt")
        fit(mlp(), x, y, **options)
        found = fit(mlp(), x, y, **options).measured[1]
        assert type(found) is type(value)
        assert str(found) == str(value)


def decay(share, epoch, by):
    return by**epoch


@pytest.mark.parametrize(
    ("option", "one", "other"),
    [
        ("schedule", lambda share, epoch: 0.5**epoch, lambda share, epoch: 0.25**epoch),
        ("schedule", partial(decay, by=0.5), partial(decay, by=0.25)),
        ("loss", lambda f, y: (f[:, 0] - y).square(), lambda f, y: (f[:, 0] - y).abs()),
        ("loss", SeesModel(lambda m, x, y: m(x)[:, 0].square()), SeesModel(lambda m, x, y: m(x)[:, 0].abs())),
        ("augment", lambda x, g: x + 1, lambda x, g: x + 2),
        ("at_steps", [1], [1, 2]),
        ("test", batch(10), batch(10, seed=1)),
        ("full_train", False, True),
        ("patience", 1, 2),
    ],
)
def test_a_checkpoint_tells_runs_apart(tmp_path, option, one, other):
    x, y = batch()
    fixed = dict(epochs=2, batch_size=50, checkpoint=tmp_path / "state.pt", test=batch(10))
    fit(mlp(), x, y, **{**fixed, option: one})
    fit(mlp(), x, y, **{**fixed, option: one})
    with pytest.raises(ValueError, match="belongs to another"):
        fit(mlp(), x, y, **{**fixed, option: other})


def test_a_checkpoint_knows_frozen_parts(tmp_path):
    x, y = batch()
    fit(mlp(), x, y, epochs=1, checkpoint=tmp_path / "state.pt")
    frozen, quiet = mlp(), mlp()
    frozen[0].weight.requires_grad_(False)
    quiet[2].eval()
    for model in (frozen, quiet):
        with pytest.raises(ValueError, match="belongs to another"):
            fit(model, x, y, epochs=1, checkpoint=tmp_path / "state.pt")


class Net(nn.Module):
    """A network that computes with more than parameters and parts."""

    def __init__(self, act=torch.tanh, scale=1.0, shift=0.0, hook=None, other=None):
        super().__init__()
        self.inner = mlp(seed=int(torch.randint(1000, ())))  # other weights each time
        self.act, self.scale, self.other = act, scale, other
        self.register_buffer("shift", torch.full((5,), shift), persistent=False)
        self.register_buffer("mean", torch.rand(5))
        self.again = [self.inner[0], self.inner[0].weight, self.mean]
        self.inner[1].register_forward_hook(self.watch)
        self.inner[1].register_forward_hook(lambda part, x, out: self.watch(part, x, out))
        if hook is not None:
            self.inner[0].register_forward_hook(hook)

    def watch(self, part, x, out):
        return None

    def forward(self, x):
        return self.inner(self.act(x * self.scale + self.shift))


def doubled(part, x, out):
    return 2 * out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dict(act=torch.tanh), dict(act=torch.relu)),
        (dict(act=lambda x: x + 1), dict(act=lambda x: x + 2)),
        (dict(scale=1.0), dict(scale=2.0)),
        (dict(shift=0.0), dict(shift=1.0)),
        (dict(hook=None), dict(hook=doubled)),
        (dict(hook=doubled), dict(hook=lambda part, x, out: 3 * out)),
        (dict(other=threading.Lock()), dict(other=None)),
    ],
)
def test_a_checkpoint_knows_what_a_network_computes_with(tmp_path, one, other):
    """And not the state that it is about to get from the file, also where a part or hook refers to it."""
    x, y = batch()
    options = dict(epochs=2, checkpoint=tmp_path / "state.pt")
    first, second = Net(**one), Net(**one)
    assert not torch.equal(weights(first), weights(second))
    fit(first, x, y, **options)
    fit(second, x, y, **options)
    fit(first, x, y, **options)  # in the same process, after the run has changed it
    assert torch.equal(weights(first), weights(second))
    assert torch.equal(first.mean, second.mean)
    assert not any("fingerprint" in vars(part) for part in [*second.modules(), *second.parameters()])
    with pytest.raises(ValueError, match="belongs to another"):
        fit(Net(**other), x, y, **options)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "wrap", [nn.utils.weight_norm, nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]
)
def test_weights_that_torch_makes_of_others_are_not_of_the_network(tmp_path, wrap):
    x, y = batch()
    nets = [mlp(seed=seed) for seed in (0, 1)]
    for net in nets:
        wrap(net[0])
        fit(net, x, y, epochs=2, checkpoint=tmp_path / "state.pt")
    fit(nets[0], x, y, epochs=2, checkpoint=tmp_path / "state.pt")
    assert torch.equal(weights(nets[0]), weights(nets[1]))


def test_killed_between_checkpoints_resumes_to_the_same_weights(tmp_path):
    """A real process, a real SIGKILL, with everything that a run can look at."""
    code = f"""
    import sys, time, torch
    sys.path.insert(0, {os.path.dirname(__file__)!r})
    from test_train import batch, mlp, weights
    from repalign.train import Snapshots, fit
    from repalign.train.checkpoint import pack
    torch.set_num_threads(1)
    place = {str(tmp_path)!r}
    model = mlp(dropout=0.3)
    slow = lambda epoch, history: time.sleep(0.05)
    look = lambda net, epoch: (torch.rand(1).numpy(), weights(net).numpy()[:2])
    history = fit(
        model, *batch(), epochs=40, batch_size=16, checkpoint=place + "/s.pt", every=5, progress=slow,
        measure=look, at=range(0, 41, 4), at_steps=range(2, 160, 9), test=batch(20, seed=1), full_train=True,
        patience=40, snapshots=place + "/kept",
    )
    history.seconds.clear()
    kept = Snapshots(place + "/kept")
    states = [torch.load(one.path, weights_only=True) for one in kept]
    torch.save((weights(model), pack(vars(history)), kept.steps, states), place + "/end.pt")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while not (tmp_path / "s.pt").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "end.pt").exists()
    subprocess.run(command, check=True, timeout=120)
    resumed = (tmp_path / "end.pt").read_bytes()
    history = torch.load(tmp_path / "end.pt", weights_only=True)[1]
    assert len(dict(history[1])["measured_steps"][1]) > 10
    for path in [tmp_path / "s.pt", *(tmp_path / "kept").iterdir()]:
        path.unlink()
    subprocess.run(command, check=True, timeout=120)
    assert resumed == (tmp_path / "end.pt").read_bytes()


# Many at once


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(
    "stop", [dict(stop_loss=0.5), dict(stop_fit=1), dict(patience=2), dict(stop_loss=0.6, schedule="cosine")]
)
def test_many_look_and_stop_as_one_by_one(optimizer, stop):
    x, y = batch(30)
    lrs = [0.3, 0.1, 0.02] if optimizer == "sgd" else [0.05, 0.02, 0.005]
    fixed = dict(
        epochs=40, batch_size=16, optimizer=optimizer, measure=lambda m, e: (e, weights(m)), at=[0, 5, 40],
        at_steps=[1, 3], test=tuple(v.double() if v.is_floating_point() else v for v in batch(20, seed=5)),
        full_train=True,
    )  # fmt: skip
    fixed |= {**stop, "at": range(41)} if "patience" in stop else stop
    alone, together = ([mlp(i).double() for i in range(3)] for _ in range(2))
    pairs = zip(alone, lrs, strict=True)
    expected = [fit(m, x.double(), y, seed=i, lr=lr, **fixed) for i, (m, lr) in enumerate(pairs)]
    found = fit_many(together, x.double(), y, seeds=range(3), lr=lrs, **fixed)
    assert len({len(h.loss) for h in expected}) > 1  # they do stop at different times
    for a, b, one, other in zip(alone, together, expected, found, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=1e-4, atol=1e-6)
        assert (one.stopped, one.perfect, one.steps) == (other.stopped, other.perfect, other.steps)
        for name in ("loss", "accuracy", "lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4), name
        for name in ("measured", "measured_steps"):
            assert list(getattr(one, name)) == list(getattr(other, name))
            for key, (epoch, w) in getattr(one, name).items():
                assert getattr(other, name)[key][0] == epoch
                torch.testing.assert_close(getattr(other, name)[key][1], w, rtol=1e-4, atol=1e-6)


def test_many_with_test_labels_of_their_own():
    x, y = batch()
    own = torch.stack([y, (y + 1) % 3])
    histories = fit_many([mlp(), mlp()], x, own, epochs=1, seeds=[0, 0], test=(x, own), at=[1])
    shared = fit_many([mlp()], x, y, epochs=1, seeds=[0], test=(x, y), at=[1])
    assert histories[0].test_loss == pytest.approx(shared[0].test_loss)
    assert histories[1].test_loss != pytest.approx(shared[0].test_loss)
    with pytest.raises(ValueError, match=r"have shape .3, 3., which could be either"):
        fit_many([mlp()] * 3, x[:3], torch.eye(3), epochs=1, seeds=[0, 1, 2], loss="squared")
