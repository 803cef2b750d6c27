"""Linear algebra calls in JAX's archives since 0.4.30: reads them, and replaces them.

Until 2025 the flags, sizes and workspaces of a call were scalar operands and results. Since then
flags are attributes, and the target's name ends in "_ffi". Some targets are no longer registered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax._jax_compat_lowering import newest_calling_convention
from jax2tf_bridge.from_jax.archives._linalg_calls import routine_function
from jax2tf_bridge.from_jax.lowering import lower
from jax2tf_bridge.from_jax.shapes import ExportOptions
from jax2tf_bridge.from_jax.stablehlo import StableHloModule, attributes_of
from jax2tf_bridge.targets import Target
from shape_poly import SymbolicScope

_TARGET = re.compile(r"(?:lapack|blas)_([sdcz])([a-z]+\d?)(_ffi)?")

_SHAPES = "indices_of_shape_operands"
_NUMBER = re.compile(r"dense<([^>]*)>")

# On GPUs only the form since 2025 can be read; before, the flags were the bytes of a C struct.
_GPU_TARGET = re.compile(r"(?:cu|hip)(?:solver|blas)_([a-z]+)(?:_batched)?_ffi")
_GPU_ROUTINES = {
    "geqrf": "geqrf",
    "gesvd": "gesvd_gpu",
    "gesvdj": "gesvdj",
    "getrf": "getrf",
    "orgqr": "orgqr",
    "ormqr": "ormqr",
    "potrf": "potrf",
    "syevd": "syevd",
}
_PERMUTATIONS = ("cu_lu_pivots_to_permutation", "hip_lu_pivots_to_permutation")

# The Hermitian and unitary forms have other names.
_ROUTINES = {"heevd": "syevd", "hetrd": "sytrd", "ungqr": "orgqr", "unmqr": "ormqr"}

# The new form of these has its results in another order.
_FFI_ROUTINES = {"gees": "gees_ffi"}

# Maps each routine to the number of results of today's call, for real and for complex matrices;
# further results were info or workspaces.
_RESULTS_TODAY: Mapping[str, tuple[int, ...]] = {
    "gees_ffi": (6, 5),
    "geev": (5, 4),
    "gehrd": (3,),
    "geqp3": (3,),
    "geqrf": (2,),
    "gesdd": (5,),
    "gesvd": (5,),
    "getrf": (3,),
    "gtsv": (5,),
    "orgqr": (1,),
    "ormqr": (1,),
    "potrf": (2,),
    "syevd": (3,),
    "sytrd": (5,),
    "trsm": (1,),
}
_ROUTINES_READ = frozenset({*_FFI_ROUTINES, *_RESULTS_TODAY})

# Maps routines to the JAX release that added them, if newer than the oldest supported one.
_SINCE = {"ormqr": (0, 10)}

# The positions of the flags among the scalar operands of the older form.
_FLAG_OPERANDS: Mapping[str, Mapping[str, int]] = {
    "gees": {"vectors": 2},
    "geev": {"left_vectors": 2, "right_vectors": 3},
    "potrf": {"lower": 0},
    "syevd": {"lower": 0},
    "sytrd": {"lower": 1},
    "trsm": {"left": 0, "lower": 1, "transpose": 2, "unit_diagonal": 3},
}


@dataclass(frozen=True)
class ArchivedCall:
    """Call in a module of LAPACK, BLAS or their counterparts for GPUs.

    Attributes:
      target: the name of the custom call.
      routine: LAPACK's name without the letter for the type ("getrf"), or our name for a variant on
        GPUs.
      arrays: the matrix operands, without flags, sizes, workspaces and shapes.
      flags: those of the routine's flags: "lower", "left", "unit_diagonal", "transposed",
        "vectors", "left_vectors", "right_vectors" (0 or 1), and "transpose" (1, or 2 with
        conjugation).
      scale: the scalar operand of trsm that multiplies the result; None for 1.
      is_current: whether today's jaxlib accepts the call unchanged.
    """

    target: str
    routine: str
    arrays: tuple[Any, ...]
    flags: Mapping[str, int]
    scale: Any
    is_current: bool


def read_archived_call(call: Any, target: str) -> ArchivedCall | None:
    """Reads a stablehlo.custom_call of LAPACK; returns None for other calls.

    Raises:
      ModuleError: a flag is not a constant.
    """
    match = _TARGET.fullmatch(target)
    routine = _ROUTINES.get(match.group(2), match.group(2)) if match else ""
    if match is None:
        return _read_gpu_call(call, target)
    has_attributes = match.group(3) is not None
    if routine not in _ROUTINES_READ:
        return None
    if has_attributes:
        routine = _FFI_ROUTINES.get(routine, routine)
    operands = _list_operands(call)
    arrays = tuple(x for x in operands if ir.RankedTensorType(x.type).rank > 0)
    scalars = [x for x in operands if ir.RankedTensorType(x.type).rank == 0]
    is_registered = has_attributes and jax.__version_info__ >= _SINCE.get(routine, ())
    scale = scalars[-1] if routine == "trsm" and scalars else None
    return ArchivedCall(
        target,
        routine,
        arrays,
        _read_flag_attributes(call)
        if has_attributes
        else _read_flag_operands(routine, scalars, target),
        None if scale is not None and constant(scale) == 1 else scale,
        is_registered and not scalars and len(call.results) in _RESULTS_TODAY.get(routine, ()),
    )


def _read_gpu_call(call: Any, target: str) -> ArchivedCall | None:
    match = _GPU_TARGET.fullmatch(target)
    routine = _GPU_ROUTINES.get(match.group(1)) if match else None
    if target in _PERMUTATIONS:
        routine = "lu_pivots_to_permutation"
    if routine is None:
        return None
    # Other platforms never compile this branch, and jaxlib registers the call for GPUs only.
    arrays = tuple(_list_operands(call))
    return ArchivedCall(target, routine, arrays, _read_flag_attributes(call), None, True)


def _list_operands(call: Any) -> list[Any]:
    """Lists the operands without the shapes of results."""
    elements: Any = ()
    if _SHAPES in call.attributes:
        elements = ir.DenseIntElementsAttr(call.attributes[_SHAPES])
    shapes = set(elements)
    return [x for i, x in enumerate(call.operands) if i not in shapes]


def is_retired(target: str) -> bool:
    """Returns whether jaxlib no longer registers a LAPACK or BLAS target."""
    match = _TARGET.fullmatch(target)
    return match is not None and match.group(3) is None


def constant(value: Any) -> complex | None:
    """Returns the value of a constant scalar operand; None if it is computed."""
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
    for name, place in _FLAG_OPERANDS.get(routine, {}).items():
        if place >= len(scalars):
            continue
        value = constant(scalars[place])
        if value is None:
            raise ModuleError(
                f"The custom call {target!r} takes its flag {name!r} from a computation, where "
                "JAX writes a constant: it cannot be rewritten. Export the function again."
            )
        # The character V requests vectors, N none.
        flags[name] = int(value == ord("V")) if name.endswith("vectors") else int(value.real)
    return flags


def _read_flag_attributes(call: Any) -> dict[str, int]:
    """Reads the flags in attributes, characters or (on GPUs) booleans, as numbers."""
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
    vectors = {"compute_left": "left_vectors", "compute_right": "right_vectors", "mode": "vectors"}
    flags |= {name: int(chr(values[key]) == "V") for key, name in vectors.items() if key in values}
    if "uplo" in values:
        flags["lower"] = int(chr(values["uplo"]) == "L")
    if "side" in values:
        flags["left"] = int(chr(values["side"]) == "L")
    if "diag" in values:
        flags["unit_diagonal"] = int(chr(values["diag"]) == "U")
    if "trans_x" in values:
        flags["transpose"] = "NTC".index(chr(values["trans_x"]))
    return flags


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
    target = target or Target.widest()
    scope = SymbolicScope([])
    options = ExportOptions(("cpu",), (), target, (), scope=scope, infer=False, call="")
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
    specs = _make_specs(call, operands, by_lapack)
    # The call passes all operands, even unused ones.
    function = jax.jit(routine_function(call.routine, call.flags, shapes), keep_unused=True)
    with jax.enable_x64(specs[0].dtype in ("float64", "complex128")):
        if by_lapack:
            replacement = _export_today(function, specs, call.target)
        else:
            replacement = lower(function.trace(*specs), call.target, options).module
    actual = replacement.main_types()[1]
    expected = [str(r) for r in results[: len(actual)]]
    if list(actual[: len(expected)]) != expected:
        raise ModuleError(f"{call.target} gives {', '.join(expected)}, not {', '.join(actual)}")
    module.replace_by_function(operation, operands, replacement, f"bridge_{call.routine}")


def _export_today(
    function: Any, specs: Sequence[jax.ShapeDtypeStruct], target: str
) -> StableHloModule:
    check = jax_export.DisabledSafetyCheck.custom_call(f"{target}_ffi")
    with newest_calling_convention():
        exported = jax_export.export(function, platforms=("cpu",), disabled_checks=(check,))(*specs)
    return StableHloModule.read(exported.mlir_module_serialized)


def _make_specs(
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
