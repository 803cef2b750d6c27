"""Sets quantization options of TensorFlow's converter, and passes it representative inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from shape_poly import is_symbolic_dim

KINDS = ("dynamic_range", "float16", "int8")
_DATA = "representative_data"


@dataclass(frozen=True)
class Quantization:
    """Requested quantization.

    Attributes:
      kind: one of KINDS, or None.
      data: representative inputs by signature, or for the only signature; or None.
    """

    kind: str | None
    data: Any

    @staticmethod
    def of(kind: Any, data: Any) -> Quantization:
        """Checks the user's options.

        Raises:
          SavingError: the kind is unknown, or contradicts the data.
        """
        if kind is not None and kind not in KINDS:
            raise SavingError(
                Message(
                    Argument("quantize"),
                    f" must be one of {', '.join(map(repr, KINDS))}, or left out. Got: {kind!r}.",
                )
            )
        if kind == "int8" and data is None:
            raise SavingError(
                Message(
                    Argument("quantize", "int8"),
                    " measures ranges with inputs as they come: give some as ",
                    Argument(_DATA),
                    ", a hundred or so.",
                )
            )
        if kind != "int8" and data is not None:
            raise SavingError(
                Message(
                    Argument(_DATA),
                    " is for ",
                    Argument("quantize", "int8"),
                    ", which measures ranges. Leave it out, or add that.",
                )
            )
        return Quantization(kind, data)

    def apply(
        self,
        converter: Any,
        signatures: Mapping[str, Mapping[str, ServedArray]],
        steps: Collection[str],
    ) -> None:
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
        if self.kind != "int8":
            # Only integer ranges may replace infinity by the greatest finite number.
            converter.canonicalizing_inf_as_min_max_float = False
        if self.kind is None:
            return
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if self.kind == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if self.kind == "int8":
            self._check_steps(signatures, steps)
            measured = signatures.keys() - {*steps, *WEIGHT_SIGNATURES}
            samples = list(self._samples({n: signatures[n] for n in signatures if n in measured}))
            converter.representative_dataset = lambda: iter(samples)

    def _check_steps(
        self, signatures: Mapping[str, Mapping[str, ServedArray]], steps: Collection[str]
    ) -> None:
        """Raises if the data is for a signature that stays in float32, or none can be quantized.

        Raises:
          SavingError: it is so.
        """
        if not signatures.keys() - {*steps, *WEIGHT_SIGNATURES}:
            raise SavingError(
                Message(
                    "All signatures of the model change weights or read them, and these compute in "
                    "float32. Leave out ",
                    *(Argument("quantize", self.kind), " and ", Argument(_DATA), "."),
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

    def _samples(
        self, signatures: Mapping[str, Mapping[str, ServedArray]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
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
            for count, sample in enumerate(_iterate(samples, name), 1):
                yield name, _name_arrays(sample, inputs, f"{_DATA}[{name!r}][{count - 1}]")
            if not count:
                raise SavingError(
                    Message(Argument(_DATA), f" has no inputs for the signature {name}.")
                )


def _iterate(samples: Any, name: str) -> Iterable[Any]:
    if not isinstance(samples, Iterable) or isinstance(samples, Mapping):
        raise StructureError(
            f"{_DATA}[{name!r}] must be several inputs, as a list of dicts. Got: a "
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
    return {name: _array(arrays[name], inputs[name], f"{place}[{name!r}]") for name in inputs}


def _array(value: Any, expected: ServedArray, place: str) -> Any:
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
