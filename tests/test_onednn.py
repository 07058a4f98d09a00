"""AMX that is advertised and cannot be used: found out in a child, remembered, and told to every process."""

import json
import os
import platform
import signal
import subprocess
import sys

import pytest
import torch
from joblib.externals.loky import get_reusable_executor

from command import ROOT
from repalign import features, models, train
from repalign.machine import onednn
from repalign.press import page, provenance, sweep

CPUINFO = """processor	: 0
vendor_id	: GenuineIntel
model name	: {model}
flags		: fpu avx2 avx512f avx512_bf16 {flags}
bugs		: spectre_v1

processor	: 1
model name	: {model}
flags		: fpu avx2 avx512f avx512_bf16 {flags}
"""
LIMIT = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


class Machine:
    """A processor by its cpuinfo; ``code`` is what the child's trial ends with, ``tried`` how often."""

    def __init__(self, tmp_path, monkeypatch):
        self.path, self.patch = tmp_path / "cpuinfo", monkeypatch
        self.tried, self.code = 0, 0
        monkeypatch.setattr(onednn, "CPUINFO", self.path)
        monkeypatch.setattr(onednn, "_try", self._try)
        monkeypatch.setattr(onednn, "version", lambda name: self.torch)
        # Whatever a test leaves in the environment goes when it ends.
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
        self.torch = "2.13.0"
        self.is_a("Xeon", "amx_bf16 amx_tile amx_int8")

    def is_a(self, model, flags):
        self.path.write_text(CPUINFO.format(model=model, flags=flags))
        self.restart()

    def restart(self):
        """A new process: nothing is known but what was written down."""
        onednn.processor.cache_clear()
        onednn._works.cache_clear()
        os.environ.pop("ONEDNN_MAX_CPU_ISA", None)

    def _try(self):
        self.tried += 1
        return self.code


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch)
    yield made
    made.restart()


def test_without_amx_nothing_is_tried_or_set(machine, tmp_path):
    machine.code = 1
    machine.is_a("Xeon", "avx512_vnni")
    onednn.prepare()
    machine.path.unlink()  # not Linux
    machine.restart()
    onednn.prepare()
    assert (machine.tried, "ONEDNN_MAX_CPU_ISA" in os.environ) == (0, False)
    assert not (tmp_path / "cache").exists()


def test_amx_that_works_is_left_alone_and_one_that_fails_is_limited(machine):
    assert onednn.environment() == {}
    machine.is_a("Sapphire", "amx_tile")
    machine.code = 1
    assert onednn.environment() == LIMIT
    onednn.prepare()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == LIMIT["ONEDNN_MAX_CPU_ISA"]


@pytest.mark.parametrize("code", [1, -signal.SIGSEGV, -signal.SIGILL])
def test_the_answer_is_remembered(machine, code):
    machine.code = code
    for _ in range(3):
        assert onednn.environment() == LIMIT
        machine.restart()
    assert machine.tried == 1


def test_a_child_that_was_stopped_says_nothing_for_good(machine):
    machine.code = -signal.SIGKILL
    assert onednn.environment() == LIMIT  # safe for now
    machine.restart()
    machine.code = 0
    assert (onednn.environment(), machine.tried) == ({}, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_features_ask_first(monkeypatch, dtype):
    def refuse():
        raise RuntimeError("too late")

    monkeypatch.setattr(onednn, "require", refuse)
    net, x = models.MLP(3, 2, width=4), torch.ones(5, 3)
    assert features.extract(net, x)
    with pytest.raises(RuntimeError, match="too late"):
        features.extract(net.to(dtype), x)


@pytest.mark.parametrize("change", ["torch", "processor", "system"])
def test_what_the_answer_depends_on_is_tried_again(machine, change, monkeypatch):
    machine.code = 1
    assert onednn.environment() == LIMIT
    machine.code = 0
    if change == "torch":
        machine.torch = "2.14.0"
    elif change == "processor":
        machine.is_a("Another", "amx_tile")
    else:
        monkeypatch.setattr(onednn.platform, "release", lambda: "9.9")
    machine.restart()
    assert (onednn.environment(), machine.tried) == ({}, 2)


def test_a_damaged_answer_is_asked_again(machine, tmp_path):
    machine.code = 1
    assert onednn.environment() == LIMIT
    (kept,) = (tmp_path / "cache" / "machine").glob("onednn-*.json")
    assert json.loads(kept.read_text()) is False
    for damage in ("", '"yes"'):
        kept.write_text(damage)
        machine.restart()
        assert onednn.environment() == LIMIT
    assert machine.tried == 3


def test_where_nothing_can_be_kept_it_still_answers(machine, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPALIGN_CACHE", str(tmp_path / "file"))
    machine.code = 1
    assert onednn.environment() == LIMIT


@pytest.mark.parametrize("value", ["DEFAULT", "AVX2"])
def test_the_users_own_setting_wins(machine, value):
    machine.code = 1
    os.environ["ONEDNN_MAX_CPU_ISA"] = value
    onednn.prepare()
    onednn.require()
    assert (os.environ["ONEDNN_MAX_CPU_ISA"], machine.tried) == (value, 0)


@pytest.mark.parametrize(
    "probe, code",
    [
        ("pass", 0),
        ("raise RuntimeError('could not create a primitive')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os, sys; sys.exit('ONEDNN_MAX_CPU_ISA' in os.environ)", 0),
        ("import time; time.sleep(60)", -signal.SIGKILL),
    ],
)
def test_the_child_tells_by_its_exit_without_the_limit(monkeypatch, probe, code):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setattr(onednn, "PROBE", probe)
    if "sleep" in probe:
        monkeypatch.setattr(onednn, "PATIENCE", 0.5)
    assert onednn._try() == code


def test_the_probe_passes_under_the_limit():
    """On any machine: so a failure without the limit is the processor's, not the probe's."""
    done = subprocess.run(
        [sys.executable, "-c", onednn.PROBE], env={**os.environ, **LIMIT}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("when, holds", [("before", "False"), ("after", "True")])
def test_a_limit_counts_when_set_before_torch_computes(when, holds):
    """Also after its import: what prepare and the question whether it came too late rest on."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 that a limit could take away")
    compute = "torch.conv2d(torch.ones(1, 16, 8, 8), torch.ones(16, 16, 3, 3))"
    limit = "os.environ['ONEDNN_MAX_CPU_ISA'] = 'AVX2'"
    order = [limit, compute] if when == "before" else [compute, limit]
    code = "\n".join(["import os, torch", *order, "print(torch.ops.mkldnn._is_mkldnn_bf16_supported())"])
    free = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run([sys.executable, "-c", code], env=free, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == holds


def test_fit_in_bfloat16_sets_the_limit_or_says_that_it_is_too_late(machine, monkeypatch):
    machine.code = 1
    x, y = torch.ones(4, 3), torch.arange(4) % 2
    options = dict(epochs=1, bfloat16=True)
    monkeypatch.setattr(onednn, "_beyond_limit", lambda: True)
    with pytest.raises(RuntimeError, match="only with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"):
        train.fit(models.MLP(3, 2, width=4), x, y, **options)
    monkeypatch.setattr(onednn, "_beyond_limit", lambda: False)
    assert train.fit(models.MLP(3, 2, width=4), x, y, **options).loss
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == LIMIT["ONEDNN_MAX_CPU_ISA"]
    machine.restart()
    train.fit(models.MLP(3, 2, width=4), x, y, epochs=1)  # float32 needs none of it
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def limit_of(number):
    return dict(limit=os.environ.get("ONEDNN_MAX_CPU_ISA"), pid=os.getpid())


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_workers_of_a_sweep_are_told(machine, jobs):
    machine.code = 1
    get_reusable_executor().shutdown(kill_workers=True)  # those of an earlier sweep keep their environment
    found = sweep.run(limit_of, [dict(number=i) for i in range(2)], None, {}, jobs).table
    assert set(found["limit"]) == {LIMIT["ONEDNN_MAX_CPU_ISA"]}
    assert (os.getpid() in set(found["pid"])) == (jobs == 1)
    get_reusable_executor().shutdown(kill_workers=True)


def test_a_page_in_jupyter_is_told(machine, capsys, monkeypatch):
    machine.code = 1
    monkeypatch.chdir(ROOT)
    page("canatar/01_metrics")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == LIMIT["ONEDNN_MAX_CPU_ISA"]


def test_commands_are_told(machine, monkeypatch, capsys):
    from repalign import cli

    machine.code = 1
    monkeypatch.setattr(sys, "argv", ["repalign", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == LIMIT["ONEDNN_MAX_CPU_ISA"]


def test_a_run_says_on_what_processor(machine):
    machine.is_a("Xeon 9", "")
    assert "cores, Xeon 9, " in provenance.machine()
    machine.path.unlink()
    machine.restart()
    assert f"cores, {platform.machine()}, " in provenance.machine()
