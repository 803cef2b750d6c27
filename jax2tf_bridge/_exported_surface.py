"""What a record shares with jax.export.Exported: the same names, and calls of it in JAX."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from jax2tf_bridge._errors import MissingDependencyError, ShardingError

if TYPE_CHECKING:
    from jax2tf_bridge._checks import DisabledSafetyCheck
    from jax2tf_bridge._portable import PortableFunction

_IN_JAX = "_in_jax"


class CallableTruth(int):
    """True or False that answers when it is called, too.

    Where jax.export has a method, the bridge had a property before: `record.has_vjp` and
    `record.has_vjp()` are the same.

    >>> CallableTruth(1), bool(CallableTruth(0)), CallableTruth(1)()
    (True, False, True)
    """

    def __call__(self) -> bool:
        return bool(self)

    def __eq__(self, other: object) -> bool:
        return bool(self) == other

    __hash__ = int.__hash__

    def __repr__(self) -> str:
        return repr(bool(self))


class InJax:
    """JAX's own form of a record, once it is made.

    Attributes:
      lock: held by whoever looks, since it is made once.
      exported: a jax.export.Exported, or None as long as there is none.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.exported: Any = None


class ExportedSurface:
    """The names of jax.export.Exported for a record; docs/jax-export.md compares the two.

    What runs the function or speaks of it in JAX's own types needs JAX, and raises
    MissingDependencyError, an ImportError, where it is not installed. JAX's form of the record is
    made once a record and process (`to_exported`); it is not pickled.
    """

    @property
    def fun_name(self) -> str:
        """The function's name."""
        return _record(self).name

    @property
    def disabled_safety_checks(self) -> tuple[DisabledSafetyCheck, ...]:
        """The safety checks that are off; equal in text to JAX's own."""
        return _record(self).disabled_checks

    @property
    def mlir_module_serialized(self) -> bytes:
        """StableHLO as a portable artifact; arrays that were captured are arguments of it."""
        return _record(self).module

    @property
    def has_vjp(self) -> CallableTruth:
        """Whether a VJP is stored or can be made; may be called, as JAX's method of this name."""
        return CallableTruth(_record(self).lazy_vjp.available)

    @property
    def in_shardings_hlo(self) -> tuple[Any, ...]:
        """For each flat argument XLA's own form of its sharding, None where JAX keeps none."""
        return tuple(self._exported("in_shardings_hlo").in_shardings_hlo)

    @property
    def out_shardings_hlo(self) -> tuple[Any, ...]:
        """For each flat result what `in_shardings_hlo` has for the arguments."""
        return tuple(self._exported("out_shardings_hlo").out_shardings_hlo)

    def in_shardings_jax(self, mesh: Any = None) -> tuple[Any, ...]:
        """For each flat argument its sharding over `mesh`, None where it has none.

        Args:
          mesh: a jax.sharding.Mesh of as many devices as the function was lowered for, and with
            the same axes; None for the abstract mesh that it was lowered for.

        Returns:
          jax.sharding.NamedSharding or None, for jax.device_put and as in_shardings of jax.jit.

        Raises:
          ShardingError: mesh is None, and the record has shardings in XLA's form alone.
        """
        self._check_mesh(mesh, "in_shardings_jax")
        return tuple(self._exported("in_shardings_jax").in_shardings_jax(mesh))

    def out_shardings_jax(self, mesh: Any = None) -> tuple[Any, ...]:
        """For each flat result what `in_shardings_jax` gives for the arguments."""
        self._check_mesh(mesh, "out_shardings_jax")
        return tuple(self._exported("out_shardings_jax").out_shardings_jax(mesh))

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the function in JAX, as jax.export.Exported.call does.

        Within jax.jit it becomes part of the program, in an export part of that module; its sizes
        may then be symbolic too. It runs on each of the record's platforms, and, lowered for one
        device, on as many as its arguments are spread over; lowered for several, on any mesh of
        that many. Reverse mode works to every order that the record has. Like JAX's, it has no
        forward mode and no vmap: leave the size of the batch open instead.

        Args:
          args: the positional arguments, in the structure that was exported.
          kwargs: those by keyword.

        Returns:
          The results, as jax.Array, in the structure of the function's own.

        Raises:
          ValueError: of JAX, where structure, shapes, dtypes, constraints, platform or the number
            of devices do not fit; or under differentiation where there is no VJP, of which `vjp`
            says why.
          StructureError, UnsupportedByTargetError, ModuleError, SerializationError: as
            `to_exported`.

        >>> import jax, jax.numpy as jnp
        >>> from jax2tf_bridge import export
        >>> record = export(lambda x: x**3, platforms=["cpu"])(1.0)
        >>> float(record.call(2.0)), float(jax.grad(jax.grad(record.call))(2.0))
        (8.0, 12.0)
        """
        return self._exported("call").call(*args, **kwargs)

    def mlir_module(self, serialized: bool = True) -> Any:
        """The module's text, as MLIR prints it; arrays that were captured are arguments of it.

        Args:
          serialized: False for the ir.Module itself, in the MLIR context that is current.

        Raises:
          ModuleError: the installed JAX cannot read the module, or its types are not the record's.
        """
        return _half_of_jax("mlir_module").module_in_jax(self, as_text=serialized)

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """The bytes of a .jaxfn file, which every later release of the bridge reads.

        jax.export does not read them: `serialize_exported` writes its format, which only some
        releases of JAX read. Needs no JAX.

        Args:
          vjp_order: how many orders of VJPs are written with the function, and made if they are not
            there yet.

        Raises:
          SerializationError: the format cannot hold the record, or it has fewer VJPs.
          InconclusiveShapeError: making a VJP asked something about the sizes.
          ValueError: vjp_order is negative.
        """
        from jax2tf_bridge.serialization import serialize

        return bytearray(serialize(_record(self), vjp_order=vjp_order))

    @property
    def in_jax(self) -> InJax:
        """JAX's own form of the record, or the place for it."""
        # setdefault is atomic: all threads get one.
        kept: InJax = self.__dict__.setdefault(_IN_JAX, InJax())
        return kept

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _IN_JAX}

    def _exported(self, wanted: str) -> Any:
        return _half_of_jax(wanted).to_exported(self)

    def _check_mesh(self, mesh: Any, wanted: str) -> None:
        record = _record(self)
        shardings = [s for s in (*record.in_shardings, *record.out_shardings) if s is not None]
        if mesh is None and any(sharding.mesh is None for sharding in shardings):
            raise ShardingError(
                f"{record.name}.{wanted}: its shardings are known in XLA's form alone, which names "
                f"no mesh. Give a jax.sharding.Mesh of {record.nr_devices} devices. Got: None"
            )


def _record(surface: ExportedSurface) -> PortableFunction:
    return cast("PortableFunction", surface)


def _half_of_jax(wanted: str) -> ModuleType:
    """The module that turns records into what JAX has for them.

    Raises:
      MissingDependencyError: JAX is not installed.
    """
    try:
        from jax2tf_bridge.from_jax import _exported_objects
    except MissingDependencyError as e:
        raise MissingDependencyError("JAX", "jax", f"PortableFunction.{wanted}") from e
    return _exported_objects
