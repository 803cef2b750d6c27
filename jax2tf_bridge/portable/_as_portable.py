"""Takes portable functions, and objects around one, from users."""

from __future__ import annotations

from typing import Any, Protocol

from jax2tf_bridge.errors import FunctionError
from jax2tf_bridge.portable._portable_function import PortableFunction

_MOST_SHOWN = 200
"""Characters of a value in a message."""


class HoldsPortable(Protocol):
    """An object around a portable function, which is taken in its place: a jax_export.Exported."""

    @property
    def portable(self) -> PortableFunction:
        """Portable function that it holds."""
        ...


def unwrapped(value: Any) -> Any:
    """Returns the portable function of a `jax_export.Exported`; anything else as it is."""
    inner = getattr(value, "portable", None)
    return inner if isinstance(inner, PortableFunction) else value


def as_portable_function(value: object, caller: str) -> PortableFunction:
    """`value`, which a user gave to `caller` as a portable function.

    Raises:
      FunctionError: it is none; the text says how to get one.
    """
    function = unwrapped(value)
    if isinstance(function, PortableFunction):
        return function
    raise FunctionError(
        f"{caller} expected a PortableFunction. Got: {_shown(value)} of type "
        f"{type(value).__name__}. {_hint(value)}"
    )


def _shown(value: object) -> str:
    if _is_exported_by_jax(value):  # its repr has all the bytes of the module
        return repr(getattr(value, "fun_name", ""))
    shown = repr(value[:_MOST_SHOWN] if isinstance(value, (str, bytes, bytearray)) else value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."


def _hint(value: object) -> str:
    """Says how to get a portable function from a value that is none."""
    if _is_exported_by_jax(value):
        return "It is JAX's own: from_exported(exported) makes a portable function of it."
    if callable(value):
        return "Call what export returns with the function's arguments: export(f, ...)(x)."
    if isinstance(value, str):
        return f"Read it first: read_function({_shown(value)})."
    if hasattr(value, "__fspath__"):
        return "Read it first: read_function(path)."
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "Read it first: deserialize(data)."
    return "It is what export(f, ...)(x) gives, or read_function(path)."


def _is_exported_by_jax(value: object) -> bool:
    # By its name, since JAX may not be here.
    kind = type(value)
    return kind.__name__ == "Exported" and kind.__module__.partition(".")[0] == "jax"
