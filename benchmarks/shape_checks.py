"""Cost of checking shapes at run time: time per call, alone and in a call, and operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks import _measure
from benchmarks._models import mlp
from jax2tf_bridge import PortableFunction, export
from jax2tf_bridge.to_tensorflow import _op, check_shapes
from jax2tf_bridge.to_tensorflow._op import call_op
from jax2tf_bridge.to_tensorflow._shapes import CheckedShapes
from shape_poly import evaluate_shape

_COPIES = 100
"""Number of copies of a check in one graph; a single check is much faster than a call."""


def _skip_checks(portable: PortableFunction, *_: Any) -> CheckedShapes:
    """Replaces check_shapes."""
    results: list[Any] = [evaluate_shape(aval.op_shape, {}) for aval in portable.out_avals]
    return CheckedShapes(results, [], {})


def _trace(portable: PortableFunction, specs: Any, *, checked: bool) -> Any:
    """Traces a call of the portable function, with or without shape checks."""

    def call(*leaves: Any) -> Any:
        return call_op(portable, leaves, (), portable.in_paths, None)[0]

    function = tf.function(call, input_signature=specs, autograph=False)
    with mock.patch.object(_op, "check_shapes", check_shapes if checked else _skip_checks):
        return function.get_concrete_function()


def _count_operations(function: Any) -> int:
    return len(function.graph.get_operations())


def _attention(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.swapaxes(-1, -2)) @ v


def models() -> dict[str, tuple[PortableFunction, list[Any], list[Any]]]:
    """Returns the function, the traced argument specs and the arguments of each model."""
    model = mlp()
    x = model.inputs(1)
    portable = export(model.apply, polymorphic_shapes=[None, model.polymorphic_shape])(
        model.weights, x
    )
    # The portable function takes weights sorted by name.
    leaves = [model.weights[name] for name in sorted(model.weights)]
    specs = [tf.TensorSpec(leaf.shape) for leaf in leaves]
    values = [tf.constant(leaf) for leaf in [*leaves, x]]
    ones = np.ones((2, 3, 8), np.float32)
    attention = export(_attention, polymorphic_shapes=["(b, n, 8)", "(b, m, 8)", "(b, m, 8)"])(
        ones, ones, ones
    )
    return {
        "MLP, batch open": (portable, [*specs, tf.TensorSpec([None, 784])], values),
        "MLP, batch and width open": (portable, [*specs, tf.TensorSpec([None, None])], values),
        "attention, b, n and m open": (
            attention,
            [tf.TensorSpec([None, None, 8])] * 3,
            [tf.constant(ones)] * 3,
        ),
    }


def _trace_checks(portable: PortableFunction, specs: list[Any], *, checked: bool) -> Any:
    """Traces _COPIES shape checks in one graph, without the calls."""
    arity = len(specs)

    def call(*leaves: Any) -> Any:
        for i in range(_COPIES if checked else 0):
            checked_shapes = check_shapes(portable, leaves[i * arity : (i + 1) * arity])
            with tf.control_dependencies(checked_shapes.guards):
                tf.no_op()
        return tf.constant(0)

    function = tf.function(call, input_signature=specs * _COPIES, autograph=False)
    return function.get_concrete_function()


def _make_call(f: Any, args: list[Any]) -> Callable[[], Any]:
    return lambda: np.asarray(f(*args))


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=41)
    options = parser.parse_args()
    rows, measured = [], []
    for name, (portable, specs, args) in models().items():
        _measure.print_progress(name)
        checked = _trace(portable, specs, checked=True)
        unchecked = _trace(portable, specs, checked=False)
        np.testing.assert_array_equal(checked(*args), unchecked(*args))
        times = _measure.measure_interleaved(
            {
                "checked": _make_call(checked, args),
                "unchecked": _make_call(unchecked, args),
                "checks": _make_call(_trace_checks(portable, specs, checked=True), args * _COPIES),
                "no checks": _make_call(
                    _trace_checks(portable, specs, checked=False), args * _COPIES
                ),
            },
            rounds=options.rounds,
        )
        spent = _measure.Spread.of(times["checked"])
        ratio = _measure.compute_ratios(times, "checked", "unchecked")
        alone = _measure.Spread.of(
            [(a - b) / _COPIES for a, b in zip(times["checks"], times["no checks"], strict=True)]
        )
        operations = _count_operations(checked) - _count_operations(unchecked)
        rows.append(
            [
                name,
                str(operations),
                _measure.seconds_text(alone.median),
                _measure.seconds_text(spent.median),
                ratio.ratio_text(),
            ]
        )
        measured.append(
            {
                "model": name,
                "operations added": operations,
                "seconds alone": alone,
                "seconds a call": spent,
                "to unchecked": ratio,
            }
        )
    _measure.report(
        "Shape checks at run time",
        ["model", "ops added", "checks alone", "a call", "x unchecked"],
        rows,
        measured,
        json_path=options.json,
    )


if __name__ == "__main__":
    main()
