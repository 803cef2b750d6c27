"""The names of jax.export, for functions that hold a portable function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax import export as jax_export

import shape_poly
from jax2tf_bridge import serialization
from jax2tf_bridge.errors import StructureError, TargetError
from jax2tf_bridge.from_jax import (
    PreparedExport,
    dim_from_jax,
    from_exported,
    keep_exported,
    make_export_options,
    scope_from_jax,
    to_exported,
)
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.shapes import SYMBOLIC, Specs, symbolic_specs
from jax2tf_bridge.from_jax.trees import check_dict_keys, describe_structure, rebuild_tree
from jax2tf_bridge.portable import (
    NOT_STRICT,
    DisabledSafetyCheck,
    PortableFunction,
    as_portable_function,
    as_safety_checks,
)
from jax2tf_bridge.serialization.jax_exported import make_argument_names
from jax2tf_bridge.targets import TENSORFLOW_RELEASES


def is_symbolic_dim(p: Any) -> bool:
    """Returns whether `p` is a symbolic dimension, of JAX or of a portable function.

    >>> from jax.export import symbolic_shape
    >>> [is_symbolic_dim(d) for d in symbolic_shape("b, 3")]
    [True, False]
    """
    return jax_export.is_symbolic_dim(p) or shape_poly.is_symbolic_dim(p)


def symbolic_dim_bounds(dimension: Any) -> tuple[float, float]:
    """Returns inclusive bounds (lower, upper) of a dimension. Finite bounds are ints.

    The bounds always hold, but need not be the tightest. JAX has this function since 0.12.

    Args:
      dimension: a size, a symbolic dimension of JAX, or a dimension of a portable function. The
        constraints of the scope apply to a dimension of JAX. Variables of a portable function are
        only assumed to be at least 1.

    >>> from jax.export import symbolic_shape
    >>> symbolic_dim_bounds(symbolic_shape("2*b + 1", constraints=["b >= 3"])[0])
    (7, inf)
    """
    if not jax_export.is_symbolic_dim(dimension):
        return shape_poly.symbolic_dim_bounds(dimension)
    return shape_poly.symbolic_dim_bounds(dim_from_jax(dimension), scope_from_jax(dimension.scope))


class JaxDisabledSafetyCheck(jax_export.DisabledSafetyCheck):
    """A safety check to skip. It can be passed to JAX as well.

    >>> from jax2tf_bridge.jax_export import DisabledSafetyCheck
    >>> DisabledSafetyCheck.custom_call("my_kernel").is_custom_call()
    'my_kernel'
    >>> DisabledSafetyCheck.shardings(), DisabledSafetyCheck.platform()
    (shardings, platform)
    """

    @classmethod
    def shardings(cls) -> JaxDisabledSafetyCheck:
        """Allows TensorFlow to run a sharded function on a single device.

        The results are the same. JAX does not have this check, and its file format omits it.
        """
        return cls(str(DisabledSafetyCheck.shardings()))

    @classmethod
    def debug_effects(cls) -> JaxDisabledSafetyCheck:
        """Removes calls of jax.debug (print, callback, breakpoint) from an export.

        They do not affect the results. JAX does not have this check, and its file format omits it.
        """
        return cls(str(DisabledSafetyCheck.debug_effects()))


_FIELDS = tuple(field.name for field in dataclasses.fields(jax_export.Exported))

# Fields that are known without JAX's Exported, which takes longer to make.
_FIELDS_FROM_PORTABLE: Mapping[str, Callable[[PortableFunction], Any]] = MappingProxyType(
    {
        "fun_name": lambda portable: portable.name,
        "platforms": lambda portable: portable.platforms,
        "nr_devices": lambda portable: portable.module.nr_devices,
    }
)


# Fields of older JAX releases, which programs may still read.
_OLDER_FIELDS: Mapping[str, Callable[[Exported], Any]] = MappingProxyType(
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
    """A jax.export.Exported around a portable function, with the fields and methods of JAX's class.

    Fields that need JAX's own Exported are computed when they are first read. Unlike JAX's class,
    this one can be copied and pickled.

    Attributes:
      portable: the portable function, for TensorFlow, files, and processes without JAX.

    >>> import jax, numpy as np
    >>> from jax2tf_bridge.jax_export import export
    >>> exported = export(jax.jit(lambda x: x**3), platforms=["cpu"])(1.0)
    >>> exported.in_avals, float(exported.call(2.0)), exported.portable.module.stablehlo_version
    ((ShapedArray(float32[], weak_type=True),), 8.0, (0, 14, 24))
    """

    portable: PortableFunction

    def __init__(self, portable: PortableFunction | None = None, **fields: Any) -> None:
        """Makes an Exported from a portable function, the fields of jax.export.Exported, or both.

        Args:
          portable: the portable function; by default it is made from the fields.
          **fields: the fields of jax.export.Exported. With `portable`, they replace its values.

        Raises:
          FunctionError: `portable` is not a portable function.
          UnsupportedByTargetError, ModuleError, NotExportableError: as for `from_exported`, if only
            fields are given.
          TypeError: a field is missing, or JAX's class has no such field.
        """
        unknown = sorted(fields.keys() - set(_FIELDS))
        if unknown:
            raise TypeError(
                f"jax.export.Exported has no field {unknown[0]!r}. Its fields are: "
                f"{', '.join(_FIELDS)}."
            )
        if portable is None and fields:
            portable = from_exported(jax_export.Exported(**fields))
            self._set_fields(**fields, portable=portable)
            return
        portable = as_portable_function(portable, "Exported")
        if fields:
            self._set_fields(**fields)
            portable = _update_portable(portable, self, fields)
        self._set_fields(portable=portable)

    def __getattr__(self, name: str) -> Any:
        if name in _OLDER_FIELDS:
            return _OLDER_FIELDS[name](self)
        if name not in _FIELDS:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)
        compute = _FIELDS_FROM_PORTABLE.get(name)
        if compute is not None:
            self._set_fields(**{name: compute(self.portable)})
        else:
            exported = to_exported(self.portable)
            self._set_fields(**{field: getattr(exported, field) for field in _FIELDS})
        return self.__dict__[name]

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the function in JAX. Inside jax.jit it becomes a part of the program.

        Reverse-mode differentiation works up to the order of the VJPs of the function. Forward mode
        and vmap are not supported; export with a symbolic batch size instead of vmap.

        Returns:
          The results as jax.Array, in the structure that the function returns.

        Raises:
          ValueError: raised by JAX if the structure, shapes, dtypes, constraints, platform or
            number of devices do not match, or if it needs a VJP that does not exist.
          StructureError, UnsupportedByTargetError, ModuleError, SerializationError: as for
            `to_exported`.
        """
        base: Any = super()
        return base.call(*args, **kwargs)

    def has_vjp(self) -> bool:
        """Returns whether a VJP is stored or can be made."""
        return self.portable.has_vjp

    def vjp(self) -> Exported:
        """Returns the VJP, which is made at the first call.

        jax.export.Exported.vjp describes its arguments and results.

        Raises:
          GradientError: there is no VJP; the message says why. It is also a ValueError.
          InconclusiveShapeError: the VJP works for some sizes only; the message says which.
          PlatformError, UnsupportedByTargetError: the target cannot run the VJP.
        """
        # The VJP is always the same object, so that JAX compiles it only once.
        exported: Exported = self.__dict__.setdefault("_vjp", Exported(self.portable.vjp()))
        return exported

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """Returns the bytes of a .jaxfn file, which every later release of the bridge can read.

        jax.export cannot read such files. `serialize_exported` writes the format of jax.export,
        which only some releases of JAX can read.

        Args:
          vjp_order: the number of VJPs to write; missing ones are made.

        Raises:
          SerializationError: the format cannot hold the function, or it has fewer than vjp_order
            VJPs.
          InconclusiveShapeError: making a VJP requires a decision about unknown sizes.
          ValueError: vjp_order is negative.
        """
        return bytearray(serialization.serialize(self.portable, vjp_order=vjp_order))

    def __repr__(self) -> str:
        return f"Exported around {self.portable!r}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Exported, (self.portable,))

    def _set_fields(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def _update_portable(
    portable: PortableFunction, exported: Exported, fields: Mapping[str, Any]
) -> PortableFunction:
    """Returns `portable` changed to have the `fields` of `exported`."""
    old_exported = to_exported(portable)
    changes = {
        name: value for name, value in fields.items() if value is not getattr(old_exported, name)
    }
    if changes.keys() - _UPDATES.keys():
        # Other changes, such as another module or other effects, need a new portable function.
        return from_exported(dataclasses.replace(old_exported, **fields))
    for name, value in changes.items():
        portable = _UPDATES[name](portable, value)
    # Cached, so that the next update compares with these fields.
    keep_exported(portable, dataclasses.replace(old_exported, **fields))
    return portable


def _with_in_tree(portable: PortableFunction, in_tree: Any) -> PortableFunction:
    spec = _make_spec(in_tree, len(portable.in_avals), "in_tree")
    names = make_argument_names(spec, None)
    return dataclasses.replace(portable, in_tree=spec, argument_names=names)


def _with_out_tree(portable: PortableFunction, out_tree: Any) -> PortableFunction:
    return dataclasses.replace(
        portable, out_tree=_make_spec(out_tree, len(portable.out_avals), "out_tree")
    )


def _make_spec(tree: Any, count: int, field: str) -> Any:
    if tree.num_leaves != count:
        raise StructureError(
            f"{field} must have {count} leaves, one for each abstract value. Got: "
            f"{tree.num_leaves} in {tree}"
        )
    return describe_structure(tree, [jax.ShapeDtypeStruct((), "float32")] * count)


_UPDATES: Mapping[str, Callable[[PortableFunction, Any], PortableFunction]] = MappingProxyType(
    {
        "fun_name": lambda portable, name: dataclasses.replace(portable, name=name),
        "in_tree": _with_in_tree,
        "out_tree": _with_out_tree,
        "disabled_safety_checks": lambda portable, checks: dataclasses.replace(
            portable,
            module=dataclasses.replace(portable.module, disabled_checks=as_safety_checks(checks)),
        ),
    }
)


minimum_supported_calling_convention_version: int = min(c for _, c in TENSORFLOW_RELEASES.values())
"""Oldest calling convention that the bridge writes and calls."""

maximum_supported_calling_convention_version: int = (
    jax_export.maximum_supported_calling_convention_version
)
"""Newest calling convention: that of the installed JAX."""


def export(
    fun_jit: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
    lowering_platforms: Sequence[str] | None = None,
    lowering_platform: str | None = None,
    strict_checks: bool = True,
) -> Callable[..., Exported]:
    """Exports a JAX function to StableHLO, with the arguments and defaults of jax.export.export.

    `jax2tf_bridge.export` has more options, and exports for four platforms by default.

    Args:
      fun_jit: the function. Unlike in JAX, it need not be the result of jax.jit.
      platforms: a sequence of "cpu", "cuda", "rocm" and "tpu". The default is the platform of this
        process, default_export_platform().
      disabled_checks: the safety checks to disable, as DisabledSafetyCheck of the bridge or of JAX.
      lowering_platforms: an older name of `platforms`.
      lowering_platform: an older argument for a single platform.
      strict_checks: an older argument; False disables the checks of the platform and of custom
        calls.

    Returns:
      A function that takes the arguments of `fun_jit` and returns an Exported. The arguments may be
      arrays, numbers, jax.ShapeDtypeStruct (with sizes from symbolic_shape), or the tracers of a
      transformation. If arrays or shardings use several devices, the function is exported for the
      same number of devices.

    Raises:
      FunctionError: `fun_jit` is not a function.
      TargetError: a platform does not exist, or platforms are given by several of the arguments.
      ShapeError: the scopes of the sizes contradict each other.
      InconclusiveShapeError: the function works for some sizes only; the message says which.
      NotExportableError: the function calls back to the host.
      PlatformError, UnsupportedByTargetError: the function cannot be lowered, or contains a custom
        call that TensorFlow has no handler for and whose check is not disabled.

    >>> import jax, numpy as np
    >>> exported = export(jax.jit(jax.numpy.sin), platforms=["cpu"])(np.float32(0))
    >>> exported.fun_name, exported.platforms, float(exported.call(np.float32(0)))
    ('sin', ('cpu',), 0.0)
    """
    platform_arguments = {
        "platforms": platforms,
        "lowering_platforms": lowering_platforms,
        "lowering_platform": None if lowering_platform is None else (lowering_platform,),
    }
    arguments = {name: value for name, value in platform_arguments.items() if value is not None}
    if len(arguments) > 1:
        raise TargetError(
            f"export got {' and '.join(arguments)}, which are names of one argument. Pass only "
            "platforms."
        )
    default_platforms: Sequence[str] = (jax_export.default_export_platform(),)
    names = next(iter(arguments.values()), default_platforms)
    checks = disabled_checks if strict_checks else (*disabled_checks, *NOT_STRICT)
    function = JaxCallable.of(fun_jit, caller="export")
    options = make_export_options(
        names, (), checks, None, argument="platforms", call="", words=SYMBOLIC
    )

    def export_for(*args_specs: Any, **kwargs_specs: Any) -> Exported:
        static_positions = function.static_positions(len(args_specs))
        args = [
            spec if i in static_positions else _with_jit_types(spec, name)
            for i, (name, spec) in enumerate(
                zip(function.argument_names(len(args_specs)), args_specs, strict=True)
            )
        ]
        kwargs = {
            name: spec if name in function.static_argnames else _with_jit_types(spec, name)
            for name, spec in kwargs_specs.items()
        }
        specs = symbolic_specs(function, args, kwargs, None)
        call = f'symbolic_shape("{_format_open_shape(specs)}"'
        prepared = PreparedExport(function, specs, options.with_call(call))
        return Exported(prepared.run())

    return export_for


def deserialize(blob: bytes | bytearray | memoryview) -> Exported:
    """Reads a function that Exported.serialize of the bridge or of jax.export wrote.

    Raises:
      FileFormatError: the bytes have another format, are damaged, or have a newer version.
    """
    return Exported(serialization.deserialize(blob))


def _format_open_shape(specs: Specs) -> str:
    """Returns the first shape with an open dimension, in the syntax of symbolic_shape."""
    shapes = (shape for shape in specs.shapes() if any(map(is_symbolic_dim, shape)))
    return ", ".join(map(str, next(shapes, ())))


def _with_jit_types(argument: Any, name: str) -> Any:
    """Adds weak types and shardings to the leaves of an argument, like jax.jit.

    Python numbers, and results that are computed from them only, have a weak type. Arrays over
    several devices have a sharding.
    """
    try:
        leaves, structure = jax.tree_util.tree_flatten(argument)
    except ValueError:
        check_dict_keys(argument, f"The argument {name}")
        raise
    return rebuild_tree(structure, map(_leaf_with_jit_type, leaves))


def _leaf_with_jit_type(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_tracer = isinstance(leaf, jax.core.Tracer)
    is_array = isinstance(leaf, jax.Array) and not is_tracer
    is_sharded = is_array and len(leaf.sharding.device_set) > 1
    is_number = isinstance(leaf, (bool, int, float, complex))
    if not (is_tracer or is_sharded or is_number or getattr(leaf, "weak_type", False)):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=leaf.sharding if is_sharded else None,
        weak_type=aval.weak_type,
    )
