"""Sets quantization options of TensorFlow's converter, and passes it representative inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import (
    Argument,
    DTypeError,
    Message,
    SavingError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.saving import WEIGHT_SIGNATURES
from jax2tf_bridge.signatures import ServedArray
from jax2tf_bridge.to_tensorflow import find_constant, find_maker, list_bodies
from shape_poly import is_symbolic_dim

QuantizationKind: TypeAlias = Literal["dynamic_range", "float16", "int8", "int16x8", "as_trained"]
_MEASURING = ("int8", "int16x8")
"""Kinds that compute with integers, in ranges of representative inputs."""
_Inputs: TypeAlias = Mapping[str, Mapping[str, ServedArray]]
"""Inputs of signatures, by signature and by name."""
_DATA = "representative_data"
_ROUNDING = "FakeQuantWithMinMaxVars"
"""Operation whose ranges TensorFlow's converter takes over."""


@dataclass(frozen=True)
class Quantization:
    """Requested quantization.

    Attributes:
      kind: the QuantizationKind, or None.
      data: representative inputs by signature, or for the only signature; or None.
      integers_only: whether inputs and outputs are integers, and floats in between an error.
    """

    kind: str | None
    data: Any
    integers_only: bool = False

    @property
    def is_measured(self) -> bool:
        """Returns whether representative inputs give the ranges of the integers."""
        return self.kind in _MEASURING

    @property
    def integers(self) -> str | None:
        """The dtype of the integers that the model computes with; None if it does not."""
        return {"int8": "int8", "int16x8": "int16", "as_trained": "int8"}.get(self.kind or "")

    @staticmethod
    def of(kind: Any, data: Any, *, integers_only: bool = False) -> Quantization:
        """Checks the user's options.

        Raises:
          SavingError: the kind is unknown, or contradicts the data.
        """
        kinds = get_args(QuantizationKind)
        if kind is not None and kind not in kinds:
            raise SavingError(
                Message(
                    Argument("quantize"),
                    f" must be one of {', '.join(map(repr, kinds))}, or left out. Got: {kind!r}.",
                )
            )
        if kind in _MEASURING and data is None:
            raise SavingError(
                Message(
                    Argument("quantize", kind),
                    " measures ranges with typical inputs. Pass about a hundred of them as ",
                    Argument(_DATA),
                    ".",
                )
            )
        if kind not in _MEASURING and data is not None:
            raise SavingError(
                Message(
                    Argument(_DATA),
                    " is for ",
                    *(Argument("quantize", "int8"), " and ", Argument("quantize", "int16x8")),
                    ", which measure ranges. Leave it out, or add one of these.",
                )
            )
        quantization = Quantization(kind, _make_repeatable(data), integers_only)
        if integers_only and quantization.integers is None:
            raise SavingError(
                Message(
                    Argument("integers_only"),
                    " is for ",
                    *(Argument("quantize", "int8"), ", ", Argument("quantize", "int16x8")),
                    " and ",
                    Argument("quantize", "as_trained"),
                    ", which compute with integers. Leave it out, or add one of these.",
                )
            )
        return quantization

    def apply(self, converter: Any, signatures: _Inputs, steps: Collection[str]) -> None:
        """Sets the options of a converter.

        Args:
          converter: a TFLiteConverter.
          signatures: the inputs of each signature, by name.
          steps: the signatures that change weights. Without measured ranges they compute in
            float32; in integers, small updates would be rounded to 0.

        Raises:
          SavingError: the data is for other signatures, or is missing for one.
          StructureError, ShapeError, DTypeError: the data does not fit the inputs.
        """
        if self.integers is None:
            # Infinity stays infinity; only ranges of integers need finite numbers.
            converter.canonicalizing_inf_as_min_max_float = False
        if self.kind is None:
            return
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if self.kind == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if self.integers is not None:
            self._check_steps(signatures, steps)
        if self.is_measured:
            samples = self._list_samples(signatures, steps)
            converter.representative_dataset = lambda: iter(samples)
        if self.kind == "int16x8":
            converter.target_spec.supported_ops = [
                tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
                tf.lite.OpsSet.TFLITE_BUILTINS,
            ]
        if self.integers_only:
            converter.inference_input_type = tf.as_dtype(self.integers)
            converter.inference_output_type = tf.as_dtype(self.integers)

    def prepare_graph(self, graph: Any) -> None:
        """Checks a GraphDef, and replaces what TensorFlow's quantizers cannot convert, in place.

        Raises:
          SavingError: the kind is "as_trained", and the graph rounds no numbers.
        """
        bodies = list_bodies(graph)
        if self.kind == "as_trained" and not any(
            node.op == _ROUNDING for nodes in bodies for node in nodes
        ):
            raise SavingError(
                Message(
                    Argument("quantize", self.kind),
                    " needs a function that rounds the numbers between its products to 255 or 256 "
                    "steps of a constant scale, as clip(round(x / scale), -127, 127) * scale, and "
                    "this one has no such rounding. Pass ",
                    Argument("quantize", "int8"),
                    " and ",
                    Argument(_DATA),
                    ".",
                )
            )
        if self.integers is not None:
            for nodes in bodies:
                makers = {node.name: node for node in nodes}
                for node in nodes:
                    if node.op == "ArgMax":
                        _shorten_search(node, makers, by_flags=self.integers == "int8")

    def explain(self, error: Exception) -> SavingError | None:
        """Converts an error of TensorFlow's quantizer for int16x8; returns None for others."""
        if self.kind != "int16x8" or type(error) is not RuntimeError:
            return None
        return SavingError(
            Message(
                f"TensorFlow {tf.__version__}'s converter cannot make int16 of the model's "
                f"numbers: {str(error).strip().splitlines()[0][:300]}\nLeave this part of the "
                "function to the caller, or pass ",
                Argument("quantize", "int8"),
                ".",
            )
        )

    def examples(self, signatures: _Inputs, steps: Collection[str]) -> dict[str, dict[str, Any]]:
        """Returns the first representative inputs of each measured signature; none if nothing is.

        Raises:
          SavingError, StructureError, ShapeError, DTypeError: as in `apply`.
        """
        if not self.is_measured:
            return {}
        self._check_steps(signatures, steps)
        return dict(reversed(self._list_samples(signatures, steps)))

    def list_in_integers(self, names: Iterable[str], steps: Collection[str]) -> list[str]:
        """Returns the signatures that compute with integers."""
        in_floats = {*steps, *WEIGHT_SIGNATURES}
        return [name for name in names if self.integers and name not in in_floats]

    def _list_samples(
        self, signatures: _Inputs, steps: Collection[str]
    ) -> list[tuple[str, dict[str, Any]]]:
        measured = self.list_in_integers(signatures, steps)
        return [*self._iterate_samples({name: signatures[name] for name in measured})]

    def _check_steps(self, signatures: _Inputs, steps: Collection[str]) -> None:
        """Raises if the data is for a signature that stays in float32, or none can be quantized."""
        if self.integers_only and (steps or not signatures.keys().isdisjoint(WEIGHT_SIGNATURES)):
            raise SavingError(
                Message(
                    Argument("integers_only"),
                    " is for models without signatures that change weights or read them, which "
                    "compute in float32. Leave it out, or leave out these signatures.",
                )
            )
        if not signatures.keys() - {*steps, *WEIGHT_SIGNATURES}:
            raise SavingError(
                Message(
                    "All signatures of the model change weights or read them, and these compute in "
                    "float32. Leave out ",
                    Argument("quantize", self.kind),
                    *((" and ", Argument(_DATA)) if self.is_measured else ()),
                    ".",
                )
            )
        own = self.data if isinstance(self.data, Mapping) else {}
        for name in own:
            if name in steps or (name in WEIGHT_SIGNATURES and name in signatures):
                uses = "changes" if name in steps else "reads or replaces"
                raise SavingError(
                    Message(
                        Argument(_DATA),
                        f" is for the signature {name}, which {uses} weights and so computes in "
                        "float32. Leave it out.",
                    )
                )
        if not self.is_measured:
            return
        without = next((name for name, inputs in signatures.items() if not inputs), None)
        if without is not None:
            raise SavingError(
                Message(
                    f"The signature {without} has no inputs, and TensorFlow's converter measures "
                    "no ranges in such a model. Leave out the signature or ",
                    *(Argument("quantize", self.kind), ". Instead of a SavedModel with weight "),
                    "signatures, pass its functions to save_litert.",
                )
            )

    def _iterate_samples(self, signatures: _Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
        by_signature = self.data if isinstance(self.data, Mapping) else None
        if by_signature is None:
            if len(signatures) > 1:
                raise SavingError(
                    Message(
                        Argument(_DATA),
                        " must be given by the names of the signatures, as "
                        f"{{{next(iter(signatures))!r}: [...]}}, since there are "
                        f"{len(signatures)}: {', '.join(signatures)}.",
                    )
                )
            by_signature = {next(iter(signatures)): self.data}
        if by_signature.keys() != signatures.keys():
            raise SavingError(
                Message(
                    Argument(_DATA),
                    f" is for the signatures {', '.join(map(str, by_signature)) or 'of no name'}, "
                    f"and the model has {', '.join(signatures)}. Give some for each.",
                )
            )
        for name, inputs in signatures.items():
            samples = by_signature[name]
            count = 0
            for count, sample in enumerate(_check_samples(samples, name), 1):
                yield name, _name_arrays(sample, inputs, f"{_DATA}[{name!r}][{count - 1}]")
            if not count:
                raise SavingError(
                    Message(Argument(_DATA), f" has no inputs for the signature {name}.")
                )


def _make_repeatable(data: Any) -> Any:
    """Returns representative data that can be iterated more than once."""
    if isinstance(data, Mapping):
        return {name: _make_repeatable(samples) for name, samples in data.items()}
    return list(data) if isinstance(data, Iterator) else data


def _check_samples(samples: Any, name: str) -> Iterable[Any]:
    if not isinstance(samples, Iterable) or isinstance(samples, Mapping):
        raise StructureError(
            f"{_DATA}[{name!r}] must be several inputs, as a list of dicts. Got: "
            f"{type(samples).__name__}."
        )
    return samples


def _name_arrays(sample: Any, inputs: Mapping[str, ServedArray], place: str) -> dict[str, Any]:
    """Returns the arrays of one call by input name."""
    if isinstance(sample, Mapping):
        arrays = dict(sample)
    elif isinstance(sample, Sequence) and len(sample) == len(inputs):
        arrays = dict(zip(inputs, sample, strict=True))
    elif len(inputs) == 1 and not isinstance(sample, Sequence):
        arrays = dict.fromkeys(inputs, sample)
    else:
        arrays = {}
    if arrays.keys() != inputs.keys():
        got = ", ".join(map(str, arrays)) or f"a {type(sample).__name__}"
        raise StructureError(
            f"{place} must have the inputs {', '.join(inputs)}, as a dict by these names. Got: "
            f"{got}."
        )
    return {name: _check_array(arrays[name], inputs[name], f"{place}[{name!r}]") for name in inputs}


def _check_array(value: Any, expected: ServedArray, place: str) -> Any:
    array = np.asarray(value)
    if array.dtype.name != expected.dtype:
        raise DTypeError(f"{place}: expected {expected.dtype}, got {array.dtype.name}.")
    shape = expected.shape
    if shape is not None and (
        len(shape) != array.ndim
        or any(
            size is not None and not is_symbolic_dim(size) and size != got
            for size, got in zip(shape, array.shape, strict=True)
        )
    ):
        raise ShapeError(
            f"{place}: expected {expected}, got {array_type_text(array.dtype, array.shape)}."
        )
    return array


# Searches for extreme numbers, in graphs whose numbers become integers.

_SEARCHES: Mapping[str, str] = MappingProxyType({"Max": "ArgMax", "Min": "ArgMin"})


def _shorten_search(search: Any, makers: Mapping[str, Any], *, by_flags: bool) -> None:
    """Replaces a search for an extreme number or NaN by one that does not look for NaN.

    Emitters write the index of a maximum as `argmax(x == max(x) | is_nan(x))`. Integers have no
    NaN, and TensorFlow's quantizers would keep the flags in float32, or fail on them.

    Args:
      search: the ArgMax, which is changed in place.
      makers: the nodes of the same graph by name.
      by_flags: whether to search for `x == max(x)`. The quantizer for int8 leaves the search in x
        itself in float32; the one for int16x8 fails on flags.
    """
    either = find_maker(search.input[0], makers, "LogicalOr")
    if either is None:
        return
    is_best = find_maker(either.input[0], makers, "Equal")
    is_nan = find_maker(either.input[1], makers, "IsNan")
    if is_best is None or is_nan is None or is_best.input[0] != is_nan.input[0]:
        return
    for reduction, operation in _SEARCHES.items():
        best = find_maker(is_best.input[1], makers, reduction)
        if best is None or best.input[0] != is_nan.input[0]:
            continue
        axes, axis = (find_constant(name, makers) for name in (best.input[1], search.input[1]))
        if axes is None or axis is None or axes.tolist() not in (axis.tolist(), [axis.tolist()]):
            continue
        if by_flags:
            search.input[0] = either.input[0]
        else:
            search.op = operation
            search.input[0] = is_nan.input[0]
            search.attr["T"].CopyFrom(is_nan.attr["T"])
