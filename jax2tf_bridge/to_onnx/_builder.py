"""The builder of ONNX graphs: TensorFlow's functions, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, ModuleType
from typing import Any

from jax2tf_bridge.bytecode import InlinedCall
from jax2tf_bridge.emitters import NoOperationError
from jax2tf_bridge.to_onnx import (
    _arithmetic,
    _bits,
    _complex,
    _contractions,
    _control_flow,
    _fake_quantization,
    _movement,
    _reductions,
)
from jax2tf_bridge.to_onnx._complex import has_complex, make_complex
from jax2tf_bridge.to_onnx._functions import list_names
from jax2tf_bridge.to_onnx._graph import DTYPES, OnnxDType, OnnxGraph


def _index_functions(*modules: ModuleType) -> Mapping[str, Callable[..., Any]]:
    return MappingProxyType(
        {
            name: call
            for module in modules
            for value in vars(module).values()
            for call in (value if isinstance(value, tuple) else (value,))
            for name in list_names(call)
        }
    )


_MODULES = (
    *(_arithmetic, _bits, _contractions, _control_flow, _fake_quantization),
    *(_movement, _reductions),
)
_FUNCTIONS = MappingProxyType({**_index_functions(*_MODULES), "complex": make_complex})
"""The functions by the names that they have in TensorFlow."""
_COMPLEX_FUNCTIONS = _index_functions(_complex)
"""Those for complex arguments."""
_FOR_BOTH = frozenset(
    {"shape", "constant", "convert_to_tensor", "is_tensor", "get_static_value", "as_dtype"}
    | {"zeros", "ones", "ones_like", "stop_gradient", "cond", "while_loop"}
)
"""Functions that treat complex arguments like others."""


def find_function(graph: OnnxGraph, name: str) -> Callable[..., Any]:
    """Returns the function of a name, which adds nodes to a graph.

    The function raises NoOperationError if ONNX has no such operation.
    """

    def call(*args: Any, **options: Any) -> Any:
        is_complex = has_complex([*args, *options.values()]) and name not in _FOR_BOTH
        function = (_COMPLEX_FUNCTIONS if is_complex else _FUNCTIONS).get(name)
        if function is None:
            what = " for complex numbers" if is_complex else ""
            raise NoOperationError(f"ONNX has nothing like TensorFlow's {name}{what}")
        return function(graph, *args, **options)

    return call


class OnnxBuilder:
    """Maker of ONNX operations, which emitters call in place of TensorFlow."""

    def __init__(self, graph: OnnxGraph) -> None:
        """Stores the graph that grows."""
        self.graph = graph

    def find(self, name: str) -> Callable[..., Any]:
        """Returns the function of a name, such as "math.log"."""
        if name == "name_scope":
            return self.graph.in_scope
        return find_function(self.graph, name)

    def find_dtype(self, name: str) -> OnnxDType:
        """Returns the dtype of a name."""
        if name not in DTYPES:
            raise NoOperationError(f"ONNX Runtime does not compute with {name}")
        return DTYPES[name]

    def in_calls(self, calls: Sequence[InlinedCall]) -> AbstractContextManager[None]:
        """Marks new nodes as parts of calls, the outermost first."""
        return self.graph.in_calls(tuple(calls))
