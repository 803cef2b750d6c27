"""Exporting side: writes each program as a SavedModel and as a file, with JAX's answers.

    python -m tests.consumers.export_programs FOLDER [PROGRAM ...]

needs JAX and TensorFlow, and resumes where an earlier run in the same folder ended.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import tensorflow as tf

from jax2tf_bridge import Target, export
from tests.consumers.exchange import OPERATIONS, SERVED, Report, write_reference
from tests.consumers.one_by_one import one_by_one
from tests.consumers.own_operations import without_xla
from tests.program_cases.answers import Reference
from tests.program_cases.record import Example, Program
from tests.program_cases.reference import jax_arguments, reference
from tests.program_cases.tensorflow_side import flat_function, input_signature
from tests.programs import PROGRAMS, by_name


def _export(program: Program, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    with program.precision():
        example = program.build()
        references = [reference(program, example, call) for call in example.calls]
        failures = []
        releases: dict[str, Sequence[str]] = {}
        for kind, target in (("", None), (OPERATIONS, without_xla())):
            try:
                _write_model(program, example, references, folder / f"{kind}model", target)
            except Exception as e:
                failures.append(f"{kind}SavedModel: {type(e).__name__}: {str(e)[:1500]}")
            try:
                path = folder / f"{kind}record.pickle"
                found = _write_function(program, example, path, target)
            except Exception as e:
                failures.append(f"{kind}portable function: {type(e).__name__}: {str(e)[:1500]}")
            else:
                releases = releases or found
        failures += _too_narrow(program, releases)
    for i, expected in enumerate(references):
        write_reference(folder / f"call-{i}", expected)
    facts = {
        "calls": len(references),
        "differentiable": program.differentiable,
        "jit_compile": program.jit_compile,
        "tolerance": program.tolerance,
        **releases,
    }
    (folder / "program.json").write_text(json.dumps(facts))
    return failures


def _write_model(
    program: Program,
    example: Example,
    references: list[Reference],
    path: Path,
    target: Target | None,
) -> None:
    module = tf.Module()
    module.f = tf.function(
        flat_function(program, example, target),
        input_signature=input_signature(references),
        autograph=False,
    )
    signature = None
    if program.name == SERVED:
        spec = tf.TensorSpec((None, 28), tf.float32, name="x")
        serve = tf.function(lambda x: {"y": module.f(x)[0]}, input_signature=[spec])
        signature = serve.get_concrete_function()
    tf.saved_model.save(
        module,
        str(path),
        signatures=signature,
        options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
    )


def _write_function(
    program: Program, example: Example, path: Path, target: Target | None
) -> dict[str, Sequence[str]]:
    """Writes the function, and gives the TF releases that it says can run it and its gradient."""
    call = example.calls[0]
    portable = export(
        example.function,
        polymorphic_shapes=program.polymorphic_shapes,
        polymorphic_constraints=program.constraints,
        target=target,
    )(*jax_arguments(program, call), **call.kwargs)
    stored = portable.with_vjp(1 if program.differentiable else 0)
    path.write_bytes(pickle.dumps(stored))
    gradient = stored.vjp() if program.differentiable else portable
    return {
        "releases": portable.tensorflow_releases,
        "gradient_releases": gradient.tensorflow_releases,
    }


def _too_narrow(program: Program, releases: dict[str, Sequence[str]]) -> Iterator[str]:
    """Says where the portable function runs on fewer releases than the table of programs has."""
    for what, oldest in (
        ("releases", program.oldest_tensorflow),
        ("gradient_releases", max(program.oldest_tensorflow, program.oldest_for_gradient)),
    ):
        found = releases.get(what)
        if found is not None and (not found or found[0] > oldest):
            yield f"portable function: {what} are {list(found)}, and not from {oldest} on"


def main(folder: Path, *names: str) -> None:
    """Exports the programs named, or all."""
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(folder / "export.jsonl")
    python = "{}.{}.{}".format(*sys.version_info[:3])
    report.head({"jax": jax.__version__, "tensorflow": tf.__version__, "python": python})
    wanted = names or tuple(p.name for p in PROGRAMS)
    one_by_one(report, wanted, lambda name: _export(by_name(name), folder / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
