"""Exported: a portable function in jax.export's own types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge import serialization
from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.from_jax import from_exported, to_exported
from jax2tf_bridge.from_jax._exported import keep_exported
from jax2tf_bridge.from_jax.trees._tree_specs import spec_of_structure
from jax2tf_bridge.portable._as_portable import as_portable_function
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._safety_checks import canonical_checks
from jax2tf_bridge.serialization.jax_exported._argument_names import argument_names

_OF_JAX = tuple(field.name for field in dataclasses.fields(jax_export.Exported))

# What needs no form of JAX's, which takes longer to make, or its types.
_OF_PORTABLE: Mapping[str, Callable[[PortableFunction], Any]] = MappingProxyType(
    {
        "fun_name": lambda portable: portable.name,
        "platforms": lambda portable: portable.platforms,
        "nr_devices": lambda portable: portable.module.nr_devices,
    }
)


# Names of older releases, which code for them may still ask for.
_OLDER: Mapping[str, Callable[[Exported], Any]] = MappingProxyType(
    {
        "lowering_platforms": lambda exported: exported.platforms,
        "lowering_platform": lambda exported: exported.platforms[0],
        "strict_checks": lambda exported: not exported.disabled_safety_checks,
        "module_uses_dim_vars": lambda exported: exported.uses_global_constants,
        "uses_shape_polymorphism": lambda exported: exported.uses_global_constants,
        "xla_call_module_version": lambda exported: exported.calling_convention_version,
        "serialization_version": lambda exported: exported.calling_convention_version,
        "mlir_module_serialization_version": lambda exported: exported.calling_convention_version,
        "in_shardings": lambda exported: exported.in_shardings_hlo,
        "out_shardings": lambda exported: exported.out_shardings_hlo,
    }
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Exported(jax_export.Exported):
    """A jax.export.Exported around a portable function: JAX's fields, types and calls.

    JAX's form of the function is made when the first field asks for it that needs it. It can be
    copied and pickled, unlike JAX's own.

    Attributes:
      portable: the function for TensorFlow, for files, and for processes without JAX.

    >>> import jax, numpy as np
    >>> from jax2tf_bridge.jax_export import export
    >>> exported = export(jax.jit(lambda x: x**3), platforms=["cpu"])(1.0)
    >>> exported.in_avals, float(exported.call(2.0)), exported.portable.module.stablehlo_version
    ((ShapedArray(float32[], weak_type=True),), 8.0, (0, 14, 24))
    """

    portable: PortableFunction

    def __init__(self, portable: PortableFunction | None = None, **fields: Any) -> None:
        """Takes a portable function, all of JAX's fields by keyword, or both.

        Args:
          portable: made of JAX's fields by default.
          **fields: as jax.export.Exported takes them.

        Raises:
          FunctionError: `portable` is no portable function.
          UnsupportedByTargetError, ModuleError, NotExportableError: as `from_exported`, where
            there are only fields.
          TypeError: a field is missing.
        """
        if portable is None and fields:
            portable = from_exported(jax_export.Exported(**fields))
            self._set(**fields, portable=portable)
            return
        portable = as_portable_function(portable, "Exported")
        if fields:
            self._set(**fields)
            portable = _changed(portable, self, fields)
        self._set(portable=portable)

    def __getattr__(self, name: str) -> Any:
        if name in _OLDER:
            return _OLDER[name](self)
        if name not in _OF_JAX:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)
        of_portable = _OF_PORTABLE.get(name)
        if of_portable is not None:
            self._set(**{name: of_portable(self.portable)})
        else:
            made = to_exported(self.portable)
            self._set(**{field: getattr(made, field) for field in _OF_JAX})
        return self.__dict__[name]

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the function in JAX; within jax.jit it becomes part of the program.

        Reverse mode works to every order that the function has. There is no forward mode and no
        vmap: leave the size of the batch open instead.

        Returns:
          The results, as jax.Array, in the structure of the function's own.

        Raises:
          ValueError: of JAX, where structure, shapes, dtypes, constraints, platform or the number
            of devices do not fit; or under differentiation where there is no VJP.
          StructureError, UnsupportedByTargetError, ModuleError, SerializationError: as
            `to_exported`.
        """
        of_jax: Any = super()
        return of_jax.call(*args, **kwargs)

    def has_vjp(self) -> bool:
        """Tells whether a VJP is stored or can be made."""
        return self.portable.has_vjp

    def vjp(self) -> Exported:
        """Makes the VJP at the first call; jax.export.Exported.vjp says what it takes and gives.

        Raises:
          GradientError: there is none, with the reason; it is a ValueError as well.
          InconclusiveShapeError: it only works for some of the sizes; it says for which.
          PlatformError, UnsupportedByTargetError: the target cannot run it.
        """
        # One object, so that JAX compiles it once.
        made: Exported = self.__dict__.setdefault("_vjp", Exported(self.portable.vjp()))
        return made

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """Writes a .jaxfn file, which every later release of the bridge reads.

        jax.export does not read them: `serialize_exported` writes its format, which only some
        releases of JAX read.

        Args:
          vjp_order: how many orders of VJPs are written with the function, and made if they are not
            there yet.

        Raises:
          SerializationError: the format cannot hold the function, or it has fewer VJPs.
          InconclusiveShapeError: making a VJP asked something about the sizes.
          ValueError: vjp_order is negative.
        """
        return bytearray(serialization.serialize(self.portable, vjp_order=vjp_order))

    def __repr__(self) -> str:
        return f"Exported around {self.portable!r}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Exported, (self.portable,))

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def _changed(
    portable: PortableFunction, exported: Exported, fields: Mapping[str, Any]
) -> PortableFunction:
    """Makes the portable function of an `exported` whose fields are not all those of `portable`."""
    before = to_exported(portable)
    changed = {name: value for name, value in fields.items() if value is not getattr(before, name)}
    if changed.keys() - _COUNTERPARTS.keys():
        # Of another module, or other effects: as JAX's own function.
        return from_exported(dataclasses.replace(before, **fields))
    for name, value in changed.items():
        portable = _COUNTERPARTS[name](portable, value)
    # So that the next change finds which fields are others.
    keep_exported(portable, dataclasses.replace(before, **fields))
    return portable


def _with_in_tree(portable: PortableFunction, in_tree: Any) -> PortableFunction:
    spec = _spec(in_tree, len(portable.in_avals), "in_tree")
    names = argument_names(spec, None)
    return dataclasses.replace(portable, in_tree=spec, argument_names=names)


def _with_out_tree(portable: PortableFunction, out_tree: Any) -> PortableFunction:
    return dataclasses.replace(
        portable, out_tree=_spec(out_tree, len(portable.out_avals), "out_tree")
    )


def _spec(tree: Any, count: int, field: str) -> Any:
    if tree.num_leaves != count:
        raise StructureError(
            f"{field} must have {count} leaves, one for each abstract value. Got: "
            f"{tree.num_leaves} in {tree}"
        )
    return spec_of_structure(tree, [jax.ShapeDtypeStruct((), "float32")] * count)


_COUNTERPARTS: Mapping[str, Callable[[PortableFunction, Any], PortableFunction]] = MappingProxyType(
    {
        "fun_name": lambda portable, name: dataclasses.replace(portable, name=name),
        "in_tree": _with_in_tree,
        "out_tree": _with_out_tree,
        "disabled_safety_checks": lambda portable, checks: dataclasses.replace(
            portable,
            module=dataclasses.replace(portable.module, disabled_checks=canonical_checks(checks)),
        ),
    }
)
