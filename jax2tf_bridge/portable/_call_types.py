"""Types of the arguments and results of an op that calls a module."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._dtypes import DTYPES_BY_ELEMENT_TYPE
from jax2tf_bridge.portable._module_types import check_types
from shape_poly import Dim, parse_dimension

_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)")
_WHOLE_TENSOR = re.compile(_TENSOR.pattern + r"([a-z]\w*(?:<f\d+>)?)(?:, .*)?>")


def read_tensor_type(text: str) -> tuple[list[str], str] | None:
    """Splits an MLIR type into its sizes and its dtype; None if it is not a tensor of numbers.

    >>> read_tensor_type("tensor<?x3xf32>")
    (['?', '3'], 'float32')
    """
    match = _WHOLE_TENSOR.fullmatch(text)
    if match is None or match[2] not in DTYPES_BY_ELEMENT_TYPE:
        return None
    return match[1].split("x")[:-1], DTYPES_BY_ELEMENT_TYPE[match[2]]


def call_avals(
    arguments: Sequence[str],
    results: Sequence[str],
    module_types: tuple[Sequence[str], Sequence[str]],
    *,
    has_platform_index: bool,
) -> tuple[tuple[Aval, ...], tuple[Aval, ...]]:
    """Combines an op's dtypes with the shapes of its module's main function.

    Each open size becomes a variable named by its position: "x0_1" for the second dimension of the
    first argument.

    Args:
      arguments: the op's argument dtypes (Tin), by name.
      results: the op's result dtypes (Tout).
      module_types: the types of main's arguments and results, such as "tensor<?x3xf32>".
      has_platform_index: whether main's first argument is the platform index.
    """
    inputs = module_types[0][1:] if has_platform_index else module_types[0]
    return _make_avals(arguments, inputs, "x"), _make_avals(results, module_types[1], "y")


def call_problem(
    name: str,
    arguments: Sequence[str],
    results: Sequence[str],
    module_types: tuple[Sequence[str], Sequence[str]],
    *,
    has_platform_index: bool,
) -> str | None:
    """Says how an op's dtypes differ from its module's types; None if they agree.

    TensorFlow does not check this, and reads stray memory if they differ.
    """
    avals = call_avals(arguments, results, module_types, has_platform_index=has_platform_index)
    try:
        check_types(name, *avals, *module_types, has_platform_index=has_platform_index)
    except ModuleError as e:
        return str(e)
    return None


def _make_avals(dtypes: Sequence[str], types: Sequence[str], prefix: str) -> tuple[Aval, ...]:
    # If the numbers of dtypes and types differ, check_types reports it.
    tensors = [t for t in types if t.startswith("tensor<")]
    shapes = [_parse_shape(t, f"{prefix}{i}") for i, t in enumerate(tensors)]
    shapes += [()] * (len(dtypes) - len(shapes))
    return tuple(Aval(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))


def _parse_shape(kind: str, prefix: str) -> tuple[Dim, ...]:
    match = _TENSOR.match(kind)
    sizes = match.group(1).split("x")[:-1] if match else []
    return tuple(
        parse_dimension(f"{prefix}_{i}") if size == "?" else int(size)
        for i, size in enumerate(sizes)
    )
