"""Prints modules for people; runs in a separate process because MLIR may crash on a file."""

from __future__ import annotations

from pathlib import Path

from jax2tf_bridge.from_jax import _jax_compat

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

    Args:
      folder: the folder of the modules, and of the texts.
      longest: maximum number of characters of a text.
    """
    for file in sorted(folder.glob("*.module")):
        try:
            text = module_text(file.read_bytes())
        except Exception:  # the exception types differ between releases of jaxlib
            continue
        if len(text) > longest:
            text = f"{text[:longest]}\n... and {len(text) - longest:,} more characters"
        file.with_suffix(".text").write_text(text, encoding="utf-8")
