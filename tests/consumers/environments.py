"""Python environments for the tests' other runtimes: scripts/_env.py makes and keeps them.

They lie in the folder that JAX2TF_BRIDGE_ENVIRONMENTS names, else in .venvs/consumers of the
checkout.
"""

from __future__ import annotations

import datetime
import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts import _env
from scripts._env import ROOT, Python, find_pythons

FOLDER_VARIABLE = "JAX2TF_BRIDGE_ENVIRONMENTS"
Say = Callable[[str], None]


def newest_python(oldest: tuple[int, int], newest: tuple[int, int]) -> Python | None:
    """Finds the newest Python between two versions, both included."""
    return next(reversed(find_pythons(oldest, newest)), None)


def process_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variables for other interpreters: the caller's, without pytest's and Python's.

    XLA_FLAGS is left out too: consumers compile as XLA does by default.
    """
    kept = {
        name: value
        for name, value in _env.process_environment().items()
        if name != "XLA_FLAGS" and not name.startswith(("PYTEST_", "COV_"))
    }
    return {**kept, **(extra or {})}


@functools.cache
def environment(
    name: str, base: Python, *requirements: str, weekly: bool = False, say: Say = print
) -> Path:
    """Returns the interpreter of an environment with these packages, making it where needed.

    Args:
      name: of its folder.
      base: the Python that it is made with.
      requirements: as pip takes them; "{plain}" stands for what the project itself needs, without
        JAX and without TensorFlow.
      weekly: whether open requirements are resolved anew each week.
      say: takes a line of progress.

    Raises:
      RuntimeError: it cannot be made; with the installer's last lines.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    plain = settings["project"]["dependencies"]
    wanted = [w for r in requirements for w in (plain if r == "{plain}" else [r])]
    folder = Path(os.environ.get(FOLDER_VARIABLE) or ROOT / ".venvs" / "consumers").absolute()
    week = "{}-{}".format(*datetime.date.today().isocalendar()[:2])
    made = _env.Environment(
        name, str(folder / name), base, tuple(wanted), period=week if weekly else "", say=say
    )
    made.ensure()
    return Path(made.python)
