"""Chooses buckets from the sizes that are expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import ShapeError

_Array: TypeAlias = npt.NDArray[Any]


def choose_buckets(sizes: Iterable[SupportsIndex], *, at_most: int = 8) -> tuple[int, ...]:
    """Chooses buckets so that padding each of these sizes to its bucket is the least work.

    Args:
      sizes: of the requests that are expected, as often as they are: for instance a day's log. Size
        0 counts for nothing.
      at_most: how many buckets there may be. Each costs a compile, and a request of warm-up.

    Returns:
      The buckets, increasing; the last is the largest size. The sum of bucket(size) over all sizes
      is as small as so many buckets allow; of several such choices it is one with the fewest.

    Raises:
      ShapeError: a size is no integer or negative, or there are none above 0; at_most is below 1.

    >>> choose_buckets([1, 1, 1, 7, 8, 100], at_most=3)
    (1, 8, 100)
    """
    if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
        raise ShapeError(f"at_most={at_most!r}: at least one bucket is needed")
    counts = Counter(map(_size, sizes))
    del counts[0]
    if not counts:
        raise ShapeError("no buckets can be chosen: no size above 0 is expected")
    if max(counts) >= 2**31:
        raise ShapeError(f"{max(counts)} is no size: they are below {2**31}")
    distinct = np.array(sorted(counts), np.int64)
    # How many requests have one of the first i sizes.
    requests = np.cumsum([0, *(counts[size] for size in distinct.tolist())])
    return _least_work(distinct, requests, min(at_most, len(distinct)))


def _least_work(distinct: _Array, requests: _Array, at_most: int) -> tuple[int, ...]:
    """Optimizes by dynamic programming over the number of buckets and the sizes that they serve."""
    count = len(distinct)
    # work[i]: the least that the first i sizes cost with the buckets so far.
    work = np.full(count + 1, np.inf)
    work[0] = 0
    choices: list[_Array] = []
    for _ in range(at_most):
        longer, before = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
        for last in range(1, count + 1):
            # The sizes from `first` to `last` go to a bucket of their own.
            costs = work[:last] + distinct[last - 1] * (requests[last] - requests[:last])
            before[last] = first = costs.argmin()
            longer[last] = costs[first]
        work = longer
        choices.append(before)
    buckets = []
    last = count
    for before in reversed(choices):
        buckets.append(int(distinct[last - 1]))
        last = int(before[last])
    return tuple(reversed(buckets))


def _size(given: object) -> int:
    if (size := as_integer(given)) is None:
        raise ShapeError(f"{given!r} is no size: expected an integer")
    if size < 0:
        raise ShapeError(f"{size} is no size: it is negative")
    return size
