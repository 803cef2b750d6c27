"""jax2tf-bridge: takes what people write in JAX to where TensorFlow runs.

Names are imported when they are first used, so that `import jax2tf_bridge` works where only JAX,
or only TensorFlow, is installed. `__init__.pyi` lists them.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

from jax2tf_bridge._lazy_names import homes_of, lazy_getattr
from jax2tf_bridge._version import __version__ as __version__

_HOMES = homes_of(__spec__)
_PACKAGES = {name for name, home in _HOMES.items() if home == __name__}
_NEEDED = {
    **dict.fromkeys(("from_jax", "loading", "parallel"), ("jax",)),
    **dict.fromkeys(("converting._publish", "converting._save"), ("tensorflow",)),
    **dict.fromkeys(("litert", "saving", "to_tf"), ("tensorflow",)),
    **dict.fromkeys(("call_tf", "converting", "verifying"), ("jax", "tensorflow")),
    "converting._serialize_exported": (),
}
"""The packages that modules need; what a package needs, its modules need."""

__all__ = sorted(_HOMES.keys() - _PACKAGES - {"__version__"})
__getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(_HOMES)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # something keeps it from being found
        return False


def _needed(name: str) -> tuple[str, ...]:
    module = _HOMES[name].removeprefix(f"{__name__}.")
    return _NEEDED.get(module, _NEEDED.get(module.split(".")[0], ()))


class _Facade(types.ModuleType):
    """Keeps the function to_tf in view when the subpackage of that name is imported."""

    @property
    def __all__(self) -> list[str]:
        """The public names, without those that need what is not installed: for `import *`."""
        return [name for name in self.__dict__["__all__"] if all(map(_is_installed, _needed(name)))]

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and name in _HOMES and name not in _PACKAGES:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
