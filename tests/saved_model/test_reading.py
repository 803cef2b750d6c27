"""SavedModels are read as TensorFlow reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting import SavedModelContents, describe_saved_model, read_saved_model
from jax2tf_bridge.saved_model import bytes_field, varint_field
from tests.fresh_process import run_python
from tests.saved_model.by_hand import (
    INT32,
    Call,
    Model,
    calling,
    constant,
    differentiable,
    node,
    preventing,
    shape,
)

GOLDEN = sorted(p for p in (Path(__file__).parents[2] / "saved_models").glob("*/saved_model.pb"))


class Net(tf.Module):  # type: ignore[misc]
    """A model with a variable, an asset, two methods and a gradient."""

    def __init__(self, asset: str) -> None:
        super().__init__()
        self.weights = {"w": tf.Variable(np.ones((3, 2), np.float32), trainable=False)}
        self.asset = tf.saved_model.Asset(asset)
        product = convert(lambda w, x: x @ w, polymorphic_shapes=[None, "(b, _)"])

        @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")], autograph=False)
        def call(x: Any) -> Any:
            return {"y": product(self.weights["w"], x)}

        self.call = call
        self.size = tf.function(lambda: tf.size(self.weights["w"]), input_signature=[])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    asset = folder / "words.txt"
    asset.write_text("one\ntwo\n")
    net = Net(str(asset))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    signatures = {"serving_default": net.call, "size": net.size}
    tf.saved_model.save(net, str(folder / "net"), signatures=signatures, options=options)
    return folder / "net"


@pytest.fixture(scope="module")
def contents(saved: Path) -> SavedModelContents:
    return read_saved_model(saved)


def test_signatures_are_those_that_tensorflow_loads(
    saved: Path, contents: SavedModelContents
) -> None:
    loaded = tf.saved_model.load(str(saved))
    signatures = [e for e in contents.entries if e.is_signature]
    assert sorted(s.name for s in signatures) == sorted(loaded.signatures)
    for signature in signatures:
        _, inputs = loaded.signatures[signature.name].structured_input_signature
        outputs = loaded.signatures[signature.name].structured_outputs
        for ports, specs in ((signature.inputs, inputs), (signature.outputs, outputs)):
            assert {p.name: (p.type.dtype, p.type.shape) for p in ports} == {
                name: (spec.dtype.name, tuple(spec.shape)) for name, spec in specs.items()
            }


def test_modules_with_what_runs_them(contents: SavedModelContents) -> None:
    entries = {(e.name, e.is_signature): e for e in contents.entries}
    # The method that runs no module is not listed; the signature is.
    assert set(entries) == {("serving_default", True), ("size", True), ("call", False)}
    forward, gradient = sorted(contents.modules, key=lambda m: len(m.module))
    orders = {forward.number: 0, gradient.number: 1}
    for key in (("serving_default", True), ("call", False)):
        assert entries[key].modules == orders
        found = entries[key].gradient
        assert found is not None
        assert found.orders == 1
        assert not found.is_left_out
        assert "only the first-order gradient" in found.missing_because
    assert entries["size", True].modules == {}
    assert entries["size", True].gradient is None
    assert forward.platforms == ("cpu", "cuda", "rocm", "tpu")
    assert forward.stablehlo_version == (0, 14, 24)
    assert forward.calling_convention_version == 8
    assert forward.arguments == ("float32", "float32")
    assert [str(r) for r in forward.results] == ["float32[?,2]"]
    assert not forward.has_tokens
    assert not forward.uses_shardy
    assert not forward.functions


def test_what_lies_beside_the_modules(contents: SavedModelContents) -> None:
    (variable,) = contents.variables
    assert (variable.path, str(variable.type)) == ("weights/w", "float32[3,2]")
    assert variable.trainable is False
    assert variable.type.size == 24
    assert contents.assets == ("words.txt",)
    assert contents.tensorflow == tf.__version__
    assert contents.tags == ("serve",)
    assert contents.warm_up is None
    assert contents.sidecar == {}
    assert contents.sidecar_problem is None
    assert contents.missing_files == ()
    assert contents.missing_functions == ()


@pytest.mark.checkout
@pytest.mark.parametrize("file", GOLDEN, ids=[p.parent.name for p in GOLDEN])
def test_golden_models_are_read(file: Path) -> None:
    contents = read_saved_model(file.parent)
    assert contents.graph_size == file.stat().st_size
    signature, method = contents.entries
    assert (signature.name, method.name) == ("serving_default", "f")
    assert signature.modules == method.modules
    assert sorted(signature.modules.values()) == [0, 1]
    assert len(contents.modules) == 2


def test_neither_jax_nor_tensorflow_is_loaded(saved: Path) -> None:
    code = """
        import sys
        from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
        facts = describe_saved_model(read_saved_model(sys.argv[1]))
        print(len(facts["modules"]), {"jax", "jaxlib", "tensorflow"} & set(sys.modules))
    """
    assert run_python(code, str(saved)) == "2 set()"


CALL = Call(b"no module")


def test_orders_of_gradients_are_followed(tmp_path: Path) -> None:
    model = Model(
        {
            "main": [calling("c", "forward")],
            "forward": [CALL.node(), differentiable("d", "kind 1")],
            "vjp": [CALL.node(), calling("c", "helper")],
            "helper": [differentiable("d", "kind 2")],
            "vjp of vjp": [CALL.node(), preventing("no more")],
            "alone": [CALL.node()],
        },
        gradients={"kind 1": "vjp", "kind 2": "vjp of vjp"},
    )
    contents = read_saved_model(model.write(tmp_path / "m"))
    (entry,) = contents.entries
    assert entry.modules == {0: 0, 1: 1, 2: 2}
    assert entry.gradient is not None
    assert (entry.gradient.orders, entry.gradient.missing_because) == (2, "no more")
    assert len(contents.modules) == 4


def test_a_gradient_that_was_not_saved_is_told(tmp_path: Path) -> None:
    model = Model({"main": [CALL.node(), differentiable("d", "kind")]})
    (entry,) = read_saved_model(model.write(tmp_path / "m")).entries
    assert entry.gradient is not None
    assert (entry.gradient.orders, entry.gradient.is_left_out) == (0, True)


def test_functions_that_call_each_other_forever(tmp_path: Path) -> None:
    model = Model({"main": [calling("a", "other"), CALL.node()], "other": [calling("b", "main")]})
    (entry,) = read_saved_model(model.write(tmp_path / "m")).entries
    assert entry.modules == {0: 0}


def test_modules_in_the_graph_itself_count_where_they_are_needed(tmp_path: Path) -> None:
    nodes = [Call(b"", name="first").node(), Call(b"", name="second").node()]
    model = Model({"main": []}, nodes=nodes)
    (entry,) = read_saved_model(model.write(tmp_path / "m")).entries
    assert entry.modules == {}
    needed = Model({"main": []}, nodes=[*nodes, node("x", "Identity", ["^second"])])
    (entry,) = read_saved_model(needed.write(tmp_path / "n")).entries
    assert entry.modules == {1: 0}


def test_gradients_that_hang_on_the_object_are_no_methods(tmp_path: Path) -> None:
    model = Model(
        {"main": [CALL.node(), differentiable("d", "kind")], "vjp": [CALL.node()]},
        gradients={"kind": "vjp"},
        methods={"f": "main", "gradient": "vjp"},
    )
    contents = read_saved_model(model.write(tmp_path / "m"))
    assert [e.name for e in contents.entries] == ["serving_default", "f"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    model = Model(
        {"main": [CALL.node(), calling("c", "gone")]}, variables={"w": (2, 3)}, assets=["words"]
    )
    folder = model.write(tmp_path / "m")
    (folder / "variables" / "variables.index").unlink()
    contents = read_saved_model(folder)
    assert contents.missing_functions == ("gone",)
    assert contents.missing_files == ("variables/variables.index", "assets/words")


def test_nothing_is_missing_among_more_files_than_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model({"main": [CALL.node()]}, assets=["words"]).write(tmp_path / "m")
    assert read_saved_model(model).missing_files == ("assets/words",)
    monkeypatch.setattr("jax2tf_bridge.saved_model._reading._MAX_FILES", 1)
    assert read_saved_model(model).missing_files == ()


def test_constants_of_the_graph_by_size(tmp_path: Path) -> None:
    model = Model({"main": [CALL.node(), constant("c", (4, 5))]}, nodes=[constant("d", (100,))])
    contents = read_saved_model(model.write(tmp_path / "m"))
    assert [(c.function, c.node, str(c.type)) for c in contents.constants] == [
        ("", "d", "float32[100]"),
        ("main", "c", "float32[4,5]"),
    ]
    assert [c.size > s for c, s in zip(contents.constants, (400, 80), strict=True)] == [True, True]
    assert contents.constants_size == sum(c.size for c in contents.constants)


def test_attributes_of_the_op(tmp_path: Path) -> None:
    call = Call(
        b"",
        version=9,
        platforms=["CPU", "TPU"],
        disabled_checks=["platform", "custom_call:f"],
        arguments=[INT32],
        results=[INT32, 10, 99],
        flags=["has_token_input_output", "use_shardy_partitioner"],
    )
    (module,) = read_saved_model(Model({"main": [call.node()]}).write(tmp_path / "m")).modules
    assert module.platforms == ("cpu", "tpu")
    assert module.arguments == ("int32",)
    assert [str(c) for c in module.disabled_checks] == ["platform", "custom_call:f"]
    assert [str(r) for r in module.results] == ["int32[...]", "bool[...]", "dtype 99[...]"]
    assert module.has_tokens
    assert module.uses_shardy
    assert module.calling_convention_version == 9
    assert module.stablehlo_version is None


@pytest.mark.parametrize(
    ("data", "requests", "problem"),
    [
        (b"", 0, None),
        (bytes([3]) + bytes(7 + 4) + b"abc" + bytes(4), 1, None),
        (bytes([3]) + bytes(7 + 4) + b"abc" + bytes(3), 0, "it ends within a record"),
        (bytes([0]) + bytes(15) + bytes(3), 1, "it ends within a record's length"),
        (b"\xff" * 12, 0, "it ends within a record"),
        (bytes(16) * 100_001, 100_000, "it has more than 100,000 records"),
    ],
)
def test_requests_to_warm_up_are_counted(
    tmp_path: Path, data: bytes, requests: int, problem: str | None
) -> None:
    folder = Model({"main": [CALL.node()]}).write(tmp_path / "m")
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "tf_serving_warmup_requests").write_bytes(data)
    warm_up = read_saved_model(folder).warm_up
    assert warm_up is not None
    assert (warm_up.requests, warm_up.problem, warm_up.size) == (requests, problem, len(data))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            "{",
            "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1)",
        ),
        ("\xff", "byte 0 is not UTF-8"),
        ("[" * 100_000, "its values are nested too deeply"),
        ("[]", "the whole: expected an object, got []"),
        ('{"signatures": [1]}', None),
    ],
)
def test_a_sidecar_that_is_none_is_told(tmp_path: Path, text: str, problem: str | None) -> None:
    folder = Model({"main": [CALL.node()]}).write(tmp_path / "m")
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "jax2tf_bridge.json").write_bytes(text.encode("latin-1"))
    contents = read_saved_model(folder)
    assert contents.sidecar_problem == problem
    assert contents.sidecar == ({} if problem else {"signatures": [1]})
    findings = [f["text"] for f in describe_saved_model(contents)["findings"]]
    assert any("jax2tf_bridge.json cannot be read" in f for f in findings) == bool(problem)


def refusal(folder: Path) -> str:
    with pytest.raises((FileFormatError, OSError)) as caught:
        read_saved_model(folder)
    error = caught.value
    return error.strerror or "" if isinstance(error, OSError) else str(error)


def test_folders_that_are_no_saved_model(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone") == "does not exist; name the folder that holds saved_model.pb"
    file, name_it = tmp_path / "file", "Name the folder that holds saved_model.pb."
    file.write_text("")
    assert refusal(file) == f"{file} is not a SavedModel: it is a file. {name_it}"
    problem = f"{tmp_path} is not a SavedModel: it has no saved_model.pb."
    assert refusal(tmp_path) == f"{problem} {name_it}"
    for version in ("9", "10"):
        Model({"main": [CALL.node()]}).write(tmp_path / version)
    assert refusal(tmp_path) == f"{problem} There is one in {tmp_path / '10'}."
    (tmp_path / "saved_model.cpb").touch()
    assert "its chunked form, saved_model.cpb, is not read" in refusal(tmp_path)
    (tmp_path / "saved_model.pbtxt").touch()
    assert "its text form, saved_model.pbtxt, is not read" in refusal(tmp_path)


def test_a_model_without_modules(tmp_path: Path) -> None:
    folder = Model({"main": [node("a", "Identity")]}).write(tmp_path / "m")
    assert refusal(folder) == (
        f"The SavedModel {folder} has no XlaCallModule op, so it contains no function that JAX or "
        "the bridge converted to StableHLO."
    )


def test_a_file_without_a_graph(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    assert "at byte 0, there is no graph" in refusal(tmp_path)


def test_a_file_of_more_than_two_gibibytes(tmp_path: Path) -> None:
    with (tmp_path / "saved_model.pb").open("wb") as file:
        file.truncate(2**31)
    assert "has 2,147,483,648 bytes. TensorFlow reads at most 2 GiB" in refusal(tmp_path)


def test_a_shape_of_too_many_dimensions(tmp_path: Path) -> None:
    folder = Model({"main": [CALL.node()]}, inputs={"x": [1] * 255}).write(tmp_path / "m")
    assert "a shape has more than 254 dimensions" in refusal(folder)


def test_models_without_an_object_graph(tmp_path: Path) -> None:
    attributes = {"dtype": varint_field(6, 1), "shape": bytes_field(7, shape([5]))}
    variable = node("weights", "VarHandleOp", attributes=attributes)
    model = Model({"main": [CALL.node()]}, nodes=[variable], has_objects=False)
    (found,) = read_saved_model(model.write(tmp_path / "m")).variables
    assert (found.path, str(found.type), found.trainable) == ("weights", "float32[5]", None)
