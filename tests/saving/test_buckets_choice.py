"""Buckets chosen from expected sizes are the best ones, compared with trying all."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.saving import choose_buckets


def padded_work(sizes: Sequence[int], buckets: Sequence[int]) -> int:
    return sum(min(bucket for bucket in buckets if bucket >= size) for size in sizes if size > 0)


def least_work(sizes: Sequence[int], at_most: int) -> int:
    """By trying all buckets; only sizes that occur can be best."""
    distinct = sorted({size for size in sizes if size > 0})
    return min(
        padded_work(sizes, (*chosen, distinct[-1]))
        for count in range(min(at_most, len(distinct)))
        for chosen in itertools.combinations(distinct[:-1], count)
    )


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any),
    st.integers(1, 6),
)
def test_no_choice_is_better(sizes: list[int], at_most: int) -> None:
    buckets = choose_buckets(sizes, at_most=at_most)
    assert len(buckets) <= at_most
    assert list(buckets) == sorted(set(buckets))
    assert buckets[-1] == max(sizes)
    assert set(buckets) <= set(sizes) - {0}
    assert padded_work(sizes, buckets) == least_work(sizes, at_most)


def test_what_is_frequent_gets_a_bucket() -> None:
    assert choose_buckets([1] * 1000 + [100, 128, 90], at_most=2) == (1, 128)
    assert choose_buckets([5, 5, 5]) == (5,)
    assert choose_buckets([0, 3, 0, 1]) == (1, 3)
    assert choose_buckets(np.array([3, 1, 2], np.int32)) == (1, 2, 3)


def test_sizes_that_are_spread_evenly_get_even_buckets() -> None:
    assert choose_buckets(range(1, 129)) == (16, 32, 48, 64, 80, 96, 112, 128)


def test_many_sizes_take_no_time() -> None:
    generator = random.Random(0)
    sizes = [generator.randint(1, 4000) for _ in range(100_000)]
    start = time.monotonic()
    buckets = choose_buckets(sizes, at_most=16)
    assert time.monotonic() - start < 20
    assert len(buckets) == 16


@pytest.mark.parametrize(
    ("sizes", "at_most", "message"),
    [
        ([], 8, "No buckets can be chosen, since no size is above 0. Pass expected sizes."),
        ([0, 0], 8, "No buckets can be chosen, since no size is above 0. Pass expected sizes."),
        ([3, -1], 8, "-1 is not a size: it is negative"),
        ([3, 1.5], 8, "1.5 is not a size: expected an integer"),
        ([True], 8, "True is not a size: expected an integer"),
        ([2**31], 8, "2147483648 is not a size: sizes are below 2147483648"),
        (
            Counter([8, 8]),
            8,
            "The expected sizes must be integers in a list, as [1, 8, 32]. Got: Counter({8: 2}).",
        ),
        ([3], 0, "at_most=0: expected an integer, 1 or more"),
        ([3], 2.0, "at_most=2.0: expected an integer, 1 or more"),
    ],
)
def test_what_is_no_size(sizes: Any, at_most: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        choose_buckets(sizes, at_most=at_most)
