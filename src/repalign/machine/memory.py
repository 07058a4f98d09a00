"""The memory of a process that trains: kept between steps instead of given back and taken again.

glibc hands large blocks back to the system as soon as they are free. A training step frees and takes the
same activations again and again, and every page of them has to be zeroed by the system anew. Told to keep
what it has, the same step takes down to half the time.

What is kept is bounded: a single block above 1 GiB still goes back at once, and so does what is free at the
end of the heap beyond 1 GiB; so a process holds about 1 GiB more than it needs, unless a block that is in use
sits above what is free. This is for processes that the project starts; importing the package changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys

GIB = 2**30
# By mallopt's name: its number there, and the value. The environment has them as MALLOC_<name>_.
OPTIONS = {"TRIM_THRESHOLD": (-1, GIB), "TOP_PAD": (-2, GIB // 16), "MMAP_THRESHOLD": (-3, GIB)}
MMAP_MAX = -4  # blocks that may be mapped: none, where an older glibc refuses so large a threshold


def environment() -> dict[str, str]:
    """For the environment of a process to start: glibc reads it there, and other systems ignore it.

    >>> environment()["MALLOC_TOP_PAD_"]
    '67108864'
    """
    return {f"MALLOC_{name}_": str(value) for name, (_, value) in OPTIONS.items()}


def keep() -> bool:
    """The same for this process, from now on; what the user's environment sets stays. False without glibc."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    for name, (number, value) in OPTIONS.items():
        if f"MALLOC_{name}_" not in os.environ and not libc.mallopt(number, value):
            libc.mallopt(MMAP_MAX, 0)
    return True
