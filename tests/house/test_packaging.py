"""Checks the distribution: it declares what the code imports, and where it is from."""

import ast
import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import jax2tf_bridge
from scripts._env import NEWEST_PYTHON, OLDEST_PYTHON, find_pythons
from tests.house.imports import ROOT, python_files, read_file
from tests.house.snippets import snippets

pytestmark = pytest.mark.checkout

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {
    "apache_beam": "apache-beam",
    "google_crc32c": "google-crc32c",
    "grpc": "grpcio",
    "orbax": "orbax-checkpoint",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "ml_dtypes": "ml-dtypes",
    "z3": "z3-solver",
}
# conda-forge's names of Python packages, where they differ from PyPI's.
ON_CONDA_FORGE = {
    "flatbuffers": "python-flatbuffers",
    "ml-dtypes": "ml_dtypes",
    "msgpack": "msgpack-python",
}
NEWEST_WITH_RELEASE_CANDIDATES = (3, 14)
"""The newest Python that the tests ran on, with release candidates of the dependencies."""
# These come with what is declared, by the contract between the packages.
BROUGHT_ALONG = {
    "jaxlib": "jax",
    "keras": "tensorflow",
    "google": "tensorflow",
    "grpc": "tensorflow",
}


def _names(requirements: list[str]) -> set[str]:
    """Names the distributions of a list of requirements, extras of our own followed."""
    names = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == PROJECT["name"]:
            for extra in extras.split(","):
                names |= _names(EXTRAS[extra])
        else:
            names.add(name)
    return names


def _third_parties(*folders: str) -> dict[str, str]:
    """Names the distributions that the folders' modules import, each with one place that does."""
    packages = {"jax2tf_bridge", "shape_poly"}
    own = packages | {"tests", "examples", "benchmarks", "saved_models", "scripts"}
    found = {}
    for path in python_files(*folders):
        for entry in read_file(path).imports:
            top = entry.module.split(".")[0]
            if top not in sys.stdlib_module_names and top not in own:
                top = BROUGHT_ALONG.get(top, top)
                place = f"{path.relative_to(ROOT)}, line {entry.line}"
                found[DISTRIBUTIONS.get(top, top)] = place
    return found


def test_packages_import_only_what_is_declared() -> None:
    declared = _names(PROJECT["dependencies"]) | _names(
        ["jax2tf-bridge[all,beam,coreml,tensorflow]"]
    )
    # The runtimes of verify and save_onnx are for those who have them.
    declared |= {"ai_edge_litert", "onnxruntime", "openvino"}
    for name, place in _third_parties("jax2tf_bridge", "shape_poly").items():
        assert name in declared, f"{place}: {name} is not in pyproject.toml"


def test_what_is_declared_is_imported() -> None:
    imported = set(_third_parties("jax2tf_bridge", "shape_poly"))
    plain, runtime = _names(PROJECT["dependencies"]), _names(["jax2tf-bridge[all,tensorflow]"])
    assert plain | runtime <= imported, "pyproject.toml declares what no module imports"


def test_tests_import_only_what_the_test_extra_brings() -> None:
    declared = _names(PROJECT["dependencies"]) | _names(["jax2tf-bridge[all,tensorflow,test]"])
    # The environments that tests/consumers and tests/serving make have these.
    declared |= {"ai_edge_litert", "coremltools", "openvino", "pyarrow", "tf2onnx"}
    for name, place in _third_parties("tests").items():
        assert name in declared, f"{place}: {name} is not in the extra 'test'"


def test_the_demo_imports_what_the_demo_extra_brings() -> None:
    plain = _names(PROJECT["dependencies"]) | {"tensorflow"}
    imported = set(_third_parties("examples/digits"))
    assert imported - plain == _names(EXTRAS["demo"]) - {"z3-solver"}


def test_examples_import_only_what_some_extra_brings() -> None:
    declared = _names(PROJECT["dependencies"])
    declared |= _names(["jax2tf-bridge[all,tensorflow,test,demo]"])
    # Models run in these where nothing of ours is, and Keras Hub's are saved.
    declared |= {"ai_edge_litert", "onnxruntime", "keras_hub"}
    for name, place in _third_parties("examples").items():
        assert name in declared, f"{place}: {name} is in no extra"


def test_no_extra_but_its_own_brings_a_tensorflow() -> None:
    assert _names(EXTRAS["tensorflow"]) == {"tensorflow", "google-crc32c"}
    assert _names(EXTRAS["tensorflow-cpu"]) == {"tensorflow-cpu", "google-crc32c"}
    for extra in set(EXTRAS) - {"tensorflow", "tensorflow-cpu"}:
        assert not {"tensorflow", "tensorflow-cpu"} & _names(EXTRAS[extra]), extra


def test_extras_are_the_documented_ones() -> None:
    assert set(EXTRAS) == {
        *(
            "all",
            "beam",
            "coreml",
            "crc32c",
            "demo",
            "dev",
            "jax",
            "onnx",
            "orbax",
            "parallel",
            "storage",
            "tensorflow",
            "tensorflow-cpu",
            "test",
        )
    }
    for extra in ("jax", "parallel", "crc32c", "storage", "orbax", "onnx"):
        assert _names(EXTRAS["all"]) >= _names(EXTRAS[extra])


def test_pythons_of_the_scripts_are_those_of_the_distribution() -> None:
    oldest, newest = OLDEST_PYTHON[1], NEWEST_WITH_RELEASE_CANDIDATES[1]
    assert PROJECT["requires-python"] == f">=3.{oldest},<3.{newest + 1}"
    minors = [f"Programming Language :: Python :: 3.{n}" for n in range(oldest, newest + 1)]
    assert [c for c in PROJECT["classifiers"] if ":: Python :: 3." in c] == minors
    assert NEWEST_PYTHON <= NEWEST_WITH_RELEASE_CANDIDATES
    assert f"3.{oldest} to 3.{newest}" in (ROOT / "README.md").read_text()


def test_oldest_that_is_tested_is_the_oldest_that_is_allowed() -> None:
    pins = re.search(
        r"OLDEST_PINS = \((.*?)\n\)", (ROOT / "scripts/_commands.py").read_text(), re.DOTALL
    )
    assert pins is not None
    pinned = re.findall(r'"([\w-]+==[\d.]+)"', pins[1])
    # The oldest of these two come with the oldest TensorFlow, in tests/consumers.
    with_tensorflow = ("ml-dtypes", "numpy")
    plain = [d for d in PROJECT["dependencies"] if not d.startswith(with_tensorflow)]
    extras = [
        d
        for e in ("jax", "parallel", "crc32c", "storage", "orbax", "onnx")
        for d in EXTRAS[e]
        if ">=" in d
    ]
    assert extras + plain == [pin.replace("==", ">=") for pin in pinned]


def test_version_is_the_installed_one_and_in_the_changelog() -> None:
    installed = {found.version for found in metadata.distributions(name=PROJECT["name"])}
    assert installed <= {jax2tf_bridge.__version__}
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", jax2tf_bridge.__version__]


def test_files_beside_the_code_have_its_version() -> None:
    version, name = jax2tf_bridge.__version__, PROJECT["name"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (date,) = re.findall(rf"^## \[{re.escape(version)}\] - (\S+)$", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\ndate-released: {date}\nlicense: Apache-2.0\n" in citation
    assert f'version = "{version}",\n)' in (ROOT / "MODULE.bazel").read_text()
    recipe = (ROOT / "release" / "conda" / "recipe.yaml").read_text()
    assert f"\n  version: {version}\n" in recipe
    sbom = json.loads((ROOT / "release" / "jax2tf-bridge.cdx.json").read_text())
    component = sbom["metadata"]["component"]
    assert (component["name"], component["version"]) == (name, version)
    assert component["purl"] == component["bom-ref"] == f"pkg:pypi/{name}@{version}"
    assert component["licenses"] == [{"license": {"id": PROJECT["license"]}}]


def test_conda_recipe_has_the_dependencies() -> None:
    recipe = (ROOT / "release" / "conda" / "recipe.yaml").read_text()
    run = re.search(r"^  run:\n((?:    .*\n)+)", recipe, re.MULTILINE)
    assert run is not None
    listed = [line.removeprefix("    - ").replace(" ", "") for line in run[1].splitlines()]
    expected = {"python>=${{python_min}}"}
    for name, version in (requirement.split(">=") for requirement in PROJECT["dependencies"]):
        expected.add(f"{ON_CONDA_FORGE.get(name, name)}>={version}")
    assert set(listed) == expected


def _pypi_links() -> tuple[tuple[str, str], ...]:
    """Reads the constant in setup.py, which only setuptools 77 and later can import."""
    found = re.search(r"^PYPI_LINKS = (\(\n.*?^\))", (ROOT / "setup.py").read_text(), re.M | re.S)
    assert found is not None
    links: tuple[tuple[str, str], ...] = ast.literal_eval(found[1])
    return links


def test_links_of_the_readme_lead_somewhere_on_pypi() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme
    for pattern, replacement in _pypi_links():
        shown = re.sub(pattern, replacement, shown)
    assert [s.text for s in snippets(shown)] == [s.text for s in snippets(readme)]
    prose = re.sub(r"```.*?```", "", shown, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", prose)
    assert len(links) > 20
    for target in map("".join, links):
        assert target.startswith(("https://", "#")), target


def test_workflows_pin_their_actions() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (.*)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), f"{path.name}: {action}"


@pytest.mark.parametrize(
    "name", [p.stem for p in ROOT.glob("scripts/[a-z]*") if p.is_file() and not p.suffix]
)
def test_script_is_executable_python(name: str) -> None:
    path = ROOT / "scripts" / name
    assert path.stat().st_mode & 0o111, f"chmod +x scripts/{name}"
    compile(path.read_text(), str(path), "exec")


def test_environments_are_made_with_a_python_outside_of_environments() -> None:
    for python in find_pythons():
        assert not (Path(python.path).parent.parent / "pyvenv.cfg").exists(), python.path
