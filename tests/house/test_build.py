"""Each BUILD of the packages declares the deps that their imports need, and no others."""

import ast
import functools
import sys
from collections import defaultdict

import pytest

from tests.house.imports import ROOT, Import, module_name, python_files, read_file
from tests.house.layering import FLOORS, JAX, TENSORFLOW, floor_of, package_of

pytestmark = pytest.mark.checkout

# The files that lie in jax2tf_bridge itself; "init" has __init__.py, which Python runs before all.
LABELS = {
    "_version": "//jax2tf_bridge:init",
    "_lazy_names": "//jax2tf_bridge:init",
    "_dtypes": "//jax2tf_bridge:dtypes",
    "_operations": "//jax2tf_bridge:operations",
    "errors": "//jax2tf_bridge:errors",
    "facade": "//jax2tf_bridge",
    "compat": "//jax2tf_bridge:compat",
    "stablehlo": "//jax2tf_bridge:stablehlo",
    "shape_poly": "//shape_poly",
}
# requirements_lock.txt leaves these out: Beam would pin packages of all others, and the runtimes of
# verify are for those who have them.
NOT_LOCKED = {"apache_beam", "ai_edge_litert", "coremltools", "openvino"}
# Where a distribution is not called as what it installs.
DISTRIBUTIONS = {"grpc": "grpcio", "orbax": "orbax_checkpoint", "z3": "z3_solver"}


def label_of(package: str) -> str:
    return LABELS.get(package, f"//jax2tf_bridge/{package}")


def needed(entry: Import, own: str) -> str | None:
    """Returns the label that an import needs; None where it needs none, or none that is allowed."""
    top = entry.module.split(".")[0]
    if top in ("jax2tf_bridge", "shape_poly"):
        package = package_of(entry.module)
        if package == "facade" and own != "cli" and floor_of(entry.name or "") is not None:
            package = str(entry.name)  # from jax2tf_bridge import serialization
        lower, floor = floor_of(package), floor_of(own)
        is_below = lower is not None and floor is not None and lower < floor
        return label_of(package) if is_below else None  # else test_layering rejects it
    if top in NOT_LOCKED:
        return None
    # Imported late, JAX and TensorFlow are for callers who have them.
    if top in sys.stdlib_module_names or (entry.is_lazy and top in JAX | TENSORFLOW):
        return None
    return f"@pypi//{DISTRIBUTIONS.get(top, top)}"


@functools.cache
def imported() -> dict[str, dict[str, str]]:
    """For each package the labels that it needs, with the first import that needs each."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in python_files("jax2tf_bridge", "shape_poly"):
        own = package_of(module_name(path))
        if own not in ("shape_poly", "_version", "_lazy_names", "facade"):
            found[own].setdefault(label_of("_version"), "Python runs its __init__.py first")
        for entry in read_file(path).imports:
            if label := needed(entry, own):
                place = f"{path.relative_to(ROOT)}:{entry.line}"
                found[own].setdefault(label, f"{place} imports {entry.module}")
    return found


def declared(label: str) -> set[str] | None:
    """Reads the deps of a py_library from its BUILD; None if it is not there."""
    folder, _, name = label.removeprefix("//").partition(":")
    file = ROOT / folder / "BUILD"
    for node in ast.walk(ast.parse(file.read_text() if file.exists() else "")):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "py_library":
            values = {k.arg: k.value for k in node.keywords}
            if ast.literal_eval(values["name"]) == (name or file.parent.name):
                deps = ast.literal_eval(values.get("deps", ast.List([])))
                return {f"//{folder}{dep}" if dep.startswith(":") else dep for dep in deps}
    return None


@pytest.mark.parametrize("package", [package for floor in FLOORS for package in floor])
def test_deps_are_what_is_imported(package: str) -> None:
    label, needs = label_of(package), imported()[package]
    file = label.removeprefix("//").partition(":")[0] + "/BUILD"
    deps = declared(label)
    assert deps is not None, f"{file}: add a py_library for {label}"
    wrong = [f'{file}: add "{dep}" to the deps of {label}: {needs[dep]}' for dep in {*needs} - deps]
    wrong += [f'{file}: remove "{dep}" from the deps of {label}' for dep in deps - {*needs}]
    assert not wrong, "\n".join(sorted(wrong))


def test_every_folder_of_tests_has_a_build_file() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    without = [folder for folder in folders if not (folder / "BUILD").exists()]
    assert not without, f"add a BUILD with bridge_tests(deps = [...]) to {without}"
