"""StableHLO as text, or as MLIR bytecode of the day, as a portable artifact."""

from __future__ import annotations

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import attribute, symbol_name
from jax2tf_bridge.portable._stablehlo_version import version_text

_MOST_LINES = 3
_OPEN_SIZES = "jax.uses_shape_polymorphism"


def portable_artifact(module: str | bytes, name: str) -> bytes:
    """Writes a module at the StableHLO version of the installed JAX.

    Its one public function becomes main, if it has no main.

    Args:
      module: what MLIR prints, or its bytecode.
      name: of the function, for messages.

    Raises:
      ModuleError: the installed JAX cannot read it, or it has no function to call.
    """
    newest = version_text(_jax_compat.current_stablehlo_version())
    with _jax_compat.make_ir_context():
        try:
            parsed = ir.Module.parse(module)
        except Exception as e:  # of types that differ between releases of jaxlib
            said = "\n".join(str(e).strip().splitlines()[:_MOST_LINES])
            raise ModuleError(
                f"The StableHLO of {name} cannot be read by the installed JAX, which reads up to "
                f"{newest}: {said}"
            ) from e
        _name_main(parsed, name)
        try:
            return _jax_compat.serialize_module(parsed, newest)
        except Exception as e:
            said = "\n".join(str(e).strip().splitlines()[:_MOST_LINES])
            raise ModuleError(
                f"The module of {name} holds what StableHLO {newest} cannot express: {said}"
            ) from e


def refined_by_tensorflow(artifact: bytes) -> bytes:
    """Marks a portable artifact as one whose open sizes XlaCallModule fills in from its arguments.

    Without the mark, which JAX writes, it refuses them.
    """
    with _jax_compat.make_ir_context():
        module = _jax_compat.deserialize_module(artifact)
        module.operation.attributes[_OPEN_SIZES] = ir.BoolAttr.get(True)
        newest = version_text(_jax_compat.current_stablehlo_version())
        return _jax_compat.serialize_module(module, newest)


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
        found = ", ".join(f"@{symbol_name(function)}" for function in public) or "none"
        raise ModuleError(
            f"The StableHLO of {name} must have a function @main, or one public function alone. "
            f"Public functions there: {found}. Name the one to call @main, or make the others "
            "private (func.func private @...)."
        )
    old = symbol_name(public[0]) or ""
    ir.SymbolTable.replace_all_symbol_uses(old, "main", module.operation)
    ir.SymbolTable.set_symbol_name(public[0], "main")
