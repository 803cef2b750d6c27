"""Finds Python environments with a TensorFlow release, or makes and caches them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from jax2tf_bridge._utils import one_line
from jax2tf_bridge.errors import Argument, BridgeError, Message, TargetError
from jax2tf_bridge.targets import TENSORFLOW_RELEASES

ShowStep: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Context manager factory that shows a progress text during a `with` block."""


def show_no_step(text: str) -> AbstractContextManager[None]:
    """Shows nothing."""
    return contextlib.nullcontext()


_PYTHON, _TENSORFLOW = Argument("python"), Argument("tensorflow")

_MINORS = range(9, 15)
"""Minor versions of Python 3 to try; the installer knows which have wheels."""

_DISTRIBUTIONS = ("tensorflow-cpu", "tensorflow")
"""Distributions in order of preference: models are loaded on the CPU."""

_QUERY_SCRIPT = """
import json, sys
from importlib import metadata
version = None
for name in ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly"):
    try:
        version = version or metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([list(sys.version_info[:2]), version]))
"""


@dataclass(frozen=True)
class Environment:
    """Interpreter and its TensorFlow.

    Attributes:
      python: the path of the interpreter.
      version: its version, as (3, 11).
      tensorflow: the installed release, as "2.17.1"; None if none is installed.
    """

    python: Path
    version: tuple[int, int]
    tensorflow: str | None


def check_release(release: str) -> None:
    """Raises TargetError for a release that the bridge does not know."""
    if not isinstance(release, str):
        raise TargetError(
            Message(_TENSORFLOW, f": expected a release as text, as '2.17'. Got: {release!r}")
        )
    match = re.fullmatch(r"(\d+\.\d+)(\.\w+)?", release)
    if match is not None and match[1] in TENSORFLOW_RELEASES:
        return
    oldest, *_, newest = TENSORFLOW_RELEASES
    raise TargetError(
        Message(
            Argument("tensorflow", release),
            f": the bridge knows the releases {oldest} to {newest}. For another release, pass an "
            "interpreter that has it with ",
            *(_PYTHON, "."),
        )
    )


def describe_environment(python: Path, release: str | None) -> Environment:
    """Describes the environment of an interpreter, or of a virtual environment's folder.

    Raises:
      TargetError: the interpreter does not start, or has no TensorFlow or another release.
    """
    # A bare name is searched on the PATH.
    path = _get_python(python) if python.is_dir() else Path(shutil.which(python) or python)
    environment = _query(Path(os.path.abspath(path)))
    if environment is None:
        raise TargetError(Message(_PYTHON, f": {python} is not a working Python interpreter"))
    if environment.tensorflow is None:
        raise TargetError(
            Message(
                *(_PYTHON, f": {python} has no TensorFlow: pip install one there, or leave "),
                *(_PYTHON, " out"),
            )
        )
    if release is not None and not _is_release(environment.tensorflow, release):
        raise TargetError(
            Message(
                *(_PYTHON, f": {python} has TensorFlow {environment.tensorflow}, and "),
                *(_TENSORFLOW, f" is {release}: pass only one of the two"),
            )
        )
    return environment


def find_environment(release: str, step: ShowStep) -> Environment:
    """Finds the environment of a release in the cache, or makes it there.

    Args:
      release: the TensorFlow release, as "2.17" or "2.17.1".
      step: shows the progress.

    Raises:
      BridgeError: the environment cannot be made; the text has the installer's reason, or names
        the Python versions that would work.
    """
    cache = get_cache_folder()
    for python in _iterate_cached(cache, release):
        environment = _query(python)
        if environment is not None and _is_release(environment.tensorflow or "", release):
            return environment
    try:
        with contextlib.ExitStack() as stack:
            with step(f"looking for wheels of TensorFlow {release}"):
                installer = stack.enter_context(find_installer())
                base, distribution, version = _choose_python(installer, release)
            folder = cache / _format_name(release, version)
            with step(f"installing TensorFlow {release} in {folder}"):
                _make_environment(
                    folder, installer, base, _format_requirement(distribution, release)
                )
    except InstallerError as e:
        raise BridgeError(f"TensorFlow {release} cannot be installed: {e}") from e
    environment = _query(_get_python(folder))
    if environment is None or environment.tensorflow is None:
        raise BridgeError(f"{folder}: its Python does not start; remove the folder and try again")
    return environment


def get_cache_folder() -> Path:
    """Returns the folder of cached environments."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "jax2tf-bridge"


def get_environment_variables(*, is_other: bool) -> dict[str, str]:
    """Returns the variables for a process; `is_other` drops those of this Python environment."""
    names = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__"}
    return {k: v for k, v in os.environ.items() if not is_other or k not in names}


def _format_name(release: str, version: Sequence[int]) -> str:
    return f"tensorflow-{release}-py{'.'.join(map(str, version))}"


def _iterate_cached(cache: Path, release: str) -> Iterator[Path]:
    """Yields the cached interpreters for a release, the running version first."""
    minors = [sys.version_info.minor, *sorted(_MINORS, reverse=True)]
    for minor in dict.fromkeys(minors):
        python = _get_python(cache / _format_name(release, (3, minor)))
        if python.exists():
            yield python


def _choose_python(installer: Installer, release: str) -> tuple[str, str, tuple[int, int]]:
    without_python = []
    for minor in _iterate_candidates(installer):
        for distribution in _DISTRIBUTIONS:
            if not installer.has_wheel(minor, _format_requirement(distribution, release)):
                continue
            base = installer.find_python(minor)
            if base is None and installer.downloads_python:
                base = f"3.{minor}"
            if base is not None:
                return base, distribution, (3, minor)
            without_python.append(minor)
            break
    if without_python:
        versions = ", ".join(f"3.{minor}" for minor in sorted(without_python))
        raise BridgeError(
            Message(
                f"TensorFlow {release} has wheels for Python {versions}, but no such Python is on "
                "the PATH. Install one; or install uv, which downloads Python itself; or pass an "
                "environment with this TensorFlow with ",
                _PYTHON,
            )
        )
    raise BridgeError(
        f"TensorFlow {release} has no wheels for this platform and Python 3.{_MINORS[0]} to "
        f"3.{_MINORS[-1]}"
    )


def _iterate_candidates(installer: Installer) -> Iterator[int]:
    """Yields minor versions: the running one, installed ones, then those to be fetched."""
    running = sys.version_info.minor
    yield running
    others = [minor for minor in sorted(_MINORS, reverse=True) if minor != running]
    absent = [minor for minor in others if installer.find_python(minor) is None]
    yield from (minor for minor in others if minor not in absent)
    yield from absent


def _make_environment(folder: Path, installer: Installer, base: str, requirement: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        staged = Path(temporary, "new")
        installer.make(base, staged)
        installer.install(_get_python(staged), requirement)
        if _query(_get_python(folder)) is not None:
            return  # another process was faster
        with contextlib.suppress(FileNotFoundError):
            # The old environment does not start, because its Python was removed.
            folder.rename(Path(temporary, "outdated"))
        try:
            staged.rename(folder)
        except OSError:
            if _query(_get_python(folder)) is None:
                raise


def _format_requirement(distribution: str, release: str) -> str:
    return f"{distribution}=={release}" + (".*" if release.count(".") == 1 else "")


def _is_release(installed: str, release: str) -> bool:
    return installed == release or installed.startswith(f"{release}.")


def _get_python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _query(python: Path) -> Environment | None:
    """Asks an interpreter for its versions; None if it does not start."""
    if shutil.which(str(python)) is None:
        return None
    is_other = str(python) != os.path.abspath(sys.executable)
    try:
        answer = subprocess.run(
            [str(python), "-c", _QUERY_SCRIPT],
            env=get_environment_variables(is_other=is_other),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        (major, minor), tensorflow = json.loads(answer.stdout)
    except (OSError, ValueError, TypeError, subprocess.TimeoutExpired):
        return None
    return Environment(python, (major, minor), tensorflow)


_NO_WHEEL = re.compile(r"No solution found|No matching distribution found")
_NO_NETWORK = re.compile(r"Retrying \(|[Cc]onnection|Failed to fetch|Name or service|ProxyError")


class InstallerError(Exception):
    """An installer failed; the text is its reason, in one line."""


class Installer(Protocol):
    """Makes Python environments; every method raises InstallerError if the tool itself fails.

    Attributes:
      downloads_python: whether `make` also takes a version, as "3.12", and downloads it.
    """

    downloads_python: bool

    def find_python(self, minor: int) -> str | None:
        """Returns the path of Python 3.`minor` on this machine; None if it has none."""

    def has_wheel(self, minor: int, requirement: str) -> bool:
        """Returns whether a wheel for Python 3.`minor` on this platform exists."""

    def make(self, base: str, folder: Path) -> None:
        """Makes an empty environment."""

    def install(self, python: Path, requirement: str) -> None:
        """Installs a requirement in the environment of an interpreter."""


@contextlib.contextmanager
def find_installer() -> Iterator[Installer]:
    """Yields the installer of this machine."""
    uv = shutil.which("uv")
    if uv is not None and _run([uv, "--version"]).returncode == 0:
        yield _Uv(uv)
        return
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as folder:
        # The running environment may lack pip; a venv has it.
        _run_checked([sys.executable, "-m", "venv", "--copies", folder])
        yield _Pip(str(_get_python(Path(folder))), folder)


class _Uv:
    downloads_python = True

    def __init__(self, uv: str) -> None:
        self._uv = uv

    def find_python(self, minor: int) -> str | None:
        if minor == sys.version_info.minor:
            return sys.executable
        words = ["python", "find", "--no-python-downloads", "--no-project", f"3.{minor}"]
        process = _run([self._uv, *words])
        return process.stdout.strip() if process.returncode == 0 else None

    def has_wheel(self, minor: int, requirement: str) -> bool:
        words = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", f"3.{minor}"]
        return _has_solution(_run([self._uv, "pip", "compile", *words, "-"], requirement))

    def make(self, base: str, folder: Path) -> None:
        _run_checked([self._uv, "venv", "--quiet", "--no-project", "--python", base, str(folder)])

    def install(self, python: Path, requirement: str) -> None:
        _run_checked([self._uv, "pip", "install", "--quiet", "--python", str(python), requirement])


class _Pip:
    """venv modules of Pythons on the PATH, and a pip in a temporary environment."""

    downloads_python = False

    def __init__(self, python: str, folder: str) -> None:
        self._pip = _make_pip_command(python)
        self._folder = folder

    def find_python(self, minor: int) -> str | None:
        if minor == sys.version_info.minor:
            return sys.executable
        python = shutil.which(f"python3.{minor}")
        # It may be a shim for a version that is not installed, or a Python without venv.
        if python is None or _run([python, "-c", "import ensurepip, venv"]).returncode != 0:
            return None
        return python

    def has_wheel(self, minor: int, requirement: str) -> bool:
        words = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
        words += ["--only-binary", ":all:"]
        place = ["--python-version", f"3.{minor}", "--target", str(Path(self._folder, "none"))]
        return _has_solution(_run([*self._pip, "install", *words, *place, requirement]))

    def make(self, base: str, folder: Path) -> None:
        _run_checked([base, "-m", "venv", str(folder)])

    def install(self, python: Path, requirement: str) -> None:
        _run_checked([*_make_pip_command(str(python)), "install", "--quiet", requirement])


def _make_pip_command(python: str) -> list[str]:
    return [python, "-m", "pip", "--disable-pip-version-check"]


def _has_solution(process: subprocess.CompletedProcess[str]) -> bool:
    if process.returncode == 0:
        return True
    # pip prints the same text if it cannot reach an index.
    if _NO_WHEEL.search(process.stderr) and not _NO_NETWORK.search(process.stderr):
        return False
    raise InstallerError(_find_reason(process))


def _run_checked(command: Sequence[str]) -> None:
    process = _run(command)
    if process.returncode != 0:
        raise InstallerError(_find_reason(process))


def _find_reason(process: subprocess.CompletedProcess[str]) -> str:
    """Returns the line with pip's reason, or uv's whole chain of causes."""
    lines = [
        line.strip() for line in (process.stderr or process.stdout).splitlines() if line.strip()
    ]
    causes = [n for n, line in enumerate(lines) if re.match(r"error: |ERROR: |[x\u00d7] ", line)]
    shown = one_line("\n".join(lines[causes[-1] :] if causes else lines[-1:]))
    return re.sub(r"\A(error|ERROR): ", "", shown)[:500] or f"it ended with {process.returncode}"


def _run(command: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except OSError as e:
        raise InstallerError(f"{command[0]}: {e.strerror}") from e
