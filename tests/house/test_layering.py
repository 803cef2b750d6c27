"""Every module keeps the layout's rules, and the rules themselves tell right from wrong."""

import re
from pathlib import Path

import pytest

from tests.house.imports import ROOT, module_name, python_files
from tests.house.layering import FLOORS, violations

pytestmark = pytest.mark.checkout

# `_utils` and `_dtypes` are packages of their own.
PRIVATE_IMPORT = re.compile(
    r"^.*\n *from (?:jax2tf_bridge|shape_poly)(?!\._(?:utils|dtypes) )(?:"
    r"[\w.]*\._[\w.]* import |[\w.]* import (?:\([^)]*|[^(\n]*)(?<!as )\b_[a-z]).*$",
    re.MULTILINE,
)
MODULES = [(module_name(path), path) for path in python_files("jax2tf_bridge", "shape_poly")]


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_module_keeps_the_rules(module: str, path: Path) -> None:
    found = violations(path.read_text(), module, is_package=path.name == "__init__.py")
    assert not found, "\n".join(map(str, found))


def test_tests_say_why_they_import_private_names() -> None:
    """A comment stands before the first such import of a file, or behind it."""
    found = {path: PRIVATE_IMPORT.search(path.read_text()) for path in python_files("tests")}
    private = {path: match for path, match in found.items() if match}
    assert len(private) > 50
    assert [str(path) for path, match in private.items() if "#" not in match[0]] == []


def test_architecture_page_has_the_floors() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    packages = {name for floor in FLOORS for name in floor} - {"_version", "_lazy_names", "facade"}
    found = [(int(n), packages & set(re.findall(r"`([\w.]+)`", row))) for n, row in rows]
    wanted = [(n, packages & set(floor)) for n, floor in enumerate(FLOORS, start=1)]
    assert found == wanted[::-1]


def test_every_package_is_looked_at() -> None:
    names = {name for name, _ in MODULES}
    assert {"shape_poly", "jax2tf_bridge", "jax2tf_bridge.errors"} <= names
    assert {"jax2tf_bridge.from_jax", "jax2tf_bridge.to_tensorflow"} <= names


REJECTED = [
    # shape_poly stands alone.
    ("shape_poly._solution", "import jax", "shape_poly must never import jax"),
    ("shape_poly", "from tensorflow import Tensor", "never import tensorflow"),
    ("shape_poly._x", "def f():\n  import jax.numpy", "never import jax"),
    ("shape_poly._x", "from jax2tf_bridge import Target", "not on a lower floor"),
    # The halves.
    ("jax2tf_bridge.from_jax._trace", "import tensorflow as tf", "never import tensorflow"),
    ("jax2tf_bridge.from_jax", "def f():\n  from tensorflow import x", "never import tensorflow"),
    (
        "jax2tf_bridge.from_jax._x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import tensorflow",
        "never import tensorflow",
    ),
    ("jax2tf_bridge.to_tensorflow._op", "import jax", "to_tensorflow must never import jax"),
    (
        "jax2tf_bridge.to_tensorflow._op",
        "async def f():\n  import jaxlib",
        "to_tensorflow must never import jax",
    ),
    ("jax2tf_bridge.saving", "f = lambda: __import__('jax')", "saving must never import jax"),
    ("jax2tf_bridge.saving._x", "import importlib\nimportlib.import_module('jax')", "never"),
    ("jax2tf_bridge.inspecting._x", "def f():\n  import jax", "inspecting must never import jax"),
    ("jax2tf_bridge.inspecting._x", "import tensorflow", "must never import tensorflow"),
    ("jax2tf_bridge.errors", "def f():\n  import jax", "errors must never import jax"),
    # A package that needs another must not pass it on to packages that do without.
    ("jax2tf_bridge.saving._x", "from jax2tf_bridge.from_jax import x", "which needs"),
    ("jax2tf_bridge.saving._x", "def f():\n  from jax2tf_bridge.from_jax import x", "which needs"),
    (
        "jax2tf_bridge.loading._x",
        "from jax2tf_bridge.to_tensorflow import x",
        "which needs tensorflow",
    ),
    ("jax2tf_bridge.inspecting._x", "from jax2tf_bridge.to_tensorflow import x", "which needs"),
    # Neither at module level.
    ("jax2tf_bridge.portable._x", "import jax", "portable must not import jax at module level"),
    ("jax2tf_bridge.portable._x", "try:\n  import tensorflow\nexcept OSError: pass", "level"),
    ("jax2tf_bridge.serialization.flat", "import tensorflow", "at module level"),
    ("jax2tf_bridge", "from jax2tf_bridge import _x\nimport jax", "facade must not import jax"),
    # Downwards only: not beside, not late, not for types.
    (
        "jax2tf_bridge.from_jax._x",
        "from jax2tf_bridge import to_tensorflow",
        "must not import to_tensorflow",
    ),
    (
        "jax2tf_bridge.from_jax._x",
        "from jax2tf_bridge.to_tensorflow import f",
        "must not import to_tensorflow",
    ),
    (
        "jax2tf_bridge.from_jax._x",
        "from ..to_tensorflow._op import f",
        "must not import to_tensorflow",
    ),
    ("jax2tf_bridge.from_jax", "from ..to_tensorflow import f", "must not import to_tensorflow"),
    (
        "jax2tf_bridge.from_jax.shapes._x",
        "from ...to_tensorflow import f",
        "must not import to_tensorflow",
    ),
    ("jax2tf_bridge.to_tensorflow._op", "import jax2tf_bridge.saving", "must not import saving"),
    ("jax2tf_bridge.inspecting._x", "from jax2tf_bridge.saving import x", "must not import saving"),
    ("jax2tf_bridge.from_jax._x", "from jax2tf_bridge.inspecting import x", "import inspecting"),
    (
        "jax2tf_bridge.to_tensorflow._op",
        "from jax2tf_bridge import convert",
        "must not import facade",
    ),
    (
        "jax2tf_bridge.to_tensorflow._op",
        "from jax2tf_bridge.converting import x",
        "import converting",
    ),
    ("jax2tf_bridge.portable._x", "def f():\n  from jax2tf_bridge import from_jax", "from_jax"),
    (
        "jax2tf_bridge.targets._target",
        "from jax2tf_bridge.to_tensorflow import _tf_compat",
        "to_tensorflow",
    ),
    (
        "jax2tf_bridge.errors",
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n  from jax2tf_bridge.portable import PortableFunction",
        "errors must not import portable",
    ),
    ("jax2tf_bridge.new_room._x", "import os", "new_room has no floor"),
    # Private modules.
    (
        "jax2tf_bridge.portable._portable_function",
        "from shape_poly._parser import f",
        "private to shape_poly",
    ),
    (
        "jax2tf_bridge.portable._portable_function",
        "from shape_poly import _parser",
        "private to shape_poly",
    ),
    ("jax2tf_bridge.to_tensorflow._x", "import shape_poly._parser", "private to shape_poly"),
    (
        "jax2tf_bridge.loading._x",
        "from jax2tf_bridge.portable._aval import Aval",
        "private to jax2tf_bridge.portable: import from jax2tf_bridge.portable",
    ),
    ("jax2tf_bridge.loading._x", "from jax2tf_bridge.portable import _aval", "private to"),
    ("jax2tf_bridge.loading", "import jax2tf_bridge.portable._aval", "private to"),
    ("jax2tf_bridge.loading._x", "def f():\n  from jax2tf_bridge.portable import _f", "private"),
    (
        "jax2tf_bridge.saving._save",
        "from jax2tf_bridge.saving.buckets._buckets import f",
        "private to jax2tf_bridge.saving.buckets",
    ),
    ("jax2tf_bridge.errors", "from jax2tf_bridge._utils._texts import join_names", "private to"),
    # The rooms of emitters.
    (
        "jax2tf_bridge.emitters._movement",
        "from jax2tf_bridge.emitters.operations import EMITTERS",
        "the machinery must not import",
    ),
    (
        "jax2tf_bridge.emitters.formulas.floats",
        "from jax2tf_bridge.emitters._scope import Scope",
        "a formula must not import",
    ),
    # Private names.
    ("jax2tf_bridge.from_jax._x", "from jax._src import core", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "from jax import _src", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "import jax._src.core as core", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "import jaxlib", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "from jaxlib.mlir import ir", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "import jax\ndef f(): return jax._src.core", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "import jax as j\nx = j._src", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "from jax import export as e\ne._module", "private to JAX"),
    ("jax2tf_bridge.from_jax._x", "import jax\ngetattr(jax, '_src')", "private to JAX"),
    (
        "jax2tf_bridge.from_jax._x",
        "import importlib\nx = importlib.import_module('jax._src.core')",
        "private to JAX",
    ),
    (
        "jax2tf_bridge.from_jax._x",
        "from importlib import import_module\nn = 1\nimport_module(f'jax._src.{n}')",
        "private to JAX",
    ),
    (
        "jax2tf_bridge.from_jax._x",
        "import sys\nx = sys.modules['jax._src.core']",
        "private to JAX",
    ),
    (
        "jax2tf_bridge.to_tensorflow._op",
        "from tensorflow.python.eager import x",
        "private to TensorFlow",
    ),
    (
        "jax2tf_bridge.to_tensorflow._op",
        "import tensorflow as tf\ntf.compiler.x",
        "private to TensorFlow",
    ),
    (
        "jax2tf_bridge.to_tensorflow._op",
        "import tensorflow as tf\ntf.Tensor._x",
        "private to TensorFlow",
    ),
    ("jax2tf_bridge.from_jax._x", "def f(e): return e._module", "private attribute"),
    ("jax2tf_bridge.from_jax._x", "def f(e): return getattr(e, '_module')", "private attribute"),
    (
        "jax2tf_bridge.converting._convert",
        "class A:\n  def f(self, t): return t._x",
        "private attribute",
    ),
    # A seam is for its own side.
    (
        "jax2tf_bridge.to_tensorflow._jax_compat",
        "import tensorflow.python",
        "private to TensorFlow",
    ),
    ("jax2tf_bridge.from_jax._tf_compat", "import jaxlib", "private to JAX"),
    # Imports whose module is not visible in the source.
    (
        "jax2tf_bridge.to_tensorflow._x",
        "import importlib\nimportlib.import_module(name)",
        "computed name",
    ),
    # State.
    (
        "jax2tf_bridge.to_tensorflow._x",
        "import threading\n_state = threading.local()",
        "container to fill",
    ),
    ("jax2tf_bridge.to_tensorflow._x", "_cache: dict[str, int] = {}", "container to fill"),
    ("jax2tf_bridge.to_tensorflow._x", "_seen = set()", "container to fill"),
    ("jax2tf_bridge.to_tensorflow._x", "x = 0\ndef f():\n  global x\n  x = 1", "global x"),
]

ACCEPTED = [
    ("shape_poly._solution", "from shape_poly._expressions import Dim\nimport math"),
    ("shape_poly._solution", "from ._expressions import Dim"),
    ("jax2tf_bridge.saving.buckets._x", "from jax2tf_bridge.saving._report import SavedModel"),
    ("jax2tf_bridge.saving.buckets", "from jax2tf_bridge.saving.buckets._buckets import f"),
    ("jax2tf_bridge.errors", "from jax2tf_bridge._utils import join_names"),
    ("jax2tf_bridge.from_jax._trace", "import jax\nimport jax.numpy as jnp\nx = jax.export.export"),
    ("jax2tf_bridge.from_jax._trace", "from jax2tf_bridge.portable import Aval"),
    ("jax2tf_bridge.from_jax._trace", "from shape_poly import Dim"),
    ("jax2tf_bridge.from_jax._trace", "from jax2tf_bridge.from_jax import _jax_compat"),
    ("jax2tf_bridge.from_jax", "from jax2tf_bridge.from_jax._trace import f"),
    (
        "jax2tf_bridge.emitters.operations._gather",
        "from jax2tf_bridge.emitters._scope import Scope\n"
        "from jax2tf_bridge.emitters.operations._dynamic_slices import clamp",
    ),
    ("jax2tf_bridge.from_jax._jax_compat", "from jax._src import core\nimport jaxlib"),
    ("jax2tf_bridge.from_jax._jax_compat_linalg", "import jax\nx = jax._src"),
    ("jax2tf_bridge.to_tensorflow._tf_compat", "from tensorflow.python.eager import x"),
    ("jax2tf_bridge.to_tensorflow._op", "import tensorflow as tf\nx = tf.compat.v1.Session"),
    ("jax2tf_bridge.to_tensorflow._op", "import tensorflow as tf\nx = tf.__version__"),
    ("jax2tf_bridge.calling_tf._jax_compat", "from jax._src import core"),
    ("jax2tf_bridge.calling_tf", "import jax\nimport tensorflow"),
    ("jax2tf_bridge.saving", "from jax2tf_bridge.to_tensorflow import to_tensorflow"),
    ("jax2tf_bridge.saving", "from jax2tf_bridge.to_tensorflow import check_function"),
    ("jax2tf_bridge.inspecting", "from jax2tf_bridge.serialization import read_function"),
    (
        "jax2tf_bridge.converting._convert",
        "from jax2tf_bridge.from_jax import f\nimport tensorflow",
    ),
    ("jax2tf_bridge.converting._x", "from jax2tf_bridge.from_jax import f"),
    ("jax2tf_bridge.portable._x", "def f():\n  import jax"),
    ("jax2tf_bridge.portable._x", "from jax2tf_bridge import errors"),
    ("jax2tf_bridge", "import importlib\nimportlib.import_module(name)"),
    ("jax2tf_bridge", "def f():\n  from jax2tf_bridge.converting import convert"),
    ("jax2tf_bridge.to_tensorflow._x", "TABLE = {'a': 1}\nNAMES = ('a',)\n__all__ = ['f']"),
    ("jax2tf_bridge.to_tensorflow._x", "text = 'the rules of jax._src. And more'"),
    ("jax2tf_bridge.to_tensorflow._x", "def f(self): return self._private.jaxlib"),
    ("jax2tf_bridge.to_tensorflow._x", "class A:\n  _x = 1\n  def f(self, other): return other._x"),
    ("jax2tf_bridge.to_tensorflow._x", "def f(t): return t._fields, t.__dict__"),
    ("jax2tf_bridge.from_jax._jax_compat", "def f(e): return e._module"),
]


@pytest.mark.parametrize(("module", "source", "rule"), REJECTED)
def test_rules_reject(module: str, source: str, rule: str) -> None:
    is_package = module.split(".")[-1] in {"shape_poly", "from_jax", "saving", "jax2tf_bridge"}
    found = violations(source, module, is_package=is_package)
    assert any(rule in str(violation) for violation in found), found


@pytest.mark.parametrize(("module", "source"), ACCEPTED)
def test_rules_accept(module: str, source: str) -> None:
    is_package = module.split(".")[-1] in {"from_jax", "saving", "calling_tf", "jax2tf_bridge"}
    assert violations(source, module, is_package=is_package) == []


def test_violation_names_module_and_line() -> None:
    (violation,) = violations("import os\n\nimport jax\n", "shape_poly._x")
    assert str(violation) == "shape_poly._x, line 3: shape_poly must never import jax"
