"""Reads JAX's questions about sizes from its exceptions.

JAX raises exceptions whose texts contain the sizes; there is no structured form. A question read
from a text is only a guess, which is confirmed if tracing gets further with the answer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from shape_poly import (
    Comparison,
    ComparisonOperator,
    Dim,
    DimensionSyntaxError,
    DimExpr,
    is_symbolic_dim,
    parse_dimension,
)

_MAX_DEPTH = 20

Shape = tuple[Dim, ...]

_MAX_TEXT = 20_000
"""Maximum length of a message to read; the sizes are at the start, and the rest quotes data."""


@dataclass(frozen=True)
class Question:
    """Question about sizes that stopped tracing.

    Attributes:
      options: the possible answers; all comparisons of one option must hold.
      constants: dimensions that must be numbers instead.
    """

    options: tuple[tuple[Comparison, ...], ...]
    constants: tuple[DimExpr, ...] = ()


def read_question(error: BaseException, variables: frozenset[str]) -> Question | None:
    """Reads the question from an error and its causes; None if they are not about sizes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = str(current)[:_MAX_TEXT]
        for read in _READERS:
            question = read(text, variables)
            if question is not None:
                return question
        current = current.__cause__ or current.__context__
    return None


_COMPARED = re.compile(r"Symbolic dimension comparison '(.+?)' (>=|<=|==|>|<|!=) '(.+?)' is")
_MUST_EQUAL = re.compile(r"must (?:be )?equal (?:the )?.*?, but (.+?) != (.+?)\.?$", re.MULTILINE)
_MUST_DIVIDE = re.compile(r"must divide .*?, but (.+?) does not divide (.+?)\.?$", re.MULTILINE)
_PARTITIONED = re.compile(r"is partitioned (\d+) times, but the dimension size is (.+?) \(full")
_PADDING = re.compile(r"padding argument to conv_general_dilated should be .*, got \[(.*)\]")
_NUMPY_INTEGER = re.compile(r"np\.int\d+\((-?\d+)\)")
_REMAINDER = re.compile(
    r"(?:The remainder|division: rest is) (.+?)(?: should be 0|$)", re.MULTILINE
)
_DIVISOR = re.compile(r"Possible division by 0 in division by (.+?)\.?$", re.MULTILINE)
_NOT_ONE = re.compile(r"not equal to one, got shape=(\(.*?\)) and dimensions=\((\d+)")
_LEADING = re.compile(r"different leading axis sizes: (.+?)\.?$", re.MULTILINE)
_MAPPED = re.compile(r"had size (.+?)(?:: axis|, e\.g\.)")
_NAMED_AXES = re.compile(r"[lr]hs\.shape=(\(.*?\)) [lr]hs_names=(\w+)")
_SAMPLE = re.compile(r"larger sample \(size (.+?)\) than population \(size (.+?)\) when")
_WORD_BEFORE = re.compile(r"[\w>]+\Z")
_DTYPE = re.compile(r"bool|(u?int|b?float|complex|f|i|u|bf|c)\d\w*|\w*>|ShapedArray|shapes?")
_MATMUL = re.compile(r"for matmul arguments: (.*)")
_CONCATENATED = re.compile(r"concatenating along dimension (\d+)")


def _read_comparison(text: str, variables: frozenset[str]) -> Question | None:
    match = _COMPARED.search(text)
    if match is None:
        return None
    left, right = (_parse_dimension(match[i], variables) for i in (1, 3))
    if left is None or right is None:
        return None
    comparison = Comparison(cast(ComparisonOperator, match[2]), left, right)
    return Question(((comparison,), (comparison.negate(),)))


def _read_remainder(text: str, variables: frozenset[str]) -> Question | None:
    sizes = _search_sizes(_REMAINDER, text, variables)
    return None if sizes is None else _ask_equal([(sizes[0], 0)])


def _read_difference(text: str, variables: frozenset[str]) -> Question | None:
    # JAX prints an uncomputed division here.
    sizes = _search_sizes(_MUST_EQUAL, text, variables, simplify=True)
    return None if sizes is None else _ask_all_equal(sizes)


def _read_division(text: str, variables: frozenset[str]) -> Question | None:
    sizes = _search_sizes(_MUST_DIVIDE, text, variables)
    sizes = sizes or _search_sizes(_PARTITIONED, text, variables)
    divisor, dividend = sizes or (0, 0)
    if not isinstance(divisor, int) or divisor < 1 or not isinstance(dividend, DimExpr):
        return None
    return _ask_equal([(dividend % divisor, 0)])


def _read_padding(text: str, variables: frozenset[str]) -> Question | None:
    """Asks for numbers, because the padding in the gradient of a convolution must be constant."""
    match = _PADDING.search(text)
    numbers = _NUMPY_INTEGER.sub(r"\1", match[1]) if match else ""
    pairs = [pair.strip().removeprefix("(").removesuffix(")") for pair in _split(numbers)]
    pads = [_parse_dimension(pad.strip(), variables) for pair in pairs for pad in _split(pair)]
    symbolic = tuple(pad for pad in pads if isinstance(pad, DimExpr))
    return Question((), symbolic) if symbolic else None


def _read_zero_divisor(text: str, variables: frozenset[str]) -> Question | None:
    sizes = _search_sizes(_DIVISOR, text, variables)
    if sizes is None:
        return None
    return Question(((Comparison(">=", sizes[0], 1),), (Comparison("<=", sizes[0], -1),)))


def _read_sample(text: str, variables: frozenset[str]) -> Question | None:
    sizes = _search_sizes(_SAMPLE, text, variables)
    if sizes is None or not any(map(is_symbolic_dim, sizes)):
        return None
    sample, population = sizes
    return Question(((Comparison(">=", population, sample),),))


def _read_squeeze(text: str, variables: frozenset[str]) -> Question | None:
    match = _NOT_ONE.search(text)
    shape = _parse_shape(match[1], variables) if match else None
    if match is None or shape is None or int(match[2]) >= len(shape):
        return None
    return _ask_equal([(shape[int(match[2])], 1)])


def _read_leading_sizes(text: str, variables: frozenset[str]) -> Question | None:
    match = _LEADING.search(text)
    sizes = _parse_shape(match[1], variables) if match else None
    return None if sizes is None else _ask_all_equal(sizes)


def _read_mapped_sizes(text: str, variables: frozenset[str]) -> Question | None:
    sizes = [_parse_dimension(size, variables) for size in _MAPPED.findall(text)]
    known = [size for size in sizes if size is not None]
    return _ask_all_equal(known) if known else None


def _read_einsum(text: str, variables: frozenset[str]) -> Question | None:
    by_name: dict[str, Dim] = {}
    pairs = []
    for shape_text, names in _NAMED_AXES.findall(text):
        for name, size in zip(names, _parse_shape(shape_text, variables) or (), strict=False):
            if by_name.setdefault(name, size) != size:
                pairs.append((by_name[name], size))
    return _ask_equal(pairs)


def _read_product(text: str, variables: frozenset[str]) -> Question | None:
    """Reads a question about two stacks of matrices."""
    match = _MATMUL.search(text)
    shapes = list(_find_shapes(match[1], variables)) if match else []
    if len(shapes) < 2 or min(map(len, shapes)) < 2:
        return None
    first, second = shapes[:2]
    stacks = zip(reversed(first[:-2]), reversed(second[:-2]), strict=False)
    return _ask_equal([(first[-1], second[-2]), *(pair for pair in stacks if 1 not in pair)])


def _read_shapes(text: str, variables: frozenset[str]) -> Question | None:
    """Reads a question about shapes that should broadcast; the last axes are aligned."""
    shapes = [s for s in _find_shapes(text, variables) if s]
    along = _CONCATENATED.search(text)
    if len(shapes) < 2 or not any(is_symbolic_dim(d) for s in shapes for d in s):
        return None
    rank = max(map(len, shapes))
    if along is not None and not all(len(s) == rank for s in shapes):
        return None
    pairs = []
    for axis in range(1, rank + 1):
        if along is not None and rank - axis == int(along[1]):
            continue
        sizes = [s[-axis] for s in shapes if len(s) >= axis and s[-axis] != 1]
        pairs += [(first, second) for first, second in itertools.pairwise(sizes)]
    return _ask_equal(pairs)


_READERS: tuple[Callable[[str, frozenset[str]], Question | None], ...] = (
    _read_comparison,
    _read_remainder,
    _read_difference,
    _read_division,
    _read_zero_divisor,
    _read_sample,
    _read_padding,
    _read_squeeze,
    _read_leading_sizes,
    _read_mapped_sizes,
    _read_einsum,
    _read_product,
    _read_shapes,
)


def _ask_all_equal(sizes: Sequence[Dim]) -> Question | None:
    return _ask_equal(list(itertools.pairwise(sizes)))


def _ask_equal(pairs: Sequence[tuple[Dim, Dim]]) -> Question | None:
    """Asks for equal pairs; None if two numbers differ, because no size helps then."""
    comparisons: dict[Comparison, None] = {}
    for left, right in pairs:
        if left == right:
            continue
        if not (is_symbolic_dim(left) or is_symbolic_dim(right)):
            return None
        comparisons[Comparison("==", left, right)] = None
    return Question((tuple(comparisons),)) if comparisons else None


def _search_sizes(
    pattern: re.Pattern[str], text: str, variables: frozenset[str], *, simplify: bool = False
) -> list[Dim] | None:
    """Returns the sizes in the groups of a match; None if one of them cannot be parsed."""
    match = pattern.search(text)
    groups = match.groups() if match else ()
    sizes = [_parse_dimension(group, variables, simplify=simplify) for group in groups]
    known = [size for size in sizes if size is not None]
    return known if known and len(known) == len(sizes) else None


def _parse_dimension(text: str, variables: frozenset[str], *, simplify: bool = False) -> Dim | None:
    """Parses a dimension in JAX's own form; JAX would not recognize another form."""
    try:
        dimension = parse_dimension(text, simplify=simplify)
    except DimensionSyntaxError:
        return None
    named = frozenset() if isinstance(dimension, int) else dimension.variables()
    return dimension if named <= variables else None


def _parse_shape(text: str, variables: frozenset[str]) -> Shape | None:
    """Parses a shape such as "(b, 3)", "b, 3" or "b,3"; None for other texts."""
    inner = text.strip()
    if inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    parts = [part for part in _split(inner) if part.strip()]
    dimensions = [_parse_dimension(part, variables) for part in parts]
    known = tuple(d for d in dimensions if d is not None)
    return known if len(known) == len(dimensions) else None


def _split(text: str) -> Iterator[str]:
    """Splits a text at the commas outside of parentheses."""
    depth = start = 0
    for i, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def _find_shapes(text: str, variables: frozenset[str], depth: int = 0) -> Iterator[Shape]:
    """Yields all shapes in a text, such as "(b, 3)" or "float32[b,3]", in order."""
    start = 0
    while start < len(text):
        if text[start] not in "([":
            start += 1
            continue
        end = _find_closing(text, start)
        inner = text[start + 1 : end]
        shape = _parse_shape(inner, variables) if _may_be_shape(text, start, end) else None
        if shape is not None and end < len(text):
            yield shape
        elif depth < _MAX_DEPTH:
            yield from _find_shapes(inner, variables, depth + 1)
        start = end + 1


def _may_be_shape(text: str, start: int, end: int) -> bool:
    """Returns whether brackets may enclose a shape, rather than arguments or an index."""
    before = _WORD_BEFORE.search(text, max(0, start - 40), start)
    if text[start] == "(":
        return before is None and "," in text[start:end]
    return before is None or bool(_DTYPE.fullmatch(before[0]))


def _find_closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at `start`, or the length."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([") - (text[i] in ")]")
        if depth == 0:
            return i
    return len(text)
