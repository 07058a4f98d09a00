"""Kept memory: large blocks stay with the processes that the project owns, and come back within bounds."""

import json
import os
import platform
import subprocess
import sys

import pytest

from repalign import study
from repalign.machine import memory
from repalign.runner import one
from repalign.study import workers

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")

# Does a block of 64 MB come from the heap, which keeps it, or from the system by itself? By mallinfo's count.
BLOCKS = """
import ctypes
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def mapped(size):
    before = libc.mallinfo2().hblkhd
    block = libc.malloc(ctypes.c_size_t(size))
    taken = libc.mallinfo2().hblkhd - before
    libc.free(block)
    return taken >= size
"""
WITHOUT = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS + code],
        env={**WITHOUT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


KEEP = "from repalign.machine import memory\nprint(memory.keep())\n"


def test_blocks_of_a_step_stay_and_larger_ones_go_back():
    ask = "print(mapped(2**26), mapped(2**30 + 2**20))"
    assert run(ask) == ["True", "True"]
    assert run(ask, **memory.environment()) == ["False", "True"]
    assert run(KEEP + ask) == ["True", "False", "True"]


def test_importing_the_package_changes_nothing():
    assert run("import repalign.study, repalign.machine.memory\nprint(mapped(2**26))") == ["True"]


def test_the_users_own_setting_wins():
    assert run(KEEP + "print(mapped(2**26))", MALLOC_MMAP_THRESHOLD_="1000000") == ["True", "True"]


def test_no_more_than_a_gibibyte_is_held():
    """1.8 GB taken in blocks of 100 MB and freed: what stays resident is bounded."""
    held = """
import numpy as np
def resident():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) / 2**20
start = resident()
blocks = [np.ones(100_000_000, np.uint8) for _ in range(18)]
full = resident()
del blocks
print(full - start > 1.5, resident() - start < 1.2)
"""
    assert run(held, **memory.environment()) == ["True", "True"]


KERNEL = f"""
# %%
{BLOCKS}

# %%
import json, os, pathlib
place = pathlib.Path(os.environ["REPALIGN_OUT"])
place.mkdir()
(place / "seen.json").write_text(json.dumps([mapped(2**26), os.environ["MALLOC_TOP_PAD_"]]))
"""


def test_kernels_keep_their_memory_and_the_users_value(tmp_path, monkeypatch):
    for name in memory.environment():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "12345678")
    assert one.follow(one.start(KERNEL, {}, tmp_path, 1), tmp_path, lambda done, total: None) == ""
    assert json.loads((tmp_path / one.RESULTS / "seen.json").read_text()) == [False, "12345678"]


def in_worker(number, code):
    here = {}
    exec(code, here)
    return here["mapped"](2**26), os.getpid()


def test_workers_of_a_sweep_keep_their_memory():
    """Outside the runner as well."""
    workers.close()
    found = study.sweep(in_worker, [dict(number=i, code=BLOCKS) for i in range(4)], jobs=2)
    assert {mapped for mapped, _ in found} == {False}
    assert os.getpid() not in {pid for _, pid in found}
    workers.close()


def test_a_sweep_in_the_users_process_leaves_it_as_it_is(tmp_path):
    # In a process of its own: one that has freed a large block may have it at hand, and asks for no other.
    ask = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_memory import BLOCKS, in_worker
from repalign import study
((found, pid),) = study.sweep(in_worker, [dict(number=9, code=BLOCKS)], jobs=1)
print(found, pid == os.getpid())
"""
    assert run(ask, REPALIGN_CACHE=str(tmp_path), REPALIGN_OUT=str(tmp_path)) == ["True", "True"]
