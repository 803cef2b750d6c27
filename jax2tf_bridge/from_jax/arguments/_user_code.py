"""Finds lines of the user's code, and of libraries that it calls, in tracebacks."""

from __future__ import annotations

import functools
import inspect
import linecache
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LIBRARIES = frozenset({"jax", "jaxlib", "jax2tf_bridge", "shape_poly", "tensorflow", "keras"})
_NOT_CALLED_BY_NAME = frozenset({"numpy", "jaxtyping", "beartype"})
"""Packages whose lines are never named in messages."""


def _folders(*names: str) -> tuple[str, ...]:
    return tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in names})


_PACKAGES = _folders("purelib", "platlib")
_INSTALLED = (*_PACKAGES, *_folders("stdlib"))
_BRIDGE = Path(__file__).resolve().parents[2]
_OURS = (str(_BRIDGE), str(_BRIDGE.with_name("shape_poly")))


def user_line(error: BaseException) -> str | None:
    """Finds the innermost line of the user's own code, as "file.py:12 (function)".

    If there is none, it is a line of an installed library (Flax, Equinox), but never one of JAX,
    TensorFlow or the bridge.
    """
    innermost: str | None = None
    innermost_installed: str | None = None
    for file, line, function in _frames(error):
        where = f"{file}:{line} ({function})"
        if file.startswith(_INSTALLED):
            innermost_installed = where
        else:
            innermost = where
    return innermost or _traced_line(error) or innermost_installed


def _traced_line(error: BaseException) -> str | None:
    """Finds the user's line of the operation that JAX failed to lower, in the form of `user_line`.

    JAX keeps the stack of the trace in the cause of such an error.
    """
    cause = error.__cause__
    if type(cause).__name__ != "JaxStackTraceBeforeTransformation":
        return None
    innermost = None
    for frame, line in traceback.walk_tb(cause.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith((*_INSTALLED, *_OURS, "<frozen")):
            innermost = f"{file}:{line} ({frame.f_code.co_name})"
    return innermost


def library_line(error: BaseException) -> str | None:
    """Finds the innermost line of a library that the user's code called, with its text.

    The form is "file.py:12 (function), `len(values)`". Returns None if the user's own code is
    further inside, or called JAX directly.
    """
    innermost: str | None = None
    for file, line, function in _frames(error):
        if not file.startswith(_INSTALLED):
            innermost = None
        elif _package(file) not in {"", *_NOT_CALLED_BY_NAME}:
            text = linecache.getline(file, line).strip()
            shown = f", `{text}`" if text and not text.startswith("raise ") else ""
            innermost = f"{file}:{line} ({function}){shown}"
    return innermost if innermost is not None and _is_called(error) else None


def user_line_of_equation(equation: Any) -> str | None:
    """Finds the innermost line of the user's code that made an equation, as in `user_line`."""
    trace = getattr(getattr(equation, "source_info", None), "traceback", None)
    # The innermost frame comes first.
    for frame in getattr(trace, "frames", ()):
        file, function = str(frame.file_name), str(frame.function_name).rpartition(".")[2]
        if not file.startswith((*_INSTALLED, *_OURS, "<frozen")):
            return f"{file}:{frame.line_num} ({function})"
    return None


def defined_at(function: object) -> str | None:
    """Returns the place of a function's definition, in the form of `user_line`."""
    inner = unwrap_function(function)
    code = getattr(inner, "__code__", None)
    if code is None or str(getattr(inner, "__module__", "")).partition(".")[0] in _LIBRARIES:
        return None
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"


def unwrap_function(function: object) -> object:
    """Finds the function, written with def or lambda, behind `function`.

    Decorators and partials are removed, and a callable object is replaced by its __call__.
    """
    while True:
        inner = inspect.unwrap(function) if callable(function) else function
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif callable(inner) and not hasattr(inner, "__code__"):
            return type(inner).__call__
        if inner is function:
            return function
        function = inner


def _is_called(error: BaseException) -> bool:
    """Returns whether the traceback has code of the user."""
    return any(not file.startswith(_INSTALLED) for file, _, _ in _frames(error))


def _package(file: str) -> str:
    """Returns the installed package of a file; "" for the standard library."""
    for folder in _PACKAGES:
        if file.startswith(folder):
            return Path(file).relative_to(folder).parts[0]
    return ""


def _frames(error: BaseException) -> Iterable[tuple[str, int, str]]:
    """Yields file, line and function of the frames outside of `_LIBRARIES`, the innermost last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES:
            yield frame.f_code.co_filename, line, frame.f_code.co_name
