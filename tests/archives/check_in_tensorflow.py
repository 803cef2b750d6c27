"""Reads archives where JAX is not installed, and runs what was made of them there.

    python -m tests.archives.check_in_tensorflow FOLDER REPORT [PROGRAM ...]

FOLDER is what write_archives wrote and check_in_jax added to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from jax2tf_bridge import PortableFunction, to_tf
from jax2tf_bridge.serialization import deserialize, read_function
from shape_poly import is_symbolic_dim
from tests.archives.layout import ARCHIVE, RETARGETED, program_folders
from tests.consumers.comparison import differences
from tests.consumers.exchange import Array, Report, read_reference
from tests.consumers.one_by_one import one_by_one
from tests.plugins.blocked_imports import forbid_jax
from tests.program_cases.answers import Reference, results_and_gradients


def _check(folder: Path) -> list[str]:
    facts = json.loads((folder / "program.json").read_text())
    calls = [read_reference(folder / f"call-{i}") for i in range(facts["calls"])]
    read = deserialize((folder / ARCHIVE).read_bytes())
    failures = list(_unlike(read, calls, facts["differentiable"]))
    portable = read_function(folder / RETARGETED)
    for i, call in enumerate(calls):
        lines = answers(portable, call, facts["tolerance"])
        failures += [f"call {i}, {line}" for line in lines]
    return failures


def _unlike(
    portable: PortableFunction, calls: Sequence[Reference], differentiable: bool
) -> Iterator[str]:
    """Lists contradictions between the calls and the archive, which is read without JAX."""
    for call in calls:
        yield from _other_types("argument", portable.in_avals, call.inputs)
        yield from _other_types("result", portable.out_avals, call.results)
    if portable.has_vjp != differentiable:
        yield f"has_vjp is {portable.has_vjp}"
    if portable.has_vjp:
        vjp = portable.vjp()
        count = len(portable.in_avals)
        if (len(vjp.in_avals), len(vjp.out_avals)) != (count + len(portable.out_avals), count):
            yield f"its VJP has {len(vjp.in_avals)} arguments and {len(vjp.out_avals)} results"


def _other_types(what: str, avals: Sequence[Any], arrays: Sequence[Array]) -> Iterator[str]:
    if len(avals) != len(arrays):
        yield f"{len(avals)} {what}s, not {len(arrays)}"
        return
    for i, (aval, array) in enumerate(zip(avals, arrays, strict=True)):
        sizes = zip(aval.op_shape, array.shape, strict=True)
        same = all(is_symbolic_dim(dim) or dim == size for dim, size in sizes)
        if not same or aval.op_dtype != array.dtype.name:
            yield f"{what} {i} is {aval}, not {array.dtype.name}{list(array.shape)}"


def answers(portable: PortableFunction, expected: Reference, tolerance: float) -> Iterator[str]:
    """Lists results and first gradients that differ from those of the writing version."""
    function = to_tf(portable, with_gradient=bool(expected.gradients))

    def flat(*tensors: Any) -> list[Any]:
        args, kwargs = portable.in_tree.unflatten(iter(tensors))
        return portable.out_tree.flatten(function(*args, **kwargs))

    results, gradients = results_and_gradients(flat, expected.inputs, expected)
    yield from differences("result", results, expected.results, tolerance)
    yield from differences("gradient", gradients, expected.gradients, tolerance)


def main(folder: Path, report_path: Path, *names: str) -> NoReturn:
    """Checks the programs named, or all that were written; exits with 0 when it came through."""
    forbid_jax()
    report = Report(report_path)
    report.head({"tensorflow": tf.__version__})
    folders = {f.name: f for f in program_folders(folder)}
    one_by_one(report, names or sorted(folders), lambda name: _check(folders[name]))
    sys.exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
