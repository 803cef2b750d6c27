"""Validates portable functions from users, and unwraps objects that hold one."""

from __future__ import annotations

from typing import Any, Protocol

from jax2tf_bridge.errors import FunctionError
from jax2tf_bridge.portable._portable_function import PortableFunction

_MAX_SHOWN_CHARACTERS = 200
"""Maximum number of characters of a value in a message."""


class HoldsPortable(Protocol):
    """An object that holds a portable function and is accepted for it: a jax_export.Exported."""

    @property
    def portable(self) -> PortableFunction:
        """The wrapped portable function."""
        ...


def unwrap_portable(value: Any) -> Any:
    """Returns the portable function of a `jax_export.Exported`, or `value` itself."""
    inner = getattr(value, "portable", None)
    return inner if isinstance(inner, PortableFunction) else value


def as_portable_function(value: object, caller: str) -> PortableFunction:
    """Returns the portable function in `value`, an argument of `caller`.

    Raises:
      FunctionError: `value` is not a portable function; the message says how to get one.
    """
    function = unwrap_portable(value)
    if isinstance(function, PortableFunction):
        return function
    raise FunctionError(
        f"{caller} expected a PortableFunction. Got: {_show(value)} of type "
        f"{type(value).__name__}. {_advise(value)}"
    )


def _show(value: object) -> str:
    if _is_exported_by_jax(value):  # its repr contains the whole module
        return repr(getattr(value, "fun_name", ""))
    shown = repr(
        value[:_MAX_SHOWN_CHARACTERS] if isinstance(value, (str, bytes, bytearray)) else value
    )
    return shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}..."


def _advise(value: object) -> str:
    """Says how to get a portable function from another value."""
    if _is_exported_by_jax(value):
        return "It is JAX's own: from_exported(exported) makes a portable function of it."
    if callable(value):
        return "Call what export returns with the function's arguments: export(f, ...)(x)."
    if isinstance(value, str):
        return f"Read it first: read_function({_show(value)})."
    if hasattr(value, "__fspath__"):
        return "Read it first: read_function(path)."
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "Read it first: deserialize(data)."
    return "It is what export(f, ...)(x) gives, or read_function(path)."


def _is_exported_by_jax(value: object) -> bool:
    # Compared by name, because JAX may not be installed.
    kind = type(value)
    return kind.__name__ == "Exported" and kind.__module__.partition(".")[0] == "jax"
