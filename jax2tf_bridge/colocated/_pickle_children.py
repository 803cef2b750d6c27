"""Children of an object as pickle sees them: captured names, attributes, elements."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

# Types whose children are known, or that have none.
_CONTAINERS = (dict, list, tuple, set, frozenset)
_PLAIN = (
    *(FunctionType, MethodType, CellType, functools.partial),
    *(str, bytes, bytearray, int, float, complex, type(None)),
)


@dataclass(frozen=True)
class Child:
    """An object that is pickled with another one.

    Attributes:
      text: its role there, as "closure variable model".
      suffix: how it follows its owner's name, as ".model" or "['model']".
      value: itself.
    """

    text: str
    suffix: str
    value: Any


def name_of(obj: Any) -> str:
    """Names an object for a message."""
    if isinstance(obj, functools.partial):
        return f"partial of {name_of(obj.func)}"
    name = _attribute_of(obj, "__qualname__") or _attribute_of(obj, "__name__")
    if isinstance(name, str) and name:
        # Its place within the function that made it tells nothing.
        return name.rsplit("<locals>.", 1)[-1]
    return f"the {type(obj).__qualname__}"


def importable_name(obj: Any) -> str | None:
    """Returns the name by which other processes find a function or class in its module.

    None for what is in no module, or in __main__.
    """
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is obj else None


def children_of(obj: Any) -> Iterator[Child]:
    """Yields the objects that are pickled with this one, those with telling names first."""
    if isinstance(obj, FunctionType):
        yield from _children_of_function(obj)
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
        yield from _cell("", obj)
    elif isinstance(obj, Mapping):
        yield from (Child(f"key {key!r:.60}", "", key) for key in obj)
        yield from (Child(f"[{key!r:.60}]", f"[{key!r:.60}]", v) for key, v in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        names = getattr(obj, "_fields", None)
        for i, value in enumerate(obj):
            if names:
                yield _attribute(names[i], value)
            else:
                yield Child(f"[{i}]", f"[{i}]", value)
    elif isinstance(obj, type):
        yield from _children_of_class(obj)
    if not isinstance(obj, (type, *_PLAIN)) and type(obj) not in _CONTAINERS:
        yield from _children_of_object(obj)


def _attribute_of(obj: Any, name: str) -> Any:
    """Returns an attribute, or None where the object raises anything."""
    try:
        return getattr(obj, name, None)
    except Exception:
        return None


def _attribute(name: str, value: Any) -> Child:
    return Child(f"attribute {name}", f".{name}", value)


def _cell(name: str, cell: CellType) -> Iterator[Child]:
    try:
        value = cell.cell_contents
    except ValueError:  # nothing is in it yet
        return
    yield Child(f"closure variable {name}", f".{name}", value)


def _children_of_function(function: FunctionType) -> Iterator[Child]:
    if importable_name(function) is not None:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from _cell(name, cell)
    for name in sorted(_global_names(function.__code__)):
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
        yield _attribute(name, value)
    for name, value in function.__annotations__.items():
        yield Child(f"annotation of {name}", f".__annotations__[{name!r}]", value)


def _global_names(code: CodeType) -> set[str]:
    """Collects the names that code, and the functions in it, may look up in the module."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _children_of_class(cls: type) -> Iterator[Child]:
    if importable_name(cls) is not None:
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
            yield _attribute(name, value)


def _children_of_object(obj: Any) -> Iterator[Child]:
    wrapped = _attribute_of(obj, "__wrapped__")
    if callable(wrapped):
        yield Child("the function in it", "", wrapped)
    yield from _state(obj)
    if importable_name(type(obj)) is None:
        yield Child("its class", ".__class__", type(obj))


def _state(obj: Any) -> Iterator[Child]:
    """Yields what __reduce_ex__ gives, by the names of attributes where there are some."""
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception:  # the object itself is the culprit
        return
    if not isinstance(reduced, tuple):
        return
    attributes: dict[str, Any] = {}
    arguments, state, items, pairs = (*reduced[1:], None, None, None, None)[:4]
    others = list(arguments or ())
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, dict):
            attributes |= {str(name): value for name, value in part.items()}
        elif part is not None:
            others.append(part)
    others += list(items or ())
    others += [pair[1] for pair in pairs or ()]
    for name, value in attributes.items():
        yield _attribute(name, value)
    for value in others:
        # The class and the attributes are looked at by themselves.
        if not isinstance(value, type) and value is not obj:
            yield Child(f"a part of the {type(obj).__qualname__}", "", value)
