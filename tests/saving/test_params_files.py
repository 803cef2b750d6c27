"""save() and publish(): weights from files and state dicts, found by their paths."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from jax2tf_bridge import (
    Signature,
    assign_weights,
    export,
    open_weights,
    publish,
    read_weights,
    save,
    write_function,
    write_weights,
)
from jax2tf_bridge.cli import main
from jax2tf_bridge.errors import DTypeError, FileFormatError, ShapeError, StructureError
from jax2tf_bridge.signatures import name_leaves
from jax2tf_bridge.storage import AnyPath
from jax2tf_bridge.weights import flatten_state, to_state_dict
from tests.fresh_process import run_python
from tests.plugins.blocked_imports import blocked


class Affine(NamedTuple):
    """A layer."""

    kernel: Any
    bias: Any


X = np.arange(6, dtype=np.float32).reshape(2, 3)
PARAMS: Any = {
    "layers": [
        Affine(np.full((3, 3), 0.5, np.float32), np.ones(3).astype(ml_dtypes.bfloat16)),
        Affine(np.eye(3, dtype=np.float32), np.zeros(3).astype(ml_dtypes.bfloat16)),
    ],
    "scale": {0: np.float32(2), 1: np.int32(3)},
}


def net(params: Any, x: Any) -> Any:
    for layer in params["layers"]:
        x = x @ layer.kernel + layer.bias.astype(jnp.float32)
    return x * params["scale"][0] + params["scale"][1]


def scaled(factor: int) -> Any:
    return jax.tree_util.tree_map(lambda leaf: (leaf * factor).astype(leaf.dtype), PARAMS)


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .jaxfn file: a list of named tuples, and numbers as keys."""
    path = tmp_path_factory.mktemp("records") / "net.jaxfn"
    shapes = [None, "(b, 3)"]
    write_function(path, export(net, polymorphic_shapes=shapes)(PARAMS, X), vjp_order=1)
    return path


@pytest.fixture(scope="module")
def published(portable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with one version."""
    root = tmp_path_factory.mktemp("published") / "root"
    publish(root, portable, params=PARAMS)
    return root


@pytest.fixture
def root(published: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(published, tmp_path / "root")
    return tmp_path / "root"


def assert_answers(folder: AnyPath, params: Any) -> None:
    model = tf.saved_model.load(folder)
    np.testing.assert_allclose(model.serving_default(X), net(params, X), rtol=1e-5)


def given_as(form: str, params: Any, folder: Path) -> Any:
    """Gives the weights in one of the forms that save takes."""
    if form == "state dict":
        return to_state_dict(params)
    if form == "paths":
        return flatten_state(params)
    path = folder / f"{form}.weights"
    if form == "safetensors":
        save_file({k: np.asarray(v) for k, v in flatten_state(params).items()}, path)
    elif form == "dots":
        names = {k.replace("/", "."): np.asarray(v) for k, v in flatten_state(params).items()}
        save_file(names, path)
    else:
        write_weights(path, params)
    return str(path) if form == "msgpack" else path


FORMS = ["state dict", "paths", "msgpack", "safetensors", "dots"]


@pytest.mark.parametrize("form", FORMS)
def test_save(form: str, portable: Path, tmp_path: Path) -> None:
    given = given_as(form, PARAMS, tmp_path)
    saved = save(tmp_path / "m", portable, params=given, vjp_order=0)
    assert list(saved.weights) == [
        *("layers/0/kernel", "layers/0/bias", "layers/1/kernel", "layers/1/bias"),
        *("scale/0", "scale/1"),
    ]
    assert_answers(tmp_path / "m", PARAMS)


@pytest.mark.parametrize("form", FORMS)
def test_publish_of_weights_alone(form: str, root: Path, tmp_path: Path) -> None:
    version = publish(root, params=given_as(form, scaled(2), tmp_path))
    assert version.version == 2
    assert_answers(version.path, scaled(2))


def test_jax_functions_get_nested_dicts(tmp_path: Path) -> None:
    params = {"dense": {"kernel": np.eye(3, dtype=np.float32)}}
    write_weights(tmp_path / "w.msgpack", params)
    signature = Signature(lambda p, x: x @ p["dense"]["kernel"], args=[X])
    saved = save(tmp_path / "m", signature, params=tmp_path / "w.msgpack")
    assert list(saved.weights) == ["dense/kernel"]
    model = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(model.serving_default(X), X)


def test_several_signatures_share_the_weights_of_a_file(portable: Path, tmp_path: Path) -> None:
    write_weights(tmp_path / "w", PARAMS)
    both = {"one": portable, "two": portable}
    saved = save(tmp_path / "m", both, params=tmp_path / "w", vjp_order=0)
    assert len(saved.weights) == 6
    model = tf.saved_model.load(tmp_path / "m")
    model.params["scale/0"].assign(0)
    np.testing.assert_allclose(model.one(X), np.full((2, 3), 3))
    np.testing.assert_allclose(model.two(X), np.full((2, 3), 3))


def test_a_pytree_of_the_structure_goes_before_paths(tmp_path: Path) -> None:
    # As paths these would be the same leaf.
    params = {"a/b": np.float32(1), "a": {"b": np.float32(10)}}
    save(
        tmp_path / "m", Signature(lambda p, x: x * p["a/b"] + p["a"]["b"], args=[X]), params=params
    )
    model = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_array_equal(model.serving_default(X), X + 10)


def test_an_open_file(portable: Path, root: Path, tmp_path: Path) -> None:
    write_weights(tmp_path / "w", scaled(2))
    with open_weights(tmp_path / "w") as weights:
        save(tmp_path / "m", portable, params=weights, vjp_order=0)
        publish(root, params=weights)
        assert weights["scale/1"] == 6
    assert_answers(tmp_path / "m", scaled(2))
    assert_answers(root / "2", scaled(2))


def test_boxes_around_values_are_no_part_of_the_path(tmp_path: Path) -> None:
    nnx = pytest.importorskip("flax.nnx", exc_type=ImportError)
    graph, state = nnx.split(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    portable = export(lambda state, x: nnx.merge(graph, state)(x))(state, X)
    assert name_leaves(portable.in_tree.children[0].children[0])[0].startswith("bias/")
    pure = nnx.to_pure_dict(state)
    write_weights(tmp_path / "w", pure)
    save(tmp_path / "m", portable, params=tmp_path / "w")
    model = tf.saved_model.load(tmp_path / "m")
    expected = X @ pure["kernel"] + pure["bias"]
    np.testing.assert_allclose(model.serving_default(X), expected, rtol=1e-5)


def test_a_file_with_other_weights_beside_them(portable: Path, tmp_path: Path) -> None:
    file = tmp_path / "state.msgpack"
    write_weights(file, {"params": PARAMS, "step": 3})
    with pytest.raises(StructureError) as caught:
        save(tmp_path / "m", portable, params=file)
    first, *_, last = str(caught.value).splitlines()
    assert first == f"The weights in {file} do not fit the argument params of net:"
    assert last == (
        f"The weights lie below 'params' there: pass params=read_weights({str(file)!r})['params']."
    )
    assert "  - step is not expected" in str(caught.value)
    save(tmp_path / "m", portable, params=read_weights(file)["params"], vjp_order=0)
    assert_answers(tmp_path / "m", PARAMS)


def test_missing_and_unexpected_paths(portable: Path, root: Path, tmp_path: Path) -> None:
    state = flatten_state(PARAMS)
    state["layers/0/kernal"] = state.pop("layers/0/kernel")
    state["steps"] = 1
    save_file({path: np.asarray(leaf) for path, leaf in state.items()}, tmp_path / "w")
    for given, whose in (
        (tmp_path / "w", f"The weights in {tmp_path / 'w'}"),
        (state, "params"),
    ):
        with pytest.raises(StructureError) as caught:
            save(tmp_path / "m", portable, params=given)
        first, *lines, last = str(caught.value).splitlines()
        assert first == f"{whose} do not fit the argument params of net:"
        assert sorted(lines) == [
            "  - layers/0/kernal is not expected",
            "  - layers/0/kernel is missing: did you mean layers/0/kernal?",
            "  - steps is not expected",
        ]
        assert last == "Pass the weights that it was exported with, or export it for these."
    assert not (tmp_path / "m").exists()
    with pytest.raises(StructureError, match=r"do not fit the weights of .*root/1:\n  - layers/0"):
        publish(root, params=tmp_path / "w")


def test_nested_state_dicts_that_lack_something(portable: Path, tmp_path: Path) -> None:
    state = to_state_dict(PARAMS)
    del state["layers"]["1"]["bias"]
    with pytest.raises(StructureError, match=r"params do not fit .*\n  - layers/1/bias is missing"):
        save(tmp_path / "m", portable, params=state)
    # A value that cannot be its state dict is compared as a pytree.
    with pytest.raises(StructureError, match=r"params: the key 'layers' is missing"):
        save(tmp_path / "m", portable, params={"w": 1})


def test_paths_below_a_part_of_the_function(tmp_path: Path) -> None:
    kernel = np.eye(3, dtype=np.float32)
    portable = export(lambda v, x: x @ v["params"]["kernel"])({"params": {"kernel": kernel}}, X)
    write_weights(tmp_path / "w", {"kernel": kernel})
    with pytest.raises(StructureError, match=r"pass params=\{'params': read_weights\('.*w'\)\}\.$"):
        save(tmp_path / "m", portable, params=tmp_path / "w")


def test_shapes_and_dtypes_of_files(portable: Path, root: Path, tmp_path: Path) -> None:
    wrong = to_state_dict(PARAMS)
    wrong["layers"]["0"]["kernel"] = np.ones((3, 4), np.float32)
    write_weights(tmp_path / "shape", wrong)
    message = r"params\['layers'\]\[0\]\.kernel: expected shape \(3, 3\), got \(3, 4\)"
    with pytest.raises(ShapeError, match=message):
        save(tmp_path / "m", portable, params=tmp_path / "shape")
    wrong["layers"]["0"]["kernel"] = np.ones((3, 3), np.int32)
    write_weights(tmp_path / "dtype", wrong)
    with pytest.raises(DTypeError, match=r"kernel: expected float32, got int32"):
        save(tmp_path / "m", portable, params=tmp_path / "dtype")
    with pytest.raises(DTypeError, match=r"kernel'?\]?: expected float32\[3,3\], got int32"):
        publish(root, params=tmp_path / "dtype")


def test_files_that_cannot_be_read(portable: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"\x81\xa1a")
    with pytest.raises(FileFormatError, match="damaged"):
        save(tmp_path / "m", portable, params=tmp_path / "damaged")
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "m", portable, params="none.msgpack")
    with pytest.raises(FileFormatError, match="damaged"):
        publish(root, params=tmp_path / "damaged")
    assert sorted(p.name for p in root.iterdir()) == [".versions-used-up-to-1", "1"]


@pytest.mark.costly
def test_two_files_and_nothing_of_jax(
    portable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_weights(tmp_path / "w", PARAMS)
    write_weights(tmp_path / "w2", scaled(2))
    with blocked("jax", "jaxlib", "flax"):
        with pytest.raises(ImportError):
            import jax.numpy  # noqa: F401
        assert main(["save", str(portable), "-o", str(tmp_path / "plain")]) == 0
        words = ["--params", str(tmp_path / "w2")]
        assert main(["save", str(portable), "-o", str(tmp_path / "command"), *words]) == 0
        assert main(["publish", str(portable), "-o", str(tmp_path / "root"), *words]) == 0
        save(tmp_path / "m", portable, params=tmp_path / "w")
        publish(tmp_path / "root", params=tmp_path / "w")
        model = tf.saved_model.load(tmp_path / "m")
        assert str(assign_weights(model, tmp_path / "w2")) == "6 variables assigned"
        y = model.serving_default(X)
    plain, with_params, published = capsys.readouterr().out.splitlines()
    assert plain.startswith(f"{tmp_path}/plain: serving_default(params_layers_0_kernel: float32[")
    assert with_params.startswith(f"{tmp_path}/command: serving_default(x: float32[b,3])")
    assert published.startswith(f"{tmp_path}/root/1: serving_default(x: float32[b,3])")
    np.testing.assert_allclose(y, net(scaled(2), X), rtol=1e-5)
    assert_answers(tmp_path / "command", scaled(2))
    assert_answers(tmp_path / "root" / "2", PARAMS)


@pytest.mark.slow
def test_two_files_where_jax_cannot_be_imported(portable: Path, tmp_path: Path) -> None:
    """Tests the command as well: starting TensorFlow once more would take longest."""
    write_weights(tmp_path / "w", PARAMS)
    write_weights(tmp_path / "w2", scaled(2))
    code = """
    import sys
    import numpy as np
    import tensorflow as tf
    from jax2tf_bridge import assign_weights, publish, save
    from jax2tf_bridge.cli import main
    record, folder = sys.argv[1:]
    assert main(["save", record, "-o", f"{folder}/plain"]) == 0
    assert main(["save", record, "-o", f"{folder}/command", "--params", f"{folder}/w2"]) == 0
    save(f"{folder}/m", record, params=f"{folder}/w")
    publish(f"{folder}/root", record, params=f"{folder}/w")
    publish(f"{folder}/root", params=f"{folder}/w2")
    model = tf.saved_model.load(f"{folder}/m")
    print(assign_weights(model, f"{folder}/w2"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(f"{folder}/y.npy", model.serving_default(x))
    assert not {"jax", "flax"} & set(sys.modules)
    """
    printed = run_python(code, str(portable), str(tmp_path), without_jax=True)
    plain, with_params, assigned = printed.splitlines()
    assert plain.startswith(f"{tmp_path}/plain: serving_default(params_layers_0_kernel: float32[")
    assert with_params.startswith(f"{tmp_path}/command: serving_default(x: float32[b,3])")
    assert assigned == "6 variables assigned"
    paths = flatten_state(PARAMS)
    inputs = {f"params_{path.replace('/', '_')}": leaf for path, leaf in paths.items()} | {"x": X}
    serve = tf.saved_model.load(tmp_path / "plain").signatures["serving_default"]
    answer = serve(**{name: tf.constant(value) for name, value in inputs.items()})["output_0"]
    np.testing.assert_allclose(answer, net(PARAMS, X), rtol=1e-5)
    assert_answers(tmp_path / "command", scaled(2))
    assert_answers(tmp_path / "m", PARAMS)
    assert_answers(tmp_path / "root" / "2", scaled(2))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), net(scaled(2), X), rtol=1e-5)


# From TensorFlow back to JAX.


def trained(path: Path) -> tuple[Any, Any]:
    """Saves the net, changes a weight in TensorFlow, and returns the model and its weights."""
    signature = Signature(net, args=[X])
    model = tf.saved_model.load(save(path / "m" / "1", signature, params=PARAMS).path)
    model.params["layers/0/kernel"].assign(np.full((3, 3), 2, np.float32))
    expected = {
        **PARAMS,
        "layers": [PARAMS["layers"][0]._replace(kernel=np.full((3, 3), 2)), PARAMS["layers"][1]],
    }
    return model, expected


def test_weights_of_a_loaded_model_return_to_jax(tmp_path: Path) -> None:
    model, expected = trained(tmp_path)
    for params in (model.params, dict(model.params)):
        write_weights(tmp_path / "w.msgpack", params)
        with open_weights(tmp_path / "w.msgpack") as weights:
            assert sorted(weights) == sorted(flatten_state(to_state_dict(PARAMS)))
        back = read_weights(tmp_path / "w.msgpack", target=PARAMS, strict=True)
        jax.tree_util.tree_map(np.testing.assert_array_equal, back, expected)
        assert back["layers"][0].bias.dtype == ml_dtypes.bfloat16


@pytest.mark.costly
def test_weights_of_a_loaded_model_are_published(tmp_path: Path) -> None:
    model, expected = trained(tmp_path)
    arrays = {name: variable.numpy() for name, variable in model.params.items()}
    files = tmp_path / "w.msgpack", tmp_path / "arrays.msgpack"
    for file, weights in zip(files, (model.params, arrays), strict=True):
        write_weights(file, weights)
    for params in (model.params, dict(model.params), arrays, *files):
        publish(tmp_path / "m", params=PARAMS)
        published = publish(tmp_path / "m", params=params)
        served = tf.saved_model.load(published.path)
        np.testing.assert_allclose(served.serving_default(X), net(expected, X), rtol=1e-6)


def test_names_that_tensorflow_changed_are_published(tmp_path: Path) -> None:
    params = {"a b/c": np.ones(3, np.float32), "d": [np.ones(3, np.float32)]}
    scaling = Signature(lambda p, x: x * p["a b/c"] + p["d"][0], args=[X])
    first = publish(tmp_path / "m", scaling, params=params)
    model = tf.saved_model.load(first.path)
    assert sorted(model.params) == ["a_b_c", "d/0"]
    model.params["d/0"].assign([5, 5, 5])
    write_weights(tmp_path / "w.msgpack", model.params)
    for given in (model.params, tmp_path / "w.msgpack"):
        served = tf.saved_model.load(publish(tmp_path / "m", params=given).path)
        np.testing.assert_allclose(served.serving_default(X), X + 5)


def test_tensors_within_trees_are_written_as_arrays(tmp_path: Path) -> None:
    module = tf.Module()
    module.layers = [{"kernel": tf.Variable([1.0, 2.0])}, (tf.constant(3), 4)]
    write_weights(tmp_path / "w", {"net": module.layers, "a/b": {"c": 1.5}})
    read = read_weights(tmp_path / "w")
    np.testing.assert_array_equal(read["net"]["0"]["kernel"], [1, 2])
    assert (read["net"]["1"], read["a/b"]) == ({"0": 3, "1": 4}, {"c": 1.5})


# Checkpoints of Orbax.


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the weights, of a training state, and a manager's folder."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "plain", PARAMS)
        checkpointer.save(folder / "state", {"params": PARAMS, "step": 3, "note": None})
    with ocp.CheckpointManager(folder / "managed") as manager:
        for step in (9, 10):
            manager.save(step, args=ocp.args.StandardSave(PARAMS))
    with ocp.CheckpointManager(folder / "parts") as manager:
        items = {"a": ocp.args.StandardSave(PARAMS), "b": ocp.args.StandardSave(PARAMS)}
        manager.save(1, args=ocp.args.Composite(**items))
    return folder


@pytest.mark.parametrize("name", ["plain", "managed/10"])
def test_checkpoints_are_weights(
    checkpoints: Path, portable: Path, tmp_path: Path, name: str
) -> None:
    path = checkpoints / name
    saved = save(tmp_path / "m" / "1", portable, params=path)
    model = tf.saved_model.load(saved.path)
    np.testing.assert_allclose(model.serving_default(X), net(PARAMS, X), rtol=1e-6)
    published = publish(tmp_path / "m", params=path)
    assert published.version == 2
    assert len(assign_weights(model, path).assigned) == 6
    back = read_weights(path, target=PARAMS, strict=True)
    jax.tree_util.tree_map(np.testing.assert_array_equal, back, PARAMS)
    assert all(type(leaf) is np.ndarray for leaf in jax.tree_util.tree_leaves(read_weights(path)))


def test_functions_get_the_tree_of_a_checkpoint(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "c", {"layers": [np.ones(3, np.float32)]})
    signature = Signature(lambda p, x: x * p["layers"][0], args=[X])  # a list, as it was saved
    saved = save(tmp_path / "m", signature, params=tmp_path / "c")
    assert list(saved.weights) == ["layers/0"]


def test_checkpoints_that_do_not_fit(checkpoints: Path, portable: Path, tmp_path: Path) -> None:
    state = checkpoints / "state"
    with pytest.raises(StructureError) as caught:
        save(tmp_path / "m", portable, params=state)
    assert str(caught.value).startswith(f"The weights in {state} do not fit the argument params")
    advice = f"pass params=read_weights('{state}')['params']."
    assert str(caught.value).endswith(advice)
    save(tmp_path / "m", portable, params=read_weights(str(state))["params"])
    text = f"{checkpoints}/managed is a folder of checkpoints of Orbax. Name one of them, such as "
    with pytest.raises(FileFormatError, match=f"^{text}{checkpoints}/managed/10[.]$"):
        save(tmp_path / "n", portable, params=checkpoints / "managed")
    with pytest.raises(FileFormatError, match=r"several trees\. Name one of .*/1/a, .*/1/b\.$"):
        save(tmp_path / "n", portable, params=checkpoints / "parts" / "1")
    with pytest.raises(FileFormatError, match="is a directory: expected a file of msgpack or safe"):
        save(tmp_path / "n", portable, params=tmp_path)


def test_damaged_checkpoints(portable: Path, tmp_path: Path) -> None:
    # With several arrays, Orbax closes its event loop at the first error while it still reads the
    # others, and their threads then warn in whichever test runs.
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "cut", {"scale": X})
    shutil.rmtree(tmp_path / "cut" / "d")
    shutil.rmtree(tmp_path / "cut" / "ocdbt.process_0")
    with pytest.raises(FileFormatError, match="cut cannot be read as a checkpoint of Orbax: "):
        save(tmp_path / "n", portable, params=tmp_path / "cut")


def test_checkpoints_need_orbax(
    checkpoints: Path, portable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    text = (
        f"Reading {checkpoints / 'plain'}, a checkpoint of Orbax, needs orbax-checkpoint, which is "
        "not installed here. Install it with: pip install 'jax2tf-bridge[orbax]'"
    )
    with pytest.raises(ImportError) as caught:
        save(tmp_path / "m", portable, params=checkpoints / "plain")
    assert str(caught.value) == text
