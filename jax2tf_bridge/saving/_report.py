"""Reports of what save() and publish() wrote, for people and programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tensorflow as tf

from jax2tf_bridge._utils import join_names, name_items, number_text
from jax2tf_bridge.errors import Argument, Message, ShapeError
from jax2tf_bridge.portable import Aval, find_prng_keys, prng_keys_text
from jax2tf_bridge.publishing import NewVersion, describe_labels
from jax2tf_bridge.saved_model import format_buckets, format_padding, read_saved_model
from jax2tf_bridge.saving._weight_signatures import format_served_signature
from jax2tf_bridge.saving.buckets import Bucketing
from jax2tf_bridge.saving.serving import ServingInstructions, read_instructions
from jax2tf_bridge.saving.signatures import Endpoint
from jax2tf_bridge.serving_requests import read_example_requests
from jax2tf_bridge.signatures import ServedArray, format_arrays
from jax2tf_bridge.storage import AnyPath
from shape_poly import is_symbolic_dim

_NO_WEIGHTS = (
    "weights: none, so nothing is trainable; to train what a function closes over, make it the "
    "function's first argument and pass it as params"
)
_STATISTICS = "batch_stats"
"""Collection in which Flax keeps the running statistics of BatchNorm."""

_MAX_SHOWN = 4
"""Maximum number of arguments in a line of the report."""


@dataclass(frozen=True)
class SavedSignature:
    """Saved signature as it is served: before its preprocess, and after its postprocess.

    Attributes:
      inputs, outputs: the types of its inputs and outputs, by name.
      vjp_order: the number of orders of gradients that are saved with it.
      gradient_missing_because: the reason why it has no gradient; "" if it has one.
      fixed_sizes: the inputs of the JAX function by name, if none of their sizes is open.
      opened_by: code that would leave their first dimension open; "" if a size is open already.
      buckets: a text about the buckets and their padding; "" without buckets.
      updates: the names of the variables that a call assigns new values to.
    """

    inputs: Mapping[str, ServedArray]
    outputs: Mapping[str, ServedArray]
    vjp_order: int
    gradient_missing_because: str = ""
    fixed_sizes: Mapping[str, ServedArray] = field(default_factory=dict)
    opened_by: str = ""
    buckets: str = ""
    updates: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name_items(self, inputs="input", outputs="output")

    @staticmethod
    def of(
        endpoint: Endpoint,
        inputs: Mapping[str, ServedArray],
        outputs: Mapping[str, ServedArray],
        *,
        joins_requests: bool,
    ) -> SavedSignature:
        """Describes an endpoint that was saved with these inputs and outputs."""
        fixed_sizes = _list_fixed_sizes(endpoint)
        return SavedSignature(
            inputs,
            outputs,
            endpoint.function.order,
            _find_gradient_problem(endpoint),
            fixed_sizes,
            _write_open_call(endpoint) if fixed_sizes else "",
            _format_buckets(endpoint.bucketing, joins_requests=joins_requests),
            tuple(v.name.partition(":")[0] for v in endpoint.function.updates.values()),
        )

    def __str__(self) -> str:
        return f"({format_arrays(self.inputs)}) -> ({format_arrays(self.outputs)})"

    def lines(self) -> Iterator[str]:
        """Yields facts about it other than its inputs and outputs."""
        if self.buckets:
            yield self.buckets
        if self.updates:
            yield f"changes weights: {join_names(self.updates, _MAX_SHOWN)}"
        if self.fixed_sizes:
            shown = dict(list(self.fixed_sizes.items())[:_MAX_SHOWN])
            hidden = len(self.fixed_sizes) - len(shown)
            rest = f" and {hidden} more" if hidden else ""
            yield f"sizes are fixed at {format_arrays(shown)}{rest}; to open them: {self.opened_by}"


@dataclass(frozen=True)
class SavedModel:
    """SavedModel that `save` wrote; print it.

    Attributes:
      path: the directory.
      signatures: the signatures by name.
      weights: the shape and dtype of each variable, by name.
      trainable: the names of the trainable variables.
      constants: arrays that functions had captured, by the name of their variable.
      graph_bytes, variable_bytes: the sizes of saved_model.pb and of the variables.
      notes: further facts, as text.
    """

    path: AnyPath
    signatures: Mapping[str, SavedSignature]
    weights: Mapping[str, Aval]
    trainable: tuple[str, ...]
    constants: Mapping[str, Aval]
    graph_bytes: int
    variable_bytes: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name_items(self, signatures="signature", weights="variable", constants="captured array")

    @property
    def serving(self) -> ServingInstructions:
        """Instructions for TensorFlow Serving; print them. They are read from the files."""
        return self.serving_from(self.path)

    def serving_from(self, path: AnyPath) -> ServingInstructions:
        """Returns instructions for a path to which it was moved or copied.

        Raises:
          FileNotFoundError: there is no SavedModel at the path.
        """
        instructions = read_instructions(read_saved_model(path))
        try:
            requests = read_example_requests(path)
        except ShapeError:  # no sizes were found for unusual constraints
            return instructions
        ordered = {name: requests[name] for name in self.signatures if name in requests}
        return replace(instructions, requests=ordered)

    def __str__(self) -> str:
        lines = [f"{self.path}"]
        for name, signature in self.signatures.items():
            text = format_served_signature(name, signature.inputs, signature.outputs)
            lines += [f"  {text}", *(f"    {line}" for line in signature.lines())]
        if self.weights:
            lines.append(f"  weights: {len(self.weights)}, {len(self.trainable)} trainable")
        else:
            lines.append(f"  {_NO_WEIGHTS}")
        if self.constants:
            size = sum(_count_bytes(aval) for aval in self.constants.values())
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


def describe_variable(variable: tf.Variable) -> Aval:
    return Aval(tuple(variable.shape.as_list()), variable.dtype.name)


def _count_bytes(aval: Aval) -> int:
    return math.prod(int(str(d)) for d in aval.shape) * int(tf.as_dtype(aval.dtype).size)


@dataclass(frozen=True)
class Published:
    """Version of a model that `publish` wrote; print it.

    Attributes:
      version: its number.
      path: its directory.
      saved: the report of `save`; None if only the weights are new.
      graph_of: the directory of the previous version, whose graph it shares, if only the weights
        are new; else None.
      removed: the numbers of the older versions that were removed.
      notes: problems that occurred after it was written, as text.
      labels: the labels of the model's versions for TensorFlow Serving.
    """

    version: int
    path: AnyPath
    saved: SavedModel | None = None
    graph_of: AnyPath | None = None
    removed: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name_items(self, labels="label")

    @staticmethod
    def with_model(new: NewVersion[SavedModel]) -> Published:
        """Describes a model that was saved as the new version."""
        saved = replace(new.result, path=new.path)
        return Published(new.version, new.path, saved, None, new.removed, new.notes, new.labels)

    @staticmethod
    def with_weights(new: NewVersion[AnyPath]) -> Published:
        """Describes a version with other weights for the graph of an older one."""
        base = new.result
        return Published(new.version, new.path, None, base, new.removed, new.notes, new.labels)

    def __str__(self) -> str:
        lines = [f"version {self.version}: {self.path}"]
        if self.saved is not None:
            lines += str(self.saved).splitlines()[1:]
        if self.graph_of is not None:
            lines.append(f"  new weights for the graph of version {self.graph_of.name}")
        if self.removed:
            lines.append(f"  removed: {', '.join(map(str, self.removed))}")
        if self.labels:
            lines.append(f"  {describe_labels(self.path.parent, self.labels)}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


_SPEC = "(b, ...)"


def _list_fixed_sizes(endpoint: Endpoint) -> dict[str, ServedArray]:
    """Returns the inputs that are not scalars, by name; none of them if any size is open."""
    arrays = {port.name: ServedArray.of_aval(port.aval) for port in endpoint.inputs}
    if any(is_symbolic_dim(d) for array in arrays.values() for d in array.shape or ()):
        return {}
    return {name: array for name, array in arrays.items() if array.shape}


def _write_open_call(endpoint: Endpoint) -> str:
    """Writes the code that would leave the first dimension of the arguments open."""
    structure = endpoint.arguments
    avals = iter(endpoint.portable.in_avals[len(endpoint.function.weights) :])
    shapes = {
        name: [next(avals).shape for _ in range(tree.leaf_count)]
        for name, tree in structure.arguments()
    }
    is_jax_function = bool(endpoint.signature.args or endpoint.signature.kwargs)
    names = [name for name, each in shapes.items() if each and all(each)]
    applies_to_all = names == list(shapes) and not structure.kwargs
    if len({shape[0] for name in names for shape in shapes[name]}) != 1:
        value = "AUTO"  # their first dimensions are not all the batch
    elif applies_to_all and (is_jax_function or not endpoint.takes_params):
        value = repr(_SPEC)
    else:
        value = repr(dict.fromkeys(names, _SPEC))
    return f"{'Signature' if is_jax_function else 'export'}(..., polymorphic_shapes={value})"


def _format_buckets(bucketing: Bucketing | None, *, joins_requests: bool) -> str:
    if bucketing is None:
        return ""
    pads = {name: number_text(value) for name, value in bucketing.pad_values.items()}
    texts = format_buckets(bucketing.sizes)
    texts += format_padding(
        pads, bucketing.masks, bucketing.unchecked, joins_requests=joins_requests
    )
    return "; ".join(texts)


def _find_gradient_problem(endpoint: Endpoint) -> str:
    if endpoint.function.orders is not None:
        return ""
    return endpoint.portable.gradient_problem() or ""


def iterate_notes(
    endpoints: Sequence[Endpoint], trainable: Sequence[str], *, is_chosen: bool
) -> Iterator[str]:
    """Yields facts about a model that its user may not expect.

    Args:
      endpoints: the signatures.
      trainable: the names of the trainable variables.
      is_chosen: whether the user chose these variables.
    """
    if not is_chosen:
        yield from _note_statistics(trainable)
    yield from map(_note_forgotten_updates, filter(_has_forgotten_updates, endpoints))
    for e in endpoints:
        if problem := _find_gradient_problem(e):
            place = f" for {e.name}" if len(endpoints) > 1 else ""
            yield f"saved without a gradient{place}: {problem}"
    yield from _note_constant_keys(endpoints)
    yield from _note_unused_keys(endpoints)
    for e in endpoints:
        yield from e.padded.notes if e.padded else ()


def _note_statistics(trainable: Sequence[str]) -> Iterator[Message]:
    """Warns if training would change running statistics, such as those of Flax's BatchNorm."""
    collections = dict.fromkeys(name.partition("/")[0] for name in trainable)
    others = [name for name in collections if name != _STATISTICS]
    # A training state also has the optimizer's own state, which no optimizer should train.
    others = ["params"] if "params" in others else others
    if _STATISTICS in collections and others:
        yield Message(
            f"{_STATISTICS} are trainable, and an optimizer in TensorFlow would change these "
            "running statistics: to leave them fixed, pass ",
            Argument("trainable", others),
        )


def _has_forgotten_updates(endpoint: Endpoint) -> bool:
    """Returns whether outputs look like new weights: the second of a pair has their structure."""
    if not endpoint.takes_params or endpoint.function.updates:
        return False
    weights, results = endpoint.portable.first_argument, endpoint.portable.out_tree.children
    return weights.leaf_count > 1 and len(results) == 2 and results[1] == weights


def _note_forgotten_updates(endpoint: Endpoint) -> Message:
    return Message(
        f"{endpoint.name} returns values in the structure of the weights, as outputs: to assign "
        "them to the weights, pass ",
        Argument("updates_params", True),
    )


def _note_constant_keys(endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """Notes results that depend on PRNG keys among the weights, if no signature changes them."""
    changed = {v.ref() for e in endpoints for v in e.function.updates.values()}
    for e in endpoints:
        weights = dict(zip(e.portable.in_paths(), e.function.weights, strict=False))
        paths = find_prng_keys(e.portable, len(weights))
        if keys := [path for path in paths if weights[path].ref() not in changed]:
            yield prng_keys_text(keys, e.name if len(endpoints) > 1 else "")


def _note_unused_keys(endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """Notes inputs that are PRNG keys and that their signature's function never reads."""
    for e in endpoints:
        first, used = len(e.function.weights), set(e.portable.module.kept_arguments)
        arguments = zip(e.function.inputs, e.portable.inputs[first:], strict=True)
        unused = [
            port.name
            for i, (port, argument) in enumerate(arguments, first)
            if argument.aval.is_key and i not in used
        ]
        if unused:
            keys = "PRNG key" if len(unused) == 1 else "PRNG keys"
            yield (
                f"{e.name} never reads the {keys} {join_names(unused, _MAX_SHOWN)}: the results "
                "are the same for all keys. To draw, as dropout does, run the model in training "
                "mode and pass it the key before it is saved (apply(..., rngs=...) in Flax linen, "
                "model.train() in Flax nnx); else remove the argument."
            )
