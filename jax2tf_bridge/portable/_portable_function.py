"""PortableFunction: a JAX function as StableHLO, with everything needed to call it elsewhere."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from jax2tf_bridge._utils import once_per_object
from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.errors import BridgeError, GradientError, InconclusiveShapeError
from jax2tf_bridge.portable._aval import Aval, LiftedConstant, Port
from jax2tf_bridge.portable._call import CallStructure
from jax2tf_bridge.portable._custom_calls import (
    custom_calls_of,
    has_kernel,
    mark_calls_handled,
    no_handler_text,
    releases_that_run,
    unhandled_anywhere,
)
from jax2tf_bridge.portable._module import GraphFunction, Module
from jax2tf_bridge.portable._sharding import Sharding
from jax2tf_bridge.portable._tree_spec import TreeSpec, flat_call, flat_names, flat_tuple
from jax2tf_bridge.targets import TENSORFLOW_RELEASES, Target
from shape_poly import is_symbolic_dim, shape_text


class Gradient(ABC):
    """A source of the VJP of a portable function."""

    @property
    @abstractmethod
    def made(self) -> PortableFunction | None:
        """The VJP if it exists already, else None."""

    @property
    def available(self) -> bool:
        """Returns whether a VJP exists or can be made (making it may still fail)."""
        return True

    @property
    def missing_because(self) -> str:
        """The reason why there is no VJP, as a clause; "" if there is one."""
        return ""

    def problem(self, name: str) -> str | None:
        """Returns why there is no VJP, if that is known without making it."""
        return None

    @abstractmethod
    def get(self, name: str) -> PortableFunction:
        """Returns the VJP of the function called `name`; makes it if necessary.

        Raises:
          GradientError: there is no VJP; the message gives the reason.
          InconclusiveShapeError: the VJP only works for some sizes; the message says which.
          PlatformError, UnsupportedByTargetError: the target cannot run the VJP.
          ShardingError: no mesh can express the VJP's sharding over devices.
        """

    def map_vjp(
        self, name: str, change: Callable[[PortableFunction], PortableFunction]
    ) -> Gradient:
        """Applies `change` to the VJP: at once if it exists, else when it is made.

        Args:
          name: the name of the differentiated function.
          change: returns a modified VJP.
        """
        if self.made is not None:
            return StoredGradient(change(self.made))
        if not self.available:
            return self

        def check() -> None:
            problem = self.problem(name)
            if problem is not None:
                raise GradientError(problem)

        return GradientOnDemand(lambda: change(self.get(name)), check=check)


@dataclass(frozen=True)
class NoGradient(Gradient):
    """A missing gradient.

    Attributes:
      because: the reason, as a clause.
    """

    because: str = "it was exported without one"

    @property
    def made(self) -> None:
        return None

    @property
    def available(self) -> bool:
        return False

    @property
    def missing_because(self) -> str:
        return self.because

    def problem(self, name: str) -> str:
        return f"{name} has no gradient: {self.because}."

    def get(self, name: str) -> PortableFunction:
        raise GradientError(self.problem(name))


@dataclass(frozen=True)
class StoredGradient(Gradient):
    """A gradient that exists already.

    Attributes:
      function: the VJP.
    """

    function: PortableFunction

    @property
    def made(self) -> PortableFunction:
        return self.function

    def get(self, name: str) -> PortableFunction:
        return self.function


class GradientOnDemand(Gradient):
    """A gradient that is made at the first request, once for all threads.

    It lives in the process that exported, loaded or read the function. Its pickle contains the VJP
    if that was made, and a NoGradient otherwise.
    """

    def __init__(
        self, make: Callable[[], PortableFunction], *, check: Callable[[], None] | None = None
    ) -> None:
        """Creates a gradient that calls `make` at the first request.

        Args:
          make: makes the VJP.
          check: a cheap check that raises GradientError or InconclusiveShapeError if `make` would
            fail. It must cache its failure, so that repeated checks do not trace again.
        """
        self._make, self._check = make, check
        self._made: PortableFunction | None = None
        self._failure: str | None = None
        self._lock = threading.Lock()

    @property
    def made(self) -> PortableFunction | None:
        return self._made

    def problem(self, name: str) -> str | None:
        """Returns why there is no VJP; after `get` has failed, the error of `get`."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            try:
                if self._made is None and self._check is not None:
                    self._check()
            except (GradientError, InconclusiveShapeError) as e:
                return str(e)
            return None

    def get(self, name: str) -> PortableFunction:
        with self._lock:
            if self._made is None:
                try:
                    self._made = self._make()
                except BridgeError as e:
                    self._failure = str(e)
                    raise
            return self._made

    def __reduce__(self) -> tuple[Any, ...]:
        if (made := self.made) is not None:
            return StoredGradient, (made,)
        return NoGradient, (
            "the portable function was stored without the VJP of this order; export it with "
            "with_vjp(order)",
        )


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
    gradient: Gradient = NoGradient()
    tensorflow_differentiates: bool = False

    def __post_init__(self) -> None:
        # Updated here, so that code that replaces the target need not update the avals.
        widens = self.target.for_converters
        for name in ("in_avals", "out_avals"):
            object.__setattr__(self, name, _set_widened(getattr(self, name), widens))
        if any(constant.aval.dtype == _WIDENED_DTYPE for constant in self.lifted_constants):
            lifted = self.lifted_constants
            avals = _set_widened(tuple(constant.aval for constant in lifted), widens)
            constants = tuple(replace(c, aval=aval) for c, aval in zip(lifted, avals, strict=True))
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
        return releases_that_run(self.module, custom_calls_of(self.module))

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
          ValueError: order is negative.
        """
        if order < 0:
            raise ValueError(f"order must be at least 0. Got: {order}")
        if order == 0:
            gradient: Gradient = NoGradient("only lower orders were materialised")
        else:
            gradient = StoredGradient(self.vjp().with_vjp(order - 1))
        function = replace(self, gradient=gradient)
        if are_types_checked(self):
            mark_types_checked(function)
        return function

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
        return (
            f"PortableFunction {self.name}({arguments}) -> ({results})\n"
            f"  module: {len(module.data)} bytes, StableHLO "
            f"{version_text(module.stablehlo_version)}, calling convention "
            f"{module.calling_convention_version}, by {self.producer}\n"
            f"  platforms: {', '.join(self.platforms)}{self._describe_dropped()}\n"
            f"{self._requirements_text()}"
            f"  runs on {self._releases_text()}"
        )

    def _releases_text(self) -> str:
        if not self.target.xla:
            return (
                f"TensorFlow: {_format_releases(self.tensorflow_releases)}, as its own operations"
            )
        names = custom_calls_of(self.module)
        calls = unhandled_anywhere(self.module, names)
        if calls:
            return f"no TensorFlow: {no_handler_text(calls)}; see retarget"
        if has_kernel(self.module, names):
            return (
                "TPUs alone whose runtime reads the Pallas kernels of its JAX; no TensorFlow "
                "release is known to have one"
            )
        return f"TensorFlow: {_format_releases(self.tensorflow_releases)}"

    def _requirements_text(self) -> str:
        sizes = (*self.constraints, *self.requirements)
        return f"  needs of the sizes: {', '.join(sizes)}\n" if sizes else ""

    def _describe_dropped(self) -> str:
        return "".join(f"\n  not for {p}: {reason}" for p, reason in self.dropped_platforms)


_WIDENED_DTYPE = "bfloat16"


def _set_widened(avals: tuple[Aval, ...], widens: bool) -> tuple[Aval, ...]:
    """Sets `widened` of bfloat16 avals to whether the target takes float32 for them."""
    if all(aval.dtype != _WIDENED_DTYPE or aval.widened == widens for aval in avals):
        return avals
    return tuple(
        replace(aval, widened=widens) if aval.dtype == _WIDENED_DTYPE else aval for aval in avals
    )


def _format_releases(releases: Sequence[str]) -> str:
    if not releases:
        return "no release known to this version"
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


@once_per_object
def _types_checked(_: PortableFunction) -> threading.Event:
    return threading.Event()


def mark_types_checked(function: PortableFunction) -> None:
    """Records that types and custom calls were checked against the module in this process."""
    _types_checked(function).set()
    mark_calls_handled(function.module)


def are_types_checked(function: PortableFunction) -> bool:
    """Returns whether `mark_types_checked` was called with this object."""
    return _types_checked(function).is_set()
