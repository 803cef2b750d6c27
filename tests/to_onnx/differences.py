"""Compares a real model in ONNX Runtime with JAX."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax2tf_bridge import Signature, save_onnx
from tests.consumers.exchange import Array
from tests.consumers.one_by_one import note_size, note_time
from tests.models.comparing import compare
from tests.models.model import Built, Model
from tests.program_cases.reference import crossing
from tests.to_onnx.running import session


def _arrays(tree: Any) -> list[Array]:
    """Returns the leaves as they cross to a model, which has float32 for bfloat16."""
    arrays = map(crossing, jax.tree_util.tree_leaves(tree))
    return [a.astype(np.float32) if a.dtype.name == "bfloat16" else a for a in arrays]


def find_differences(model: Model, built: Built, path: Path) -> Iterator[str]:
    """Writes a model with open sizes, and yields where its results are not JAX's."""
    shapes = list(model.polymorphic_shapes)
    signature = Signature(built.function, args=built.example, polymorphic_shapes=shapes)
    saved = save_onnx(path, signature, params=built.params, verify=False)
    note_size("open", path)
    ((_, served),) = saved.signatures.items()
    loaded = session(path)
    function = jax.jit(built.function)
    for i, args in enumerate([built.example, *built.calls]):
        inputs = dict(zip(served.inputs, _arrays(args), strict=True))
        got = loaded.run([*served.outputs], inputs)
        if i == 0:
            note_time("open", functools.partial(loaded.run, [*served.outputs], inputs))
        want, names = _arrays(function(built.params, *args)), [*served.outputs]
        yield from compare(f"call {i}, ", names, got, want, model.tolerance, noted="open")
