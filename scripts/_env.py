"""Python environments of the checkout, for scripts and tests: found, made, kept while they fit.

It imports only the standard library, and loads on Python 3.8 too, so that an old python3 can find
a newer one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
# The newest that a final TensorFlow has wheels for; pyproject.toml allows 3.14 as well.
NEWEST_PYTHON = (3, 13)
# TensorFlow's wheel without CUDA, where there is one.
TENSORFLOW = "tensorflow" if sys.platform == "darwin" else "tensorflow-cpu"


def say(text: str) -> None:
    """Prints a line of progress at once, also where the output is a file."""
    print(f"-- {text}", flush=True)


class EnvironmentUnavailableError(RuntimeError):
    """No Python fits, or an environment cannot be made; the text says why."""


_LEFT_OUT = frozenset(
    {
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PIP_USER",
        # Without its files each process compiles JAX and TensorFlow, for 8 CPU seconds.
        "PYTHONDONTWRITEBYTECODE",
    }
)


def process_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the caller's variables without those of its own Python environment."""
    inherited = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return {**inherited, **(extra or {})}


@dataclass(frozen=True)
class Python:
    """An interpreter with its version."""

    path: str
    version: tuple[int, int, int]

    @property
    def minor(self) -> tuple[int, int]:
        """First two numbers of the version, which decide which wheels fit."""
        return self.version[:2]

    def __str__(self) -> str:
        return "Python " + ".".join(map(str, self.version))


def _ask(path: str) -> Python | None:
    """Starts the interpreter at a path; None if none starts there.

    For a virtual environment, returns the interpreter that it was made with: an environment must
    not be made with a Python inside it, since making it deletes the folder first.
    """
    code = (
        "import os, sys; "
        "print(os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable)); "
        "print(*sys.version_info[:3])"
    )
    try:
        answer = subprocess.run(
            [path, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.splitlines()
    if answer.returncode != 0 or len(lines) != 2:
        return None
    major, minor, micro = map(int, lines[1].split())
    return Python(lines[0], (major, minor, micro))


def _candidates(oldest: tuple[int, int], newest: tuple[int, int]) -> Iterator[str]:
    yield sys.executable
    for minor in range(oldest[1], newest[1] + 1):
        found = shutil.which(f"python3.{minor}")
        if found:
            yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for path in sorted(pyenv.glob("versions/3.*/bin/python3")):
        yield str(path)


def find_pythons(
    oldest: tuple[int, int] = OLDEST_PYTHON, newest: tuple[int, int] = NEWEST_PYTHON
) -> list[Python]:
    """Finds one interpreter for each version, oldest first: on the PATH and among pyenv's.

    For its own version, the one that runs the script goes first.
    """
    found: dict[tuple[int, int], Python] = {}
    for path in _candidates(oldest, newest):
        python = _ask(path)
        if python and oldest <= python.minor <= newest:
            found.setdefault(python.minor, python)
    return [found[minor] for minor in sorted(found)]


def main_python() -> Python:
    """Chooses the interpreter that runs the script if it is supported, else the newest that is.

    Raises:
      EnvironmentUnavailableError: there is none.
    """
    pythons = find_pythons()
    if not pythons:
        raise EnvironmentUnavailableError(
            f"needs Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} to "
            f"{NEWEST_PYTHON[0]}.{NEWEST_PYTHON[1]}; found only "
            f"{sys.version.split()[0]} (python3), and no python3.11, python3.12 or python3.13 on "
            "the PATH or among pyenv's versions"
        )
    own = [python for python in pythons if python.minor == sys.version_info[:2]]
    return (own or pythons[-1:])[0]


def _can_import(python: Python, module: str) -> bool:
    return (
        subprocess.run(
            [python.path, "-c", f"import {module}"], capture_output=True, check=False
        ).returncode
        == 0
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a file lock, so that of several processes one does the work."""
    import fcntl  # not on Windows, where these scripts are not meant to run

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the checkout.

    Attributes:
        name: what progress lines call it.
        folder: where it lies, relative to the checkout or absolute.
        base: the interpreter that it is made with.
        requirements: what pip is asked for; "{project}" stands for the project itself.
        project: what "{project}" stands for: "-e ." or the path of a wheel.
        period: with a new one, as the week or the content of a file of pins, the environment is
            made anew.
        say: takes a line of progress.
    """

    name: str
    folder: str
    base: Python
    requirements: tuple[str, ...]
    project: str = "."
    period: str = ""
    say: Callable[[str], None] = say

    @property
    def path(self) -> Path:
        """Absolute path of the folder."""
        return ROOT / self.folder

    @property
    def python(self) -> str:
        """Path of the environment's own interpreter."""
        return str(self.path / "bin" / "python")

    @property
    def is_editable(self) -> bool:
        """True if the project in it is the checkout itself, rather than a wheel."""
        return self.project == "."

    @property
    def _locks_folder(self) -> Path:
        """Folder for locks and uv: beside the environment where that lies elsewhere."""
        return self.path.parent if os.path.isabs(self.folder) else ROOT / ".venvs"

    def _fingerprint(self) -> str:
        """Hashes all that the environment depends on."""
        import tomllib  # from Python 3.11 on, which main_python() has seen to

        facts = [str(self.base), self.base.path, self.requirements, self.is_editable]
        if any("{project}" in requirement for requirement in self.requirements):
            settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
            facts += [settings["project"], settings["build-system"]]
        facts += [self.period] if self.period else []
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def ensure(self, *, fresh: bool = False) -> None:
        """Makes the environment, or takes the one that is there if it holds what is asked for.

        Args:
            fresh: make it anew in any case, so with the newest releases.

        Raises:
            EnvironmentUnavailableError: it cannot be made; with the installer's last lines.
        """
        stamp = self.path / "stamp"
        fingerprint = self._fingerprint()
        with locked(self._locks_folder / f"{self.name}.lock"):
            kept = stamp.exists() and stamp.read_text() == fingerprint
            if kept and not fresh and _ask(self.python):
                self.say(f"environment {self.folder} is up to date ({self.base})")
                if not self.is_editable:
                    self._install(["--no-deps", "--force-reinstall", self.project])
                return
            self.say(f"making environment {self.folder} with {self.base}")
            shutil.rmtree(self.path, ignore_errors=True)
            self._create()
            self._install(self._arguments())
            stamp.write_text(fingerprint)
        self.say(f"environment {self.folder} is ready")

    def _arguments(self) -> list[str]:
        arguments: list[str] = []
        for requirement in self.requirements:
            if "{project}" in requirement and self.is_editable:
                arguments.append("-e")
            arguments.append(requirement.format(project=self.project))
        return arguments

    def _create(self) -> None:
        command = [self.base.path, "-m", "venv", str(self.path)]
        if not _can_import(self.base, "ensurepip"):
            # Debian ships ensurepip apart from Python; its pip can stand in.
            if not _can_import(self.base, "pip"):
                package = "python{}.{}-venv".format(*self.base.minor)
                raise EnvironmentUnavailableError(
                    f"{self.base} came without ensurepip and pip, so no environment can be made; "
                    f"install them, on Debian and Ubuntu with: apt-get install {package}"
                )
            command.append("--without-pip")
        subprocess.run(command, check=True, env=process_environment())
        if "--without-pip" in command:
            bootstrap = [self.base.path, "-m", "pip", "--python", self.python, "install", "pip"]
            subprocess.run([*bootstrap, "--quiet"], check=True, env=process_environment())
        version = self._output([self.python, "-m", "pip", "--version"])
        if int(re.match(r"pip (\d+)", version).group(1)) < 23:  # type: ignore[union-attr]
            self.say("upgrading pip")
            self._log([self.python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"])

    def _install(self, arguments: Sequence[str]) -> None:
        wanted = " ".join(arguments).replace(str(ROOT) + os.sep, "")
        self.say(f"installing {wanted} (minutes at the first time)")
        pip = [self.python, "-m", "pip"]
        # uv is quicker, and environments share its files; but it does not read pip's settings
        # (mirrors), so pip itself has the last word.
        uv = self._uv(pip)
        if uv is not None:
            if self._log([uv, "pip", "install", "--python", self.python, *arguments]) == 0:
                return
            self.say("uv could not install this; trying again with pip")
        if self._log([*pip, "install", "--progress-bar", "off", *arguments]) != 0:
            log = (self.path / "install.log").read_text().splitlines()
            raise EnvironmentUnavailableError(
                "\n".join([f"pip could not install {wanted}; it said:", *log[-30:]])
            )

    def _uv(self, pip: Sequence[str]) -> str | None:
        """Finds the uv that all environments share, installing it first where it is missing."""
        folder = self._locks_folder / "installer"
        uv = folder / "bin" / "uv"
        with locked(folder.with_suffix(".lock")):
            if not uv.exists():
                self._log([*pip, "install", "--quiet", "--target", str(folder), "uv"])
        return str(uv) if uv.exists() else None

    def _log(self, command: Sequence[str]) -> int:
        """Runs an installer with its output in install.log, and prints what it downloads."""
        shown = re.compile(r"\s*(Downloading|Prepared|Installed|Installing collected)\b")
        log_path = self.path / "install.log"
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=process_environment({"UV_SYSTEM_CERTS": "1"}),  # as pip has it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process, log_path.open("a") as log:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if shown.match(line):
                    print(f"     {line.strip()[:100]}", flush=True)
        return process.returncode

    def _output(self, command: Sequence[str]) -> str:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=process_environment()
        ).stdout

    def versions(self) -> str:
        """Names the versions of Python, JAX, TensorFlow and NumPy."""
        code = (
            "import importlib.metadata as m\n"
            f"for name in ('jax', {TENSORFLOW!r}, 'numpy'):\n"
            "    print(name, m.version(name))\n"
        )
        lines = self._output([self.python, "-c", code]).splitlines()
        return ", ".join([str(self.base), *lines])


def development(python: Python) -> Environment:
    """Describes the environment of scripts/test: the newest releases, and the checkout itself."""
    extras = f"jax,{TENSORFLOW},dev"
    return Environment("development", ".venv", python, ("{project}[" + extras + "]",))


def demonstration(python: Python) -> Environment:
    """Describes the environment of scripts/demo: what examples/digits needs, and the checkout."""
    extras = f"demo,{TENSORFLOW}"
    return Environment("demo", ".venvs/demo", python, ("{project}[" + extras + "]",))


def documentation(python: Python) -> Environment:
    """Describes the environment of scripts/docs: what builds and checks the site, all pinned."""
    pins = ROOT / "scripts" / "site" / "requirements.txt"
    content = hashlib.sha256(pins.read_bytes()).hexdigest()
    requirements = ("-r", pins.relative_to(ROOT).as_posix())
    return Environment("docs", ".venvs/docs", python, requirements, period=content)


def released(name: str, python: Python, wheel: Path, *pins: str) -> Environment:
    """Describes an environment with the built wheel, and other packages at pinned versions."""
    extras = f"jax,{TENSORFLOW},test"
    folder = ".venvs/{}-{}.{}".format(name, *python.minor)
    return Environment(
        name, folder, python, ("{project}[" + extras + "]", *pins), project=str(wheel)
    )


def installed(python: Python, wheel: Path) -> Environment:
    """Describes an environment with what the README installs: the wheel, JAX and TensorFlow."""
    folder = ".venvs/installed-{}.{}".format(*python.minor)
    requirement = "{project}[jax," + TENSORFLOW + "]"
    return Environment("installed", folder, python, (requirement,), project=str(wheel))
