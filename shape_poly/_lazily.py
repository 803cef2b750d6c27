"""Lazy attributes that do not block threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazily(Generic[T]):
    """Descriptor as functools.cached_property, whose lock in Python 3.11 all instances share.

    Where attributes of two classes are computed from each other, threads block each other
    forever by such locks. Here two threads may compute the same value instead.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Makes the attribute that `compute` gives."""
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> lazily[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> lazily[T] | T:
        """Computes the value and keeps it in the instance, where Python then finds it."""
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value
