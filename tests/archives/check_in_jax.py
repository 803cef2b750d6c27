"""Runs archives of older releases under this JAX, and writes them anew for TensorFlow.

    python -m tests.archives.check_in_jax FOLDER REPORT [PROGRAM ...]

FOLDER is what write_archives wrote. Beside each archive comes a `program.jaxfn`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from jax2tf_bridge import Target, retarget, to_exported
from jax2tf_bridge.serialization import deserialize, write_function
from tests.archives.layout import ARCHIVE, RETARGETED, program_folders
from tests.archives.register_types import register_types
from tests.consumers.comparison import differences
from tests.consumers.exchange import Report, read_reference
from tests.consumers.one_by_one import one_by_one
from tests.program_cases.answers import Reference
from tests.program_cases.reference import conjugate, crossing

# The TensorFlow that runs them, and so what they may use.
TARGET = Target.tensorflow("2.21")


def _check(folder: Path) -> list[str]:
    facts = json.loads((folder / "program.json").read_text())
    order = int(facts["differentiable"])
    with jax.enable_x64(facts["x64"]):
        portable = deserialize((folder / ARCHIVE).read_bytes())
        write_function(folder / RETARGETED, retarget(portable, TARGET), vjp_order=order)
        exported = to_exported(portable)
        if exported.has_vjp() != facts["differentiable"]:
            return [f"has_vjp is {exported.has_vjp()}"]
        calls = [read_reference(folder / f"call-{i}") for i in range(facts["calls"])]
        return [
            f"call {i}, {line}"
            for i, call in enumerate(calls)
            for line in compared(exported, call, facts["tolerance"])
        ]


def compared(exported: jax_export.Exported, expected: Reference, tolerance: float) -> Iterator[str]:
    """Lists results and first gradients that differ from those of the writing version."""

    def flat(*values: Any) -> list[Any]:
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, values)
        return jax.tree_util.tree_leaves(exported.call(*args, **kwargs))

    inputs = [
        np.asarray(x).astype(aval.dtype)
        for x, aval in zip(expected.inputs, exported.in_avals, strict=True)
    ]
    gradients: list[Any] = []
    if expected.gradients:
        results, pull_back = jax.vjp(flat, *inputs)
        cotangents = dict(zip(expected.targets, expected.cotangents, strict=True))
        pulled = pull_back(
            [cotangents.get(i, np.zeros(r.shape, jax.dtypes.float0)) for i, r in enumerate(results)]
        )
        # The expected ones follow TensorFlow's convention for complex numbers.
        gradients = [conjugate(np.asarray(pulled[i])) for i in expected.sources]
    else:
        results = flat(*inputs)
    yield from differences("result", list(map(crossing, results)), expected.results, tolerance)
    yield from differences("gradient", gradients, expected.gradients, tolerance)


def main(folder: Path, report_path: Path, *names: str) -> None:
    """Checks the programs named, or all that were written."""
    register_types()
    report = Report(report_path)
    report.head({"jax": jax.__version__})
    folders = {f.name: f for f in program_folders(folder)}
    one_by_one(report, names or sorted(folders), lambda name: _check(folders[name]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
