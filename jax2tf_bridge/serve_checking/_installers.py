"""Makes Python environments, by uv where it is installed, else by venv and pip."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from jax2tf_bridge._utils import one_line

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
