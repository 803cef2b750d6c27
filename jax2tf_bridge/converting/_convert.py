"""convert(): the two halves of the bridge, back to back in one process."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, overload

from jax2tf_bridge.errors import ExportError, TargetError, name_missing_package
from jax2tf_bridge.portable import PolyConstraints, PortableFunction
from jax2tf_bridge.targets import Target, as_target

with name_missing_package("convert"):
    import jax as _jax  # noqa: F401
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.converting._arguments import CallArguments
from jax2tf_bridge.from_jax import PreparedExport, call_text, jax_compat, make_export_options
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.shapes import AutoSpec, Specs, symbolic_specs
from jax2tf_bridge.from_jax.stablehlo import ConstantPool
from jax2tf_bridge.from_jax.trees import register_wrappers
from jax2tf_bridge.to_tensorflow import (
    CapturedArrays,
    SharedConstants,
    call_flat,
    check_function,
    opaque_to_autograph,
    tf_compat,
)
from shape_poly import evaluate_shape, solve_dimensions

# At import, as in jax2tf: functions may close over containers that a tf.Module wraps.
register_wrappers(*tf_compat.wrapper_types())


class _Omitted:
    def __repr__(self) -> str:
        return "<omitted>"


OMITTED: Any = _Omitted()
"""Default of those arguments of jax2tf that `target` replaces."""
_JAX2TF_DEFAULT = "_DefaultNativeSerialization"
"""Name of the class of jax2tf's placeholder for an omitted argument."""


def _choose_target(
    target: Target | None,
    *,
    enable_xla: Any,
    native_serialization: Any,
    platforms: Sequence[str] | None,
) -> Target:
    """Returns the target of a conversion: without XLA, if one of jax2tf's switches says so.

    Raises:
      TargetError: the arguments contradict each other, or `target` is not a Target.
    """
    switches = {
        name: bool(value)
        for name, value in (
            ("enable_xla", enable_xla),
            ("native_serialization", native_serialization),
        )
        if value is not OMITTED and type(value).__name__ != _JAX2TF_DEFAULT
    }
    on = [name for name, value in switches.items() if value]
    off = [name for name, value in switches.items() if not value]
    target = as_target(target)
    if on and not target.xla:
        raise TargetError(
            f"{on[0]}=True and target={target.name!r} contradict each other. Leave {on[0]} out."
        )
    if not off:
        for name in on:
            warnings.warn(
                f"The argument {name}=True of convert is its default, and will be removed. Leave "
                "it out.",
                DeprecationWarning,
                stacklevel=4,  # the caller of convert, through AutoGraph's wrapper
            )
        return target
    if "native_serialization" in on:
        raise TargetError(
            "enable_xla=False asks for TensorFlow's own operations, and native_serialization=True "
            "for a module that XLA runs. Leave one of them out."
        )
    if platforms is not None:
        raise TargetError(
            f"native_serialization_platforms are the platforms of a module, and {off[0]}=False "
            "asks for TensorFlow's own operations, which run on all. Leave one of them out."
        )
    return target.without_xla()


@opaque_to_autograph
def convert(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: PolyConstraints = (),
    with_gradient: bool = True,
    enable_xla: Any = OMITTED,
    native_serialization: Any = OMITTED,
    native_serialization_platforms: Sequence[str] | None = None,
    native_serialization_disabled_checks: Sequence[Any] = (),
    target: Target | None = None,
    runtime_checks: Literal["drop"] | None = None,
) -> ConvertedFunction:
    """Makes a TensorFlow function of a JAX function; a drop-in for jax2tf.convert of JAX 0.12.

    Args:
      fun_jax: the function, jitted or not. Arguments and results are pytrees of arrays.
      polymorphic_shapes: the dimensions that stay open, as in `export`: None (none), a string as
        "(b, 28)" for every argument, one entry for each argument, by position or by name; or AUTO.
      polymorphic_constraints: the constraints on the dimension variables, as ["b >= 2"]; or AUTO,
        also in such a list: the constraints that the function needs are added, and listed in
        `requirements` of the result.
      with_gradient: whether the VJP of `fun_jax` becomes the TF gradient, to any order.
      enable_xla: False makes TensorFlow's own operations instead of XlaCallModule, like
        `target=Target.widest(xla=False)`, and like jax2tf up to JAX 0.6. True is deprecated and
        has no effect.
      native_serialization: the same as enable_xla.
      native_serialization_platforms: as `platforms` of `export`: by default every platform that
        the function can be lowered for.
      native_serialization_disabled_checks: the DisabledSafetyCheck of `export`.
      target: the capabilities of the consumer; by default `Target.widest()`. For a target without
        XLA the function becomes TensorFlow's own operations.
      runtime_checks: as in `export`: "drop" leaves out the checks of values that
        equinox.error_if and checkify.check make while the function runs.

    Returns:
      A function over tensors, tf.Variables, arrays and scalars. It takes 64-bit values as JAX does:
      as 32 bits unless jax_enable_x64 is set. It is traced once for each signature.
      tf.saved_model.save saves it like any TF function, with its gradient of first order. A call
      raises ShapeError, DTypeError or StructureError for arguments that do not fit
      polymorphic_shapes, each named by its path; InconclusiveShapeError if the function only works
      for some sizes; and tf.errors.InvalidArgumentError at run time if symbolic sizes contradict
      each other.

    Raises:
      FunctionError: `fun_jax` is not callable, or runtime_checks is another word.
      TargetError: a platform is unknown, or enable_xla, native_serialization and the target
        contradict each other.

    >>> import jax.numpy as jnp, tensorflow as tf
    >>> f = convert(lambda x: jnp.sum(x * x, axis=1), polymorphic_shapes="(b, 2)")
    >>> f(tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
    [5.0, 25.0]
    """
    target = _choose_target(
        target,
        enable_xla=enable_xla,
        native_serialization=native_serialization,
        platforms=native_serialization_platforms,
    )
    function = JaxCallable.of(fun_jax, caller="convert")
    options = make_export_options(
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
    portables = _FunctionCache(lambda specs: PreparedExport(function, specs, options).run(pool))

    def converted(*args: Any, **kwargs: Any) -> Any:
        if jax_compat.is_inside_transformation():
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
    # tf.function would pass defaults as arrays; without a signature, JAX gets the Python values.
    if function.signature is not None and not _has_defaults(function):
        converted.__signature__ = function.signature  # type: ignore[attr-defined]
    converted.requirements = _Requirements(portables)  # type: ignore[attr-defined]
    converted.captured_arrays = constants.capture  # type: ignore[attr-defined]
    return cast(ConvertedFunction, opaque_to_autograph(converted))


class ConvertedFunction(Protocol):
    """Function over TF values that `convert` returns.

    Attributes:
      requirements: the constraints that its traces needed besides polymorphic_constraints; empty
        until it is called.
    """

    __name__: str

    @property
    def requirements(self) -> Sequence[str]: ...

    def captured_arrays(self) -> CapturedArrays:
        """Turns captured arrays of 4 kB and more into variables.

        Hold the result in your model before the first call: the model is then saved with these
        variables; otherwise tf.saved_model.save writes the arrays into the graph. The first call
        also exports the gradient, whose arrays must exist when the model is saved.

        Raises:
          FunctionError: the function was called before.
        """
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def _has_defaults(function: JaxCallable) -> bool:
    parameters = function.signature.parameters.values() if function.signature else ()
    return any(p.default is not p.empty for p in parameters)


_MAX_CALLS = 4096
"""Maximum number of concrete shapes of eager calls; the cache is then cleared."""


@dataclass
class _FunctionCache:
    """Makes portable functions with `make` and caches them; thread-safe.

    The key is the symbolic specs, so that calls that differ only in open dimensions share a
    portable function. It takes long to find the specs, so another cache maps concrete calls.
    """

    make: Callable[[Specs], PortableFunction]
    _by_call: dict[Hashable, PortableFunction] = field(default_factory=dict)
    _by_specs: dict[Hashable, list[PortableFunction]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def portables(self) -> list[PortableFunction]:
        with self._lock:
            return list(itertools.chain(*self._by_specs.values()))

    def get(
        self, call_key: Hashable, static_key: Hashable, specs: Callable[[], Specs]
    ) -> PortableFunction:
        """Returns the portable function for calls with a key, in JAX's current configuration.

        Args:
          call_key: equal for calls with equal structure, shapes, dtypes and static values.
          static_key: equal for calls with equal static values.
          specs: makes the specs to trace with; called for a new key only.
        """
        configuration = jax_compat.configuration()
        key = (call_key, configuration)
        portable = self._by_call.get(key)
        if portable is not None:
            return portable
        with self._lock:
            symbolic = specs()
            specs_key = (symbolic.key(), static_key, configuration)
            candidates = self._by_specs.setdefault(specs_key, [])
            portable = next((p for p in candidates if _takes(p, symbolic)), None)
            if portable is None:
                portable = self.make(symbolic)
                check_function(portable)
                candidates.append(portable)
            if len(self._by_call) >= _MAX_CALLS:
                self._by_call.clear()
            self._by_call[key] = portable
            return portable


def _takes(portable: PortableFunction, specs: Specs) -> bool:
    """Returns whether a function takes the sizes of the arguments with polymorphic_shapes=AUTO."""
    pairs = [
        (aval.shape, leaf.shape)
        for aval, leaf in zip(portable.in_avals, specs.leaves(), strict=True)
        if isinstance(leaf, AutoSpec)
    ]
    values = solve_dimensions([shape for shape, _ in pairs], [sizes for _, sizes in pairs])
    for shape, sizes in pairs:
        for dimension, size, value in zip(shape, sizes, evaluate_shape(shape, values), strict=True):
            if size is None and isinstance(dimension, int):
                return False
            if size is not None and value is not None and size != value:
                return False
    return True


class _Requirements(Sequence[str]):
    """Live view of the requirements of all portable functions made so far."""

    def __init__(self, portables: _FunctionCache) -> None:
        self._portables = portables

    def _texts(self) -> list[str]:
        texts = [text for portable in self._portables.portables() for text in portable.requirements]
        return list(dict.fromkeys(texts))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._texts()[index]

    def __len__(self) -> int:
        return len(self._texts())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._texts() == list(other)

    def __repr__(self) -> str:
        return repr(self._texts())
