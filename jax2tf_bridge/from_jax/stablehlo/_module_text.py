"""Texts of modules, for people; made in a process of its own, since MLIR may crash on a file."""

from __future__ import annotations

from pathlib import Path

from jax2tf_bridge.from_jax import _jax_compat

_MOST_ELEMENTS = 16
"""Arrays with more elements are left out of the text."""


def module_text(artifact: bytes) -> str:
    """Prints a module as MLIR does, without large arrays and places in the source.

    Raises:
      jax.errors.JaxRuntimeError: it is not readable by the installed jaxlib.
    """
    with _jax_compat.make_ir_context():
        module = _jax_compat.deserialize_module(artifact)
        return str(
            module.operation.get_asm(
                enable_debug_info=False,
                large_elements_limit=_MOST_ELEMENTS,
                large_resource_limit=_MOST_ELEMENTS,
            )
        )


def write_texts(folder: Path, longest: int) -> None:
    """Writes the text of each file NAME.module in a folder to NAME.text, so far as it can be read.

    Args:
      folder: where they are.
      longest: how many characters of a text are written.
    """
    for file in sorted(folder.glob("*.module")):
        try:
            text = module_text(file.read_bytes())
        except Exception:  # of types that differ between releases of jaxlib
            continue
        if len(text) > longest:
            text = f"{text[:longest]}\n... and {len(text) - longest:,} more characters"
        file.with_suffix(".text").write_text(text, encoding="utf-8")
