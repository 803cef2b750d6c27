"""PortableFunction: a JAX function as StableHLO, with everything needed to call it elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge._utils import as_integer, join_names, once_per_object
from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.errors import FunctionError, ModuleError
from jax2tf_bridge.portable._aval import Aval, LiftedConstant, Port, Sharding
from jax2tf_bridge.portable._gradient import Gradient, NoGradient, StoredGradient
from jax2tf_bridge.portable._module import (
    GraphFunction,
    Module,
    find_calls_to_check,
    find_releases_for,
    find_unhandled_calls,
    mark_calls_handled,
    needs_tpu_runtime,
    no_handler_text,
)
from jax2tf_bridge.portable._tree_spec import (
    CallStructure,
    TreeSpec,
    flat_call,
    flat_names,
    flat_tuple,
)
from jax2tf_bridge.targets import TENSORFLOW_RELEASES, Target, as_target
from shape_poly import is_symbolic_dim, shape_text

_NOT_EXPORTED = NoGradient()

# Attributes of to_exported(function) that users may look for on a PortableFunction.
_EXPORTED_ATTRIBUTES = frozenset(
    {"call", "fun_name", "mlir_module", "mlir_module_serialized", "disabled_safety_checks"}
    | {f"{side}_shardings_{form}" for side in ("in", "out") for form in ("jax", "hlo")}
)


@dataclass(frozen=True, repr=False, eq=False)
class PortableFunction:
    """A JAX function, frozen as StableHLO, with its types, structure and gradient.

    `jax2tf_bridge.export` creates it, `to_tf` converts it to a TensorFlow function, and
    `to_exported(function).call` runs it in JAX. Pickles contain only the VJPs that exist already;
    `with_vjp` makes them.

    Attributes:
      name: the function's name, for messages.
      in_tree: the structure of (args, kwargs).
      in_avals: the flat arguments.
      out_tree: the structure of the result.
      out_avals: the flat results.
      argument_names: one name per positional argument.
      module: the StableHLO module, and how to call it.
      target: the consumer that it was exported for.
      producer: the tool that exported it, such as "JAX 0.10.2".
      in_shardings, out_shardings: the sharding of each flat argument and result over the devices;
        None if it is not sharded.
      dropped_platforms: (platform, reason) for each default platform that it cannot run on.
      constraints: the constraints on the dimension variables, as the user wrote them.
      requirements: further conditions on the sizes, discovered by tracing and checked at each call.
      constraints_known: False for a function from a JAX archive, whose format drops the
        constraints; only those that the module itself checks are recovered.
      ordered_effects, unordered_effects: the names of the effects.
      uses_global_constants: JAX's flag of this name: whether the sizes or the platform are only
        known when the function is called.
      lifted_constants: captured arrays, which the module takes after its kept arguments.
      graph_functions: the TensorFlow graphs that the module calls by index.
      gradient: the source of its VJP.
      tensorflow_differentiates: whether TensorFlow's gradients of its operations equal JAX's, so
        that it needs no VJP without XLA.
    """

    name: str
    in_tree: TreeSpec
    in_avals: tuple[Aval, ...]
    out_tree: TreeSpec
    out_avals: tuple[Aval, ...]
    argument_names: tuple[str, ...]
    module: Module
    target: Target
    producer: str
    in_shardings: tuple[Sharding | None, ...]
    out_shardings: tuple[Sharding | None, ...]
    dropped_platforms: tuple[tuple[str, str], ...] = ()
    constraints: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    constraints_known: bool = True
    ordered_effects: tuple[str, ...] = ()
    unordered_effects: tuple[str, ...] = ()
    uses_global_constants: bool = False
    lifted_constants: tuple[LiftedConstant, ...] = ()
    graph_functions: tuple[GraphFunction, ...] = ()
    gradient: Gradient = _NOT_EXPORTED
    tensorflow_differentiates: bool = False

    def __post_init__(self) -> None:
        # Updated here, so that code that replaces the target need not update the avals.
        widens = self.target.for_converters
        for name in ("in_avals", "out_avals"):
            object.__setattr__(self, name, _set_widened(getattr(self, name), widens))
        constants = self.lifted_constants
        if any(constant.aval.dtype == _WIDENED_DTYPE for constant in constants):
            avals = _set_widened(tuple(constant.aval for constant in constants), widens)
            pairs = zip(constants, avals, strict=True)
            constants = tuple(replace(constant, aval=aval) for constant, aval in pairs)
            object.__setattr__(self, "lifted_constants", constants)

    @classmethod
    def over_leaves(
        cls,
        name: str,
        module: Module,
        in_avals: Sequence[Aval],
        out_avals: Sequence[Aval],
        *,
        target: Target,
        producer: str,
    ) -> Self:
        """Creates a function of arrays x0, x1, ... that returns a tuple of arrays."""
        return cls(
            name=name,
            in_tree=flat_call(len(in_avals)),
            in_avals=tuple(in_avals),
            out_tree=flat_tuple(len(out_avals)),
            out_avals=tuple(out_avals),
            argument_names=flat_names(len(in_avals)),
            module=module,
            target=target,
            producer=producer,
            in_shardings=(None,) * len(in_avals),
            out_shardings=(None,) * len(out_avals),
        )

    def __deepcopy__(self, memo: object) -> Self:
        # It is frozen, and copying through a pickle would lose VJPs that were not made yet.
        return self

    if not TYPE_CHECKING:  # else a misspelt name would pass for Any

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _EXPORTED_ATTRIBUTES:
                text += f". JAX's form of the function has it: to_exported(function).{name}"
            raise AttributeError(text, name=name, obj=self)

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms that it was lowered for, by JAX's names."""
        return self.module.platforms

    @property
    def has_vjp(self) -> bool:
        """Returns whether a VJP is stored or can be made (making it may still fail)."""
        return self.gradient.available

    @property
    def tensorflow_releases(self) -> tuple[str, ...]:
        """The known TensorFlow releases that can run it."""
        if not self.target.xla:
            return tuple(TENSORFLOW_RELEASES)
        return find_releases_for(self.module, find_calls_to_check(self.module))

    def gradient_problem(self) -> str | None:
        """Returns why `vjp` would fail, if that is known without exporting it."""
        return self.gradient.problem(self.name)

    def vjp(self) -> PortableFunction:
        """Returns its VJP, which is exported at the first call.

        The VJP takes the flat arguments of this function (keyword arguments included), then one
        cotangent for each result. It returns one cotangent for each flat argument, even for those
        that the module dropped. Cotangents of integers are float0 (bool in TF).

        Raises:
          GradientError: the function has no VJP; the message gives the reason.
          InconclusiveShapeError: the VJP only works for some sizes; the message says which.
          PlatformError, UnsupportedByTargetError: the target cannot run the VJP.
          ShardingError: no mesh can express the VJP's sharding over devices.
        """
        return self.gradient.get(self.name)

    def with_vjp(self, order: int = 1) -> PortableFunction:
        """Returns this function with its VJPs up to `order` made, so that pickles contain them.

        Raises:
          GradientError: a VJP cannot be made; other errors are as in `vjp`.
          ValueError: order is negative, or not an integer.
        """
        if not is_vjp_order(order):
            raise ValueError(f"order must be an integer, at least 0. Got: {order!r}")
        if order == 0:
            gradient: Gradient = NoGradient(
                "only VJPs of lower orders were made; call with_vjp with a higher order"
            )
        else:
            gradient = StoredGradient(self.vjp().with_vjp(order - 1))
        function = replace(self, gradient=gradient)
        if are_types_checked(self):
            mark_types_checked(function)
        return function

    @property
    def first_argument(self) -> TreeSpec:
        """Structure of its first positional argument; of a function with weights, the weights."""
        return self.in_tree.children[0].children[0]

    def in_paths(self) -> tuple[str, ...]:
        """Returns the Python expression for each flat argument: "x", "params['w']"."""
        return CallStructure.of(self.in_tree, self.argument_names).paths()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The flat arguments with their paths."""
        return tuple(map(Port, self.in_paths(), self.in_avals, self.in_shardings))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The flat results with their paths."""
        return tuple(map(Port, self.out_tree.leaf_paths(), self.out_avals, self.out_shardings))

    @property
    def polymorphic_shapes(self) -> dict[str, str]:
        """The shape specification of each argument with open dimensions, by path.

        >>> import jax.numpy as jnp
        >>> from jax2tf_bridge import AUTO, export
        >>> export(jnp.sin, polymorphic_shapes=AUTO)(jnp.ones((3, 2))).polymorphic_shapes
        {'x': '(b, d1)'}
        """
        return {
            port.path: shape_text(port.aval.shape)
            for port in self.inputs
            if any(map(is_symbolic_dim, port.aval.shape))
        }

    def __repr__(self) -> str:
        arguments = ", ".join(map(str, self.inputs))
        results, module = ", ".join(map(str, self.out_avals)), self.module
        lines = [
            f"PortableFunction {self.name}({arguments}) -> ({results})",
            f"  module: {len(module.data)} bytes, StableHLO "
            f"{version_text(module.stablehlo_version)}, calling convention "
            f"{module.calling_convention_version}, by {self.producer}",
            f"  platforms: {', '.join(self.platforms)}",
            *(f"  not for {platform}: {reason}" for platform, reason in self.dropped_platforms),
        ]
        conditions = (*self.constraints, *self.requirements)
        if conditions:
            lines.append(f"  conditions on sizes: {', '.join(conditions)}")
        return "\n".join([*lines, f"  runs on {self._format_tensorflow_releases()}"])

    def _format_tensorflow_releases(self) -> str:
        releases = f"TensorFlow: {_format_releases(self.tensorflow_releases)}"
        if not self.target.xla:
            return f"{releases}, as its own operations"
        calls = find_calls_to_check(self.module)
        unhandled = find_unhandled_calls(self.module, calls)
        if unhandled:
            return f"no TensorFlow: {no_handler_text(unhandled)}; see retarget"
        if needs_tpu_runtime(self.module, calls):
            return (
                "only those TPUs whose runtime supports the Pallas kernels of its JAX; no known "
                "TensorFlow release has one"
            )
        return releases


_WIDENED_DTYPE = "bfloat16"


def _set_widened(avals: tuple[Aval, ...], widens: bool) -> tuple[Aval, ...]:
    """Sets `widened` of bfloat16 avals to whether the target takes float32 for them."""
    if all(aval.dtype != _WIDENED_DTYPE or aval.widened == widens for aval in avals):
        return avals
    return tuple(
        replace(aval, widened=widens) if aval.dtype == _WIDENED_DTYPE else aval for aval in avals
    )


def is_vjp_order(value: object) -> bool:
    """Returns whether a value is an integer of at least 0, and not a bool.

    >>> is_vjp_order(1), is_vjp_order(1.5), is_vjp_order(True)
    (True, False, False)
    """
    order = as_integer(value)
    return order is not None and order >= 0


def _format_releases(releases: Sequence[str]) -> str:
    if not releases:
        return "no release known to this version"
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


@once_per_object
def _get_types_checked(_: PortableFunction) -> threading.Event:
    return threading.Event()


def mark_types_checked(function: PortableFunction) -> None:
    """Records that types and custom calls were checked against the module in this process."""
    _get_types_checked(function).set()
    mark_calls_handled(function.module)


def are_types_checked(function: PortableFunction) -> bool:
    """Returns whether `mark_types_checked` was called with this object."""
    return _get_types_checked(function).is_set()


_MAX_SHOWN_CHARACTERS = 200
"""Maximum number of characters of a value in a message."""


class HoldsPortable(Protocol):
    """An object that holds a portable function and is accepted for it: a jax_export.Exported."""

    @property
    def portable(self) -> PortableFunction:
        """The wrapped portable function."""
        ...


def unwrap_portable(value: Any) -> Any:
    """Returns the portable function of a `jax_export.Exported`, or `value` itself."""
    inner = getattr(value, "portable", None)
    return inner if isinstance(inner, PortableFunction) else value


def as_portable_function(value: object, caller: str) -> PortableFunction:
    """Returns the portable function in `value`, an argument of `caller`.

    Raises:
      FunctionError: `value` is not a portable function; the message says how to get one.
    """
    function = unwrap_portable(value)
    if isinstance(function, PortableFunction):
        return function
    raise FunctionError(
        f"{caller} expected a PortableFunction. Got: {_show(value)} of type "
        f"{type(value).__name__}. {_advise(value)}"
    )


def _show(value: object) -> str:
    if _is_exported_by_jax(value):  # its repr contains the whole module
        return repr(getattr(value, "fun_name", ""))
    shown = repr(
        value[:_MAX_SHOWN_CHARACTERS] if isinstance(value, (str, bytes, bytearray)) else value
    )
    return shown if len(shown) <= _MAX_SHOWN_CHARACTERS else f"{shown[:_MAX_SHOWN_CHARACTERS]}..."


def _advise(value: object) -> str:
    if _is_exported_by_jax(value):
        return "It is JAX's own: from_exported(exported) converts it to a portable function."
    if callable(value):
        return "Call what export returns with the function's arguments: export(f, ...)(x)."
    if isinstance(value, str):
        return f"Read it first: read_function({_show(value)})."
    if hasattr(value, "__fspath__"):
        return "Read it first: read_function(path)."
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "Read it first: deserialize(data)."
    return "Get one from export(f, ...)(x), or from read_function(path)."


def _is_exported_by_jax(value: object) -> bool:
    # Compared by name, because JAX may not be installed.
    kind = type(value)
    return kind.__name__ == "Exported" and kind.__module__.partition(".")[0] == "jax"


def get_stored_functions(portable: PortableFunction) -> tuple[PortableFunction, ...]:
    """Returns the function and its stored VJPs, by order."""
    functions = [portable]
    while (vjp := functions[-1].gradient.vjp) is not None:
        functions.append(vjp)
    return tuple(functions)


def without_xla(portable: PortableFunction, target: Target | None = None) -> PortableFunction:
    """Returns the function, and its gradients, for a consumer without XLA.

    The module stays unchanged. To rewrite operations that TensorFlow cannot express, use
    `retarget` of `from_jax`, which needs JAX.

    Args:
      portable: a function from an export, a file or a JAX archive.
      target: the consumer; by default the function's own target without XLA. A function that was
        exported without XLA keeps its target, unless `target` is for converters.
    """
    new_target = target or portable.target.without_xla()
    if not portable.target.xla and (
        portable.target.for_converters or not new_target.for_converters
    ):
        return portable
    return replace(
        portable,
        target=new_target,
        gradient=portable.gradient.map_vjp(portable.name, lambda vjp: without_xla(vjp, target)),
    )


def apply_target(portable: PortableFunction, target: Target | None) -> PortableFunction:
    """Returns the function for a consumer without XLA if `target` is one, else unchanged."""
    consumer = as_target(target)
    if consumer.xla:
        return portable
    return without_xla(portable, consumer if consumer.for_converters else None)


def read_constant(portable: PortableFunction, constant: LiftedConstant) -> np.ndarray:
    """Returns a constant's array, read-only, in the dtype in which it is passed.

    Raises:
      ModuleError: the portable function does not hold the array.
    """
    if constant.data is None:
        raise ModuleError(
            f"{portable.name} captured the array {constant.name or constant.digest} "
            f"({constant.aval}), which its portable function does not hold: it was written "
            "without arrays. Write the file with arrays=True, or pass the weights as an argument."
        )
    module_dtype, op_dtype = (
        find_dtype(name) for name in (constant.aval.module_dtype, constant.aval.op_dtype)
    )
    assert module_dtype is not None, "a constant has a dtype of the table"
    assert op_dtype is not None, "a constant has a dtype of the table"
    array = np.frombuffer(constant.data, module_dtype.numpy()).astype(op_dtype.numpy(), copy=False)
    return array.reshape(constant.aval.known_op_shape)


def find_prng_keys(portable: PortableFunction, weight_count: int) -> tuple[str, ...]:
    """Returns the paths of the PRNG keys among the weights that the module reads.

    Args:
      portable: the function, whose first flat arguments are the weights.
      weight_count: the number of weights.
    """
    kept_arguments = set(portable.module.kept_arguments)
    weights = enumerate(portable.inputs[:weight_count])
    return tuple(port.path for i, port in weights if port.aval.is_key and i in kept_arguments)


def prng_keys_text(paths: Sequence[str], signature: str = "") -> str:
    """Explains the effect of PRNG keys among the weights.

    >>> print(prng_keys_text(["params['rngs']['dropout']"]))  # doctest: +ELLIPSIS
    the results depend on a PRNG key among the weights (params['rngs']['dropout']): ...
    """
    keys = "a PRNG key" if len(paths) == 1 else f"{len(paths)} PRNG keys"
    of_signature = f" of {signature}" if signature else ""
    return (
        f"the results{of_signature} depend on {keys} among the weights ({join_names(paths, 3)}): "
        "every call draws the same numbers. If the model was saved in training mode, switch it to "
        "evaluation before it is saved (model.eval() in Flax nnx); if it has to draw, make the "
        "key an argument of the function."
    )
