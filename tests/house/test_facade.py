"""The facade exports the documented names, and imports neither JAX nor TensorFlow to do so."""

import importlib
import inspect
import subprocess
import sys
import textwrap
import types

import pytest

import jax2tf_bridge

# The public interface. A name that goes or comes is a line in CHANGELOG.md.
PUBLIC = {
    "AUTO",
    "PolyShape",
    "dtype_of_val",
    "eval_polymorphic_shape",
    "split_to_logical_devices",
    "LeafInfo",
    "WeightsFile",
    "current_path",
    "flatten_state",
    "from_bytes",
    "from_state_dict",
    "is_serializable",
    "msgpack_restore",
    "msgpack_serialize",
    "open_weights",
    "read_weights",
    "register_serialization_state",
    "to_bytes",
    "to_state_dict",
    "unflatten_state",
    "write_weights",
    "ExportJob",
    "ExportWorkers",
    "RayExecutor",
    "export_many",
    "WeightsReport",
    "assign_weights",
    "call_tf",
    "choose_buckets",
    "convert",
    "deserialize",
    "export",
    "from_exported",
    "latest",
    "load",
    "publish",
    "read_function",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
    "retarget_record",
    "save",
    "serialize",
    "serialize_exported",
    "to_exported",
    "to_tf",
    "versions",
    "write_function",
    "AbstractDevice",
    "AbstractMesh",
    "Aval",
    "DisabledSafetyCheck",
    "LiftedConstant",
    "LoadedModel",
    "PortableFunction",
    "SavedModel",
    "SavedSignature",
    "Published",
    "ServingInstructions",
    "Sharding",
    "Signature",
    "Target",
    "TreeSpec",
    # The exception tree.
    "ArgumentsError",
    "BridgeError",
    "DTypeError",
    "ExportError",
    "FileFormatError",
    "FunctionError",
    "GradientError",
    "CallTfError",
    "DeviceError",
    "ExportManyError",
    "InconclusiveShapeError",
    "JobError",
    "NotPicklableError",
    "StateDictError",
    "UntrustedMessageError",
    "WorkerDiedError",
    "MissingDependencyError",
    "ModuleError",
    "NotExportableError",
    "PlatformError",
    "SerializationError",
    "SavingError",
    "ShapeError",
    "ShardingError",
    "StructureError",
    "TargetError",
    "UnsoundBucketsError",
    "UnsupportedByTargetError",
}


def run(code: str) -> str:
    """What a fresh interpreter prints when it runs the code."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None
sys.meta_path.insert(0, Blocker())
import jax2tf_bridge
"""


def run_without(blocked: set[str], code: str) -> str:
    """`run`, in an interpreter that finds none of the blocked packages."""
    return run(BLOCKED.format(blocked=blocked) + textwrap.dedent(code))


def test_exports_are_the_documented_ones() -> None:
    assert set(jax2tf_bridge.__all__) == PUBLIC
    assert len(jax2tf_bridge.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_name_resolves_to_something_documented(name: str) -> None:
    value = getattr(jax2tf_bridge, name)
    assert callable(value) or name == "AUTO"
    assert inspect.getdoc(value), f"{name} has no docstring"


def test_dir_shows_every_name_before_it_is_used() -> None:
    listed = run("import jax2tf_bridge; print(*dir(jax2tf_bridge))").split()
    assert set(listed) >= PUBLIC
    assert listed == sorted(listed)


def test_unknown_name_is_an_attribute_error() -> None:
    message = "module 'jax2tf_bridge' has no attribute 'no_such_name'"
    with pytest.raises(AttributeError, match=message):
        _ = jax2tf_bridge.no_such_name  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["colocated", "compat", "jax_export"])
def test_packages_beside_the_names_are_there_without_an_import_of_their_own(name: str) -> None:
    code = f"import jax2tf_bridge; print(jax2tf_bridge.{name}.__name__)"
    assert run(code) == f"jax2tf_bridge.{name}"


def test_star_import_binds_every_name() -> None:
    code = "from jax2tf_bridge import *; print(*(n for n in dir() if not n.startswith('__')))"
    assert set(run(code).split()) == PUBLIC


STAR = """
from jax2tf_bridge import *
print(*(n for n in dir() if not n.startswith("__") and n not in ("sys", "Blocker")))
"""
OF_JAX = {
    *("LoadedModel", "export", "from_exported", "load", "retarget_record", "to_exported"),
    *("ExportJob", "ExportWorkers", "RayExecutor", "export_many", "eval_polymorphic_shape"),
}
OF_TENSORFLOW = {
    *("to_tf", "save", "publish", "latest", "versions", "choose_buckets"),
    *("Published", "SavedModel", "SavedSignature", "ServingInstructions"),
    *("WeightsReport", "assign_weights", "split_to_logical_devices"),
}
OF_BOTH = {"call_tf", "convert", "dtype_of_val"}


@pytest.mark.parametrize(
    ("blocked", "missing"),
    [
        ({"jax", "jaxlib"}, OF_JAX | OF_BOTH),
        ({"tensorflow", "keras"}, OF_TENSORFLOW | OF_BOTH),
        ({"jax", "jaxlib", "tensorflow", "keras"}, OF_JAX | OF_TENSORFLOW | OF_BOTH),
    ],
    ids=["without JAX", "without TensorFlow", "without both"],
)
def test_star_import_leaves_out_what_needs_more(blocked: set[str], missing: set[str]) -> None:
    names = set(run_without(blocked, STAR).split()) - {"jax2tf_bridge"}
    assert names == PUBLIC - missing
    code = """
    print(*sorted(set(dir(jax2tf_bridge)) & {"export", "to_tf", "convert"}))
    try:
        jax2tf_bridge.convert
    except jax2tf_bridge.MissingDependencyError as error:
        print(error)
    """
    listed, error = run_without(blocked, code).splitlines()
    assert listed == "convert export to_tf"
    assert error.startswith("convert needs ")


HEAVY = """
import sys
print(*sorted({"jax", "jaxlib", "tensorflow", "keras"} & set(sys.modules)))
"""


def test_import_loads_neither_jax_nor_tensorflow() -> None:
    assert run("import jax2tf_bridge, shape_poly" + HEAVY) == ""


def test_record_and_errors_load_neither_jax_nor_tensorflow() -> None:
    names = "Aval, PortableFunction, Target, BridgeError, DisabledSafetyCheck, TreeSpec"
    assert run(f"from jax2tf_bridge import {names}\nTarget.widest()" + HEAVY) == ""


def test_export_does_not_load_tensorflow() -> None:
    assert "tensorflow" not in run("from jax2tf_bridge import export" + HEAVY).split()


def test_without_tensorflow_the_other_half_works() -> None:
    code = """
    print(jax2tf_bridge.export(lambda x: x + 1, platforms=["cpu"])(1.0).out_avals[0])
    for use in ("to_tf", "convert", "Target.installed()"):
        try:
            eval(f"jax2tf_bridge.{use}")
        except ImportError as error:
            assert isinstance(error, jax2tf_bridge.MissingDependencyError)
            print(error)
    """
    first, *errors = run_without({"tensorflow", "keras"}, code).splitlines()
    assert first == "float32[]"
    assert len(errors) == 3
    for error in errors:
        assert "needs TensorFlow, which is not installed here" in error
        assert "pip install 'jax2tf-bridge[tensorflow-cpu]'" in error


def test_without_jax_the_other_half_works() -> None:
    code = """
    print(jax2tf_bridge.to_tf.__name__)
    for use in ("export", "convert"):
        try:
            eval(f"jax2tf_bridge.{use}")
        except ImportError as error:
            assert isinstance(error, jax2tf_bridge.MissingDependencyError)
            print(error)
    """
    first, *errors = run_without({"jax", "jaxlib"}, code).splitlines()
    assert first == "to_tf"
    assert len(errors) == 2
    for error in errors:
        assert "needs JAX, which is not installed here" in error
        assert "pip install 'jax2tf-bridge[jax]'" in error


@pytest.mark.parametrize(
    "before", ["import jax2tf_bridge.to_tf", "from jax2tf_bridge import convert"]
)
def test_function_is_not_hidden_by_the_package_of_its_name(before: str) -> None:
    """Importing the subpackage to_tf binds it as an attribute of the package."""
    code = "import jax2tf_bridge\nprint(type(jax2tf_bridge.to_tf).__name__)"
    assert run(f"{before}\n{code}") == "function"


def test_public_packages_say_what_they_export() -> None:
    for name in ("jax2tf_bridge.from_jax", "jax2tf_bridge.to_tf", "shape_poly"):
        package = importlib.import_module(name)
        exported = package.__all__
        assert len(exported) == len(set(exported))
        for public in exported:
            assert not isinstance(getattr(package, public), types.ModuleType)
