"""Drops what JAX has compiled before it has taken all memory maps that a process may have.

Linux lets a process have some 65,000; XLA needs hundreds for a large program, and ends the process
where it gets none.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

_MANY = 15_000
_MAPS = Path("/proc/self/maps")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Looks behind each slow test, and behind the last test of each module."""
    is_last = nextitem is None or nextitem.path != item.path
    jax = sys.modules.get("jax")
    if jax is None or not (is_last or item.get_closest_marker("slow")):
        return
    if memory_maps() > _MANY:
        jax.clear_caches()
        gc.collect()


def memory_maps() -> int:
    """Counts the memory maps of this process; 0 where that is not known."""
    return _MAPS.read_bytes().count(b"\n") if _MAPS.exists() else 0
