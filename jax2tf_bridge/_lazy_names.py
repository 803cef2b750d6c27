"""Names that a package exports as its stub lists them, each imported when it is first used."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_LINE = re.compile(r"^from ([\w.]+) import (?:\(\s*)?(\w+) as \2\b", re.MULTILINE)


def homes_of(spec: ModuleSpec) -> dict[str, str]:
    """Reads the stub of a package: the module of each name, or the package itself for a package.

    A stub has lines like `from package.module import name as name`, which type checkers read, too.
    """
    assert spec.origin is not None
    assert spec.loader is not None
    stub = Path(spec.origin).with_suffix(".pyi")
    data: bytes = spec.loader.get_data(str(stub))  # type: ignore[attr-defined]  # of a zip file, too
    return {name: module for module, name in _LINE.findall(data.decode())}


def lazy_getattr(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """Makes the package's `__getattr__`."""

    def get(name: str) -> Any:
        module = sys.modules[package]
        if name not in homes:
            # With name and obj, Python proposes the nearest of dir().
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=module)
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    return get
