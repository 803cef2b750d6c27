"""eval_polymorphic_shape(): computes the shapes of results without lowering the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.from_jax._export import call_text, export_options, given_assumptions
from jax2tf_bridge.from_jax._symbols import dim_to_jax
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.lowering import make_traced_function, out_structure
from jax2tf_bridge.from_jax.shapes import (
    check_requirements_allowed,
    infer,
    symbolic_specs,
    with_reshape_requirements,
)
from jax2tf_bridge.from_jax.trees import rebuilt
from jax2tf_bridge.portable import PolyConstraints


def eval_polymorphic_shape(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: PolyConstraints = (),
) -> Callable[..., tuple[Any, Any]]:
    """Computes the shapes and dtypes of results for arguments with open sizes.

    Args:
      fun_jax: the function, jitted or not.
      polymorphic_shapes: the open dimensions, as in `export`; not AUTO.
      polymorphic_constraints: as in `export`.

    Returns:
      A function of the arguments of `fun_jax` (arrays, jax.ShapeDtypeStruct, or other objects with
      a shape and a dtype). It returns two pytrees with the structure of the results: one of
      jax.ShapeDtypeStruct with JAX's symbolic dimensions, and one of texts such as "(b, 28)", which
      can be passed on as polymorphic_shapes.

    Raises:
      FunctionError: `fun_jax` is not callable.
      ShapeError, DTypeError, StructureError: the arguments do not fit polymorphic_shapes.
      InconclusiveShapeError: the function works only for some sizes, which the text names.

    >>> import jax.numpy as jnp
    >>> x = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    >>> specs, shapes = eval_polymorphic_shape(jnp.transpose, polymorphic_shapes="(b, 4)")(x)
    >>> shapes
    '(4, b)'
    """
    function = JaxCallable.of(fun_jax, caller="eval_polymorphic_shape")
    options = export_options(
        None,
        polymorphic_constraints,
        (),
        None,
        argument="platforms",
        call=call_text("eval_polymorphic_shape", function, polymorphic_shapes),
    )

    def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        specs = symbolic_specs(function, args, kwargs, polymorphic_shapes)
        if not specs.decided:
            raise ShapeError(
                "eval_polymorphic_shape takes no AUTO, since what AUTO finds depends on the "
                "export. Write the entries of polymorphic_shapes, or read out_avals of the "
                "portable function that export(f, polymorphic_shapes=AUTO) gives."
            )
        given = given_assumptions(specs, options, function.name)
        tracing = make_traced_function(function, specs)
        inferred = infer(tracing, given)
        traced = inferred.traced
        known = with_reshape_requirements(inferred.assumptions, traced, tracing)
        check_requirements_allowed(given, known, tracing, options)
        shapes = [known.shape_from_jax(aval) for aval in traced.jaxpr.out_avals]
        tree = out_structure(traced)
        scope = given.new_scope()
        results = [
            jax.ShapeDtypeStruct(tuple(dim_to_jax(d, scope) for d in shape), leaf.dtype)
            for shape, leaf in zip(shapes, traced.jaxpr.out_avals, strict=True)
        ]
        # JAX formats the texts, so that they equal those of jax2tf.
        return rebuilt(tree, results), rebuilt(tree, [str(r.shape) for r in results])

    return evaluate
