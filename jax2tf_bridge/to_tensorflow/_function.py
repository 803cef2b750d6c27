"""to_tf(): converts a portable function to a TensorFlow function, without JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge._dtypes import WIDENED, dtype_holds
from jax2tf_bridge.errors import DTypeError, make_mismatch_error
from jax2tf_bridge.portable import (
    Aval,
    CallStructure,
    HoldsPortable,
    PortableFunction,
    apply_target,
    as_portable_function,
)
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow._constants import EagerConstants
from jax2tf_bridge.to_tensorflow._dtypes import can_have_shape, op_dtype
from jax2tf_bridge.to_tensorflow._gradient import call_flat
from jax2tf_bridge.to_tensorflow._op import check_function
from jax2tf_bridge.to_tensorflow._shape_guards import format_known_shape
from jax2tf_bridge.to_tensorflow._tf_functions import opaque_to_autograph
from shape_poly import shape_text


@opaque_to_autograph
def to_tf(
    portable: PortableFunction | HoldsPortable,
    *,
    with_gradient: bool = True,
    target: Target | None = None,
) -> Callable[..., Any]:
    """Converts a portable function to a TF function. JAX is not needed.

    Args:
      portable: the result of `export`, from this or another process.
      with_gradient: whether the portable function's VJPs become its gradient. If False, asking for
        a gradient raises an error.
      target: a target without XLA, such as `Target.widest(xla=False)`, converts the module to
        TensorFlow's own operations, even if the function was exported for XLA. By default the
        function's own target decides.

    Returns:
      A function over tensors, tf.Variables, arrays and scalars, with the arguments and the
      result structure of the JAX function. It casts nothing: the arguments must have the
      portable function's dtypes. It works in eager mode, tf.function and SavedModels. Calling it
      raises StructureError, ShapeError or DTypeError for arguments that do not fit, each named by
      its path. If symbolic sizes contradict each other at run time, it raises
      tf.errors.InvalidArgumentError.

    Raises:
      ModuleError: the installed TF cannot run the module, the portable function does not match the
        module, or, without XLA, TensorFlow has no operation for one of the module's operations.
      DTypeError: TF lacks a dtype of an argument or result.
      FunctionError: `portable` is not a portable function.
    """
    function = apply_target(as_portable_function(portable, "to_tf"), target)
    check_function(function)
    arguments = CallStructure.of(function.in_tree, function.argument_names)
    paths = arguments.paths()
    constants = EagerConstants()

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = arguments.flatten(args, kwargs)
        tensors = list(map(_as_tensor, leaves, function.in_avals, paths))
        _check_arguments(function, tensors, paths)
        results = call_flat(function, tensors, with_gradient, constants)
        return function.out_tree.unflatten(iter(results))

    call.__name__ = call.__qualname__ = function.name
    call.__doc__ = repr(function)
    return opaque_to_autograph(call)


def _as_tensor(leaf: Any, aval: Aval, path: str) -> tf.Tensor:
    if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable):
        return tf.convert_to_tensor(leaf)
    # Python numbers have no dtype, so they take the one of the argument.
    dtype = op_dtype(aval, path) if isinstance(leaf, (bool, int, float, complex)) else None
    try:
        # The op takes int8 for a 4-bit integer, and XLA would drop bits of larger numbers.
        name = aval.dtype if aval.dtype in WIDENED else aval.op_dtype
        if dtype is not None and not dtype_holds(name, leaf):
            raise OverflowError(f"{name} does not hold {leaf}")
        return tf.convert_to_tensor(leaf, dtype)
    except (TypeError, ValueError, OverflowError) as e:
        raise DTypeError(
            f"The argument {path} must be a tensor, an array or a scalar for {aval}. "
            f"Got: {leaf!r:.200} of type {type(leaf).__name__}."
        ) from e


def _check_arguments(
    portable: PortableFunction, tensors: Sequence[tf.Tensor], paths: Sequence[str]
) -> None:
    shape_problems, dtype_problems = [], []
    advice = (
        "Nothing is cast or reshaped for you: use tf.cast or tf.reshape, or export the function "
        "for these."
    )
    for tensor, aval, path in zip(tensors, portable.in_avals, paths, strict=True):
        expected = op_dtype(aval, path)
        if tensor.dtype != expected:
            dtype_problems.append(f"{path}: expected {expected.name}, got {tensor.dtype.name}")
            if tensor.dtype.name == aval.module_dtype:
                advice = (
                    f"The target ({portable.target.name}) has {expected.name} in place of "
                    f"{tensor.dtype.name}: pass tf.cast({path}, tf.{expected.name})."
                )
        if not can_have_shape(tensor, aval):
            sizes = shape_text(aval.op_shape)
            shape_problems.append(
                f"{path}: expected shape {sizes}, got {format_known_shape(tensor)}"
            )
    if shape_problems or dtype_problems:
        raise make_mismatch_error(
            f"The arguments of {portable.name} are not those that it was exported with",
            shape_problems,
            dtype_problems,
            advice,
        )
