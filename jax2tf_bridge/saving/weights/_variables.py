"""Weights and lifted constants as variables of a SavedModel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import NARROW_FLOATS
from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import BridgeError, DTypeError, SavingError, make_mismatch_error
from jax2tf_bridge.portable import Aval, LiftedConstant, PortableFunction, TreeSpec
from jax2tf_bridge.saved_model import is_fast
from jax2tf_bridge.saving.weights._params import PathWeights, leaf_keys, leaves_for
from jax2tf_bridge.to_tensorflow import (
    Key,
    can_become,
    can_hold_number,
    cast_if_needed,
    constant_array,
    constant_key,
    dtype_name,
    is_accepted_as,
    op_dtype,
    tf_compat,
)
from jax2tf_bridge.weights.msgpack import host_array, is_jax_array
from shape_poly import shape_text

PARAMS = "params"

LITERT_VARIABLES = {
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "uint64": "int64",
    "float16": "float32",
    "bfloat16": "float32",
}
"""Maps dtypes to those of variables that LiteRT has in their place."""


@dataclass(frozen=True)
class SavedVariable:
    """Variable of a SavedModel, and its value.

    Attributes:
      collection: the dict of the saved object that holds it: "params" or "constants".
      leaf: its name and its value.
      variable: the variable that functions read; it may have no value yet, see `_checkpoint`.
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
    """Weights of a SavedModel, one variable per leaf, shared by all signatures."""

    def __init__(
        self,
        params: Any,
        trainable: bool | str | Sequence[str] = True,
        *,
        stored_as: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Finds no weights yet.

        Args:
          params: the weights, as for `leaves_for`.
          trainable: whether they are trainable, or prefixes of the names of those that are.
          stored_as: maps dtypes that variables cannot have to the dtypes that they have instead.
        """
        self._params, self._stored_as = params, stored_as
        self._trainable: bool | tuple[str, ...] = (
            trainable
            if isinstance(trainable, bool)
            else read_prefixes(trainable, "trainable", "True, False or ")
        )
        self._by_name: dict[str, SavedVariable] = {}
        self._leaves: dict[str, WeightLeaf] = {}
        self._trees: list[TreeSpec] = []

    def for_function(self, portable: PortableFunction) -> list[tf.Variable]:
        """Returns the variables that are a function's first argument, in the order of its leaves.

        Raises:
          StructureError, ShapeError, DTypeError: the weights are not of the function's structure,
            shapes or dtypes; each difference is listed.
          SavingError: another function has other names for them.
        """
        tree = portable.first_argument
        leaves = weight_leaves(portable, self._params)
        known = tree in self._trees
        for leaf in leaves:
            name, aval = leaf.name, leaf.aval
            if name not in self._by_name:
                trained = is_trainable(name, aval, self._trainable)
                stored = leaf.stored_as(self._stored_as.get(leaf.dtype.name))
                variable = make_variable(stored, trainable=trained, name=name)
                self._by_name[name] = SavedVariable(PARAMS, stored, variable)
                self._leaves[name] = leaf
            elif not known and self._leaves[name].value is not leaf.value:
                path = self._leaves[name].path
                raise SavingError(
                    f"{leaf.path} of {portable.name} and {path} of another signature are two "
                    f"weights, and would both be named {name}: the functions were exported with "
                    "weights in different containers. Export all of them with the same."
                )
            elif self._leaves[name].dtype != op_dtype(aval, leaf.path):
                raise DTypeError(
                    f"{leaf.path}: {portable.name} takes it as {aval.dtype}, and another signature "
                    f"as {self._leaves[name].dtype.name}. Export all of them for one."
                )
        self._trees.append(tree)
        return [self._by_name[leaf.name].variable for leaf in leaves]

    def weights(self) -> Sequence[SavedVariable]:
        """Lists all weights, in the order in which they were first needed.

        Raises:
          SavingError: `trainable` has a prefix that no weight's name has.
        """
        check_prefixes(list(self._by_name), self._trainable)
        return tuple(self._by_name.values())


@dataclass(frozen=True)
class WeightLeaf:
    """Array that a function takes: a leaf of its weights, or a lifted constant.

    Attributes:
      path: its path in Python's notation, "params['dense']['kernel']".
      name: the name of its variable, "dense/kernel".
      aval: the type that the function takes.
      value: the user's value.
    """

    path: str
    name: str
    aval: Aval
    value: Any

    @property
    def dtype(self) -> tf.DType:
        """Dtype in which TensorFlow holds it."""
        return op_dtype(self.aval, self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its value."""
        return tuple(np.shape(self.value))

    def array(self) -> np.ndarray:
        """Returns the value in the dtype in which TensorFlow holds it."""
        return self.original_array().astype(self.dtype.as_numpy_dtype, copy=False)

    def stored_as(self, dtype: str | None) -> WeightLeaf:
        """Returns the leaf in the dtype of its variable; None leaves it as it is.

        `convert_stored` returns the values.
        """
        if dtype is None:
            return self
        aval = Aval(self.shape, dtype)
        return replace(self, aval=aval, value=convert_array(self.array(), dtype))

    def original_array(self) -> np.ndarray:
        """Returns the value in its own dtype; a view of arrays in this machine's memory."""
        value = self.value
        if isinstance(value, (tf.Tensor, tf.Variable)):
            return np.asarray(tf.convert_to_tensor(value).numpy())
        # For other arrays JAX raises an error that says why they have no value.
        if is_jax_array(value) and not value.is_deleted() and value.is_fully_addressable:
            return host_array(value)
        return np.asarray(value)


def convert_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Converts an array as `convert_stored` converts a tensor."""
    target = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    return array.view(target) if array.dtype.itemsize == target.itemsize else array.astype(target)


def convert_stored(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Converts a tensor from or to the dtype that its variable has instead of its own."""
    if tensor.dtype == dtype:
        return tensor
    return tf.bitcast(tensor, dtype) if tensor.dtype.size == dtype.size else tf.cast(tensor, dtype)


def weight_leaves(portable: PortableFunction, params: Any) -> list[WeightLeaf]:
    """Finds the weights that are a function's first argument, in the order of its leaves.

    Args:
      portable: the function.
      params: the weights, as for `leaves_for`.

    Raises:
      StructureError, ShapeError, DTypeError: the weights are not of the function's structure,
        shapes or dtypes; each difference is listed.
    """
    (tree, *_), (path, *_) = portable.in_tree.children[0].children, portable.argument_names
    values = leaves_for(tree, params, f"the argument {path} of {portable.name}", PARAMS)
    described = zip(
        tree.leaf_paths(PARAMS), leaf_names(tree), portable.in_avals, values, strict=False
    )
    leaves = [WeightLeaf(*each) for each in described]
    _check_leaves(portable, path, leaves, params)
    return leaves


def _check_leaves(
    portable: PortableFunction, argument: str, leaves: Sequence[WeightLeaf], params: Any
) -> None:
    expected = []
    for leaf in leaves:
        aval = leaf.aval
        if aval.element_shape:  # a PRNG key is passed as its words
            aval = Aval(aval.op_shape, aval.op_dtype)
        dtype = dtype_name(leaf.value)
        if dtype is None:
            is_accepted = can_hold_number(leaf.value, aval.dtype)
        else:
            is_accepted = can_become(dtype, aval.dtype)
        expected.append((leaf.path, leaf.value, aval.shape, aval.dtype, is_accepted))
    file = params.file if isinstance(params, PathWeights) else ""
    check_types(
        f"{f'The weights in {file}' if file else 'params'} do not fit the argument {argument} "
        f"of {portable.name}",
        expected,
        "Pass the weights that it was exported with, or export it for these.",
    )


def check_types(
    text: str, values: Iterable[tuple[str, Any, Sequence[Any], str, bool]], advice: str
) -> None:
    """Raises unless values have the expected shapes and dtypes.

    Args:
      text: the first sentence of the error.
      values: for each value its path, the value, the expected shape (None for any size), the
        expected dtype, and whether its own dtype is accepted.
      advice: the last sentence of the error.

    Raises:
      ShapeError, DTypeError, ArgumentsError: a shape, a dtype, or both differ.
    """
    shapes, dtypes = [], []
    for path, value, expected_shape, dtype, is_accepted in values:
        shape = tuple(np.shape(value))
        if not tf.TensorShape(expected_shape).is_compatible_with(shape):
            expected = shape_text(["?" if d is None else d for d in expected_shape])
            hint = " (transposed?)" if tuple(expected_shape) == shape[::-1] else ""
            shapes.append(f"{path}: expected shape {expected}, got {shape_text(shape)}{hint}")
        if not is_accepted:
            dtypes.append(f"{path}: expected {dtype}, got {dtype_name(value) or repr(value)}")
    if shapes or dtypes:
        raise make_mismatch_error(text, shapes, dtypes, advice)


def is_trainable(name: str, aval: Aval, trainable: bool | Sequence[str]) -> bool:
    """Returns whether a weight is trained; `trainable` is all, none, or prefixes of names."""
    # TensorFlow has no gradients for narrow floats.
    if not aval.is_differentiable or aval.dtype in NARROW_FLOATS:
        return False
    if isinstance(trainable, bool):
        return trainable
    return any(has_prefix(name, prefix) for prefix in trainable)


def read_prefixes(
    value: Any, argument: str, alternatives: str = "", error: type[BridgeError] = SavingError
) -> tuple[str, ...]:
    """Returns prefixes of weights' names that the user passed, one or several.

    Args:
      value: the user's value.
      argument: the argument's name, for messages.
      alternatives: the other values that the argument may have, for messages.
      error: the class of the error to raise.

    Raises:
      BridgeError: the value is neither a name nor several.

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
            name = plain = constant.name or "constant"
            number = len(self.variables)
            while name in self.variables:
                name, number = f"{plain}_{number}", number + 1
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


def leaf_names(tree: TreeSpec) -> tuple[str, ...]:
    """Names each leaf by its path, "dense/kernel" or "layers/0/w"; names are unique.

    >>> leaf = TreeSpec("leaf")
    >>> leaf_names(TreeSpec("dict", keys=("a b", 3), children=(leaf, leaf)))
    ('a_b', '3')
    """
    return names_of([keys for keys, _ in leaf_keys(tree)])


def names_of(paths: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Names each leaf by the keys that lead to it, as `leaf_names` does."""
    taken: set[str] = set()
    names = [""] * len(paths)
    # Sorted, because containers with the same keys may differ in order (OrderedDict, dict).
    for i in sorted(range(len(paths)), key=lambda i: (list(map(str, paths[i])), i)):
        parts = [re.sub(r"[^\w.\-]+", "_", str(part), flags=re.ASCII) for part in paths[i]]
        plain = "/".join(parts)
        name, number = plain or "params", 0
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        names[i] = name
    return tuple(names)


def has_prefix(name: str, prefix: str) -> bool:
    """Returns whether a weight's name begins with the keys of a prefix ("dense" or "dense/")."""
    prefix = prefix.rstrip("/")
    return name == prefix or name.startswith(f"{prefix}/") or not prefix


def make_variable(leaf: WeightLeaf, *, trainable: bool, name: str) -> tf.Variable:
    """Makes the variable for an array; it gets no value if the bridge will write it.

    The bridge writes it if TensorFlow has variables without values and checksums are fast.
    Otherwise TensorFlow, which has to hold a copy, is faster.
    """
    if is_fast():
        variable = tf_compat.make_uninitialized_variable(
            leaf.shape, leaf.dtype, trainable=trainable, name=name
        )
        if variable is not None:
            return variable
    return tf.Variable(leaf.array(), trainable=trainable, name=name, dtype=leaf.dtype)


def as_saved(leaf: Any, dtype: str, *, accepts_bfloat16: bool = False) -> Any:
    """Casts a leaf to a variable's dtype if `save` would accept it; else returns it unchanged.

    Args:
      leaf: the value.
      dtype: the dtype of the variable.
      accepts_bfloat16: whether a float32 variable also takes bfloat16, as in models for converters.
    """
    actual = dtype_name(leaf)
    is_widened = accepts_bfloat16 and (actual, dtype) == ("bfloat16", "float32")
    if actual == dtype or not (is_widened or is_accepted_as(leaf, dtype)):
        return leaf
    return np.asarray(leaf).astype(tf.as_dtype(dtype).as_numpy_dtype)
