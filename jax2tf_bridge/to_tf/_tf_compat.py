"""TensorFlow's private names that building functions uses: all of them, and nowhere else."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils._private_names import SeamName
from jax2tf_bridge.errors import ModuleError

_XLA = "tensorflow.compiler.tf2xla.python.xla"
_WRAPPERS = "tensorflow.python.trackable.data_structures"

_CALL_MODULE = SeamName(_XLA, "call_module", "2.15 to 2.22", "nothing can be run: ModuleError")
_LIST_WRAPPER = SeamName(_WRAPPERS, "ListWrapper", "2.15 to 2.22", "it counts as a leaf")
_TUPLE_WRAPPER = SeamName(_WRAPPERS, "_TupleWrapper", "2.15 to 2.22", "it counts as a leaf")
_DICT_WRAPPER = SeamName(_WRAPPERS, "_DictWrapper", "2.15 to 2.22", "it counts as a leaf")

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
    "updates of slices at computed places have no form in LiteRT: UnsupportedByTargetError",
)
_OP_DEFINITIONS = SeamName(
    "tensorflow.python.framework.op_def_registry",
    "get",
    "2.15 to 2.22",
    "LiteRT models of dtypes that LiteRT moves no elements of are refused: "
    "UnsupportedByTargetError",
)
_STOP_RECORDING = SeamName(
    "tensorflow.python.eager.record",
    "stop_recording",
    "2.15 to 2.22",
    "TensorFlow differentiates loops in vain, and XLA cannot compile them",
)
_WITHOUT_VALUE = SeamName(
    "tensorflow.python.ops.resource_variable_ops",
    "UninitializedVariable",
    "2.15 to 2.22",
    "while a model is saved, memory holds its weights a second time",
)
_SET_ATTRIBUTE = "_set_attr"
"""What operations in a graph have for attributes beyond those of their kind, in 2.15 to 2.22."""

_TRACKABLE = "_trackable_children"
"""What all has that TensorFlow saves with a model, in 2.15 to 2.22; without it, what a user's
functions need has to be named in `resources`."""

_REGISTERED_GRADIENT = "internal_grad_fn"
"""The name of that function in 2.15 to 2.22; by another name a SavedModel's second-order gradient
ends with TF's own message, "No gradient defined for operation"."""

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
)


def call_module(args: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Adds an XlaCallModule op on `args`, without attributes that this TF does not know.

    Raises:
      ModuleError: this TF has no XlaCallModule.
    """
    op = _CALL_MODULE.get()
    if op is None:
        raise ModuleError(
            f"TensorFlow {tf.__version__} has no XlaCallModule op. Use TensorFlow 2.15 or newer."
        )
    known = _parameters(op)
    results = op(args, **{k: v for k, v in attributes.items() if k in known})
    return list(results)


def xla_sharding(value: tf.Tensor, sharding: bytes, attributes: Mapping[str, bytes]) -> tf.Tensor:
    """Adds an XlaSharding op to a tensor of a graph.

    Args:
      value: the tensor.
      sharding: a serialized xla.OpSharding.
      attributes: more of the kind, by the names that TensorFlow's passes look for.

    Raises:
      ModuleError: this TF has no XlaSharding.
    """
    op = _SHARDING.get()
    if op is None:
        raise ModuleError(
            f"TensorFlow {tf.__version__} has no XlaSharding op, which sharded functions need."
        )
    result = op(value, sharding=sharding)
    for name, content in attributes.items():
        getattr(result.op, _SET_ATTRIBUTE)(name, tf.compat.v1.AttrValue(s=content))
    return result


def dynamic_update_slice() -> Any:
    """Returns the function that adds an XlaDynamicUpdateSlice op, which LiteRT has a built-in for.

    It takes the tensor, the slice, and the place. None if this TF has none.
    """
    return _DYNAMIC_UPDATE_SLICE.get()


def operation_definition(kind: str) -> Any:
    """Returns the OpDef of a kind of operation; None if this TF has none, or does not tell."""
    get = _OP_DEFINITIONS.get()
    return None if get is None else get(kind)


def not_recorded() -> AbstractContextManager[Any]:
    """Makes operations of which no tape takes note, as those are that a custom gradient replaces.

    For a tape TensorFlow would differentiate each loop and branch when it is made.
    """
    stop = _STOP_RECORDING.get()
    return nullcontext() if stop is None else stop()


def variable_without_value(
    shape: Sequence[int], dtype: tf.DType, *, trainable: bool, name: str
) -> tf.Variable | None:
    """Makes a variable that takes no memory until a value is assigned to it.

    Functions that read it can be traced; tf.saved_model.save notes it in the object graph, and
    writes no value. None if this TF has none.
    """
    make = _WITHOUT_VALUE.get()
    if make is None:
        return None
    return make(shape=list(shape), dtype=dtype, trainable=trainable, name=name)


@functools.lru_cache(maxsize=1)
def _parameters(op: Any) -> frozenset[str]:
    return frozenset(inspect.signature(op).parameters)


def unwrapped(value: Any) -> Any:
    """Takes a container out of the wrapper in which a tf.Module keeps it, at any depth.

    Everything else comes back as it is.
    """
    if not is_wrapper(value):
        return value
    inner = getattr(value, "__wrapped__", value)
    if isinstance(value, Mapping):
        # A copy, for the sake of its kind: an OrderedDict, a defaultdict with its factory.
        plain = copy.copy(inner)
        plain.update((k, unwrapped(v)) for k, v in value.items())
        return plain
    children = [unwrapped(v) for v in value]
    if isinstance(value, tuple):
        return type(inner)(*children) if hasattr(inner, "_fields") else tuple(children)
    return children


def is_wrapper(value: Any) -> bool:
    """Tells wrappers around a container, which TF puts into attributes of modules."""
    if type(value) in (tuple, list, dict) or not isinstance(value, (tuple, list, dict)):
        return False
    return isinstance(value, tuple(kind for kind in wrapper_types() if kind is not None))


def wrapper_types() -> tuple[type | None, type | None, type | None]:
    """Returns the wrappers of lists, tuples and dicts; None for those that this TF lacks."""
    return _LIST_WRAPPER.get(), _TUPLE_WRAPPER.get(), _DICT_WRAPPER.get()


def is_tracing_gradient_to_save() -> bool:
    """Tells whether tf.saved_model.save is tracing a tf.custom_gradient for what it writes.

    It wraps the function under which the gradient is registered in a tf.function.
    """
    # The graph that eager mode has by default is no FuncGraph, and has no name.
    return getattr(tf.compat.v1.get_default_graph(), "name", "") == _REGISTERED_GRADIENT


def is_trackable(value: object) -> bool:
    """Tells what TensorFlow can save with a model: a table, a variable, a module."""
    return hasattr(value, _TRACKABLE)


class _FoundByIdentity(list[Any]):
    """Inputs of a graph, which finds a tensor as a list does, without comparing all others.

    Tensors of a graph are equal where they are the same one, and TensorFlow takes long to see for
    each pair that it is so.
    """

    def index(self, value: Any, *bounds: Any) -> int:
        if bounds or not isinstance(value, tf.Tensor):
            return super().index(value, *bounds)
        places: dict[int, int] = getattr(self, "places", {})
        if len(places) != len(self):
            places = self.places = {id(each): i for i, each in enumerate(self)}
        place = places.get(id(value))
        if place is None or self[place] is not value:
            raise ValueError(f"{value!r} is not in the list")
        return place


def find_inputs_by_identity(tensors: Iterable[Any]) -> None:
    """Lets the inputs of the graphs that tensors are of be found in no time.

    tf.saved_model.save looks for each tensor that a gradient needs among them. Otherwise the time
    for that grows with the square of the number of weights.
    """
    for tensor in tensors:
        graph: Any = None if hasattr(tensor, "numpy") else getattr(tensor, "graph", None)
        if type(getattr(graph, "inputs", None)) is list:
            graph.inputs = _FoundByIdentity(graph.inputs)


def saved_model_message() -> Any:
    """Returns the class of the message that saved_model.pb holds; None where there is none."""
    return _SAVED_MODEL.get()
