"""Writes the real models as SavedModels that converters read, with JAX's answers.

    python -m tests.models.export_for_converters FOLDER [MODEL ...]

The process is of its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

from jax2tf_bridge import Signature, Target, save
from tests.consumers.exchange import write_arrays, write_call_facts
from tests.models.export_litert import answers
from tests.models.export_models import export, named
from tests.models.model import Built, Model


def with_other_names(built: Built) -> Built:
    """Returns a model whose results have no names of inputs; converted graphs cannot have both."""

    def function(*args: Any) -> Any:
        results = built.function(*args)
        names = {"x": "x_after"} if isinstance(results, dict) else {}
        return {names.get(k, k): v for k, v in results.items()} if names else results

    functools.update_wrapper(function, built.function)
    return replace(built, function=function)


def _write(model: Model, folder: Path) -> None:
    folder.mkdir()
    built = with_other_names(model.build())
    signature = Signature(
        built.function, args=built.example, polymorphic_shapes=list(model.polymorphic_shapes)
    )
    saved = save(folder / "model", signature, params=built.params, target=Target.converters())
    (served,) = saved.signatures.values()
    calls = [built.example, *built.calls]
    for i, args in enumerate(calls):
        write_arrays(folder / f"call-{i}.npz", answers(built, args))
    write_call_facts(folder, [*served.inputs], [*served.outputs], len(calls), model.tolerance)


def main(folder: Path, *names: str) -> None:
    """Writes the models named, or all."""
    export(folder, named(names), _write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
