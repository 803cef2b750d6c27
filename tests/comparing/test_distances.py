"""Distances between two results: what counts as equal, and the scale that they are relative to."""

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge.comparing import measure_distance

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("expected", "actual", "absolute", "relative", "differing"),
    [
        ([], [], 0, 0, 0),
        ([1.0, -4.0], [1.0, -4.0], 0, 0, 0),
        ([1.0, -4.0], [2.0, -4.0], 1, 0.25, 0.5),
        ([NAN, INF, -INF], [NAN, INF, -INF], 0, 0, 0),
        ([NAN, 2.0], [1.0, 2.0], INF, INF, 0.5),
        ([1.0, 2.0], [1.0, NAN], INF, INF, 0.5),
        ([INF, 2.0], [-INF, 2.0], INF, INF, 0.5),
        ([0.0, 0.0], [0.0, 1e-30], 1e-30, INF, 0.5),
        ([3 + 4j], [3 + 3j], 1, 0.2, 1),
        ([True, False], [True, True], 1, 1, 0.5),
    ],
)
def test_distance(
    expected: list[complex],
    actual: list[complex],
    absolute: float,
    relative: float,
    differing: float,
) -> None:
    distance = measure_distance(np.array(expected), np.array(actual))
    assert (distance.absolute, distance.relative()) == (absolute, relative)
    assert distance.differing == differing


def test_integers_that_float64_cannot_tell_apart_differ() -> None:
    distance = measure_distance(np.array([2**60]), np.array([2**60 + 1]))
    assert distance.absolute == 1
    assert distance.differing == 1


def test_a_minimum_of_the_scale() -> None:
    distance = measure_distance(np.array([0.01]), np.array([0.02]))
    assert distance.relative(0.1) == pytest.approx(0.1)


def test_narrow_floats_and_the_index_of_the_largest_difference() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]], ml_dtypes.bfloat16)
    actual = np.array([[1.0, 2.0], [3.5, 4.25]], ml_dtypes.bfloat16)
    assert measure_distance(expected, actual).index == (1, 0)
