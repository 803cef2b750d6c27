"""Splits the rows of a table into a sample for every run and the rest for a release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def sampled(
    rows: Sequence[T], *, every: int, keep: Callable[[T], bool] | Iterable[T] = ()
) -> list[Any]:
    """Makes parameters of all rows, and marks those outside of the sample with `complete`.

    Args:
      rows: what `pytest.mark.parametrize` would take.
      every: the sample has the rows at 0, every, 2 * every and so on.
      keep: rows that are in the sample as well, or a test that says which.

    >>> [[mark.name for mark in row.marks] for row in sampled("abcd", every=3, keep="b")]
    [[], [], ['complete'], []]
    """
    kept = keep if callable(keep) else list(keep).__contains__
    return [
        pytest.param(row)
        if index % every == 0 or kept(row)
        else pytest.param(row, marks=pytest.mark.complete)
        for index, row in enumerate(rows)
    ]
