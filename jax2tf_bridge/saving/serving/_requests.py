"""Warm-up requests of signatures: from buckets, fixed sizes, or examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.saving.buckets import values_text
from jax2tf_bridge.saving.serving._precompile import first_words
from jax2tf_bridge.saving.serving._warm_up import (
    WarmUpRequest,
    request_of_example,
    request_without_buckets,
    requests_of,
)
from jax2tf_bridge.saving.signatures import (
    Endpoint,
    NamedPort,
    ServedArray,
    arguments,
    avals_of,
    check_preprocess,
    examples_of,
)
from jax2tf_bridge.to_tensorflow import can_have_shape
from shape_poly import Integers, SymbolicScope, is_symbolic_dim, make_plan, solve, variables_of

_MOST_SHOWN = 3
"""Choices of buckets in a note."""

_Tensors = Mapping[str, tf.Tensor]


def example_requests(endpoint: Endpoint) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """Makes the requests for a signature with a preprocess; and notes what they leave out.

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
    """Returns the function's inputs for the first example of a preprocess; empty without one.

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
    """Preprocess as it is served, run to see which sizes its results have."""

    endpoint: Endpoint
    call: Any

    @staticmethod
    def of(endpoint: Endpoint) -> _Probe:
        function = tf.function(lambda **given: arguments(endpoint, given), autograph=False)
        return _Probe(endpoint, function.get_concrete_function(**endpoint.taken()))

    def arguments(self, example: _Tensors) -> dict[str, tf.Tensor]:
        """Returns the function's inputs that preprocess gives for an example.

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
        for name, aval in avals_of(self.endpoint.inputs).items():
            if not can_have_shape(found[name], aval):
                raise SavingError(
                    f"{place} does not give what {self.endpoint.portable.name} takes, for the "
                    f"example ({_text(example)}): {name}: expected {ServedArray.of_aval(aval)}, "
                    f"got {ServedArray.of_tensor(found[name])}. Its sizes are fixed: open them "
                    "with polymorphic_shapes, or pad to them in preprocess."
                )
        _, problem = _solve(self.endpoint.inputs, found)
        if problem:
            raise SavingError(
                f"{place} gives sizes that contradict each other, for the example "
                f"({_text(example)}): {problem} Make them agree in preprocess, or give the "
                "arguments variables of their own with polymorphic_shapes."
            )
        return found

    def sizes(self, example: _Tensors) -> dict[str, int]:
        """Solves for the dimension variables of the function, for an example.

        Raises:
          SavingError: as `arguments`.
        """
        values, _ = _solve(self.endpoint.inputs, self.arguments(example))
        return values


def _solve(
    ports: Sequence[NamedPort], tensors: Mapping[str, tf.Tensor]
) -> tuple[dict[str, int], str]:
    """Solves for the dimension variables; and says which sizes contradict each other, or ""."""
    shapes = [port.aval.op_shape for port in ports]
    texts = [f"{port.name}: {ServedArray.of_tensor(tensors[port.name])}" for port in ports]
    plan = make_plan(shapes)
    sizes = [tuple(tensors[port.name].shape) for port in ports]
    solution = solve(plan, sizes, Integers(), smallest=0)
    if not solution.checks:
        return dict(solution.values), ""
    check = solution.checks[0]
    (place, *_) = check.places
    names = variables_of(shapes[place.argument][place.axis])
    sources = [texts[s.place.argument] for s in plan.steps if s.variable in names]
    return dict(solution.values), (
        f"{texts[place.argument]} does not fit {ports[place.argument].aval}, since "
        f"{''.join(map(str, check.reason))} (by {' and '.join(dict.fromkeys(sources))})."
    )


def _examples(endpoint: Endpoint) -> list[dict[str, tf.Tensor]]:
    """Converts the examples to tensors, with defaults for what is left out."""
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
    """Yields the code of an example: for each input without a default a value of its type."""
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
    """Yields the example with as many rows as each bucket of the variables that rows decide."""
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
    """Chooses the buckets that a request of such sizes runs at; None if it is above the largest."""
    assert endpoint.bucketing is not None
    chosen = [
        endpoint.bucketing.bucket_of(variable, sizes.get(variable, buckets[0]))
        for variable, buckets in endpoint.bucketing.sizes.items()
    ]
    return None if None in chosen else tuple(filter(None, chosen))


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


def warm_up_requests(
    endpoints: Iterable[Endpoint],
) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """Makes the requests that compile all that will be needed; and notes what they leave out.

    A signature with open sizes and no buckets, or with a preprocess, has those that its examples
    give: no other request stands for the rest.

    Raises:
      ShapeError: an example does not fit its input.
      SavingError: it does not fit the preprocess, or is no mapping.
    """
    requests: list[WarmUpRequest] = []
    notes: list[str] = []
    for endpoint in endpoints:
        if endpoint.signature.preprocess is not None:
            own, own_notes = example_requests(endpoint)
            requests += own
            notes += own_notes
        elif endpoint.bucketing is not None:
            requests += requests_of(endpoint.bucketing, endpoint.example())
        else:
            requests += _requests_without_buckets(endpoint)
    return tuple(requests), tuple(notes)


def _requests_without_buckets(endpoint: Endpoint) -> list[WarmUpRequest]:
    name, avals, portable = endpoint.name, avals_of(endpoint.inputs), endpoint.portable
    scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
    if any(is_symbolic_dim(d) for port in endpoint.inputs for d in port.aval.shape):
        return [
            request_of_example(name, avals, scope.constraints, example)
            for example in endpoint.examples()
        ]
    return [request_without_buckets(name, avals, scope.constraints, endpoint.example())]
