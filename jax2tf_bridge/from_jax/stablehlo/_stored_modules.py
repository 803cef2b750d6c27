"""Reads and writes stored modules: of portable functions, as text, and for a target's releases."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jax2tf_bridge._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.bytecode import Version, read_main_types, version_text
from jax2tf_bridge.errors import (
    Argument,
    FileFormatError,
    Message,
    ModuleError,
    UnsupportedByTargetError,
)
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.arguments import is_narrow
from jax2tf_bridge.from_jax.stablehlo._module import LossyError, StableHloModule
from jax2tf_bridge.from_jax.stablehlo._operations import attribute, symbol_name
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    StoredGradient,
    are_types_checked,
    check_function_types,
    list_main_avals,
)
from jax2tf_bridge.serialization.jax_exported import WritableFunction
from jax2tf_bridge.targets import NO_XLA, TENSORFLOW_RELEASES, Target, check_expressible

WIDE_ELEMENT_TYPES = {narrow: ELEMENT_TYPES[wide] for narrow, wide in WIDENED.items()}
"""Maps each narrow dtype to the MLIR element type that TensorFlow passes it as."""


def read_stablehlo_module(portable: PortableFunction) -> StableHloModule:
    """Reads the function's module into memory.

    Raises:
      ModuleError: the installed JAX cannot read it.
    """
    try:
        return StableHloModule.read(portable.module.data)
    except Exception as e:  # the exception types differ between releases of jaxlib
        newest = version_text(_jax_compat.get_stablehlo_version())
        raise ModuleError(
            f"The installed JAX cannot read the module of {portable.name}: it is written at "
            f"StableHLO {version_text(portable.module.stablehlo_version)} by {portable.producer}, "
            f"and this JAX reads up to {newest}. If that is older, upgrade JAX; otherwise the "
            "module is damaged."
        ) from e


def retype_narrow_values(
    module: StableHloModule, function: PortableFunction, element_of: Mapping[str, str]
) -> None:
    """Changes the element types of main's arguments and results of fewer than 8 bits.

    The module then converts the values. `element_of` maps dtypes to element types:
    WIDE_ELEMENT_TYPES for TensorFlow, ELEMENT_TYPES for JAX.
    """
    ins, outs = module.main_types()
    inputs = _find_types_to_change(list_main_avals(function), ins, element_of)
    results = _find_types_to_change(function.out_avals, outs, element_of)
    if inputs or results:
        module.retype_main(inputs, results)


def _find_types_to_change(
    avals: Sequence[Aval], types: Sequence[str], element_of: Mapping[str, str]
) -> dict[int, str]:
    first = len(types) - len(avals)
    elements = {i: element_of[a.dtype] for i, a in enumerate(avals, first) if is_narrow(a)}
    return {i: e for i, e in elements.items() if not types[i].endswith((f"x{e}>", f"<{e}>"))}


def convert_to_jax_form(function: WritableFunction) -> WritableFunction:
    """Rewrites a function's module to the form of jax.export; the VJPs stay unchanged.

    Raises:
      ModuleError: the function was stored without arrays, the installed JAX cannot read the module,
        or the types of the module and the function differ.
    """
    if not function.needs_jax:
        return function
    check_stored_types(function.portable)
    portable = embed_lifted_constants(function.portable)
    has_narrow = any(map(is_narrow, (*portable.in_avals, *portable.out_avals)))
    if has_narrow or not portable.target.xla:
        module = read_stablehlo_module(portable)
        retype_narrow_values(module, portable, ELEMENT_TYPES)
        if not portable.target.xla:
            module.expand()  # JAX cannot refine the shapes of composites
        portable = _replace_module(portable, module)
    return replace(function, portable=portable, needs_jax="")


def round_results(portable: PortableFunction, seed: int) -> PortableFunction:
    """Rounds the results of a function's operations, to measure how far rounding errors spread.

    Raises:
      ModuleError: the installed JAX cannot read the module.
    """
    module = read_stablehlo_module(portable)
    module.round_results(seed)
    return _replace_module(portable, module)


def _replace_module(portable: PortableFunction, module: StableHloModule) -> PortableFunction:
    data = module.serialize(portable.module.stablehlo_version)
    return replace(portable, module=replace(portable.module, data=data))


def check_stored_types(portable: PortableFunction) -> None:
    """Compares the types of a stored function with those of its module, without MLIR.

    Raises:
      ModuleError: they differ, or the module cannot be read.
    """
    if are_types_checked(portable):
        return
    try:
        ins, outs = read_main_types(portable.module.data)
    except FileFormatError as e:
        raise ModuleError(f"The module of {portable.name} cannot be read: {e}") from e
    check_function_types(
        portable,
        _widen_types(list_main_avals(portable), ins),
        _widen_types(portable.out_avals, outs),
    )


def _widen_types(avals: Sequence[Aval], types: Sequence[str]) -> list[str]:
    """Widens 4-bit element types to 8 bits, as TensorFlow passes them."""
    widened = list(types)
    # If the numbers of types and avals differ, check_function_types reports it.
    for i, aval in enumerate(avals, len(types) - len(avals)):
        if 0 <= i < len(types) and is_narrow(aval):
            narrow, wide = ELEMENT_TYPES[aval.dtype], WIDE_ELEMENT_TYPES[aval.dtype]
            widened[i] = re.sub(rf"(?<=[x<]){narrow}>$", f"{wide}>", types[i])
    return widened


def embed_lifted_constants(portable: PortableFunction, vjp_order: int = 0) -> PortableFunction:
    """Embeds the lifted constants in the module again, as in jax.export.

    Args:
      portable: a function whose types were checked against its module.
      vjp_order: number of stored VJPs (first order, second order, ...) to embed constants in.

    Raises:
      ModuleError: the function was stored without arrays, or the installed JAX cannot read the
        module.
    """
    vjp = portable.gradient.vjp
    if vjp_order and vjp is not None:
        portable = replace(
            portable, gradient=StoredGradient(embed_lifted_constants(vjp, vjp_order - 1))
        )
    if not portable.lifted_constants:
        return portable
    arrays = [_read_data(portable, constant) for constant in portable.lifted_constants]
    module = read_stablehlo_module(portable)
    module.embed_constants(arrays)
    return replace(_replace_module(portable, module), lifted_constants=())


def _read_data(portable: PortableFunction, constant: LiftedConstant) -> bytes | memoryview:
    if constant.data is None:
        raise ModuleError(
            f"{portable.name} captured the array {constant.name or constant.digest} "
            f"({constant.aval}), which is missing: it was written without arrays. "
            "Write the file with arrays=True, or pass the array as an argument."
        )
    return constant.data


_MAX_ERROR_LINES = 3
_OPEN_SIZES = "jax.uses_shape_polymorphism"


def make_portable_artifact(module: str | bytes, name: str) -> bytes:
    """Writes a module as a portable artifact at the StableHLO version of the installed JAX.

    If the module has no main, its only public function is renamed to main.

    Args:
      module: MLIR text or bytecode.
      name: the function's name, for messages.

    Raises:
      ModuleError: the installed JAX cannot read it, or it has no function to call.
    """
    newest = version_text(_jax_compat.get_stablehlo_version())
    with _jax_compat.make_ir_context():
        try:
            parsed = ir.Module.parse(module)
        except Exception as e:  # the exception types differ between releases of jaxlib
            raise ModuleError(
                f"The StableHLO of {name} cannot be read by the installed JAX, which reads up to "
                f"{newest}: {_get_first_lines(e)}"
            ) from e
        _name_main(parsed, name)
        try:
            return _jax_compat.serialize_module(parsed)
        except Exception as e:
            raise ModuleError(
                f"The module of {name} cannot be expressed in StableHLO {newest}: "
                f"{_get_first_lines(e)}"
            ) from e


def _get_first_lines(error: Exception) -> str:
    return "\n".join(str(error).strip().splitlines()[:_MAX_ERROR_LINES])


def mark_for_refinement(artifact: bytes) -> bytes:
    """Marks a portable artifact so that XlaCallModule infers open sizes from its arguments.

    JAX writes the same mark. Without it, XlaCallModule rejects open sizes.
    """
    with _jax_compat.make_ir_context():
        module = _jax_compat.deserialize_module(artifact)
        module.operation.attributes[_OPEN_SIZES] = ir.BoolAttr.get(True)
        return _jax_compat.serialize_module(module)


def _name_main(module: ir.Module, name: str) -> None:
    operations = [op.operation for op in module.body.operations]
    functions = [op for op in operations if op.name == "func.func"]
    if "main" in map(symbol_name, functions):
        return
    public = [f for f in functions if "private" not in str(attribute(f, "sym_visibility"))]
    if len(public) != 1:
        candidates = ", ".join(f"@{symbol_name(f)}" for f in public) or "none"
        raise ModuleError(
            f"The StableHLO of {name} must have a function @main, or exactly one public function. "
            f"Its public functions: {candidates}. Name the one to call @main, or make the others "
            "private (func.func private @...)."
        )
    old = symbol_name(public[0]) or ""
    ir.SymbolTable.replace_all_symbol_uses(old, "main", module.operation)
    ir.SymbolTable.set_symbol_name(public[0], "main")


_MAX_ELEMENTS = 16
"""Maximum number of elements of arrays that are printed."""


def _print_module(artifact: bytes) -> str:
    # Prints neither large arrays nor source locations.
    with _jax_compat.make_ir_context():
        module = _jax_compat.deserialize_module(artifact)
        return str(
            module.operation.get_asm(
                enable_debug_info=False,
                large_elements_limit=_MAX_ELEMENTS,
                large_resource_limit=_MAX_ELEMENTS,
            )
        )


def write_texts(folder: Path, longest: int) -> None:
    """Writes the text of each readable file NAME.module in a folder to NAME.text.

    A text has at most `longest` characters.
    """
    for file in sorted(folder.glob("*.module")):
        try:
            text = _print_module(file.read_bytes())
        except Exception:  # the exception types differ between releases of jaxlib
            continue
        if len(text) > longest:
            text = f"{text[:longest]}\n... and {len(text) - longest:,} more characters"
        file.with_suffix(".text").write_text(text, encoding="utf-8")


_WITHOUT_EFFECTS = 8
_WITH_EFFECTS = 9
_WITH_SHARDY = 10

# StableHLO 1.1.0 introduced batching dimensions in gather and scatter. Measured: the XLA of TF 2.17
# fails on them, so modules that use them are written for TF 2.17 at the version of TF 2.16.
_BATCHING_DIMS = (1, 1, 0)
_BATCHING_DIMS_WORK_SINCE = TENSORFLOW_RELEASES["2.18"][0]
_WITHOUT_BATCHING_DIMS = TENSORFLOW_RELEASES["2.16"][0]

# Measured: TF 2.15 and 2.17 fail to compile additions of 4-bit integers, TF 2.15 also conversions.
_NARROW_INTEGERS = TENSORFLOW_RELEASES["2.19"][0]


class RetargetedModule(NamedTuple):
    """Fields of a portable function's Module, written at a version that the target reads."""

    data: bytes
    stablehlo_version: Version
    calling_convention_version: int


def retarget_module(
    module: StableHloModule, target: Target, *, function_name: str, has_effects: bool
) -> RetargetedModule:
    """Writes a module at the first of the target's StableHLO versions that can express it.

    Raises:
      UnsupportedByTargetError: no version can express it, it needs a newer calling convention, or
        the target has no XLA and TensorFlow has no operations for it. The error names the
        operation and its source line.
    """
    convention = _WITH_EFFECTS if has_effects else _WITHOUT_EFFECTS
    if module.uses_shardy():
        convention = _WITH_SHARDY
    if convention > target.calling_convention:
        raise UnsupportedByTargetError(
            Message(
                f"{function_name} cannot run on {target.name}: it holds "
                f"{'sharding annotations' if convention == _WITH_SHARDY else 'ordered effects'}, "
                f"which need calling convention {convention}, and the target reads "
                f"{target.calling_convention}.",
                _advise_release(convention=convention),
            ),
            operation="calling convention",
            source=None,
        )
    newest = _jax_compat.get_stablehlo_version()
    problem: LossyError | None = None
    if target.xla and module.uses_narrow_integers():
        target = _drop_versions_without_narrow_integers(target, function_name)
    for version in _list_runnable_versions(module, target.stablehlo_versions):
        # An older jaxlib can only write up to its own version, which newer readers accept.
        written = min(version, newest)
        try:
            retargeted = RetargetedModule(module.serialize(written), written, convention)
        except LossyError as e:
            problem = e
            continue
        if not target.xla:
            check_expressible(retargeted.data, target, function_name)
        return retargeted
    assert problem is not None, "a target has at least one version"
    raise _make_unsupported_error(module, problem, target, function_name) from problem


def _list_runnable_versions(
    module: StableHloModule, versions: Sequence[Version]
) -> Sequence[Version]:
    """Returns the versions to write the module at, so that readers of `versions` can run it."""
    if not module.uses_batching_dims():
        return versions
    return [
        _WITHOUT_BATCHING_DIMS if _BATCHING_DIMS <= v < _BATCHING_DIMS_WORK_SINCE else v
        for v in versions
    ]


def _drop_versions_without_narrow_integers(target: Target, function_name: str) -> Target:
    versions = tuple(v for v in target.stablehlo_versions if v >= _NARROW_INTEGERS)
    if versions:
        return replace(target, stablehlo_versions=versions)
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: it computes with integers of 4 bits or "
            "fewer, on which its XLA fails.",
            _advise_release(versions=[_NARROW_INTEGERS]),
        ),
        operation="4-bit integers",
        source=None,
    )


def _make_unsupported_error(
    module: StableHloModule, problem: LossyError, target: Target, function_name: str
) -> UnsupportedByTargetError:
    operation = problem.operation
    tried = version_text(target.stablehlo_versions[-1])
    help_text = _advise_release(
        versions=_find_version_that_expresses(module, tried=target.stablehlo_versions)
    )
    place = f" (at {operation.source})" if operation.source else ""
    return UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: {operation.name}{place}, as it is used "
            f"here, cannot be expressed in StableHLO {tried}, the newest that the target reads.",
            help_text,
        ),
        operation=operation.name,
        source=operation.source,
    )


def _find_version_that_expresses(
    module: StableHloModule, *, tried: Collection[Version]
) -> list[Version]:
    newest = _jax_compat.get_stablehlo_version()
    for version, _ in TENSORFLOW_RELEASES.values():
        (written,) = _list_runnable_versions(module, [version])
        if version in tried or written != version or version > newest:
            continue
        try:
            module.serialize(version)
        except LossyError:
            continue
        return [version]
    return []


def _advise_release(*, versions: Collection[Version] | None = None, convention: int = 0) -> Message:
    for release, (version, newest_convention) in TENSORFLOW_RELEASES.items():
        if (versions is None or version in versions) and convention <= newest_convention:
            target = Argument("target", release, f"target=Target.tensorflow({release!r})")
            text = f" The first TensorFlow that can run it is {release}: export with "
            return Message(text, target, " or without ", Argument("target", code="a target"), ".")
    return Message(
        " No TensorFlow release known to this version can run it: write this part of the "
        "function with other operations or dtypes."
    )


def check_one_device(name: str, nr_devices: int, target: Target) -> None:
    """Raises for a function over several devices, if the target has no XLA.

    Raises:
      UnsupportedByTargetError: the function runs on several devices.
    """
    if nr_devices == 1:
        return
    raise UnsupportedByTargetError(
        Message(
            f"{name} cannot run on {target.name}: it is spread over {nr_devices} devices, and "
            "TensorFlow's own operations run on one. Export it for one device, or without ",
            NO_XLA,
            ".",
        ),
        operation="devices",
        source=None,
    )
