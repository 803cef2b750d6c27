"""Finds the captured name, attribute or element that keeps an object from being pickled."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.colocated._pickle_children import Child, children_of, name_of
from jax2tf_bridge.errors import NotPicklableError

_SECONDS = 10.0
_DEPTH = 30
# An object that is nested too deeply fails at every depth: the name at its top is what helps.
_DEPTH_OF_NESTING = 1


class _NullFile:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


@dataclass(frozen=True)
class _Found:
    """Path to the smallest object that fails, and what pickling that one raises."""

    path: tuple[Child, ...]
    error: Exception


class _Search:
    """A search for the smallest object that fails; it stops after ten seconds."""

    def __init__(self, dump: Callable[[Any, Any], None], depth: int) -> None:
        self.dump, self.depth = dump, depth
        self.end = time.monotonic() + _SECONDS

    def error_of(self, obj: Any) -> Exception | None:
        """Returns what pickling the object raises; None if that works."""
        try:
            self.dump(obj, _NullFile())
        except Exception as e:
            return e
        return None

    def failing(self, children: Sequence[Child]) -> Iterator[tuple[Child, Exception]]:
        """Yields the children that fail, in order; bisects, so that many are tried at once."""
        if not children or time.monotonic() > self.end:
            return
        error = self.error_of([child.value for child in children])
        if error is None:
            return
        if len(children) == 1:
            yield children[0], error
            return
        half = len(children) // 2
        yield from self.failing(children[:half])
        yield from self.failing(children[half:])

    def descend(
        self, obj: Any, error: Exception, path: tuple[Child, ...], seen: dict[int, Any]
    ) -> _Found | None:
        """Finds the smallest object within a failing one.

        None if it fails only through an object that holds it.
        """
        seen[id(obj)] = obj
        if len(path) >= self.depth:
            return _Found(path, error)
        fails_by_outer = False
        for child, why in self.failing(_known_children(obj)):
            if id(child.value) in seen:
                fails_by_outer = True
                continue
            found = self.descend(child.value, why, (*path, child), seen)
            if found is not None:
                return found
            fails_by_outer = True
        return None if fails_by_outer else _Found(path, error)


def _known_children(obj: Any) -> list[Child]:
    found = []
    # Looking at objects of others may raise anything; those found before that are kept.
    with contextlib.suppress(Exception):
        for child in children_of(obj):
            found.append(child)
    return found


def not_picklable(
    obj: Any, error: Exception, dump: Callable[[Any, Any], None]
) -> NotPicklableError:
    """Makes the error for an object that `dump` failed to pickle with `error`.

    Tries `dump(child, file)` on the object's children, on theirs, and so on.
    """
    # cloudpickle makes another exception of it.
    deep = isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)
    search = _Search(dump, _DEPTH_OF_NESTING if deep else _DEPTH)
    found = search.descend(obj, error, (), {}) or _Found((), error)
    whole = name_of(obj)
    culprit = found.path[-1].value if found.path else obj
    reason = "it is nested too deeply for pickle" if deep else _reason(found.error)
    advice = _advice(culprit, callable(obj))
    if not found.path:
        return NotPicklableError(
            f"{whole} cannot be sent to another process: {reason}. {advice}", culprit=whole
        )
    suffixes = "".join(child.suffix for child in found.path)
    path = " → ".join((whole, *(child.text for child in found.path)))
    return NotPicklableError(
        f"{whole} {'captures' if callable(obj) else 'holds'} `{suffixes.removeprefix('.')}`, "
        f"{_a(type(culprit))}, which cannot be sent to another process ({path}): {reason}. "
        f"{advice}",
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
