"""Compiles the real models to C libraries, builds them by CMake, and compares them with JAX.

    python -m tests.c_library.compile_models FOLDER [MODEL ...]

A model is saved with open sizes, and compiled for the sizes of its first call. The process is of
its own for Keras, whose backend is chosen once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"

import jax
import numpy as np

from jax2tf_bridge import Signature, compile_library, load_library, save
from shape_poly import solve_dimensions
from tests.c_library.building import build_shared
from tests.consumers.exchange import Report
from tests.consumers.one_by_one import RECORD_TIMES, note_size, note_time, one_by_one
from tests.models.comparing import compare
from tests.models.export_litert import answers
from tests.models.export_models import named
from tests.models.model import Model


def _compile(model: Model, folder: Path) -> list[str]:
    """Compiles a model and returns what differs from JAX's answers."""
    built = model.build()
    signature = Signature(
        built.function, args=built.example, polymorphic_shapes=list(model.polymorphic_shapes)
    )
    saved = save(folder / "model", signature, params=built.params, vjp_order=0, warm_up=False)
    (served,) = saved.signatures.values()
    # All runtimes measure the time of the example.
    expected = answers(built, built.example if RECORD_TIMES in os.environ else built.calls[0])
    shapes = [
        [size for size in array.shape or () if size is not None] for array in served.inputs.values()
    ]
    sizes = solve_dimensions(shapes, [np.shape(array) for array in expected["inputs"]])
    compiled = compile_library(
        folder / "library", folder / "model", name=model.name, sizes=[dict(sizes)]
    )
    print(compiled, flush=True)
    library = build_shared(compiled.path, folder / "build", model.name)
    note_size("fixed", library)
    function = load_library(library)
    inputs = dict(zip(served.inputs, expected["inputs"], strict=True))
    outputs = function(**inputs)
    note_time("fixed", lambda: function(**inputs))
    results = [outputs[name] for name in served.outputs]
    names = list(served.outputs)
    tolerance = model.tolerance
    return list(compare("", names, results, expected["results"], tolerance, noted="fixed"))


def main(folder: Path, *names: str) -> None:
    """Compiles the models named, or all, and writes export.jsonl."""
    folder.mkdir(exist_ok=True)
    report = Report(folder / "export.jsonl")
    report.head({"jax": jax.__version__})
    by = {model.name: model for model in named(names)}

    def check(name: str) -> list[str]:
        failures = _compile(by[name], folder / name)
        jax.clear_caches()
        return failures

    one_by_one(report, by, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
