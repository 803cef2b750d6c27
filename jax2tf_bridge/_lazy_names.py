"""Names that a module exports and imports only when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def make_lazy_getattr(
    package: str, homes: Mapping[str, str], *, module: str | None = None
) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a package, or of one of its modules.

    Args:
      package: the package's name.
      homes: maps each exported name to the module below the package that has it, and each
        subpackage to itself.
      module: the module that gets the function; the package by default.
    """
    owner = module or package

    def get(name: str) -> Any:
        namespace = sys.modules[owner]
        if name not in homes:
            # With name and obj, Python proposes the nearest of dir().
            message = f"module {owner!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=namespace)
        home = importlib.import_module(f"{package}.{homes[name]}")
        value = home if homes[name] == name else getattr(home, name)
        setattr(namespace, name, value)
        return value

    return get
