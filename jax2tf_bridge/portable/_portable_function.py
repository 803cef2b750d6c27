"""PortableFunction: a JAX function as StableHLO, and all that is needed to call it elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge.errors import GradientError, InconclusiveShapeError
from jax2tf_bridge.portable._dtypes import WIDENED, is_differentiable
from jax2tf_bridge.portable._graph_function import GraphFunction
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._sharding import Sharding
from jax2tf_bridge.portable._stablehlo_version import Version, version_text
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable._tensorflow_releases import (
    custom_calls_of,
    has_kernel,
    no_handler_text,
    releases_that_run,
    unhandled_anywhere,
)
from jax2tf_bridge.portable._tree_spec import TreeSpec
from shape_poly import Dim, is_symbolic_dim, shape_text

_OP_DTYPES = {"float0": "bool", **WIDENED}

MemorySpace: TypeAlias = Literal["device", "host", "any"]


@dataclass(frozen=True)
class Aval:
    """An abstract value: what is known of an array before it exists.

    Attributes:
      shape: sizes, or expressions over dimension variables.
      dtype: by JAX's name ("float32", "bfloat16", "int4", "float0", "key<fry>").
      element_shape: for a PRNG key, the shape of the uint32 words that it is made of.
      memory_space: where the array lies.
      weak_type: whether JAX promotes it as a number of Python's; known in the process that exported
        it alone, since no file keeps it.

    >>> str(Aval((2, 3), "int4")), Aval((2, 3), "int4").op_dtype
    ('int4[2,3]', 'int8')
    """

    shape: tuple[Dim, ...]
    dtype: str
    element_shape: tuple[int, ...] = ()
    memory_space: MemorySpace = "device"
    weak_type: bool = field(default=False, compare=False, repr=False)

    @property
    def is_key(self) -> bool:
        """Whether it is of typed PRNG keys, which cross as words."""
        return self.dtype.startswith("key<")

    @property
    def op_dtype(self) -> str:
        """The dtype in which it crosses the XlaCallModule op."""
        return "uint32" if self.is_key else _OP_DTYPES.get(self.dtype, self.dtype)

    @property
    def op_shape(self) -> tuple[Dim, ...]:
        """The shape in which it crosses the XlaCallModule op."""
        return self.shape + self.element_shape

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def is_differentiable(self) -> bool:
        """Whether its cotangent is an array of its own dtype; else it is float0."""
        return is_differentiable(self.dtype)

    def __str__(self) -> str:
        return array_type_text(self.dtype, self.shape)


@dataclass(frozen=True)
class LiftedConstant:
    """An array that a function captured, and that its module takes as an argument.

    Attributes:
      aval: its shape and dtype.
      digest: the SHA-256 of `data`, in hexadecimal: arrays of equal digest and aval are one.
      name: what it is called beside the record, for people.
      data: its elements in C order, little-endian, a byte each for bool; None where they are kept
        elsewhere.
    """

    aval: Aval
    digest: str
    name: str = ""
    data: bytes | None = field(default=None, repr=False, compare=False)


class LazyVjp:
    """The VJP of a function, made at the first request; safe to ask from several threads."""

    def __init__(
        self,
        make: Callable[[], PortableFunction] | None = None,
        *,
        made: PortableFunction | None = None,
        missing_because: str = "it was exported without one",
        check: Callable[[], None] | None = None,
    ) -> None:
        """With `make`, or `made` already, or none: then `missing_because` says why.

        `check` raises GradientError or InconclusiveShapeError if `make` is sure to fail, and costs
        much less; it keeps its failure, so that asking again traces nothing.
        """
        self._make, self._made, self._missing_because = make, made, missing_because
        self._check = check
        self._lock = threading.Lock()

    @property
    def made(self) -> PortableFunction | None:
        """The VJP's record, if it is there already."""
        return self._made

    @property
    def available(self) -> bool:
        """Whether a VJP is there or can be made (making it may still fail)."""
        return self._made is not None or self._make is not None

    @property
    def missing_because(self) -> str:
        """Why there is none, where there is none; the end of a sentence."""
        return self._missing_because

    def problem(self, name: str) -> str | None:
        """Why there is no VJP, as far as that is known without making it; None if there is."""
        with self._lock:
            if self._made is not None:
                return None
            if self._make is None:
                return self._missing(name)
            try:
                if self._check is not None:
                    self._check()
            except (GradientError, InconclusiveShapeError) as e:
                return str(e)
            return None

    def _missing(self, name: str) -> str:
        return f"{name} has no gradient: {self._missing_because}."

    def get(self, name: str) -> PortableFunction:
        """The VJP's record.

        Raises:
          GradientError: there is none, with the reason.
          InconclusiveShapeError: it only works for some of the sizes; it says for which.
          PlatformError, UnsupportedByTargetError: the target cannot run it.
          ShardingError: it is spread over devices as no mesh can say.
        """
        with self._lock:
            if self._made is None and self._make is not None:
                self._made = self._make()
            if self._made is None:
                raise GradientError(self._missing(name))
            return self._made

    def __reduce__(self) -> tuple[Any, ...]:
        reason = self._missing_because
        if self._made is None and self._make is not None:
            reason = (
                "its record was stored without the VJP of this order; export it with "
                "record.with_vjp(order)"
            )
        return (_stored_vjp, (self._made, reason))


def _stored_vjp(made: PortableFunction | None, reason: str) -> LazyVjp:
    return LazyVjp(made=made, missing_because=reason)


class MadeOnce:
    """Keeps what is made of a portable function once in a process.

    Attributes:
      lock: held by whoever looks, since it is made once.
      value: what was made; None as long as it is not.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.value: Any = None


_MADE_ONCE = "_in_jax"

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
      module: StableHLO as a portable artifact.
      stablehlo_version: the version it is written at.
      calling_convention_version: of XlaCallModule
        (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
      module_kept_var_idx: the sorted indices of the arguments that the module takes.
      platforms: what the module was lowered for, in the order of its platform index.
      dropped_platforms: (platform, reason) for each default platform that it cannot serve.
      uses_shape_polymorphism: whether its shapes are refined before it is compiled.
      constraints: the constraints on the dimension variables, as the user wrote them.
      requirements: what the function needs of its sizes beside them; found while it was traced,
        and checked when it is called.
      disabled_checks: the safety checks that are off.
      ordered_effects, unordered_effects: the effects' names.
      nr_devices: how many devices it was lowered for.
      in_shardings, out_shardings: for each flat argument and result how it is spread over the
        devices, None for not at all.
      target: what it was made for.
      producer: what made it, as "JAX 0.10.2".
      constraints_known: False for a record from an archive of JAX's, whose format drops the
        constraints; those that the module itself checks are recovered.
      uses_global_constants: as JAX calls it: whether sizes or the platform become known only when
        it is called.
      lifted_constants: arrays that the module takes after its kept arguments, which were
        captured by the function.
      graph_functions: the TensorFlow graphs that the module calls, by their places here.
    """

    name: str
    in_tree: TreeSpec
    in_avals: tuple[Aval, ...]
    out_tree: TreeSpec
    out_avals: tuple[Aval, ...]
    argument_names: tuple[str, ...]
    module: bytes
    stablehlo_version: Version
    calling_convention_version: int
    module_kept_var_idx: tuple[int, ...]
    platforms: tuple[str, ...]
    dropped_platforms: tuple[tuple[str, str], ...]
    uses_shape_polymorphism: bool
    constraints: tuple[str, ...]
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    ordered_effects: tuple[str, ...]
    unordered_effects: tuple[str, ...]
    nr_devices: int
    in_shardings: tuple[Sharding | None, ...]
    out_shardings: tuple[Sharding | None, ...]
    target: Target
    producer: str
    requirements: tuple[str, ...] = ()
    constraints_known: bool = True
    uses_global_constants: bool = False
    lifted_constants: tuple[LiftedConstant, ...] = ()
    graph_functions: tuple[GraphFunction, ...] = ()
    lazy_vjp: LazyVjp = field(default_factory=LazyVjp)
    types_checked: bool = False
    """Whether in_avals and out_avals were compared with the module in this process."""

    def __deepcopy__(self, memo: object) -> Self:
        # It is frozen; and by way of a pickle, VJPs that were not made yet would be lost.
        return self

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != _MADE_ONCE}
        return {**kept, "types_checked": False}

    @property
    def in_jax(self) -> MadeOnce:
        """The place for JAX's own form of it, which `to_exported` fills."""
        # setdefault is atomic: all threads get one.
        kept: MadeOnce = self.__dict__.setdefault(_MADE_ONCE, MadeOnce())
        return kept

    if not TYPE_CHECKING:  # else a misspelt name would pass for Any

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _OF_EXPORTED:
                text += f". JAX's form of the function has it: to_exported(function).{name}"
            raise AttributeError(text, name=name, obj=self)

    @property
    def has_vjp(self) -> bool:
        """Whether a VJP is stored or can be made (making it may still fail)."""
        return self.lazy_vjp.available

    @property
    def tensorflow_releases(self) -> tuple[str, ...]:
        """The known TF releases that can run it."""
        return releases_that_run(self, custom_calls_of(self))

    def gradient_problem(self) -> str | None:
        """Why `vjp` would fail, as far as that is known without exporting it; None otherwise."""
        return self.lazy_vjp.problem(self.name)

    def vjp(self) -> PortableFunction:
        """The VJP's record, exported at the first call.

        Its arguments are the flat arguments of this function (keyword arguments included), then
        one cotangent for each result; its results are one cotangent for each flat argument, also
        for those that the module dropped.  Cotangents of integers are float0 (bool in TF).

        Raises:
          GradientError: the function has none; the text says why.
          InconclusiveShapeError: it only works for some of the sizes; it says for which.
          PlatformError, UnsupportedByTargetError: the target cannot run it.
          ShardingError: it is spread over devices as no mesh can say.
        """
        return self.lazy_vjp.get(self.name)

    def with_vjp(self, order: int = 1) -> PortableFunction:
        """This function with its VJPs up to `order` materialised, so that pickling keeps them.

        Raises:
          GradientError: a VJP of one of the orders cannot be made; or another error of `vjp`.
          ValueError: order is negative.
        """
        if order < 0:
            raise ValueError(f"order must be at least 0. Got: {order}")
        if order == 0:
            return replace(
                self, lazy_vjp=LazyVjp(missing_because="only lower orders were materialised")
            )
        return replace(self, lazy_vjp=LazyVjp(made=self.vjp().with_vjp(order - 1)))

    def in_paths(self) -> tuple[str, ...]:
        """For each flat argument how a user would write it: "x", "params['w']"."""
        args, kwargs = self.in_tree.children
        paths: list[str] = []
        for name, child in zip(self.argument_names, args.children, strict=True):
            paths += child.leaf_paths(name)
        for key, child in zip(kwargs.keys, kwargs.children, strict=True):
            paths += child.leaf_paths(str(key))
        return tuple(paths)

    @property
    def polymorphic_shapes(self) -> dict[str, str]:
        """The specification of each argument that has open dimensions, by its path.

        >>> import jax.numpy as jnp
        >>> from jax2tf_bridge import AUTO, export
        >>> export(jnp.sin, polymorphic_shapes=AUTO)(jnp.ones((3, 2))).polymorphic_shapes
        {'x': '(b, d1)'}
        """
        return {
            path: shape_text(aval.shape)
            for path, aval in zip(self.in_paths(), self.in_avals, strict=True)
            if any(map(is_symbolic_dim, aval.shape))
        }

    def __repr__(self) -> str:
        arguments = ", ".join(
            f"{path}: {aval}" for path, aval in zip(self.in_paths(), self.in_avals, strict=True)
        )
        results = ", ".join(map(str, self.out_avals))
        return (
            f"PortableFunction {self.name}({arguments}) -> ({results})\n"
            f"  module: {len(self.module)} bytes, StableHLO {version_text(self.stablehlo_version)},"
            f" calling convention {self.calling_convention_version}, by {self.producer}\n"
            f"  platforms: {', '.join(self.platforms)}{self._dropped_text()}\n"
            f"{self._requirements_text()}"
            f"  runs on {self._releases_text()}"
        )

    def _releases_text(self) -> str:
        names = custom_calls_of(self)
        calls = unhandled_anywhere(self, names)
        if calls:
            return f"no TensorFlow: {no_handler_text(calls)}; see retarget_record"
        if has_kernel(self, names):
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


def _span(releases: Sequence[str]) -> str:
    if not releases:
        return "no release known to this version"
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
