"""Calls portable functions with a layer's weights by name and with Keras' nested inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge._utils import join_names
from jax2tf_bridge.errors import (
    LayerError,
    ShapeError,
    StructureError,
    format_bullets,
    make_mismatch_error,
)
from jax2tf_bridge.portable import Aval, CallStructure, PortableFunction, TreeSpec, can_become
from jax2tf_bridge.saving.signatures import to_plain_containers
from jax2tf_bridge.signatures import PARAMS, name_leaves
from jax2tf_bridge.to_tensorflow import Constants, call_flat, cast_if_needed, check_shapes, op_dtype
from shape_poly import shape_text

DrawKeyWords = Callable[[int], tf.Tensor]
"""Draws a number of uint32 words for new PRNG keys."""


@dataclass(frozen=True, eq=False)
class LayerFunction:
    """A portable function as a layer calls it.

    Attributes:
      portable: the function.
      takes_params: whether its first argument is the weights.
      input_names: the names of the inputs in a SavedModel's signature, by path; may be empty.
    """

    portable: PortableFunction
    takes_params: bool
    input_names: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def weights(self) -> tuple[tuple[str, str, Aval], ...]:
        """Paths, names and avals of the weights, in the order of the leaves."""
        if not self.takes_params:
            return ()
        if not self.portable.argument_names:
            raise LayerError(
                f"params were passed, but {self.portable.name} has no positional argument for "
                "them. Leave params out."
            )
        tree = self.portable.first_argument
        # The avals of the other arguments follow.
        return tuple(
            zip(tree.leaf_paths(PARAMS), name_leaves(tree), self.portable.in_avals, strict=False)
        )

    @cached_property
    def out_tree(self) -> TreeSpec:
        """Structure of the results, in containers that Keras supports."""
        return to_plain_containers(self.portable.out_tree)

    @cached_property
    def _data_arguments(self) -> tuple[tuple[str, Aval], ...]:
        first = len(self.weights)
        paths, avals = self.portable.in_paths(), self.portable.in_avals
        return tuple(zip(paths[first:], avals[first:], strict=True))

    @cached_property
    def inputs(self) -> tuple[tuple[str, Aval], ...]:
        """Paths and avals of the inputs that Keras passes; the layer draws PRNG keys itself."""
        return tuple((path, aval) for path, aval in self._data_arguments if not aval.is_key)

    @property
    def draws_keys(self) -> bool:
        """Returns whether the function takes PRNG keys."""
        return len(self.inputs) < len(self._data_arguments)

    @cached_property
    def _arguments(self) -> tuple[tuple[str, TreeSpec], ...]:
        portable = self.portable
        whole = CallStructure.of(portable.in_tree, portable.argument_names)
        data_call = replace(whole, args=whole.args[1:]) if self.takes_params else whole
        keys = [path for path, aval in self._data_arguments if aval.is_key]
        return data_call.without(keys).map(to_plain_containers).arguments()

    def describe_inputs(self) -> str:
        """Lists the inputs as text, such as "ids: int32[b,n] and mask: bool[b,n]"."""
        texts = [f"{path}: {aval}" for path, aval in self.inputs]
        if len(texts) > _MAX_LISTED_INPUTS:
            return join_names(texts, _MAX_LISTED_INPUTS - 1)
        *first, last = texts or ["no inputs"]
        return " and ".join(filter(None, [", ".join(first), last]))

    def _flatten_inputs(self, layer: str, inputs: Any) -> list[Any]:
        arguments = self._arguments
        # The names of the inputs in the SavedModel's signature; others keep their paths.
        input_names = [self.input_names.get(path, path) for path, _ in self.inputs]
        if self.input_names and isinstance(inputs, Mapping) and inputs.keys() == set(input_names):
            leaves = [inputs[name] for name in input_names]
            return self._flatten_values(layer, [(name, _LEAF) for name in input_names], leaves)
        if len(arguments) == 1:
            ((name, tree),) = arguments
            by_name = isinstance(inputs, Mapping) and inputs.keys() == {name}
            is_wrapped = by_name and not (tree.kind == "dict" and set(tree.keys) == {name})
            return self._flatten_values(layer, arguments, [inputs[name] if is_wrapped else inputs])
        names = [name for name, _ in arguments]
        if isinstance(inputs, Mapping):
            problems = [f"the input {n} is missing" for n in names if n not in inputs]
            problems += [f"the input {n} is not expected" for n in inputs if n not in names]
            if problems:
                raise self._make_misfit_error(layer, problems)
            return self._flatten_values(layer, arguments, [inputs[name] for name in names])
        if isinstance(inputs, (list, tuple)) and len(inputs) == len(arguments):
            return self._flatten_values(layer, arguments, inputs)
        count = f"{len(inputs)}" if isinstance(inputs, (list, tuple)) else "one array"
        raise self._make_misfit_error(layer, [f"expected {len(arguments)} inputs, got {count}"])

    def _flatten_values(
        self, layer: str, arguments: Sequence[tuple[str, TreeSpec]], values: Sequence[Any]
    ) -> list[Any]:
        leaves: list[Any] = []
        problems: list[str] = []
        for (name, tree), value in zip(arguments, values, strict=True):
            tree.flatten_into(value, name, leaves, problems)
        if problems:
            raise self._make_misfit_error(layer, problems)
        return leaves

    def _make_misfit_error(self, layer: str, problems: Sequence[str]) -> StructureError:
        names = [name for name, _ in self._arguments]
        advice = []
        if len(names) > 1:
            advice.append(f"Pass {', '.join(names)} as a list in this order, or as a dict.")
            if not self.takes_params:
                advice.append(f"If {names[0]} are its weights, pass them as params of the layer.")
        return StructureError(
            f"The inputs do not fit {layer}, which takes {self.describe_inputs()}:"
            f"{format_bullets(problems)}\n{' '.join(advice)}".rstrip()
        )

    def check_inputs(self, layer: str, inputs: Any) -> list[Any]:
        """Flattens Keras' `inputs`, and checks that they fit the function.

        Raises:
          StructureError, ShapeError, DTypeError: they do not fit; the text names each by its path.
        """
        leaves = self._flatten_inputs(layer, inputs)
        shapes, dtypes = [], []
        for leaf, (path, aval) in zip(leaves, self.inputs, strict=True):
            shape = tf.TensorShape(leaf.shape)
            dtype = aval.op_dtype if leaf.dtype is None else tf.as_dtype(leaf.dtype).name
            expected = [size if isinstance(size, int) else None for size in aval.op_shape]
            if not shape.is_compatible_with(expected):
                shapes.append(
                    f"{path}: expected shape {shape_text(aval.op_shape)}, got "
                    f"{shape_text(shape.as_list())}"
                )
            if not _is_castable(dtype, aval.op_dtype):
                dtypes.append(f"{path}: expected {aval.op_dtype}, got {dtype}")
        if shapes or dtypes:
            raise make_mismatch_error(
                f"The inputs do not fit {layer}, which takes {self.describe_inputs()}",
                shapes,
                dtypes,
                "Change the shape or dtype of the keras.Input or of the data"
                f"{', or export the function for these' if shapes else ''}.",
            )
        return leaves

    def compute_results(self, layer: str, inputs: Any) -> list[tuple[tuple[int | None, ...], str]]:
        """Computes the shapes and dtypes of the results, with None for unknown sizes.

        The inputs are a nest of objects with shapes and dtypes, such as keras.KerasTensor.

        Raises:
          StructureError, ShapeError, DTypeError: the inputs do not fit.
        """
        remaining = iter(self.check_inputs(layer, inputs))
        portable = self.portable
        shapes = [aval.op_shape for _, _, aval in self.weights]
        shapes += [
            a.op_shape if a.is_key else next(remaining).shape for _, a in self._data_arguments
        ]
        # check_shapes adds ops that compute sizes; they are discarded with this graph.
        with tf.Graph().as_default():
            args = [
                tf.compat.v1.placeholder(op_dtype(aval, path), shape)
                for aval, path, shape in zip(
                    portable.in_avals, portable.in_paths(), shapes, strict=True
                )
            ]
            try:
                result_shapes = check_shapes(portable, args).results
            except tf.errors.InvalidArgumentError as e:
                raise ShapeError(f"The inputs do not fit {layer}. {e.message}") from e
        return [
            (shape, op_dtype(aval, f"A result of {portable.name}").name)
            for shape, aval in zip(result_shapes, portable.out_avals, strict=True)
        ]

    def call(
        self,
        layer: str,
        weights: Mapping[str, tf.Tensor],
        inputs: Any,
        key_words: DrawKeyWords,
        constants: Constants,
    ) -> list[tf.Tensor]:
        """Runs the function with weights by name and Keras' nested inputs; returns flat results."""
        remaining = iter(self.check_inputs(layer, inputs))
        flat = [weights[name] for _, name, _ in self.weights]
        kept_arguments = self.portable.module.kept_arguments
        for index, (path, aval) in enumerate(self._data_arguments, start=len(flat)):
            if not aval.is_key:
                tensor = tf.convert_to_tensor(next(remaining))
                flat.append(cast_if_needed(tensor, op_dtype(aval, path)))
            elif index in kept_arguments:
                count = math.prod(_require_known_size(size, path) for size in aval.op_shape)
                flat.append(tf.reshape(key_words(count), aval.op_shape))
            else:
                flat.append(tf.zeros(aval.op_shape, tf.uint32))
        return call_flat(self.portable, flat, True, constants)


_LEAF = TreeSpec("leaf")
_MAX_LISTED_INPUTS = 6
"""Maximum number of inputs that a message lists."""


def _require_known_size(size: Any, path: str) -> int:
    if isinstance(size, int):
        return size
    raise LayerError(
        f"{path} has an open number of PRNG keys, which a layer cannot draw. Take one key instead, "
        "and split it in the function."
    )


def _is_castable(actual: str, expected: str) -> bool:
    """Returns whether an input is cast to the expected dtype.

    Floats are cast to each other, as in Keras, and 64-bit numbers to 32 bits.
    """
    rows = find_dtype(actual), find_dtype(expected)
    floats = all(row is not None and row.kind == "float" for row in rows)
    return actual == expected or floats or can_become(actual, expected)
