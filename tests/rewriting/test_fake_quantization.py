"""Rounding to the steps of integers is found as hand-written code and libraries write it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import export
from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters import read
from jax2tf_bridge.portable import apply_target
from jax2tf_bridge.rewriting import FAKE_QUANTIZE, passes_for_tensorflow, run_passes
from jax2tf_bridge.targets import Target

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
SCALE = np.float32(0.05)
ZERO_POINT = np.int8(-3)


def _rounded(function: Any, *args: Any, **options: Any) -> list[Operation]:
    """Returns the operations that were found."""
    exported = export(function, platforms=["cpu"], **options)(*args)
    portable = apply_target(exported, Target.widest(xla=False))
    passes = passes_for_tensorflow(
        platform=None, checks_sizes=False, for_converters=False, finds_rounding=True
    )
    program = run_passes(read(portable), passes, "f")
    return [each for each in program.main.body.operations if each.name == FAKE_QUANTIZE]


def plain(x: Any, scale: Any) -> Any:
    return jnp.clip(jnp.round(x / scale), -127, 127) * scale


def estimator(x: Any, scale: Any) -> Any:
    return x + lax.stop_gradient(plain(x, scale) - x)


def clipped_first(x: Any, scale: Any) -> Any:
    return scale * jnp.round(jnp.clip(x / scale, -127, 127))


def by_clamp(x: Any, scale: Any) -> Any:
    return lax.clamp(-127.0, jnp.round(x / scale), 127.0) * scale


def through_bytes(x: Any, scale: Any) -> Any:
    """qwix's: the conversion to int8 clips."""
    return jnp.round(x / scale).astype(jnp.int8).astype(jnp.float32) * scale


def shifted(x: Any, scale: Any) -> Any:
    return (jnp.clip(jnp.round(x / scale) + 4, -128, 127) - 4) * scale


def shifted_before(x: Any, scale: Any) -> Any:
    """qwix's, with a zero point of int8."""
    zero_point = jnp.asarray(ZERO_POINT)
    steps = jnp.round(x / scale + zero_point.astype(x.dtype)).astype(jnp.int8)
    return (steps.astype(x.dtype) - zero_point.astype(x.dtype)) * scale


@pytest.mark.parametrize(
    ("function", "low", "high"),
    [
        (plain, -127, 127),
        (estimator, -127, 127),
        (clipped_first, -127, 127),
        (by_clamp, -127, 127),
        (through_bytes, -128, 127),
        (shifted, -128, 127),
        (shifted_before, -128, 127),
    ],
)
def test_what_is_found(function: Any, low: int, high: int) -> None:
    for arguments in (
        lambda f: (f, (X, SCALE)),
        lambda f: (lambda x: f(x, SCALE), (X,)),
        lambda f: (f, (X, np.full((1, 6), SCALE))),
    ):
        called, args = arguments(function)
        (found,) = _rounded(called, *args)
        assert (found.int("low"), found.int("high")) == (low, high)
        assert found.attributes["is_static"] is True
        assert len(found.operands) == 2 + ("shifted" in function.__name__)


def test_an_open_size_of_the_scale_is_static() -> None:
    (found,) = _rounded(estimator, X, SCALE, polymorphic_shapes=["(b, 6)", None])
    assert found.attributes["is_static"] is True


def test_a_scale_of_the_array_itself_is_not_static() -> None:
    (found,) = _rounded(lambda x: estimator(x, jnp.max(jnp.abs(x)) / 127), X)
    assert found.attributes["is_static"] is False


def test_numbers_above_zero_need_no_lower_bound() -> None:
    (found,) = _rounded(lambda x: plain(jnp.maximum(x, 0), SCALE), X)
    assert (found.int("low"), found.int("high")) == (-128, 127)


def _spread(scales: Any, axis: int) -> Any:
    return lax.broadcast_in_dim(scales, (4, 4), (axis,))


OTHERS = {
    "another scale": lambda x: jnp.clip(jnp.round(x / 0.05), -127, 127) * 0.06,
    "no bounds": lambda x: jnp.round(x / 0.05) * 0.05,
    "an upper bound alone": lambda x: jnp.minimum(jnp.round(x / 0.05), 127) * 0.05,
    "rounding down": lambda x: jnp.clip(jnp.floor(x / 0.05), -127, 127) * 0.05,
    "bounds between steps": lambda x: jnp.clip(jnp.round(x / 0.05), -127.5, 127) * 0.05,
    "another zero point": lambda x: (jnp.clip(jnp.round(x / 0.05) + 4, -128, 127) - 3) * 0.05,
    "a zero point between steps": lambda x: (
        (jnp.clip(jnp.round(x / 0.05) + 0.5, -128, 127) - 0.5) * 0.05
    ),
    "a clip before the zero point": lambda x: (
        (jnp.round(jnp.clip(x / 0.05, 0, 255)) + 4 - 4) * 0.05
    ),
    "a scale broadcast along another axis": lambda x: (
        jnp.clip(jnp.round(x[:4, :4] / _spread(x[0, :4], 1)), -127, 127) * _spread(x[0, :4], 0)
    ),
    "an axis of scales elsewhere": lambda x: (
        jnp.clip(jnp.round(x[:4, :4] / x[0, :4]), -127, 127) * x[0, :4, None]
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else(name: str) -> None:
    assert _rounded(OTHERS[name], X) == []


def test_only_the_same_array_makes_an_estimator() -> None:
    portable = export(lambda x, y: x + (plain(x, SCALE) - y))(X, X)
    (found,) = _rounded(lambda x, y: x + (plain(x, SCALE) - y), X, X)
    assert found.results[0] not in read(portable).main.body.returned
