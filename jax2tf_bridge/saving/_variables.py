"""Weights and lifted constants as variables of a SavedModel, and the values in its checkpoint.

While a model is traced and saved, its variables have no values, so memory holds the weights only
once, in the user's arrays. TensorFlow writes everything else and lists each variable in the object
graph; then the bridge appends the values.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import NARROW_FLOATS
from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import BridgeError, DTypeError, SavingError, format_bullets
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    TreeSpec,
    dtype_name,
    is_accepted_as,
)
from jax2tf_bridge.saved_model import (
    NewTensor,
    ProtoMessage,
    TensorSpec,
    append_tensors,
    bytes_field,
    is_fast,
    varint_field,
)
from jax2tf_bridge.signatures import PARAMS, WeightLeaf, match_weights
from jax2tf_bridge.to_tensorflow import (
    Key,
    cast_if_needed,
    constant_array,
    constant_key,
    op_dtype,
    tf_compat,
)
from jax2tf_bridge.weights.msgpack import byte_blocks

LITERT_VARIABLES = {
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "uint64": "int64",
    "float16": "float32",
    "bfloat16": "float32",
}
"""Maps each dtype that variables cannot have in LiteRT to the dtype that they have instead."""


@dataclass(frozen=True)
class SavedVariable:
    """Variable of a SavedModel, and its value.

    Attributes:
      collection: the dict of the saved object that holds it: "params", "constants" or "initial".
      leaf: its name and its value.
      variable: the variable that functions read; it may have no value until `hold_values`.
    """

    collection: str
    leaf: WeightLeaf
    variable: tf.Variable

    @property
    def name(self) -> str:
        """Name within its collection, "dense/kernel"."""
        return self.leaf.name

    @property
    def key(self) -> str:
        """Key in the checkpoint; it escapes "/" and "." in the name.

        See https://www.tensorflow.org/guide/checkpoint.
        """
        escaped = self.name.replace(".", "..").replace("/", ".S")
        return f"{self.collection}/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"


class Weights:
    """Weights of a SavedModel, one variable per leaf, shared by all signatures.

    Attributes:
      exist: whether the user passed weights.
    """

    def __init__(
        self,
        params: Any,
        trainable: bool | str | Sequence[str] = True,
        *,
        variable_dtypes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Begins without variables.

        Args:
          params: the weights, as for `match_leaves`.
          trainable: whether they are trainable, or prefixes of the names of those that are.
          variable_dtypes: maps dtypes that variables cannot have to the dtypes that they have
            instead.
        """
        self.exist = params is not None
        self._params, self._variable_dtypes = params, variable_dtypes
        self._trainable: bool | tuple[str, ...] = (
            trainable
            if isinstance(trainable, bool)
            else read_prefixes(trainable, "trainable", "True, False or ")
        )
        self._by_name: dict[str, SavedVariable] = {}
        self._leaves: dict[str, WeightLeaf] = {}
        self._trees: list[TreeSpec] = []

    def for_function(self, portable: PortableFunction) -> list[tf.Variable]:
        """Returns the variables for a function's first argument, in the order of its leaves.

        Raises:
          StructureError, ShapeError, DTypeError: the weights are not of the function's structure,
            shapes or dtypes; each difference is listed.
          SavingError: another function has weights of the same names.
        """
        tree = portable.first_argument
        leaves = match_weights(portable, self._params)
        is_known = tree in self._trees
        for leaf in leaves:
            name, aval = leaf.name, leaf.aval
            if name not in self._by_name:
                trained = is_trainable(name, aval, self._trainable)
                dtype = self._variable_dtypes.get(op_dtype(aval, leaf.path).name)
                saved_leaf = leaf if dtype is None else leaf.convert(dtype)
                variable = make_variable(saved_leaf, trainable=trained, name=name)
                self._by_name[name] = SavedVariable(PARAMS, saved_leaf, variable)
                self._leaves[name] = leaf
            elif not is_known and self._leaves[name].value is not leaf.value:
                path = self._leaves[name].path
                raise SavingError(
                    f"{leaf.path} of {portable.name} and {path} of another signature are two "
                    f"weights, and would both be named {name}: the functions were exported with "
                    "weights in different containers. Export all of them with the same containers."
                )
            elif self._leaves[name].aval.op_dtype != aval.op_dtype:
                raise DTypeError(
                    f"{leaf.path}: {portable.name} takes it as {aval.dtype}, and another signature "
                    f"as {self._leaves[name].aval.op_dtype}. Export all of them for one dtype."
                )
        self._trees.append(tree)
        return [self._by_name[leaf.name].variable for leaf in leaves]

    def weights(self) -> Sequence[SavedVariable]:
        """Lists all weights, in the order in which functions first took them.

        Raises:
          SavingError: `trainable` has a prefix that no weight's name has.
        """
        check_prefixes(list(self._by_name), self._trainable)
        return tuple(self._by_name.values())


def convert_stored(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts a tensor to the dtype of its variable, or back, as `convert_array` does."""
    if tensor.dtype == dtype:
        return tensor
    return tf.bitcast(tensor, dtype) if tensor.dtype.size == dtype.size else tf.cast(tensor, dtype)


def is_trainable(name: str, aval: Aval, trainable: bool | Sequence[str]) -> bool:
    """Returns whether a weight is trained.

    Args:
      name: its name.
      aval: its type.
      trainable: whether weights are trained, or prefixes of the names of those that are.
    """
    # TensorFlow has no gradients for narrow floats.
    if not aval.is_differentiable or aval.dtype in NARROW_FLOATS:
        return False
    if isinstance(trainable, bool):
        return trainable
    return any(has_prefix(name, prefix) for prefix in trainable)


def read_prefixes(
    value: Any, argument: str, alternatives: str = "", error: type[BridgeError] = SavingError
) -> tuple[str, ...]:
    """Returns the prefixes of weights' names that the user passed: one, or a list of them.

    Args:
      value: the user's value.
      argument: the argument's name, for messages.
      alternatives: the other values that the argument may have, for messages.
      error: the class of the error to raise.

    Raises:
      BridgeError: the value is neither a prefix nor a list of prefixes.

    >>> read_prefixes("params", "trainable")
    ('params',)
    """
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(n, str) for n in value):
        return tuple(value)
    raise error(
        f"{argument} must be {alternatives}a list of prefixes of names, as ['params']. "
        f"Got: {value!r:.200}."
    )


def check_prefixes(
    names: Sequence[str], prefixes: bool | Sequence[str], argument: str = "trainable"
) -> None:
    """Raises if an argument has a prefix that no weight's name has.

    Raises:
      SavingError: the text suggests what was probably meant.
    """
    for prefix in () if isinstance(prefixes, bool) else prefixes:
        if not any(has_prefix(name, prefix) for name in names):
            known = sorted({name.split("/")[0] for name in names})
            raise SavingError(
                f"{argument} has {prefix!r}, which is not a prefix of any weight's name"
                f"{did_you_mean(prefix, [*known, *names]) or '.'} "
                f"The names begin with: {', '.join(known) or 'nothing: there are no weights'}."
            )


class ConstantVariables:
    """Variables of lifted constants, shared by all portable functions.

    Attributes:
      variables: the variables by name.
      lifted: the constants that they hold, by the same names.
    """

    def __init__(self) -> None:
        self.variables: dict[str, SavedVariable] = {}
        self.lifted: dict[str, LiftedConstant] = {}
        self._by_key: dict[Key, tf.Variable] = {}

    def add(self, portable: PortableFunction) -> None:
        """Makes the missing variables for the constants of a portable function.

        Raises:
          ModuleError: the function lacks the value of a constant.
        """
        for constant in portable.lifted_constants:
            key = constant_key(constant)
            if key in self._by_key:
                continue
            plain = constant.name or "constant"
            numbered = (f"{plain}_{i}" for i in itertools.count(len(self.variables)))
            candidates = itertools.chain([plain], numbered)
            name = next(each for each in candidates if each not in self.variables)
            array, aval = constant_array(portable, constant), constant.aval
            if portable.target.for_converters and aval.dtype == "bool":
                aval = replace(aval, dtype="uint8")  # OpenVINO has no variables of bool
            leaf = WeightLeaf(f"constants[{name!r}]", name, aval, array)
            variable = make_variable(leaf, trainable=False, name=f"constants/{name}")
            self._by_key[key] = variable
            self.variables[name] = SavedVariable("constants", leaf, variable)
            self.lifted[name] = constant

    def tensors(self, portable: PortableFunction, saving: object) -> list[tf.Tensor]:
        """Returns the values of a function's constants, in the current graph."""
        return [
            cast_if_needed(
                self._by_key[constant_key(constant)].read_value(),
                tf.as_dtype(constant.aval.op_dtype),
            )
            for constant in portable.lifted_constants
        ]


def has_prefix(name: str, prefix: str) -> bool:
    """Returns whether a weight's name begins with the keys of a prefix ("dense" or "dense/")."""
    prefix = prefix.rstrip("/")
    return name == prefix or name.startswith(f"{prefix}/") or not prefix


def make_variable(leaf: WeightLeaf, *, trainable: bool, name: str) -> tf.Variable:
    """Makes the variable for an array, without a value if `write_values` will write it.

    That needs variables without values in TensorFlow, and fast checksums. Otherwise TensorFlow is
    faster, although it holds a copy.
    """
    dtype = op_dtype(leaf.aval, leaf.path)
    if is_fast():
        variable = tf_compat.make_uninitialized_variable(
            leaf.shape, dtype, trainable=trainable, name=name
        )
        if variable is not None:
            return variable
    return tf.Variable(leaf.array(), trainable=trainable, name=name, dtype=dtype)


def as_saved(leaf: Any, dtype: str, *, accepts_bfloat16: bool = False) -> Any:
    """Casts a leaf to a variable's dtype if `save` would accept it; else returns it unchanged.

    Args:
      leaf: the value.
      dtype: the dtype of the variable.
      accepts_bfloat16: as in `is_accepted_as`.
    """
    is_accepted = is_accepted_as(leaf, dtype, accepts_bfloat16=accepts_bfloat16)
    if dtype_name(leaf) == dtype or not is_accepted:
        return leaf
    return np.asarray(leaf).astype(tf.as_dtype(dtype).as_numpy_dtype)


_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# trackable_object_graph.proto
_NODES, _ATTRIBUTES, _CHECKPOINT_KEY = 1, 2, 3
# fingerprint.proto: the digest of the checkpoint's index, and (since TensorFlow 2.18) a random
# decimal number, so that each saved model has its own.
_CHECKPOINT, _UUID = 5, 7


def hold_values(variables: Sequence[SavedVariable]) -> None:
    """Initializes the variables that have no value yet, so that functions can read them."""
    for each in _iterate_uninitialized(variables):
        each.variable.assign(each.leaf.array())


def write_values(folder: Path, variables: Sequence[SavedVariable]) -> None:
    """Writes the values of uninitialized variables into a SavedModel that TensorFlow wrote.

    Raises:
      SavingError: TensorFlow lists a variable under another key, or an array changed its size.
    """
    if not variables:
        return
    prefix = str(folder / "variables" / "variables")
    tensors = {v.key: to_new_tensor(v.leaf) for v in _iterate_uninitialized(variables)}
    append_tensors(prefix, tensors)
    check_keys(prefix, variables)
    renew_fingerprint(folder)


def check_keys(prefix: str, variables: Sequence[SavedVariable]) -> None:
    """Checks that each key is in the checkpoint, and that TensorFlow will look for it.

    Raises:
      SavingError: TensorFlow has written another key.
    """
    reader = tf.train.load_checkpoint(prefix)
    graph = ProtoMessage(reader.get_tensor(_OBJECT_GRAPH), "the object graph of the variables")
    keys = reader.get_variable_to_shape_map().keys() & set(_read_object_keys(graph))
    missing = [f"{v.collection}/{v.name}: {v.key}" for v in variables if v.key not in keys]
    if missing:
        raise SavingError(
            "TensorFlow has written variables under other keys than expected:"
            f"{format_bullets(missing)}\nThis is a fault of jax2tf-bridge with TensorFlow "
            f"{tf.__version__}; please report it."
        )


def _iterate_uninitialized(variables: Sequence[SavedVariable]) -> Iterator[SavedVariable]:
    return (each for each in variables if not each.variable.is_initialized())


def to_new_tensor(leaf: WeightLeaf) -> NewTensor:
    """Describes the tensor to write; reads its bytes only when it is written."""
    dtype = op_dtype(leaf.aval, leaf.path)
    array_dtype = np.dtype(dtype.as_numpy_dtype)
    return NewTensor(
        TensorSpec(dtype.name, leaf.shape), lambda: byte_blocks(leaf.original_array(), array_dtype)
    )


def _read_object_keys(graph: ProtoMessage) -> Iterator[str]:
    for node in graph.messages(_NODES, "an object"):
        for attribute in node.messages(_ATTRIBUTES, "an attribute"):
            yield attribute.text_of(_CHECKPOINT_KEY)


def replace_checkpoint_digest(fingerprint: bytes, index: bytes) -> bytes:
    """Renews the fingerprint of a model for another index file of its checkpoint.

    Raises:
      FileFormatError: the fingerprint is damaged.
    """
    message = ProtoMessage(fingerprint, "the fingerprint", "fingerprint.pb")
    parts: list[bytes] = []
    for field in message.fields():
        if field.number == _CHECKPOINT:
            message.integer(field)  # refuses other kinds
            parts.append(varint_field(_CHECKPOINT, _digest(index)))
        elif field.number == _UUID:
            message.content(field)
            parts.append(bytes_field(_UUID, str(secrets.randbits(128))))
        else:
            parts.append(fingerprint[field.start : field.end])
    return b"".join(parts)


def renew_fingerprint(folder: Path) -> None:
    """Updates the fingerprint of a SavedModel, if it has one, to its current checkpoint."""
    file = folder / "fingerprint.pb"
    if not file.exists():
        return
    index = (folder / "variables" / "variables.index").read_bytes()
    data = replace_checkpoint_digest(file.read_bytes(), index)
    file.unlink()  # it may be a hard link to the file of another version
    file.write_bytes(data)


def _digest(data: bytes) -> int:
    """Computes FarmHash's Fingerprint64, as TensorFlow does."""
    row = tf.constant(np.frombuffer(data, np.uint8)[None])
    digest = tf.raw_ops.Fingerprint(data=row, method=b"farmhash64")
    return int.from_bytes(digest.numpy().tobytes(), "little")
