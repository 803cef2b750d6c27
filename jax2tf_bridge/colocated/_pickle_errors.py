"""Finds the captured name, attribute or element that prevents pickling an object."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from jax2tf_bridge.errors import NotPicklableError

_MAX_SECONDS = 10.0
_MAX_DEPTH = 30
# An object that is nested too deeply fails at every level. Only the outermost name is useful.
_MAX_DEPTH_IN_NESTED = 1


class _NullFile:
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

    def find_error(self, obj: Any) -> Exception | None:
        """Returns the exception that pickling the object raises; None if it raises none."""
        try:
            self.dump(obj, _NullFile())
        except Exception as e:
            return e
        return None

    def iter_failing(self, children: Sequence[Child]) -> Iterator[tuple[Child, Exception]]:
        """Yields the children that cannot be pickled, in order; bisects to pickle less often."""
        if not children or time.monotonic() > self.end:
            return
        error = self.find_error([child.value for child in children])
        if error is None:
            return
        if len(children) == 1:
            yield children[0], error
            return
        half = len(children) // 2
        yield from self.iter_failing(children[:half])
        yield from self.iter_failing(children[half:])

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
        for child, child_error in self.iter_failing(_list_children(obj)):
            if id(child.value) not in seen:
                culprit = self.descend(child.value, child_error, (*path, child), seen)
                if culprit is not None:
                    return culprit
            fails_by_outer = True
        return None if fails_by_outer else _Culprit(path, error)


def _list_children(obj: Any) -> list[Child]:
    children: list[Child] = []
    # Inspecting foreign objects may raise anything. Keep the children found before that.
    with contextlib.suppress(Exception):
        children.extend(_iter_children(obj))
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
    name = _get_display_name(obj)
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


# Types whose children are listed directly, or that have none.
_CONTAINERS = (dict, list, tuple, set, frozenset)
_KNOWN_TYPES = (
    *(FunctionType, MethodType, CellType, functools.partial),
    *(str, bytes, bytearray, int, float, complex, type(None)),
)


@dataclass(frozen=True)
class Child:
    """Object that is pickled as a part of another object, its owner.

    Attributes:
      text: the role of the object in its owner, such as "closure variable model".
      suffix: the text to append to the name of the owner, such as ".model" or "['model']".
      value: the object.
    """

    text: str
    suffix: str
    value: Any


def _get_display_name(obj: Any) -> str:
    if isinstance(obj, functools.partial):
        return f"partial of {_get_display_name(obj.func)}"
    name = _get_attribute(obj, "__qualname__") or _get_attribute(obj, "__name__")
    if isinstance(name, str) and name:
        # The name of the enclosing function does not help the user.
        return name.rsplit("<locals>.", 1)[-1]
    return f"the {type(obj).__qualname__}"


def find_importable_name(obj: Any) -> str | None:
    """Returns the name by which other processes can import a function or class from its module.

    Returns None if the object is not in a module, or is in __main__.
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return None
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return name if value is obj else None


def _iter_children(obj: Any) -> Iterator[Child]:
    """Yields the parts of an object that are pickled with it. Parts with good names come first."""
    if isinstance(obj, FunctionType):
        yield from _iter_function(obj)
    elif isinstance(obj, functools.partial):
        yield Child("its function", ".func", obj.func)
        for i, value in enumerate(obj.args):
            yield Child(f"argument {i}", f".args[{i}]", value)
        for name, value in obj.keywords.items():
            yield Child(f"argument {name}", f".keywords[{name!r}]", value)
    elif isinstance(obj, MethodType):
        yield Child("its object", ".__self__", obj.__self__)
        yield Child("its function", ".__func__", obj.__func__)
    elif isinstance(obj, CellType):
        yield from _iter_cell("", obj)
    elif isinstance(obj, Mapping):
        yield from (Child(f"key {key!r:.60}", "", key) for key in obj)
        yield from (Child(f"[{key!r:.60}]", f"[{key!r:.60}]", v) for key, v in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        names = getattr(obj, "_fields", None)
        for i, value in enumerate(obj):
            if names:
                yield _make_attribute_child(names[i], value)
            else:
                yield Child(f"[{i}]", f"[{i}]", value)
    elif isinstance(obj, type):
        yield from _iter_class(obj)
    if not isinstance(obj, (type, *_KNOWN_TYPES)) and type(obj) not in _CONTAINERS:
        yield from _iter_object(obj)


def _get_attribute(obj: Any, name: str) -> Any:
    try:
        return getattr(obj, name, None)
    except Exception:
        return None


def _make_attribute_child(name: str, value: Any) -> Child:
    return Child(f"attribute {name}", f".{name}", value)


def _iter_cell(name: str, cell: CellType) -> Iterator[Child]:
    try:
        value = cell.cell_contents
    except ValueError:  # the cell is empty
        return
    yield Child(f"closure variable {name}", f".{name}", value)


def _iter_function(function: FunctionType) -> Iterator[Child]:
    if find_importable_name(function) is not None:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from _iter_cell(name, cell)
    for name in sorted(_find_global_names(function.__code__)):
        if name in function.__globals__:
            value = function.__globals__[name]
            yield Child(f"global {name}", f".{name}", value)
    count = function.__code__.co_argcount
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[count - len(defaults) : count]
    for name, value in (
        *zip(names, defaults, strict=True),
        *(function.__kwdefaults__ or {}).items(),
    ):
        yield Child(f"default of {name}", f".{name}", value)
    for name, value in vars(function).items():
        yield _make_attribute_child(name, value)
    for name, value in function.__annotations__.items():
        yield Child(f"annotation of {name}", f".__annotations__[{name!r}]", value)


def _find_global_names(code: CodeType) -> set[str]:
    """Returns the names that code and its nested functions may look up in the module."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _find_global_names(constant)
    return names


def _iter_class(cls: type) -> Iterator[Child]:
    if find_importable_name(cls) is not None:
        return
    for base in cls.__bases__:
        yield Child(f"base class {base.__qualname__}", ".__bases__", base)
    for name, value in vars(cls).items():
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
            continue
        if name not in {"__dict__", "__weakref__"}:
            yield _make_attribute_child(name, value)


def _iter_object(obj: Any) -> Iterator[Child]:
    function = _get_attribute(obj, "__wrapped__")
    if callable(function):
        yield Child("the function in it", "", function)
    yield from _iter_state(obj)
    if find_importable_name(type(obj)) is None:
        yield Child("its class", ".__class__", type(obj))


def _iter_state(obj: Any) -> Iterator[Child]:
    """Yields the objects in the result of __reduce_ex__. Attributes with names come first."""
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception:  # the object itself is the culprit
        return
    if not isinstance(reduced, tuple):
        return
    attributes: dict[str, Any] = {}
    arguments, state, items, pairs = (*reduced[1:], None, None, None, None)[:4]
    unnamed_parts = list(arguments or ())
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, dict):
            attributes |= {str(name): value for name, value in part.items()}
        elif part is not None:
            unnamed_parts.append(part)
    unnamed_parts += list(items or ())
    unnamed_parts += [pair[1] for pair in pairs or ()]
    for name, value in attributes.items():
        yield _make_attribute_child(name, value)
    for value in unnamed_parts:
        # The class is a child of its own, and the object must not be its own child.
        if not isinstance(value, type) and value is not obj:
            yield Child(f"a part of the {type(obj).__qualname__}", "", value)
