"""Neural collapse: against the definitions written out, what changes nothing, and the end of the road."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repalign.collapse import collapse
from repalign.covariance import random_basis


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(seed=0, n=60, d=5, classes=4):
    y = torch.arange(n) % classes
    y = torch.where(torch.arange(n) < n // 3, 0, y)  # unbalanced
    return normal(n, d, seed=seed) + 2 * normal(classes, d, seed=seed + 1)[y], y


def written_out(phi, y):
    """Matrices and loops, as the papers define them."""
    classes = y.unique().tolist()
    means = torch.stack([phi[y == c].mean(0) for c in classes])
    center = means.mean(0)
    within = sum((v - means[classes.index(c)]).outer(v - means[classes.index(c)])
                 for v, c in zip(phi, y.tolist(), strict=True)) / len(phi)  # fmt: skip
    between = sum((m - center).outer(m - center) for m in means) / len(classes)
    nc1 = torch.trace(within @ torch.linalg.pinv(between, rtol=1e-10)) / len(classes)
    var = [(phi[y == c] - means[i]).square().sum(1).mean() for i, c in enumerate(classes)]
    pairs = list(itertools.combinations(range(len(classes)), 2))
    cdnv = sum((var[a] + var[b]) / (2 * (means[a] - means[b]).square().sum()) for a, b in pairs) / len(pairs)
    length = [torch.linalg.vector_norm(m - center) for m in means]
    cosines = [(means[a] - center) @ (means[b] - center) / (length[a] * length[b]) for a, b in pairs]
    length, cosines = torch.stack(length), torch.stack(cosines)
    norms = length.std(correction=0) / length.mean()
    return nc1, cdnv, norms, (cosines + 1 / (len(classes) - 1)).abs().mean()


@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(1, 8))
def test_the_definitions(seed, classes, d):
    phi, y = layer(seed, d=d, classes=classes)
    for offset in (0.0, 50.0):
        found = collapse(phi + offset, y)
        for value, expected in zip(found, written_out(phi, y), strict=False):
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-10)
        assert found.dual is None
        assert found.nearest is None


def test_rotation_scale_and_shift_change_nothing():
    phi, y = layer()
    weight, bias = normal(4, 5, seed=5), normal(4, seed=6)
    turn = random_basis(5, seed=3)
    one = collapse(phi, y, classifier=(weight, bias))
    # The same scores from the moved features.
    moved_weight = weight @ turn / 3
    other = collapse(3 * phi @ turn + 1, y, classifier=(moved_weight, bias - moved_weight.sum(1)))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    # NC1 does not see any invertible map either.
    bent = collapse(phi @ (torch.eye(5) + 0.3 * normal(5, 5, seed=9)), y)
    other_classes = collapse(phi, 10 * y + 3)
    full = collapse(phi[:, :3], y)
    stretched = collapse(phi[:, :3] @ torch.diag(torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64)), y)
    torch.testing.assert_close(full.nc1, stretched.nc1)
    torch.testing.assert_close(other_classes.nc1, one.nc1)
    assert float(bent.cdnv) != pytest.approx(float(one.cdnv))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_simplex_has_collapsed(classes):
    y = torch.arange(3 * classes) % classes
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    found = collapse(corners[y] @ random_basis(classes, seed=0) + 4, y)
    torch.testing.assert_close(torch.stack(found[:4]), torch.zeros(4).double(), rtol=0, atol=1e-12)
    turned = corners @ random_basis(classes, seed=0)
    ideal = collapse(turned[y], y, classifier=(7 * turned, torch.zeros(classes).double()))
    torch.testing.assert_close(ideal.dual, torch.zeros(()).double(), rtol=0, atol=1e-12)
    assert float(ideal.nearest) == 0


def test_the_classifier_s_part():
    phi, y = layer()
    weight, bias = normal(4, 5, seed=5), normal(4, seed=6)
    found = collapse(phi, y, classifier=(weight, bias))
    means = torch.stack([phi[y == c].mean(0) for c in range(4)])
    centered = means - means.mean(0)
    dual = (weight / weight.norm() - centered / centered.norm()).square().sum()
    torch.testing.assert_close(found.dual, dual)
    decided = (phi @ weight.T + bias).argmax(1)
    nearest = torch.stack([(phi - m).square().sum(1) for m in means]).argmin(0)
    assert float(found.nearest) == pytest.approx(float((decided != nearest).double().mean()))
    assert 0 < float(found.nearest) < 1


def test_what_is_spread_shrinks_with_the_spread():
    phi, y = layer()
    means = torch.stack([phi[y == c].mean(0) for c in range(4)])
    whole = collapse(phi, y)
    half = collapse(means[y] + (phi - means[y]) / 2, y)
    torch.testing.assert_close(half.nc1, whole.nc1 / 4)
    torch.testing.assert_close(half.cdnv, whole.cdnv / 4)
    torch.testing.assert_close(half.norms, whole.norms)


def test_kinds_and_precision():
    phi, y = layer()
    found, arrays = collapse(phi.float(), y), collapse(phi.float().numpy(), y.numpy())
    assert found.nc1.dtype == torch.float32
    assert isinstance(arrays.nc1, np.ndarray)
    assert float(arrays.nc1) == float(found.nc1)


PHI, Y = layer()
WEIGHT, BIAS = normal(4, 5), normal(4)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: collapse(PHI, Y * 0), "two classes or more, but holds 1"),
        (lambda: collapse(PHI, Y[:5]), "60 and 5 rows"),
        (lambda: collapse(PHI, Y.double()), r"integers, but is torch\.float64"),
        (lambda: collapse(PHI * 0, Y), "the means of all classes are the same"),
        (lambda: collapse(PHI, Y, classifier=(WEIGHT.T, BIAS)), r"but they are \(5, 4\) and \(4,\)"),
        (lambda: collapse(PHI, Y + 1, classifier=(WEIGHT, BIAS)), "4 classes up to 4"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
