"""Makes imports of packages fail as if the packages were not installed; needs no third party."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Blocker:
    """Finder that fails the imports of some packages; `why` ends the error's text."""

    def __init__(self, packages: Collection[str], why: str = "") -> None:
        self.packages, self.why = packages, why

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}{self.why}", name=name)
        return None


@contextlib.contextmanager
def blocked(*packages: str) -> Iterator[None]:
    """Behaves as if these packages were neither imported nor installed.

    This is faster than a process without them. Modules that were imported before keep what they
    imported from the packages; the tests of the layering (tests/house) check those imports.
    """
    hidden = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.partition(".")[0] in packages
    }
    blocker = Blocker(packages)
    sys.meta_path.insert(0, blocker)
    try:
        yield
    finally:
        sys.meta_path.remove(blocker)
        sys.modules.update(hidden)


def require_absent(*packages: str) -> None:
    """Makes sure that none of the packages is installed.

    Raises:
      RuntimeError: one is installed, so that this process would prove nothing.
    """
    for name in packages:
        if importlib.util.find_spec(name) is not None:
            raise RuntimeError(f"{name} is installed in this environment: {sys.prefix}")


def forbid_jax() -> None:
    """Makes sure that JAX is not installed, and fails imports of it from now on.

    Raises:
      RuntimeError: it is installed, so that this process would prove nothing.
    """
    packages = ("jax", "jaxlib", "flax")
    require_absent(*packages)
    sys.meta_path.insert(0, Blocker(packages, ", which the model must run without"))
