"""What an object is made of, as pickling it sees it: names, attributes, elements."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

# Of these the parts are known, or there are none.
_CONTAINERS = (dict, list, tuple, set, frozenset)
_PLAIN = (
    *(FunctionType, MethodType, CellType, functools.partial),
    *(str, bytes, bytearray, int, float, complex, type(None)),
)


@dataclass(frozen=True)
class Part:
    """A part of an object.

    Attributes:
      text: what it is there, as "closure variable model".
      suffix: how it follows its owner's name, as ".model" or "['model']".
      value: itself.
    """

    text: str
    suffix: str
    value: Any


def name_of(obj: Any) -> str:
    """What to call an object in a message."""
    if isinstance(obj, functools.partial):
        return f"partial of {name_of(obj.func)}"
    name = _attribute_of(obj, "__qualname__") or _attribute_of(obj, "__name__")
    if isinstance(name, str) and name:
        # Its place within the function that made it tells nothing.
        return name.rsplit("<locals>.", 1)[-1]
    return f"the {type(obj).__qualname__}"


def parts_of(obj: Any) -> Iterator[Part]:
    """The parts that are pickled with an object, those with telling names first."""
    if isinstance(obj, FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, functools.partial):
        yield Part("its function", ".func", obj.func)
        for i, value in enumerate(obj.args):
            yield Part(f"argument {i}", f".args[{i}]", value)
        for name, value in obj.keywords.items():
            yield Part(f"argument {name}", f".keywords[{name!r}]", value)
    elif isinstance(obj, MethodType):
        yield Part("its object", ".__self__", obj.__self__)
        yield Part("its function", ".__func__", obj.__func__)
    elif isinstance(obj, CellType):
        yield from _cell("", obj)
    elif isinstance(obj, Mapping):
        yield from (Part(f"key {key!r:.60}", "", key) for key in obj)
        yield from (Part(f"[{key!r:.60}]", f"[{key!r:.60}]", v) for key, v in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        names = getattr(obj, "_fields", None)
        for i, value in enumerate(obj):
            if names:
                yield _attribute(names[i], value)
            else:
                yield Part(f"[{i}]", f"[{i}]", value)
    elif isinstance(obj, type):
        yield from _parts_of_class(obj)
    if not isinstance(obj, (type, *_PLAIN)) and type(obj) not in _CONTAINERS:
        yield from _parts_of_object(obj)


def _attribute_of(obj: Any, name: str) -> Any:
    """An attribute, or None: objects may do what they like when they are asked."""
    try:
        return getattr(obj, name, None)
    except Exception:
        return None


def _attribute(name: str, value: Any) -> Part:
    return Part(f"attribute {name}", f".{name}", value)


def _cell(name: str, cell: CellType) -> Iterator[Part]:
    try:
        value = cell.cell_contents
    except ValueError:  # nothing is in it yet
        return
    yield Part(f"closure variable {name}", f".{name}", value)


def _is_sent_by_name(obj: Any) -> bool:
    found: Any = sys.modules.get(obj.__module__ or "")
    if obj.__module__ == "__main__" or found is None:
        return False
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


def _parts_of_function(function: FunctionType) -> Iterator[Part]:
    if _is_sent_by_name(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from _cell(name, cell)
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            value = function.__globals__[name]
            yield Part(f"global {name}", f".{name}", value)
    count = function.__code__.co_argcount
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[count - len(defaults) : count]
    for name, value in (
        *zip(names, defaults, strict=True),
        *(function.__kwdefaults__ or {}).items(),
    ):
        yield Part(f"default of {name}", f".{name}", value)
    for name, value in vars(function).items():
        yield _attribute(name, value)
    for name, value in function.__annotations__.items():
        yield Part(f"annotation of {name}", f".__annotations__[{name!r}]", value)


def _global_names(code: CodeType) -> set[str]:
    """The names that code, and the functions written in it, may look up in the module."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _parts_of_class(cls: type) -> Iterator[Part]:
    if _is_sent_by_name(cls):
        return
    for base in cls.__bases__:
        yield Part(f"base class {base.__qualname__}", ".__bases__", base)
    for name, value in vars(cls).items():
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif inspect.isgetsetdescriptor(value) or inspect.ismemberdescriptor(value):
            continue
        if name not in {"__dict__", "__weakref__"}:
            yield _attribute(name, value)


def _parts_of_object(obj: Any) -> Iterator[Part]:
    wrapped = _attribute_of(obj, "__wrapped__")
    if callable(wrapped):
        yield Part("the function in it", "", wrapped)
    yield from _state(obj)
    if not _is_sent_by_name(type(obj)):
        yield Part("its class", ".__class__", type(obj))


def _state(obj: Any) -> Iterator[Part]:
    """What the object itself says that it is made of, by its attributes' names where it can."""
    try:
        reduced = obj.__reduce_ex__(4)
    except Exception:  # it is to blame itself
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
            yield Part(f"a part of the {type(obj).__qualname__}", "", value)
