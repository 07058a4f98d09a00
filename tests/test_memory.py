"""Kept memory: large blocks stay with the processes that the project owns, and come back within bounds."""

import os
import platform
import subprocess
import sys

import pytest

from repalign.machine import memory

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
    assert run("import repalign.press, repalign.machine.memory\nprint(mapped(2**26))") == ["True"]


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


SWEEP = f"""
import os
from repalign.press import sweep

def cell(number, code):
    here = dict()
    exec(code, here)
    return dict(mapped=here["mapped"](2**26), pid=os.getpid())

common = dict(code={BLOCKS!r})
workers = sweep.run(cell, [dict(number=1), dict(number=2)], None, common, 2).table
here = sweep.run(cell, [dict(number=3)], None, common, 1).table
print(*workers["mapped"], *here["mapped"], os.getpid() in set(workers["pid"]), here["pid"][0] == os.getpid())
"""


def test_workers_of_a_sweep_keep_their_memory_and_the_users_process_is_left_as_it_is(tmp_path):
    """In a process of its own: one that has freed a large block may have it at hand and ask for no other."""
    found = run(SWEEP, REPALIGN_CACHE=str(tmp_path), REPALIGN_OUT=str(tmp_path))
    assert found == ["False", "False", "True", "False", "True"]
