"""Chooses sizes and values of inputs for an example request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import is_integer, kind_of
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.saved_model import iterate_input_sizes
from jax2tf_bridge.serving_requests._example_request import ExampleInput, Scalar
from shape_poly import Dim

Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

_TEXT = b"some text"


@dataclass(frozen=True, eq=False)
class SignatureInput:
    """Input of a signature.

    Attributes:
      dtype: the name of the dtype.
      shape: a size, an expression of dimension variables, or None for each dimension; None if the
        rank is unknown.
      default: the value that is used if callers omit it; None if they may not.
      pad_value: the value that the buckets pad it with.
    """

    dtype: str
    shape: tuple[Dim | None, ...] | None
    default: np.ndarray[Any, Any] | None = None
    pad_value: complex = 0


def choose_inputs(
    signature: str,
    inputs: Mapping[str, SignatureInput],
    portable: PortableFunction | None,
    example: Arrays | None,
) -> dict[str, ExampleInput]:
    """Chooses a value for each input: of the example, the default, or ones.

    Args:
      signature: the name of the signature, for messages.
      inputs: its inputs by name.
      portable: its function, whose constraints the sizes satisfy; None if it is unknown. Then each
        open size is 1.
      example: the values of the inputs in a warm-up request; None without one.

    Raises:
      ShapeError: no sizes were found that satisfy the constraints.
    """
    if example is not None and inputs.keys() <= example.keys():
        shapes = {name: tuple(example[name].shape) for name in inputs}
    else:
        example = {}
        shapes = _choose_shapes(signature, inputs, portable)
    return {
        name: _choose_input(name, inputs[name], shape, example.get(name))
        for name, shape in shapes.items()
    }


def _choose_shapes(
    signature: str, inputs: Mapping[str, SignatureInput], portable: PortableFunction | None
) -> dict[str, tuple[int, ...]]:
    shapes = {
        name: tuple(size for size in each.shape if size is not None)
        for name, each in inputs.items()
        if each.shape is not None and None not in each.shape
    }
    # A preprocess may take sizes that are not those of the function.
    if portable is not None and shapes.keys() == inputs.keys():
        return next(iterate_input_sizes(signature, portable, shapes))
    return {
        name: (1,)
        if each.shape is None
        else tuple(size if isinstance(size, int) else 1 for size in each.shape)
        for name, each in inputs.items()
    }


def _choose_input(
    name: str, kind: SignatureInput, shape: tuple[int, ...], example: Any | None
) -> ExampleInput:
    is_optional = kind.default is not None
    if example is not None and not (is_optional and is_zero(example)):
        return ExampleInput.of_array(kind.dtype, example, is_optional=is_optional)
    if kind.default is not None:
        return ExampleInput.of_array(kind.dtype, kind.default, is_optional=True)
    return ExampleInput(kind.dtype, shape, (_choose_value(name, kind),))


def _choose_value(name: str, kind: SignatureInput) -> Scalar:
    """Chooses a number that is not padding: 1 also is an id, a length, and real in a mask."""
    what = kind_of(kind.dtype)
    if what is None:
        return _TEXT
    if what == "complex":
        return 1 + 0j
    number = 1
    if kind.pad_value and (what == "bool" or "mask" in name.lower()):
        number = 0
    elif kind.pad_value == 1:
        number = 2
    if what == "bool":
        return bool(number)
    return number if is_integer(kind.dtype) else float(number)


def has_values(request: Arrays) -> bool:
    """Returns whether a warm-up request holds more than the zeros that `save` makes up."""
    return not all(map(is_zero, request.values()))


def is_zero(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether all elements are zeros or empty texts."""
    # Zeros that repeat one element may be larger than the memory.
    elements = array if any(array.strides) else array.flat[:1]
    return not np.any(elements)
