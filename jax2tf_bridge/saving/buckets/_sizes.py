"""Chooses sizes: buckets for expected sizes, and sizes at which a function can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval
from shape_poly import Comparison, SymbolicScope, sample_sizes, variables_of

SMALLEST = (*range(1, 33), 48, 64, 96, 100, 128, 224, 256, 299, 384, 512, 768, 1000, 1024)
TYPICAL = (4, 3, 5, 8, 2, 6, 7, 16, 1, 9, 10, 12, 15, 24, 32, 64, 128, 224, 256, 512)
_MAX_SIZE = 1024
"""Maximum size that is chosen; larger sizes take long to run, so users have to name them."""


def find_sizes(
    name: str,
    avals: Iterable[Aval],
    constraints: Sequence[Comparison],
    known: Mapping[str, int],
    candidates: Sequence[int] = SMALLEST,
) -> dict[str, int]:
    """Finds sizes for all variables of a signature, besides the known ones.

    Args:
      name: the name of the signature, for messages.
      avals: the avals whose shapes contain the variables.
      constraints: the constraints on the variables.
      known: the sizes of some variables.
      candidates: the sizes to try, in this order.

    Raises:
      ShapeError: no sizes were found that satisfy the constraints.
    """
    names = {v for aval in avals for d in aval.op_shape for v in variables_of(d)} | set(known)
    free = sorted(names - set(known))
    sizes = next(
        sample_sizes(
            [*known, *free],
            SymbolicScope(constraints, check=False),
            among={variable: [size] for variable, size in known.items()},
            candidates=candidates,
            largest=_MAX_SIZE,
        ),
        None,
    )
    if sizes is None:
        relevant = [str(c) for c in constraints if c.variables() <= names]
        raise ShapeError(
            f"{name}: no sizes of {', '.join(free) or ', '.join(known)} were found that satisfy "
            f"{', '.join(relevant)}. Give {', '.join(free) or 'them'} buckets."
        )
    return sizes


_Array: TypeAlias = npt.NDArray[Any]


def choose_buckets(sizes: Iterable[SupportsIndex], *, at_most: int = 8) -> tuple[int, ...]:
    """Chooses buckets that minimize the work after padding each size to its bucket.

    Args:
      sizes: the sizes of the expected requests, each as often as it occurs, for instance from a
        day's log. Size 0 is ignored.
      at_most: the maximum number of buckets. Each costs a compile and a warm-up request.

    Returns:
      The buckets, increasing; the last is the largest size. The sum of bucket(size) over all sizes
      is the minimum for so many buckets; ties go to the choice with the fewest buckets.

    Raises:
      ShapeError: a size is no integer or is negative, no size is above 0, or at_most is below 1.

    >>> choose_buckets([1, 1, 1, 7, 8, 100], at_most=3)
    (1, 8, 100)
    """
    if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
        raise ShapeError(f"at_most={at_most!r}: at least one bucket is needed")
    counts = Counter(map(_validate_size, sizes))
    del counts[0]
    if not counts:
        raise ShapeError("no buckets can be chosen: no size above 0 is expected")
    if max(counts) >= 2**31:
        raise ShapeError(f"{max(counts)} is no size: they are below {2**31}")
    distinct = np.array(sorted(counts), np.int64)
    # requests[i]: the number of requests with one of the first i sizes.
    requests = np.cumsum([0, *(counts[size] for size in distinct.tolist())])
    return _minimize_work(distinct, requests, min(at_most, len(distinct)))


def _minimize_work(distinct: _Array, requests: _Array, at_most: int) -> tuple[int, ...]:
    """Minimizes by dynamic programming over the number of buckets and the sizes they serve."""
    count = len(distinct)
    # work[i]: the minimum cost of the first i sizes with the buckets so far.
    work = np.full(count + 1, np.inf)
    work[0] = 0
    choices: list[_Array] = []
    for _ in range(at_most):
        next_work, before = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
        for last in range(1, count + 1):
            # The sizes from `first` to `last` share one bucket.
            costs = work[:last] + distinct[last - 1] * (requests[last] - requests[:last])
            before[last] = first = costs.argmin()
            next_work[last] = costs[first]
        work = next_work
        choices.append(before)
    buckets = []
    last = count
    for before in reversed(choices):
        buckets.append(int(distinct[last - 1]))
        last = int(before[last])
    return tuple(reversed(buckets))


def _validate_size(value: object) -> int:
    if (size := as_integer(value)) is None:
        raise ShapeError(f"{value!r} is no size: expected an integer")
    if size < 0:
        raise ShapeError(f"{size} is no size: it is negative")
    return size
