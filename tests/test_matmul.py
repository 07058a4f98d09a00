"""Products by the faster library: the same numbers, gradients and devices, whichever it is."""

import pytest
import torch

from repalign.machine import matmul
from repalign.machine.matmul import rows_by_rows


@pytest.fixture(params=[True, False], ids=["onednn", "mkl"])
def either(request, monkeypatch):
    """Both libraries, on any processor where torch has them."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(matmul, "faster", lambda processor: request.param)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (130, 257, 64), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_the_product(either, shape, dtype):
    n, d, m = shape
    torch.manual_seed(0)
    a, b = torch.randn(n, d, dtype=dtype), torch.randn(m, d, dtype=dtype)
    expected = a.double() @ b.double().mT
    found = rows_by_rows(a, b)
    assert found.dtype == dtype
    tolerance = 8 * (d + 1) * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


def test_takes_rows_that_lie_apart(either):
    torch.manual_seed(0)
    wide = torch.randn(40, 60)
    a, b = wide[::2, :30], wide.mT[:30, ::2].mT
    torch.testing.assert_close(rows_by_rows(a, b), a @ b.mT)


def test_gives_gradients(either):
    a, b = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    rows_by_rows(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(dim=0).expand(4, 3))


def test_may_compute_in_given_room(either):
    a, room = torch.randn(4, 3), torch.empty(4, 4)
    torch.testing.assert_close(rows_by_rows(a, a, room), a @ a.mT)


@pytest.mark.parametrize(("vendor", "takes"), [("GenuineIntel", False), ("AuthenticAMD", True)])
def test_only_processors_of_other_makers_take_onednn(vendor, takes, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    assert matmul.faster.__wrapped__(f"vendor_id : {vendor}\n") == (takes and both)
    assert not matmul.faster.__wrapped__("")  # a system that does not say
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not matmul.faster.__wrapped__(f"vendor_id : {vendor}\n")
