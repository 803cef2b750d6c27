"""Finds the user's lines behind errors and equations; walks over the equations of jaxprs."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import site
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jax2tf_bridge.from_jax import _jax_compat

_LIBRARIES = frozenset({"jax", "jaxlib", "jax2tf_bridge", "shape_poly", "tensorflow", "keras"})
_UNNAMED_PACKAGES = frozenset({"numpy", "jaxtyping", "beartype"})
"""Libraries whose lines are never named in messages."""


def _spell(*folders: str | Path) -> tuple[str, ...]:
    # Frames name files as Python imported them, which may be through a symbolic link.
    return tuple(
        {os.path.join(f, "") for folder in folders for f in (folder, os.path.realpath(folder))}
    )


_PACKAGES = _spell(
    *map(sysconfig.get_path, ("purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
_INSTALLED = (*_PACKAGES, *_spell(sysconfig.get_path("stdlib")))
_BRIDGE = Path(__file__).parents[1]
_OURS = _spell(_BRIDGE, _BRIDGE.with_name("shape_poly"))


def user_line(error: BaseException) -> str | None:
    """Finds the innermost line of the user's own code, as "file.py:12 (function)".

    If there is none, it is a line of an installed library (Flax, Equinox), but never one of JAX,
    TensorFlow or the bridge.
    """
    innermost: str | None = None
    innermost_installed: str | None = None
    for file, line, function in _iter_frames(error):
        where = f"{file}:{line} ({function})"
        if file.startswith(_INSTALLED):
            innermost_installed = where
        else:
            innermost = where
    return innermost or _find_traced_line(error) or innermost_installed


def library_line(error: BaseException) -> str | None:
    """Finds the innermost line of a library that the user's code called, with its text.

    The form is "file.py:12 (function), `len(values)`". Returns None if the user's own code is
    further inside, or called JAX directly.
    """
    innermost: str | None = None
    is_called_by_user = False
    for file, line, function in _iter_frames(error):
        if not file.startswith(_INSTALLED):
            innermost, is_called_by_user = None, True
        elif _find_package(file) not in {"", *_UNNAMED_PACKAGES}:
            text = linecache.getline(file, line).strip()
            shown = f", `{text}`" if text and not text.startswith("raise ") else ""
            innermost = f"{file}:{line} ({function}){shown}"
    return innermost if is_called_by_user else None


def user_line_of_equation(path: Sequence[Any]) -> str | None:
    """Finds the user's line that made an equation, as in `user_line`.

    `path` is the equation with its enclosing equations, the outermost first.
    """
    return _find_innermost_line(path) or _jax_compat.find_source_of_equation(path[-1])


def format_place(line: str | None) -> str:
    """Returns " at LINE" for a message, or "" for an unknown line.

    >>> format_place("file.py:12 (function)"), format_place(None)
    (' at file.py:12 (function)', '')
    """
    return f" at {line}" if line else ""


def find_definition(function: object) -> str | None:
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


def iter_equations(jaxpr: Any) -> Iterator[Any]:
    """Yields every equation of a jaxpr and of the jaxprs inside it."""
    return (path[-1] for path in iter_equation_paths(jaxpr))


def iter_equation_paths(jaxpr: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields every equation with its enclosing equations as a tuple, the outermost first."""
    for equation in jaxpr.eqns:
        path = (*outer, equation)
        yield path
        for inner in _iter_inner_jaxprs(equation):
            yield from iter_equation_paths(inner, path)


def _iter_inner_jaxprs(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(inner, "eqns"):
                yield inner


def _find_traced_line(error: BaseException) -> str | None:
    """Finds the user's line that made the operation that JAX failed to lower, as in `user_line`.

    JAX keeps the stack of the trace in the cause of such an error. In functions that JAX jits
    itself, such as jnp.cumsum, that stack may lack the user's frames; the call has them.
    """
    cause = error.__cause__
    if cause is None or type(cause).__name__ != "JaxStackTraceBeforeTransformation":
        return None
    innermost = None
    for frame, line in traceback.walk_tb(cause.__traceback__):
        file = frame.f_code.co_filename
        if _is_users(file):
            innermost = f"{file}:{line} ({frame.f_code.co_name})"
    return innermost or _find_innermost_line(_list_lowered_equations(error))


def _list_lowered_equations(error: BaseException) -> list[Any]:
    """Lists the nested equations that JAX was lowering when it failed, the outermost first."""
    path: list[Any] = []
    for equation in _jax_compat.iter_equations_of_frames(error):
        # Equations that a lowering rule traced come last. Their stacks lead to the call of export.
        if path and not any(
            equation is inner
            for jaxpr in _iter_inner_jaxprs(path[-1])
            for inner in iter_equations(jaxpr)
        ):
            break
        path.append(equation)
    return path


def _find_innermost_line(path: Sequence[Any]) -> str | None:
    return next(filter(None, map(_find_line_of_equation, reversed(path))), None)


def _find_line_of_equation(equation: Any) -> str | None:
    trace = getattr(getattr(equation, "source_info", None), "traceback", None)
    # The innermost frame comes first.
    for frame in getattr(trace, "frames", ()):
        file, function = str(frame.file_name), str(frame.function_name).rpartition(".")[2]
        if _is_users(file):
            return f"{file}:{frame.line_num} ({function})"
    return None


def _is_users(file: str) -> bool:
    return not file.startswith((*_INSTALLED, *_OURS, "<frozen"))


def _find_package(file: str) -> str:
    """Returns the installed package of a file; "" for the standard library."""
    folder = next(filter(file.startswith, _PACKAGES), None)
    return "" if folder is None else Path(file.removeprefix(folder)).parts[0]


def _iter_frames(error: BaseException) -> Iterable[tuple[str, int, str]]:
    """Yields file, line and function of the frames outside of `_LIBRARIES`, the innermost last."""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES:
            yield frame.f_code.co_filename, line, frame.f_code.co_name
