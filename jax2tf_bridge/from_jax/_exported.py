"""to_exported() and from_exported(): convert portable functions to JAX's Exported and back."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge._utils import once_per_object
from jax2tf_bridge.bytecode import read_stablehlo_version
from jax2tf_bridge.errors import FunctionError, ShapeError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._archives import is_retired, rewrite_calls
from jax2tf_bridge.from_jax._retarget import retarget
from jax2tf_bridge.from_jax._shardings import read_shardings
from jax2tf_bridge.from_jax._symbols import dim_to_jax, scope_from_jax, scope_to_jax
from jax2tf_bridge.from_jax.arguments import is_narrow, portable_aval
from jax2tf_bridge.from_jax.lowering import name_effects
from jax2tf_bridge.from_jax.stablehlo import (
    MANUAL_COMPUTATION,
    check_stored_types,
    convert_to_jax_form,
    embed_lifted_constants,
    read_stablehlo_module,
    restore_manual_computations,
    retype_narrow_values,
)
from jax2tf_bridge.from_jax.trees import describe_structure, make_jax_structures
from jax2tf_bridge.portable import (
    Aval,
    GradientOnDemand,
    HoldsPortable,
    Module,
    NoGradient,
    PortableFunction,
    as_portable_function,
    as_safety_checks,
    flat_call,
    flat_names,
    flat_tuple,
    get_stored_functions,
    unwrap_portable,
)
from jax2tf_bridge.serialization import forward_registrations
from jax2tf_bridge.serialization.jax_exported import (
    DTYPES,
    check_writable_chain,
    make_argument_names,
    read_asserted_constraints,
    write_exported,
)
from jax2tf_bridge.targets import Target
from shape_poly import SymbolicScope, is_symbolic_dim

_LINEAR_ALGEBRA = re.compile(rb"(?:lapack|blas)_[sdcz][a-z]+")
_MIN_CONVENTION = 9
"""Lowest calling convention that every supported JAX reads."""
_MESHES = b"xla.sdy.meshes"
_MESHES_FROM_TEXT = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"


def to_exported(portable: PortableFunction | HoldsPortable) -> jax_export.Exported:
    """Converts a portable function to a jax.export.Exported, which JAX can call and differentiate.

    The function may be older than jax.export.deserialize accepts: LAPACK calls that the installed
    JAX no longer registers are replaced. VJPs are made on demand.

    Args:
      portable: a function from an export, a file or a JAX archive.

    Returns:
      The Exported. Each call with this function returns the same object, so that JAX compiles it
      once per shape.

    Raises:
      StructureError: the type of a pytree node is unknown in this process (register it with
        register_pytree_node_serialization), or its children have another order here.
      FileFormatError: a registered type does not fit the stored node.
      UnsupportedByTargetError: the module has a call that the installed JAX does not register and
        that has no equivalent in StableHLO.
      ModuleError: the installed JAX cannot read the module, the types of the module and the
        function differ, or it was written without the captured arrays.
      SerializationError: Exported cannot represent a part of the function.
      FunctionError: `portable` is not a portable function.
    """
    portable = as_portable_function(portable, "to_exported")
    cache = _get_cache(portable)
    with cache.lock:
        if cache.exported is not None:
            return cache.exported
        exported = _make_exported(portable)
        keep_exported(portable, exported)
        return exported


class _ExportedCache:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.exported: jax_export.Exported | None = None


@once_per_object
def _get_cache(_: PortableFunction) -> _ExportedCache:
    return _ExportedCache()


def keep_exported(function: PortableFunction, exported: jax_export.Exported) -> None:
    """Caches the Exported of a portable function for `to_exported`, if it has the gradient.

    It is not cached if JAX cannot make VJPs on demand, because a VJP may be added later.
    """
    if exported.has_vjp() == function.has_vjp:
        _get_cache(function).exported = exported


def _make_exported(portable: PortableFunction) -> jax_export.Exported:
    forward_registrations()
    in_tree, out_tree = make_jax_structures(portable)
    exported = _make_flat_exported(portable, 0)
    if portable.has_vjp:
        # The closure must not hold the function, or the cached Exported would keep it alive.
        gradient, name = portable.gradient, portable.name
        with_vjp = _jax_compat.attach_vjp(exported, lambda: to_exported(gradient.get(name)))
        orders = len(get_stored_functions(portable)) - 1
        exported = with_vjp or _make_flat_exported(portable, orders)
    in_avals, out_avals = _constrain_avals(portable, exported)
    return replace(
        exported,
        in_tree=in_tree,
        out_tree=out_tree,
        in_avals=_restore_weak_types(portable.in_avals, in_avals),
        out_avals=_restore_weak_types(portable.out_avals, out_avals),
    )


def from_exported(
    exported: jax_export.Exported, *, target: Target | None = None
) -> PortableFunction:
    """Converts a jax.export.Exported, exported or deserialized, to a portable function.

    Args:
      exported: the Exported; it is not changed. LAPACK calls in it become StableHLO.
      target: the consumer's capabilities; by default `Target.widest()`.

    Returns:
      The portable function. Its VJP is made on demand. Its constraints come from the symbolic scope
      of its sizes; or from the checks in the module, if it was read from a file of JAX, which drops
      the scope. `constraints_known` is True only if the scope has constraints, or no size is
      symbolic.

    Raises:
      UnsupportedByTargetError, ModuleError: as in `retarget`.
      FunctionError: `exported` is not a jax.export.Exported.
      NotExportableError: it has an effect that cannot be recreated.
    """
    known = unwrap_portable(exported)
    if known is not exported:
        held: PortableFunction = known
        return held if target is None else retarget(held, target)
    if not isinstance(exported, jax_export.Exported):
        raise FunctionError(
            "from_exported expected a jax.export.Exported, which jax.export.export(f)(x) and "
            f"jax.export.deserialize return. Got: {exported!r:.200} of type "
            f"{type(exported).__name__}."
        )
    return retarget(_make_portable(exported), target)


def _make_portable(
    exported: jax_export.Exported, primal: PortableFunction | None = None
) -> PortableFunction:
    """Makes a portable function with JAX's module; a VJP gets its `primal` function."""
    in_avals = tuple(portable_aval(aval) for aval in exported.in_avals)
    out_avals = tuple(portable_aval(aval) for aval in exported.out_avals)
    in_tree = describe_structure(exported.in_tree, exported.in_avals)
    data = bytes(exported.mlir_module_serialized)
    in_shardings, out_shardings = read_shardings(exported)
    symbolic = [d for aval in in_avals for d in aval.shape if is_symbolic_dim(d)]
    scope_constraints = _read_constraints(exported)
    shapes = [[str(d) for d in aval.shape] for aval in exported.in_avals]
    constraints = scope_constraints or read_asserted_constraints(memoryview(data), shapes, in_avals)
    version = read_stablehlo_version(memoryview(data)) or _jax_compat.get_stablehlo_version()
    convention = exported.calling_convention_version
    producer = f"JAX {jax.__version__}"
    portable = PortableFunction(
        name=exported.fun_name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=describe_structure(exported.out_tree, exported.out_avals),
        out_avals=out_avals,
        argument_names=make_argument_names(in_tree, primal),
        module=Module(
            data,
            version,
            convention,
            kept_arguments=tuple(exported.module_kept_var_idx),
            platforms=tuple(exported.platforms),
            uses_shape_polymorphism=exported.uses_global_constants or bool(symbolic),
            disabled_checks=as_safety_checks(exported.disabled_safety_checks),
            nr_devices=exported.nr_devices,
        ),
        constraints=constraints,
        ordered_effects=name_effects(exported.ordered_effects, exported.fun_name),
        unordered_effects=name_effects(exported.unordered_effects, exported.fun_name),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        target=Target(producer, (version,), convention),
        producer=producer,
        # The checks in a module may be incomplete.
        constraints_known=bool(scope_constraints) or not symbolic,
        uses_global_constants=exported.uses_global_constants,
        gradient=NoGradient("the exported function was made without one"),
    )
    if not exported.has_vjp():
        return portable
    return replace(
        portable, gradient=GradientOnDemand(lambda: _make_portable(exported.vjp(), portable))
    )


@functools.cache
def _load_lapack() -> None:
    """Makes JAX load LAPACK, which it otherwise does only when it lowers a call.

    JAX 0.8 crashes the process if a deserialized module calls LAPACK before that.
    """
    traced = jax.jit(jax.numpy.linalg.qr).trace(np.eye(2, dtype=np.float32))
    traced.lower(lowering_platforms=("cpu",))


def _make_flat_exported(portable: PortableFunction, vjp_order: int) -> jax_export.Exported:
    """Makes an Exported over flat arguments and results, through serialized bytes.

    All releases of JAX read the same bytes, and none compares their types with the module's.
    """
    for stored in get_stored_functions(portable)[: vjp_order + 1]:
        check_stored_types(stored)
    portable = embed_lifted_constants(portable, vjp_order)
    convention = max(portable.module.calling_convention_version, _MIN_CONVENTION)
    flat = replace(
        portable,
        in_tree=flat_call(len(portable.in_avals)),
        out_tree=flat_tuple(len(portable.out_avals)),
        argument_names=flat_names(len(portable.in_avals)),
        module=replace(
            portable.module,
            data=_update_module(portable),
            calling_convention_version=convention,
        ),
        # False marks a module that takes 4-bit values directly, as those of JAX do.
        constraints_known=False,
        target=Target.widest(),  # its module has no composites any more
        in_avals=tuple(map(_replace_unwritable_dtype, portable.in_avals)),
        out_avals=tuple(map(_replace_unwritable_dtype, portable.out_avals)),
    )
    functions = map(convert_to_jax_form, check_writable_chain(flat, vjp_order))
    exported = jax_export.deserialize(bytearray(write_exported(list(functions))))
    return replace(
        exported,
        in_avals=_restore_dtypes(portable.in_avals, exported.in_avals),
        out_avals=_restore_dtypes(portable.out_avals, exported.out_avals),
    )


def _replace_unwritable_dtype(aval: Aval) -> Aval:
    # JAX's files lack int2 and uint2.
    return aval if aval.dtype in DTYPES else replace(aval, dtype="int8")


def _restore_dtypes(known_avals: Sequence[Aval], avals: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        aval if known.dtype in DTYPES else aval.update(dtype=np.dtype(known.dtype))
        for known, aval in zip(known_avals, avals, strict=True)
    )


def _update_module(portable: PortableFunction) -> bytes:
    narrow = any(map(is_narrow, (*portable.in_avals, *portable.out_avals)))
    readable = portable.module.stablehlo_version <= _jax_compat.get_stablehlo_version()
    is_plain = readable and portable.target.xla and not narrow
    if is_plain and not _LINEAR_ALGEBRA.search(portable.module.data):
        return _restore_meshes(portable.module.data)
    _load_lapack()
    module = read_stablehlo_module(portable)
    if not portable.target.xla:
        module.expand()  # JAX cannot refine the shapes of composites
    rewrite_calls(module, portable.name, None)
    for call in module.describe_custom_calls():
        if is_retired(call.name):
            raise UnsupportedByTargetError(
                f"{portable.name} cannot run under JAX {jax.__version__}: the custom call "
                f"{call}, which {portable.producer} registered, is no longer registered, and it "
                "has no equivalent in StableHLO. Export the function again.",
                operation=call.name,
                source=call.source,
            )
    if narrow:
        retype_narrow_values(module, portable, ELEMENT_TYPES)
    return _restore_meshes(module.serialize(_jax_compat.get_stablehlo_version()))


def _restore_meshes(module: bytes) -> bytes:
    """Converts meshes and manual computations to Shardy operations, which TensorFlow lacks.

    JAX 0.8 recognizes only the operations; later releases read both forms.
    """
    if _MESHES not in module:
        return module
    with _jax_compat.make_ir_context():
        read = _jax_compat.deserialize_module(module)
        _jax_compat.run_mlir_passes(read, _MESHES_FROM_TEXT)
        if MANUAL_COMPUTATION in module:
            restore_manual_computations(read)
        return _jax_compat.serialize_module(read, mixed=True)


def _read_constraints(exported: jax_export.Exported) -> tuple[str, ...]:
    # Files of JAX drop the scope.
    symbolic = [
        d for aval in exported.in_avals for d in aval.shape if jax_export.is_symbolic_dim(d)
    ]
    scope = getattr(symbolic[0], "scope", None) if symbolic else None
    return () if scope is None else tuple(map(str, scope_from_jax(scope).constraints))


def _constrain_avals(
    portable: PortableFunction, exported: jax_export.Exported
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Converts the abstract values to a scope with the function's constraints.

    JAX's files drop constraints; with them, JAX can decide the same questions as at the export.
    """
    avals = (*exported.in_avals, *exported.out_avals)
    texts = (*portable.constraints, *portable.requirements)
    # JAX does not support !=; the module checks it anyway.
    comparisons = [c for c in SymbolicScope(texts, check=False).constraints if c.operator != "!="]
    known_avals = (*portable.in_avals, *portable.out_avals)
    symbolic = any(is_symbolic_dim(d) for aval in known_avals for d in aval.shape)
    if not comparisons or not symbolic:
        return exported.in_avals, exported.out_avals
    try:
        scope = scope_to_jax(SymbolicScope(comparisons, check=False))
        # Dtype and memory space are kept, because a new trace would convert 64 bits to 32.
        avals = tuple(
            aval.update(shape=tuple(dim_to_jax(d, scope) for d in known.shape))
            for known, aval in zip(known_avals, avals, strict=True)
        )
    except ShapeError:
        # JAX rejects these constraints together; the module checks them.
        return exported.in_avals, exported.out_avals
    return avals[: len(exported.in_avals)], avals[len(exported.in_avals) :]


def _restore_weak_types(known_avals: Sequence[Aval], avals: Sequence[Any]) -> tuple[Any, ...]:
    # JAX's files drop weak types.
    return tuple(
        aval.update(weak_type=True) if known.weak_type else aval
        for known, aval in zip(known_avals, avals, strict=True)
    )
