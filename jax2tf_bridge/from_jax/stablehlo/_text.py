"""Reads modules from text or bytecode, and prints them as text."""

from __future__ import annotations

from pathlib import Path

from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import attribute, symbol_name

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
    newest = version_text(_jax_compat.current_stablehlo_version())
    with _jax_compat.make_ir_context():
        try:
            parsed = ir.Module.parse(module)
        except Exception as e:  # the exception types differ between releases of jaxlib
            detail = "\n".join(str(e).strip().splitlines()[:_MAX_ERROR_LINES])
            raise ModuleError(
                f"The StableHLO of {name} cannot be read by the installed JAX, which reads up to "
                f"{newest}: {detail}"
            ) from e
        _name_main(parsed, name)
        try:
            return _jax_compat.serialize_module(parsed)
        except Exception as e:
            detail = "\n".join(str(e).strip().splitlines()[:_MAX_ERROR_LINES])
            raise ModuleError(
                f"The module of {name} cannot be expressed in StableHLO {newest}: {detail}"
            ) from e


def mark_for_refinement(artifact: bytes) -> bytes:
    """Marks a portable artifact so that XlaCallModule infers open sizes from its arguments.

    JAX writes the same mark. Without it, XlaCallModule rejects open sizes.
    """
    with _jax_compat.make_ir_context():
        module = _jax_compat.deserialize_module(artifact)
        module.operation.attributes[_OPEN_SIZES] = ir.BoolAttr.get(True)
        return _jax_compat.serialize_module(module)


def _name_main(module: ir.Module, name: str) -> None:
    functions = [
        operation.operation
        for operation in module.body.operations
        if operation.operation.name == "func.func"
    ]
    names = [symbol_name(function) for function in functions]
    if "main" in names:
        return
    public = [
        function
        for function in functions
        if "private" not in str(attribute(function, "sym_visibility"))
    ]
    if len(public) != 1:
        candidates = ", ".join(f"@{symbol_name(function)}" for function in public) or "none"
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


def module_text(artifact: bytes) -> str:
    """Prints a module as MLIR text, without large arrays and source locations.

    Raises:
      jax.errors.JaxRuntimeError: the installed jaxlib cannot read it.
    """
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
            text = module_text(file.read_bytes())
        except Exception:  # the exception types differ between releases of jaxlib
            continue
        if len(text) > longest:
            text = f"{text[:longest]}\n... and {len(text) - longest:,} more characters"
        file.with_suffix(".text").write_text(text, encoding="utf-8")
