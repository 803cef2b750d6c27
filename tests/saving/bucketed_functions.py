"""JAX functions with buckets, as the tests of padding and of serving use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge import export, to_tf
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.saving.buckets import (
    Bucketing,
    Inputs,
    NamedCall,
    make_bucketing,
    pad_to_buckets,
)
from jax2tf_bridge.signatures import make_valid_names
from shape_poly import symbolic_shape


@dataclass(frozen=True)
class NamedFunction:
    """Portable function over named tensors."""

    portable: PortableFunction
    inputs: Mapping[str, Aval]
    outputs: Mapping[str, Aval]

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        args, kwargs = self.portable.in_tree.unflatten(tensors[name] for name in self.inputs)
        results = self.portable.out_tree.flatten(to_tf(self.portable)(*args, **kwargs))
        return dict(zip(self.outputs, results, strict=True))

    def bucketing(self, buckets: Mapping[str, Sequence[int]], **options: Any) -> Bucketing:
        constraints = (*self.portable.constraints, *self.portable.requirements)
        return make_bucketing(
            "f", self.inputs, self.outputs, buckets, constraints=constraints, **options
        )

    def pad_to_buckets(self, buckets: Mapping[str, Sequence[int]], **options: Any) -> Any:
        return pad_to_buckets(without_weights(self), self.bucketing(buckets, **options))


def without_weights(call: NamedCall) -> Callable[[Inputs], Mapping[str, Any]]:
    """Makes a function as `pad_to_buckets` takes it of one that holds no weights."""
    return lambda inputs: call(inputs.named)


def named(f: Callable[..., Any], *args: Any, shapes: Any = "(b, ...)", **options: Any) -> Any:
    """Exports a function for the CPU, with its arguments and results by name."""
    portable = export(f, polymorphic_shapes=shapes, platforms=["cpu"], **options)(*args)
    inputs = make_valid_names(portable.in_paths(), "input")
    outputs = make_valid_names(portable.out_tree.leaf_paths(), "output")
    in_avals, out_avals = (
        [Aval(a.op_shape, a.op_dtype) for a in avals]
        for avals in (portable.in_avals, portable.out_avals)
    )
    return NamedFunction(
        portable,
        dict(zip(inputs, in_avals, strict=True)),
        dict(zip(outputs, out_avals, strict=True)),
    )


def aval(shape: str, dtype: str = "float32") -> Aval:
    return Aval(symbolic_shape(shape), dtype)


def traced(call: Any, bucketing: Bucketing) -> Any:
    """Traces a function in a tf.function that knows no sizes but the fixed ones, as it is saved."""
    specs = {
        name: tf.TensorSpec(
            [d if isinstance(d, int) else None for d in aval.op_shape], aval.op_dtype, name
        )
        for name, aval in bucketing.passed_inputs().items()
    }
    function = tf.function(lambda **tensors: call(tensors), autograph=False)
    concrete = function.get_concrete_function(**specs)
    return lambda tensors: concrete(**tensors)
