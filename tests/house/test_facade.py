"""The facade exports the documented names, and imports neither JAX nor TensorFlow to do so."""

import ast
import importlib
import inspect
import json
import pydoc
import re
import types
from pathlib import Path
from typing import Any

import pytest

import jax2tf_bridge
from tests.fresh_process import run_python

STUB = Path(jax2tf_bridge.__file__).with_suffix(".pyi")
HOMES: dict[str, str] = {
    alias.name: statement.module
    for statement in ast.parse(STUB.read_text()).body
    if isinstance(statement, ast.ImportFrom) and statement.module is not None
    for alias in statement.names
}
"""Where each name comes from, as the stub has it; a name that goes or comes is a line in
CHANGELOG.md."""
PACKAGES = {name for name, home in HOMES.items() if home == "jax2tf_bridge"}
PUBLIC = set(HOMES) - PACKAGES - {"__version__"}
IN_STAR = PUBLIC - {"KerasLayer"}


START = """
import json, sys

class Blocker:
    def __init__(self, *blocked):
        self.blocked = blocked

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

def block(*names):
    sys.meta_path.insert(0, Blocker(*names))

def heavy():
    return sorted({"jax", "jaxlib", "tensorflow", "keras"} & set(sys.modules))

def star():
    names = {}
    exec("from jax2tf_bridge import *", names)
    return sorted(set(names) - {"__builtins__"})

def errors(*uses):
    found = []
    for use in uses:
        try:
            eval(f"jax2tf_bridge.{use}", {"jax2tf_bridge": jax2tf_bridge})
        except ImportError as error:
            assert isinstance(error, jax2tf_bridge.errors.MissingDependencyError)
            found.append(str(error))
    return found

found = {}
"""

IN_STEPS = """
import jax2tf_bridge, shape_poly
found["listed first"] = dir(jax2tf_bridge)
found["loaded by the import"] = heavy()

from jax2tf_bridge import BridgeError, DisabledSafetyCheck, PortableFunction
from jax2tf_bridge.portable import Aval, TreeSpec
jax2tf_bridge.Target.widest()
found["loaded by the portable function and errors"] = heavy()

found["subpackages"] = {}
for name in ("compat", "colocated", "jax_export"):
    is_bound = name in vars(jax2tf_bridge)
    found["subpackages"][name] = is_bound, getattr(jax2tf_bridge, name).__name__

jax2tf_bridge.export
found["loaded by export"] = heavy()

block("tensorflow", "keras")
found["star"] = star()
found["listed"] = dir(jax2tf_bridge)
record = jax2tf_bridge.export(lambda x: x + 1, platforms=["cpu"])(1.0)
found["exported"] = str(record.out_avals[0])
found["errors"] = errors(
    "to_tf", "convert", "save_litert", "save_tfjs", "RowScorer", "Target.installed()",
    "measure_load('m')",
)
"""

WITHOUT_JAX = """
block("jax", "jaxlib")
import jax2tf_bridge
found["star"] = jax2tf_bridge.__all__  # what an import of * would bind, with TensorFlow to do so
found["listed"] = dir(jax2tf_bridge)
found["errors"] = errors("export", "convert", "dtype_of_val", "export_many", "colocated")
"""

ONLY_TENSORFLOW = """
block("jax", "jaxlib")
import jax2tf_bridge
found["name of to_tf"] = jax2tf_bridge.to_tf.__name__
found["star"] = star()
"""

WITHOUT_BOTH = """
block("jax", "jaxlib", "tensorflow", "keras")
import jax2tf_bridge
found["star"] = star()
found["listed"] = dir(jax2tf_bridge)
found["errors"] = errors("convert")
"""


def run(code: str) -> dict[str, Any]:
    """Returns what the code puts into `found`, in a fresh interpreter."""
    found: dict[str, Any] = json.loads(run_python(START + code + "print(json.dumps(found))"))
    return found


@pytest.fixture(scope="module")
def in_steps() -> dict[str, Any]:
    """Returns what each step loads, with all installed; at last without TensorFlow."""
    return run(IN_STEPS)


@pytest.fixture(scope="module")
def without_jax() -> dict[str, Any]:
    return run(WITHOUT_JAX)


@pytest.fixture(scope="module")
def without_both() -> dict[str, Any]:
    return run(WITHOUT_BOTH)


def test_every_line_of_the_stub_exports_a_name() -> None:
    exported: list[str] = jax2tf_bridge.__all__  # type: ignore[attr-defined]
    assert exported == sorted(IN_STAR)
    assert 30 < len(exported) < 55
    assert set(dir(jax2tf_bridge)) == set(HOMES)


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_packages_beside_the_names_say_what_they_export(name: str) -> None:
    package = getattr(jax2tf_bridge, name)
    assert inspect.getdoc(package)
    assert name in ("compat", "errors") or package.__all__


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_name_resolves_to_something_documented(name: str) -> None:
    value = getattr(jax2tf_bridge, name)
    assert callable(value) or name == "AUTO"
    assert inspect.getdoc(value), f"{name} has no docstring"


def test_dir_shows_the_public_names_alone_used_or_not(
    in_steps: dict[str, Any],
) -> None:
    listed = in_steps["listed first"]
    assert listed == sorted(HOMES)
    assert in_steps["listed"] == listed


def test_unknown_name_is_an_attribute_error() -> None:
    message = "module 'jax2tf_bridge' has no attribute 'no_such_name'"
    with pytest.raises(AttributeError, match=message):
        _ = jax2tf_bridge.no_such_name  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["colocated", "compat", "jax_export"])
def test_packages_beside_the_names_are_there_without_an_import_of_their_own(
    in_steps: dict[str, Any], name: str
) -> None:
    assert in_steps["subpackages"][name] == [False, f"jax2tf_bridge.{name}"]


def test_star_import_binds_every_name() -> None:
    names: dict[str, Any] = {}
    exec("from jax2tf_bridge import *", names)
    assert set(names) - {"__builtins__"} == IN_STAR


OF_JAX = {
    *("export", "from_exported", "load", "retarget", "to_exported"),
    *("ExportJob", "export_many", "eval_polymorphic_shape"),
}
OF_TENSORFLOW = {
    *("to_tf", "save", "publish", "choose_buckets"),
    *("Batching", "RowScorer"),
    *(
        "assign_weights",
        "compile_library",
        "save_coreml",
        "save_litert",
        "save_tfjs",
        "split_to_logical_devices",
    ),
}
OF_BOTH = {"call_tf", "convert", "dtype_of_val", "verify"}


@pytest.mark.parametrize(
    ("process", "missing"),
    [
        ("without_jax", OF_JAX | OF_BOTH),
        ("in_steps", OF_TENSORFLOW | OF_BOTH),
        ("without_both", OF_JAX | OF_TENSORFLOW | OF_BOTH),
    ],
    ids=["without JAX", "without TensorFlow", "without both"],
)
def test_star_import_leaves_out_what_needs_more(
    process: str, missing: set[str], request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(process)
    assert set(found["star"]) == IN_STAR - missing
    assert set(found["listed"]) >= {"convert", "export", "to_tf"}
    assert any(error.startswith("convert needs ") for error in found["errors"])


def test_import_loads_neither_jax_nor_tensorflow(in_steps: dict[str, Any]) -> None:
    assert in_steps["loaded by the import"] == []


def test_function_and_errors_load_neither_jax_nor_tensorflow(in_steps: dict[str, Any]) -> None:
    assert in_steps["loaded by the portable function and errors"] == []


def test_export_does_not_load_tensorflow(in_steps: dict[str, Any]) -> None:
    assert in_steps["loaded by export"] == ["jax", "jaxlib"]


def test_without_tensorflow_the_other_half_works(in_steps: dict[str, Any]) -> None:
    assert in_steps["exported"] == "float32[]"
    assert len(in_steps["errors"]) == 7
    for error in in_steps["errors"]:
        assert "needs TensorFlow, which is not installed here" in error
        assert "pip install 'jax2tf-bridge[tensorflow-cpu]'" in error


def test_without_jax_the_error_names_it(without_jax: dict[str, Any]) -> None:
    assert len(without_jax["errors"]) == 5
    for error in without_jax["errors"]:
        assert "needs JAX, which is not installed here" in error
        assert "pip install 'jax2tf-bridge[jax]'" in error


@pytest.mark.slow
def test_without_jax_the_other_half_works() -> None:
    found = run(ONLY_TENSORFLOW)
    assert found["name of to_tf"] == "to_tf"
    assert set(found["star"]) == IN_STAR - OF_JAX - OF_BOTH


def test_public_packages_say_what_they_export() -> None:
    for name in ("jax2tf_bridge.from_jax", "jax2tf_bridge.to_tensorflow", "shape_poly"):
        package = importlib.import_module(name)
        exported = package.__all__
        assert len(exported) == len(set(exported))
        for public in exported:
            assert not isinstance(getattr(package, public), types.ModuleType)


def test_help_speaks_of_the_bridge() -> None:
    shown = {
        name: pydoc.plain(pydoc.render_doc(getattr(jax2tf_bridge, name)))
        for name in ("AUTO", "convert")
    }
    assert "lets the bridge choose" in shown["AUTO"]
    assert "enum" not in shown["AUTO"].lower()
    assert "object at 0x" not in shown["convert"]


def test_help_repeats_no_sentence() -> None:
    for name in sorted(PUBLIC):
        text = (getattr(jax2tf_bridge, name).__doc__ or "").partition(">>>")[0]
        sentences = re.split(r"(?<=\.)\s+", " ".join(text.split()))
        repeated = {s for s in sentences if len(s) > 40 and sentences.count(s) > 1}
        assert not repeated, name
