"""Pools of values that a .jaxfn file holds once; they get indices in the order they come."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Pool(Generic[T]):
    """Values without repetitions, in the order in which they came.

    Values of different types that are equal (1, True) must not come into one pool.

    >>> pool = Pool[str]()
    >>> [pool.index(text) for text in "abca"], pool.values()
    ([0, 1, 2, 0], ('a', 'b', 'c'))
    """

    def __init__(self) -> None:
        self._indices: dict[T, int] = {}

    def index(self, value: T) -> int:
        """Finds the index of a value, which is added if it is new."""
        return self._indices.setdefault(value, len(self._indices))

    def values(self) -> tuple[T, ...]:
        """Lists all values, each at its index."""
        return tuple(self._indices)
