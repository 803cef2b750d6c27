"""Warm-up requests of signatures: from buckets, fixed sizes, examples, or small sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import SavingError, ShapeError
from jax2tf_bridge.portable import Aval, variables_in
from jax2tf_bridge.saving.buckets import (
    SMALLEST,
    TYPICAL,
    Bucketing,
    find_sizes,
    format_values,
)
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest, extract_first_line, make_zeros
from jax2tf_bridge.saving.signatures import Endpoint, run_preprocess
from jax2tf_bridge.signatures import NamedPort, ServedArray, avals_of, list_examples
from jax2tf_bridge.to_tensorflow import can_have_shape
from shape_poly import (
    Comparison,
    Integers,
    SymbolicScope,
    evaluate_shape,
    is_symbolic_dim,
    make_plan,
    solve,
    variables_of,
)

_MAX_SHOWN = 3
"""Maximum number of bucket combinations listed in a note."""

_Tensors = Mapping[str, tf.Tensor]


def make_warm_up_requests(
    endpoints: Iterable[Endpoint],
) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """Makes the requests that compile all needed programs, and notes on what they leave out.

    A signature with a preprocess, or with open sizes and no buckets, has requests from its
    examples. Without examples, open sizes get small requests, unless XLA would compile for them.

    Raises:
      ShapeError: an example does not fit its input.
      SavingError: an example does not fit the preprocess, or is not a mapping.
    """
    notes: list[str] = []
    requests: list[WarmUpRequest] = []
    for endpoint in endpoints:
        if endpoint.signature.processing.preprocess is not None:
            requests += _make_example_requests(endpoint, notes)
        elif endpoint.bucketing is not None:
            requests += make_bucket_requests(endpoint.bucketing, endpoint.example())
        else:
            requests += _make_requests_without_buckets(endpoint, notes)
    return tuple(requests), tuple(notes)


def _make_requests_without_buckets(endpoint: Endpoint, notes: list[str]) -> list[WarmUpRequest]:
    name, avals, portable = endpoint.name, avals_of(endpoint.inputs), endpoint.portable
    if not any(is_symbolic_dim(d) for port in endpoint.inputs for d in port.aval.shape):
        return [_make_request(name, avals, {}, endpoint.example())]
    scope = SymbolicScope((*portable.constraints, *portable.requirements), check=False)
    examples = endpoint.examples()
    if not examples and not portable.target.xla:
        return _make_small_requests(name, avals, scope.constraints, notes)
    # XLA compiles each size, so there are no requests of sizes that the user did not name.
    return [
        make_request_from_example(name, avals, scope.constraints, example) for example in examples
    ]


def _make_small_requests(
    name: str, inputs: Mapping[str, Aval], constraints: Sequence[Comparison], notes: list[str]
) -> list[WarmUpRequest]:
    """Makes requests of zeros, of the smallest and of typical sizes.

    TensorFlow optimizes the graph in the first request, whatever its sizes. Its kernels prepare
    themselves when they first run, and a matrix of one row has another kernel than one of several.
    """
    try:
        smallest, typical = (
            find_sizes(name, inputs.values(), constraints, {}, candidates)
            for candidates in (SMALLEST, TYPICAL)
        )
    except ShapeError:
        notes.append(
            f"no warm-up requests for {name}: no sizes were found that satisfy its constraints; "
            "give sizes, as Signature(..., example={...})"
        )
        return []
    sizes = [smallest] if smallest == typical else [smallest, typical]
    return [_make_request(name, inputs, values, {}) for values in sizes]


def make_bucket_requests(
    bucketing: Bucketing, example: Mapping[str, Any] | None = None
) -> tuple[WarmUpRequest, ...]:
    """Makes a request for each combination of buckets of a signature.

    Variables without buckets have the smallest sizes that the constraints allow.

    Args:
      bucketing: the buckets of the signature.
      example: values for some or all of the inputs, for a function that fails on zeros or is slow
        on them. They are repeated or cut to the size of each bucket.

    Raises:
      ShapeError: an example does not fit its input, or no sizes satisfy the constraints.
    """
    return tuple(
        _make_bucket_request(bucketing, choice, example or {}) for choice in bucketing.choices()
    )


def check_example(bucketing: Bucketing, example: Mapping[str, Any]) -> None:
    """Checks that an example fits the buckets.

    Raises:
      ShapeError: as for `make_bucket_requests`.
    """
    if example:
        _make_bucket_request(bucketing, next(iter(bucketing.choices())), example)


def _make_bucket_request(
    bucketing: Bucketing, choice: Mapping[str, int], example: Mapping[str, Any]
) -> WarmUpRequest:
    avals = (*bucketing.inputs.values(), *bucketing.outputs.values())
    sizes = find_sizes(bucketing.name, avals, bucketing.constraints, choice)
    return _make_request(bucketing.name, bucketing.passed_inputs(), sizes, example)


def make_request_from_example(
    signature: str,
    inputs: Mapping[str, Aval],
    constraints: Sequence[Comparison],
    example: Mapping[str, Any],
) -> WarmUpRequest:
    """Makes a request from an example for a signature with open sizes and no buckets.

    Missing inputs are zeros, of the smallest sizes that fit the example.

    Raises:
      ShapeError: the example does not fit the inputs or the constraints.
    """
    arrays = {name: np.asarray(example[name]) for name in inputs if name in example}
    for name, array in arrays.items():
        _check_fits(signature, name, inputs[name], array)
    shapes = [inputs[name].op_shape for name in arrays]
    sizes = [array.shape for array in arrays.values()]
    solution = solve(
        make_plan(shapes, constraints=constraints), sizes, Integers(), constraints, smallest=0
    )
    failed = next((check for check in solution.checks if check.holds is False), None)
    if failed is not None:
        texts = (
            f"{name} is {array_type_text(array.dtype, array.shape)}, expected {inputs[name]}"
            for name, array in arrays.items()
        )
        raise ShapeError(
            f"{signature}: the sizes of the example are impossible: {'; '.join(texts)}: "
            f"{''.join(map(str, failed.reason))}"
        )
    values = find_sizes(signature, tuple(inputs.values()), constraints, solution.values)
    request = _make_request(signature, inputs, values, example)
    for name, array in arrays.items():
        if request.inputs[name].shape != array.shape:
            missing = [n for n in inputs if n not in arrays and variables_in(inputs[n])]
            raise ShapeError(
                f"{signature}: the example for {name} is "
                f"{array_type_text(array.dtype, array.shape)}; its sizes do not follow from "
                f"{inputs[name]} alone. Give {' and '.join(missing)} as well."
            )
    return request


def _make_request(
    signature: str,
    inputs: Mapping[str, Aval],
    values: Mapping[str, int],
    example: Mapping[str, Any],
) -> WarmUpRequest:
    arrays = {}
    for name, aval in inputs.items():
        shape = tuple(size or 0 for size in evaluate_shape(aval.op_shape, values))
        if name in example:
            arrays[name] = _fit_array(signature, name, aval, np.asarray(example[name]), shape)
        else:
            arrays[name] = make_zeros(shape, aval.op_dtype)
    return WarmUpRequest(signature, arrays)


def _fit_array(
    signature: str, name: str, aval: Aval, array: Any, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Repeats or cuts an array along each dimension that is not fixed."""
    _check_fits(signature, name, aval, array, shape)
    for axis, size in enumerate(shape):
        if array.shape[axis] != size:
            array = np.take(array, np.arange(size) % array.shape[axis], axis)
    return np.asarray(array, order="C")  # ascontiguousarray gives scalars a dimension


def _check_fits(
    signature: str, name: str, aval: Aval, array: Any, shape: tuple[int, ...] | None = None
) -> None:
    """Raises unless an array fits an input, or can be repeated to `shape`."""
    dtype = tf.as_dtype(aval.op_dtype).as_numpy_dtype
    target = array.shape if shape is None else shape
    has_sizes = array.ndim == len(aval.op_shape) and all(
        actual == d if isinstance(d, int) else actual > 0 or size == 0
        for actual, size, d in zip(array.shape, target, aval.op_shape, strict=True)
    )
    if not has_sizes or array.dtype != dtype:
        raise ShapeError(
            f"{signature}: the example for {name} is {array_type_text(array.dtype, array.shape)}, "
            f"and {name} is {aval}"
        )


def _make_example_requests(endpoint: Endpoint, notes: list[str]) -> list[WarmUpRequest]:
    """Makes the requests for a signature with a preprocess.

    Without buckets each example is a request. With buckets there is a request for each combination
    of buckets that an example reaches. If the rows of an example are rows of the function's
    arguments, they are repeated or cut to reach more.

    Raises:
      SavingError: an example does not fit preprocess, preprocess fails on it, or the result does
        not fit the function.
    """
    name, bucketing = endpoint.name, endpoint.bucketing
    examples = _convert_examples(endpoint)
    if not examples:
        code = f"Signature(..., example={{{', '.join(_iterate_example_code(endpoint))}}})"
        notes.append(
            f"no warm-up requests for {name}: they need an example of what its preprocess takes, "
            f"as {code}"
        )
        return []
    probe = _Probe.of(endpoint)
    if bucketing is None:
        for example in examples:
            probe.run(example)
        return [_to_request(name, example) for example in examples]
    by_choice: dict[tuple[int, ...], _Tensors] = {}
    for example in (e for original in examples for e in (original, *_repeat_rows(probe, original))):
        _, sizes = probe.run(example)
        choice = _choose_buckets(bucketing, sizes)
        if choice is not None:
            by_choice.setdefault(choice, example)
    choices = {tuple(choice.values()): format_values(choice) for choice in bucketing.choices()}
    missing = [text for choice, text in choices.items() if choice not in by_choice]
    if missing:
        shown = "; ".join(missing[:_MAX_SHOWN])
        hidden = f"; and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
        notes.append(
            f"no warm-up requests for {name} with the buckets {shown}{hidden}: no example has such "
            "sizes after preprocess; give more of them, as Signature(..., example=[{...}, {...}])"
        )
    return [_to_request(name, by_choice[choice]) for choice in choices if choice in by_choice]


def make_example_arguments(endpoint: Endpoint) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the function's inputs for the first example of a preprocess; empty without one.

    Skips examples that become empty arrays.

    Raises:
      SavingError: as for `make_warm_up_requests`.
    """
    examples = _convert_examples(endpoint)
    if not examples:
        return {}
    probe = _Probe.of(endpoint)
    for example in examples:
        tensors, _ = probe.run(example)
        if all(0 not in tensor.shape for tensor in tensors.values()):
            return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items()}
    return {}


_MAX_ROWS = 4
"""Maximum number of rows of examples that run alone."""


def make_example_rows(endpoint: Endpoint) -> list[dict[str, tf.Tensor]]:
    """Returns the function's inputs for rows of the examples: all together, then each alone.

    Takes the first example that has several rows, and else joins examples of one row. Empty if
    there are no rows to compare.

    Raises:
      SavingError: as for `make_warm_up_requests`.
    """
    names, examples = _list_row_inputs(endpoint), _convert_examples(endpoint)
    if not names or not examples:
        return []
    counts = [{int(example[name].shape[0]) for name in names} for example in examples]
    together = next(
        (e for e, c in zip(examples, counts, strict=True) if len(c) == 1 and max(c) > 1), None
    )
    if together is None:
        shapes = {tuple(tuple(e[name].shape[1:]) for name in names) for e in examples}
        if len(examples) < 2 or len(shapes) > 1 or any(c != {1} for c in counts):
            return []
        joined = {name: tf.concat([e[name] for e in examples], axis=0) for name in names}
        together = {**examples[0], **joined}
    together = {**together, **{name: together[name][:_MAX_ROWS] for name in names}}
    count = int(together[names[0]].shape[0])
    alone = [
        {**together, **{name: together[name][row : row + 1] for name in names}}
        for row in range(count)
    ]
    probe = _Probe.of(endpoint)
    return [probe.run(example)[0] for example in (together, *alone)]


def _list_row_inputs(endpoint: Endpoint) -> list[str]:
    """Lists the inputs of preprocess whose first dimension is open."""
    specs = endpoint.saved_inputs()
    return [n for n, spec in specs.items() if ServedArray.of_tensor(spec).has_open_rows]


@dataclass(frozen=True)
class _Probe:
    """Preprocess as it is served; it runs on examples to find the sizes of its results."""

    endpoint: Endpoint
    call: Any

    @staticmethod
    def of(endpoint: Endpoint) -> _Probe:
        function = tf.function(lambda **inputs: run_preprocess(endpoint, inputs), autograph=False)
        return _Probe(endpoint, function.get_concrete_function(**endpoint.saved_inputs()))

    def run(self, example: _Tensors) -> tuple[dict[str, tf.Tensor], dict[str, int]]:
        """Runs preprocess on an example.

        Returns:
          The function's inputs, and the sizes of its dimension variables.

        Raises:
          SavingError: preprocess fails, or returns sizes that the function does not take or that
            contradict each other.
        """
        place = f"preprocess of the signature {self.endpoint.name}"
        try:
            results: dict[str, tf.Tensor] = self.call(**example)
        except tf.errors.OpError as e:
            raise SavingError(
                f"{place} fails on the example ({_format_types(example)}): "
                f"{extract_first_line(e.message)}"
            ) from e
        for name, aval in avals_of(self.endpoint.inputs).items():
            if not can_have_shape(results[name], aval):
                raise SavingError(
                    f"{place} does not return the arguments of {self.endpoint.portable.name} for "
                    f"the example ({_format_types(example)}): {name}: expected "
                    f"{ServedArray.of_aval(aval)}, got {ServedArray.of_tensor(results[name])}. "
                    "Its sizes are fixed: open them with polymorphic_shapes, or pad to them in "
                    "preprocess."
                )
        sizes, problem = _solve(self.endpoint.inputs, results)
        if problem:
            raise SavingError(
                f"{place} returns sizes that contradict each other, for the example "
                f"({_format_types(example)}): {problem} Make them agree in preprocess, or give the "
                "arguments different variables in polymorphic_shapes."
            )
        return results, sizes


def _solve(
    ports: Sequence[NamedPort], tensors: Mapping[str, tf.Tensor]
) -> tuple[dict[str, int], str]:
    """Solves for the dimension variables; also returns how sizes contradict each other, or ""."""
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
    for values in list_examples(endpoint.name, endpoint.signature):
        missing = [name for name in specs if name not in values and name not in defaults]
        if missing:
            raise SavingError(
                f"example of the signature {endpoint.name} has no value for {', '.join(missing)}, "
                "which preprocess takes as well."
            )
        tensors = {
            name: endpoint.convert_value("example for", name, v) for name, v in values.items()
        }
        examples.append({name: tensors.get(name, defaults.get(name)) for name in specs})
    return examples


def _iterate_example_code(endpoint: Endpoint) -> Iterator[str]:
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


def _repeat_rows(probe: _Probe, example: _Tensors) -> Iterator[dict[str, tf.Tensor]]:
    """Yields the example with as many rows as each bucket, for variables that count its rows."""
    bucketing, names = probe.endpoint.bucketing, _list_row_inputs(probe.endpoint)
    assert bucketing is not None
    counts = {int(example[name].shape[0]) for name in names}
    if len(counts) != 1 or 0 in counts:
        return
    (rows,) = counts

    def with_rows(count: int) -> dict[str, tf.Tensor]:
        indices = np.arange(count) % rows
        return {n: tf.gather(x, indices) if n in names else x for n, x in example.items()}

    _, values = probe.run(example)
    try:
        _, doubled_values = probe.run(with_rows(2 * rows))
    except SavingError:  # the first axis does not count rows
        return
    buckets = [
        sizes
        for variable, sizes in bucketing.sizes.items()
        if (values.get(variable), doubled_values.get(variable)) == (rows, 2 * rows)
    ]
    for count in sorted(set(itertools.chain(*buckets))):
        yield with_rows(count)


def _choose_buckets(bucketing: Bucketing, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    choice = [
        bucketing.find_bucket(variable, sizes.get(variable, buckets[0]))
        for variable, buckets in bucketing.sizes.items()
    ]
    return None if None in choice else tuple(filter(None, choice))


def _to_request(name: str, example: _Tensors) -> WarmUpRequest:
    return WarmUpRequest(name, {key: np.asarray(x.numpy()) for key, x in example.items()})


def _format_types(example: _Tensors) -> str:
    return ", ".join(f"{name}: {ServedArray.of_tensor(x)}" for name, x in example.items())
