"""Python environments for the tests' other runtimes: made once, kept, and shared by processes.

They lie in the folder that JAX2TF_BRIDGE_ENVIRONMENTS names, else in .venvs/consumers of the
checkout, each under the hash of what it holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER_VARIABLE = "JAX2TF_BRIDGE_ENVIRONMENTS"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Interpreter:
    """A Python that starts."""

    path: str
    version: tuple[int, int, int]

    @property
    def minor(self) -> tuple[int, int]:
        """The version that decides which wheels fit."""
        return self.version[:2]


def find_interpreter(oldest: tuple[int, int], newest: tuple[int, int]) -> Interpreter | None:
    """The newest Python between two versions: the running one, on the PATH, or among pyenv's."""
    found = [i for i in map(_ask, _candidates(oldest, newest)) if i is not None]
    fitting = [i for i in found if oldest <= i.minor <= newest]
    return max(fitting, key=lambda i: i.minor, default=None)


def _candidates(oldest: tuple[int, int], newest: tuple[int, int]) -> Iterator[str]:
    yield sys.executable
    for minor in range(oldest[1], newest[1] + 1):
        on_path = shutil.which(f"python3.{minor}")
        if on_path:
            yield on_path
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}*/bin/python3")))


def _ask(path: str) -> Interpreter | None:
    code = "import sys; print(sys.executable, *sys.version_info[:3], sep='\\n')"
    try:
        answer = subprocess.run(
            [path, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:  # for instance a pyenv shim of a version that is not active
        return None
    executable, *numbers = answer.stdout.splitlines()
    major, minor, micro = map(int, numbers)
    return Interpreter(executable, (major, minor, micro))


def process_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for other interpreters: the caller's, without what belongs to its own.

    XLA_FLAGS is left out too: consumers compile as XLA does by default.
    """
    own = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PIP_USER", "XLA_FLAGS"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith(("PYTEST_", "COV_"))
    }
    return {**kept, **(extra or {})}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock, so that of several processes one does the work."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def plain_requirements() -> list[str]:
    """What the project itself needs: without JAX and without TensorFlow."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return list(settings["project"]["dependencies"])


def environment(
    name: str, base: Interpreter, requirements: Sequence[str], *, period: str = "", say: Say = print
) -> Path:
    """The interpreter of an environment with these packages, which is made where it is missing.

    Args:
      name: what the folder's name begins with.
      base: the Python that it is made with.
      requirements: as pip takes them.
      period: with a new one, as the week, open requirements are resolved anew.
      say: takes a line of progress.

    Raises:
      RuntimeError: it cannot be made; with the installer's last lines.
    """
    facts = [list(requirements), base.version, platform.machine(), period]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    folder = _folder() / f"{name}-{key}"
    python = folder / "bin" / "python"
    with locked(_folder() / f"{name}.lock"):
        if (folder / "complete").exists() and _ask(str(python)) is not None:
            return python
        for outdated in _folder().glob(f"{name}-*"):
            if re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{12}}", outdated.name):
                shutil.rmtree(outdated)
        say(f"making {folder.name}: {', '.join(requirements)}")
        _run([base.path, "-m", "venv", str(folder)])
        _install(str(python), requirements)
        (folder / "complete").touch()
        say(f"{folder.name} is ready")
    return python


def _folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".venvs" / "consumers").absolute()


def _install(python: str, requirements: Sequence[str]) -> None:
    """Installs by uv, which shares files between environments; else by pip."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    installer = _folder() / "installer"
    uv = installer / "bin" / "uv"
    try:
        with locked(_folder() / "installer.lock"):
            if not uv.exists():
                _run([*pip, "install", "--quiet", "--target", str(installer), "uv"])
        _run([str(uv), "pip", "install", "--quiet", "--python", python, *requirements])
    except RuntimeError:
        # uv knows nothing of pip's settings (mirrors, certificates).
        _run([*pip, "install", "--quiet", *requirements])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        env=process_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
