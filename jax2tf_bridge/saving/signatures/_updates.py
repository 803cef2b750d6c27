"""New values of weights among the results of a signature's function."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, did_you_mean
from jax2tf_bridge.errors import DTypeError, SavingError, ShapeError, StructureError, format_bullets
from jax2tf_bridge.portable import Aval, PortableFunction, TreeSpec
from jax2tf_bridge.saving._variables import convert_stored
from jax2tf_bridge.signatures import PARAMS, as_op_aval

_ADVICE = "Return weights of the structure, shapes and dtypes that the function gets."


@dataclass(frozen=True)
class Results:
    """Results of a signature's function: its outputs, then the new values of weights.

    Attributes:
      outputs: the structure of the outputs.
      place: the path of the outputs in the results: "", or "[0]" if there are new values.
      updates: maps the path of each new value in the results, "[1]['w']", to the path of its
        weight, "params['w']", in the order of the results.
      positions: the positions of these weights among the leaves of the function's weights.
    """

    outputs: TreeSpec
    place: str
    updates: Mapping[str, str]
    positions: Sequence[int]

    @staticmethod
    def of(name: str, portable: PortableFunction, *, updates_params: bool) -> Results:
        """Divides the results of a function.

        Args:
          name: the signature's name.
          portable: the function; with new values, its result is the tuple (outputs, params).
          updates_params: whether it returns new values.

        Raises:
          SavingError: the function does not return such a tuple.
          StructureError, ShapeError, DTypeError: a new value has no weight, or is of another type.
        """
        tree = portable.out_tree
        if not updates_params:
            return Results(tree, "", {}, ())
        if tree.kind != "tuple" or len(tree.children) != 2:
            raise SavingError(
                f"The signature {name} has updates_params=True, so its function must return the "
                f"tuple (outputs, params) with the new weights. {portable.name} returns {tree}, "
                "where * is an array."
            )
        outputs, new = tree.children
        if not outputs.leaf_count:
            raise SavingError(
                f"The signature {name} has no outputs, so TensorFlow Serving and LiteRT would not "
                "run it. Return at least one beside the new weights, such as the loss."
            )
        weights = portable.first_argument
        positions = {path: i for i, path in enumerate(weights.leaf_paths(PARAMS))}
        paths = list(new.leaf_paths(PARAMS))
        unknown = [path for path in paths if path not in positions]
        start = f"The signature {name} cannot assign the new weights of {portable.name}:"
        if unknown:
            lines = [f"{path} is not a weight{did_you_mean(path, positions)}" for path in unknown]
            raise StructureError(f"{start}{format_bullets(lines)}\n{_ADVICE}")
        if not paths:
            raise StructureError(f"{start} it returns none. {_ADVICE}")
        old_avals = [portable.in_avals[positions[path]] for path in paths]
        _check_types(start, paths, old_avals, portable.out_avals[outputs.leaf_count :])
        updates = {f"[1]{path[len(PARAMS) :]}": path for path in paths}
        return Results(outputs, "[0]", updates, [positions[path] for path in paths])


def _check_types(
    start: str, paths: Sequence[str], old_avals: Sequence[Aval], new_avals: Sequence[Aval]
) -> None:
    lines = []
    error: type[Exception] = DTypeError
    for path, old, new in zip(paths, old_avals, new_avals, strict=True):
        if old == new:
            continue
        key_advice = _advise_key(old, new)
        if old.shape != new.shape and not key_advice:
            error = ShapeError
        old_text, new_text = (array_type_text(a.dtype, a.shape) for a in (old, new))
        lines.append(f"{path} is {old_text}, and its new value {new_text}{key_advice}")
    if lines:
        raise error(f"{start}{format_bullets(lines)}\n{_ADVICE}")


def _advise_key(old: Aval, new: Aval) -> str:
    """Returns advice if one of two types is a PRNG key and the other one its words, else ""."""
    if old.is_key == new.is_key or as_op_aval(old) != as_op_aval(new):
        return ""
    if old.is_key:
        return ": return the key itself, without jax.random.key_data"
    return ": return its words, jax.random.key_data(key), or make the weight a key (jax.random.key)"


def assign_all(
    pairs: Sequence[tuple[tf.Variable, tf.Tensor]], answer: Callable[[], dict[str, tf.Tensor]]
) -> dict[str, tf.Tensor]:
    """Assigns values to variables, and then computes an answer."""
    assignments = [
        variable.assign(convert_stored(value, variable.dtype), read_value=False)
        for variable, value in pairs
    ]
    with tf.control_dependencies(assignments):
        return answer()


class WeightLock:
    """Access to the weights of a model, without any lock.

    For models whose weights no signature changes, and for LiteRT, which runs one call at a time.
    """

    def run_alone(self, function: Callable[[], Any]) -> Any:
        """Calls a function that computes new weights; no other such function runs meanwhile."""
        return function()

    def access(self, function: Callable[[], Any]) -> Any:
        """Calls a function that reads all weights or assigns them, and does nothing else."""
        return function()


class UpdateLock(WeightLock):
    """Access to weights that several threads change and read.

    One lock keeps calls that change weights apart. The other lock is held only while weights are
    read or assigned: calls that only read see no half of a change, and do not wait for a whole one.

    The graph makes the locks when it runs, under names that are unique for each model.
    (tf.CriticalSection would make them when the graph is traced, and could not be saved.)
    """

    def __init__(self) -> None:
        self._name = f"jax2tf_bridge/{uuid.uuid4().hex}"

    def run_alone(self, function: Callable[[], Any]) -> Any:
        return self._hold("updates", function)

    def access(self, function: Callable[[], Any]) -> Any:
        return self._hold("weights", function)

    def _hold(self, lock_name: str, function: Callable[[], Any]) -> Any:
        """Calls a function within a lock, and returns its list or dict of tensors."""
        with tf.device("CPU:0"):
            mutex = tf.raw_ops.MutexV2(container="", shared_name=f"{self._name}/{lock_name}")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            results = function()
        with tf.control_dependencies(tf.nest.flatten(results)), tf.device("CPU:0"):
            # If an operation fails before this one, TensorFlow drops `lock`, which releases it.
            release = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        with tf.control_dependencies([release]):
            return tf.nest.map_structure(tf.identity, results)
