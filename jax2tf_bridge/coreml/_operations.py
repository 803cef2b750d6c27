"""Operations of TensorFlow that coremltools 9.0 lacks or converts wrongly, as operations of MIL.

The module is imported when a graph is converted, because coremltools is optional.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from coremltools.converters.mil import Builder, register_tf_op
from coremltools.converters.mil.mil import types


def _scalar(number: float, like: Any) -> np.ndarray:
    return np.array(number, types.nptype_from_builtin(like.dtype))


def _is_nan(node: Any, x: Any) -> Any:
    return Builder.not_equal(x=x, y=x, name=node.name)


def _ones_like(node: Any, x: Any) -> Any:
    if not x.rank:
        return Builder.const(val=_scalar(1, x), name=node.name)
    return Builder.fill(shape=Builder.shape(x=x), value=_scalar(1, x), name=node.name)


def _scatter_update(node: Any, x: Any, indices: Any, new: Any) -> Any:
    scatter = functools.partial(Builder.scatter_nd, indices=indices, mode="update")
    if x.dtype != types.bool:
        return scatter(data=x, updates=new, name=node.name)
    x, new = (Builder.cast(x=flags, dtype="int32") for flags in (x, new))
    return Builder.cast(x=scatter(data=x, updates=new), dtype="bool", name=node.name)


def _cast(node: Any, x: Any) -> Any:
    dtype = node.attr["DstT"]
    if dtype == types.bool:
        if x.dtype == types.bool:
            return Builder.identity(x=x, name=node.name)
        return Builder.not_equal(x=x, y=_scalar(0, x), name=node.name)
    floats = {types.fp16: "fp16", types.fp32: "fp32", types.fp64: "fp32"}
    return Builder.cast(x=x, dtype=floats.get(dtype, "int32"), name=node.name)


def _equal(node: Any, x: Any, y: Any) -> Any:
    if x.dtype != types.bool:
        return Builder.equal(x=x, y=y, name=node.name)
    return Builder.logical_not(x=Builder.logical_xor(x=x, y=y), name=node.name)


def _not_equal(node: Any, x: Any, y: Any) -> Any:
    if x.dtype != types.bool:
        return Builder.not_equal(x=x, y=y, name=node.name)
    return Builder.logical_xor(x=x, y=y, name=node.name)


def _select(node: Any, flag: Any, x: Any, y: Any) -> Any:
    if x.dtype == types.bool:
        chosen = Builder.logical_and(x=flag, y=x)
        other = Builder.logical_and(x=Builder.logical_not(x=flag), y=y)
        return Builder.logical_or(x=chosen, y=other, name=node.name)
    # coremltools infers the shape of a selection from x and y alone.
    if not tuple(flag.shape) == tuple(x.shape) == tuple(y.shape):
        zeros = functools.reduce(
            lambda left, right: Builder.add(x=left, y=right),
            (_zeros(operand, x) for operand in (flag, x, y)),
        )
        x, y = Builder.add(x=x, y=zeros), Builder.add(x=y, y=zeros)
        flag = Builder.logical_or(x=flag, y=Builder.not_equal(x=zeros, y=zeros))
    return Builder.select(cond=flag, a=x, b=y, name=node.name)


def _zeros(shaped: Any, like: Any) -> Any:
    """Makes zeros in the shape of one value and the dtype of another.

    Floats are negative zeros, which change no number that they are added to.
    """
    flags = shaped if shaped.dtype == types.bool else Builder.equal(x=shaped, y=shaped)
    numbers = Builder.cast(x=flags, dtype=types.builtin_to_string(like.dtype))
    return Builder.mul(x=numbers, y=_scalar(-0.0 if types.is_float(like.dtype) else 0, like))


def _reshape(node: Any, x: Any, shape: Any) -> Any:
    # coremltools makes scalars by reshape that do not have the type of other scalars.
    if x.rank and tuple(shape.shape) == (0,):
        return Builder.squeeze(x=x, axes=list(range(x.rank)), name=node.name)
    return Builder.reshape(x=x, shape=shape, name=node.name)


_CONVERSIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "Cast": _cast,
        "Equal": _equal,
        "IsNan": _is_nan,
        "NotEqual": _not_equal,
        "OnesLike": _ones_like,
        "Reshape": _reshape,
        "Select": _select,
        "SelectV2": _select,
        "TensorScatterUpdate": _scatter_update,
    }
)


@functools.cache
def register_operations() -> None:
    """Registers the operations with coremltools, for all graphs that this process converts."""

    def register(name: str, make: Callable[..., Any]) -> None:
        def convert(context: Any, node: Any) -> None:
            context.add(node.name, make(node, *(context[tensor] for tensor in node.inputs)))

        convert.__name__ = name  # coremltools registers functions by their names
        register_tf_op(convert, override=True)

    for name, make in _CONVERSIONS.items():
        register(name, make)
