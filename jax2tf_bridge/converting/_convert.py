"""convert(): the two halves of the bridge, back to back in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

from jax2tf_bridge.errors import ExportError, MissingDependencyError
from jax2tf_bridge.portable import PolyConstraints
from jax2tf_bridge.targets import Target

try:
    import jax as _jax  # noqa: F401
    import tensorflow as _tf  # noqa: F401
except ModuleNotFoundError as e:
    if e.name not in ("jax", "tensorflow"):
        raise
    missing = ("JAX", "jax") if e.name == "jax" else ("TensorFlow", "tensorflow-cpu")
    raise MissingDependencyError(*missing, "convert") from e

from jax2tf_bridge.converting._arguments import CallArguments
from jax2tf_bridge.converting._functions import FunctionCache, Requirements
from jax2tf_bridge.converting._native_serialization import NOT_GIVEN, choose_target
from jax2tf_bridge.from_jax import call_text, export_options, export_specs, jax_compat
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.shapes import symbolic_specs
from jax2tf_bridge.from_jax.stablehlo import ConstantPool
from jax2tf_bridge.from_jax.trees import register_wrappers
from jax2tf_bridge.to_tensorflow import (
    CapturedArrays,
    SharedConstants,
    call_flat,
    opaque_to_autograph,
    tf_compat,
)

# At import, as in jax2tf: functions may close over containers that a tf.Module wraps.
register_wrappers(*tf_compat.wrapper_types())


@opaque_to_autograph
def convert(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: PolyConstraints = (),
    with_gradient: bool = True,
    enable_xla: Any = NOT_GIVEN,
    native_serialization: Any = NOT_GIVEN,
    native_serialization_platforms: Sequence[str] | None = None,
    native_serialization_disabled_checks: Sequence[Any] = (),
    target: Target | None = None,
    runtime_checks: Literal["drop"] | None = None,
) -> ConvertedFunction:
    """Makes a TF function of a JAX function; a drop-in for jax2tf.convert of JAX 0.12.

    Args:
      fun_jax: the function, jitted or not. Arguments and results are pytrees of arrays.
      polymorphic_shapes: which dimensions stay open, as in `export`: None (none), a string as
        "(b, 28)" for every argument, or one entry an argument, by position or by name; or AUTO.
      polymorphic_constraints: what holds for the dimension variables, as ["b >= 2"]; or AUTO,
        also among others: what the function needs is added, and listed in `requirements` of the
        function that is returned.
      with_gradient: whether the VJP of `fun_jax` becomes the TF gradient, to any order.
      enable_xla: False makes TensorFlow's own operations in the place of XlaCallModule, as
        `target=Target.widest(xla=False)`; so it was in jax2tf up to JAX 0.6. True is deprecated
        and without effect.
      native_serialization: as enable_xla.
      native_serialization_platforms: as `platforms` of `export`: by default every platform that
        the function can be lowered for.
      native_serialization_disabled_checks: of DisabledSafetyCheck.
      target: what the consumer can run; by default `Target.widest()`. For one without XLA the
        function becomes TensorFlow's own operations.
      runtime_checks: as in `export`: "drop" leaves out the checks of values that
        equinox.error_if and checkify.check make while the function runs.

    Returns:
      A function over tensors, tf.Variables, arrays and scalars. 64-bit values are taken as
      JAX takes them: as 32 bits unless jax_enable_x64 is set. It is traced once for each
      signature. Saved with tf.saved_model.save as any TF function, its gradient of first order
      included. Calling it raises ShapeError, DTypeError or StructureError for arguments that do
      not fit polymorphic_shapes, each named by its path; InconclusiveShapeError where it only
      works for some sizes; and tf.errors.InvalidArgumentError at run time where symbolic sizes
      contradict.

    Raises:
      FunctionError: `fun_jax` is not callable, or runtime_checks is another word.
      TargetError: no such platform, or enable_xla, native_serialization and the target contradict
        each other.

    >>> import jax.numpy as jnp, tensorflow as tf
    >>> f = convert(lambda x: jnp.sum(x * x, axis=1), polymorphic_shapes="(b, 2)")
    >>> f(tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
    [5.0, 25.0]
    """
    target = choose_target(
        target,
        enable_xla=enable_xla,
        native_serialization=native_serialization,
        platforms=native_serialization_platforms,
        stacklevel=3,  # through AutoGraph's wrapper
    )
    function = JaxCallable.of(fun_jax, caller="convert")
    options = export_options(
        native_serialization_platforms,
        polymorphic_constraints,
        native_serialization_disabled_checks,
        target,
        argument="native_serialization_platforms",
        call=call_text(f"convert({function.code_name}", polymorphic_shapes),
        runtime_checks=runtime_checks,
    )
    constants = SharedConstants(function.name)
    pool = ConstantPool()
    portables = FunctionCache(lambda specs: export_specs(function, specs, options, pool))

    def converted(*args: Any, **kwargs: Any) -> Any:
        if jax_compat.inside_transformation():
            raise ExportError(
                f"convert({function.name}) was called inside a JAX transformation (jit, grad, "
                "vmap). It makes a TensorFlow function: call it outside all of them."
            )
        call = CallArguments.of(function, args, kwargs)
        portable = portables.get(
            call.key,
            call.static_key,
            lambda: symbolic_specs(function, *call.specs(), polymorphic_shapes),
        )
        results = call_flat(portable, call.tensors(portable), with_gradient, constants)
        return portable.out_tree.unflatten(iter(results))

    converted.__name__ = converted.__qualname__ = function.name
    converted.__doc__ = getattr(fun_jax, "__doc__", None)
    if function.signature is not None and not _has_defaults(function):
        converted.__signature__ = function.signature  # type: ignore[attr-defined]
    converted.requirements = Requirements(portables)  # type: ignore[attr-defined]
    converted.captured_arrays = constants.captured  # type: ignore[attr-defined]
    return cast(ConvertedFunction, opaque_to_autograph(converted))


class ConvertedFunction(Protocol):
    """A function over TF values, which `convert` returns.

    Attributes:
      requirements: what it needs of the sizes beside polymorphic_constraints, found while it was
        traced; empty until it is called, and one after another for every signature.
    """

    __name__: str

    @property
    def requirements(self) -> Sequence[str]: ...

    def captured_arrays(self) -> CapturedArrays:
        """Makes variables of the arrays of 4 kB and more that the function captured.

        A model that holds what this gives, from before the first call, is saved with them as
        variables; otherwise tf.saved_model.save writes them into the graph. The first call then
        exports the gradient too, whose arrays have to be there when the model is saved.

        Raises:
          FunctionError: the function was called before.
        """
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def _has_defaults(function: JaxCallable) -> bool:
    """Returns whether parameters have defaults.

    tf.function would pass defaults on as arrays; omitted, they stay Python values for JAX.
    """
    parameters = function.signature.parameters.values() if function.signature else ()
    return any(p.default is not p.empty for p in parameters)
