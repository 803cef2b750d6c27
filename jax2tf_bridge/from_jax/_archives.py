"""Rewrites the linear algebra calls of functions that JAX 0.4.30 or later exported.

Until 2025 the flags, sizes and workspaces of a call were scalar operands and results. Since then
flags are attributes, and the target's name ends in "_ffi". Some targets are no longer registered.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import export as jax_export
from jax import lax

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax._jax_compat_lowering import find_primitive, newest_calling_convention
from jax2tf_bridge.from_jax.linalg import adjoint, is_complex, ormqr, pivoted_qr
from jax2tf_bridge.from_jax.lowering import ExportOptions, lower
from jax2tf_bridge.from_jax.stablehlo import StableHloModule, attributes_of
from jax2tf_bridge.targets import Target

Shapes = tuple[tuple[Any, ...], ...]
Flags = Mapping[str, int]


@dataclass(frozen=True)
class _Routine:
    """Routine of LAPACK or BLAS.

    Matrices are [..., m, n]. Values that JAX does not read differ from LAPACK's: potrf has zeros in
    the other triangle, gees has zeros as eigenvalues, and gesdd returns its argument.

    Attributes:
      compute: computes the results of a call from its arrays (trsm also has a scale), its `flags`
        and the `shapes` of its results. Workspaces, which come last, are left out.
      sizes: the names of the sizes of the arrays, without the batch dimensions.
      results_today: the number of results of today's call: one number, or one for real and one for
        complex matrices. Older calls also returned info or workspaces. Empty if the call is
        obsolete or exists only on GPUs.
      flag_operands: the positions of the flags among the scalar operands of the older form.
    """

    compute: Callable[..., tuple[Any, ...]]
    sizes: tuple[str, ...]
    results_today: tuple[int, ...] = ()
    flag_operands: Mapping[str, int] = field(default_factory=dict)


def _getrf(a: Any, **_: Any) -> tuple[Any, ...]:
    factors, pivots = lax.linalg.lu(a)[:2]
    # LAPACK numbers rows from 1.
    return factors, pivots + np.int32(1), _success(a)


def _potrf(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    if not flags["lower"]:
        a = adjoint(a)
    factor = lax.linalg.cholesky(a, symmetrize_input=False)
    # The rules return NaN if LAPACK would return the index of the first bad minor.
    matrix = (a.ndim - 2, a.ndim - 1)
    failed = lax.reduce(lax.ne(factor, factor), np.array(False), lax.bitwise_or, matrix)
    info = lax.convert_element_type(failed, np.int32)
    return factor if flags["lower"] else adjoint(factor), info


def _trsm(a: Any, b: Any, *scale: Any, flags: Flags, **_: Any) -> tuple[Any, ...]:
    if scale:
        b = b * scale[0]
    solution = lax.linalg.triangular_solve(
        a,
        b,
        left_side=bool(flags["left"]),
        lower=bool(flags["lower"]),
        transpose_a=flags["transpose"] > 0,
        conjugate_a=flags["transpose"] == 2,
        unit_diagonal=bool(flags["unit_diagonal"]),
    )
    return (solution,)


def _geqrf(a: Any, **_: Any) -> tuple[Any, ...]:
    packed, taus = find_primitive("geqrf_p").bind(a)
    return packed, taus, _success(a)


def _orgqr(a: Any, taus: Any, **_: Any) -> tuple[Any, ...]:
    return lax.linalg.householder_product(a, taus), _success(a)


def _ormqr(*arrays: Any, flags: Flags, **_: Any) -> tuple[Any, ...]:
    left, transpose = bool(flags["left"]), bool(flags["transpose"])
    return (ormqr(*arrays, left=left, transpose=transpose),)


def _syevd(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    if not flags["lower"]:
        # XLA expands Eigh once per shape in a module, with the triangle of the first occurrence.
        a = adjoint(a)
    vectors, values = lax.linalg.eigh(a, lower=True, symmetrize_input=False)
    return vectors, values, _success(a)


def _geev(a: Any, *, flags: Flags, shapes: Shapes) -> tuple[Any, ...]:
    sides = bool(flags["left_vectors"]), bool(flags["right_vectors"])
    values, *computed = lax.linalg.eig(
        a, compute_left_eigenvectors=sides[0], compute_right_eigenvectors=sides[1]
    )
    vectors = [computed.pop(0) if side else _zeros(a.shape, values) for side in sides]
    n = a.shape[-1]
    if is_complex(a):
        results = [values, *vectors, _success(a)]
        workspaces = [_zeros((n, n), a), lax.real(_zeros((2 * n,), a))]
    else:
        results = [lax.real(values), lax.imag(values), *vectors, _success(a)]
        workspaces = [_zeros((n, n), a)] * 3
    return tuple(results if len(shapes) == len(results) else [*workspaces, *results])


def _gees(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    # The eigenvalues are zeros here: they are on the diagonal of the Schur form.
    form, *vectors = lax.linalg.schur(a, compute_schur_vectors=bool(flags["vectors"]))
    vectors = vectors or [_zeros(a.shape, a)]
    values = _zeros(a.shape[:-1], a)
    # The real and imaginary parts for real matrices, else a workspace and the values.
    first = lax.real(_zeros(a.shape[-1:], a)) if is_complex(a) else values
    return form, first, values, *vectors, _success(a), _success(a)


def _gees_ffi(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    # The results of _gees in another order.
    form, first, values, vectors, *success = _gees(a, flags=flags)
    return form, vectors, *(() if is_complex(a) else (first,)), values, *success


def _gehrd(a: Any, **_: Any) -> tuple[Any, ...]:
    packed, taus = lax.linalg.hessenberg(a)
    return packed, taus, _success(a)


def _sytrd(a: Any, *, flags: Flags, **_: Any) -> tuple[Any, ...]:
    packed, diagonal, beside, taus = lax.linalg.tridiagonal(a, lower=bool(flags["lower"]))
    return packed, diagonal, beside, taus, _success(a)


def _geqp3(*arrays: Any, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    return pivoted_qr(*arrays, rank=shapes[2][-1])


def _gesdd(a: Any, *, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    smaller = min(a.shape[-2:])
    full = shapes[2][-1] != smaller or shapes[3][-2] != smaller
    u, s, vh = lax.linalg.svd(a, full_matrices=full, compute_uv=True)
    return a, s, u, vh, _success(a)


def _gesvd_gpu(a: Any, *, flags: Flags, shapes: Shapes) -> tuple[Any, ...]:
    if not flags["transposed"]:
        return _gesdd(a, shapes=shapes)
    # The solver receives the transpose, so the two factors are exchanged.
    s, u, vh, info = _gesdd(a, shapes=(*shapes[:2], shapes[3], shapes[2]))[1:]
    return a, s, vh, u, info


def _gesvdj(a: Any, *, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    # Returns V instead of its adjoint.
    swapped = (*shapes[3][:-2], shapes[3][-1], shapes[3][-2])
    s, u, vh, info = _gesdd(a, shapes=(*shapes[:3], swapped))[1:]
    return a, s, u, adjoint(vh), info


def _permutation(pivots: Any, *, shapes: Shapes, **_: Any) -> tuple[Any, ...]:
    # These pivots start from 0.
    return (lax.linalg.lu_pivots_to_permutation(pivots, shapes[0][-1]),)


def _gtsv(lower: Any, diagonal: Any, upper: Any, b: Any, **_: Any) -> tuple[Any, ...]:
    solution = lax.linalg.tridiagonal_solve(lower, diagonal, upper, b)
    return lower, diagonal, upper, solution, _success(b)


def _success(a: Any) -> Any:
    # LAPACK's info for each matrix. It is always 0, because failures are NaN in these rules.
    return lax.full(a.shape[:-2], 0, np.int32)


def _zeros(shape: Any, like: Any) -> Any:
    return lax.full(shape, 0, like.dtype)


_ROUTINES = {
    "gees": _Routine(_gees, ("nn",), flag_operands={"vectors": 2}),
    "gees_ffi": _Routine(_gees_ffi, ("nn",), (6, 5)),
    "geev": _Routine(_geev, ("nn",), (5, 4), {"left_vectors": 2, "right_vectors": 3}),
    "gehrd": _Routine(_gehrd, ("nn",), (3,)),
    "geqp3": _Routine(_geqp3, ("mn", "n"), (3,)),
    "geqrf": _Routine(_geqrf, ("mn",), (2,)),
    "gesdd": _Routine(_gesdd, ("mn",), (5,)),
    "gesvd": _Routine(_gesdd, ("mn",), (5,)),
    "gesvd_gpu": _Routine(_gesvd_gpu, ("mn",)),
    "gesvdj_gpu": _Routine(_gesvdj, ("mn",)),
    "getrf": _Routine(_getrf, ("mn",), (3,)),
    "gtsv": _Routine(_gtsv, ("n", "n", "n", "nk"), (5,)),
    "lu_pivots_to_permutation": _Routine(_permutation, ("k",)),
    "orgqr": _Routine(_orgqr, ("mn", "k"), (1,)),
    "ormqr": _Routine(_ormqr, ("mn", "k", "pq"), (1,)),
    "potrf": _Routine(_potrf, ("nn",), (2,), {"lower": 0}),
    "syevd": _Routine(_syevd, ("nn",), (3,), {"lower": 0}),
    "sytrd": _Routine(_sytrd, ("nn",), (5,), {"lower": 1}),
    "trsm": _Routine(
        _trsm, ("mm", "mk"), (1,), {"left": 0, "lower": 1, "transpose": 2, "unit_diagonal": 3}
    ),
}
"""Routines by LAPACK's name without the letter for the type, or our name for a variant on GPUs."""

# The Hermitian and unitary forms have other names.
_REAL_NAMES = {"heevd": "syevd", "hetrd": "sytrd", "ungqr": "orgqr", "unmqr": "ormqr"}

# Routines that JAX also supports for matrices with open sizes.
_OPEN_SIZES = ("potrf", "trsm")
# For the installed JAX, these stay calls of LAPACK, which orders eigenvalues differently and takes
# matrices with open sizes.
_IN_LAPACKS_ORDER = ("gees", "geev")

_TARGET = re.compile(r"(?:lapack|blas)_([sdcz])([a-z]+\d?)(_ffi)?")

# On GPUs only the form since 2025 can be read; before, the flags were the bytes of a C struct.
_GPU_TARGET = re.compile(r"(?:cu|hip)(?:solver|blas)_([a-z]+)(?:_batched)?_ffi")
_GPU_ROUTINES = {
    **{name: name for name in ("geqrf", "getrf", "orgqr", "ormqr", "potrf", "syevd")},
    **{name: f"{name}_gpu" for name in ("gesvd", "gesvdj")},
}
_PERMUTATIONS = ("cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation")

_SHAPES = "indices_of_shape_operands"
_NUMBER = re.compile(r"dense<([^>]*)>")

# Maps attributes with a character to the flag, and the character that sets it.
_CHARACTER_FLAGS = {
    "compute_left": ("left_vectors", "V"),
    "compute_right": ("right_vectors", "V"),
    "diag": ("unit_diagonal", "U"),
    "mode": ("vectors", "V"),
    "side": ("left", "L"),
    "uplo": ("lower", "L"),
}

# LAPACK's dtypes, and its integers.
_DTYPES = {
    ELEMENT_TYPES[name]: name for name in ("float32", "float64", "complex64", "complex128", "int32")
}


@dataclass(frozen=True)
class _ArchivedCall:
    """Call of LAPACK, BLAS or their counterparts for GPUs.

    Attributes:
      target: the name of the custom call.
      routine: the name in _ROUTINES.
      arrays: the matrix operands, without flags, sizes, workspaces and shapes.
      flags: maps the routine's flags to numbers: "lower", "left", "unit_diagonal", "transposed",
        "vectors", "left_vectors" and "right_vectors" are 0 or 1; "transpose" is 1, or 2 with
        conjugation.
      scale: the scalar operand of trsm that multiplies the result; None for 1.
      is_current: whether today's jaxlib accepts the call unchanged.
    """

    target: str
    routine: str
    arrays: tuple[Any, ...]
    flags: Mapping[str, int]
    scale: Any
    is_current: bool


def _read_archived_call(call: Any, target: str) -> _ArchivedCall | None:
    """Reads a stablehlo.custom_call of LAPACK; returns None for other calls.

    Raises:
      ModuleError: a flag is not a constant.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        return _read_gpu_call(call, target)
    has_attributes = match.group(3) is not None
    routine = _REAL_NAMES.get(match.group(2), match.group(2))
    if routine not in _ROUTINES:
        return None
    if has_attributes and routine == "gees":
        routine = "gees_ffi"  # the new form has its results in another order
    operands = _list_operands(call)
    arrays = tuple(x for x in operands if ir.RankedTensorType(x.type).rank > 0)
    scalars = [x for x in operands if ir.RankedTensorType(x.type).rank == 0]
    # JAX has ormqr since 0.10, and the others in all supported releases.
    is_registered = has_attributes and (routine != "ormqr" or jax.__version_info__ >= (0, 10))
    scale = scalars[-1] if routine == "trsm" and scalars else None
    return _ArchivedCall(
        target,
        routine,
        arrays,
        _read_flag_attributes(call)
        if has_attributes
        else _read_flag_operands(routine, scalars, target),
        None if scale is not None and _read_constant(scale) == 1 else scale,
        is_registered and not scalars and len(call.results) in _ROUTINES[routine].results_today,
    )


def _read_gpu_call(call: Any, target: str) -> _ArchivedCall | None:
    match = _GPU_TARGET.fullmatch(target)
    routine = _GPU_ROUTINES.get(match.group(1)) if match else None
    if target in _PERMUTATIONS:
        routine = "lu_pivots_to_permutation"
    if routine is None:
        return None
    # Other platforms never compile this branch, and jaxlib registers the call for GPUs only.
    arrays = tuple(_list_operands(call))
    return _ArchivedCall(target, routine, arrays, _read_flag_attributes(call), None, True)


def _list_operands(call: Any) -> list[Any]:
    elements: Any = ()
    if _SHAPES in call.attributes:
        elements = ir.DenseIntElementsAttr(call.attributes[_SHAPES])
    shapes = set(elements)
    return [x for i, x in enumerate(call.operands) if i not in shapes]


def _read_constant(value: Any) -> complex | None:
    owner = value.owner
    operation = getattr(owner, "operation", owner)
    if getattr(operation, "name", "") != "stablehlo.constant":
        return None
    # The text is parsed, because the bindings fail for attributes with complex numbers.
    number = _NUMBER.search(operation.get_asm(enable_debug_info=False))
    if number is None:
        return None
    text = number.group(1)
    if text in ("true", "false"):
        return complex(text == "true")
    parts = text.strip("()").split(",")
    try:
        return complex(*map(float, parts))
    except ValueError:  # an infinity, written as its bits
        return None


def _read_flag_operands(routine: str, scalars: Sequence[Any], target: str) -> dict[str, int]:
    flags: dict[str, int] = {}
    for name, place in _ROUTINES[routine].flag_operands.items():
        if place >= len(scalars):
            continue
        value = _read_constant(scalars[place])
        if value is None:
            raise ModuleError(
                f"The custom call {target!r} computes its flag {name!r}, where JAX writes a "
                "constant, so it cannot be rewritten. Export the function again."
            )
        # The character V requests vectors, N none.
        flags[name] = int(value == ord("V")) if name.endswith("vectors") else int(value.real)
    return flags


def _read_flag_attributes(call: Any) -> dict[str, int]:
    # Attributes are characters, or booleans on GPUs.
    values: dict[str, int] = {}
    for name in ("mhlo.backend_config", "backend_config"):
        if name in call.attributes and isinstance(call.attributes[name], ir.DictAttr):
            values |= {
                key: int(value.value)
                for key, value in attributes_of(ir.DictAttr(call.attributes[name])).items()
                if isinstance(value, (ir.BoolAttr, ir.IntegerAttr))
            }
    numbers = ("left", "lower", "transpose", "transposed")
    flags: dict[str, int] = {name: values[name] for name in numbers if name in values}
    for key, (name, yes) in _CHARACTER_FLAGS.items():
        if key in values:
            flags[name] = int(chr(values[key]) == yes)
    if "trans_x" in values:
        flags["transpose"] = "NTC".index(chr(values["trans_x"]))
    return flags


def is_retired(target: str) -> bool:
    """Returns whether jaxlib no longer registers a LAPACK or BLAS target."""
    match = _TARGET.fullmatch(target)
    return match is not None and match.group(3) is None


def rewrite_calls(module: StableHloModule, name: str, target: Target | None) -> None:
    """Replaces the LAPACK calls in `module` by StableHLO that every reader runs.

    Args:
      module: the module, which is changed in place.
      name: the name of the function, for messages.
      target: the target of the module. None means the installed JAX, for which calls that its
        jaxlib accepts are kept.

    Raises:
      ModuleError: a call has no equivalent, because of open sizes or computed flags; or its
        operands or types are not those of JAX.
    """
    keep_current = target is None
    options = ExportOptions(("cpu",), (), target or Target.widest())
    for operation, call_target in module.custom_call_operations():
        try:
            # Read only now, because the operands may come from a call that was just replaced.
            call = _read_archived_call(operation, call_target)
            if call is None:
                continue
            if not (keep_current and call.is_current):
                by_lapack = keep_current and call.routine in _IN_LAPACKS_ORDER
                _replace(module, operation, call, options, by_lapack=by_lapack)
        except ModuleError as e:
            raise ModuleError(
                f"{name} holds a call that has no equivalent in StableHLO: {e}"
            ) from e
        except Exception as e:  # the module may come from any tool
            raise ModuleError(
                f"{name} holds a call of {call_target!r} that JAX would write differently: "
                f"{type(e).__name__}: {e}. Export the function again."
            ) from e


def _replace(
    module: StableHloModule,
    operation: Any,
    call: _ArchivedCall,
    options: ExportOptions,
    *,
    by_lapack: bool,
) -> None:
    operands = [*call.arrays, *([call.scale] if call.scale is not None else [])]
    results = [ir.RankedTensorType(r.type) for r in operation.results]
    shapes = tuple(tuple(r.shape) for r in results)
    specs = _make_specs(call, operands, by_lapack)
    # The call passes all operands, even unused ones.
    compute = functools.partial(_ROUTINES[call.routine].compute, flags=call.flags, shapes=shapes)
    function = jax.jit(compute, keep_unused=True)
    with jax.enable_x64(specs[0].dtype in ("float64", "complex128")):
        if by_lapack:
            replacement = _export_today(function, specs, call.target)
        else:
            replacement = lower(function.trace(*specs), call.target, options).module
    actual = replacement.main_types()[1]
    expected = [str(r) for r in results[: len(actual)]]
    if list(actual[: len(expected)]) != expected:
        raise ModuleError(f"{call.target} returns {', '.join(expected)}, not {', '.join(actual)}")
    module.replace_by_function(operation, operands, replacement, f"bridge_{call.routine}")


def _export_today(
    function: Any, specs: Sequence[jax.ShapeDtypeStruct], target: str
) -> StableHloModule:
    check = jax_export.DisabledSafetyCheck.custom_call(f"{target}_ffi")
    with newest_calling_convention():
        exported = jax_export.export(function, platforms=("cpu",), disabled_checks=(check,))(*specs)
    return StableHloModule.read(exported.mlir_module_serialized)


def _make_specs(
    call: _ArchivedCall, operands: Sequence[Any], by_lapack: bool
) -> list[jax.ShapeDtypeStruct]:
    sizes = _ROUTINES[call.routine].sizes
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
            raise ModuleError(f"{call.target} takes arguments of other ranks than in JAX")
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
