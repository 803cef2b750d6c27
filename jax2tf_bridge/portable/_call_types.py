"""Types of a module's arguments and results, as an op that calls it has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import OF_ELEMENT_TYPES
from jax2tf_bridge.portable._module_types import check_types
from shape_poly import Dim, parse_dimension

_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)")
_WHOLE_TENSOR = re.compile(_TENSOR.pattern + r"([a-z]\w*(?:<f\d+>)?)(?:, .*)?>")


def read_tensor_type(text: str) -> tuple[list[str], str] | None:
    """Splits an MLIR type into its sizes and its dtype; None if it is not a tensor of numbers.

    >>> read_tensor_type("tensor<?x3xf32>")
    (['?', '3'], 'float32')
    """
    found = _WHOLE_TENSOR.fullmatch(text)
    if found is None or found[2] not in OF_ELEMENT_TYPES:
        return None
    return found[1].split("x")[:-1], OF_ELEMENT_TYPES[found[2]]


def call_avals(
    arguments: Sequence[str],
    results: Sequence[str],
    module_types: tuple[Sequence[str], Sequence[str]],
    *,
    has_platform_index: bool,
) -> tuple[tuple[Aval, ...], tuple[Aval, ...]]:
    """Combines an op's dtypes with the sizes of its module's main function.

    Sizes that are open in main have names that say where they are alone: "x0_1" for the second of
    the first argument.

    Args:
      arguments: the op's dtypes (Tin), by name.
      results: likewise (Tout).
      module_types: of main's arguments and results, as "tensor<?x3xf32>".
      has_platform_index: whether the first argument is the platform's.
    """
    inputs = module_types[0][1:] if has_platform_index else module_types[0]
    return _avals(arguments, inputs, "x"), _avals(results, module_types[1], "y")


def call_problem(
    name: str,
    arguments: Sequence[str],
    results: Sequence[str],
    module_types: tuple[Sequence[str], Sequence[str]],
    *,
    has_platform_index: bool,
) -> str | None:
    """Says how an op's dtypes differ from what its module takes and gives; None if they do not.

    TensorFlow does not compare them, and reads stray memory where they differ.
    """
    avals = call_avals(arguments, results, module_types, has_platform_index=has_platform_index)
    try:
        check_types(name, *avals, *module_types, has_platform_index=has_platform_index)
    except ModuleError as e:
        return str(e)
    return None


def _avals(dtypes: Sequence[str], types: Sequence[str], prefix: str) -> tuple[Aval, ...]:
    # Where their number differs, the check of the types says so.
    tensors = [t for t in types if t.startswith("tensor<")]
    shapes = [_shape(t, f"{prefix}{i}") for i, t in enumerate(tensors)]
    shapes += [()] * (len(dtypes) - len(shapes))
    return tuple(Aval(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))


def _shape(kind: str, prefix: str) -> tuple[Dim, ...]:
    match = _TENSOR.match(kind)
    sizes = match.group(1).split("x")[:-1] if match else []
    return tuple(
        parse_dimension(f"{prefix}_{i}") if size == "?" else int(size)
        for i, size in enumerate(sizes)
    )
