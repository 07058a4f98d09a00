"""What all tests share."""

import pytest
from hypothesis import HealthCheck, settings

# Properties are checked on the same examples in every run; linear algebra has no fixed duration.
settings.register_profile(
    "repalign", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repalign")


@pytest.fixture(autouse=True)
def _own_directories(tmp_path, monkeypatch):
    """No test reads or writes the user's cache, or a store left by another run."""
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REPALIGN_DATA", raising=False)
