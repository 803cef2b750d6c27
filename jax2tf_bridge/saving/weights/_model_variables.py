"""Finds the variables of a model by name: of modules, Keras, loaded SavedModels, trees."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import StructureError

# Modules are trackable objects, and so are models that tf.saved_model.load read.
_TRACKABLE: type = tf.Module.__bases__[0]
# Keras exports a second variable for each below this attribute, which nothing reads.
_SECOND = "_all_variables"
# Attribute of boxes around a single value: nnx.Variable, linen.Partitioned.
_IN_A_BOX = "/value"


@dataclass(frozen=True)
class NamedVariable:
    """Variable of a model.

    Attributes:
      names: its possible names, the likeliest first: the attributes that lead to it, or its name
        in TensorFlow or Keras.
      variable: the variable of TensorFlow or Keras.
    """

    names: tuple[str, ...]
    variable: Any

    @property
    def dtype(self) -> tf.DType:
        """Its dtype; Keras has its name."""
        return tf.as_dtype(self.variable.dtype)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its sizes; None where values of any size can be assigned."""
        return tuple(tf.TensorShape(self.variable.shape).as_list())


def saved_weights(model: Any) -> dict[str, NamedVariable] | None:
    """Returns the weights of a loaded model that `save` wrote, by name; None for other models.

    Weights in boxes have a second name without the box, as in state dicts of flax.nnx.
    """
    if isinstance(model, tf.Module) or not isinstance(model, _TRACKABLE):
        return None
    params = getattr(model, "params", None)
    written = ("constants", "gradients", "trainable_variables", "variables")
    if not isinstance(params, Mapping) or not all(hasattr(model, name) for name in written):
        return None
    return {
        name: NamedVariable(tuple(dict.fromkeys((name, name.removesuffix(_IN_A_BOX)))), variable)
        for name, variable in params.items()
    }


def model_variables(model: Any) -> dict[str, NamedVariable]:
    """Returns the variables of a model by their likeliest names.

    Args:
      model: a tf.Module, a Keras model or layer, a model that tf.saved_model.load read, or a tree
        (mappings, lists, tuples) of variables and of these.

    Raises:
      StructureError: it has no variables.
    """
    variables_by_id: dict[int, NamedVariable] = {}
    for names, variable in itertools.chain(_walk(model), _iterate_listed(model)):
        known = variables_by_id.get(id(variable))
        # A second way to a variable is a second name.
        before = known.names if known else ()
        variables_by_id[id(variable)] = NamedVariable(
            tuple(dict.fromkeys([*before, *names])), variable
        )
    if not variables_by_id:
        raise StructureError(
            f"The {type(model).__name__} has no variables. Expected a tf.Module, a Keras model, a "
            "loaded SavedModel or a tree of tf.Variables; a model of Keras has them once it was "
            "built or called."
        )
    return _by_name(list(variables_by_id.values()))


def _by_name(found: Sequence[NamedVariable]) -> dict[str, NamedVariable]:
    others = {n for v in found if not _is_second(v) for n in _own_names(v.variable)}
    variables: dict[str, NamedVariable] = {}
    for variable in found:
        if _is_second(variable) and not others.isdisjoint(_own_names(variable.variable)):
            continue
        name = plain = variable.names[0]
        for number in itertools.count(1):
            if name not in variables:
                break
            name = f"{plain}_{number}"
        variables[name] = variable
    return variables


def _is_second(variable: NamedVariable) -> bool:
    """Returns whether only Keras' list of all variables leads to it, which nothing reads."""
    return _SECOND in variable.names[0].split("/")


def _walk(root: Any) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields every reachable variable with its names, those behind fewer attributes first."""
    count = itertools.count()
    # Private attributes come last: trackers keep what public ones name there as well.
    queue: list[tuple[int, int, int, str, Any]] = [(0, 0, next(count), "", root)]
    entered = set()
    while queue:
        private, depth, _, path, value = heapq.heappop(queue)
        if is_variable(value):
            yield [*([path] if path else []), *_own_names(value)], value
            continue
        if id(value) in entered:
            continue
        entered.add(id(value))
        if _is_keras(value) and _keras_weights(value) is not None:
            for names, variable in _keras_variables(value):
                yield [f"{path}/{name}" if path else name for name in names], variable
            continue
        for key, child in _children(value):
            below = f"{path}/{key}" if path else key
            hidden = private + key.startswith("_")
            heapq.heappush(queue, (hidden, depth + 1, next(count), below, child))


def _children(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), child) for key, child in value.items()]
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return list(zip(fields, value, strict=True))
    if isinstance(value, (list, tuple)):
        return [(str(index), child) for index, child in enumerate(value)]
    if isinstance(value, _TRACKABLE):
        return [(k, v) for k, v in vars(value).items() if not k.startswith("_self_")]
    return []


def _iterate_listed(model: Any) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields the variables that a model lists, by their own names."""
    listed = () if _is_keras(model) else getattr(model, "variables", ())
    if isinstance(listed, (list, tuple)):
        for variable in filter(is_variable, listed):
            yield _own_names(variable), variable


def _keras_variables(model: Any) -> Iterator[tuple[Sequence[str], Any]]:
    """Yields the weights of a Keras model or layer, also without the prefix of the model's name."""
    prefix = f"{model.name}/"
    for variable in _keras_weights(model) or ():
        names = _own_names(variable)
        yield [*names, *(n.removeprefix(prefix) for n in names if n.startswith(prefix))], variable


def _keras_weights(value: Any) -> Sequence[Any] | None:
    """Returns the variables of a Keras object; None if it does not list them."""
    # Optimizers and metrics have no weights; some of those that TensorFlow loads list nothing.
    name = "weights" if hasattr(type(value), "weights") else "variables"
    try:
        listed = getattr(value, name, None)
    except ValueError:  # Keras 2, of a model that was not built
        return ()
    return listed if isinstance(listed, (list, tuple)) else None


def _own_names(variable: Any) -> list[str]:
    """Returns Keras 3's path, or TensorFlow's name without the number of an output."""
    path = getattr(variable, "path", None)
    return [path if isinstance(path, str) else variable.name.partition(":")[0]]


def is_variable(value: Any) -> bool:
    """Checks for a variable of TensorFlow or of Keras."""
    # Keras's optimizers assign, too.
    is_keras = _is_keras(value) and hasattr(value, "assign") and hasattr(value, "shape")
    return isinstance(value, tf.Variable) or is_keras


def _is_keras(value: Any) -> bool:
    """Checks for a class of Keras, without loading Keras."""
    modules = {cls.__module__.partition(".")[0] for cls in type(value).__mro__}
    return bool(modules & {"keras", "tf_keras"}) and hasattr(value, "name")
