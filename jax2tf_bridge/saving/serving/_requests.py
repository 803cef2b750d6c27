"""Warm-up requests of signatures: from buckets, fixed sizes, or examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.saving.buckets import format_sizes
from jax2tf_bridge.saving.serving._precompile import extract_first_line
from jax2tf_bridge.saving.serving._warm_up import (
    WarmUpRequest,
    make_bucket_requests,
    make_request_from_example,
    make_request_without_buckets,
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

_MAX_SHOWN = 3
"""Maximum number of bucket combinations listed in a note."""

_Tensors = Mapping[str, tf.Tensor]


def make_example_requests(endpoint: Endpoint) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """Makes the requests for a signature with a preprocess, and notes on what they leave out.

    Without buckets each example is a request. With buckets there is a request for each combination
    of buckets that an example reaches, either as it is or with its rows repeated or cut, if rows
    of the example are rows of the function's arguments.

    Raises:
      SavingError: an example does not fit preprocess, preprocess fails on it, or the result does
        not fit the function.
    """
    examples = _convert_examples(endpoint)
    if not examples:
        code = f"Signature(..., example={{{', '.join(_yield_example_code(endpoint))}}})"
        return (), (
            f"no warm-up requests for {endpoint.name}: they need an example of what its preprocess "
            f"takes, as {code}",
        )
    probe = _Probe.of(endpoint)
    if endpoint.bucketing is None:
        for example in examples:
            probe.solve_sizes(example)
        return tuple(_make_request(endpoint.name, example) for example in examples), ()
    by_choice: dict[tuple[int, ...], _Tensors] = {}
    for example in (e for original in examples for e in (original, *_resize(probe, original))):
        choice = _choose_buckets(endpoint, probe.solve_sizes(example))
        if choice is not None:
            by_choice.setdefault(choice, example)
    choices = [tuple(choice.values()) for choice in endpoint.bucketing.choices()]
    requests = tuple(_make_request(endpoint.name, by_choice[c]) for c in choices if c in by_choice)
    missing = [
        format_sizes(choice)
        for choice in endpoint.bucketing.choices()
        if tuple(choice.values()) not in by_choice
    ]
    return requests, _write_missing_note(endpoint.name, missing)


def make_example_arguments(endpoint: Endpoint) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the function's inputs for the first example of a preprocess; empty without one.

    Ignores examples that become empty arrays.

    Raises:
      SavingError: as for `make_example_requests`.
    """
    check_preprocess(endpoint.name, endpoint.signature)
    examples = _convert_examples(endpoint)
    if not examples:
        return {}
    probe = _Probe.of(endpoint)
    for example in examples:
        tensors = probe.run(example)
        if all(0 not in tensor.shape for tensor in tensors.values()):
            return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    return {}


@dataclass(frozen=True)
class _Probe:
    """Preprocess as it is served; runs to determine the sizes of its results."""

    endpoint: Endpoint
    call: Any

    @staticmethod
    def of(endpoint: Endpoint) -> _Probe:
        function = tf.function(lambda **inputs: arguments(endpoint, inputs), autograph=False)
        return _Probe(endpoint, function.get_concrete_function(**endpoint.saved_inputs()))

    def run(self, example: _Tensors) -> dict[str, tf.Tensor]:
        """Runs preprocess on an example, and returns the function's inputs.

        Raises:
          SavingError: preprocess fails, or returns sizes that the function does not take or that
            contradict each other.
        """
        place = f"preprocess of the signature {self.endpoint.name}"
        try:
            results: dict[str, tf.Tensor] = self.call(**example)
        except tf.errors.OpError as e:
            raise SavingError(
                f"{place} fails on the example that is given for warm-up requests "
                f"({_format_types(example)}): {extract_first_line(e.message)}"
            ) from e
        for name, aval in avals_of(self.endpoint.inputs).items():
            if not can_have_shape(results[name], aval):
                raise SavingError(
                    f"{place} does not give what {self.endpoint.portable.name} takes, for the "
                    f"example ({_format_types(example)}): {name}: expected "
                    f"{ServedArray.of_aval(aval)}, got {ServedArray.of_tensor(results[name])}. "
                    "Its sizes are fixed: open them with polymorphic_shapes, or pad to them in "
                    "preprocess."
                )
        _, problem = _solve(self.endpoint.inputs, results)
        if problem:
            raise SavingError(
                f"{place} gives sizes that contradict each other, for the example "
                f"({_format_types(example)}): {problem} Make them agree in preprocess, or give the "
                "arguments different variables in polymorphic_shapes."
            )
        return results

    def solve_sizes(self, example: _Tensors) -> dict[str, int]:
        """Solves for the dimension variables of the function, for an example.

        Raises:
          SavingError: as for `run`.
        """
        values, _ = _solve(self.endpoint.inputs, self.run(example))
        return values


def _solve(
    ports: Sequence[NamedPort], tensors: Mapping[str, tf.Tensor]
) -> tuple[dict[str, int], str]:
    """Solves for the dimension variables; also returns the contradiction of sizes, or ""."""
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


def _convert_examples(endpoint: Endpoint) -> list[dict[str, tf.Tensor]]:
    """Converts the examples to tensors, with defaults for missing inputs."""
    specs, defaults = endpoint.saved_inputs(), endpoint.defaults()
    examples = []
    for values in examples_of(endpoint.name, endpoint.signature):
        missing = [name for name in specs if name not in values and name not in defaults]
        if missing:
            raise SavingError(
                f"example of the signature {endpoint.name} has no value for {', '.join(missing)}, "
                "which preprocess takes as well."
            )
        tensors = {name: endpoint.fitting("example for", name, v) for name, v in values.items()}
        examples.append({name: tensors.get(name, defaults.get(name)) for name in specs})
    return examples


def _yield_example_code(endpoint: Endpoint) -> Iterator[str]:
    """Yields the code of an example: a value for each input without a default."""
    defaults = endpoint.defaults()
    for name, spec in endpoint.saved_inputs().items():
        if name in defaults:
            continue
        shape = tuple(1 if size is None else size for size in spec.shape) if spec.shape.rank else ()
        if spec.dtype == tf.string:
            value = "['some text']" if shape == (1,) else f"np.full({shape}, 'some text')"
        else:
            value = f"np.zeros({shape}, '{spec.dtype.name}')"
        yield f"{name!r}: {value}"


def _resize(probe: _Probe, example: _Tensors) -> Iterator[dict[str, tf.Tensor]]:
    """Yields the example with the rows of each bucket, for variables that equal its row count."""
    endpoint, specs = probe.endpoint, probe.endpoint.saved_inputs()
    bucketing = endpoint.bucketing
    assert bucketing is not None
    open_rows = [n for n, spec in specs.items() if ServedArray.of_tensor(spec).has_open_rows]
    counts = {int(example[name].shape[0]) for name in open_rows}
    if len(counts) != 1 or 0 in counts:
        return
    (rows,) = counts

    def with_rows(count: int) -> dict[str, tf.Tensor]:
        indices = np.arange(count) % rows
        return {n: tf.gather(x, indices) if n in open_rows else x for n, x in example.items()}

    once = probe.solve_sizes(example)
    try:
        twice = probe.solve_sizes(with_rows(2 * rows))
    except SavingError:  # the first axis is not that of rows
        return
    buckets = [
        sizes
        for variable, sizes in bucketing.sizes.items()
        if (once.get(variable), twice.get(variable)) == (rows, 2 * rows)
    ]
    for count in sorted(set(itertools.chain(*buckets))):
        yield with_rows(count)


def _choose_buckets(endpoint: Endpoint, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Returns the buckets for a request of these sizes; None above the largest bucket."""
    assert endpoint.bucketing is not None
    chosen = [
        endpoint.bucketing.find_bucket(variable, sizes.get(variable, buckets[0]))
        for variable, buckets in endpoint.bucketing.sizes.items()
    ]
    return None if None in chosen else tuple(filter(None, chosen))


def _make_request(name: str, example: _Tensors) -> WarmUpRequest:
    return WarmUpRequest(name, {key: np.asarray(x.numpy()) for key, x in example.items()})


def _write_missing_note(name: str, missing: Sequence[str]) -> tuple[str, ...]:
    if not missing:
        return ()
    shown = "; ".join(missing[:_MAX_SHOWN])
    more = f"; and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
    return (
        f"no warm-up requests for {name} with the buckets {shown}{more}: no example has such sizes "
        "after preprocess; give more of them, as Signature(..., example=[{...}, {...}])",
    )


def _format_types(example: _Tensors) -> str:
    return ", ".join(f"{name}: {ServedArray.of_tensor(x)}" for name, x in example.items())


def make_warm_up_requests(
    endpoints: Iterable[Endpoint],
) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """Makes the requests that compile all needed programs, and notes on what they leave out.

    A signature with open sizes and no buckets, or with a preprocess, has only requests from its
    examples.

    Raises:
      ShapeError: an example does not fit its input.
      SavingError: an example does not fit the preprocess, or is not a mapping.
    """
    requests: list[WarmUpRequest] = []
    notes: list[str] = []
    for endpoint in endpoints:
        if endpoint.signature.processing.preprocess is not None:
            own, own_notes = make_example_requests(endpoint)
            requests += own
            notes += own_notes
        elif endpoint.bucketing is not None:
            requests += make_bucket_requests(endpoint.bucketing, endpoint.example())
        else:
            requests += _make_requests_without_buckets(endpoint)
    return tuple(requests), tuple(notes)


def _make_requests_without_buckets(endpoint: Endpoint) -> list[WarmUpRequest]:
    name, avals, portable = endpoint.name, avals_of(endpoint.inputs), endpoint.portable
    scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
    if any(is_symbolic_dim(d) for port in endpoint.inputs for d in port.aval.shape):
        return [
            make_request_from_example(name, avals, scope.constraints, example)
            for example in endpoint.examples()
        ]
    return [make_request_without_buckets(name, avals, scope.constraints, endpoint.example())]
