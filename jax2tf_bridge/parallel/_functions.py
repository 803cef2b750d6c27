"""Functions that JAX made of others (jit), for pickles that would not carry all of them."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Named:
    """What is found by its name in a module, as `jax.nn.relu` is; pickle finds only functions."""

    module: str
    name: str

    def received(self) -> Any:
        """The function, in the process that it was sent to."""
        return pkgutil.resolve_name(f"{self.module}:{self.name}")


@dataclass(frozen=True)
class Jitted:
    """A jitted function and its attributes, which JAX's own pickles leave behind."""

    function: Any
    attributes: Mapping[str, Any]

    def received(self) -> Any:
        """The function, in the process that it was sent to."""
        for name, value in self.attributes.items():
            setattr(self.function, name, value)
        return self.function


def sendable(function: Any) -> Any:
    """The function, or what stands for it in a message."""
    if not type(function).__module__.startswith(("jax.", "jaxlib.")):
        return function
    module: Any = getattr(function, "__module__", None)
    name: Any = getattr(function, "__qualname__", None)
    named = isinstance(module, str) and isinstance(name, str) and module != "__main__"
    if named and _found(sys.modules.get(module), name) is function:
        return Named(module, name)
    if isinstance(function, jax.stages.Wrapped):
        return Jitted(function, dict(vars(function)))
    return function


def received(function: Any) -> Any:
    """The function that `sendable` made something of."""
    return function.received() if isinstance(function, (Named, Jitted)) else function


def _found(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
