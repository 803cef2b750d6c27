"""What save() wrote, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.saving._served import ServedArray, served_text
from jax2tf_bridge.saving.serving._serving import ServingInstructions

_NO_WEIGHTS = (
    "weights: none, so nothing is trainable; to train what a function closes over, make it the "
    "function's first argument and pass it as params"
)
_MOST_SHOWN = 4
"""Arguments in a line for people."""


@dataclass(frozen=True)
class SavedSignature:
    """A saved signature as it is served: before its preprocess, and after its postprocess.

    Attributes:
      inputs, outputs: the arrays that it takes and gives, by name.
      vjp_order: how many orders of gradients are saved with it.
      gradient_missing_because: why there are none, if there are none; "" otherwise.
      fixed_sizes: the arguments of the JAX function by name, if no size of theirs is open.
      opened_by: the code that would leave sizes of them open; "" where nothing is fixed.
      buckets: the sizes that it runs at, and how it is padded to them, for people; "" for any.
    """

    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    vjp_order: int
    gradient_missing_because: str = ""
    fixed_sizes: Mapping[str, ServedArray] = field(default_factory=dict)
    opened_by: str = ""
    buckets: str = ""

    def __str__(self) -> str:
        return f"({served_text(self.inputs)}) -> ({served_text(self.outputs)})"

    def lines(self) -> Iterator[str]:
        """What to know of it beside its inputs and outputs."""
        if self.buckets:
            yield self.buckets
        if self.fixed_sizes:
            shown = dict(list(self.fixed_sizes.items())[:_MOST_SHOWN])
            more = len(self.fixed_sizes) - len(shown)
            rest = f" and {more} more" if more else ""
            yield f"sizes are fixed at {served_text(shown)}{rest}; to open them: {self.opened_by}"


@dataclass(frozen=True)
class SavedModel:
    """What `save` wrote.

    Attributes:
      path: the directory.
      signatures: by name.
      weights: each variable's name, with its shape and dtype.
      trainable: the names of those that are trainable.
      constants: arrays that functions had captured, by the name of their variable.
      graph_bytes, variable_bytes: the sizes of saved_model.pb and of the variables.
      notes: what to know beside that, for people.
    """

    path: Path
    signatures: Mapping[str, SavedSignature]
    weights: Mapping[str, Aval]
    trainable: tuple[str, ...]
    constants: Mapping[str, Aval]
    graph_bytes: int
    variable_bytes: int
    notes: tuple[str, ...] = ()
    serving_from: Callable[[Path], ServingInstructions] = field(kw_only=True, repr=False)
    """How to serve it from another place, to which it was moved or copied."""

    @property
    def serving(self) -> ServingInstructions:
        """How to serve it with TensorFlow Serving; print it."""
        return self.serving_from(self.path)

    def __str__(self) -> str:
        lines = [f"{self.path}"]
        for name, signature in self.signatures.items():
            lines += [f"  {name}{signature}", *(f"    {line}" for line in signature.lines())]
        if self.weights:
            lines.append(f"  weights: {len(self.weights)}, {len(self.trainable)} trainable")
        else:
            lines.append(f"  {_NO_WEIGHTS}")
        if self.constants:
            size = sum(_bytes(aval) for aval in self.constants.values())
            lines.append(
                f"  captured arrays, now variables that are not trainable: {len(self.constants)}, "
                f"{size / 1e6:.1f} MB"
            )
        lines.append(
            f"  saved_model.pb {self.graph_bytes / 1e6:.2f} MB, "
            f"variables {self.variable_bytes / 1e6:.2f} MB"
        )
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def variable_aval(variable: tf.Variable) -> Aval:
    return Aval(tuple(variable.shape.as_list()), variable.dtype.name)


def _bytes(aval: Aval) -> int:
    size = int(tf.as_dtype(aval.dtype).size)
    for dimension in aval.shape:
        size *= int(str(dimension))
    return size
