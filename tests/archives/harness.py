"""Lets older JAX releases write archives, the newest one run them, and TensorFlow alone as well."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.consumers.environments import environment, newest_python
from tests.consumers.exchange import Outcome, Report
from tests.consumers.harness import (
    NEWEST_TENSORFLOW,
    Harness,
    NotAvailableError,
    newest_is_current,
    run_to_the_end,
)

RELEASES = ("0.4.30", "0.4.38", "0.5.3", "0.6.2", "0.7.2", "newest")
"""JAX releases; "newest" is the one that pip installs today."""

WRITER_PYTHON = ((3, 11), (3, 12))

PROGRAMS = (
    # The seventeen of the published tables.
    *("mlp_static", "mlp_symbolic", "mlp_vjp", "conv_net", "attention", "control_flow"),
    *("sort_top_k", "sort_top_k_symbolic", "prng", "fft", "bf16"),
    *("qr", "eigh", "cholesky", "svd", "lu_solve", "triangular_solve"),
    # Further linear algebra: batches of open size, complex numbers, 64 bits.
    *("qr_batches", "cholesky_batches", "solve_batches", "triangular_solve_batches"),
    *("lu_factors", "complex_solve", "complex_qr_svd", "double_precision"),
    # Types, trees and what else was written differently over time.
    *("int4_arguments", "named_tuples", "dataclasses_and_none", "keyword_arguments"),
    *("gelu_and_erf", "custom_vjp", "gather_in_batches", "keys_in_and_out"),
)

NOT_WRITTEN = {
    ("0.4.30", "named_tuples"): "serializing PyTreeDef",
    ("0.4.30", "dataclasses_and_none"): "serializing PyTreeDef",
    # A typed PRNG key as a result: archives have them since 0.6.
    ("0.4.30", "keys_in_and_out"): "key<fry>",
    ("0.4.38", "keys_in_and_out"): "key<fry>",
    ("0.5.3", "keys_in_and_out"): "key<fry>",
}
"""Programs that a release cannot write, each with the text of its error."""

_NO_PYTHON = (
    "no Python 3.11 or 3.12 on the PATH or among pyenv's versions: the older JAX releases, which "
    "need one, were NOT tested"
)


class Archives:
    """Three stages, each in its own environment, with their files in one folder."""

    def __init__(self, harness: Harness) -> None:
        """With the environments and the copy of the packages of `harness`."""
        self._harness = harness

    def failures(self, release: str, program: str, wanted: Collection[str]) -> list[str]:
        """Lists what failed in the first stage that failed, after running what has not run.

        Args:
          release: that wrote the archive.
          program: that was archived.
          wanted: the releases that are asked for in this run.

        Raises:
          NotAvailableError: a Python that a stage needs is missing.
          RuntimeError: an environment cannot be made, or a stage does not start.
        """
        # Where another worker is at this release, one that nobody is at is run meanwhile.
        for candidate in (release, *(r for r in RELEASES if r in wanted)):
            if not self._is_finished(release):
                self._complete(candidate, wait=False)
        self._complete(release, wait=True)
        stages = {"JAX wrote it": "written", "JAX ran it": "jax", "TensorFlow ran it": "tensorflow"}
        for stage, name in stages.items():
            report = Report(self._folder(release) / f"{name}.jsonl")
            nothing = Outcome(program, ("it was not run",))
            found = report.outcomes().get(program, nothing).failures
            if found:
                who = ", ".join(f"{k} {v}" for k, v in report.versions().items())
                return [f"when {stage} ({who}): {failure}" for failure in found]
        return []

    def _folder(self, release: str) -> Path:
        return self._harness.folder / "archives" / release

    def _is_finished(self, release: str) -> bool:
        return (self._folder(release) / "finished").exists()

    def _complete(self, release: str, *, wait: bool) -> None:
        """Runs the stages of a release; without `wait` unless another process is at it."""
        folder = self._folder(release)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "stages.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                return
            if not self._is_finished(release):
                self._stages(folder, release)
                (folder / "finished").touch()

    def _stages(self, folder: Path, release: str) -> None:
        written = Report(folder / "written.jsonl")
        self._run("write_archives", self._writer(release), [folder, *PROGRAMS], written)
        jax = Report(folder / "jax.jsonl")
        self._run("check_in_jax", self._newest(), [folder, jax.path], jax)
        tensorflow = Report(folder / "tensorflow.jsonl")
        consumer = self._harness.consumer_python(NEWEST_TENSORFLOW)
        self._run("check_in_tensorflow", consumer, [folder, tensorflow.path], tensorflow)

    def _run(self, module: str, python: Path, arguments: Sequence[object], report: Report) -> None:
        command = [python, "-m", f"tests.archives.{module}", *map(str, arguments)]
        title = f"{module} for {report.path.parent.name}"
        stage, say = self._harness.stage(), self._harness.say
        run_to_the_end(title, command, report, stage, say=say, quickly=True)

    def _writer(self, release: str) -> Path:
        if release == "newest":
            return self._newest()
        base = newest_python(*WRITER_PYTHON)
        if base is None:
            raise NotAvailableError(_NO_PYTHON)
        # jax.export needs more packages than JAX requires; 0.4.30 is older than NumPy 2.
        numpy = ["numpy<2"] if release == "0.4.30" else []
        requirements = [f"jax=={release}", f"jaxlib=={release}", "flatbuffers", "absl-py", *numpy]
        return environment(f"jax-{release}", base, *requirements, say=self._harness.say)

    def _newest(self) -> Path:
        if newest_is_current():
            return Path(sys.executable)
        return self._harness.exporter_python("newest")
