"""Training: the numbers of a plain loop, stops, checkpoints that resume to the bit, and faults."""

import dataclasses
import io
import json
import math
import os
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from repalign import models, train
from repalign.train import DivergedError, SeesModel, fit, fit_many, log_epochs


def mlp(seed=0, outputs=3, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, outputs))


def batch(n=50, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g)
    return x, (x @ torch.randn(5, 3, generator=g)).argmax(1)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("name", train.OPTIMIZERS)
def test_full_batch_training_is_the_plain_loop(name):
    x, y = batch()
    ours, theirs = mlp(), mlp()
    fit(ours, x, y, optimizer=name, lr=0.01, weight_decay=0.1, batch_size=50, epochs=5)
    descent = MAKERS[name](theirs.parameters())
    for _ in range(5):
        descent.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        descent.step()
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)


def test_losses_are_the_papers():
    f, y = torch.tensor([[0.5], [-2.0]]), torch.tensor([1.0, -1.0])
    expected = [math.log(1 + math.exp(-0.5)) / math.log(2), math.log(1 + math.exp(-2)) / math.log(2)]
    assert train.LOSSES["logistic"](f, y).tolist() == pytest.approx(expected)
    assert train.LOSSES["squared"](f, y).tolist() == pytest.approx([0.25, 1.0])
    two = torch.tensor([[1.0, 2.0]])
    assert train.LOSSES["squared"](two, torch.zeros(1, 2)).tolist() == [5.0]


def test_an_epoch_sees_every_sample_once_and_seeds_differ():
    seen = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            seen.append(x[:, 0].clone())
            return x[:, :1] * self.w

    x = torch.arange(10.0)[:, None]
    fit(Spy(), x, x, loss="squared", epochs=2, batch_size=4, lr=1e-9, seed=1)
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:])
    assert [len(s) for s in seen] == [4, 4, 2] * 2
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(10))
    assert first.tolist() != second.tolist()
    seen.clear()
    fit(Spy(), x, x, loss="squared", epochs=1, batch_size=4, lr=1e-9, seed=2)
    assert torch.cat(seen).tolist() != first.tolist()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0] * 6),
        ("thirds", [1, 1, 1 / 3, 1 / 3, 1 / 9, 1 / 9]),
        ("linear", [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (lambda share, epoch: float(epoch), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_schedules(schedule, expected):
    x, y = batch()
    history = fit(mlp(), x, y, epochs=6, batch_size=50, lr=1.0, optimizer="sgd", schedule=schedule)
    assert history.lr == pytest.approx(expected)
    assert train.SCHEDULES["step30"](0.5, 29) == 1
    assert train.SCHEDULES["step30"](0.5, 60) == pytest.approx(0.01)


def test_stops():
    x, y = batch()
    assert fit(mlp(), x, y, epochs=3).stopped == "epochs"
    history = fit(mlp(), x, y, epochs=500, lr=0.01, stop_loss=0.3)
    assert history.stopped == "loss"
    assert history.loss[-1] < 0.3 <= history.loss[-2]
    model = mlp()
    history = fit(model, x, y, epochs=2000, lr=0.01, stop_fit=3)
    assert history.stopped == "fit"
    assert history.perfect == 3
    assert train.accuracy(model, x, y) == 1


def test_measuring_changes_nothing_and_happens_where_asked():
    x, y = batch()
    plain, watched = mlp(dropout=0.5), mlp(dropout=0.5)
    fit(plain, x, y, epochs=6)

    def measure(model, epoch):
        assert not model.training
        torch.rand(3)
        return train.accuracy(model, x, y)

    history = fit(watched, x, y, epochs=6, measure=measure, at=[0, 2, 6])
    assert list(history.measured) == [0, 2, 6]
    torch.testing.assert_close(weights(plain), weights(watched), rtol=0, atol=0)
    assert plain.training  # as it came


def test_training_leaves_the_global_randomness_alone():
    x, y = batch()
    model = mlp(dropout=0.5)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fit(model, x, y, epochs=2)
    assert torch.equal(torch.rand(1), expected)


def test_log_epochs():
    grid = log_epochs(4000, 40)
    assert grid[0] == 0
    assert grid[-1] == 4000
    assert grid == sorted(set(grid))
    assert log_epochs(1) == [0, 1]


def test_crop_and_flip_moves_and_mirrors():
    x = torch.arange(16.0).reshape(1, 1, 4, 4).expand(500, 1, 4, 4)
    moved = train.crop_and_flip(x, torch.Generator().manual_seed(0), pad=1)
    kinds = {tuple(image.flatten().tolist()) for image in moved}
    assert len(kinds) == 18  # nine shifts, mirrored or not
    assert tuple(range(16)) in kinds
    assert tuple(x[0, 0].flip(-1).flatten().tolist()) in kinds
    assert torch.equal(moved, train.crop_and_flip(x, torch.Generator().manual_seed(0), pad=1))


def test_options_for_speed_train_too():
    x = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    options = dict(bfloat16=True, channels_last=True, augment=train.crop_and_flip)
    history = fit(model, x, y, epochs=20, lr=0.03, **options)
    assert history.loss[-1] < 0.8 * history.loss[0]


# Labels


def test_class_numbers_are_one_hot_for_squared_loss():
    x, y = batch()
    numbers, one_hot, together = mlp(), mlp(), mlp()
    a = fit(numbers, x, y, loss="squared", epochs=3, batch_size=16)
    b = fit(one_hot, x, nn.functional.one_hot(y, 3).float(), loss="squared", epochs=3, batch_size=16)
    assert torch.equal(weights(numbers), weights(one_hot))
    assert a == dataclasses.replace(b, seconds=a.seconds)
    fit_many([together], x, y, loss="squared", epochs=3, batch_size=16, seeds=[0])
    torch.testing.assert_close(weights(together), weights(numbers), rtol=1e-3, atol=1e-5)
    output = mlp()(x)
    expected = (output - torch.eye(3)[y]).square().sum(1)
    torch.testing.assert_close(train.LOSSES["squared"](output, y), expected)


def test_labels_may_have_an_axis_of_one():
    x, y = batch()
    signs = (2 * (y > 0) - 1).float()
    for loss in ("logistic", "squared"):
        flat, column = mlp(outputs=1), mlp(outputs=1)
        fit(flat, x, signs, loss=loss, epochs=2)
        history = fit(column, x, signs[:, None], loss=loss, epochs=2)
        assert torch.equal(weights(flat), weights(column))
        assert history.accuracy[-1] == pytest.approx(train.accuracy(column, x, signs[:, None]), abs=0.2)


def labels(n=50):
    return batch(n)[1]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("loss", "outputs", "y", "message"),
    [
        ("squared", 3, labels().float(), r"a target for each of the model's outputs of shape \(n, 3\)"),
        ("squared", 3, torch.zeros(50, 2), r"labels are torch.float32 of shape \(n, 2\)"),
        ("squared", 2, labels(), "class numbers should be from 0 to 1.*2 outputs, but they are from 0 to 2"),
        ("logistic", 1, (labels() > 0).long(), r"labels −1 and \+1.*0 to 1.*repalign.data.signs"),
        ("logistic", 1, (labels() > 0).float(), r"repalign.data.signs"),
        ("logistic", 3, labels(), "logistic loss needs one output"),
        ("cross_entropy", 3, labels().float(), r"class numbers \(integers\).*torch.float32 labels"),
        ("cross_entropy", 2, labels(), "class numbers should be from 0 to 1"),
        ("cross_entropy", 3, labels() - 1, "class numbers should be from 0 to 2.*from -1 to 1"),
        ("cross_entropy", 3, torch.zeros(50, 3), "should be probabilities"),
        ("cross_entropy", 1, labels() * 0, "an output for each class"),
    ],
)
def test_labels_that_do_not_fit_the_loss_are_refused(loss, outputs, y, message, many):
    x, _ = batch()
    model = mlp(outputs=outputs)
    before = weights(model)
    run = partial(fit_many, [model], seeds=[0]) if many else partial(fit, model)
    with pytest.raises(ValueError, match=message):
        run(x=x, y=y, loss=loss, epochs=1)
    assert torch.equal(weights(model), before)


def test_labels_that_fit_are_taken():
    x, y = batch()
    for kind in (torch.uint8, torch.int32, torch.int64):
        model = mlp()
        fit(model, x, y.to(kind), epochs=1)
        assert torch.equal(weights(model), weights_after(x, y))
    probable = torch.full((50, 3), 0.05) + 0.85 * torch.eye(3)[y]
    history = fit(mlp(), x, probable, epochs=30, lr=0.01)
    assert history.accuracy[-1] > 0.8


def weights_after(x, y):
    model = mlp()
    fit(model, x, y, epochs=1)
    return weights(model)


def test_accuracy_knows_its_labels():
    x, y = batch()
    model = mlp()
    assert train.accuracy(model, x, torch.eye(3)[y]) == train.accuracy(model, x, y)
    with pytest.raises(ValueError, match="±1 for a single one"):
        train.accuracy(mlp(outputs=1), x, (y > 0).long())


# Frozen parts


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu()))


def test_parts_in_eval_mode_stay_there():
    x, y = batch()
    model = Normed()
    model.norm.eval()
    modes = {name: part.training for name, part in model.named_modules()}
    mean = model.norm.running_mean.clone()
    seen = []
    model.drop.register_forward_hook(lambda part, _, __: seen.append((part.training, model.norm.training)))
    fit(model, x, y, epochs=2, batch_size=50, stop_fit=2, measure=lambda m, e: train.accuracy(m, x, y))
    assert torch.equal(model.norm.running_mean, mean)
    assert seen.count((True, False)) == 2  # a step an epoch, and the rest in eval mode
    assert set(seen) == {(True, False), (False, False)}
    assert {name: part.training for name, part in model.named_modules()} == modes
    train.predict(model, x)
    assert {name: part.training for name, part in model.named_modules()} == modes


def test_a_model_in_eval_mode_trains_whole():
    x, y = batch()
    model, fresh = Normed().eval(), Normed()
    fit(model, x, y, epochs=2)
    fit(fresh, x, y, epochs=2)
    assert torch.equal(model.norm.running_mean, fresh.norm.running_mean)
    assert torch.equal(weights(model), weights(fresh))
    assert not any(part.training for part in model.modules())
    assert all(part.training for part in fresh.modules())


def test_modes_come_back_after_an_error():
    x, y = batch()
    model = Normed().eval()

    def fails(model, epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, x, y, epochs=2, batch_size=16, measure=fails, at=[], at_steps=[2])
    assert not any(part.training for part in model.modules())


@pytest.mark.parametrize("many", [False, True])
def test_frozen_parameters_stay(many):
    x, y = batch()
    model = mlp()
    model[0].weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    options = dict(epochs=2, lr=0.1, weight_decay=0.1)
    if many:
        fit_many([model], x, y, seeds=[0], **options)
    else:
        fit(model, x, y, **options)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == [False, True, True, True]
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="none to train"):
        fit(model, x, y, epochs=1)


# Layout


def test_residual_networks_are_trained_with_channels_last():
    images = torch.zeros(2, 3, 32, 32)
    turned = {
        name: train.prefers_channels_last(models.build(name, **options), images)
        for name, options in {
            "preact_resnet18": dict(k=2), "resnet11": dict(width=2), "wide_resnet": dict(width=1, blocks=1),
            "resnet18": {}, "resnet18_v2": {}, "vgg16": {}, "vit_small": {},
            "simple_cnn": dict(filters=2, units=2),
        }.items()
    }  # fmt: skip
    residual = ["preact_resnet18", "resnet11", "wide_resnet", "resnet18"]  # with batch norm
    assert [name for name, yes in turned.items() if yes] == residual
    assert not train.prefers_channels_last(models.ResNet11(width=2), torch.zeros(2, 5))
    with pytest.raises(ValueError, match="channels_last is for images"):
        fit(mlp(), *batch(), epochs=1, channels_last=True)
    with pytest.raises(ValueError, match="True, False or 'auto'"):
        fit(mlp(), *batch(), epochs=1, channels_last="yes")


def test_the_layout_changes_results_by_rounding_only():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, 8, 8, generator=g).double(), torch.arange(12) % 3
    seen = []
    nets = [models.ResNet11(3, width=2).double() for _ in range(3)]
    for net, layout in zip(nets, (False, True, "auto"), strict=True):
        net[0].register_forward_pre_hook(
            lambda _, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
        )
        options = dict(epochs=2, batch_size=4, augment=train.crop_and_flip, channels_last=layout)
        fit(net, x, y, optimizer="sgd", lr=0.01, **options)
    assert seen == [False] * 6 + [True] * 12
    torch.testing.assert_close(weights(nets[0]), weights(nets[1]), rtol=1e-9, atol=1e-11)
    assert torch.equal(weights(nets[1]), weights(nets[2]))


# Checkpoints


def test_resuming_takes_the_very_steps(tmp_path):
    x, y = batch()
    whole, broken = mlp(dropout=0.5), mlp(dropout=0.5)
    expected = fit(whole, x, y, epochs=8, schedule="linear", measure=lambda m, e: e)

    class StopError(Exception):
        pass

    def interrupt(epoch, history):
        if epoch == 5:
            raise StopError

    path = tmp_path / "state.pt"
    options = dict(epochs=8, schedule="linear", checkpoint=path, every=2, measure=lambda m, e: e)
    with pytest.raises(StopError):
        fit(broken, x, y, progress=interrupt, **options)
    fresh = mlp(seed=9, dropout=0.5)  # what a new process would start from
    history = fit(fresh, x, y, **options)
    assert torch.equal(weights(fresh), weights(whole))
    assert history.loss == expected.loss
    assert list(history.measured) == list(range(9))
    # Finished: the same call returns at once, with the trained weights.
    again = mlp(seed=10, dropout=0.5)
    assert fit(again, x, y, **options).loss == expected.loss
    assert torch.equal(weights(again), weights(whole))


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    x, y = batch()
    path = tmp_path / "state.pt"
    fit(mlp(), x, y, epochs=1, checkpoint=path)
    for change in (dict(lr=0.5), dict(seed=3), dict(epochs=2)):
        with pytest.raises(ValueError, match="belongs to another model, data or configuration"):
            fit(mlp(), x, y, **{"epochs": 1, **change}, checkpoint=path)
    with pytest.raises(ValueError, match="belongs to another"):
        fit(mlp(), x + 1, y, epochs=1, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read"):
        fit(mlp(), x, y, epochs=1, checkpoint=path)


def test_a_checkpoint_with_one_bit_flipped_is_refused_by_name(tmp_path):
    x, y = batch()
    path = tmp_path / "state.pt"
    fit(mlp(), x, y, epochs=1, checkpoint=path)
    raw = path.read_bytes()
    assert torch.load(path, weights_only=True)["epoch"] == 1  # anyone can read it
    for place in (0, 40, *range(100, len(raw), len(raw) // 60), len(raw) - 90, len(raw) - 70, len(raw) - 1):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(ValueError, match=r"state\.pt cannot be read .*Delete it to start anew"):
            fit(mlp(), x, y, epochs=1, checkpoint=path)
    torch.save(torch.load(io.BytesIO(raw), weights_only=True), path)
    with pytest.raises(ValueError, match="not those that were written, or another version wrote it"):
        fit(mlp(), x, y, epochs=1, checkpoint=path)


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    x, y = batch()
    path = tmp_path / "state.pt"
    save, count = torch.save, 0

    def full(state, part):
        nonlocal count
        count += 1
        if count == 3:
            part.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        save(state, part)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        fit(mlp(), x, y, epochs=5, checkpoint=path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["state.pt"]
    resumed, whole = mlp(seed=4), mlp()
    fit(resumed, x, y, epochs=5, checkpoint=path)
    fit(whole, x, y, epochs=5)
    assert torch.equal(weights(resumed), weights(whole))


# Faults


def test_a_loss_that_diverges_stops_and_says_where():
    x, y = batch()
    with pytest.raises(DivergedError, match=r"at step \d+ \(epoch \d+\).*'lr': 1e\+20"):
        fit(mlp(outputs=1), x, y.float(), loss="squared", optimizer="sgd", lr=1e20, epochs=50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(loss="hinge"), "unknown loss 'hinge': choose one of squared, logistic, cross_entropy"),
        (dict(optimizer="lion"), "unknown optimizer 'lion'"),
        (dict(schedule="steps"), "unknown schedule 'steps'"),
        (dict(epochs=0), "epochs should be above 0"),
        (dict(lr=-1.0), "lr should be above 0"),
        (dict(batch_size=0), "batch_size should be above 0"),
    ],
)
def test_bad_options(options, message):
    x, y = batch()
    with pytest.raises(ValueError, match=message):
        fit(mlp(), x, y, **{"epochs": 1, **options})
    with pytest.raises(ValueError, match="50 and 49 rows"):
        fit(mlp(), x, y[:-1], epochs=1)


# Many at once


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_many_at_once_are_the_same_as_one_by_one(optimizer):
    x, y = batch(70)
    lrs, decays, seeds = [0.01, 0.02, 0.005], [0.0, 0.1, 0.01], [3, 4, 5]
    alone = [mlp(i).double() for i in range(3)]
    together = [mlp(i).double() for i in range(3)]
    options = dict(optimizer=optimizer, epochs=4, batch_size=16, schedule="linear")
    losses = [
        fit(m, x.double(), y, lr=lr, weight_decay=wd, seed=s, **options).loss
        for m, lr, wd, s in zip(alone, lrs, decays, seeds, strict=True)
    ]
    found = fit_many(together, x.double(), y, lr=lrs, weight_decay=decays, seeds=seeds, **options)
    for a, b, loss, history in zip(alone, together, losses, found, strict=True):
        # Learning rates are held in float32.
        torch.testing.assert_close(weights(a), weights(b), rtol=1e-5, atol=1e-7)
        assert history.loss == pytest.approx(loss, rel=1e-5)


def test_many_with_labels_of_their_own():
    x, y = batch()
    own = torch.stack([y, (y + 1) % 3])
    alone, together = [mlp(i) for i in range(2)], [mlp(i) for i in range(2)]
    for model, labels in zip(alone, own, strict=True):
        fit(model, x, labels, epochs=3, seed=1)
    fit_many(together, x, own, epochs=3, seeds=[1, 1])
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=1e-3, atol=1e-5)


def test_many_take_a_frozen_batch_norm():
    x, y = batch()
    alone, together = ([Normed() for _ in range(2)] for _ in range(2))
    for i, model in enumerate([*alone, *together]):
        model.drop.eval()
        model.norm.eval().running_mean.fill_(0.1 * (i % 2))  # of each model its own
    for i, model in enumerate(alone):
        fit(model, x, y, epochs=2, seed=i)
    fit_many(together, x, y, epochs=2, seeds=[0, 1])
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=1e-3, atol=1e-5)
        assert torch.equal(a.norm.running_mean, b.norm.running_mean)


def test_many_refuse_what_would_not_be_the_same():
    x, y = batch()
    with pytest.raises(ValueError, match="one seed per model"):
        fit_many([mlp()], x, y, epochs=1, seeds=[1, 2])
    with pytest.raises(ValueError, match="one architecture"):
        fit_many([mlp(), mlp(outputs=4)], x, y, epochs=1, seeds=[1, 2])
    with pytest.raises(ValueError, match="BatchNorm1d"):
        fit_many([nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3))], x, y, epochs=1, seeds=[1])
    frozen = mlp()
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match="the same parameters should be frozen"):
        fit_many([mlp(), frozen], x, y, epochs=1, seeds=[1, 2])
    with pytest.raises(ValueError, match="needs one model at a time"):
        fit_many([mlp()], x, y, epochs=1, seeds=[1], loss=train.SeesModel(lambda m, x, y: m(x).sum(1)))
    with pytest.raises(ValueError, match="choose sgd, momentum or adam"):
        fit_many([nn.Linear(5, 3)], x, y, epochs=1, seeds=[1], optimizer="rmsprop")
    with pytest.raises(ValueError, match="one value per model"):
        fit_many([nn.Linear(5, 3)], x, y, epochs=1, seeds=[1], lr=[0.1, 0.2])
    with pytest.raises(DivergedError, match="model 1"):
        fit_many(
            [nn.Linear(5, 1), nn.Linear(5, 1)],
            x,
            y.float(),
            loss="squared",
            epochs=30,
            seeds=[1, 2],
            optimizer="sgd",
            lr=[1e-3, 1e20],
        )


class Waits(TorchFunctionMode):
    """Counts what would make a GPU wait: values of tensors that Python asks for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        names = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")
        self.count += getattr(func, "__name__", "") in names
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_no_step_waits_for_the_device(many, loss):
    x, y = batch(64)
    counts = []
    for size in (32, 4):  # 2 or 16 steps
        run = partial(fit_many, [mlp()], seeds=[0]) if many else partial(fit, mlp())
        with Waits() as waits:
            run(x=x, y=y, loss=loss, epochs=2, batch_size=size)
        counts.append(waits.count)
    assert counts[0] == counts[1] > 0


# More than one process


def test_two_processes_follow_the_curve_of_one(tmp_path):
    """Accelerate on two CPU processes: the same global batch, the same losses.

    ``accelerate launch`` starts several processes for GPUs only, so torch's launcher starts these two.
    """
    pytest.importorskip("accelerate")
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(f"""
        import json, sys, torch
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from accelerate import Accelerator
        from test_train import batch, mlp
        from repalign.train import fit
        accelerator = Accelerator(cpu=True)
        assert accelerator.num_processes == int(sys.argv[1])
        history = fit(mlp(), *batch(51), epochs=4, batch_size=16, accelerator=accelerator)
        if accelerator.is_main_process:
            json.dump(history.loss, open(sys.argv[2], "w"))
        accelerator.end_training()
        """)
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    launch += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    out = tmp_path / "losses.json"
    done = subprocess.run(
        [*launch, str(script), "2", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    alone = fit(mlp(), *batch(51), epochs=4, batch_size=16)
    assert json.loads(out.read_text()) == pytest.approx(alone.loss, rel=1e-5)


BY_CLASS = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


@pytest.mark.parametrize("name", BY_CLASS)
def test_a_class_gets_its_options_by_name(name, tmp_path):
    x, y = batch()
    how = dict(lr=0.01, weight_decay=0.1, batch_size=20, epochs=3)
    by_name, by_class, made = mlp(), mlp(), mlp()
    fit(by_name, x, y, optimizer=name, **how)
    fit(by_class, x, y, optimizer=BY_CLASS[name], checkpoint=tmp_path / "state", **how)
    fit(made, x, y, optimizer=MAKERS[name], batch_size=20, epochs=3)
    torch.testing.assert_close(weights(by_class), weights(by_name), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(weights(made), weights(by_name), rtol=1e-6, atol=1e-7)


def test_a_momentum_that_is_named_reaches_a_class():
    x, y = batch()
    by_name, by_class = mlp(), mlp()
    fit(by_name, x, y, optimizer="momentum", lr=0.01, momentum=0.5, epochs=2)
    fit(by_class, x, y, optimizer=torch.optim.SGD, lr=0.01, momentum=0.5, epochs=2)
    assert torch.equal(weights(by_class), weights(by_name))


def test_each_group_of_parameters_keeps_its_rate():
    x, y = batch()
    model = mlp()
    last = list(model.parameters())[-2:]
    before = weights(model)

    def groups(parameters):
        first = [p for p in parameters if not any(p is one for one in last)]
        return torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": last, "lr": 0.0}])

    history = fit(model, x, y, optimizer=groups, schedule="linear", batch_size=50, epochs=2)
    size = sum(p.numel() for p in last)
    assert torch.equal(weights(model)[-size:], before[-size:])
    assert not torch.equal(weights(model)[:-size], before[:-size])
    assert history.lr == [0.1, 0.05]


@pytest.mark.parametrize(
    "optimizer, options, error, message",
    [
        (
            torch.optim.SGD([torch.zeros(1, requires_grad=True)]),
            {},
            TypeError,
            r"made already: pass lambda p",
        ),
        (
            lambda p: torch.optim.SGD(p, lr=0.1),
            dict(lr=0.5),
            ValueError,
            "given lr, but the optimizer has its",
        ),
        (lambda p, lr: torch.optim.SGD(p, lr), dict(weight_decay=0.1), ValueError, "given weight_decay, but"),
        (torch.optim.Adam, dict(momentum=0.5), ValueError, "given momentum, but"),
        (partial(torch.optim.SGD, lr=0.1), dict(lr=0.5), ValueError, "given lr, but"),
        (torch.optim.LBFGS, {}, ValueError, "LBFGS evaluates the loss several times"),
        (lambda p: None, {}, TypeError, "but made a NoneType"),
    ],
)
def test_what_no_optimizer_can_be_made_of_is_told(optimizer, options, error, message):
    x, y = batch()
    with pytest.raises(error, match=message):
        fit(mlp(), x, y, optimizer=optimizer, epochs=1, **options)


def pairs(output, y):
    return (output - y) ** 2


@pytest.mark.parametrize("loss", [pairs, SeesModel(lambda m, x, y: pairs(m(x), y))])
def test_a_loss_of_all_pairs_is_refused(loss):
    x = batch()[0]
    y = x.sum(1)
    with pytest.raises(
        ValueError, match=r"a value per sample, \(10,\), .* returned \(10, 10\) .*y\[:, None\]"
    ):
        fit(nn.Linear(5, 1), x, y, loss=loss, epochs=1, batch_size=10)
    right, ours = nn.Linear(5, 1), nn.Linear(5, 1)
    ours.load_state_dict(right.state_dict())
    fit(right, x, y, loss="squared", epochs=2)
    fit(ours, x, y[:, None], loss=loss, epochs=2)
    torch.testing.assert_close(weights(ours), weights(right))


def test_a_mean_over_all_pairs_is_refused():
    x = batch()[0]
    y = x.sum(1)

    def mean(output, y):
        return pairs(output, y).mean()

    with pytest.raises(ValueError, match=r"more than one pair per sample.*y\[:, None\]"):
        fit(nn.Linear(5, 1), x, y, loss=mean, epochs=1)
    with pytest.raises(ValueError, match="more than one pair per sample"):
        fit_many([nn.Linear(5, 1), nn.Linear(5, 1)], x, y, loss=mean, epochs=1, seeds=[0, 1])
    fit(nn.Linear(5, 1), x, y[:, None], loss=mean, epochs=1)
    # One that shapes its arguments itself is right about them.
    fit(nn.Linear(5, 1), x, y, loss=lambda o, y: pairs(o[:, 0], y).mean(), epochs=1)
