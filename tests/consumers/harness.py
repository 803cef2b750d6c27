"""Runs the exporting and the consuming side, each in its own environment, and keeps the reports.

    python -m tests.consumers.harness FOLDER

runs every pair and prints the table.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts._env import ROOT, TENSORFLOW, Python, locked
from tests.consumers.environments import (
    Say,
    environment,
    newest_python,
    process_environment,
)
from tests.consumers.exchange import SERVED, Outcome, Report
from tests.plugins.quick_compilation import VARIABLE, quick_flags_of

CONSUMER_RELEASES = ("2.15.1", "2.17.1", "2.19.1", "2.21.0")
RELEASE_CANDIDATE = "2.22.0rc0"
NIGHTLY = "nightly"
"""Stands for this week's build of TensorFlow's main branch, in the place of a release."""
LITERT = "ai-edge-litert==2.3.0"
ONNX = ("tf2onnx==1.17.0", "onnxruntime==1.31.1", f"{TENSORFLOW}==2.19.1")
OPENVINO = "openvino==2026.4.1"
CORE_ML = ("coremltools==9.0", f"{TENSORFLOW}==2.19.1")
OLDEST_TENSORFLOW, *_, NEWEST_TENSORFLOW = CONSUMER_RELEASES
EXPORTERS = ("current", "newest")
_NIGHTLY_PACKAGE = TENSORFLOW.replace("tensorflow", "tf-nightly")
CONSUMER_PYTHON = (3, 11)
NEWER_PYTHON = ((3, 12), (3, 13))

NO_NEWER_PYTHON = (
    "no Python 3.12 or later on the PATH or among pyenv's versions: the newest JAX, which needs "
    "one, was NOT tested as the exporting side"
)
NO_CONSUMER_PYTHON = (
    "no Python 3.11 on the PATH or among pyenv's versions: the TensorFlow-only consumers, of "
    "which the oldest needs it, were NOT run"
)
NO_DEVICE_COMPILERS = (
    "the compilers for CUDA and TPUs have wheels for Linux on x86-64 alone: modules were NOT "
    "compiled for an H100 and a TPU v5e"
)


class NotAvailableError(RuntimeError):
    """This machine lacks what a side needs; the text says what was not tested."""


@dataclass(frozen=True)
class Pair:
    """Results of one exporting side and one consuming side.

    Attributes:
      exporter, consumer: the versions of each.
      exports, outcomes: how each program came out, there and here.
    """

    exporter: Mapping[str, str]
    consumer: Mapping[str, str]
    exports: Mapping[str, Outcome]
    outcomes: Mapping[str, Outcome]

    def failures(self, program: str) -> list[str]:
        """Lists the failures of a program, on either side."""
        nothing = Outcome(program, ("it was not run",))
        exported = self.exports.get(program, nothing).failures
        consumed = self.outcomes.get(program, nothing).failures
        return [f"at export, {f}" for f in exported] or list(consumed)

    def __str__(self) -> str:
        consumer = self.consumer["tensorflow"]
        return (
            f"exported by JAX {self.exporter['jax']} and TensorFlow {self.exporter['tensorflow']} "
            f"on Python {self.exporter['python']}, run by TensorFlow {consumer}"
        )


class Harness:
    """Both sides, with their files in one folder; safe to use from several processes."""

    def __init__(self, folder: Path, say: Say = print, *, whole: bool = True) -> None:
        """Prepares the runs.

        Args:
          folder: shared by those who share the runs.
          say: takes a line of progress.
          whole: whether all programs and models are run, or a sample of them.
        """
        self.folder, self.say, self.whole = folder, say, whole

    def pair(self, exporter: str, release: str) -> Pair:
        """Runs what has not run yet of one pair.

        Raises:
          NotAvailableError: a Python that it needs is missing.
          RuntimeError: an environment cannot be made, or a side does not start.
        """
        python = self.consumer_python(release)
        exported = self.exported(exporter)
        report = Report(self.folder / f"{exporter}-{release}.jsonl")
        module = "tests.consumers.consume_programs"
        title = f"TensorFlow {release} on what the {exporter} environment exported"
        is_between = release not in ends_of_releases() and not self.whole
        few = release == NIGHTLY or is_between
        names = seventeen_programs() if few else self._names()
        command = [python, "-m", module, exported, report.path, *names]
        self.complete(title, command, report, quickly=few)
        exports = Report(exported / "export.jsonl")
        return Pair(exports.versions(), report.versions(), exports.outcomes(), report.outcomes())

    def exported(self, exporter: str) -> Path:
        """Returns the folder with what an exporting side has written."""
        python = self.exporter_python(exporter)
        folder = self.folder / exporter
        folder.mkdir(parents=True, exist_ok=True)
        report = Report(folder / "export.jsonl")
        module = "tests.consumers.export_programs"
        title = f"exporting from the {exporter} environment"
        command = [python, "-m", module, folder, *self._names()]
        self.complete(title, command, report, quickly=True)
        return folder

    def consumer_python(self, release: str) -> Path:
        """Returns the interpreter of an environment with that TensorFlow and no JAX."""
        base = consumer_base()
        is_nightly = release == NIGHTLY
        tensorflow = _NIGHTLY_PACKAGE if is_nightly else f"{TENSORFLOW}=={release}"
        name = f"tensorflow-{release}"
        return environment(name, base, tensorflow, "{plain}", weekly=is_nightly, say=self.say)

    def litert_python(self) -> Path:
        """Returns the interpreter of an environment with LiteRT, and neither JAX nor TensorFlow."""
        base = consumer_base()
        return environment("litert", base, LITERT, "{plain}", say=self.say)

    def converter_python(self, runtime: str) -> Path:
        """Returns the interpreter of an environment with a runtime and what converts for it.

        Args:
          runtime: "onnx", with tf2onnx and its TensorFlow; "openvino", without TensorFlow; or
            "coreml", with coremltools and a TensorFlow. None has JAX.
        """
        base = consumer_base()
        requirements = {"onnx": ONNX, "openvino": (OPENVINO,), "coreml": CORE_ML}[runtime]
        return environment(runtime, base, *requirements, "{plain}", say=self.say)

    def device_python(self, jax: str) -> Path:
        """Returns the interpreter of an environment that compiles for GPUs and TPUs without one.

        Args:
          jax: the version of JAX, whose plugins for both are installed with it.
        """
        if sys.platform != "linux" or platform.machine() != "x86_64":
            raise NotAvailableError(NO_DEVICE_COMPILERS)
        base = newest_python(CONSUMER_PYTHON, NEWER_PYTHON[1])
        if base is None:
            raise NotAvailableError(NO_NEWER_PYTHON)
        requirements = (f"jax[tpu,cuda12-local]=={jax}", "nvidia-cuda-nvcc-cu12", "{plain}")
        return environment(f"devices-{jax}", base, *requirements, say=self.say)

    def exporter_python(self, exporter: str) -> Path:
        """Returns the interpreter of an exporting side."""
        if exporter == "current":
            return Path(sys.executable)
        return self.newest_python("newest", "jax", TENSORFLOW)

    def newest_python(self, name: str, *requirements: str) -> Path:
        """Returns the interpreter of an environment with the newest releases of the requirements.

        Raises:
          NotAvailableError: there is no Python that these can be installed for.
        """
        base = newer_python()
        if base is None:
            raise NotAvailableError(NO_NEWER_PYTHON)
        return environment(name, base, *requirements, "{plain}", weekly=True, say=self.say)

    def stage(self) -> Path:
        """A folder with our packages and nothing else, from wherever they are installed."""
        stage = self.folder / "stage"
        with locked(self.folder / "stage.lock"):
            if not stage.exists():
                partial = self.folder / "stage.partial"
                for package in ("jax2tf_bridge", "shape_poly"):
                    shutil.copytree(_package(package), partial / package, ignore=_caches)
                shutil.copytree(ROOT / "tests", partial / "tests", ignore=_caches)
                partial.rename(stage)
        return stage

    def _names(self) -> tuple[str, ...]:
        """Names the programs that are run; none stands for all."""
        return () if self.whole else sampled_programs()

    def complete(
        self, title: str, command: Sequence[object], report: Report, *, quickly: bool = False
    ) -> None:
        """Runs a command to its end, unless that was done already.

        Args:
          title: of the run.
          command: the interpreter, and its arguments.
          report: that the command writes.
          quickly: whether XLA compiles with its quickest settings; otherwise with its defaults.
        """
        finished = report.path.with_suffix(".finished")
        stage = self.stage()
        with locked(report.path.with_suffix(".lock")):
            if not finished.exists():
                run_to_the_end(title, command, report, stage, say=self.say, quickly=quickly)
                finished.touch()


def run_to_the_end(
    title: str,
    command: Sequence[object],
    report: Report,
    stage: Path,
    *,
    say: Say,
    quickly: bool = False,
) -> None:
    """Runs a command, again after each crash, until it has come through all programs.

    Raises:
      RuntimeError: it ended in failure with no program begun; with its last lines.
    """
    while True:
        say(f"{title} ({len(report.outcomes())} programs done)")
        status, tail = _run(command, stage, report.path.with_suffix(".log"), quickly)
        died_at = report.unfinished()
        if status == 0:
            return
        if died_at is None:
            raise RuntimeError(f"{title}: ended with {status} before any program:\n{tail}")
        report.finish(Outcome(died_at, (f"the process ended with {status}:\n{tail}",)))


def sampled_programs() -> tuple[str, ...]:
    """Names the programs of a sample: the seventeen, the served one, every fourth."""
    from tests.programs import PROGRAMS

    return tuple(
        p.name for i, p in enumerate(PROGRAMS) if p.seventeen or p.name == SERVED or i % 4 == 0
    )


def ends_of_releases() -> tuple[str, str]:
    """Returns the oldest and the newest TensorFlow release: a sample runs whole on these alone."""
    return CONSUMER_RELEASES[0], RELEASE_CANDIDATE


def seventeen_programs() -> tuple[str, ...]:
    """Names the programs that the published tables of pairs count."""
    from tests.programs import SEVENTEEN

    return tuple(p.name for p in SEVENTEEN)


def consumer_base() -> Python:
    """Returns the Python that consumers' environments are made with.

    Raises:
      NotAvailableError: there is none.
    """
    base = newest_python(CONSUMER_PYTHON, CONSUMER_PYTHON)
    if base is None:
        raise NotAvailableError(NO_CONSUMER_PYTHON)
    return base


def newer_python() -> Python | None:
    """A Python that can have the newest JAX, where the running one cannot."""
    return newest_python(*NEWER_PYTHON)


def newest_is_current() -> bool:
    """Returns whether the newest JAX supports the running Python."""
    return sys.version_info[:2] >= NEWER_PYTHON[0]


@functools.cache  # it starts every Python that there is
def newest_exporter() -> str:
    """Names the exporting side with the newest JAX that this machine can have."""
    return "current" if newest_is_current() or newer_python() is None else "newest"


def _caches(_: str, names: Sequence[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} cannot be imported here"
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _run(command: Sequence[object], stage: Path, log: Path, quickly: bool) -> tuple[int, str]:
    """Returns the exit status and the last printed lines of a command."""
    variables = process_environment(
        {"PYTHONPATH": str(stage), "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    )
    if quickly:
        variables[VARIABLE] = quick_flags_of(Path(str(command[0])))
    with log.open("ab") as output:
        start = output.tell()
        status = subprocess.run(
            list(map(str, command)),
            cwd=stage,
            env=variables,
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    printed = log.read_bytes()[start:].decode(errors="replace").splitlines()
    return status, "\n".join(printed[-25:])


def main(folder: Path) -> None:
    """Runs every pair and prints, for each program, where it fails."""
    from tests.programs import PROGRAMS

    harness = Harness(folder)
    rows = []
    for exporter in EXPORTERS[: 1 if newest_is_current() else 2]:
        for release in CONSUMER_RELEASES:
            pair = harness.pair(exporter, release)
            good = [p for p in PROGRAMS if not pair.failures(p.name)]
            seventeen = sum(p.seventeen for p in good)
            rows.append(f"{seventeen} of 17, {len(good)} of {len(PROGRAMS)}: {pair}")
            for program in PROGRAMS:
                for failure in pair.failures(program.name):
                    print(f"{program.name}, {pair}: {failure}")
    print("\n".join(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
