"""Makes the page of versions from what the tests run: pins, and the environments that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _env import ROOT, TENSORFLOW

HARNESS = ROOT / "tests" / "consumers" / "harness.py"
COMMANDS = ROOT / "scripts" / "_commands.py"


def read_constants(path: Path) -> dict[str, Any]:
    """Evaluates the constants of a module that need nothing but literals and TENSORFLOW.

    The module is not imported: it may need packages that this environment does not have.
    """
    values: dict[str, Any] = {"TENSORFLOW": TENSORFLOW}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
            code = compile(ast.Module([node], []), str(path), "exec")
            try:
                exec(code, {"__builtins__": {}}, values)
            except (NameError, AttributeError):
                continue
    return values


def installed_versions(folder: Path) -> dict[str, str]:
    """Returns the versions in an environment by package, with "python"; {} if there is none."""
    try:
        settings = (folder / "pyvenv.cfg").read_text()
    except OSError:
        return {}
    python = re.search(r"^version(?:_info)? *= *(\d+\.\d+)", settings, re.MULTILINE)
    versions = {"python": python[1]} if python else {}
    for path in folder.glob("lib/python3*/site-packages/*.dist-info"):
        name, _, version = path.name.removesuffix(".dist-info").partition("-")
        versions[name.replace("_", "-").lower()] = version
    return versions


def _pinned(requirements: tuple[str, ...]) -> dict[str, str]:
    pairs = [requirement.split("==") for requirement in requirements]
    return {name: version for name, version in pairs}


def _matrix() -> Iterator[tuple[str, str, str, str]]:
    """Yields rows of the table: what runs, and on which Python, JAX and TensorFlow."""
    oldest = _pinned(read_constants(COMMANDS)["OLDEST_PINS"])
    environments = ROOT / ".venvs"
    yield _row("Every fast test", ROOT / ".venv")
    for folder in sorted(environments.glob("newest-*")):
        yield _row("A sample of the fast tests, on the built wheel", folder)
    yield (
        "A sample of the fast tests, on the oldest releases",
        installed_versions(next(environments.glob("oldest-*"), Path())).get("python", "3.11"),
        oldest["jax"],
        oldest[TENSORFLOW],
    )
    harness = read_constants(HARNESS)
    python = "{}.{}".format(*harness["CONSUMER_PYTHON"])
    for release in (*harness["CONSUMER_RELEASES"], harness["RELEASE_CANDIDATE"]):
        yield "Programs that the first two export", python, "not installed", release
    what = "Seventeen programs that the second exports, in this week's build of TensorFlow"
    yield what, python, "not installed", "nightly"


def _row(what: str, folder: Path) -> tuple[str, str, str, str]:
    versions = installed_versions(folder)
    newest = "the newest"
    return (
        what,
        versions.get("python", newest),
        versions.get("jax", newest),
        versions.get(TENSORFLOW, newest),
    )


def versions_page() -> str:
    """Writes the page of versions."""
    harness = read_constants(HARNESS)
    lines = ["| what runs | Python | JAX | TensorFlow |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _matrix()]
    runtimes = [harness["LITERT"], *harness["ONNX"][:2], harness["OPENVINO"]]
    names = {
        "ai-edge-litert": "LiteRT",
        "tf2onnx": "tf2onnx",
        "onnxruntime": "ONNX Runtime",
        "openvino": "OpenVINO",
    }
    others = [f"{names[name]} {version}" for name, version in (r.split("==") for r in runtimes)]
    return (
        "# Versions\n\n"
        "Versions that the tests run, taken from their settings and environments when this site "
        "was built. [The README](index.md#versions) has what is supported.\n\n"
        + "\n".join(lines)
        + f"\n\nModels also run in {', '.join(others[:-1])} and {others[-1]}.\n"
    )
