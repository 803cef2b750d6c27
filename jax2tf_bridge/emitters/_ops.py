"""`ops`: the functions that make operations, under TensorFlow's names.

Emitters call `ops.reshape(x, shape)`. That is `tf.reshape`, unless `building` names a builder of
another kind of graph, whose tensors and functions behave like TensorFlow's.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from jax2tf_bridge.bytecode import InlinedCall

__all__ = [
    "Builder",
    "NoOperationError",
    "building",
    "find_source_line",
    "get_builder",
    "make_line_scope",
    "ops",
]


class NoOperationError(Exception):
    """Raised by a builder that lacks an operation; the text is a clause with the reason."""


class Builder(Protocol):
    """Maker of the operations of another kind of graph."""

    def find(self, name: str) -> Callable[..., Any]:
        """Returns the function that TensorFlow calls `name`, such as "math.log"."""

    def find_dtype(self, name: str) -> Any:
        """Returns the dtype that TensorFlow calls `name`."""

    def in_calls(self, calls: Sequence[InlinedCall]) -> AbstractContextManager[None]:
        """Marks new operations as parts of calls, the outermost first."""


_builder: ContextVar[Builder | None] = ContextVar("builder", default=None)


@contextlib.contextmanager
def building(builder: Builder) -> Iterator[None]:
    """Makes `ops` the functions of a builder, in place of TensorFlow's."""
    token = _builder.set(builder)
    try:
        yield
    finally:
        _builder.reset(token)


def get_builder() -> Builder | None:
    """Returns the builder, or None for TensorFlow."""
    return _builder.get()


class _Function:
    """A function of the builder by its name, such as "math.log", looked up when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        builder = _builder.get()
        if builder is not None:
            return builder.find(self._name)(*args, **kwargs)
        return self._of_tensorflow(*args, **kwargs)

    @functools.cached_property
    def _of_tensorflow(self) -> Callable[..., Any]:
        import tensorflow

        function: Callable[..., Any] = operator.attrgetter(self._name)(tensorflow)
        return function

    def __getattr__(self, name: str) -> _Function:
        if name.startswith("__"):
            raise AttributeError(name)
        function = _Function(f"{self._name}.{name}")
        setattr(self, name, function)
        return function


_DTYPES = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    }
)


class _Operations:
    """The functions of the builder. Dtypes are the builder's own, so tables must not hold them."""

    newaxis = None

    def __getattr__(self, name: str) -> Any:
        if name in _DTYPES:
            builder = _builder.get()
            if builder is not None:
                return builder.find_dtype(name)
            import tensorflow

            return getattr(tensorflow, name)
        if name.startswith("__"):
            raise AttributeError(name)
        function = _Function(name)
        setattr(self, name, function)
        return function


if TYPE_CHECKING:
    import tensorflow as ops
else:
    ops = _Operations()


# Names of operations with the user's source lines.

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.\-]+")
_SCOPE = re.compile(r"(?:^|/)at\.([^/]+)\.(\d+)/")


def make_line_scope(source: str) -> str:
    """Returns the absolute name scope of a source line; it does not nest in the current scope.

    >>> make_line_scope("models/net.py:12")
    'at.net.py.12/'
    """
    file, _, line = source.replace("\\", "/").rpartition(":")
    file_name = _FORBIDDEN.sub("_", file.rpartition("/")[2])
    return f"at.{file_name}.{line}/"


def find_source_line(name: str) -> str | None:
    """Returns the source line in an operation's name; None if there is none.

    >>> find_source_line("at.net.py.12/while/Add_1"), find_source_line("while/Add_1")
    ('net.py:12', None)
    """
    scopes = _SCOPE.findall(name)
    if not scopes:
        return None
    file, line = scopes[-1]
    return f"{file}:{line}"
