"""Reads from a StableHLO module without parsing it: its version, and JAX's assertions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._stablehlo_version import Version
from jax2tf_bridge.portable._symbolic_texts import Comparisons
from shape_poly import Comparison, DimExpr, Operation, is_symbolic_dim, operation

# MLIR bytecode begins with its own version, a number of one byte, and who wrote it.
_ARTIFACT = re.compile(
    rb"ML\xefR[\x01-\xff]StableHLO_v([0-9]{1,5})\.([0-9]{1,5})\.([0-9]{1,5})\x00"
)
# The text of an assertion that JAX makes of a constraint, in 0.4.30 to 0.12; what its variables
# are follows, up to the end of the string.
_ASSERTION = re.compile(rb"Input shapes do not match the symbolic shape constraint ")
_END = re.compile(rb"\x00")
_LONGEST_MESSAGE = 1_000_000
_GIVEN_AS = "Using the following polymorphic shapes specifications: "


def stablehlo_version(module: memoryview) -> Version | None:
    """Reads the StableHLO version of a module; None if it is no portable artifact."""
    match = _ARTIFACT.match(module)
    if match is None:
        return None
    major, minor, patch = map(int, match.groups())
    return major, minor, patch


def asserted_constraints(
    module: memoryview, shapes: Sequence[Sequence[str]], in_avals: Sequence[Aval]
) -> tuple[str, ...]:
    """Reads which constraints on sizes a module checks itself, as the user wrote them.

    A module may hold others, of functions that it calls: their sizes are given otherwise.

    Args:
      module: the portable artifact.
      shapes: the sizes of the arguments, as JAX printed them.
      in_avals: the same arguments.
    """
    symbolic = [
        (texts, aval)
        for texts, aval in zip(shapes, in_avals, strict=True)
        if any(map(is_symbolic_dim, aval.shape))
    ]
    if not symbolic:
        return ()
    dims = (dim for _, aval in symbolic for dim in aval.shape)
    variables = frozenset().union(*(d.variables() for d in dims if isinstance(d, DimExpr)))
    own = [f".shape = {_tuple_text(texts)}" for texts, _ in symbolic]
    found: dict[str, Comparison] = {}
    comparisons = Comparisons()
    for message in _assertions(module):
        constraint, _, rest = message.partition(". Expected '")
        given = rest.partition(_GIVEN_AS)[2]
        comparison = comparisons.parse(constraint)
        if (
            isinstance(comparison, Comparison)
            and comparison.variables() <= variables
            and _are_own(given, own)
        ):
            found[constraint] = comparison
    # JAX 0.10 and later add these by themselves.
    added = {multiple for comparison in found.values() for multiple in _as_multiples(comparison)}
    return tuple(text for text, comparison in found.items() if comparison not in added)


def _assertions(module: memoryview) -> Iterator[str]:
    """Finds what follows the beginning of each assertion's message."""
    position = 0
    while match := _ASSERTION.search(module, position):
        limit = match.end() + _LONGEST_MESSAGE
        end = _END.search(module, match.end(), limit)
        if end is not None:
            yield str(module[match.end() : end.start()], "utf-8", "replace")
        position = limit if end is None else end.end()


def _are_own(given: str, own: Sequence[str]) -> bool:
    """Tells whether an assertion names exactly the function's own sizes, in order."""
    if given.count(".shape = (") < len(own):
        return False
    position = 0
    for text in own:
        position = given.find(text, position)
        if position < 0:
            return False
        position += len(text)
    # The results of solving them follow.
    return ".shape = (" not in given[position:].partition(" Obtained dimension variables:")[0]


def _as_multiples(comparison: Comparison) -> Iterator[Comparison]:
    """Writes what JAX adds to `mod(b, 2) == 0`: `2*floordiv(b, 2) == b`, in all its forms."""
    left = comparison.left
    if comparison.operator != "==" or comparison.right != 0 or isinstance(left, int):
        return
    match left.terms:
        case ((((Operation(kind="mod", operands=(value, divisor)), 1),), 1),):
            number = divisor.constant_value()
            if number:
                for simplify in (False, True):
                    floor = operation("floordiv", value, number, simplify=simplify)
                    yield Comparison("==", number * floor, value)


def _tuple_text(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
