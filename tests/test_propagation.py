"""Lou, Mingard, Hayou, appendix A, theorems 1 and 2, corollary 1: exact recursions and their exponents."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from repalign.propagation import (
    backward_information,
    correlations,
    equilibrium_layer,
    forward_information,
    gaps,
)


def g(c):
    """Equation (3) as it is printed."""
    return (c * math.asin(c) + math.sqrt(1 - c * c)) / math.pi + c / 2


def slope(x, y):
    return np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0]


@given(st.floats(-1, 1), st.integers(1, 40))
def test_correlations_are_the_printed_recursion(c0, depth):
    wanted = [c0]
    for _ in range(depth):
        wanted.append(min(1.0, g(wanted[-1])))
    c = correlations(c0, depth)
    assert c.shape == (depth + 1,)
    # g′ is at most 1, so the rounding of the printed form adds up, and no more.
    np.testing.assert_allclose(c, wanted, rtol=0, atol=1e-14 * depth)
    assert (c.diff() >= 0).all()
    np.testing.assert_allclose(forward_information(c0, depth), c[:-1] / 2, atol=1e-15)


@given(st.floats(-1, 1))
def test_one_layer_is_the_gaussian_average_it_stands_for(c0):
    """2 E[φ(z)φ(z′)] and 2 E[φ′(z)φ′(z′)] over the angle of a Gaussian pair with correlation c₀."""
    theta = math.acos(c0)
    integral = quad(lambda a: math.cos(a) * math.cos(a - theta), theta - math.pi / 2, math.pi / 2)[0]
    assert float(correlations(c0, 1)[1]) == pytest.approx(2 / math.pi * integral, abs=1e-9)
    # Near −1 an angle has half of the digits of its cosine.
    assert float(backward_information(c0, 2)[0]) == pytest.approx((math.pi - theta) / math.pi, abs=1e-7)


def test_correlations_against_neural_tangents():
    """The kernel of the same infinitely wide network, from its own library (float32)."""
    stax = pytest.importorskip("neural_tangents.stax", exc_type=ImportError)
    layer = [stax.Relu(), stax.Dense(1, W_std=math.sqrt(2))]
    wanted = correlations(0.6, 5).numpy()
    for depth in (1, 2, 5):
        kernel = stax.serial(stax.Dense(1, W_std=math.sqrt(2)), *layer * depth)[2]
        k = np.asarray(kernel(np.array([[1.0, 0.0], [0.6, 0.8]]), None, "nngp"))
        assert k[0, 1] / k[0, 0] == pytest.approx(wanted[depth], abs=1e-5)


@given(st.floats(-0.999, 1), st.integers(1, 30))
def test_backward_is_the_product_of_slopes(c0, depth):
    c = correlations(c0, depth).numpy()
    step = 0.5 + np.arcsin(c[: depth - 1]) / math.pi
    wanted = [np.prod(step[layer:]) for layer in range(depth)]
    # arcsin of a rounded c has half of the digits near 1; the package does not go through c.
    np.testing.assert_allclose(backward_information(c0, depth), wanted, rtol=1e-6)
    assert backward_information(c0, depth)[-1] == 1


def exact_gap_step(gap):
    """1 − g(1 − gap) in rational arithmetic: series of θ² in the gap, then of sin θ − θ cos θ."""
    q, term = Fraction(0), Fraction(1)
    for k in range(1, 30):
        term *= 2 * gap
        q += 2 * term / (k * k * math.comb(2 * k, k))
    h = sum(Fraction((-1) ** (k + 1) * 2 * k, math.factorial(2 * k + 1)) * q ** (k - 1) for k in range(1, 20))
    # θ³ = q·√q, the only irrational part: to 40 digits by an integer root.
    root = Fraction(math.isqrt(int(q * 10**120)), 10**60)
    return gap - q * root * h / Fraction(31415926535897932384626433832795028842, 10**37)


@pytest.mark.parametrize("gap", [0.4, 1e-2, 1e-6, 1e-12])
def test_one_step_to_the_last_digit(gap):
    start = Fraction(gap)
    lost = float(start - exact_gap_step(start))
    value = gaps(gap, 1)
    assert float(value[1]) == pytest.approx(float(exact_gap_step(start)), rel=3e-16)
    if gap > 1e-3:
        assert float(value[0] - value[1]) == pytest.approx(lost, rel=1e-12)


def test_a_million_layers_from_a_gap_of_1e_12():
    """No digit is lost: the same from numpy's loop and the float loop, and 1/√gap grows linearly."""
    depth = 10**6
    e = gaps(1e-12, depth).numpy()
    assert (np.diff(e) < 0).all()
    # d(gap^−½)/dl = √2/3π, up to terms that are 1e-6 here.
    grown = e[-1] ** -0.5 - e[0] ** -0.5
    assert grown / depth == pytest.approx(math.sqrt(2) / (3 * math.pi), rel=1e-5)
    many = gaps(np.full(12, 0.9), 2000)
    np.testing.assert_allclose(many[3], gaps(0.9, 2000), rtol=1e-13)


def test_theorem_1_forward_loss_falls_as_the_square():
    layers = np.unique(np.logspace(3, 6, 40).astype(int))
    for c0 in (-1.0, 0.1, 0.9):
        loss = gaps(1 - c0, 10**6).numpy()[layers - 1] / 2
        assert slope(layers, loss) == pytest.approx(-2, abs=0.05)
    assert loss[-1] * 10**12 == pytest.approx(9 * math.pi**2 / 4, rel=0.01)


def test_theorem_2_backward_information():
    depth = 10**6
    back = backward_information(0.1, depth).numpy()
    early = np.unique(np.logspace(3, 4.5, 30).astype(int))
    assert slope(early, back[early - 1]) == pytest.approx(3, abs=0.05)
    # At a fixed early layer, over depth.
    depths = np.logspace(4, 6, 9).astype(int)
    at_100 = back[99] / back[depths - 1]
    assert slope(depths, at_100) == pytest.approx(-3, abs=0.05)
    # l = αL: the distance to α³ is Θ(log L / L).
    alpha = 0.5
    distance = [abs(back[int(alpha * n) - 1] / back[n - 1] - alpha**3) for n in depths]
    assert slope(depths, distance / np.log(depths)) == pytest.approx(-1, abs=0.1)


def test_corollary_1_and_how_far_the_paper_s_depths_are_from_it():
    deep = np.unique(np.logspace(4, 6, 15).astype(int))
    for c0 in (0.0, 0.1, 0.5):
        assert slope(deep, equilibrium_layer(c0, deep)) == pytest.approx(0.6, abs=0.02)
    shallow = np.arange(10, 101, 10)
    assert slope(shallow, equilibrium_layer(0.2, shallow)) == pytest.approx(0.80, abs=0.03)


@given(st.floats(-1, 0.9), st.integers(2, 200))
def test_equilibrium_is_where_the_curves_cross(c0, depth):
    layer = float(equilibrium_layer(c0, depth))
    loss = gaps(1 - c0, depth).numpy()[:-1] / 2
    back = backward_information(c0, depth).numpy()
    assert 1 <= layer <= depth
    before, after = math.floor(layer - 1e-9), math.ceil(layer + 1e-9)
    if layer > 1:
        assert loss[max(before, 1) - 1] >= back[max(before, 1) - 1] * (1 - 1e-9)
    if after <= depth:
        assert loss[after - 1] <= back[after - 1] * (1 + 1e-9)


def test_shapes_dtypes_and_numpy():
    assert correlations(torch.zeros(2, 3), 4).shape == (2, 3, 5)
    assert correlations(torch.zeros(2), 4).dtype == torch.float32
    assert correlations(0.5, 4).dtype == torch.float64
    assert isinstance(correlations(np.zeros(2), 3), np.ndarray)
    assert equilibrium_layer(torch.zeros(2).double(), torch.tensor([10, 20, 30])).shape == (2, 3)
    assert equilibrium_layer(0.0, 50).shape == ()
    torch.testing.assert_close(
        correlations(torch.linspace(-1, 1, 30).double(), 60)[7],
        correlations(float(torch.linspace(-1, 1, 30)[7]), 60),
    )
    assert (gaps(0.0, 50) == 0).all()
    assert backward_information(1.0, 5).tolist() == [1, 1, 1, 1, 1]
    assert backward_information(-1.0, 5)[0] == 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: correlations(1.1, 3), r"c0 should be in \[-1, 1\], but is 1.1"),
        (lambda: correlations(math.nan, 3), r"c0 should be in"),
        (lambda: correlations(np.array([0.5, np.inf]), 3), r"c0 should be in"),
        (lambda: correlations(torch.zeros(0), 3), r"c0 should be in"),
        (lambda: gaps(-1e-9, 3), r"gap0 should be in \[0, 2\]"),
        (lambda: correlations(0.1, 0), r"at least 1, but is 0"),
        (lambda: backward_information(0.1, 2.5), r"whole number of layers"),
        (lambda: equilibrium_layer(1.0, 10), r"c0 should be below 1"),
        (lambda: equilibrium_layer(0.0, np.array([10, 0])), r"depth should be a whole number"),
    ],
)
def test_bad_input_says_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
