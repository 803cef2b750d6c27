"""Names that a package exports and imports only when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def make_lazy_getattr(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a package.

    Args:
      package: the package's name.
      homes: by exported name, the module below the package that has it; the name itself for a
        subpackage.
    """

    def get(name: str) -> Any:
        module = sys.modules[package]
        if name not in homes:
            # With name and obj, Python proposes the nearest of dir().
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=module)
        home = importlib.import_module(f"{package}.{homes[name]}")
        value = home if homes[name] == name else getattr(home, name)
        setattr(module, name, value)
        return value

    return get
