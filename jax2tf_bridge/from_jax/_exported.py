"""to_exported() and from_exported(): between portable functions and JAX's exported ones."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.extend.mlir as portable_artifacts
import numpy as np
from jax import export as jax_export

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge._utils import once_per_object
from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.errors import (
    FunctionError,
    ShapeError,
    UnsupportedByTargetError,
)
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._retarget import retarget
from jax2tf_bridge.from_jax._shardings import exported_shardings
from jax2tf_bridge.from_jax._symbols import dim_to_jax, scope_from_jax, scope_to_jax
from jax2tf_bridge.from_jax.archives import is_retired, rewrite_calls
from jax2tf_bridge.from_jax.arguments import is_narrow, portable_aval
from jax2tf_bridge.from_jax.lowering import effect_names
from jax2tf_bridge.from_jax.stablehlo import (
    MANUAL_COMPUTATION,
    check_stored_types,
    convert_to_jax_form,
    embed_lifted_constants,
    read_stablehlo_module,
    restore_manual_computations,
    retype_narrow_values,
)
from jax2tf_bridge.from_jax.trees import jax_structures, spec_of_structure
from jax2tf_bridge.portable import (
    Aval,
    GradientOnDemand,
    HoldsPortable,
    Module,
    NoGradient,
    PortableFunction,
    as_portable_function,
    canonical_checks,
    flat_call,
    flat_names,
    flat_tuple,
    unwrap_portable,
)
from jax2tf_bridge.serialization import forward_registrations
from jax2tf_bridge.serialization.jax_exported import (
    DTYPES,
    check_writable_chain,
    make_argument_names,
    read_asserted_constraints,
    read_stablehlo_version,
    write_exported,
)
from jax2tf_bridge.targets import Target
from shape_poly import SymbolicScope, is_symbolic_dim

_LINEAR_ALGEBRA = re.compile(rb"(?:lapack|blas)_[sdcz][a-z]+")
_CONVENTION = 9
_MESHES = b"xla.sdy.meshes"
_MESHES_FROM_TEXT = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"


def to_exported(portable: PortableFunction | HoldsPortable) -> jax_export.Exported:
    """Makes JAX's own exported function, which JAX calls, differentiates and exports.

    The function may be older than what jax.export.deserialize takes: calls of LAPACK that today's
    JAX registers no longer are replaced.  VJPs are made when JAX asks for them.

    Args:
      portable: of an export, a file or one of JAX's archives.

    Returns:
      The same object for each call with this function, so that JAX compiles it once a shape.

    Raises:
      StructureError: a pytree node's type is not known here; register it for files
        (register_pytree_node_serialization). Or it has its children in another order here.
      FileFormatError: a registered type does not fit what is stored.
      UnsupportedByTargetError: the module holds a call that JAX registers no longer and that has
        no form in StableHLO.
      ModuleError: the installed JAX cannot read the module, its types are not the function's, or
        it was written without the arrays that the function captured.
      SerializationError: JAX has no place for what the function holds.
      FunctionError: it is no portable function.
    """
    portable = as_portable_function(portable, "to_exported")
    form = _form_in_jax(portable)
    with form.lock:
        if form.exported is not None:
            return form.exported
        exported = _exported(portable)
        keep_exported(portable, exported)
        return exported


class _FormInJax:
    """JAX's form of a portable function, made once in a process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.exported: jax_export.Exported | None = None


@once_per_object
def _form_in_jax(_: PortableFunction) -> _FormInJax:
    return _FormInJax()


def keep_exported(function: PortableFunction, exported: jax_export.Exported) -> None:
    """Keeps JAX's form of a portable function for `to_exported`, if it has its gradient.

    Where JAX has no place for a VJP that is made later, another one may be there later.
    """
    if exported.has_vjp() == function.has_vjp:
        _form_in_jax(function).exported = exported


def _exported(portable: PortableFunction) -> jax_export.Exported:
    forward_registrations()
    in_tree, out_tree = jax_structures(portable)
    exported = _flat_exported(portable, 0)
    if portable.has_vjp:
        # Holding the function would keep it alive for as long as its form in JAX lives.
        gradient, name = portable.gradient, portable.name
        with_vjp = _jax_compat.with_vjp_made_by(exported, lambda: to_exported(gradient.get(name)))
        exported = with_vjp or _flat_exported(portable, _materialised_orders(portable))
    in_avals, out_avals = _under_constraints(portable, exported)
    return replace(
        exported,
        in_tree=in_tree,
        out_tree=out_tree,
        in_avals=_with_weak_types(portable.in_avals, in_avals),
        out_avals=_with_weak_types(portable.out_avals, out_avals),
    )


def from_exported(
    exported: jax_export.Exported, *, target: Target | None = None
) -> PortableFunction:
    """Makes a portable function of one that jax.export exported or deserialized.

    Args:
      exported: is not changed. Calls of LAPACK in it become StableHLO.
      target: what the consumer can run; by default `Target.widest()`.

    Returns:
      The portable function. Its VJP is made when it is asked for. Its constraints are those of
      the symbolic scope of its sizes; or those that its module checks, after a file of JAX's, which
      drops the scope's. `constraints_known` is True only where the scope has some, or no size is
      symbolic.

    Raises:
      UnsupportedByTargetError, ModuleError: as `retarget`.
      FunctionError: it is no jax.export.Exported.
      NotExportableError: it has an effect that cannot be made anew.
    """
    known = unwrap_portable(exported)
    if known is not exported:
        held: PortableFunction = known
        return held if target is None else retarget(held, target)
    if not isinstance(exported, jax_export.Exported):
        raise FunctionError(
            "from_exported expected a jax.export.Exported, which jax.export.export(f)(x) and "
            f"jax.export.deserialize give. Got: {exported!r:.200} of type "
            f"{type(exported).__name__}."
        )
    return retarget(_portable(exported), target)


def _portable(
    exported: jax_export.Exported, primal: PortableFunction | None = None
) -> PortableFunction:
    """Keeps the module as JAX wrote it; `primal` is given for its VJP."""
    in_avals = tuple(portable_aval(aval) for aval in exported.in_avals)
    out_avals = tuple(portable_aval(aval) for aval in exported.out_avals)
    in_tree = spec_of_structure(exported.in_tree, exported.in_avals)
    data = bytes(exported.mlir_module_serialized)
    in_shardings, out_shardings = exported_shardings(exported)
    symbolic = [d for aval in in_avals for d in aval.shape if is_symbolic_dim(d)]
    written = _written_constraints(exported)
    shapes = [[str(d) for d in aval.shape] for aval in exported.in_avals]
    constraints = written or read_asserted_constraints(memoryview(data), shapes, in_avals)
    version = read_stablehlo_version(memoryview(data)) or _jax_compat.current_stablehlo_version()
    convention = exported.calling_convention_version
    producer = f"JAX {jax.__version__}"
    portable = PortableFunction(
        name=exported.fun_name,
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=spec_of_structure(exported.out_tree, exported.out_avals),
        out_avals=out_avals,
        argument_names=make_argument_names(in_tree, primal),
        module=Module(
            data,
            version,
            convention,
            kept_arguments=tuple(exported.module_kept_var_idx),
            platforms=tuple(exported.platforms),
            uses_shape_polymorphism=exported.uses_global_constants or bool(symbolic),
            disabled_checks=canonical_checks(exported.disabled_safety_checks),
            nr_devices=exported.nr_devices,
        ),
        constraints=constraints,
        ordered_effects=effect_names(exported.ordered_effects, exported.fun_name),
        unordered_effects=effect_names(exported.unordered_effects, exported.fun_name),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        target=Target(producer, (version,), convention),
        producer=producer,
        # The module's checks may be incomplete.
        constraints_known=bool(written) or not symbolic,
        uses_global_constants=exported.uses_global_constants,
        gradient=NoGradient("the exported function was made without one"),
    )
    if not exported.has_vjp():
        return portable
    return replace(portable, gradient=GradientOnDemand(lambda: _portable(exported.vjp(), portable)))


@functools.cache
def _load_lapack() -> None:
    """Has JAX load LAPACK, which it does when it lowers a call; a module read from bytes is not.

    JAX 0.8 crashes the process where one is run otherwise.
    """
    traced = jax.jit(jax.numpy.linalg.qr).trace(np.eye(2, dtype=np.float32))
    traced.lower(lowering_platforms=("cpu",))


def _flat_exported(portable: PortableFunction, vjp_order: int) -> jax_export.Exported:
    """Gives JAX the function over flat arguments and results, as bytes to read.

    Bytes are the one way in that is the same for every release of JAX, which does not compare
    their types with those of the module.
    """
    stored: PortableFunction | None = portable
    for _ in range(vjp_order + 1):
        if stored is not None:
            check_stored_types(stored)
            stored = stored.gradient.made
    portable = embed_lifted_constants(portable, vjp_order)
    flat = replace(
        portable,
        in_tree=flat_call(len(portable.in_avals)),
        out_tree=flat_tuple(len(portable.out_avals)),
        argument_names=flat_names(len(portable.in_avals)),
        module=replace(
            portable.module,
            data=_todays_module(portable),
            calling_convention_version=max(portable.module.calling_convention_version, _CONVENTION),
        ),
        # The module takes 4-bit values as they are now.
        constraints_known=False,
        in_avals=tuple(map(_with_written_dtype, portable.in_avals)),
        out_avals=tuple(map(_with_written_dtype, portable.out_avals)),
    )
    functions = map(convert_to_jax_form, check_writable_chain(flat, vjp_order))
    exported = jax_export.deserialize(bytearray(write_exported(list(functions))))
    return replace(
        exported,
        in_avals=_with_own_dtypes(portable.in_avals, exported.in_avals),
        out_avals=_with_own_dtypes(portable.out_avals, exported.out_avals),
    )


def _with_written_dtype(aval: Aval) -> Aval:
    """Gives an abstract value a dtype that JAX's files have: they lack int2 and uint2."""
    return aval if aval.dtype in DTYPES else replace(aval, dtype="int8")


def _with_own_dtypes(known_avals: Sequence[Aval], avals: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        aval if known.dtype in DTYPES else aval.update(dtype=np.dtype(known.dtype))
        for known, aval in zip(known_avals, avals, strict=True)
    )


def _todays_module(portable: PortableFunction) -> bytes:
    """Rewrites the module for the installed JAX; returns it as it is if that runs it."""
    narrow = any(map(is_narrow, (*portable.in_avals, *portable.out_avals)))
    readable = portable.module.stablehlo_version <= _jax_compat.current_stablehlo_version()
    if readable and not narrow and not _LINEAR_ALGEBRA.search(portable.module.data):
        return _with_meshes(portable.module.data)
    _load_lapack()
    module = read_stablehlo_module(portable)
    rewrite_calls(module, portable.name, keep_current=True)
    for call in module.custom_calls():
        if is_retired(call.name):
            raise UnsupportedByTargetError(
                f"{portable.name} cannot run under JAX {jax.__version__}: the custom call {call} "
                f"is one that {portable.producer} registered and JAX does no longer, and it has no "
                "form in StableHLO. Export the function again.",
                operation=call.name,
                source=call.source,
            )
    if narrow:
        retype_narrow_values(module, portable, ELEMENT_TYPES)
    return _with_meshes(module.serialize(_jax_compat.current_stablehlo_version()))


def _with_meshes(module: bytes) -> bytes:
    """Writes meshes and computations on parts as operations of Shardy, which TensorFlow lacks.

    JAX 0.8 looks for the operations alone; later releases read both.
    """
    if _MESHES not in module:
        return module
    version = version_text(_jax_compat.current_stablehlo_version())
    with _jax_compat.make_ir_context():
        read = _jax_compat.deserialize_module(module)
        _jax_compat.run_passes(read, _MESHES_FROM_TEXT)
        if MANUAL_COMPUTATION in module:
            restore_manual_computations(read)
        try:
            written = portable_artifacts.serialize_portable_artifact(read, version, True)
        except TypeError:  # JAX 0.8 takes bytecode
            bytecode: Any = _jax_compat.module_bytecode(read)
            written = portable_artifacts.serialize_portable_artifact(bytecode, version, True)
    return bytes(written)


def _materialised_orders(portable: PortableFunction) -> int:
    order, made = 0, portable.gradient.made
    while made is not None:
        order, made = order + 1, made.gradient.made
    return order


def _written_constraints(exported: jax_export.Exported) -> tuple[str, ...]:
    """Reads the constraints of its symbolic scope; none after a file, since JAX's files drop it."""
    symbolic = [
        d for aval in exported.in_avals for d in aval.shape if jax_export.is_symbolic_dim(d)
    ]
    scope = getattr(symbolic[0], "scope", None) if symbolic else None
    return () if scope is None else tuple(map(str, scope_from_jax(scope).constraints))


def _under_constraints(
    portable: PortableFunction, exported: jax_export.Exported
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Puts the abstract values into a scope with the function's constraints.

    JAX's files drop them; with them, JAX knows as much of the sizes as when it exported.
    """
    avals = (*exported.in_avals, *exported.out_avals)
    texts = (*portable.constraints, *portable.requirements)
    # JAX has no form for !=; the module checks it all the same.
    comparisons = [c for c in SymbolicScope(texts, check=False).constraints if c.operator != "!="]
    known_avals = (*portable.in_avals, *portable.out_avals)
    symbolic = any(is_symbolic_dim(d) for aval in known_avals for d in aval.shape)
    if not comparisons or not symbolic:
        return exported.in_avals, exported.out_avals
    try:
        scope = scope_to_jax(SymbolicScope(comparisons, check=False))
        # The dtype, and where the array lies, stay: a new trace would make 64 bits 32.
        renewed: tuple[Any, ...] = tuple(
            aval.update(shape=tuple(dim_to_jax(d, scope) for d in known.shape))
            for known, aval in zip(known_avals, avals, strict=True)
        )
    except ShapeError:
        # Constraints that JAX does not take together: its module checks them.
        return exported.in_avals, exported.out_avals
    return renewed[: len(exported.in_avals)], renewed[len(exported.in_avals) :]


def _with_weak_types(known_avals: Sequence[Aval], avals: Sequence[Any]) -> tuple[Any, ...]:
    """Makes the abstract values weak as when the function was traced; JAX's files keep none."""
    return tuple(
        aval.update(weak_type=True) if known.weak_type else aval
        for known, aval in zip(known_avals, avals, strict=True)
    )
