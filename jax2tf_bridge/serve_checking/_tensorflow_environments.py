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

Step: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Shows what is being done during a `with` block."""

_PYTHON, _TENSORFLOW = Argument("python"), Argument("tensorflow")

_MINORS = range(9, 15)
"""The Pythons 3.N that are asked for; which of them have wheels, the installer says."""

_DISTRIBUTIONS = ("tensorflow-cpu", "tensorflow")
"""The first that there is for a platform is taken: models are loaded on the CPU."""

_ASK = """
import json, sys
from importlib import metadata
found = None
for name in ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly"):
    try:
        found = found or metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps([list(sys.version_info[:2]), found]))
"""


@dataclass(frozen=True)
class Environment:
    """Interpreter with a TensorFlow.

    Attributes:
      python: the interpreter.
      version: its version, as (3, 11).
      tensorflow: the release that is installed, as "2.17.1"; None without one.
    """

    python: Path
    version: tuple[int, int]
    tensorflow: str | None


def environment_at(python: Path, release: str | None) -> Environment:
    """Describes the environment of an interpreter, or in a folder of venv's.

    Raises:
      TargetError: it does not start, or has no TensorFlow, or another release.
    """
    # A name alone is looked for on the PATH.
    path = _python_in(python) if python.is_dir() else Path(shutil.which(python) or python)
    found = _query(Path(os.path.abspath(path)))
    if found is None:
        raise TargetError(Message(_PYTHON, f": {python} is no Python interpreter that starts"))
    if found.tensorflow is None:
        raise TargetError(
            Message(
                *(_PYTHON, f": {python} has no TensorFlow: pip install one there, or leave "),
                *(_PYTHON, " out"),
            )
        )
    if release is not None and not _is_release(found.tensorflow, release):
        raise TargetError(
            Message(
                *(_PYTHON, f": {python} has TensorFlow {found.tensorflow}, and "),
                *(_TENSORFLOW, f" is {release}: leave one of the two out"),
            )
        )
    return found


def environment_of(release: str, step: Step) -> Environment:
    """Finds the environment of a release in the cache, or makes it there.

    Args:
      release: as "2.17" or "2.17.1".
      step: shows what is being done.

    Raises:
      BridgeError: it cannot be made; the text has the installer's reason, or says which Python
        would do.
    """
    cache = cache_folder()
    for python in _newest_first(cache, release):
        found = _query(python)
        if found is not None and _is_release(found.tensorflow or "", release):
            return found
    try:
        with contextlib.ExitStack() as stack:
            with step(f"looking for wheels of TensorFlow {release}"):
                installer = stack.enter_context(find_installer())
                base, distribution, version = _choose_python(installer, release)
            folder = cache / _name(release, version)
            with step(f"installing TensorFlow {release} in {folder}"):
                _make(folder, installer, base, _requirement(distribution, release))
    except InstallerError as e:
        raise BridgeError(f"TensorFlow {release} cannot be installed: {e}") from e
    found = _query(_python_in(folder))
    if found is None or found.tensorflow is None:
        raise BridgeError(f"{folder}: its Python does not start; remove the folder and try again")
    return found


def cache_folder() -> Path:
    """Returns the folder that environments are kept in."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "jax2tf-bridge"


def environment_variables(*, other: bool) -> dict[str, str]:
    """Returns a process's variables; `other` drops what belongs to this one."""
    own = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__"}
    return {k: v for k, v in os.environ.items() if not other or k not in own}


def _name(release: str, version: Sequence[int]) -> str:
    return f"tensorflow-{release}-py{'.'.join(map(str, version))}"


def _newest_first(cache: Path, release: str) -> Iterator[Path]:
    """Yields the cached interpreters for a release, that of the running version first."""
    minors = [sys.version_info.minor, *sorted(_MINORS, reverse=True)]
    for minor in dict.fromkeys(minors):
        python = _python_in(cache / _name(release, (3, minor)))
        if python.exists():
            yield python


def _choose_python(installer: Installer, release: str) -> tuple[str, str, tuple[int, int]]:
    """Chooses a Python and a distribution that has wheels for it."""
    without_python = []
    for minor in _candidates(installer):
        for distribution in _DISTRIBUTIONS:
            if not installer.has_wheel(minor, _requirement(distribution, release)):
                continue
            base = installer.python(minor)
            if base is not None:
                return base, distribution, (3, minor)
            without_python.append(minor)
            break
    if without_python:
        versions = ", ".join(f"3.{minor}" for minor in sorted(without_python))
        raise BridgeError(
            Message(
                f"TensorFlow {release} has wheels for Python {versions}, and none of these is on "
                "the PATH: install one, or uv, which fetches what it needs; or name an environment "
                "with this TensorFlow by ",
                _PYTHON,
            )
        )
    raise BridgeError(
        f"TensorFlow {release} has no wheels for this platform and Python 3.{_MINORS[0]} to "
        f"3.{_MINORS[-1]}"
    )


def _candidates(installer: Installer) -> Iterator[int]:
    """Yields versions: the running one, those that are here, those to be fetched."""
    running = sys.version_info.minor
    yield running
    others = [minor for minor in sorted(_MINORS, reverse=True) if minor != running]
    absent = [minor for minor in others if not installer.has_python(minor)]
    yield from (minor for minor in others if minor not in absent)
    yield from absent


def _make(folder: Path, installer: Installer, base: str, requirement: str) -> None:
    """Makes an environment, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        made = Path(temporary, "made")
        installer.make(base, made)
        installer.install(_python_in(made), requirement)
        if _query(_python_in(folder)) is not None:
            return  # another process was faster
        with contextlib.suppress(FileNotFoundError):
            # Replaces an environment that does not start because its Python is gone.
            folder.rename(Path(temporary, "outdated"))
        try:
            made.rename(folder)
        except OSError:
            if _query(_python_in(folder)) is None:
                raise


def _requirement(distribution: str, release: str) -> str:
    return f"{distribution}=={release}" + (".*" if release.count(".") == 1 else "")


def _is_release(installed: str, release: str) -> bool:
    return installed == release or installed.startswith(f"{release}.")


def _python_in(folder: Path) -> Path:
    """Returns the interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _query(python: Path) -> Environment | None:
    """Asks an interpreter for its versions; None if it does not start."""
    if shutil.which(str(python)) is None:
        return None
    is_other = str(python) != os.path.abspath(sys.executable)
    try:
        answer = subprocess.run(
            [str(python), "-c", _ASK],
            env=environment_variables(other=is_other),
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
    """Makes Python environments; every method raises InstallerError if the tool itself fails."""

    def has_python(self, minor: int) -> bool:
        """Returns whether Python 3.`minor` is on this machine."""

    def python(self, minor: int) -> str | None:
        """Returns Python 3.`minor` as `make` takes it; None if there is none to be had."""

    def has_wheel(self, minor: int, requirement: str) -> bool:
        """Returns whether a wheel for Python 3.`minor` on this platform exists."""

    def make(self, base: str, folder: Path) -> None:
        """Makes an empty environment."""

    def install(self, python: Path, requirement: str) -> None:
        """Installs what is required in the environment of an interpreter."""


@contextlib.contextmanager
def find_installer() -> Iterator[Installer]:
    """Yields the installer of this machine."""
    uv = shutil.which("uv")
    if uv is not None and _run([uv, "--version"]).returncode == 0:
        yield _Uv(uv)
        return
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as folder:
        # The running environment may have no pip, and a venv brings one.
        _checked([sys.executable, "-m", "venv", "--copies", folder])
        names = ("Scripts/python.exe", "bin/python")
        yield _Pip(next(str(Path(folder, n)) for n in names if Path(folder, n).exists()), folder)


class _Uv:
    """Finds and fetches Pythons itself."""

    def __init__(self, uv: str) -> None:
        self._uv = uv

    def has_python(self, minor: int) -> bool:
        return self._found(minor) is not None

    def python(self, minor: int) -> str | None:
        return self._found(minor) or f"3.{minor}"

    def _found(self, minor: int) -> str | None:
        if minor == sys.version_info.minor:
            return sys.executable
        words = ["python", "find", "--no-python-downloads", "--no-project", f"3.{minor}"]
        ended = _run([self._uv, *words])
        return ended.stdout.strip() if ended.returncode == 0 else None

    def has_wheel(self, minor: int, requirement: str) -> bool:
        words = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", f"3.{minor}"]
        return _fits(_run([self._uv, "pip", "compile", *words, "-"], requirement))

    def make(self, base: str, folder: Path) -> None:
        _checked([self._uv, "venv", "--quiet", "--no-project", "--python", base, str(folder)])

    def install(self, python: Path, requirement: str) -> None:
        _checked([self._uv, "pip", "install", "--quiet", "--python", str(python), requirement])


class _Pip:
    """Pythons on the PATH with their venv modules, and a pip of its own to ask."""

    def __init__(self, python: str, folder: str) -> None:
        self._pip = _pip(python)
        self._folder = folder

    def has_python(self, minor: int) -> bool:
        return self.python(minor) is not None

    def python(self, minor: int) -> str | None:
        if minor == sys.version_info.minor:
            return sys.executable
        found = shutil.which(f"python3.{minor}")
        # It may be a shim for a version that is not there, or a Python without venv.
        if found is None or _run([found, "-c", "import ensurepip, venv"]).returncode != 0:
            return None
        return found

    def has_wheel(self, minor: int, requirement: str) -> bool:
        words = [
            "--dry-run",
            "--quiet",
            "--no-deps",
            "--ignore-installed",
            "--only-binary",
            ":all:",
        ]
        place = ["--python-version", f"3.{minor}", "--target", str(Path(self._folder, "none"))]
        return _fits(_run([*self._pip, "install", *words, *place, requirement]))

    def make(self, base: str, folder: Path) -> None:
        _checked([base, "-m", "venv", str(folder)])

    def install(self, python: Path, requirement: str) -> None:
        _checked([*_pip(str(python)), "install", "--quiet", requirement])


def _pip(python: str) -> list[str]:
    return [python, "-m", "pip", "--disable-pip-version-check"]


def _fits(ended: subprocess.CompletedProcess[str]) -> bool:
    if ended.returncode == 0:
        return True
    # pip also says so where it reached no index.
    if _NO_WHEEL.search(ended.stderr) and not _NO_NETWORK.search(ended.stderr):
        return False
    raise InstallerError(_reason(ended))


def _checked(command: Sequence[str]) -> None:
    ended = _run(command)
    if ended.returncode != 0:
        raise InstallerError(_reason(ended))


def _reason(ended: subprocess.CompletedProcess[str]) -> str:
    """Returns the line with which pip says why, or all of uv's chain of causes."""
    lines = [line.strip() for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
    causes = [n for n, line in enumerate(lines) if re.match(r"error: |ERROR: |[x\u00d7] ", line)]
    shown = one_line("\n".join(lines[causes[-1] :] if causes else lines[-1:]))
    return re.sub(r"\A(error|ERROR): ", "", shown)[:500] or f"it ended with {ended.returncode}"


def _run(command: Sequence[str], given: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    except OSError as e:
        raise InstallerError(f"{command[0]}: {e.strerror}") from e
