"""JAX's questions about sizes: answers them during tracing, or reads them from exceptions.

JAX raises exceptions whose texts contain the sizes; there is no structured form. A question read
from a text is only a guess, which is confirmed if tracing gets further with the answer.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax

from jax2tf_bridge.from_jax._jax_compat_sizes import AnsweringScope
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.from_jax.shapes._errors import first_line
from jax2tf_bridge.from_jax.shapes._traced_function import TracedFunction
from shape_poly import (
    Comparison,
    ComparisonOperator,
    Dim,
    DimensionSyntaxError,
    DimExpr,
    Proven,
    is_symbolic_dim,
    operation,
    parse_dimension,
    prove,
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
    comparison = Comparison(_parse_operator(match[2]), left, right)
    return Question(((comparison,), (comparison.negate(),)))


def _parse_operator(text: str) -> ComparisonOperator:
    operators: tuple[ComparisonOperator, ...] = (">=", "<=", "==", ">", "<", "!=")
    return next(o for o in operators if o == text)


def _read_remainder(text: str, variables: frozenset[str]) -> Question | None:
    match = _REMAINDER.search(text)
    remainder = _parse_dimension(match[1], variables) if match else None
    return None if remainder is None else _ask_equal([(remainder, 0)])


def _read_difference(text: str, variables: frozenset[str]) -> Question | None:
    match = _MUST_EQUAL.search(text)
    # JAX prints an uncomputed division here.
    sides = [_parse_dimension(match[i], variables, simplify=True) for i in (1, 2)] if match else []
    known = [side for side in sides if side is not None]
    return _ask_equal([(known[0], known[1])]) if len(known) == 2 else None


def _read_division(text: str, variables: frozenset[str]) -> Question | None:
    match = _MUST_DIVIDE.search(text) or _PARTITIONED.search(text)
    if match is None:
        return None
    divisor, dividend = (_parse_dimension(match[i], variables) for i in (1, 2))
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
    match = _DIVISOR.search(text)
    divisor = _parse_dimension(match[1], variables) if match else None
    if divisor is None:
        return None
    return Question(((Comparison(">=", divisor, 1),), (Comparison("<=", divisor, -1),)))


def _read_sample(text: str, variables: frozenset[str]) -> Question | None:
    match = _SAMPLE.search(text)
    sample, population = (
        (_parse_dimension(match[i], variables) for i in (1, 2)) if match else (0, 0)
    )
    if sample is None or population is None:
        return None
    if not (is_symbolic_dim(sample) or is_symbolic_dim(population)):
        return None
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


# The rest answers provable questions during tracing, so that one trace finds all of them. The
# function is then traced again with the answers.


logger = logging.getLogger("jax2tf_bridge")

MAX_FACTS = 100
"""Maximum number of facts, because a loop over sizes may ask forever."""

_OVERFLOW = 2**31
"""JAX compares sizes with such numbers to detect overflow, and continues without an answer."""


class AnsweredTrace:
    """Trace of a function that answers questions.

    Attributes:
      assumptions: the assumptions, with the facts that were answers so far.
    """

    def __init__(self, assumptions: SizeAssumptions, function: TracedFunction) -> None:
        """Stores the initial assumptions, and the function to trace."""
        self.assumptions = assumptions
        self._function = function

    def trace(self) -> jax.stages.Traced:
        """Traces the function, repeatedly if questions were answered; raises JAX's errors.

        Only a trace that began with all facts is returned. Otherwise JAX may have written one size
        in two ways, before and after an answer, and treat them as different.
        """
        while True:
            before = self.assumptions
            scope = AnsweringScope(before.constraints_of_jax(), self._answer)
            try:
                traced = self._function.trace(before, scope)
            except Exception:
                if self.assumptions is before:
                    raise
            else:
                if self.assumptions is before:
                    return traced
            finally:
                scope.close()
            logger.debug("Tracing %s again under all that holds", self._function.name)

    def _answer(self, error: Exception) -> Iterator[Sequence[str]]:
        """Yields all constraints for JAX if an answer to the question is proven."""
        known, question = self.assumptions, self._read_question(error)
        if question is None or question.constants or len(known.facts) >= MAX_FACTS:
            return
        told, scope = {f.comparison for f in known.facts}, known.scope_of_jax()
        for option in question.options:
            if told.issuperset(option) or any(map(_is_about_overflow, option)):
                return
            if all(isinstance(prove(c, scope), Proven) for c in option):
                self.assumptions = known.with_facts(c for o in option for c in facts_of(o))
                logger.debug(
                    "Tracing %s goes on, since %s holds. JAX asked: %s",
                    self._function.name,
                    "; ".join(map(str, option)),
                    first_line(error),
                )
                yield from self.assumptions.constraints_to_try()
                return

    def _read_question(self, error: Exception) -> Question | None:
        return read_question(error, self.assumptions.variables_of_jax(self._function.variables))


def facts_of(comparison: Comparison) -> Iterator[Comparison]:
    """Yields a comparison; for an even division also its quotient, which JAX needs next."""
    yield comparison
    remainder = comparison.left.as_operation() if isinstance(comparison.left, DimExpr) else None
    if remainder is None or remainder.kind != "mod" or comparison.operator != "==":
        return
    dividend, divisor = remainder.operands
    if divisor.constant_value() is None:
        written = operation("floordiv", dividend, divisor, simplify=False)
        simplified = written.simplify()
        # The quotient must be simpler for JAX, and not another division by sizes.
        if isinstance(simplified, int) or 2 * simplified.size <= written.size:
            yield Comparison("==", written, simplified)


def _is_about_overflow(comparison: Comparison) -> bool:
    difference = comparison.difference()
    terms = {} if isinstance(difference, int) else dict(difference.terms)
    return any(abs(coefficient) >= _OVERFLOW - 1 for coefficient in terms.values())
