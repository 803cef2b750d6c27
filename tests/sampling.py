"""How much of a table or a law is tried: a sample in every run, the rest before a release."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

THOROUGH = "JAX2TF_BRIDGE_THOROUGH"
"""With this environment variable, laws are tried on more examples, and files at every place."""


def sampled(
    rows: Sequence[T],
    *,
    every: int,
    keep: Callable[[T], bool] | Iterable[T] = (),
    others: pytest.MarkDecorator = pytest.mark.complete,
) -> list[Any]:
    """Makes parameters of all rows, and marks those outside of the sample.

    Args:
      rows: what `pytest.mark.parametrize` would take.
      every: the sample has the rows at 0, every, 2 * every and so on.
      keep: rows that are in the sample as well, or a test that says which.
      others: the mark of the rows that are not.

    >>> [[mark.name for mark in row.marks] for row in sampled("abcd", every=3, keep="b")]
    [[], [], ['complete'], []]
    """
    if callable(keep):
        kept = keep
    else:
        listed = list(keep)
        unknown = [row for row in listed if row not in rows]
        assert not unknown, f"to be kept, but no rows of the table: {unknown}"
        kept = listed.__contains__
    return [
        pytest.param(row) if index % every == 0 or kept(row) else pytest.param(row, marks=others)
        for index, row in enumerate(rows)
    ]


def stride(step: int) -> int:
    """Says how many places of a file or a list lie between those tried: `step`, or one."""
    return 1 if os.environ.get(THOROUGH) else step


def examples(count: int) -> int:
    """Says how many examples Hypothesis tries of a law: `count`, or ten times as many."""
    return 10 * count if os.environ.get(THOROUGH) else count
