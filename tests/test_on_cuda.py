"""The package on a GPU, by the double of one: same numbers as on the CPU, results where the inputs are."""

import functools
import inspect
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

import fake_cuda
import test_strangers as strangers
from repalign import (
    alignment,
    covariance,
    data,
    features,
    kernels,
    linear,
    models,
    probes,
    propagation,
    tangent,
    train,
)
from repalign.machine import devices
from repalign.models import weights
from repalign.models.initialization import Seeded
from repalign.papers import imani, maennel
from repalign.papers.imani import negative_transfer, sparse


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


PHI, WIDE, LONG = drawn(12, 5), drawn(5, 12, seed=1), drawn(40, 6, seed=2)
Y, TARGETS = drawn(12, seed=3), drawn(12, 3, seed=4)
LABELS = torch.arange(12) % 3
KERNEL, OTHER = PHI @ PHI.mT, TARGETS @ TARGETS.mT
REPS = drawn(4, 12, 5, seed=5)
COV, WEIGHTS = torch.cov(LONG.mT), torch.cov(drawn(40, 6, seed=6).mT)
IMAGES = drawn(5, 3, 8, 8, seed=7)
MANY = drawn(90, 80, seed=8)
PREDICTIONS = torch.arange(36).reshape(3, 12) % 5
STEPS = torch.tensor([0, 1, 10, 100])


def both(call):
    """``call(put)`` with everything left on the CPU, and with everything put on the GPU; as flat lists."""
    expected = tree_leaves(call(lambda value: value))
    with fake_cuda.installed():
        found = tree_leaves(call(lambda value: value.to("cuda")))
        away = [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.device.type != "cuda"]
        found = [leaf.cpu() if isinstance(leaf, Tensor) else leaf for leaf in found]
    return expected, found, away


def same(call):
    expected, found, away = both(call)
    assert expected
    assert away == [], "a result is not where its inputs are"
    torch.testing.assert_close(found, expected, equal_nan=True)


MEASURES = {
    "unit_rows": lambda on: alignment.unit_rows(on(PHI), constant=True),
    "spectrum": lambda on: alignment.spectrum(on(PHI), on(TARGETS)),
    "spectrum of whole numbers": lambda on: alignment.spectrum(on(WIDE), on(2 * (torch.arange(5) % 2) - 1)),
    "spectrum, the top": lambda on: alignment.spectrum(on(LONG), on(LONG[:, 0]), top=2),
    "spectrum of blocks": lambda on: alignment.spectrum(
        [(on(PHI[:7]), on(TARGETS[:7])), (on(PHI[7:]), on(TARGETS[7:]))]
    ),
    "spectrum at thresholds": lambda on: alignment.spectrum(on(PHI), on(Y)).alignment(on(PHI[0].abs())),
    "spectrum's curve": lambda on: alignment.spectrum(on(PHI), on(Y)).curve(torch.linspace(0, 1, 5)),
    "spectrum's area": lambda on: alignment.spectrum(on(PHI), on(Y)).area(),
    "spectrum's eigenvalues": lambda on: alignment.spectrum(on(PHI), on(Y)).eigenvalues,
    "spectrum, cumulative": lambda on: [
        alignment.spectrum(on(PHI), on(TARGETS)).cumulative(each=each) for each in (False, True)
    ],
    "kernel_spectrum": lambda on: [
        (s, s.eigenvalues, s.cumulative(), s.curve(), s.area(), alignment.gd_loss(s, 0.01, STEPS))
        for s in [alignment.kernel_spectrum(on(KERNEL), on(y)) for y in (Y, TARGETS)]
    ],
    "kernel_spectrum of one-hot classes": lambda on: alignment.kernel_spectrum(
        on(KERNEL), on(torch.nn.functional.one_hot(LABELS))
    ),
    "pair_spectra": lambda on: alignment.pair_spectra(on(KERNEL), on(LABELS)),
    "alignment": lambda on: alignment.alignment(on(PHI), on(Y), 0.5),
    "alignment, threshold from the CPU": lambda on: alignment.alignment(
        on(PHI), on(Y), torch.tensor([0.5, 1])
    ),
    "alignment_curve": lambda on: alignment.alignment_curve(on(PHI), on(TARGETS)),
    "alignment_curve at thresholds": lambda on: alignment.alignment_curve(on(PHI), on(Y), on(Y.abs())),
    "cumulative_power of a kernel": lambda on: alignment.cumulative_power(on(KERNEL), on(TARGETS)),
    "cumulative_power of features": lambda on: alignment.cumulative_power(on(PHI), on(Y), kind="features"),
    "class_pairs": lambda on: imani.class_pairs(on(PHI), on(LABELS), torch.linspace(0, 1, 5)),
    "gd_loss": lambda on: alignment.gd_loss(alignment.spectrum(on(PHI), on(Y)), 0.01, STEPS),
    "gd_loss, steps there": lambda on: alignment.gd_loss(alignment.spectrum(on(PHI), on(Y)), 0.01, on(STEPS)),
    "predicted_error": lambda on: [
        alignment.predicted_error(on(Y.abs()), on(TARGETS**2), STEPS, ridge=0.1, outside=on(TARGETS[0] ** 2)),
        alignment.predicted_error(on(Y.abs()), on(Y**2), on(STEPS), noise=0.5),
    ],
    "iteration_bound": lambda on: alignment.iteration_bound(
        on(Y[0].abs()), on(Y[1].abs() / 100), 0.1, on(Y[2].abs())
    ),
    "gram": lambda on: kernels.gram(on(PHI)),
    "center": lambda on: kernels.center(on(KERNEL)),
    "center, debiased": lambda on: kernels.center(on(KERNEL), debiased=True),
    "hsic": lambda on: [kernels.hsic(on(KERNEL), on(OTHER), debiased=d) for d in (False, True)],
    "kta": lambda on: kernels.kta(on(KERNEL), on(OTHER)),
    "cka": lambda on: [kernels.cka(on(PHI), on(TARGETS), debiased=d) for d in (False, True)],
    "cka_floor": lambda on: (lambda floor: [floor.mean, floor.sd, floor.pvalue])(
        kernels.cka_floor(on(PHI), on(TARGETS), draws=3)
    ),
    "power_law": lambda on: kernels.power_law(on(PHI), features=True)[:2],
    "cka_grid": lambda on: [
        kernels.cka_grid(on(REPS), debiased=d, side=s) for d in (False, True) for s in ("gram", "features")
    ],
    "cka_grid of two sets": lambda on: kernels.cka_grid(on(REPS), [on(PHI), on(TARGETS)], batch_size=6),
    "stable_rank": lambda on: kernels.stable_rank(on(KERNEL)),
    "stable_rank of features": lambda on: [
        kernels.stable_rank(on(x), features=True) for x in (PHI, WIDE, LONG.float(), LABELS[:, None])
    ],
    "ranks of large matrices": lambda on: [kernels.stable_rank(on(MANY), features=f) for f in (False, True)],
    "effective_rank": lambda on: kernels.effective_rank(on(KERNEL)),
    "misalignment": lambda on: covariance.misalignment(on(COV), on(WEIGHTS)),
    "misalignment_in": lambda on: covariance.misalignment_in(on(torch.linalg.qr(COV).Q), on(WEIGHTS)),
    "misalignment_floor": lambda on: covariance.misalignment_floor(6, 40),
    "filter_covariance": lambda on: [
        covariance.filter_covariance(on(filters), center=center)
        for filters in (LONG, IMAGES)
        for center in (True, False)
    ],
    "transfer_function": lambda on: covariance.transfer_function(on(COV), on(WEIGHTS)),
    "patch_covariance": lambda on: covariance.patch_covariance(on(IMAGES), 3, batch_size=2),
    "patch_covariance of bytes": lambda on: covariance.patch_covariance(on(IMAGES.byte()), 2, stride=2),
    "eigenvector_agreement": lambda on: covariance.eigenvector_agreement(on(COV), on(WEIGHTS)),
    "overlap": lambda on: covariance.overlap(on(COV), on(WEIGHTS), 2),
    "random_basis": lambda on: covariance.misalignment_in(
        on(covariance.random_basis(len(COV), seed=0)), on(WEIGHTS.double())
    ),
    "misalignment_scores": lambda on: covariance.misalignment_scores(on(COV), on(LONG)),
    "tilt": lambda on: covariance.tilt(covariance.transfer_function(on(COV), on(WEIGHTS))),
    "rotation_error": lambda on: covariance.rotation_error(on(torch.tensor([3.0, 2.0, 1.0])), 100),
    "correlations": lambda on: propagation.correlations(on(torch.tensor([0.1, 0.5])), 4),
    "gaps": lambda on: propagation.gaps(on(torch.tensor([0.1, 0.5])), 40),
    "forward_information": lambda on: propagation.forward_information(on(torch.tensor([0.1, 0.5])), 4),
    "backward_information": lambda on: propagation.backward_information(on(torch.tensor([0.1, 0.5])), 4),
    "equilibrium_layer": lambda on: propagation.equilibrium_layer(
        on(torch.tensor([0.1, 0.5])), on(torch.tensor([10, 100]))
    ),
    "fit_probes": lambda on: probes.fit_probes(on(REPS), on(LABELS), ridge=0.1, chunk=3),
    "fit_probes, labels on the CPU": lambda on: probes.fit_probes(on(REPS), LABELS, ridge=1),
    "fit_probes, adam": lambda on: probes.fit_probes(
        on(REPS), on(LABELS), epochs=2, lr=0.1, batch_size=5, chunk=3
    ),
    "fit_probes, adam, labels on the CPU": lambda on: probes.fit_probes(on(REPS), LABELS, epochs=2),
    "fit_probes, ridge, labels on the CPU": lambda on: probes.fit_probes(on(REPS), LABELS, method="ridge"),
    "fit_probes, ridge, wide": lambda on: probes.fit_probes(
        on(WIDE[None].float()), on(LABELS[:5]), method="ridge"
    ),
    "fit_probes of layers and functions": lambda on: probes.fit_probes(
        {"a": on(PHI), "b": lambda: on(PHI[:, :2]), "c": on(TARGETS)}, on(LABELS), ridge=1
    ),
    "fit_probes, ridge": lambda on: probes.fit_probes(on(REPS), on(LABELS), method="ridge"),
    "probes' scores and classes": lambda on: [
        (p.scores(on(REPS)), p.predict(on(REPS)))
        for p in [probes.fit_probes(on(REPS), on(LABELS), method="ridge")]
    ],
    "one probe's": lambda on: [
        (p, p.scores(on(PHI)), p.predict(on(PHI)))
        for method in ("softmax", "adam", "ridge")
        for p in [probes.fit_probes(on(REPS), on(LABELS), method=method, ridge=1, max_steps=50).one(1)]
    ],
    "planes": lambda on: probes.planes(on(PHI), on(torch.tensor([[0, 1, 2], [3, 4, 5]])), resolution=4),
    "planes, triplets on the CPU": lambda on: probes.planes(on(PHI), torch.tensor([[0, 1, 2]]), resolution=4),
    "plane_batches": lambda on: list(
        probes.plane_batches(on(PHI), on(torch.tensor([[0, 1, 2]])), resolution=3)
    ),
    "decision_region_similarity": lambda on: probes.decision_region_similarity(on(PREDICTIONS)),
    "decision_region_similarity of two": lambda on: probes.decision_region_similarity(
        on(PREDICTIONS), on(PREDICTIONS.flip(0))
    ),
    "squared_descent": lambda on: linear.squared_descent(
        on(PHI), on(Y), on(PHI), on(Y), eta=(0.1, 0.5), steps=STEPS
    ),
    "norm_at": lambda on: linear.norm_at(
        linear.squared_descent(on(PHI), on(Y), on(PHI), on(Y), eta=0.1, steps=STEPS), [0.01, 1.0]
    ),
    "logistic_descent": lambda on: linear.logistic_descent(
        on(PHI), on(Y.sign()), on(PHI), on(Y.sign()), eta=(0.1, 0.5), steps=on(STEPS)
    ),
}
OTHERS = {
    "rbf features": lambda on: imani.rbf(on(PHI), on(PHI[:2])),
    "hog": lambda on: imani.hog(on(drawn(2, 1, 32, 32).sigmoid())),
    "dictionary": lambda on: imani.dictionary(on(PHI), 4, passes=1),
    "learn_atoms": lambda on: sparse.learn_atoms(on(PHI), 4, alpha=0.1, passes=2),
    "sparse_codes": lambda on: sparse.sparse_codes(on(PHI), on(PHI[:3]), 0.1),
    "labels": lambda on: [
        data.signs(on(LABELS % 2)),
        data.one_hot(on(LABELS)),
        data.shuffled(on(LABELS), seed=0),
        data.noisy(on(LABELS), 0.5, seed=0),
    ],
    "crop_and_flip": lambda on: train.crop_and_flip(on(IMAGES), torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", MEASURES | OTHERS)
def test_measure(name):
    same((MEASURES | OTHERS)[name])


def mlp(on, outputs=3, seed=0):
    return on(models.MLP(5, outputs, depth=2, width=6, seed=seed).double())


def cnn(on):
    return on(models.SimpleCNN((3, 8, 8), 2, convs=2, filters=3, units=4, pool=True, seed=0).double())


def descent_of_alignment(net, x, y):
    found = tangent.label_alignment(net, x, y, create_graph=True)
    return found, torch.autograd.grad(sum(found.values()), list(net.parameters()), allow_unused=True)


VECTOR = drawn(sum(p.numel() for p in mlp(lambda net: net).parameters()))
ONE_HOT = torch.eye(3, dtype=torch.float64)[LABELS]
TANGENT = {
    "layer_kernels": lambda on: [tangent.layer_kernels(mlp(on), on(PHI), o) for o in ("all", "trace")],
    "layer_kernels of a CNN": lambda on: tangent.layer_kernels(cnn(on), on(IMAGES), "trace", batch_size=2),
    "layer_kernels of a transformer": lambda on: tangent.layer_kernels(
        on(models.vit_small(2, image_size=8, depth=1, width=6).double()), on(IMAGES[:2]), "trace"
    ),
    "ntk": lambda on: [tangent.ntk(mlp(on), on(PHI), o) for o in ("all", "trace")],
    "label_alignment": lambda on: tangent.label_alignment(mlp(on), on(PHI), on(TARGETS)),
    "label_alignment, trace": lambda on: tangent.label_alignment(mlp(on), on(PHI), on(TARGETS), "trace"),
    "label_alignment of classes": lambda on: tangent.label_alignment(mlp(on), on(PHI), on(LABELS)),
    "label_alignment with a graph": lambda on: descent_of_alignment(mlp(on), on(PHI), on(TARGETS)),
    "alignment_terms": lambda on: tangent.alignment_terms(mlp(on), on(PHI), on(TARGETS)),
    "forward_backward": lambda on: tangent.forward_backward(mlp(on), on(PHI)),
    "hessian_vector": lambda on: tangent.hessian_vector(mlp(on), on(PHI), on(TARGETS), on(VECTOR)),
    "hessian_vector of named parts": lambda on: [
        tangent.hessian_vector(net, on(PHI), on(TARGETS), dict(net.named_parameters())) for net in [mlp(on)]
    ],
    "pull and push": lambda on: [
        (u, tangent.push(net, x, u), tangent.push(net, x, dict(net.named_parameters())))
        for net, x, w in ((mlp(on), on(PHI), on(TARGETS)), (cnn(on), on(IMAGES), on(TARGETS[:5, :2])))
        for u in [tangent.pull(net, x, w)]
    ],
    "hessian_top": lambda on: [tangent.hessian_top(mlp(on), on(PHI), on(TARGETS), k=2).values],
    "layer_energy": lambda on: tangent.layer_energy(mlp(on), on(VECTOR)),
    "fisher_spectrum": lambda on: tangent.fisher_spectrum(mlp(on), on(PHI), 3),
    "fisher_correlation": lambda on: tangent.fisher_correlation(mlp(on), on(PHI), on(LABELS)),
}


@pytest.mark.parametrize("name", TANGENT)
def test_tangent(name):
    same(TANGENT[name])


ROOMS = (alignment, covariance, kernels, linear, probes, propagation, tangent)


def public_functions():
    """Every public function of the measures' rooms, and every public method and property of their classes."""
    for room in ROOMS:
        for name in getattr(room, "__all__", vars(room)):
            value = getattr(room, name)
            if name.startswith("_") or not getattr(value, "__module__", "").startswith(room.__name__):
                continue
            if inspect.isclass(value):
                parts = [(value, key, part, f"{name}.{key}") for key, part in vars(value).items()]
            else:
                parts = [(room, name, value, name)]
            for owner, key, part, called in parts:
                if not key.startswith("_") and (inspect.isfunction(part) or isinstance(part, property)):
                    yield owner, key, part, f"{room.__name__}.{called}"


def never_called(calls):
    """The public measures that none of ``calls`` calls on the GPU."""
    missing = set()

    def noting(part, name):
        missing.add(name)
        inner = part.fget if isinstance(part, property) else part

        @functools.wraps(inner)
        def noted(*args, **kwargs):
            missing.discard(name)
            return inner(*args, **kwargs)

        return property(noted) if isinstance(part, property) else noted

    with ExitStack() as undo, fake_cuda.installed():
        for owner, key, part, name in [*public_functions()]:
            undo.enter_context(patch.object(owner, key, noting(part, name)))
        for call in calls:
            call(lambda value: value.to("cuda"))
    return sorted(missing)


def test_every_measure_is_in_these_lists():
    assert never_called([*MEASURES.values(), *TANGENT.values()]) == [], "add them to MEASURES or TANGENT"


def test_a_measure_that_is_left_out_would_be_found():
    missing = never_called(MEASURES[name] for name in ("cka", "kernel_spectrum", "fit_probes, ridge"))
    assert {"repalign.alignment.Spectrum.alignment", "repalign.probes.Probes.one"} < set(missing)
    assert not {"repalign.kernels.cka", "repalign.alignment.Spectrum.eigenvalues"} & set(missing)


def trained(on, make=mlp, **options):
    net = make(on)
    x = on(PHI if make is mlp else IMAGES)
    y = on(LABELS if make is mlp else LABELS[:5] % 2)
    history = train.fit(net, x, y, epochs=3, batch_size=4, lr=0.05, **options)
    return list(net.parameters()), history.loss, train.accuracy(net, x, y), train.predict(net, x)


@pytest.mark.parametrize("optimizer", sorted(train.OPTIMIZERS))
def test_fit_with_every_optimizer(optimizer):
    same(lambda on: trained(on, optimizer=optimizer))


@pytest.mark.parametrize("schedule", sorted(train.SCHEDULES))
def test_fit_with_every_schedule(schedule):
    same(lambda on: trained(on, schedule=schedule))


def test_fit_with_its_options():
    same(lambda on: trained(on, cnn, augment=train.crop_and_flip, channels_last=True, optimizer="momentum"))
    same(lambda on: trained(on, stop_fit=1, weight_decay=0.01))


TOLD = ("loss", "accuracy", "lr", "steps", "train_loss", "train_accuracy", "test_loss", "test_accuracy")


def told(history):
    """All that a history holds but the seconds, which differ."""
    reason = ["epochs", "loss", "fit", "plateau"].index(history.stopped)
    return [getattr(history, name) for name in TOLD] + [history.measured, history.measured_steps, reason]


HALVES = (PHI[:, 0] > 0).long()
TEST = (drawn(7, 5, seed=9), torch.arange(7) % 3)
LOOKS = dict(
    at=[0, 1, 3], at_steps=[1, 3, 4], full_train=True, measure=lambda net, epoch: net.head.weight.var()
)


def watched(on, y=LABELS, test=TEST, stops="epochs", **options):
    net, options = mlp(on), dict(epochs=4, batch_size=5, lr=0.05, test=tuple(map(on, test))) | options
    history = train.fit(net, on(PHI), on(y), **options)
    assert history.stopped == stops
    return told(history), list(net.parameters())


def sees(net, x, y):
    return torch.nn.functional.cross_entropy(net(x), y, reduction="none") + net.head.weight.square().sum()


@pytest.mark.parametrize(
    "options",
    [
        LOOKS,
        LOOKS | dict(patience=1, lr=1.0, epochs=8, stops="plateau"),
        LOOKS | dict(stop_loss=0.9, epochs=8, stops="loss"),
        LOOKS | dict(stop_fit=2, y=HALVES, lr=0.1, epochs=20, stops="fit"),
        LOOKS | dict(loss=train.SeesModel(sees)),
        LOOKS | dict(loss="squared", y=ONE_HOT, test=(TEST[0], torch.eye(3, dtype=torch.float64)[TEST[1]])),
    ],
    ids=["looks", "patience", "stop_loss", "stop_fit", "SeesModel", "squared"],
)
def test_fit_looks_there(options):
    same(lambda on: watched(on, **options))


def test_fit_takes_test_samples_from_the_cpu():
    options = LOOKS | dict(epochs=3, batch_size=5, test=TEST)
    expected = told(train.fit(mlp(lambda net: net), PHI, LABELS, **options))
    with fake_cuda.installed():
        found = told(train.fit(mlp(lambda net: net.cuda()), PHI, LABELS, **options))
        found = [leaf.cpu() if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(found)]
    torch.testing.assert_close(found, tree_leaves(expected))


def test_snapshots_of_a_run_there(tmp_path):
    """Written from the GPU, read into a network on either side."""
    numbers = (f"{i}" for i in range(2))

    def run(on):
        place, net = tmp_path / next(numbers), mlp(on)
        train.fit(net, on(PHI), on(LABELS), epochs=2, batch_size=5, snapshots=place, at_steps=[1, 2])
        kept = train.Snapshots(place)
        assert kept.steps == [0, 1, 2, 3, 6]
        rows = [look() for look in kept.map(mlp(on), lambda net: net(on(PHI)))]
        return rows, [list(one.parameters()) for one in kept.models(mlp(on))]

    same(run)
    with fake_cuda.installed():
        here = train.Snapshots(tmp_path / "1")[-1].load(mlp(lambda net: net))
        assert {p.device.type for p in here.parameters()} == {"cpu"}


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_fit_with_one_output(loss):
    def run(on):
        net = mlp(on, 1)
        train.fit(net, on(PHI), on(Y.sign()), loss=loss, epochs=2)
        return list(net.parameters())

    same(run)


def test_fit_brings_the_data_to_the_model():
    with fake_cuda.installed():
        net = mlp(lambda net: net.cuda())
        train.fit(net, PHI, LABELS, epochs=1)
        assert train.accuracy(net, PHI, LABELS) >= 0
        assert train.predict(net, PHI).device.type == "cuda"


def test_fit_measures_and_resumes(tmp_path):
    with fake_cuda.installed():
        runs = {}
        for name, epochs in (("whole", [4]), ("parts", [4, 4])):
            for _ in epochs:
                net = mlp(lambda net: net.cuda())

                def area(net, epoch):
                    return float(alignment.spectrum(net(PHI.cuda()), Y.cuda()).area())

                def stop(epoch, history, first=name == "parts" and name not in runs):
                    if first and epoch == 2:
                        raise InterruptedError

                try:
                    history = train.fit(
                        net,
                        PHI,
                        LABELS,
                        epochs=4,
                        measure=area,
                        checkpoint=tmp_path / name,
                        progress=stop,
                    )
                except InterruptedError:
                    runs[name] = None
                    continue
                runs[name] = history.loss, history.measured, [p.tolist() for p in net.parameters()]
        assert runs["whole"] == runs["parts"]


def test_fit_in_lower_precision():
    with fake_cuda.installed():
        net = models.MLP(5, 3, depth=1, width=6, seed=0).cuda()
        history = train.fit(net, PHI.float(), LABELS, epochs=2, bfloat16=True)
        assert history.loss[-1] > 0
        assert {p.device.type for p in net.parameters()} == {"cuda"}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_fit_many(optimizer):
    def run(on):
        nets = [on(models.MLP(5, 3, depth=1, width=6, seed=seed).double()) for seed in range(3)]
        histories = train.fit_many(
            nets, on(PHI), on(LABELS), epochs=2, seeds=range(3), lr=[0.1, 0.2, 0.3], optimizer=optimizer
        )
        return [list(net.parameters()) for net in nets], [h.loss for h in histories]

    same(run)


def many(on, y=LABELS, test=TEST, frozen=(), stops="epochs", **options):
    nets = [mlp(lambda net: on(net), seed=seed) for seed in range(3)]
    for net in nets:
        for name in frozen:
            net.get_parameter(name).requires_grad_(False)
    options = dict(epochs=4, batch_size=5, lr=[0.05, 0.02, 0.1], test=tuple(map(on, test))) | options
    histories = train.fit_many(nets, on(PHI), on(y), seeds=range(3), **options)
    assert stops in {history.stopped for history in histories}
    return list(map(told, histories)), [list(net.parameters()) for net in nets]


OWN = torch.stack([(LABELS + shift) % 3 for shift in range(3)])
OWN_TEST = (TEST[0], torch.stack([(TEST[1] + shift) % 3 for shift in range(3)]))


@pytest.mark.parametrize(
    "options",
    [
        LOOKS,
        LOOKS | dict(y=OWN, test=OWN_TEST),
        LOOKS | dict(patience=1, lr=[0.01, 0.5, 1.0], epochs=8, stops="plateau"),
        LOOKS | dict(stop_fit=1, y=HALVES, lr=[0.1, 0.001, 0.05], epochs=12, stops="fit"),
        LOOKS | dict(stop_loss=0.9, epochs=8, stops="loss"),
        LOOKS | dict(frozen=("fc1.weight", "head.bias"), weight_decay=[0.0, 0.1, 0.2]),
        LOOKS | dict(loss="squared", optimizer="momentum", lr=0.01, schedule="cosine"),
        LOOKS | dict(loss="squared", y=ONE_HOT, test=(TEST[0], torch.eye(3, dtype=torch.float64)[TEST[1]])),
    ],
    ids=["looks", "own labels", "patience", "stop_fit", "stop_loss", "frozen", "squared", "targets"],
)
def test_fit_many_looks_there(options):
    same(lambda on: many(on, **options))


def test_fit_many_brings_the_data_to_the_models():
    with fake_cuda.installed():
        nets = [mlp(lambda net: net.cuda(), seed=seed) for seed in range(2)]
        for y, test in ((LABELS, TEST), (OWN[:2], (TEST[0], OWN_TEST[1][:2]))):
            train.fit_many(nets, PHI, y, epochs=1, seeds=[0, 1], test=test, stop_fit=1)
        assert {p.device.type for net in nets for p in net.parameters()} == {"cuda"}


@pytest.mark.parametrize("there", [False, True], ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(epochs=0), "epochs should be above 0, but is 0"),
        (dict(batch_size=0), "batch_size should be above 0, but is 0"),
        (dict(batch_size=-4), "batch_size should be above 0, but is -4"),
        (dict(lr=-0.1), "lr should be above 0, but is -0.1"),
        (dict(lr=float("nan")), "lr should be above 0, but is nan"),
        (dict(frozen=True), "parameters that require gradients, but has none to train"),
        (dict(rows=0), "one row per sample each, but have 0 and 0 rows"),
    ],
)
def test_fit_and_fit_many_refuse_the_same_in_the_same_words(wrong, message, there):
    options = dict(epochs=1, batch_size=4, lr=0.1) | wrong
    rows, frozen = options.pop("rows", 12), options.pop("frozen", False)
    with fake_cuda.installed() if there else nullcontext():
        nets = [mlp(lambda net: net.to("cuda") if there else net).requires_grad_(not frozen) for _ in "ab"]
        with pytest.raises(ValueError, match=message):
            train.fit(nets[0], PHI[:rows], LABELS[:rows], **options)
        with pytest.raises(ValueError, match=message):
            train.fit_many(nets, PHI[:rows], LABELS[:rows], seeds=range(2), **options)


def test_fit_many_looks_at_the_rate_of_every_model():
    nets = [mlp(lambda net: net) for _ in range(3)]
    for rates in ([0.1, 0.2, 0.0], [0.1, float("nan"), 0.2]):
        with pytest.raises(ValueError, match="lr should be above 0"):
            train.fit_many(nets, PHI, LABELS, epochs=1, seeds=range(3), lr=rates)
    with pytest.raises(ValueError, match="have shape"):
        train.fit_many(nets, PHI, LABELS[:5], epochs=1, seeds=range(3))


def test_extract_from_both_sides():
    expected = features.extract(cnn(lambda net: net), IMAGES)
    with fake_cuda.installed():
        net = cnn(lambda net: net.cuda())
        for x in (IMAGES.cuda(), IMAGES):  # also from a set that does not fit on the GPU
            found = features.extract(net, x, batch_size=2)
            torch.testing.assert_close({name: rows.cpu() for name, rows in found.items()}, expected)


IDS = torch.randint(0, 50, (7, 6), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS).index_fill_(1, torch.tensor([4, 5]), 0)
PIXELS = drawn(4, 3, 32, 32, dtype=torch.float32)
VIT = ["encoder.layers.encoder_layer_0"]
REPEATED = ["act#3", "act#1", "act#mean"]
PADDED = {
    "src": drawn(5, 4, 8, dtype=torch.float32),
    "src_key_padding_mask": torch.arange(4).expand(5, 4) > 2,
}
STRANGERS = {
    "language": strangers.Language,
    "fields": lambda: strangers.Language(kind=strangers.Fields),
    "vit": strangers.vit,
    "swin": strangers.swin,
    "unet": strangers.Unet,
    "recurrent": strangers.Recurrent,
    "speech": strangers.Speech,
    "transformer": lambda: torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False
    ),
    "cells": lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()),
}


def stranger(on, name):
    with Seeded(0):
        return on(STRANGERS[name]())


def taken(name, x, *layers, measure=features.extract, **options):
    """Called with everything on one side: the network's layers for ``x``, which ``on`` has put there."""
    return lambda on: measure(stranger(on, name), x(on), *layers, **options)


def named(on):
    return {"input_ids": on(IDS), "attention_mask": on(MASK)}


def pixels(on):
    return on(PIXELS)


EXTRACTS = {
    "a dict": taken("language", named, batch_size=3),
    "a tuple": taken("fields", lambda on: (on(IDS), on(MASK)), batch_size=3),
    "a dict on the CPU": taken("language", lambda on: {"input_ids": IDS, "attention_mask": MASK}),
    "arrays": taken("language", lambda on: {"input_ids": IDS.numpy(), "attention_mask": MASK.numpy()}),
    "a loader": taken("language", lambda on: DataLoader(TensorDataset(IDS, IDS[:, 0]), batch_size=3)),
    "batches that are there": taken("language", lambda on: [named(on), {"input_ids": on(IDS[:2])}]),
    "the first token": taken("language", named, "embeddings", pool="token"),
    "the class token": taken("vit", pixels, VIT, pool="token"),
    "the mean of tokens": taken("vit", pixels, VIT, pool="mean", batch_size=3),
    "the largest of tokens": taken("vit", pixels, VIT, pool="max"),
    "the mean of positions": taken("unet", pixels, pool="mean"),
    "the largest of positions": taken("unet", pixels, pool="max", batch_size=3),
    "channels last": taken("swin", pixels, ["features.1.0"], pool="mean"),
    "calls of a layer": taken("recurrent", lambda on: on(PHI[:, :3]), REPEATED, batch_size=5),
    "a recurrent layer": taken("speech", lambda on: on(IDS), pool="mean", batch_size=3),
    "a transformer with padding": taken("transformer", lambda on: {k: on(v) for k, v in PADDED.items()}),
    "rates": taken("cells", pixels, measure=features.activation_rates, batch_size=3),
    "rates of channels": taken("cells", pixels, ["1"], measure=features.activation_rates, pool="mean"),
    "rates of arrays": taken("cells", lambda on: PIXELS.numpy(), measure=features.activation_rates),
    "rates from a loader": taken(
        "cells", lambda on: DataLoader(PIXELS, batch_size=3), measure=features.activation_rates, pool="max"
    ),
    "rates of calls": taken(
        "recurrent", lambda on: on(PHI[:, :3]), REPEATED, measure=features.activation_rates
    ),
}


# A recurrent layer that is moved to a GPU asks whether this torch was built for one.
@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
@pytest.mark.parametrize("name", EXTRACTS)
def test_extract_from_models_of_others(name):
    """Computed there, brought to the CPU."""
    expected, found, away = both(EXTRACTS[name])
    assert len(away) == sum(isinstance(leaf, Tensor) for leaf in expected)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "name, x",
    [("language", named), ("recurrent", lambda on: on(PHI[:, :3])), ("vit", pixels), ("unet", pixels)],
)
def test_the_list_of_layers(name, x):
    expected = str(features.layers(stranger(lambda net: net, name), x(lambda value: value)))
    with fake_cuda.installed():
        assert str(features.layers(stranger(lambda net: net.cuda(), name), x(lambda v: v.cuda()))) == expected


def test_extract_to_files(tmp_path):
    with fake_cuda.installed():
        paths = features.extract(mlp(lambda net: net.cuda()), PHI.cuda(), out=tmp_path)
        grid = kernels.cka_grid(list(paths.values()))
    assert grid.shape == (2, 2)


SMALL = {
    "mlp": dict(inputs=3 * 32 * 32, outputs=2, width=4),
    "rbf": dict(inputs=3 * 32 * 32, units=4),
    "simple_cnn": dict(filters=4, units=4),
    "preact_resnet18": dict(k=2),
    "resnet11": dict(width=4),
    "wide_resnet": dict(blocks=1, width=1),
    "t2t_vit": dict(depth=7, image_size=32),
    "vit_small": dict(depth=1, width=12),
    "vit_b_16": dict(image_size=32),
}


# Their first weights alone would take longer to draw than all the rest: they run on zeros.
LARGE = {"resnet50", "resnet101", "imagenet_vgg16", "imagenet_vgg19", "vit_b_16"}


@pytest.mark.parametrize("name", models.NAMES)
def test_every_model(name):
    x = drawn(2, 3, 32, 32, dtype=torch.float32)
    with torch.device("meta" if name in LARGE else "cpu"):
        net = models.build(name, **SMALL.get(name, {})).eval()
    if name in LARGE:
        net.to_empty(device="cpu")
        for value in net.state_dict().values():
            value.zero_()
    with torch.no_grad():
        expected = net(x)
        with fake_cuda.installed():
            net.to("cuda")
            found = net(x.cuda())
            assert found.device.type == "cuda"
            found = found.cpu()
            hidden = features.extract(net, x.cuda(), models.probed_layers(net)[-1:])
            assert [len(rows) for rows in hidden.values()] == [2]
    torch.testing.assert_close(found, expected)


def filled(build):
    """A network whose weights are all the same, which takes no time to draw."""
    with torch.device("meta"):
        net = build()
    net.to_empty(device="cpu")
    for value in net.state_dict().values():
        value.fill_(0.001)
    return net.eval()


@pytest.mark.parametrize("name", weights.REGISTRY)
def test_networks_with_weights_from_registries(name):
    known = weights.REGISTRY[name]
    module, prepare = filled(known.build), replace(known.preprocess, size=64)
    x = PIXELS[:2].sigmoid()
    net = weights.Pretrained(module, prepare, name, "", "", "", known.complete, known.build)
    expected = imani.last_hidden(net, x)
    with torch.no_grad():
        same(lambda on: [prepare(on(x)), prepare(on(x[:, :1])), on(module)(prepare(on(x)))])
    with fake_cuda.installed():
        for images in (x, x.cuda()):
            found = imani.last_hidden(net, images, device="cuda")
            assert found.device == images.device
            torch.testing.assert_close(found.cpu(), expected)
            if name != "mobilenet_v2":  # whose mean over positions is not a module
                assert imani.last_map(net, images, device="cuda").device == images.device


def test_preprocessing_at_its_own_size():
    same(lambda on: weights.REGISTRY["vgg16"].preprocess(on(PIXELS[:1].sigmoid())))


@pytest.mark.parametrize(
    "name", ["mlp", "simple_cnn", "preact_resnet18", "resnet11", "t2t_vit", "vit_small", "rbf"]
)
def test_models_learn_there(name):
    """Their gradients, and whatever they do only in training."""
    x = drawn(4, 3, 32, 32, dtype=torch.float32)
    with fake_cuda.installed():
        net = models.build(name, **SMALL[name]).to("cuda")
        outputs = net(x[:1].cuda()).shape[1]
        if outputs == 1:
            train.fit(net, x, torch.tensor([1.0, -1, 1, -1]), loss="squared", epochs=1)
        else:
            train.fit(net, x, torch.arange(4) % 2, epochs=1)
        assert {p.device.type for p in net.parameters()} == {"cuda"}


def test_transfer_between_networks():
    def run(on):
        source, target = (
            on(models.SimpleCNN((3, 8, 8), 2, convs=2, filters=20, units=4, seed=seed)) for seed in (0, 1)
        )
        covariance = maennel.filter_covariance(source, "conv0")
        return [
            covariance,
            *maennel.copy_layers(source, target, 1).parameters(),
            *models.replace_head(source, 3).parameters(),
            *maennel.sample_filters(source, "conv0", covariance).parameters(),
            *maennel.eigenvector_filters(source, "conv0", covariance).parameters(),
            *maennel.rescale(source, maennel.norms(target)).parameters(),
        ]

    same(run)


def test_sources_and_targets():
    def run(on):
        net = on(models.SimpleCNN((3, 8, 8), 2, convs=1, filters=4, units=4, seed=0))
        seen = {name: (on(IMAGES.float() + k), on(torch.arange(5) % 2)) for k, name in enumerate("ab")}
        how = {"source": {"epochs": 1}, "target": {"epochs": 1}}
        options = dict(classes=2, **how, seed=0, labels_seed=0)
        rows = negative_transfer.transfers(net, "dense_relu", seen, seen, **options)
        return [value for row in rows for value in row.values() if not isinstance(value, str)]

    same(run)


def test_devices_by_name():
    with fake_cuda.installed():
        assert devices.device("auto").type == devices.device("cuda").type == "cuda"
        assert devices.device("cuda:0").index == 0
        with pytest.raises(ValueError, match="there are 1 GPUs"):
            devices.device("cuda:1")


def test_a_mistake_would_be_found():
    """What these tests rest on: a measure that forgets the device fails under the double."""

    def forgetful(x):
        return x * torch.ones(len(x))

    with pytest.raises(RuntimeError, match="same device"):
        both(lambda on: forgetful(on(Y)))
