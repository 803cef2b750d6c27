"""PortableFunction: a JAX function as StableHLO, and all that is needed to call it elsewhere."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from jax2tf_bridge._utils._once_per_object import once_per_object
from jax2tf_bridge.errors import BridgeError, GradientError, InconclusiveShapeError
from jax2tf_bridge.portable._aval import Aval, LiftedConstant, Port
from jax2tf_bridge.portable._call import Call
from jax2tf_bridge.portable._custom_calls import (
    custom_calls_of,
    has_kernel,
    mark_calls_handled,
    no_handler_text,
    releases_that_run,
    unhandled_anywhere,
)
from jax2tf_bridge.portable._graph_function import GraphFunction
from jax2tf_bridge.portable._module import Module
from jax2tf_bridge.portable._sharding import Sharding
from jax2tf_bridge.portable._stablehlo_version import version_text
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable._tensorflow_releases import TENSORFLOW_RELEASES
from jax2tf_bridge.portable._tree_spec import TreeSpec, flat_call, flat_names, flat_tuple
from shape_poly import is_symbolic_dim, shape_text


class Gradient(ABC):
    """A source of the VJP of a portable function."""

    @property
    @abstractmethod
    def made(self) -> PortableFunction | None:
        """VJP, if it is there already."""

    @property
    def available(self) -> bool:
        """Tells whether a VJP is there or can be made (making it may still fail)."""
        return True

    @property
    def missing_because(self) -> str:
        """Reason why there is none, as the end of a sentence; "" where there is one."""
        return ""

    def problem(self, name: str) -> str | None:
        """Says why there is no VJP, as far as that is known without making it."""
        return None

    @abstractmethod
    def get(self, name: str) -> PortableFunction:
        """Returns the VJP of the function called `name`, and makes it where that is needed.

        Raises:
          GradientError: there is none, with the reason.
          InconclusiveShapeError: it only works for some of the sizes; it says for which.
          PlatformError, UnsupportedByTargetError: the target cannot run it.
          ShardingError: it is spread over devices as no mesh can say.
        """

    def changed(
        self, name: str, change: Callable[[PortableFunction], PortableFunction]
    ) -> Gradient:
        """Returns the gradient with each VJP changed: now where it is made, else once it is.

        Args:
          name: of the function that it is a gradient of.
          change: makes another function of a VJP.
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
    """A gradient that is missing.

    Attributes:
      because: the reason, as the end of a sentence.
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
    """A gradient that is there.

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

    It exists in the process that exported, loaded or read the function; a pickle of it holds what
    was made.
    """

    def __init__(
        self, make: Callable[[], PortableFunction], *, check: Callable[[], None] | None = None
    ) -> None:
        """Takes the maker.

        Args:
          make: makes the VJP.
          check: raises GradientError or InconclusiveShapeError if `make` is sure to fail, and costs
            much less; it keeps its failure, so that asking again traces nothing.
        """
        self._make, self._check = make, check
        self._made: PortableFunction | None = None
        self._failure: str | None = None
        self._lock = threading.Lock()

    @property
    def made(self) -> PortableFunction | None:
        return self._made

    def problem(self, name: str) -> str | None:
        """Says why there is no VJP; after `get` has failed, why it failed."""
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


# What to_exported(function) has, and users may look for here.
_OF_EXPORTED = frozenset(
    {"call", "fun_name", "mlir_module", "mlir_module_serialized", "disabled_safety_checks"}
    | {f"{side}_shardings_{form}" for side in ("in", "out") for form in ("jax", "hlo")}
)


@dataclass(frozen=True, repr=False, eq=False)
class PortableFunction:
    """A JAX function, frozen as StableHLO, with its types, structure and gradient.

    Made by `jax2tf_bridge.export`. `to_tf` makes a TensorFlow function of it, and
    `to_exported(function).call` runs it in JAX.  It can be pickled; VJPs that were not materialised
    by `with_vjp` are left behind.

    Attributes:
      name: the function's name, for messages.
      in_tree: the structure of (args, kwargs); out_tree: of the result.
      in_avals: the flat arguments; out_avals: the flat results.
      argument_names: one name a positional argument.
      module: its StableHLO, and how that is called.
      target: what it was made for.
      producer: what made it, as "JAX 0.10.2".
      in_shardings, out_shardings: for each flat argument and result how it is spread over the
        devices, None for not at all.
      dropped_platforms: (platform, reason) for each default platform that it cannot serve.
      constraints: the constraints on the dimension variables, as the user wrote them.
      requirements: what the function needs of its sizes beside them; found while it was traced,
        and checked when it is called.
      constraints_known: False for a function from an archive of JAX's, whose format drops the
        constraints; those that the module itself checks are recovered.
      ordered_effects, unordered_effects: the effects' names.
      uses_global_constants: as JAX calls it: whether sizes or the platform become known only when
        it is called.
      lifted_constants: arrays that the module takes after its kept arguments, which were
        captured by the function.
      graph_functions: the TensorFlow graphs that the module calls, by their places here.
      gradient: where its VJP comes from.
      tensorflow_differentiates: whether TensorFlow's gradient of its operations is JAX's, so that
        without XLA it needs no VJP.
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
        # Whoever replaces the target need not think of them.
        widens = self.target.for_converters
        for name in ("in_avals", "out_avals"):
            object.__setattr__(self, name, _crossing(getattr(self, name), widens))
        if any(constant.aval.dtype == _NARROW for constant in self.lifted_constants):
            lifted = self.lifted_constants
            avals = _crossing(tuple(constant.aval for constant in lifted), widens)
            found = tuple(replace(c, aval=aval) for c, aval in zip(lifted, avals, strict=True))
            object.__setattr__(self, "lifted_constants", found)

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
        """Makes a function of arrays, called x0, x1 and so on, that returns a tuple of arrays."""
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
        # It is frozen; and by way of a pickle, VJPs that were not made yet would be lost.
        return self

    if not TYPE_CHECKING:  # else a misspelt name would pass for Any

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_EXPORTED:
                text += f". JAX's form of the function has it: to_exported(function).{name}"
            raise AttributeError(text, name=name, obj=self)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platforms that it was lowered for, by JAX's names."""
        return self.module.platforms

    @property
    def has_vjp(self) -> bool:
        """Tells whether a VJP is stored or can be made (making it may still fail)."""
        return self.gradient.available

    @property
    def tensorflow_releases(self) -> tuple[str, ...]:
        """Known TensorFlow releases that can run it."""
        if not self.target.xla:
            return tuple(TENSORFLOW_RELEASES)
        return releases_that_run(self.module, custom_calls_of(self.module))

    def gradient_problem(self) -> str | None:
        """Says why `vjp` would fail, as far as that is known without exporting it."""
        return self.gradient.problem(self.name)

    def vjp(self) -> PortableFunction:
        """Returns its VJP, which is exported at the first call.

        Its arguments are the flat arguments of this function (keyword arguments included), then
        one cotangent for each result; its results are one cotangent for each flat argument, also
        for those that the module dropped.  Cotangents of integers are float0 (bool in TF).

        Raises:
          GradientError: the function has none; the text says why.
          InconclusiveShapeError: it only works for some of the sizes; it says for which.
          PlatformError, UnsupportedByTargetError: the target cannot run it.
          ShardingError: it is spread over devices as no mesh can say.
        """
        return self.gradient.get(self.name)

    def with_vjp(self, order: int = 1) -> PortableFunction:
        """Returns this function with its VJPs up to `order` made, so that pickling keeps them.

        Raises:
          GradientError: a VJP of one of the orders cannot be made; or another error of `vjp`.
          ValueError: order is negative.
        """
        if order < 0:
            raise ValueError(f"order must be at least 0. Got: {order}")
        if order == 0:
            gradient: Gradient = NoGradient("only lower orders were materialised")
        else:
            gradient = StoredGradient(self.vjp().with_vjp(order - 1))
        found = replace(self, gradient=gradient)
        if are_types_checked(self):
            mark_types_checked(found)
        return found

    def in_paths(self) -> tuple[str, ...]:
        """Returns for each flat argument how a user would write it: "x", "params['w']"."""
        return Call.of(self.in_tree, self.argument_names).paths()

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Its flat arguments, each with its path."""
        return tuple(map(Port, self.in_paths(), self.in_avals, self.in_shardings))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Its flat results, each with its path."""
        return tuple(map(Port, self.out_tree.leaf_paths(), self.out_avals, self.out_shardings))

    @property
    def polymorphic_shapes(self) -> dict[str, str]:
        """Specification of each argument that has open dimensions, by its path.

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
            f"  platforms: {', '.join(self.platforms)}{self._dropped_text()}\n"
            f"{self._requirements_text()}"
            f"  runs on {self._releases_text()}"
        )

    def _releases_text(self) -> str:
        if not self.target.xla:
            return f"TensorFlow: {_span(self.tensorflow_releases)}, as its own operations"
        names = custom_calls_of(self.module)
        calls = unhandled_anywhere(self.module, names)
        if calls:
            return f"no TensorFlow: {no_handler_text(calls)}; see retarget"
        if has_kernel(self.module, names):
            return (
                "TPUs alone whose runtime reads the Pallas kernels of its JAX; no TensorFlow "
                "release is known to have one"
            )
        return f"TensorFlow: {_span(self.tensorflow_releases)}"

    def _requirements_text(self) -> str:
        sizes = (*self.constraints, *self.requirements)
        return f"  needs of the sizes: {', '.join(sizes)}\n" if sizes else ""

    def _dropped_text(self) -> str:
        return "".join(f"\n  not for {p}: {reason}" for p, reason in self.dropped_platforms)


_NARROW = "bfloat16"


def _crossing(avals: tuple[Aval, ...], widens: bool) -> tuple[Aval, ...]:
    """Notes on avals of bfloat16 whether the target takes float32 for them."""
    if all(aval.dtype != _NARROW or aval.widened == widens for aval in avals):
        return avals
    return tuple(replace(aval, widened=widens) if aval.dtype == _NARROW else aval for aval in avals)


def _span(releases: Sequence[str]) -> str:
    if not releases:
        return "no release known to this version"
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


@once_per_object
def _checked(_: PortableFunction) -> threading.Event:
    return threading.Event()


def mark_types_checked(function: PortableFunction) -> None:
    """Notes that types and custom calls were compared with the module's in this process."""
    _checked(function).set()
    mark_calls_handled(function.module)


def are_types_checked(function: PortableFunction) -> bool:
    """Returns whether `mark_types_checked` was called with this object."""
    return _checked(function).is_set()
