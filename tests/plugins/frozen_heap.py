"""Keeps what imports have made from being looked at again by each garbage collection.

JAX, TensorFlow and what the tests import are millions of objects, none of which ever goes: a
collection that goes through all of them takes up to a second of CPU time.
"""

from __future__ import annotations

import gc

import pytest

_YOUNG = 10_000
"""New objects between collections; Python's default is 700."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Runs when all test modules are imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
