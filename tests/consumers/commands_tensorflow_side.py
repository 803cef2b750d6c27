"""Loads what `jax2tf-bridge save` wrote, and compares it with what JAX answered.

    python -m tests.consumers.commands_tensorflow_side REFERENCES MODELS

prints a line for each difference. Needs TensorFlow alone: neither JAX nor the bridge.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.consumers.comparison import differences
from tests.consumers.exchange import read_reference
from tests.plugins.blocked_imports import forbid_jax
from tests.program_cases.answers import FlatFunction, differentiate


def _differences(name: str, references: Path, model: Path) -> Iterator[str]:
    facts = json.loads((references / f"{name}.json").read_text())
    names = json.loads(model.with_suffix(".json").read_text())
    loaded = tf.saved_model.load(str(model))
    for i in range(facts["calls"]):
        expected = read_reference(references / f"{name}-{i}")
        for kind, call in (
            ("method", _by_structure(loaded.serving_default)),
            ("signature", _by_name(loaded.signatures["serving_default"], **names)),
        ):
            results, gradients = differentiate(call, expected.inputs, expected)
            where, tolerance = f"{name}, call {i}, {kind}, ", facts["tolerance"]
            yield from differences(f"{where}result", results, expected.results, tolerance)
            yield from differences(f"{where}gradient", gradients, expected.gradients, tolerance)


def _by_name(call: Any, inputs: Sequence[str], outputs: Sequence[str]) -> FlatFunction:
    def flat(*tensors: Any) -> list[Any]:
        found = call(**dict(zip(inputs, tensors, strict=True)))
        return [found[name] for name in outputs]

    return flat


def _by_structure(method: Any) -> FlatFunction:
    """Gives the method the JAX function's arguments; TensorFlow sorts dicts as JAX does."""
    structure = method.concrete_functions[0].structured_input_signature

    def flat(*tensors: Any) -> list[Any]:
        args, kwargs = tf.nest.pack_sequence_as(structure, list(tensors))
        return list(tf.nest.flatten(method(*args, **kwargs)))

    return flat


def main(references: Path, models: Path) -> None:
    """Prints TensorFlow's release, and every difference."""
    forbid_jax()
    print(tf.__version__)
    for model in sorted(path for path in models.iterdir() if path.is_dir()):
        for difference in _differences(model.name, references, model):
            print(difference)
    if "jax2tf_bridge" in sys.modules:
        print("the bridge was imported to load them")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
