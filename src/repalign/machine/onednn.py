"""oneDNN on processors that advertise AMX and cannot use it, as in many small virtual machines.

There torch fails with "could not create a primitive" in bfloat16, from then on also in float32 convolutions
of that process, and crashes in half precision. A limit on the instructions that oneDNN takes, set before
torch computes for the first time, cures it. Trying would spoil the process, so a child tries, once for each
processor and version of torch; the answer is kept in the cache directory. Without AMX nothing is done.

A value of ``ONEDNN_MAX_CPU_ISA`` in the environment is the user's and stays: ``DEFAULT`` is no limit.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from repalign._files import cache_root, digest, write_json

VARIABLE, LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
CPUINFO = Path("/proc/cpuinfo")
# What fails there: these in turn, by an error or a crash.
PROBE = """
import torch
x = torch.ones(2, 16, 8, 8)
with torch.no_grad():
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        torch.nn.functional.conv2d(x.to(dtype), torch.ones(16, 16, 3, 3, dtype=dtype))
        torch.ones(64, 64, dtype=dtype) @ torch.ones(64, 64, dtype=dtype)
"""

PATIENCE = 120  # seconds
# Ended from outside, for want of time or memory: that says nothing about the processor, so it is not kept.
STOPPED = (-signal.SIGKILL, -signal.SIGTERM)


def prepare() -> None:
    """Set the limit for this process and those it starts, where it is needed; before torch computes."""
    os.environ.update(environment())


def environment() -> dict[str, str]:
    """What this module adds to the environment of a process: nothing, or the limit.

    >>> set(environment()) <= {"ONEDNN_MAX_CPU_ISA"}
    True
    """
    if VARIABLE in os.environ or not advertised(processor()):
        return {}
    return {} if _works(processor(), version("torch"), cache_root()) else {VARIABLE: LIMIT}


def require() -> None:
    """Before half precision on the CPU: the limit, or an error when it is needed and comes too late."""
    prepare()
    if os.environ.get(VARIABLE) == LIMIT and advertised(processor()) and _beyond_limit():
        raise RuntimeError(
            f"half precision works here only with {VARIABLE}={LIMIT}, set before torch computes for "
            "the first time, and it has computed already. Set it in the environment, or call "
            "repalign.machine.onednn.prepare() first of all; then start again."
        )


def advertised(processor: str) -> bool:
    """Do the flags of ``processor``, a part of /proc/cpuinfo, name AMX?

    >>> advertised("flags : fpu avx512f amx_bf16 amx_tile")
    True
    """
    flags = [line.partition(":")[2].split() for line in processor.splitlines() if line.startswith("flags")]
    return any(flag.startswith("amx_") for row in flags for flag in row)


def model(processor: str) -> str:
    """The name of ``processor``, a part of /proc/cpuinfo; nothing where it has none.

    >>> model("model name : AMD EPYC\\nflags : fpu avx512f")
    'AMD EPYC'
    """
    lines = (line.partition(":") for line in processor.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")


@cache
def processor() -> str:
    """What names the first processor and what it can do; nothing where the system does not say."""
    kept = ""
    with suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(("vendor_id", "model name", "flags")):
                kept += line
            if not line.strip():  # the others are the same
                break
    return kept


@cache
def _works(processor: str, torch_version: str, directory: Path) -> bool:
    """Can oneDNN take whatever ``processor`` advertises? As remembered, else as a child finds out."""
    # The system decides as well whether tiles can be used.
    name = digest(processor, torch_version, platform.release())
    place = directory / "machine" / f"onednn-{name}.json"
    with suppress(OSError, ValueError):
        answer = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(answer, bool):
            return answer
    code = _try()
    if code not in STOPPED:
        with suppress(OSError):  # asked again next time
            write_json(place, code == 0)
    return code == 0


def _try() -> int:
    """The exit code of a child that computes without the limit."""
    free = {name: value for name, value in os.environ.items() if name != VARIABLE}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=free, capture_output=True, check=False, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL  # what becomes of it
    return done.returncode


def _beyond_limit() -> bool:
    """Has oneDNN settled on more than the limit? Only then has it float16: no trial that would spoil it."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
