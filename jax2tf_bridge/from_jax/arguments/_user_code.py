"""Finds the line of the user's code in an exception's traceback."""

from __future__ import annotations

import functools
import inspect
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType

_LIBRARIES = frozenset({"jax", "jaxlib", "jax2tf_bridge", "shape_poly", "tensorflow", "keras"})
_INSTALLED = tuple(
    str(Path(folder).resolve())
    for folder in {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
)


def user_line(error: BaseException) -> str | None:
    """Finds the innermost line of the user's own code, as "file.py:12 (function)".

    A line of an installed library (Flax, Equinox) stands for it if there is no other; lines of
    JAX, TensorFlow and the bridge never do.
    """
    innermost: str | None = None
    innermost_installed: str | None = None
    for frame, line in _frames(error.__traceback__):
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module in _LIBRARIES:
            continue
        code = frame.f_code
        where = f"{code.co_filename}:{line} ({code.co_name})"
        if code.co_filename.startswith(_INSTALLED):
            innermost_installed = where
        else:
            innermost = where
    return innermost or innermost_installed


def defined_at(function: object) -> str | None:
    """Tells where a function was defined, in the form of `user_line`."""
    inner = written_function(function)
    code = getattr(inner, "__code__", None)
    if code is None or str(getattr(inner, "__module__", "")).partition(".")[0] in _LIBRARIES:
        return None
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_name})"


def written_function(function: object) -> object:
    """Finds the function written with def or lambda that `function` was made of.

    Decorators and partials are taken off, and __call__ stands for an object that has one.
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


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(trace))
