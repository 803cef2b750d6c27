"""Chooses the sizes of the requests of a load test, and makes their inputs."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from jax2tf_bridge._utils import array_type_text, as_integer, format_bytes, unknown_name_text
from jax2tf_bridge.comparing import PlausibleInputs, infer_batch_variable
from jax2tf_bridge.errors import Argument, BridgeError, Message, ShapeError
from jax2tf_bridge.portable import (
    MAX_REQUEST_BYTES,
    Aval,
    PortableFunction,
    count_bytes,
    variables_in,
)
from jax2tf_bridge.saved_model import (
    SERVING_DEFAULT,
    EntryPoint,
    Request,
    SavedModelContents,
    SignatureEntry,
    find_input_shapes,
    read_requests,
    read_sidecar,
    read_tensor_spec,
)
from jax2tf_bridge.serving_requests import find_dtypes_without_rest
from jax2tf_bridge.storage import as_path
from shape_poly import SymbolicScope, sample_sizes

Sizes: TypeAlias = Mapping[str, Iterable[int]]
"""Sizes of the requests by dimension variable; a repeated size is sent more often."""

Example: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Values of inputs by name, or several of them."""

_T = TypeVar("_T")
_Array: TypeAlias = npt.NDArray[Any]

_MAX_REQUESTS = 256
"""Maximum number of different requests."""
_MAX_BYTES = 1 << 28
"""Maximum number of bytes of all different requests, if there are more than `_MIN_REQUESTS`."""
_MIN_REQUESTS = 8
MAX_SIZES = 100_000
"""Maximum number of sizes of a dimension variable."""
_DEFAULT_MAX_SIZE = 32
"""Maximum size of the rows of a signature without buckets, if no sizes are given."""
_CANDIDATES = (16, 8, 4, 12, 6, 10, *range(1, 33), 48, 64, 96, 128, 224, 256, 384, 512)
"""Sizes to try for variables without buckets, preferred ones first."""

_SIZES = Argument("sizes")
_EXAMPLE = Argument("example")


@dataclass(frozen=True, eq=False)
class LoadRequest:
    """Request of a load test.

    Attributes:
      sizes: the sizes by dimension variable; empty if they are not known.
      inputs: the inputs by name.
    """

    sizes: Mapping[str, int]
    inputs: Mapping[str, _Array]

    def encode_json(self, signature: str) -> bytes:
        """Encodes the request for the REST API.

        Raises:
          BridgeError: the REST API does not take the dtype of an input.
        """
        # NumPy has texts as objects.
        dtypes = {n: a.dtype.name for n, a in self.inputs.items() if a.dtype.kind not in "OSU"}
        for name, dtype in find_dtypes_without_rest(dtypes).items():
            raise BridgeError(
                Message(
                    f"{name} is {dtype}, which TensorFlow Serving's REST API does not take. Use "
                    "gRPC: pip install grpcio, and pass ",
                    *(Argument("protocol", "gRPC"), "."),
                )
            )
        inputs = {name: _as_json(array.tolist()) for name, array in self.inputs.items()}
        return json.dumps({"signature_name": signature, "inputs": inputs}).encode()


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


@dataclass(frozen=True, eq=False)
class LoadPlan:
    """Requests of a load test, and the facts about their signature.

    Attributes:
      signature: the name of the signature.
      requests: the requests.
      buckets: the buckets of the signature by variable; empty if it has none.
      batch: the variable of the rows; None if there is none, or it is not known.
    """

    signature: str
    requests: tuple[LoadRequest, ...]
    buckets: Mapping[str, tuple[int, ...]]
    batch: str | None


def plan_load(
    contents: SavedModelContents,
    signature: str | None,
    sizes: Sizes | None,
    example: Example | None,
    seed: int,
) -> LoadPlan:
    """Chooses a signature, and makes requests for it.

    Raises:
      BridgeError: there is no such signature, or nothing says what its inputs look like.
      ShapeError: the sizes or the example do not fit the signature.
      FileFormatError: a file is damaged.
    """
    entry = _choose_signature(contents, signature)
    examples = [example] if isinstance(example, Mapping) else list(example or ())
    _check_examples(entry, examples)
    sidecar = read_sidecar(as_path(contents.path))
    if sidecar is not None and entry.name in sidecar[0].signatures:
        known, portable = sidecar[0].signatures[entry.name], sidecar[1][entry.name]
        shapes = find_input_shapes(entry.inputs, known, portable)
        if shapes is not None:
            dtypes = {port.name: port.type.dtype for port in entry.inputs}
            avals = {name: Aval(shape, dtypes[name]) for name, shape in shapes.items()}
            requests = _draw_requests(avals, known, portable, sizes, examples, seed)
            variables = requests[0].sizes
            buckets = {v: each for v, each in (known.buckets or {}).items() if v in variables}
            return LoadPlan(entry.name, requests, buckets, infer_batch_variable(avals))
        batch = _find_batch(known, portable)
        types = [port.type.shape for port in entry.inputs]
        if sizes and batch is not None and any(t and t[0] is None for t in types):
            return _repeat_rows(contents, entry, examples, sizes, batch, known.buckets or {})
    if sizes:
        raise ShapeError(
            Message(
                f"{entry.name}: the dimension variables of its inputs are not known, so requests "
                "cannot have given sizes. Remove ",
                *(_SIZES, ", and pass requests of such sizes with ", _EXAMPLE, "."),
            )
        )
    return LoadPlan(entry.name, _repeat_requests(contents, entry, examples), {}, None)


def _choose_signature(contents: SavedModelContents, name: str | None) -> EntryPoint:
    entries = {entry.name: entry for entry in contents.entries if entry.is_signature}
    if name is None:
        if SERVING_DEFAULT in entries or len(entries) == 1:
            return entries.get(SERVING_DEFAULT) or next(iter(entries.values()))
        raise BridgeError(
            Message(
                f"{contents.path} has no {SERVING_DEFAULT}. Name one of its signatures with ",
                *(Argument("signature"), f": {', '.join(entries) or 'there are none'}"),
            )
        )
    if name not in entries:
        raise BridgeError(f"{contents.path} has {unknown_name_text('signature', name, entries)}")
    return entries[name]


def _check_examples(entry: EntryPoint, examples: Sequence[Mapping[str, Any]]) -> None:
    """Raises if examples have other names, dtypes, ranks or fixed sizes than the inputs."""
    types = {port.name: port.type for port in entry.inputs}
    for example in examples:
        for name, value in example.items():
            if name not in types:
                text = f": {entry.name} has {unknown_name_text('input', name, types)}"
                raise ShapeError(Message(_EXAMPLE, text))
            start = f": {name} of {entry.name} is {types[name]}. Got "
            try:
                shape = np.asarray(value, _find_dtype(types[name].dtype)).shape
            except (ValueError, TypeError, OverflowError) as e:
                raise ShapeError(Message(_EXAMPLE, f"{start}{value!r:.200}")) from e
            expected = types[name].shape
            if expected is not None and not (
                len(shape) == len(expected)
                and all(e is None or a == e for a, e in zip(shape, expected, strict=True))
            ):
                text = f"{start}the shape {array_type_text('', shape)}"
                raise ShapeError(Message(_EXAMPLE, text))


def _draw_requests(
    avals: Mapping[str, Aval],
    known: SignatureEntry,
    portable: PortableFunction,
    sizes: Sizes | None,
    examples: Sequence[Mapping[str, Any]],
    seed: int,
) -> tuple[LoadRequest, ...]:
    constraints = (*portable.constraints, *portable.requirements)
    buckets, batch = known.buckets or {}, infer_batch_variable(avals)
    choices = choose_sizes(avals, constraints, buckets, sizes, seed)
    sequences = tuple(variable for variable in buckets if variable != batch)
    plausible = [
        PlausibleInputs(avals, sequences, batch, known.pad_numbers(), example)
        for example in examples or [{}]
    ]
    rng = np.random.default_rng(seed)
    requests: list[LoadRequest] = []
    for number, choice in enumerate(choices):
        arrays = plausible[number % len(plausible)].draw("full", choice, rng)
        inputs = {
            name: np.asarray(array, _find_dtype(avals[name].op_dtype), order="C")
            for name, array in arrays.items()
        }
        requests.append(LoadRequest(choice, inputs))
    return tuple(requests)


def _find_dtype(name: str) -> Any:
    import tensorflow as tf

    return tf.as_dtype(name).as_numpy_dtype


def choose_sizes(
    avals: Mapping[str, Aval],
    constraints: Sequence[str],
    buckets: Mapping[str, tuple[int, ...]],
    declared: Sizes | None,
    seed: int,
) -> list[dict[str, int]]:
    """Chooses the sizes of requests.

    Variables without declared sizes get all sizes up to their largest bucket. If no variable has
    declared sizes or buckets, the rows get 1 to 32. The others get a size that the constraints
    allow. If there are too many combinations, `seed` chooses some.

    Raises:
      ShapeError: a declared variable does not exist, a declared size is invalid, or no sizes
        satisfy the constraints.
    """
    names = sorted({v for aval in avals.values() for v in variables_in(aval)})
    if not names:
        if declared:
            raise ShapeError(Message(_SIZES, ": all sizes of the inputs are fixed. Remove it."))
        return [{}]
    lists = {v: _check_sizes(v, values, names) for v, values in (declared or {}).items()}
    for variable, sizes in buckets.items():
        if variable in names:
            lists.setdefault(variable, list(range(1, sizes[-1] + 1)))
    if not lists:
        lists[infer_batch_variable(avals) or names[0]] = list(range(1, _DEFAULT_MAX_SIZE + 1))
    scope = SymbolicScope(constraints, check=False)
    free = [name for name in names if name not in lists]

    @functools.cache
    def complete_sizes(*sizes: int) -> dict[str, int] | None:
        among = {variable: [size] for variable, size in zip(lists, sizes, strict=True)}
        samples = sample_sizes([*lists, *free], scope, among=among, candidates=_CANDIDATES)
        return next(samples, None)

    choices: list[dict[str, int]] = []
    for combination in _combine(list(lists.values()), seed):
        fixed_sizes = dict(zip(lists, combination, strict=True))
        complete = complete_sizes(*combination)
        if complete is not None:
            choices.append(complete)
        elif declared and fixed_sizes.keys() <= declared.keys():
            text = ", ".join(f"{variable}={size}" for variable, size in fixed_sizes.items())
            raise ShapeError(Message(_SIZES, f": {text} does not satisfy {scope}."))
    if not choices:
        raise ShapeError(
            Message(
                f"no sizes of {', '.join(names)} were found that satisfy {scope}. Pass some with ",
                *(_SIZES, "."),
            )
        )
    return _thin_out(choices, avals)


def _check_sizes(variable: str, sizes: Iterable[int], names: Sequence[str]) -> list[int]:
    if variable not in names:
        text = unknown_name_text("size", variable, names)
        raise ShapeError(Message(_SIZES, f": the inputs have {text}"))
    numbers = [(as_integer(size), size) for size in itertools.islice(sizes, MAX_SIZES + 1)]
    if len(numbers) > MAX_SIZES:
        raise ShapeError(Message(_SIZES, f": {variable}: expected at most {MAX_SIZES} sizes"))
    wrong = [size for number, size in numbers if number is None or number < 1]
    if wrong or not numbers:
        got = wrong[0] if wrong else "none"
        raise ShapeError(
            Message(_SIZES, f": {variable}: expected integers of at least 1. Got: {got}")
        )
    return [number for number, _ in numbers if number is not None]


def _combine(lists: Sequence[Sequence[int]], seed: int) -> list[tuple[int, ...]]:
    """Returns all combinations, or a random choice of them if they are many."""
    if len(lists) == 1 or math.prod(map(len, lists)) <= _MAX_REQUESTS:
        return list(itertools.product(*lists))
    generator = random.Random(seed)
    return [tuple(generator.choice(each) for each in lists) for _ in range(_MAX_REQUESTS)]


def _thin_out(choices: list[dict[str, int]], avals: Mapping[str, Aval]) -> list[dict[str, int]]:
    """Takes choices at equal distances if there are too many, or too many bytes."""
    choices.sort(key=lambda choice: [*choice.values()])
    request_bytes = [count_bytes(avals.values(), choice) for choice in choices]
    largest = max(range(len(choices)), key=request_bytes.__getitem__)
    _check_bytes(choices[largest], request_bytes[largest])
    total = sum(request_bytes)
    count = min(len(choices), _MAX_REQUESTS)
    if total > _MAX_BYTES:
        count = min(count, max(_MIN_REQUESTS, len(choices) * _MAX_BYTES // total))
    return _take_evenly(choices, count)


def _take_evenly(values: list[_T], count: int) -> list[_T]:
    """Returns values at equal distances, with the first and the last."""
    if count == len(values):
        return values
    last = len(values) - 1
    return [values[round(i * last / max(1, count - 1))] for i in range(count)]


def _check_bytes(sizes: Mapping[str, int], total: int) -> None:
    if total > MAX_REQUEST_BYTES:
        text = ", ".join(f"{variable}={size}" for variable, size in sizes.items())
        problem = (
            f": a request with {text} would have {format_bytes(total)}, and TensorFlow takes at "
            f"most {format_bytes(MAX_REQUEST_BYTES)}"
        )
        raise ShapeError(Message(_SIZES, problem))


def _find_batch(known: SignatureEntry, portable: PortableFunction) -> str | None:
    """Returns the batch variable of a function whose inputs a preprocess computes."""
    first = portable.first_argument.leaf_count if known.takes_params else 0
    return infer_batch_variable({port.path: port.aval for port in portable.inputs[first:]})


def _repeat_rows(
    contents: SavedModelContents,
    entry: EntryPoint,
    examples: Sequence[Mapping[str, Any]],
    sizes: Sizes,
    batch: str,
    buckets: Mapping[str, tuple[int, ...]],
) -> LoadPlan:
    """Repeats or cuts the rows of the examples, or of the warm-up requests, to some numbers.

    Raises:
      ShapeError: a size is invalid, or is not the number of rows.
      BridgeError: there are neither examples nor warm-up requests.
    """
    counts_by_variable = {
        variable: _check_sizes(variable, each, [batch]) for variable, each in sizes.items()
    }
    counts = sorted(counts_by_variable[batch])
    originals = _repeat_requests(contents, entry, examples)
    in_rows = {port.name for port in entry.inputs if port.type.shape and port.type.shape[0] is None}
    if any(len(original.inputs[name]) == 0 for original in originals for name in in_rows):
        raise ShapeError(Message(_EXAMPLE, ": it has no rows to repeat. Pass one or more."))
    row_bytes = max(
        sum(original.inputs[name][:1].nbytes for name in in_rows) for original in originals
    )
    _check_bytes({batch: counts[-1]}, counts[-1] * row_bytes)
    requests = []
    for number, count in enumerate(_take_evenly(counts, min(len(counts), _MAX_REQUESTS))):
        inputs = {
            name: value[np.arange(count) % len(value)] if name in in_rows else value
            for name, value in originals[number % len(originals)].inputs.items()
        }
        requests.append(LoadRequest({batch: count}, inputs))
    batch_buckets = {v: each for v, each in buckets.items() if v == batch}
    return LoadPlan(entry.name, tuple(requests), batch_buckets, batch)


def _repeat_requests(
    contents: SavedModelContents, entry: EntryPoint, examples: Sequence[Mapping[str, Any]]
) -> tuple[LoadRequest, ...]:
    """Returns the examples, or the warm-up requests, as they are."""
    types = {port.name: port.type for port in entry.inputs}
    if examples:
        for example in examples:
            missing = [name for name in types if name not in example]
            if missing:
                text = f": {entry.name} also takes {', '.join(missing)}"
                raise ShapeError(Message(_EXAMPLE, text))
        return tuple(
            LoadRequest(
                {},
                {n: np.asarray(v, _find_dtype(types[n].dtype)) for n, v in example.items()},
            )
            for example in examples
        )
    warm_up = (r for r in read_requests(as_path(contents.path)) if r.signature == entry.name)
    requests = tuple(map(_read_request, itertools.islice(warm_up, _MAX_REQUESTS)))
    if not requests:
        raise BridgeError(
            Message(
                f"{contents.path} does not say which values {entry.name} takes, and has no "
                "warm-up requests for it. Pass values of its inputs with ",
                *(_EXAMPLE, "."),
            )
        )
    return requests


def _read_request(request: Request) -> LoadRequest:
    import tensorflow as tf

    inputs = {}
    for name, message in request.inputs.items():
        content = message.data[message.start : message.end]
        spec = read_tensor_spec(message)
        inputs[name] = np.asarray(tf.io.parse_tensor(bytes(content), spec.dtype).numpy())
    return LoadRequest({}, inputs)
