"""Writes the types of arrays."""

from __future__ import annotations

from collections.abc import Iterable


def array_type_text(dtype: object, shape: Iterable[object] | None) -> str:
    """Writes a dtype and a shape, in which None stands for what is not known.

    >>> array_type_text("float32", (None, 28)), array_type_text("bool", ())
    ('float32[?,28]', 'bool[]')
    >>> array_type_text("int32", None)
    'int32[...]'
    """
    if shape is None:
        return f"{dtype}[...]"
    return f"{dtype}[{','.join('?' if size is None else str(size) for size in shape)}]"
