"""Defines call_tf(), which makes a JAX function from a TensorFlow function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import tensorflow as tf

from jax2tf_bridge.calling_tf._functions import CallOptions, UserFunction
from jax2tf_bridge.calling_tf._primitives import call
from jax2tf_bridge.calling_tf._results import UNSPECIFIED, DeclaredResults
from jax2tf_bridge.calling_tf._values import check_argument
from jax2tf_bridge.errors import FunctionError
from jax2tf_bridge.from_jax.trees import register_wrappers
from jax2tf_bridge.to_tensorflow import opaque_to_autograph, tf_compat


def get_function_name(f: Any) -> str:
    """Returns a name of a TensorFlow function for error messages."""
    if isinstance(f, tf.types.experimental.ConcreteFunction):
        name = f.name
        return name.decode() if isinstance(name, bytes) else str(name)
    name = getattr(f, "__name__", None) or getattr(f, "name", None)
    return name if isinstance(name, str) and name else type(f).__name__


def label_arguments(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> list[str]:
    """Labels each leaf of the arguments for error messages, such as "params['w']"."""
    names = _list_parameters(f)
    labels = []
    for path, _ in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        first, rest = path[1], jax.tree_util.keystr(path[2:])
        if isinstance(first, jax.tree_util.DictKey):
            labels.append(f"{first.key}{rest}")
        else:
            i = getattr(first, "idx", 0)
            labels.append(f"{names[i] if i < len(names) else f'argument {i}'}{rest}")
    return labels


def _list_parameters(f: Callable[..., Any]) -> list[str]:
    """Lists the names of the positional parameters; empty if the signature is unknown."""
    function = getattr(f, "python_function", f)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


@opaque_to_autograph
def call_tf(
    callable_tf: Callable[..., Any],
    has_side_effects: bool = True,
    ordered: bool = False,
    output_shape_dtype: Any = UNSPECIFIED,
    call_tf_graph: bool = False,
) -> Callable[..., Any]:
    """Makes a JAX function from a TensorFlow function.

    Called on arrays, the function runs operation by operation in eager TensorFlow. In jax.jit,
    scan, cond, while_loop and `convert`, XLA compiles it, and the result becomes part of the JAX
    program, on every platform; with custom calls, only on platforms that the installed TensorFlow
    has devices for. The function supports jax.vmap, and reverse-mode differentiation of as many
    orders as TensorFlow supports.

    Args:
      callable_tf: a function of tensors, a tf.function, a tf.Module or Keras model, or a function
        of a reloaded SavedModel. Calls read the current values of its tf.Variables; a compiled
        program contains the values at the time of compilation as constants.
      has_side_effects: whether a call is a side effect, which JAX does not drop. jax.checkpoint,
        which calls a function twice, rejects such calls if they change variables or draw random
        numbers.
      ordered: whether calls that draw random numbers or change variables keep their order.
      output_shape_dtype: a pytree of jax.ShapeDtypeStruct that the results must match. Pass it if
        TensorFlow does not know the shapes of the results before it runs. None declares a function
        without results. By default, all results that are arrays are accepted.
      call_tf_graph: whether `convert` and `export` embed the function as a TensorFlow graph, which
        TensorFlow compiles where the model runs, for any platform and sizes. jax.jit and jax.export
        cannot run such a function: NotExportableError.

    Returns:
      A function that takes pytrees of arrays and numbers, positional or by keyword, and returns a
      pytree of arrays; 64-bit results become 32-bit unless jax_enable_x64 is set. A call raises
      DTypeError for arguments of a dtype that TensorFlow lacks; CallTfError if the function
      raises; StructureError, ShapeError or DTypeError if its results cannot be arrays or are not
      as declared; UnsupportedByTargetError or PlatformError if XLA cannot compile it; and
      GradientError if it has no gradient, or in forward mode.

    Raises:
      FunctionError: `callable_tf` is not callable.
      StructureError, ShapeError: output_shape_dtype does not declare arrays.

    >>> import jax, jax.numpy as jnp, tensorflow as tf
    >>> f = call_tf(lambda x: tf.square(x))
    >>> float(f(3.0)), float(jax.jit(f)(3.0)), float(jax.grad(f)(3.0))
    (9.0, 9.0, 6.0)
    """
    if not callable(callable_tf):
        raise FunctionError(
            f"call_tf expected a TensorFlow function. Got: {callable_tf!r:.200} of type "
            f"{type(callable_tf).__name__}, which cannot be called."
        )
    register_wrappers(*tf_compat.wrapper_types())
    name = get_function_name(callable_tf)
    declared = DeclaredResults.of(output_shape_dtype, name, graph=call_tf_graph)
    options = CallOptions(has_side_effects or ordered, ordered, declared, call_tf_graph)
    functions: dict[Any, UserFunction] = {}

    def jax_function(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = jax.tree_util.tree_flatten((args, kwargs))
        labels = label_arguments(callable_tf, args, kwargs)
        values = [
            check_argument(leaf, label, name) for leaf, label in zip(leaves, labels, strict=True)
        ]
        function = functions.get(in_tree)
        if function is None:
            new_function = UserFunction(callable_tf, in_tree, name, options)
            function = functions.setdefault(in_tree, new_function)
        results, structure = call(function, values)
        return jax.tree_util.tree_unflatten(structure, results)

    functools.update_wrapper(jax_function, callable_tf, assigned=("__doc__",), updated=())
    jax_function.__name__ = jax_function.__qualname__ = name
    return opaque_to_autograph(jax_function)
