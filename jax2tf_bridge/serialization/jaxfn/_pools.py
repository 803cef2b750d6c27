"""Pools of values that a .jaxfn file stores once and refers to by index.

Values are numbered in the order in which they are added. Texts are concatenated, as UTF-8. Abstract
values are vectors of numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import MAX_TEXT, Aval, has_own_parentheses
from jax2tf_bridge.serialization._flatbuffer import Field, Fields, FlatBufferTable
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._format import AvalsRecord, FileRecord
from shape_poly import Dim, DimensionSyntaxError, DimExpr, parse_dimension

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class Pool(Generic[H]):
    """Numbered values without duplicates. Looking up the index of a new value adds the value.

    A pool must not contain equal values of different types, such as 1 and True.

    >>> pool = Pool[str]()
    >>> [pool.index(text) for text in "abca"], pool.values()
    ([0, 1, 2, 0], ('a', 'b', 'c'))
    """

    def __init__(self) -> None:
        self._indices: dict[H, int] = {}

    def index(self, value: H) -> int:
        return self._indices.setdefault(value, len(self._indices))

    def indices(self, values: Iterable[H]) -> list[int]:
        return [self.index(value) for value in values]

    def optional_index(self, value: H | None) -> int | None:
        return None if value is None else self.index(value)

    def values(self) -> tuple[H, ...]:
        return tuple(self._indices)


def encode_texts(texts: Sequence[str]) -> list[bytes]:
    """Encodes each text as UTF-8.

    Raises:
      SerializationError: a text contains a lone surrogate.
    """
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as e:
        raise SerializationError(
            f"{e.object!r:.200} cannot be written as UTF-8: {e.reason}."
        ) from e


def decode_texts(file: FlatBufferTable) -> list[str]:
    all_text = file.string(FileRecord.TEXT, "") or ""
    sizes = file.integers(FileRecord.TEXT_SIZES)
    # The texts are usually ASCII, where sizes in bytes are sizes in characters.
    data = all_text if all_text.isascii() else all_text.encode()
    if sum(sizes) != len(data):
        raise file.error(FileRecord.TEXT_SIZES, f"{len(data)} bytes together", f"{sum(sizes)}")
    texts, end = [], 0
    for size in sizes:
        start, end = end, end + size
        part = data[start:end]
        if isinstance(part, bytes):
            try:
                part = part.decode()
            except UnicodeDecodeError as e:
                problem = f"{e.reason} at byte {start + e.start}"
                raise file.error(FileRecord.TEXT_SIZES, "whole characters", problem) from e
        texts.append(part)
    return texts


def look_up_all(table: FlatBufferTable, field: Field, pool: Sequence[T]) -> tuple[T, ...]:
    indices = table.integers(field)
    if not indices:
        return ()
    try:
        return tuple([pool[i] for i in indices])
    except IndexError:
        raise table.error(field, f"indices below {len(pool)}", f"{max(indices)}") from None


def look_up(table: FlatBufferTable, field: Field, pool: Sequence[T]) -> T:
    index = table.integer(field)
    if index >= len(pool):
        raise table.error(field, f"an index below {len(pool)}", f"{index}")
    return pool[index]


def look_up_optional(table: FlatBufferTable, field: Field, pool: Sequence[T]) -> T | None:
    return look_up(table, field, pool) if table.has(field) else None


def optional_bytes(table: FlatBufferTable, field: Field) -> bytes | None:
    """Returns a copy of the bytes in a field; None if the field was not written."""
    view = table.bytes(field)
    return None if view is None else bytes(view)


_MAX_SIZE = 2**63 - 1


def make_avals_table(avals: Sequence[Aval], texts: Pool[str]) -> Fields:
    """Makes the table of all abstract values. Adds their texts to a pool.

    Raises:
      SerializationError: a file cannot hold one of the values.
    """
    dimensions = Pool[str]()

    def encode_size(size: Dim, aval: Aval) -> int:
        if isinstance(size, DimExpr):
            constant = size.constant_value()
            if constant is None:
                return -1 - dimensions.index(_format_dimension(size))
            size = constant
        if not 0 <= size <= _MAX_SIZE:
            raise SerializationError(
                f"A file cannot hold {aval}: its sizes must be from 0 to {_MAX_SIZE}."
            )
        return int(size)

    sizes = [encode_size(d, aval) for aval in avals for d in (*aval.shape, *aval.element_shape)]
    if sum(map(len, dimensions.values())) > MAX_TEXT:
        raise SerializationError(
            f"The symbolic dimensions have {sum(map(len, dimensions.values()))} characters "
            f"together, and a file holds {MAX_TEXT}. Use shorter names."
        )
    element_ranks = [len(aval.element_shape) for aval in avals]
    memory_spaces = bytes(_format.MEMORY_SPACES.index(aval.memory_space) for aval in avals)
    return {
        AvalsRecord.DTYPES: texts.indices(aval.dtype for aval in avals),
        AvalsRecord.RANKS: [len(aval.shape) for aval in avals],
        AvalsRecord.ELEMENT_RANKS: element_ranks if any(element_ranks) else None,
        AvalsRecord.MEMORY_SPACES: memory_spaces if any(memory_spaces) else None,
        AvalsRecord.SIZES: sizes,
        AvalsRecord.DIMENSIONS: texts.indices(dimensions.values()),
    }


def _format_dimension(dimension: DimExpr) -> str:
    text = str(dimension)
    try:
        is_stable = not has_own_parentheses(text) and parse_dimension(text) == dimension
    except DimensionSyntaxError:
        is_stable = False
    if not is_stable:
        raise SerializationError(
            f"A file cannot hold the dimension {text:.200}: it would change when it is read back."
        )
    return text


def decode_avals(table: FlatBufferTable, texts: Sequence[str]) -> list[Aval]:
    dtypes = look_up_all(table, AvalsRecord.DTYPES, texts)
    ranks = table.integers(AvalsRecord.RANKS)
    sizes = _read_sizes(table, texts)
    count = len(dtypes)
    element_ranks = _read_optional_numbers(table, AvalsRecord.ELEMENT_RANKS, count)
    spaces = _read_optional_numbers(table, AvalsRecord.MEMORY_SPACES, count)
    if len(ranks) != count or sum(ranks) + sum(element_ranks) != len(sizes):
        raise table.error(
            AvalsRecord.SIZES, f"{sum(ranks) + sum(element_ranks)} sizes", f"{len(sizes)}"
        )
    if max(spaces, default=0) >= len(_format.MEMORY_SPACES):
        raise table.error(AvalsRecord.MEMORY_SPACES, "0, 1 or 2", f"{max(spaces)}")
    avals = []
    end = 0
    for dtype, rank, element_rank, space in zip(dtypes, ranks, element_ranks, spaces, strict=True):
        start, middle = end, end + rank
        end = middle + element_rank
        element_shape: tuple[int, ...] = ()
        if element_rank:
            element_shape = tuple(d for d in sizes[middle:end] if isinstance(d, int))
            if len(element_shape) != element_rank:
                raise table.error(
                    AvalsRecord.SIZES, "numbers in the shapes of elements", "dimensions"
                )
        memory_space = _format.MEMORY_SPACES[space]
        avals.append(Aval(sizes[start:middle], dtype, element_shape, memory_space))
    return avals


def _read_optional_numbers(table: FlatBufferTable, field: AvalsRecord, count: int) -> Sequence[int]:
    numbers = table.integers(field)
    if not numbers:
        return (0,) * count
    if len(numbers) != count:
        raise table.error(field, f"{count} numbers", f"{len(numbers)}")
    return numbers


def _read_sizes(table: FlatBufferTable, texts: Sequence[str]) -> tuple[Dim, ...]:
    sizes = table.integers(AvalsRecord.SIZES)
    dimension_texts = look_up_all(table, AvalsRecord.DIMENSIONS, texts)
    characters = sum(map(len, dimension_texts))
    if characters > MAX_TEXT:
        raise table.error(AvalsRecord.DIMENSIONS, f"at most {MAX_TEXT} characters", f"{characters}")
    dimensions = [_parse_dimension(text, table) for text in dimension_texts]
    lowest = min(sizes, default=0)
    if lowest >= 0:
        return sizes
    if -lowest > len(dimensions):
        raise table.error(
            AvalsRecord.SIZES, f"indices of {len(dimensions)} dimensions", f"{-1 - lowest}"
        )
    return tuple(size if size >= 0 else dimensions[-1 - size] for size in sizes)


def _parse_dimension(text: str, table: FlatBufferTable) -> DimExpr:
    problem = "it has grouping parentheses"
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
        AvalsRecord.DIMENSIONS, "dimensions as JAX prints them", f"{text!r:.80} ({problem})"
    )
