"""Effects in JAX's files: the names of their classes."""

from __future__ import annotations

from jax2tf_bridge.serialization._flatbuffer import Table
from jax2tf_bridge.serialization.jax_exported._schema import EffectField

_OPENING, _CLOSING = "<class '", "'>"


def effect_name(table: Table) -> str:
    """Reads the class of an effect, as "jax._src.debugging.OrderedDebugEffect"."""
    text = table.string(EffectField.TYPE_NAME)
    if not text:
        raise table.error(EffectField.TYPE_NAME, "the class of an effect", "none")
    if text.startswith(_OPENING) and text.endswith(_CLOSING):
        return text[len(_OPENING) : -len(_CLOSING)]
    return text


def effect_text(name: str) -> str:
    """Writes the class of an effect as JAX does."""
    return f"{_OPENING}{name}{_CLOSING}" if _is_qualified(name) else name


def _is_qualified(name: str) -> bool:
    parts = name.replace(".<locals>", "").split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)
