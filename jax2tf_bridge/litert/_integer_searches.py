"""Shortens searches for extreme numbers in graphs whose numbers become integers.

Emitters write the index of a maximum so that it finds NaN: `argmax(x == max(x) | is_nan(x))`.
Integers have no NaN, and TensorFlow's quantizers would keep the flags in float32, or fail on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

_SEARCHES: Mapping[str, str] = MappingProxyType({"Max": "ArgMax", "Min": "ArgMin"})


def search_without_nan(graph: Any, *, by_flags: bool) -> None:
    """Replaces searches that find NaN by searches that do not.

    Args:
      graph: a GraphDef, which is changed in place.
      by_flags: whether to search for `x == max(x)`. The quantizer for int8 leaves the search in x
        itself in float32; the one for int16x8 fails on flags.
    """
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        makers = {node.name: node for node in nodes}
        for node in nodes:
            if node.op == "ArgMax":
                _shorten(node, makers, by_flags=by_flags)


def _shorten(search: Any, makers: Mapping[str, Any], *, by_flags: bool) -> None:
    either = _find_maker(search.input[0], "LogicalOr", makers)
    if either is None:
        return
    is_best = _find_maker(either.input[0], "Equal", makers)
    is_nan = _find_maker(either.input[1], "IsNan", makers)
    if is_best is None or is_nan is None or is_best.input[0] != is_nan.input[0]:
        return
    for reduction, operation in _SEARCHES.items():
        best = _find_maker(is_best.input[1], reduction, makers)
        if best is None or best.input[0] != is_nan.input[0]:
            continue
        axes = [_read_constant(name, makers) for name in (best.input[1], search.input[1])]
        if None in axes or axes[0] != axes[1]:
            continue
        if by_flags:
            search.input[0] = either.input[0]
        else:
            search.op = operation
            search.input[0] = is_nan.input[0]
            search.attr["T"].CopyFrom(is_nan.attr["T"])


def _find_maker(name: str, operation: str, makers: Mapping[str, Any]) -> Any | None:
    """Returns the operation of this kind that makes a tensor; None for another kind."""
    maker = makers.get(name.partition(":")[0])
    return maker if maker is not None and maker.op == operation else None


def _read_constant(name: str, makers: Mapping[str, Any]) -> list[int] | None:
    maker = _find_maker(name, "Const", makers)
    if maker is None:
        return None
    axes: list[int] = tf.make_ndarray(maker.attr["value"].tensor).reshape(-1).tolist()
    return axes
