"""Abstract values as .jaxfn files hold them: vectors of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._symbolic_texts import MAX_TEXT, has_own_parentheses
from jax2tf_bridge.serialization._flatbuffer import Table
from jax2tf_bridge.serialization.jaxfn import _schema as schema
from jax2tf_bridge.serialization.jaxfn._pools import Pool
from jax2tf_bridge.serialization.jaxfn._texts import each
from shape_poly import Dim, DimensionSyntaxError, DimExpr, parse_dimension

_MAX_SIZE = 2**63 - 1


@dataclass(frozen=True)
class EncodedAvals:
    """Abstract values as a file has them; see the schema's Avals."""

    dtypes: list[int]
    ranks: list[int]
    element_ranks: list[int]
    memory_spaces: bytes
    sizes: list[int]
    dimensions: list[int]


def encode_avals(avals: Sequence[Aval], texts: Pool[str]) -> EncodedAvals:
    """Abstract values as a file has them, with their texts in a pool.

    Raises:
      SerializationError: a file cannot hold one of them.
    """
    dimensions = Pool[str]()

    def encoded(size: Dim, aval: Aval) -> int:
        if isinstance(size, DimExpr):
            constant = size.constant_value()
            if constant is None:
                return -1 - dimensions.index(_dimension_text(size))
            size = constant
        if not 0 <= size <= _MAX_SIZE:
            raise SerializationError(
                f"A file cannot hold {aval}: its sizes must be from 0 to {_MAX_SIZE}."
            )
        return int(size)

    sizes = [encoded(d, aval) for aval in avals for d in (*aval.shape, *aval.element_shape)]
    if sum(map(len, dimensions.values())) > MAX_TEXT:
        raise SerializationError(
            f"A file holds symbolic dimensions of {MAX_TEXT} characters together. These have "
            f"{sum(map(len, dimensions.values()))}."
        )
    return EncodedAvals(
        dtypes=[texts.index(aval.dtype) for aval in avals],
        ranks=[len(aval.shape) for aval in avals],
        element_ranks=[len(aval.element_shape) for aval in avals],
        memory_spaces=bytes(schema.MEMORY_SPACES.index(aval.memory_space) for aval in avals),
        sizes=sizes,
        dimensions=[texts.index(text) for text in dimensions.values()],
    )


def _dimension_text(dimension: DimExpr) -> str:
    text = str(dimension)
    try:
        agrees = not has_own_parentheses(text) and parse_dimension(text) == dimension
    except DimensionSyntaxError:
        agrees = False
    if not agrees:
        raise SerializationError(
            f"A file cannot hold the dimension {text:.200}: read back, it is not the same."
        )
    return text


def decode_avals(table: Table, texts: Sequence[str]) -> list[Aval]:
    """Reads the abstract values of a table, with its file's texts.

    Raises:
      FileFormatError: it holds none.
    """
    fields = schema.Avals
    dtypes = each(table, fields.DTYPES, texts)
    ranks = table.integers(fields.RANKS, "u32")
    sizes = _sizes(table, texts)
    count = len(dtypes)
    element_ranks = _one_each(table, fields.ELEMENT_RANKS, "u32", count)
    spaces = _one_each(table, fields.MEMORY_SPACES, "u8", count)
    if len(ranks) != count or sum(ranks) + sum(element_ranks) != len(sizes):
        raise table.error(fields.SIZES, f"{sum(ranks) + sum(element_ranks)} sizes", f"{len(sizes)}")
    if max(spaces, default=0) >= len(schema.MEMORY_SPACES):
        raise table.error(fields.MEMORY_SPACES, "0, 1 or 2", f"{max(spaces)}")
    avals = []
    end = 0
    for dtype, rank, element_rank, space in zip(dtypes, ranks, element_ranks, spaces, strict=True):
        start, middle = end, end + rank
        end = middle + element_rank
        element_shape: tuple[int, ...] = ()
        if element_rank:
            element_shape = tuple(d for d in sizes[middle:end] if isinstance(d, int))
            if len(element_shape) != element_rank:
                raise table.error(fields.SIZES, "numbers in the shapes of elements", "dimensions")
        memory_space = schema.MEMORY_SPACES[space]
        avals.append(Aval(sizes[start:middle], dtype, element_shape, memory_space))
    return avals


def _one_each(table: Table, field: schema.Avals, kind: Any, count: int) -> Sequence[int]:
    found: tuple[int, ...] = table.integers(field, kind)
    if not found:
        return (0,) * count
    if len(found) != count:
        raise table.error(field, f"{count} numbers", f"{len(found)}")
    return found


def _sizes(table: Table, texts: Sequence[str]) -> tuple[Dim, ...]:
    sizes = table.integers(schema.Avals.SIZES, "i64")
    dimension_texts = each(table, schema.Avals.DIMENSIONS, texts)
    characters = sum(map(len, dimension_texts))
    if characters > MAX_TEXT:
        raise table.error(
            schema.Avals.DIMENSIONS, f"at most {MAX_TEXT} characters", f"{characters}"
        )
    dimensions = [_dimension(text, table) for text in dimension_texts]
    lowest = min(sizes, default=0)
    if lowest >= 0:
        return sizes
    if -lowest > len(dimensions):
        raise table.error(
            schema.Avals.SIZES, f"indices of {len(dimensions)} dimensions", f"{-1 - lowest}"
        )
    return tuple(size if size >= 0 else dimensions[-1 - size] for size in sizes)


def _dimension(text: str, table: Table) -> DimExpr:
    problem = "it has parentheses of its own"
    if not has_own_parentheses(text):
        try:
            dimension = parse_dimension(text)
        except DimensionSyntaxError as e:
            problem = e.problem
        else:
            if isinstance(dimension, DimExpr):
                return dimension
            problem = "it is a number"
    raise table.error(
        schema.Avals.DIMENSIONS, "dimensions as they are printed", f"{text!r:.80} ({problem})"
    )
