"""Reads JAX's shape assertions from a StableHLO module, without parsing it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jax2tf_bridge.portable import Aval, ComparisonParser, variables_in
from shape_poly import Comparison, DimOperation, is_symbolic_dim, operation

# Beginning of the assertion that JAX 0.4.30 to 0.12 writes for a constraint. The definitions of
# the variables follow, up to the end of the string.
_ASSERTION_START = re.compile(rb"Input shapes do not match the symbolic shape constraint ")
_STRING_END = re.compile(rb"\x00")
_MAX_MESSAGE_SIZE = 1_000_000
_SPECIFICATIONS_START = "Using the following polymorphic shapes specifications: "


def read_asserted_constraints(
    module: memoryview, shapes: Sequence[Sequence[str]], in_avals: Sequence[Aval]
) -> tuple[str, ...]:
    """Returns the constraints on sizes that a module checks itself, as the user wrote them.

    Constraints of functions that the module calls are left out.

    Args:
      module: the portable artifact.
      shapes: the sizes of each argument, as JAX printed them.
      in_avals: the abstract values of the same arguments.
    """
    symbolic = [
        (texts, aval)
        for texts, aval in zip(shapes, in_avals, strict=True)
        if any(map(is_symbolic_dim, aval.shape))
    ]
    if not symbolic:
        return ()
    variables = frozenset[str]().union(*(variables_in(aval) for _, aval in symbolic))
    own_shapes = [f".shape = {_format_tuple(texts)}" for texts, _ in symbolic]
    comparison_by_text: dict[str, Comparison] = {}
    parser = ComparisonParser()
    for message in _read_assertions(module):
        constraint, _, rest = message.partition(". Expected '")
        specifications = rest.partition(_SPECIFICATIONS_START)[2]
        comparison = parser.parse(constraint)
        if (
            isinstance(comparison, Comparison)
            and comparison.variables() <= variables
            and _names_own_shapes(specifications, own_shapes)
        ):
            comparison_by_text[constraint] = comparison
    # JAX 0.10 and later add these constraints; the user did not write them.
    implied = {
        multiple
        for comparison in comparison_by_text.values()
        for multiple in _iter_implied(comparison)
    }
    return tuple(
        text for text, comparison in comparison_by_text.items() if comparison not in implied
    )


def _read_assertions(module: memoryview) -> Iterator[str]:
    """Yields the text of each assertion, without its fixed beginning."""
    position = 0
    while match := _ASSERTION_START.search(module, position):
        limit = match.end() + _MAX_MESSAGE_SIZE
        end = _STRING_END.search(module, match.end(), limit)
        if end is not None:
            yield str(module[match.end() : end.start()], "utf-8", "replace")
        position = limit if end is None else end.end()


def _names_own_shapes(specifications: str, own_shapes: Sequence[str]) -> bool:
    """Returns whether an assertion names exactly the shapes of this function, in order."""
    if specifications.count(".shape = (") < len(own_shapes):
        return False
    position = 0
    for text in own_shapes:
        position = specifications.find(text, position)
        if position < 0:
            return False
        position += len(text)
    # The solution for the variables follows, and may contain the same words.
    return (
        ".shape = (" not in specifications[position:].partition(" Obtained dimension variables:")[0]
    )


def _iter_implied(comparison: Comparison) -> Iterator[Comparison]:
    """Yields the forms of `2*floordiv(b, 2) == b` that JAX derives from `mod(b, 2) == 0`."""
    left = comparison.left
    if comparison.operator != "==" or comparison.right != 0 or isinstance(left, int):
        return
    match left.terms:
        case ((((DimOperation(kind="mod", operands=(value, divisor)), 1),), 1),):
            number = divisor.constant_value()
            if number:
                for simplify in (False, True):
                    floor = operation("floordiv", value, number, simplify=simplify)
                    yield Comparison("==", number * floor, value)


def _format_tuple(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
