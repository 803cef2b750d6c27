"""Replaces the linear algebra calls in an archive by StableHLO or by today's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax._jax_compat_lowering import newest_calling_convention
from jax2tf_bridge.from_jax.archives._calls import ArchivedCall, read_archived_call
from jax2tf_bridge.from_jax.archives._linalg_calls import routine_function
from jax2tf_bridge.from_jax.lowering import lower
from jax2tf_bridge.from_jax.shapes import ExportOptions
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from jax2tf_bridge.targets import Target
from shape_poly import SymbolicScope

# LAPACK's dtypes, and its integers.
_DTYPES = {
    ELEMENT_TYPES[name]: name for name in ("float32", "float64", "complex64", "complex128", "int32")
}

# The names of the sizes of each routine's arrays, without the batch dimensions.
_SIZES = {
    "gees": ("nn",),
    "gees_ffi": ("nn",),
    "geev": ("nn",),
    "gehrd": ("nn",),
    "geqp3": ("mn", "n"),
    "geqrf": ("mn",),
    "gesdd": ("mn",),
    "gesvd": ("mn",),
    "gesvd_gpu": ("mn",),
    "gesvdj": ("mn",),
    "getrf": ("mn",),
    "gtsv": ("n", "n", "n", "nk"),
    "lu_pivots_to_permutation": ("k",),
    "orgqr": ("mn", "k"),
    "ormqr": ("mn", "k", "pq"),
    "potrf": ("nn",),
    "syevd": ("nn",),
    "sytrd": ("nn",),
    "trsm": ("mm", "mk"),
}
# Routines that JAX also supports for matrices with open sizes.
_OPEN_SIZES = ("potrf", "trsm")
# JAX keeps LAPACK's calls for these, because of the order of eigenvalues and for open sizes.
_IN_LAPACKS_ORDER = ("gees", "geev")


def _options(target: Target) -> ExportOptions:
    """Makes options for the lowering rules."""
    return ExportOptions(("cpu",), (), target, (), scope=SymbolicScope([]), infer=False, call="")


def rewrite_calls(
    module: StableHloModule, name: str, *, keep_current: bool, target: Target | None = None
) -> None:
    """Replaces the LAPACK calls in `module` by StableHLO that every reader runs.

    Args:
      module: the module, which is changed in place.
      name: the name of the function, for messages.
      keep_current: whether to keep calls that today's jaxlib accepts.
      target: the target of the module; by default the widest.

    Raises:
      ModuleError: a call has no equivalent, because of open sizes or computed flags; or its
        operands or types are not those of JAX.
    """
    options = _options(target or Target.widest())
    for operation, called in module.custom_call_operations():
        try:
            # Its operands may be results of a call that was just replaced.
            call = read_archived_call(operation, called)
            if call is None:
                continue
            if not (keep_current and call.is_current):
                by_lapack = keep_current and call.routine in _IN_LAPACKS_ORDER
                _replace(module, operation, call, options, by_lapack=by_lapack)
        except ModuleError as e:
            raise ModuleError(f"{name} holds a call that has no form in StableHLO: {e}") from e
        except Exception as e:  # the module may come from any tool
            raise ModuleError(
                f"{name} holds a call of {called!r} that is not as JAX writes it: "
                f"{type(e).__name__}: {e}. Export the function again."
            ) from e


def _replace(
    module: StableHloModule,
    operation: Any,
    call: ArchivedCall,
    options: ExportOptions,
    *,
    by_lapack: bool,
) -> None:
    operands = [*call.arrays, *([call.scale] if call.scale is not None else [])]
    results = [ir.RankedTensorType(r.type) for r in operation.results]
    shapes = tuple(tuple(r.shape) for r in results)
    specs = _specs(call, operands, by_lapack)
    # The call passes all operands, even unused ones.
    function = jax.jit(routine_function(call.routine, call.flags, shapes), keep_unused=True)
    with jax.enable_x64(specs[0].dtype.itemsize // _parts(specs[0].dtype) == 8):
        if by_lapack:
            replacement = _as_today(function, specs, call.target)
        else:
            replacement = lower(function.trace(*specs), call.target, options).module
    given = replacement.main_types()[1]
    wanted = [str(r) for r in results[: len(given)]]
    if list(given[: len(wanted)]) != wanted:
        raise ModuleError(f"{call.target} gives {', '.join(wanted)}, not {', '.join(given)}")
    module.replace_by_function(operation, operands, replacement, f"bridge_{call.routine}")


def _as_today(function: Any, specs: Sequence[jax.ShapeDtypeStruct], target: str) -> StableHloModule:
    check = jax_export.DisabledSafetyCheck.custom_call(f"{target}_ffi")
    with newest_calling_convention():
        exported = jax_export.export(function, platforms=("cpu",), disabled_checks=(check,))(*specs)
    return StableHloModule.read(exported.mlir_module_serialized)


def _specs(
    call: ArchivedCall, operands: Sequence[Any], by_lapack: bool
) -> list[jax.ShapeDtypeStruct]:
    """Lists the types of the operands, with variables for open sizes."""
    sizes = _SIZES[call.routine]
    if call.routine == "trsm" and not call.flags["left"]:
        sizes = ("mm", "km")
    types = [ir.RankedTensorType(x.type) for x in operands]
    # A scale is a scalar.
    sizes = (*sizes, "")[: len(types)]
    batch = types[0].rank - len(sizes[0])
    variables = [f"b{i}" for i in range(batch)]
    named = [(*(variables if text else ()), *text) for text in sizes]
    scope = jax_export.SymbolicScope(())
    specs = []
    for tensor, names in zip(types, named, strict=True):
        if tensor.rank != len(names):
            raise ModuleError(f"{call.target} takes arguments of other ranks than JAX gives it")
        # The bindings represent an open size by a negative number.
        dimensions = [str(d) if d >= 0 else n for d, n in zip(tensor.shape, names, strict=True)]
        is_open = any(d < 0 for d in tensor.shape[batch:])
        if is_open and not by_lapack and call.routine not in _OPEN_SIZES:
            raise ModuleError(
                f"{call.target} of {tensor}: only batch dimensions may be open for this routine"
            )
        shape = jax_export.symbolic_shape(",".join(dimensions), scope=scope)
        specs.append(jax.ShapeDtypeStruct(shape, _DTYPES[str(tensor.element_type)]))
    return specs


def _parts(dtype: Any) -> int:
    return 2 if dtype.kind == "c" else 1
