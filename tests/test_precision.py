"""One rule for all measures: half precision in, float32 out, and nothing overflows on the way."""

import inspect

import numpy as np
import pytest
import torch

from repalign import alignment, covariance, kernels, linear, propagation
from repalign.papers import imani


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(d):
    q = torch.linalg.qr(normal(d, d)).Q
    m = (q * torch.linspace(1, 3, d).double()) @ q.mT
    return (m + m.mT) / 2


# Large: norms and products of these overflow float16, whose largest number is 65504.
PHI, Y = 3000 * normal(40, 6), 500 * normal(40, 2, seed=1)
SIGNS = torch.tensor([1.0, -1.0] * 20)
CLASSES, TAU = torch.arange(40) % 3, torch.tensor([0.0, 2000.0])
A, B, K = 10_000 * symmetric(4), 5000 * symmetric(4).flip(0, 1), 10_000 * symmetric(40)
STEPS = torch.tensor([0, 3, 100_000])
START = torch.tensor([0.25, 0.5])

# For every public measure: tensors, all of one precision, and what is done with them.
CALLS = {
    alignment.unit_rows: ([PHI], alignment.unit_rows),
    alignment.spectrum: ([PHI, Y], alignment.spectrum),
    alignment.Spectrum.area: ([PHI, Y], lambda x, y: alignment.spectrum(x, y).area()),
    alignment.alignment: ([PHI, Y], lambda x, y: alignment.alignment(x, y, 15_000.0)),
    alignment.alignment_curve: ([PHI, Y], alignment.alignment_curve),
    alignment.cumulative_power: ([PHI, Y], alignment.cumulative_power),
    alignment.kernel_spectrum: ([K, Y], alignment.kernel_spectrum),
    alignment.pair_spectra: ([K], lambda k: alignment.pair_spectra(k, torch.arange(40) % 3)[0, 2]),
    imani.class_pairs: ([PHI], lambda x: imani.class_pairs(x, CLASSES, TAU)),
    alignment.gd_loss: ([PHI, Y], lambda x, y: alignment.gd_loss(alignment.spectrum(x, y), 1e-10, STEPS)),
    alignment.predicted_error: (
        [torch.tensor([3e4, 2e4, 1.0]), torch.tensor([500.0, 400.0, 3e4])],
        lambda eta, power: alignment.predicted_error(eta, power, STEPS, ridge=10.0, noise=2.0, outside=3e4),
    ),
    alignment.iteration_bound: ([START], lambda d: alignment.iteration_bound(d, 0.1, 1e-4, 0.01)),
    kernels.gram: ([PHI], kernels.gram),
    kernels.center: ([K], kernels.center),
    kernels.hsic: ([A, B], kernels.hsic),
    kernels.kta: ([A, B], kernels.kta),
    kernels.cka: ([PHI, Y], kernels.cka),
    kernels.cka_grid: ([PHI, Y], lambda *reps: kernels.cka_grid(reps)),
    kernels.stable_rank: ([PHI], kernels.stable_rank),
    kernels.effective_rank: ([PHI], kernels.effective_rank),
    kernels.power_law: ([PHI], lambda x: kernels.power_law(x, features=True)),
    covariance.misalignment: ([A, B], covariance.misalignment),
    covariance.misalignment_in: ([torch.eye(4), B], covariance.misalignment_in),
    covariance.transfer_function: ([A, B], covariance.transfer_function),
    covariance.patch_covariance: ([PHI.reshape(4, 1, 6, 10)], lambda x: covariance.patch_covariance(x, 2)),
    covariance.filter_covariance: ([PHI], covariance.filter_covariance),
    covariance.eigenvector_agreement: ([A, B], covariance.eigenvector_agreement),
    covariance.overlap: ([A, B], lambda a, b: covariance.overlap(a, b, 2)),
    covariance.rotation_error: ([torch.tensor([3e4, 2e4, 1.0])], lambda x: covariance.rotation_error(x, 9)),
    propagation.correlations: ([START], lambda c: propagation.correlations(c, 50)),
    propagation.gaps: ([START], lambda c: propagation.gaps(c, 50)),
    propagation.forward_information: ([START], lambda c: propagation.forward_information(c, 50)),
    propagation.backward_information: ([START], lambda c: propagation.backward_information(c, 50)),
    propagation.equilibrium_layer: ([START], lambda c: propagation.equilibrium_layer(c, 50)),
    linear.squared_descent: (
        [PHI, SIGNS, PHI, SIGNS],
        lambda *data: linear.squared_descent(*data, eta=1e-8, steps=STEPS),
    ),
    linear.norm_at: (
        [PHI, SIGNS, PHI, SIGNS],
        lambda *data: linear.norm_at(linear.squared_descent(*data, eta=1e-8, steps=STEPS), [0.01, 0.02]),
    ),
    linear.logistic_descent: (
        [PHI, SIGNS, PHI, SIGNS],
        lambda *data: linear.logistic_descent(*data, eta=1e-8, steps=STEPS // 1000),
    ),
}
# Numbers come out, or no tensor goes in: there is no precision to keep.
NUMBERS = {
    *(covariance.misalignment_floor, covariance.random_basis),
    *(covariance.misalignment_scores, covariance.tilt),
    kernels.cka_floor,
}


def test_every_public_measure_is_called():
    for module in (alignment, covariance, kernels, linear, propagation):
        for name, value in vars(module).items():
            ours = inspect.isfunction(value) and value.__module__.startswith(module.__name__)
            if ours and not name.startswith("_"):
                assert value in CALLS or value in NUMBERS, f"{module.__name__}.{name}"


def tensors(out):
    parts = out if isinstance(out, tuple) else (out,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("measure", CALLS, ids=lambda f: f.__qualname__)
def test_half_in_single_out(measure, dtype):
    values, call = CALLS[measure]
    given = [value.to(dtype) for value in values]
    got = tensors(call(*given))
    assert got
    # The same numbers in float64, so that only the arithmetic is compared.
    for one, wanted in zip(got, tensors(call(*(value.double() for value in given))), strict=True):
        assert one.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert one.isfinite().all()
        torch.testing.assert_close(one.double(), wanted, rtol=2e-5, atol=2e-5 * float(wanted.abs().max()))


def test_half_arrays_and_blocks_and_files(tmp_path):
    x, y = PHI.numpy().astype(np.float16), Y.numpy().astype(np.float16)
    assert alignment.spectrum(x, y).residual.dtype == np.float32
    blocks = alignment.spectrum([(x[:25], y[:25]), (x[25:], y[25:])])
    np.testing.assert_allclose(blocks.area(), alignment.spectrum(x, y).area(), rtol=1e-6)
    np.save(tmp_path / "x.npy", x)
    grid = kernels.cka_grid([tmp_path / "x.npy", lambda: y])
    assert grid.dtype == torch.float32
    stacked = kernels.cka_grid(PHI.reshape(2, 20, 6).bfloat16())
    assert stacked.dtype == torch.float32
    pair = kernels.cka(*PHI.reshape(2, 20, 6).bfloat16())
    assert float(stacked[0, 1]) == pytest.approx(float(pair), abs=5e-6)


def test_features_of_half_precision_far_from_zero_vary():
    x = (10 + 0.5 * normal(30, 4)).bfloat16()
    assert float(kernels.cka(x, x)) == pytest.approx(1)
    with pytest.raises(ValueError, match="should vary"):
        kernels.cka(torch.full((30, 4), 10.1).bfloat16(), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_rounded_to_half_are_kernels(dtype):
    """Rounding makes small eigenvalues negative and, in products, leaves the two triangles apart."""
    x = normal(60, 5)
    K = (x @ x.mT).to(dtype)
    assert float(torch.linalg.eigvalsh(K.double())[0]) < -1e-4
    y = x @ normal(5)
    share = alignment.cumulative_power(K, y)
    assert float(share[4]) > 0.99
    K[0, 1] *= 1 + torch.finfo(dtype).eps
    assert alignment.cumulative_power(K, y)[4] > 0.99
    cov = covariance.filter_covariance(normal(400, 9)).to(dtype)
    assert covariance.misalignment(cov, cov) < 1e-3
