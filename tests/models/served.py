"""Loads what `expected` wrote and compares values and gradients; needs TensorFlow, not JAX."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.consumers.exchange import EXAMPLE, OPERATIONS, read_arrays
from tests.consumers.one_by_one import note_size, note_time
from tests.consumers.own_operations import foreign_operations
from tests.models.comparing import compare, largest

SMALLEST = 1e-3
"""Smallest gradient that is compared, as a share of the largest one; cancellation leaves less."""


def served_differences(folder: Path) -> list[str]:
    """Lists what differs from JAX's answers: by the method, the signature, a gradient.

    Of the model that XLA runs, and of that of TensorFlow's own operations.
    """
    own = f"{OPERATIONS}model"
    return [
        *_differences(folder, "model"),
        *(f"{own}: {text}" for text in _differences(folder, own)),
    ]


def _differences(folder: Path, name: str) -> Iterator[str]:
    facts = json.loads((folder / "model.json").read_text())
    model = tf.saved_model.load(str(folder / name))
    if name.startswith(OPERATIONS):
        found = foreign_operations(model.signatures["serving_default"].graph)
        if found:
            yield f"its graph has {', '.join(found)}"
    note_size(name, folder / name)
    weights = [model.params[name] for name in facts["weights"]]
    signature = model.signatures["serving_default"]
    example = map(tf.constant, read_arrays(folder / EXAMPLE)["inputs"])
    call = functools.partial(signature, **dict(zip(facts["inputs"], example, strict=True)))
    note_time(name, functools.partial(_read_results, call))
    for i in range(facts["calls"]):
        arrays = read_arrays(folder / f"call-{i}.npz")
        inputs = [tf.constant(array) for array in arrays["inputs"]]
        sources = [*(inputs[j] for j in facts["sources"]), *weights]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            results = tf.nest.flatten(model.serving_default(*filled(facts["arguments"], inputs)))
        targets = [r for r in results if r.dtype.is_floating]
        cotangents = [tf.constant(c) for c in arrays["cotangents"]]
        gradients = tape.gradient(targets, sources, cotangents, tf.UnconnectedGradients.ZERO)
        named = signature(**dict(zip(facts["inputs"], inputs, strict=True)))
        tolerance = facts["tolerance"]
        names = facts["outputs"]
        answers = arrays["results"]
        yield from compare(f"call {i}, ", names, results, answers, tolerance, noted=name)
        by_name = [named[name] for name in names]
        yield from compare(f"signature, call {i}, ", names, by_name, answers, tolerance)
        names = [*(facts["inputs"][j] for j in facts["sources"]), *facts["weights"]]
        expected = arrays["gradients"]
        tolerance = facts["gradient_tolerance"]
        floor = SMALLEST * max(map(largest, expected))
        where = f"call {i}, gradient of "
        yield from compare(where, names, gradients, expected, tolerance, floor=floor)


def _read_results(call: Callable[[], Mapping[str, Any]]) -> list[Any]:
    return [result.numpy() for result in call().values()]


def filled(structure: Any, values: Sequence[Any]) -> Any:
    """A structure of indices with the values in their places."""
    if isinstance(structure, Mapping):
        return {key: filled(child, values) for key, child in structure.items()}
    if isinstance(structure, list):
        return [filled(child, values) for child in structure]
    return values[structure]
