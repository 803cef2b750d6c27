"""Builds the source archive and the wheel, and checks that a second build gives the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from _env import ROOT, Environment, main_python, process_environment, say

PACKAGES = ("jax2tf_bridge", "shape_poly")


def build(folder: Path, *, fresh: bool = False, once: bool = False) -> Path:
    """Builds both distributions twice, and returns the path of the wheel.

    The second build starts from the source archive of the first, in another folder and with other
    file times, as somebody does who checks a release.

    Args:
        folder: for the distributions; emptied before.
        fresh: make the environment anew.
        once: leave out the second build.
    """
    environment = _environment()
    environment.ensure(fresh=fresh)
    say(f"building the source archive and the wheel{'' if once else ', twice'}")
    shutil.rmtree(folder, ignore_errors=True)
    _run(environment, ROOT, folder)
    (archive,) = folder.glob("jax2tf_bridge-*.tar.gz")
    (wheel,) = folder.glob("jax2tf_bridge-*.whl")
    if not once:
        _build_again(environment, archive, wheel)
    _check_contents(wheel)
    return wheel


def _build_again(environment: Environment, archive: Path, wheel: Path) -> None:
    """Ends the script unless a build from the source archive gives the same bytes."""
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-build-") as name:
        shutil.unpack_archive(archive, name)
        sources, second = Path(name, archive.name.removesuffix(".tar.gz")), Path(name, "dist")
        _run(environment, sources, second)
        for path in (archive, wheel):
            if path.read_bytes() != (second / path.name).read_bytes():
                sys.exit(f"error: {path.name} differs from the one built from {archive.name}")
    say("a second build gave the same bytes")


def _environment() -> Environment:
    import tomllib  # from Python 3.11 on, which main_python() has seen to

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = ("build", *settings["build-system"]["requires"])
    return Environment("build", ".venvs/build", main_python(), requirements)


def _run(environment: Environment, sources: Path, folder: Path) -> None:
    """Builds the source archive, and the wheel from it."""
    command = [environment.python, "-m", "build", "--quiet", "--no-isolation"]
    subprocess.run(
        [*command, "--outdir", str(folder), str(sources)],
        check=True,
        env=process_environment({"SOURCE_DATE_EPOCH": _time_of_commit()}),
    )


def _time_of_commit() -> str:
    """Returns the seconds for the files' times: of the last commit, unless the caller sets them."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return os.environ["SOURCE_DATE_EPOCH"]
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _check_contents(wheel: Path) -> None:
    """Ends the script unless the wheel holds the packages, license and SBOM, and nothing else."""
    names = set(zipfile.ZipFile(wheel).namelist())
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".pyi", ".fbs", ".c", ".h", ".js") or path.name == "py.typed"
    }
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    if names - metadata != on_disk:
        sys.exit(f"error: {wheel.name}: wrong contents: {sorted((names - metadata) ^ on_disk)}")
    for ending in ("/licenses/LICENSE", "/sboms/jax2tf-bridge.cdx.json"):
        if not any(name.endswith(ending) for name in metadata):
            sys.exit(f"error: {wheel.name}: no .dist-info{ending} in it")
    say(f"built {wheel.name}: {len(names)} files")
