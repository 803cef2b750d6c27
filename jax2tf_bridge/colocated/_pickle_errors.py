"""Finds the captured name, attribute or element that prevents pickling an object."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.colocated._pickle_children import Child, display_name, iter_children
from jax2tf_bridge.errors import NotPicklableError

_MAX_SECONDS = 10.0
_MAX_DEPTH = 30
# An object that is nested too deeply fails at every level. Only the outermost name is useful.
_MAX_DEPTH_IN_NESTED = 1


class _NullFile:
    """File that discards all data."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


@dataclass(frozen=True)
class _Culprit:
    """Path to the smallest object that cannot be pickled, and the error that it raises."""

    path: tuple[Child, ...]
    error: Exception


class _PickleSearch:
    """Search for the smallest object that cannot be pickled. It stops after ten seconds."""

    def __init__(self, dump: Callable[[Any, Any], None], depth: int) -> None:
        self.dump, self.depth = dump, depth
        self.end = time.monotonic() + _MAX_SECONDS

    def error_of(self, obj: Any) -> Exception | None:
        """Returns the exception that pickling the object raises; None if it raises none."""
        try:
            self.dump(obj, _NullFile())
        except Exception as e:
            return e
        return None

    def failing(self, children: Sequence[Child]) -> Iterator[tuple[Child, Exception]]:
        """Yields the children that cannot be pickled, in order. Bisects, to pickle less often."""
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
    ) -> _Culprit | None:
        """Returns the smallest object in `obj` that cannot be pickled.

        Returns None if `obj` fails only because it refers back to an object that contains it.
        """
        seen[id(obj)] = obj
        if len(path) >= self.depth:
            return _Culprit(path, error)
        fails_by_outer = False
        for child, child_error in self.failing(_list_children(obj)):
            if id(child.value) in seen:
                fails_by_outer = True
                continue
            culprit = self.descend(child.value, child_error, (*path, child), seen)
            if culprit is not None:
                return culprit
            fails_by_outer = True
        return None if fails_by_outer else _Culprit(path, error)


def _list_children(obj: Any) -> list[Child]:
    children = []
    # Inspecting foreign objects may raise anything. Keep the children found before that.
    with contextlib.suppress(Exception):
        for child in iter_children(obj):
            children.append(child)
    return children


def make_not_picklable_error(
    obj: Any, error: Exception, dump: Callable[[Any, Any], None]
) -> NotPicklableError:
    """Returns the error for an object that `dump` failed to pickle with `error`.

    Calls `dump(child, file)` for the children of the object, for their children, and so on.
    """
    # cloudpickle wraps a RecursionError in another exception.
    is_too_deep = isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)
    search = _PickleSearch(dump, _MAX_DEPTH_IN_NESTED if is_too_deep else _MAX_DEPTH)
    culprit = search.descend(obj, error, (), {}) or _Culprit((), error)
    name = display_name(obj)
    smallest = culprit.path[-1].value if culprit.path else obj
    reason = "it is nested too deeply for pickle" if is_too_deep else _format_reason(culprit.error)
    advice = _format_advice(smallest, callable(obj))
    if not culprit.path:
        return NotPicklableError(
            f"{name} cannot be sent to another process: {reason}. {advice}", culprit=name
        )
    suffixes = "".join(child.suffix for child in culprit.path)
    path = " → ".join((name, *(child.text for child in culprit.path)))
    return NotPicklableError(
        f"{name} {'captures' if callable(obj) else 'holds'} `{suffixes.removeprefix('.')}`, "
        f"{_with_article(type(smallest))}, which cannot be sent to another process ({path}): "
        f"{reason}. {advice}",
        culprit=name + suffixes,
    )


def _with_article(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _format_reason(error: Exception) -> str:
    if isinstance(error, NotPicklableError):
        return str(error).rstrip(".")
    first = (str(error).strip() or "no reason given").splitlines()[0].rstrip(".")
    return f"{type(error).__name__}: {first}"


def _format_advice(culprit: Any, in_function: bool) -> str:
    # All files are iterators, even those opened only for writing.
    if isinstance(culprit, Iterator) and not isinstance(culprit, io.IOBase):
        return "Send a list of what it yields."
    if in_function:
        return "Create it inside the function, or pass what it is made from as an argument."
    return "Send what it is made from, and make it in the other process."
