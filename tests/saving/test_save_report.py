"""Text that save() prints of a model: sizes that are fixed, and what is not trainable."""

from __future__ import annotations

import dataclasses
import functools
import logging
import logging.handlers
import pickle
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jax2tf_bridge import AUTO, Signature, export, save
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.saving import SavedModel
from tests.saving.saved_functions import DENSE, PARAMS
from tests.saving.warm_up_files import read_warm_up_requests

X = np.ones((2, 3), np.float32)
ONE = np.float32(1)
W = np.ones((3, 2), np.float32)


def saved(path: Path, given: Any, **options: Any) -> SavedModel:
    return save(path, given, vjp_order=0, **options)


def fixed_line(model: SavedModel) -> str:
    """Finds the line of the text that says that sizes are fixed; "" without one."""
    return next((line for line in str(model).splitlines() if "sizes are fixed" in line), "")


@pytest.mark.parametrize(
    ("given", "at", "spec"),
    [
        ({"args": [X]}, "x: float32[2,3]", "'(b, ...)'"),
        ({"args": [X, X]}, "x: float32[2,3], y: float32[2,3]", "'(b, ...)'"),
        ({"args": [X, ONE]}, "x: float32[2,3]", "{'x': '(b, ...)'}"),
        (
            {"args": [X], "kwargs": {"y": X}},
            "x: float32[2,3], y: float32[2,3]",
            "{'x': '(b, ...)', 'y': '(b, ...)'}",
        ),
        ({"args": [X, X[:1]]}, "x: float32[2,3], y: float32[1,3]", "AUTO"),
    ],
)
def test_fixed_sizes_are_told_with_code_that_opens_them(
    given: Any, at: str, spec: str, tmp_path: Path
) -> None:
    def f(x: Any, y: Any = 0) -> Any:
        return x + y

    line = fixed_line(saved(tmp_path / "1", Signature(f, **given)))
    code = f"Signature(..., polymorphic_shapes={spec})"
    assert line == f"    sizes are fixed at {at}; to open them: {code}"
    shapes = eval(spec, {"AUTO": AUTO})
    opened = saved(tmp_path / "2", Signature(f, **given, polymorphic_shapes=shapes))
    assert fixed_line(opened) == ""
    assert "x: float32[b,3]" in str(opened)


def test_nothing_is_fixed_where_there_are_no_sizes(tmp_path: Path) -> None:
    assert fixed_line(saved(tmp_path / "1", Signature(lambda x: x, args=[ONE]))) == ""


def test_notebooks_show_no_line_of_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow logs at this level in notebooks."""
    logger, records = logging.getLogger("tensorflow"), logging.handlers.MemoryHandler(1000, 100)
    monkeypatch.setattr(logger, "handlers", [records])
    monkeypatch.setattr(logger, "propagate", False)
    previous = logger.level
    logger.setLevel(logging.INFO)
    try:
        saved(tmp_path / "1", Signature(lambda x: x, args=[ONE]))
        logger.info("Assets written to: elsewhere")
    finally:
        logger.setLevel(previous)
    assert [record.getMessage() for record in records.buffer] == ["Assets written to: elsewhere"]


def test_functions_are_exported_again(tmp_path: Path) -> None:
    portable = export(lambda x: x + 1)(X)
    assert fixed_line(saved(tmp_path / "1", portable)).endswith(
        "export(..., polymorphic_shapes='(b, ...)')"
    )


def test_what_a_function_closes_over_is_not_trainable(tmp_path: Path) -> None:
    closed = saved(tmp_path / "1", Signature(lambda x: x @ W, args=[X]))
    assert (
        "  weights: none, so nothing is trainable; to train what a function closes over, make it "
        "the function's first argument and pass it as params"
    ) in str(closed).splitlines()
    opened = saved(tmp_path / "2", Signature(lambda w, x: x @ w, args=[X]), params=W)
    assert "  weights: 1, 1 trainable" in str(opened).splitlines()


def test_examples_of_open_sizes_are_requests(tmp_path: Path) -> None:
    with_examples = dataclasses.replace(DENSE, example=[{"x": X}, {"x": X[:1]}])
    assert not saved(tmp_path / "1", with_examples, params=PARAMS).notes
    assert [str(request) for request in read_warm_up_requests(tmp_path / "1")] == [
        "serving_default(x: float32[2,3])",
        "serving_default(x: float32[1,3])",
    ]


def test_the_code_leaves_weights_closed(tmp_path: Path) -> None:
    weights = {"w": np.ones((3, 2), np.float32)}

    def product(params: Any, x: Any) -> Any:
        return x @ params["w"]

    portable = export(product)(weights, np.ones((4, 3), np.float32))
    saved = save(tmp_path / "m", portable, params=weights, vjp_order=0)
    code = "export(..., polymorphic_shapes={'x': '(b, ...)'})"
    assert saved.signatures["serving_default"].opened_by == code
    opened = export(product, polymorphic_shapes={"x": "(b, ...)"})
    assert str(opened(weights, np.ones((4, 3), np.float32)).in_avals[-1]) == "float32[b,3]"


def test_the_report_holds_neither_weights_nor_graphs(tmp_path: Path) -> None:
    report = save(tmp_path / "m", DENSE, params=PARAMS, vjp_order=0, buckets={"b": [4]})
    assert pickle.loads(pickle.dumps(report)) == report
    moved = (tmp_path / "m").rename(tmp_path / "moved")
    assert str(moved) in str(report.serving_from(moved))
    with pytest.raises(FileNotFoundError):
        print(report.serving)


class _Dropping(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(3, 2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.dense(x))


@pytest.mark.parametrize("training", [True, False])
def test_results_that_depend_on_keys_among_the_weights(training: bool, tmp_path: Path) -> None:
    model = _Dropping(nnx.Rngs(0))
    model.set_attributes(deterministic=not training)
    graph, state = nnx.split(model)

    def classify(params: Any, x: Any) -> Any:
        return nnx.merge(graph, params)(x)

    saved = save(tmp_path / "m", Signature(classify, args=[X]), params=nnx.to_pure_dict(state))
    note = "depend on a PRNG key among the weights (params['dropout']['rngs']"
    findings = describe_saved_model(read_saved_model(tmp_path / "m"))["findings"]
    assert (note in str(saved)) == training
    assert any(note in finding["text"] for finding in findings) == training


def test_an_unused_key_among_the_weights_is_not_told(tmp_path: Path) -> None:
    params = {"w": W, "key": jax.random.key(0)}
    saved = save(
        tmp_path / "m", Signature(lambda params, x: x @ params["w"], args=[X]), params=params
    )
    assert "PRNG" not in str(saved)


def test_a_key_that_a_function_never_reads_is_noted(tmp_path: Path) -> None:
    def drop(x: Any, key: Any, training: bool) -> Any:
        return x * jax.random.bernoulli(key, 0.5, x.shape) if training else x

    note = "serving_default never reads the PRNG key key: the results are the same for all keys."
    for training in (False, True):
        signature = Signature(
            functools.partial(drop, training=training),
            args=[X, jax.random.key(0)],
        )
        assert (note in str(saved(tmp_path / str(training), signature))) == (not training)
