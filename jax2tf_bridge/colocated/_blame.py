"""Finds what keeps an object from being pickled: a captured name, an attribute, an element."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.colocated._parts import Part, name_of, parts_of
from jax2tf_bridge.errors import NotPicklableError

_SECONDS = 10.0
_DEPTH = 30
# What is nested too deeply fails at every depth: the name at the top of it is what helps.
_DEPTH_OF_NESTING = 1


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


@dataclass(frozen=True)
class _Found:
    """The smallest part that fails, and the way to it."""

    way: tuple[Part, ...]
    error: Exception


class _Search:
    """The search for the smallest part that fails, within a time."""

    def __init__(self, dump: Callable[[Any, Any], None], depth: int) -> None:
        self.dump, self.depth = dump, depth
        self.end = time.monotonic() + _SECONDS

    def error_of(self, obj: Any) -> Exception | None:
        """What pickling the object raises."""
        try:
            self.dump(obj, _Nowhere())
        except Exception as e:
            return e
        return None

    def failing(self, parts: Sequence[Part]) -> Iterator[tuple[Part, Exception]]:
        """The parts that fail, in order: many are tried at once."""
        if not parts or time.monotonic() > self.end:
            return
        error = self.error_of([part.value for part in parts])
        if error is None:
            return
        if len(parts) == 1:
            yield parts[0], error
            return
        half = len(parts) // 2
        yield from self.failing(parts[:half])
        yield from self.failing(parts[half:])

    def descend(
        self, obj: Any, error: Exception, way: tuple[Part, ...], seen: dict[int, Any]
    ) -> _Found | None:
        """The smallest part of a failing object; None if it fails only by what holds it."""
        seen[id(obj)] = obj
        if len(way) >= self.depth:
            return _Found(way, error)
        fails_by_outer = False
        for part, why in self.failing(_parts_of(obj)):
            if id(part.value) in seen:
                fails_by_outer = True
                continue
            found = self.descend(part.value, why, (*way, part), seen)
            if found is not None:
                return found
            fails_by_outer = True
        return None if fails_by_outer else _Found(way, error)


def _parts_of(obj: Any) -> list[Part]:
    parts = []
    # Looking at objects of others may raise anything; what was found before is looked into.
    with contextlib.suppress(Exception):
        for part in parts_of(obj):
            parts.append(part)
    return parts


def not_picklable(
    obj: Any, error: Exception, dump: Callable[[Any, Any], None]
) -> NotPicklableError:
    """The error for an object that `dump` failed to pickle with `error`.

    `dump(obj, file)` is tried on the object's parts, on theirs, and so on.
    """
    # cloudpickle makes another exception of it.
    deep = isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)
    search = _Search(dump, _DEPTH_OF_NESTING if deep else _DEPTH)
    found = search.descend(obj, error, (), {}) or _Found((), error)
    whole = name_of(obj)
    culprit = found.way[-1].value if found.way else obj
    reason = "it is nested too deeply for pickle" if deep else _reason(found.error)
    advice = _advice(culprit, callable(obj))
    if not found.way:
        return NotPicklableError(
            f"{whole} cannot be sent to another process: {reason}. {advice}", culprit=whole
        )
    suffixes = "".join(part.suffix for part in found.way)
    way = " → ".join((whole, *(part.text for part in found.way)))
    return NotPicklableError(
        f"{whole} {'captures' if callable(obj) else 'holds'} `{suffixes.removeprefix('.')}`, "
        f"{_a(type(culprit))}, which cannot be sent to another process ({way}): {reason}. {advice}",
        culprit=whole + suffixes,
    )


def _a(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _reason(error: Exception) -> str:
    if isinstance(error, NotPicklableError):
        return str(error).rstrip(".")
    first = (str(error).strip() or "no reason given").splitlines()[0].rstrip(".")
    return f"{type(error).__name__}: {first}"


def _advice(culprit: Any, in_function: bool) -> str:
    # Files have lines to iterate over, also those that are only written to.
    if isinstance(culprit, Iterator) and not isinstance(culprit, io.IOBase):
        return "Send a list of what it yields."
    if in_function:
        return "Create it inside the function, or pass what it is made from as an argument."
    return "Send what it is made from, and make it in the other process."
