"""Warm-up requests of signatures with a preprocess: from examples of what it takes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.saving._endpoint import Endpoint
from jax2tf_bridge.saving._processing import arguments, check_preprocess
from jax2tf_bridge.saving._served import ServedArray
from jax2tf_bridge.saving._signature_inputs import examples_of
from jax2tf_bridge.saving.buckets._buckets import values_text
from jax2tf_bridge.saving.serving._precompile import first_words
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest
from jax2tf_bridge.to_tf._dtypes import fits_shape
from shape_poly import DimExpr, solve_dimensions

_MOST_SHOWN = 3
"""Choices of buckets in a note."""

_Tensors = Mapping[str, tf.Tensor]


def example_requests(endpoint: Endpoint) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """The requests for a signature with a preprocess; and, for people, what they leave out.

    Without buckets each example is one. With buckets there is one for each choice of them that an
    example reaches: as it is, or with its rows repeated or cut, where these are rows of the
    function's arguments as well.

    Raises:
      SavingError: an example is none of what preprocess takes, or preprocess fails on it, or what
        it gives then is nothing that the function takes.
    """
    examples = _examples(endpoint)
    if not examples:
        code = f"Signature(..., example={{{', '.join(_example_code(endpoint))}}})"
        return (), (
            f"no warm-up requests for {endpoint.name}: they need an example of what its preprocess "
            f"takes, as {code}",
        )
    probe = _Probe.of(endpoint)
    if endpoint.bucketing is None:
        for example in examples:
            probe.sizes(example)
        return tuple(_request(endpoint.name, example) for example in examples), ()
    found: dict[tuple[int, ...], _Tensors] = {}
    for example in (e for given in examples for e in (given, *_resized(probe, given))):
        choice = _choice(endpoint, probe.sizes(example))
        if choice is not None:
            found.setdefault(choice, example)
    choices = [tuple(choice.values()) for choice in endpoint.bucketing.choices()]
    requests = tuple(_request(endpoint.name, found[c]) for c in choices if c in found)
    missing = [
        values_text(choice)
        for choice in endpoint.bucketing.choices()
        if tuple(choice.values()) not in found
    ]
    return requests, _missing_note(endpoint.name, missing)


def example_arguments(endpoint: Endpoint) -> dict[str, np.ndarray[Any, Any]]:
    """What preprocess gives for the first example, by the function's inputs; empty without one.

    Examples that become arrays without a number are passed over.

    Raises:
      SavingError: as `example_requests`.
    """
    check_preprocess(endpoint.name, endpoint.signature)
    examples = _examples(endpoint)
    if not examples:
        return {}
    probe = _Probe.of(endpoint)
    for example in examples:
        given = probe.arguments(example)
        if all(0 not in tensor.shape for tensor in given.values()):
            return {name: np.asarray(tensor.numpy()) for name, tensor in given.items()}
    return {}


@dataclass(frozen=True)
class _Probe:
    """Runs preprocess to see which sizes its results have; `call` is it as it is served."""

    endpoint: Endpoint
    call: Any

    @staticmethod
    def of(endpoint: Endpoint) -> _Probe:
        function = tf.function(lambda **given: arguments(endpoint, given), autograph=False)
        return _Probe(endpoint, function.get_concrete_function(**endpoint.taken()))

    def arguments(self, example: _Tensors) -> dict[str, tf.Tensor]:
        """What preprocess gives for an example, by the function's inputs.

        Raises:
          SavingError: preprocess fails on it, or gives sizes that the function does not take, or
            that contradict each other.
        """
        place = f"preprocess of the signature {self.endpoint.name}"
        try:
            found: dict[str, tf.Tensor] = self.call(**example)
        except tf.errors.OpError as e:
            raise SavingError(
                f"{place} fails on the example that is given for warm-up requests "
                f"({_text(example)}): {first_words(e.message)}"
            ) from e
        avals = self.endpoint.inputs
        for name, aval in avals.items():
            if not fits_shape(found[name], aval):
                raise SavingError(
                    f"{place} does not give what {self.endpoint.record.name} takes, for the "
                    f"example ({_text(example)}): {name}: expected {ServedArray.of_aval(aval)}, "
                    f"got {ServedArray.of_tensor(found[name])}. Its sizes are fixed: open them "
                    "with polymorphic_shapes, or pad to them in preprocess."
                )
        problem = _contradiction({name: (avals[name], found[name]) for name in avals})
        if problem is not None:
            raise SavingError(
                f"{place} gives sizes that contradict each other, for the example "
                f"({_text(example)}): {problem} Make them agree in preprocess, or give the "
                "arguments variables of their own with polymorphic_shapes."
            )
        return found

    def sizes(self, example: _Tensors) -> dict[str, int]:
        """The dimension variables of the function for an example.

        Raises:
          SavingError: as `arguments`.
        """
        found, avals = self.arguments(example), self.endpoint.inputs
        return _solved({name: (avals[name], found[name]) for name in avals})


def _solved(arguments: Mapping[str, tuple[Aval, tf.Tensor]]) -> dict[str, int]:
    """The dimension variables of arguments, as far as they follow from their sizes."""
    return solve_dimensions(
        [aval.op_shape for aval, _ in arguments.values()],
        [tuple(tensor.shape) for _, tensor in arguments.values()],
    )


def _contradiction(arguments: Mapping[str, tuple[Aval, tf.Tensor]]) -> str | None:
    """Two sizes of arguments that cannot both be, as a sentence; None where all fit."""
    values = _solved(arguments)
    source: dict[str, str] = {}
    wrong: list[tuple[str, int, DimExpr]] = []
    for name, (aval, tensor) in arguments.items():
        for axis, dimension in enumerate(aval.op_shape):
            if not isinstance(dimension, DimExpr) or not dimension.variables() <= values.keys():
                continue
            if dimension.evaluate(values) != tensor.shape[axis]:
                wrong.append((name, axis, dimension))
                continue
            for variable in dimension.variables():
                source.setdefault(variable, f"{name}: {ServedArray.of_tensor(tensor)}")
    if not wrong:
        return None
    name, axis, dimension = wrong[0]
    variables = sorted(dimension.variables())
    sources = dict.fromkeys(source[v] for v in variables if v in source)
    return (
        f"{' and '.join(sources) or 'The sizes'} {'give' if len(sources) != 1 else 'gives'} "
        f"{values_text({v: values[v] for v in variables})}, so dimension {axis} of {name} must be "
        f"{dimension} = {dimension.evaluate(values)}, but {name} is "
        f"{ServedArray.of_tensor(arguments[name][1])}."
    )


def _examples(endpoint: Endpoint) -> list[dict[str, tf.Tensor]]:
    """The examples as tensors, with defaults for what is left out."""
    specs, defaults = endpoint.taken(), endpoint.defaults()
    examples = []
    for values in examples_of(endpoint.name, endpoint.signature):
        missing = [name for name in specs if name not in values and name not in defaults]
        if missing:
            raise SavingError(
                f"example of the signature {endpoint.name} has no value for {', '.join(missing)}, "
                "which preprocess takes as well."
            )
        fitting = {name: endpoint.fitting("example for", name, v) for name, v in values.items()}
        examples.append({name: fitting.get(name, defaults.get(name)) for name in specs})
    return examples


def _example_code(endpoint: Endpoint) -> Iterator[str]:
    """The code of an example: for each input without a default a value of its dtype and rank."""
    defaults = endpoint.defaults()
    for name, spec in endpoint.taken().items():
        if name in defaults:
            continue
        shape = tuple(1 if size is None else size for size in spec.shape) if spec.shape.rank else ()
        if spec.dtype == tf.string:
            value = "['some text']" if shape == (1,) else f"np.full({shape}, 'some text')"
        else:
            value = f"np.zeros({shape}, '{spec.dtype.name}')"
        yield f"{name!r}: {value}"


def _resized(probe: _Probe, example: _Tensors) -> Iterator[dict[str, tf.Tensor]]:
    """The example with as many rows as each bucket of the variables that its rows decide."""
    endpoint, specs = probe.endpoint, probe.endpoint.taken()
    bucketing = endpoint.bucketing
    assert bucketing is not None
    open_rows = [n for n, spec in specs.items() if ServedArray.of_tensor(spec).has_open_rows]
    counts = {int(example[name].shape[0]) for name in open_rows}
    if len(counts) != 1 or 0 in counts:
        return
    (rows,) = counts

    def with_rows(count: int) -> dict[str, tf.Tensor]:
        taken = np.arange(count) % rows
        return {n: tf.gather(x, taken) if n in open_rows else x for n, x in example.items()}

    once = probe.sizes(example)
    try:
        twice = probe.sizes(with_rows(2 * rows))
    except SavingError:  # what is first are no rows to preprocess
        return
    buckets = [
        sizes
        for variable, sizes in bucketing.sizes.items()
        if (once.get(variable), twice.get(variable)) == (rows, 2 * rows)
    ]
    for count in sorted(set(itertools.chain(*buckets))):
        yield with_rows(count)


def _choice(endpoint: Endpoint, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The buckets that a request of such sizes runs at; None if it runs at others too."""
    assert endpoint.bucketing is not None
    chosen = []
    for variable, buckets in endpoint.bucketing.sizes.items():
        place = bisect.bisect_left(buckets, sizes.get(variable, buckets[0]))
        if place == len(buckets):
            return None
        chosen.append(buckets[place])
    return tuple(chosen)


def _request(name: str, example: _Tensors) -> WarmUpRequest:
    return WarmUpRequest(name, {key: np.asarray(x.numpy()) for key, x in example.items()})


def _missing_note(name: str, missing: Sequence[str]) -> tuple[str, ...]:
    if not missing:
        return ()
    shown = "; ".join(missing[:_MOST_SHOWN])
    more = f"; and {len(missing) - _MOST_SHOWN} more" if len(missing) > _MOST_SHOWN else ""
    return (
        f"no warm-up requests for {name} with the buckets {shown}{more}: no example has such sizes "
        "after preprocess; give more of them, as Signature(..., example=[{...}, {...}])",
    )


def _text(example: _Tensors) -> str:
    return ", ".join(f"{name}: {ServedArray.of_tensor(x)}" for name, x in example.items())
