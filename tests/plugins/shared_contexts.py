"""Lets JAX lower many functions in one MLIR context: making one is a tenth of an export.

With `--against-wheel` each function has a context of its own, as it has for users, so that a
module in which two contexts meet is noticed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

MAX_USES = 50
"""Maximum number of lowerings in one context, which keeps all types and constants of them."""


class SharedContexts(threading.local):
    """Replaces the function by which JAX makes contexts; each thread has a context of its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.context: Any = None
        self.uses = 0

    def __call__(self) -> Any:
        if self.context is None or self.uses == MAX_USES:
            self.context, self.uses = self.make(), 0
        self.uses += 1
        return self.context


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Runs when the test modules have imported JAX, if they need it.

    What the bridge itself makes contexts with stays as it is: it has taken JAX's function before.
    """
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    if mlir is not None and not session.config.getoption("--against-wheel"):
        vars(mlir)["make_ir_context"] = SharedContexts(vars(mlir)["make_ir_context"])
