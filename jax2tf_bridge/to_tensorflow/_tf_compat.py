"""Private names of TensorFlow; no other module of this package uses any."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.errors import BridgeError, ModuleError, ShardingError

_XLA = "tensorflow.compiler.tf2xla.python.xla"
_WRAPPERS = "tensorflow.python.trackable.data_structures"

_CALL_MODULE = SeamName(_XLA, "call_module", "2.15 to 2.22", "nothing can be run: ModuleError")
_LIST_WRAPPER, _TUPLE_WRAPPER, _DICT_WRAPPER = (
    SeamName(_WRAPPERS, name, "2.15 to 2.22", "a wrapped container counts as a leaf")
    for name in ("ListWrapper", "_TupleWrapper", "_DictWrapper")
)
_SAVED_MODEL = SeamName(
    "tensorflow.core.protobuf.saved_model_pb2",
    "SavedModel",
    "2.15 to 2.22",
    "defaults of inputs cannot be saved: SavingError",
)

_SHARDING = SeamName(
    _XLA,
    "sharding",
    "2.15 to 2.22",
    "sharded functions cannot be called in graphs: ModuleError",
)
_DYNAMIC_UPDATE_SLICE = SeamName(
    _XLA,
    "dynamic_update_slice",
    "2.15 to 2.22",
    "LiteRT models cannot update slices at computed positions: UnsupportedByTargetError",
)
_OP_DEFINITIONS = SeamName(
    "tensorflow.python.framework.op_def_registry",
    "get",
    "2.15 to 2.22",
    "LiteRT models with operations that LiteRT lacks for a dtype are refused: "
    "UnsupportedByTargetError",
)
_STOP_RECORDING = SeamName(
    "tensorflow.python.eager.record",
    "stop_recording",
    "2.15 to 2.22",
    "TensorFlow differentiates each loop when it is created, and XLA cannot compile the result",
)
_WITHOUT_VALUE = SeamName(
    "tensorflow.python.ops.resource_variable_ops",
    "UninitializedVariable",
    "2.15 to 2.22",
    "while a model is saved, memory holds its weights a second time",
)
_FREEZE = SeamName(
    "tensorflow.python.framework.convert_to_constants",
    "convert_variables_to_constants_v2",
    "2.15 to 2.22",
    "no TensorFlow.js model can be written, and verify(locate=True) cannot read the tensors of a "
    "graph: ModuleError",
)
_FUNCTION_TO_GRAPH = SeamName(
    "tensorflow.python.framework.function_def_to_graph",
    "function_def_to_graph_def",
    "2.15 to 2.22",
    "no Core ML package can be written: ModuleError",
)
_LOGICAL_DEVICES = "tensorflow.python.compiler.xla.experimental.xla_sharding"
_TILE = SeamName(_LOGICAL_DEVICES, "tile", "2.15 to 2.22", "no tensor can be split: ShardingError")
_REPLICATE = SeamName(
    _LOGICAL_DEVICES, "replicate", "2.15 to 2.22", "no tensor can be replicated: ShardingError"
)
_SET_ATTRIBUTE = "_set_attr"
"""Method of graph operations that sets any attribute, TensorFlow 2.15 to 2.22."""

_TRACKABLE = "_trackable_children"
"""Method of every trackable object, TensorFlow 2.15 to 2.22. In other releases the user must name
the objects that functions need in `resources`."""

_REGISTERED_GRADIENT = "internal_grad_fn"
"""Name of the function under which tf.custom_gradient registers gradients, TensorFlow 2.15 to 2.22.
With another name, a SavedModel's second-order gradient fails with TF's own message, "No gradient
defined for operation"."""

SEAM: Sequence[SeamName] = (
    _CALL_MODULE,
    _LIST_WRAPPER,
    _TUPLE_WRAPPER,
    _DICT_WRAPPER,
    _SAVED_MODEL,
    _SHARDING,
    _DYNAMIC_UPDATE_SLICE,
    _OP_DEFINITIONS,
    _STOP_RECORDING,
    _WITHOUT_VALUE,
    _FREEZE,
    _FUNCTION_TO_GRAPH,
)
LOGICAL_DEVICES_SEAM: Sequence[SeamName] = (_TILE, _REPLICATE)
"""Names that only `annotate_logical_devices` uses."""


def _require(name: SeamName, problem: str, error: type[BridgeError] = ModuleError) -> Any:
    """Returns an object of TensorFlow; raises an error about the problem if this TF lacks it."""
    value = name.get()
    if value is None:
        raise error(f"TensorFlow {tf.__version__} {problem}. Use a release from {name.releases}.")
    return value


def call_module(args: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Adds an XlaCallModule op on `args`; attributes that this TF does not know are left out.

    Raises:
      ModuleError: this TF has no XlaCallModule.
    """
    op = _require(_CALL_MODULE, "has no XlaCallModule op")
    parameters = _list_parameters(op)
    return list(op(args, **{k: v for k, v in attributes.items() if k in parameters}))


def add_xla_sharding(
    value: tf.Tensor, sharding: bytes, attributes: Mapping[str, bytes]
) -> tf.Tensor:
    """Adds an XlaSharding op to a tensor of a graph.

    Args:
      value: the tensor.
      sharding: a serialized xla.OpSharding.
      attributes: more serialized shardings, by the attribute names that TensorFlow's passes read.

    Raises:
      ModuleError: this TF has no XlaSharding.
    """
    op = _require(_SHARDING, "has no XlaSharding op, which sharded functions need")
    result = op(value, sharding=sharding)
    for name, content in attributes.items():
        getattr(result.op, _SET_ATTRIBUTE)(name, tf.compat.v1.AttrValue(s=content))
    return result


def annotate_logical_devices(tensor: Any, tiles: Sequence[int] | None) -> Any:
    """Passes a tensor through an XlaSharding op, which no public TensorFlow function creates.

    Args:
      tensor: a tensor in a graph.
      tiles: the number of parts of each dimension; devices are numbered in row-major order. None
        puts a copy on each device.

    Raises:
      ShardingError: this TF has no such op.
    """
    name = _REPLICATE if tiles is None else _TILE
    problem = "cannot annotate tensors for XLA, as split_to_logical_devices does"
    function = _require(name, problem, ShardingError)
    if tiles is None:
        return function(tensor, use_sharding_op=True)
    devices = np.arange(int(np.prod(tiles))).reshape(tiles)
    return function(tensor, devices, use_sharding_op=True)


def get_dynamic_update_slice() -> Any:
    """Returns the function that adds an XlaDynamicUpdateSlice op, or None if this TF has none.

    It takes the tensor, the slice, and the start indices. LiteRT has a built-in for the op.
    """
    return _DYNAMIC_UPDATE_SLICE.get()


def find_op_definition(kind: str) -> Any:
    """Returns the OpDef of a kind of operation; None if this TF lacks it or its registry."""
    get = _OP_DEFINITIONS.get()
    return None if get is None else get(kind)


def freeze(function: Any, *, aggressive_inlining: bool) -> Any:
    """Returns a concrete function with constants for its variables, and without calls.

    Loops and branches stay calls of functions.

    Args:
      function: a concrete function.
      aggressive_inlining: whether to inline functions that TensorFlow would keep for their side
        effects.

    Raises:
      ModuleError: this TF cannot do it.
    """
    convert = _require(_FREEZE, "cannot replace variables by constants and inline functions")
    return convert(function, lower_control_flow=False, aggressive_inlining=aggressive_inlining)


def function_to_graph(
    function: Any, arguments: Sequence[tf.TensorShape]
) -> tuple[Any, Mapping[str, str]]:
    """Makes the graph of a function in a graph's library.

    Args:
      function: its FunctionDef.
      arguments: the shapes of its arguments.

    Returns:
      A GraphDef without a library, and the names of its tensors by their names in the function.

    Raises:
      ModuleError: this TF cannot do it.
    """
    problem = "cannot read the functions of a graph, as writing a Core ML package does"
    graph, names = _require(_FUNCTION_TO_GRAPH, problem)(function, [*arguments])
    return graph, names


def pause_recording() -> AbstractContextManager[Any]:
    """Returns a context in which gradient tapes record no operations.

    A custom gradient replaces their gradients. If a tape recorded them, TensorFlow would
    differentiate each loop and branch when it is created.
    """
    stop = _STOP_RECORDING.get()
    return nullcontext() if stop is None else stop()


def make_uninitialized_variable(
    shape: Sequence[int], dtype: tf.DType, *, trainable: bool, name: str
) -> tf.Variable | None:
    """Creates a variable that uses no memory until it is assigned; None if this TF cannot.

    Functions that read the variable can be traced. tf.saved_model.save adds it to the object graph,
    but writes no value.
    """
    make = _WITHOUT_VALUE.get()
    if make is None:
        return None
    return make(shape=list(shape), dtype=dtype, trainable=trainable, name=name)


@functools.lru_cache(maxsize=1)
def _list_parameters(op: Any) -> frozenset[str]:
    return frozenset(inspect.signature(op).parameters)


def unwrap_containers(value: Any) -> Any:
    """Removes the wrappers that a tf.Module puts around containers, at any depth.

    Other values are returned unchanged.
    """
    if not is_wrapper(value):
        return value
    inner = getattr(value, "__wrapped__", value)
    if isinstance(value, Mapping):
        # Copied to keep its type: an OrderedDict, or a defaultdict with its factory.
        plain = copy.copy(inner)
        plain.update((k, unwrap_containers(v)) for k, v in value.items())
        return plain
    children = [unwrap_containers(v) for v in value]
    if isinstance(value, tuple):
        return type(inner)(*children) if hasattr(inner, "_fields") else tuple(children)
    return children


def is_wrapper(value: Any) -> bool:
    """Returns whether a value is a wrapper that TF puts around a container in a module."""
    if type(value) in (tuple, list, dict) or not isinstance(value, (tuple, list, dict)):
        return False
    return isinstance(value, tuple(kind for kind in wrapper_types() if kind is not None))


def wrapper_types() -> tuple[type | None, type | None, type | None]:
    """Returns the wrapper classes of lists, tuples and dicts; None for those that this TF lacks."""
    return _LIST_WRAPPER.get(), _TUPLE_WRAPPER.get(), _DICT_WRAPPER.get()


def is_tracing_gradient_to_save() -> bool:
    """Returns whether tf.saved_model.save is tracing a tf.custom_gradient to save it.

    It does so by wrapping the registered gradient function in a tf.function.
    """
    # The default graph of eager mode is not a FuncGraph, and has no name.
    return getattr(tf.compat.v1.get_default_graph(), "name", "") == _REGISTERED_GRADIENT


def is_trackable(value: object) -> bool:
    """Returns whether TensorFlow can save an object with a model: a table, variable or module."""
    return hasattr(value, _TRACKABLE)


class _IdentityIndexedList(list[Any]):
    """The inputs of a graph, a list whose `index` finds tensors by identity.

    Graph tensors are equal only if they are identical, but TensorFlow's comparison of two tensors
    is slow.
    """

    def index(self, value: Any, *bounds: Any) -> int:
        if bounds or not isinstance(value, tf.Tensor):
            return super().index(value, *bounds)
        places: dict[int, int] = getattr(self, "places", {})
        if len(places) != len(self):  # the list has grown since the last call
            places = self.places = {id(tensor): i for i, tensor in enumerate(self)}
        place = places.get(id(value))
        if place is None or self[place] is not value:
            raise ValueError(f"{value!r} is not in the list")
        return place


def find_inputs_by_identity(tensors: Iterable[Any]) -> None:
    """Makes the lookup of inputs fast in the graphs of these tensors.

    tf.saved_model.save looks up each tensor that a gradient needs among the inputs. With an
    ordinary list, the time grows with the square of the number of weights.
    """
    for tensor in tensors:
        graph: Any = None if hasattr(tensor, "numpy") else getattr(tensor, "graph", None)
        if type(getattr(graph, "inputs", None)) is list:
            graph.inputs = _IdentityIndexedList(graph.inputs)


def saved_model_message() -> Any:
    """Returns the protobuf class of saved_model.pb; None if this TF has none."""
    return _SAVED_MODEL.get()
