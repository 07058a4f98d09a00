"""Calls every public measure, with jaxtyping and beartype checking the annotations: run by test_shapes.

A script and not a test: the checks would otherwise speak before the package's own errors do. It fails when a
shape or type is not the annotated one, or when a public function, method or result was never seen.
"""

import importlib
import inspect
import sys
import typing

import torch
from beartype.door import is_bearable
from jaxtyping import install_import_hook, jaxtyped

ROOMS = (
    "alignment",
    "collapse",
    "covariance",
    "kernels",
    "linear",
    "neighbors",
    "probes",
    "propagation",
    "tangent",
)
NAMES = [f"repalign.{room}" for room in ROOMS]

with install_import_hook(NAMES, "beartype.beartype"):
    alignment, collapse, covariance, kernels, linear, neighbors, probes, propagation, tangent = map(
        importlib.import_module, NAMES
    )


def public_functions():
    """The code of every public function, and of every public method of a public class, by its name."""
    found = {}
    for module in map(importlib.import_module, NAMES):
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if name.startswith("_") or not getattr(value, "__module__", "").startswith(module.__name__):
                continue
            if inspect.isclass(value):
                CLASSES.add(value)
                parts = {
                    f"{name}.{key}": part for key, part in vars(value).items() if not key.startswith("_")
                }
            else:
                parts = {name: value}
            for key, part in parts.items():
                part = part.fget if isinstance(part, property) else part
                if inspect.isfunction(part):
                    found[inspect.unwrap(part).__code__] = f"{module.__name__}.{key}"
    return found


CLASSES: set[type] = set()
FUNCTIONS = public_functions()
called, results = set(), []


def watch(frame, event, value):
    """What was called, and which named tuples came out: those are not checked by the hook."""
    if frame.f_code in FUNCTIONS and event == "return":
        called.add(frame.f_code)
        results.extend(value.values() if isinstance(value, dict) else [value])


def normal(*shape):
    return torch.randn(*shape, generator=G)


G = torch.Generator().manual_seed(0)


def measure_alignment():
    for n, d in ((30, 4), (4, 30)):
        phi = alignment.unit_rows(normal(n, d), constant=True)
        for y in (normal(n), normal(n, 3), normal(n, 3, 2)):
            for s in (alignment.spectrum(phi, y), alignment.kernel_spectrum(phi @ phi.mT, y)):
                s.alignment(0.5), s.alignment(torch.rand(7)), s.curve(), s.curve(torch.rand(5)), s.area()
                s.eigenvalues, s.cumulative(), s.cumulative(each=True)
                alignment.gd_loss(s, 0.01, 5), alignment.gd_loss(s, 0.01, torch.arange(4))
                for samples in (5, torch.arange(4)):
                    alignment.predicted_error(s.eigenvalues, s.power, samples, ridge=0.1, noise=0.5)
                    alignment.predicted_error(s.eigenvalues, s.power, samples, outside=s.residual)
            alignment.spectrum(phi, y, top=2), alignment.spectrum([(phi[:2], y[:2]), (phi[2:], y[2:])])
            alignment.alignment(phi, y, 0.5), alignment.alignment(phi, y, torch.rand(2, 3))
            alignment.alignment_curve(phi, y), alignment.alignment_curve(phi, y, torch.rand(5))
            alignment.cumulative_power(phi, y), alignment.cumulative_power(phi @ phi.mT, y)
        alignment.pair_spectra(phi @ phi.mT, torch.arange(n) % 3)
    alignment.iteration_bound(1.0, 0.5, 0.1, 1.0)
    alignment.iteration_bound(torch.tensor([1.0, 2.0]), 0.5, 0.1, 1.0)


def measure_covariance():
    a, b = (m @ m.mT + torch.eye(8) for m in (normal(8, 8), normal(8, 8)))
    covariance.misalignment(a, b), covariance.misalignment_in(torch.eye(8), b)
    covariance.misalignment_floor(8, 20), covariance.tilt(covariance.transfer_function(a, b))
    covariance.overlap(a, b, 3), covariance.misalignment_in(covariance.random_basis(8, seed=0), b.double())
    covariance.misalignment_scores(a, normal(20, 8)), covariance.misalignment_scores(a, normal(20, 2, 2, 2))
    for images in (normal(3, 2, 6, 7), torch.randint(0, 256, (3, 2, 6, 7), dtype=torch.uint8)):
        covariance.patch_covariance(images, 2), covariance.patch_covariance(images, 2, stride=2, center=False)
    covariance.filter_covariance(normal(20, 2, 2, 2)), covariance.filter_covariance(normal(20, 8))
    covariance.eigenvector_agreement(a, b), covariance.rotation_error(torch.tensor([1.0, 2.0]), 10)


def measure_kernels():
    x, y = normal(10, 3), normal(10, 20)
    K, L = kernels.gram(x), kernels.gram(y)
    for debiased in (False, True):
        kernels.center(K, debiased=debiased), kernels.hsic(K, L, debiased=debiased)
        kernels.cka(x, y, debiased)
        for side in ("gram", "features"):
            kernels.cka_grid(torch.stack([x, -x]), debiased=debiased, side=side)
            kernels.cka_grid([x, y, lambda: x], [y, x.numpy()], debiased=debiased, side=side)
    kernels.kta(K, L)
    kernels.cka_floor(x, y, draws=3)
    for m in (K, x, torch.eye(3, dtype=torch.int64), normal(90, 80)):
        kernels.stable_rank(m), kernels.stable_rank(m, features=True), kernels.effective_rank(m)
    kernels.power_law(L), kernels.power_law(y, features=True, first=2, last=9)


def measure_neighbors():
    neighbors.mutual_neighbors(normal(10, 3), normal(10, 20), 2)
    neighbors.mutual_neighbors(normal(30, 3).double(), normal(30, 3), cosine=True)


def measure_collapse():
    phi, y = normal(20, 4), torch.arange(20) % 3
    collapse.collapse(phi, y), collapse.collapse(phi, y, classifier=(normal(3, 4), normal(3)))


def measure_linear():
    data, y = (normal(20, 3), torch.ones(20), normal(9, 3), torch.ones(9)), torch.arange(4)
    for descend in (linear.squared_descent, linear.logistic_descent):
        descend(*data, eta=0.1, steps=y), descend(*data, eta=(0.1, 0.2), steps=y)
        linear.norm_at(descend(*data, eta=0.1, steps=y), [0.1, 0.9])


def measure_probes():
    features, labels = normal(3, 20, 4), torch.arange(20) % 3
    for method in (dict(), dict(method="adam", epochs=1), dict(method="ridge")):
        found = probes.fit_probes(features, labels, **method)
        found.scores(features[:, :7]), found.predict(features[:, :7])
        found.one(1).scores(features[1]), found.one(1).predict(features[1])
    probes.fit_probes([features[0], lambda: features[1]], labels, epochs=1)
    fitted = probes.fit_probes(features, labels, test=(features[:, :9], labels[:9]))
    fitted.one(0), fitted.predict(features)
    probes.fit_probes({"narrow": features[0, :, :2], "wide": features[1]}, labels)
    triplets = torch.tensor([[0, 1, 2], [3, 4, 5]])
    for x in (normal(6, 5), normal(6, 2, 3, 3)):
        probes.planes(x, triplets, resolution=3), list(probes.plane_batches(x, triplets, resolution=3))
    classes = torch.randint(0, 3, (4, 30), generator=G)
    probes.decision_region_similarity(classes), probes.decision_region_similarity(classes, classes[:2])


def measure_propagation():
    for c in (0.1, torch.tensor(0.1), torch.rand(3, generator=G), torch.rand(2, 3, generator=G)):
        for name in ("correlations", "gaps", "forward_information", "backward_information"):
            getattr(propagation, name)(c, 30)
        propagation.equilibrium_layer(c, 30), propagation.equilibrium_layer(c, torch.tensor([3, 30]))


def measure_tangent():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    x, y, w = normal(7, 3), torch.arange(7) % 2, normal(7, 2)
    size = sum(p.numel() for p in model.parameters())
    for outputs in ("all", "trace"):
        tangent.layer_kernels(model, x, outputs), tangent.ntk(model, x, outputs)
        tangent.forward_backward(model, x, outputs)
        for labels in (y, w):
            (
                tangent.label_alignment(model, x, labels, outputs),
                tangent.alignment_terms(model, x, labels, outputs),
            )
    tangent.fisher_spectrum(model, x), tangent.fisher_spectrum(model, x, 3)
    tangent.fisher_correlation(model, x, y)
    tangent.hessian_vector(model, x, w, normal(size)), tangent.hessian_top(model, x, w, 2)
    tangent.hessian_vector(model, x, w, {name: p.detach() for name, p in model.named_parameters()})
    tangent.layer_energy(model, normal(size)), tangent.layer_energy(model, normal(4, size))
    tangent.label_alignment(model, x, y, create_graph=True)
    tangent.push(model, x, tangent.pull(model, x, w))
    tangent.push(model, x, {name: p.detach() for name, p in model.named_parameters()})


def check_fields(result):
    """Every field of a named tuple is what its class says, with one meaning for each letter."""
    hints = typing.get_type_hints(type(result))
    with jaxtyped("context"):
        for name, hint in hints.items():
            value = getattr(result, name)
            assert is_bearable(value, hint), f"{type(result).__name__}.{name} is {value!r}, not {hint}"


for room in ROOMS:
    sys.setprofile(watch)
    globals()[f"measure_{room}"]()
    sys.setprofile(None)
missed = [name for code, name in FUNCTIONS.items() if code not in called]
assert not missed, f"public, but not called here: {', '.join(missed)}"
tuples = [result for result in results if type(result) in CLASSES]
unseen = CLASSES - {type(result) for result in tuples}
assert not unseen, f"public, but no result here: {', '.join(c.__name__ for c in unseen)}"
for one in tuples:
    check_fields(one)
refused = (
    lambda: alignment.unit_rows(torch.ones(3)),
    lambda: collapse.collapse(torch.ones(3), torch.arange(3)),
    lambda: covariance.misalignment(torch.ones(3), torch.ones(3)),
    lambda: kernels.gram(torch.ones(3)),
    lambda: linear.squared_descent(*[torch.ones(3)] * 4, eta=0.1, steps=torch.arange(2)),
    lambda: neighbors.mutual_neighbors(torch.ones(3), torch.ones(3)),
    lambda: probes.planes(torch.eye(3), torch.zeros(1, 4, dtype=torch.int64)),
    lambda: propagation.correlations("0", 3),
    lambda: tangent.ntk("model", torch.ones(3)),
    lambda: check_fields(alignment.Curve(torch.ones(3), torch.ones(4))),
)
for call in refused:
    try:
        call()
    except Exception as error:
        print(type(error).__name__)
