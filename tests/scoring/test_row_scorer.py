"""RowScorer: each row has the score that the signature has for it alone."""

import importlib.util
import pickle
import re
import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import BridgeError, RowScorer
from jax2tf_bridge.errors import DTypeError, MissingDependencyError, ShapeError, StructureError
from tests.scoring.models import save_models

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def text(folder: Path) -> RowScorer:
    return RowScorer(folder / "model", signature="text", key="id")


def make_texts(count: int) -> list[dict[str, Any]]:
    """Makes texts of 0 to 10 words: the largest bucket is 8."""
    rows = []
    for number in range(count):
        length = number % 11
        ids = RNG.integers(0, 50, length).astype(np.int32)
        rows.append({"id": f"t{number}", "ids": ids, "attention_mask": np.ones(length, np.int32)})
    return rows


@pytest.mark.slow
def test_texts_have_the_scores_that_they_have_alone(text: RowScorer, folder: Path) -> None:
    rows = make_texts(23)
    alone = tf.saved_model.load(str(folder / "model")).signatures["text"]
    results = text.score(rows)
    assert len(results) == 23
    for row, scores in zip(rows, results, strict=True):
        inputs = {name: tf.constant(row[name][None]) for name in ("ids", "attention_mask")}
        expected = alone(**inputs, scale=tf.constant(1.0))
        assert scores["words"].shape == row["ids"].shape
        for name, value in expected.items():
            np.testing.assert_allclose(scores[name], value.numpy()[0], rtol=1e-5, atol=1e-6)


@pytest.mark.costly
def test_columns_have_the_scores_of_rows(text: RowScorer) -> None:
    rows = make_texts(13)
    ragged = np.empty(13, object)
    ragged[:] = [row["ids"] for row in rows]
    columns = {
        "ids": ragged,
        "attention_mask": [row["attention_mask"].tolist() for row in rows],
        "other": None,
    }
    results = text.score_columns(columns)
    assert results["embedding"].shape == (13, 4)
    assert results["words"].dtype == object
    for number, scores in enumerate(text.score(rows)):
        np.testing.assert_array_equal(results["embedding"][number], scores["embedding"])
        np.testing.assert_array_equal(results["words"][number], scores["words"])


def test_shared_inputs_replace_defaults(text: RowScorer, folder: Path) -> None:
    rows = make_texts(3)
    doubled = RowScorer(folder / "model", signature="text", shared_inputs={"scale": 2.0})
    once, twice = text.score(rows), doubled.score(rows)
    np.testing.assert_allclose(2 * once[2]["embedding"], twice[2]["embedding"], rtol=1e-6)
    again = doubled.score(rows, shared_inputs={"scale": 1})
    np.testing.assert_array_equal(once[2]["embedding"], again[2]["embedding"])


def test_rows_of_a_mask_that_the_graph_fills_keep_their_length(folder: Path) -> None:
    scorer = RowScorer(folder / "model", signature="masked")
    # The only input, so rows are its values.
    results = scorer.score([[1, 2, 3], [4], [5, 6, 7], [8] * 9])
    assert [scores["count"].item() for scores in results] == [3, 1, 3, 9]


@pytest.mark.parametrize("name", ["model", "plain"])
def test_tables_of_any_number_of_rows(folder: Path, name: str) -> None:
    signature = "dense" if name == "model" else "serving_default"
    scorer = RowScorer(
        folder / name, signature=signature, batch_size=None if name == "model" else 4
    )
    x = RNG.standard_normal((11, 3)).astype(np.float32)
    scores = scorer.score_columns({"x": x})["scores"]
    assert scores.shape == (11, 2)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)
    for count in (1, 5):
        part = scorer.score_columns({"x": list(x[:count])})["scores"]
        np.testing.assert_allclose(part, scores[:count], rtol=1e-5)
    assert scorer.score_columns({"x": x[:0]})["scores"].shape == (0, 2)
    assert scorer.score([]) == []


def test_strings_and_results_without_a_name(tmp_path: Path) -> None:
    """The SavedModel is of another tool."""
    module = tf.Module()
    module.f = tf.function(
        lambda text: {"length": tf.strings.length(text)},
        input_signature=[tf.TensorSpec([None], tf.string, "text")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.f.get_concrete_function())
    scorer = RowScorer(tmp_path)
    lengths = [scores["length"].item() for scores in scorer.score(["one", b"three", "x"])]
    assert lengths == [3, 5, 1]
    assert scorer.score_columns({"text": np.array(["a", "bc"])})["length"].tolist() == [1, 2]
    for missing in (None, float("nan")):
        name = "None" if missing is None else "NaN"
        message = (
            f"Row 1, input text: expected str or bytes, got {name}. This is a missing text: fill "
            "it in, as with fillna('') in pandas, or leave the row out."
        )
        with pytest.raises(DTypeError, match=f"^{re.escape(message)}$"):
            scorer.score(["a", missing])
        with pytest.raises(DTypeError, match=f"^{re.escape(message)}$"):
            scorer.score_columns({"text": np.array(["a", missing], object)})
    with pytest.raises(DTypeError, match=r"got int\. Pass text, or leave the row out\.$"):
        scorer.score([3])


def test_a_process_loads_a_model_once(folder: Path, text: RowScorer) -> None:
    copies = [pickle.loads(pickle.dumps(text)) for _ in range(2)]
    assert len(pickle.dumps(text.load())) < 1000
    models = {id(copy.load()._model) for copy in copies}
    assert len(models) == 1


def test_another_model_at_the_same_path_is_loaded(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    (folder / "plain").rename(path)
    try:
        first = RowScorer(path).load()
        (path / "saved_model.pb").touch()
        assert RowScorer(path).load()._model is not first._model
    finally:
        path.rename(folder / "plain")


def test_without_beam_the_error_names_the_extra() -> None:
    if importlib.util.find_spec("apache_beam") is not None:
        pytest.skip("Apache Beam is installed here")
    message = (
        "A model handler for RunInference needs Apache Beam, which is not installed here. Install "
        "it with: pip install 'jax2tf-bridge[beam]'"
    )
    with pytest.raises(MissingDependencyError, match=f"^{re.escape(message)}$"):
        importlib.import_module("jax2tf_bridge.beam")


class NAType:
    """Stands for pandas.NA."""


TEXT_ERRORS = [
    (
        {"ids": [1]},
        StructureError,
        "Row 1 (id='b') lacks the input attention_mask: int32[n]; it has id, ids. Add it, or leave "
        "the row out.",
    ),
    (
        {"ids": np.ones(2, np.int64), "attention_mask": [1, 1]},
        DTypeError,
        "Row 1 (id='b'), input ids: expected int32, got int64. Convert it first, as with "
        "np.asarray(ids, np.int32).",
    ),
    (
        {"ids": [1.5], "attention_mask": [1]},
        DTypeError,
        "Row 1 (id='b'), input ids: expected int32, got float64. Convert it first, as with "
        "np.asarray(ids, np.int32).",
    ),
    (
        {"ids": [2**40], "attention_mask": [1]},
        DTypeError,
        "Row 1 (id='b'), input ids: int32 does not hold 1099511627776. Pass numbers that it holds.",
    ),
    (
        {"ids": None, "attention_mask": [1]},
        DTypeError,
        "Row 1 (id='b'), input ids: expected int32, got None. Fill it in, or leave the row out.",
    ),
    (
        {"ids": [1, NAType()], "attention_mask": [1]},
        DTypeError,
        "Row 1 (id='b'), input ids: expected int32, got NAType. Fill it in, or leave the row out.",
    ),
    (
        {"ids": [[1], [2, 3]], "attention_mask": [1]},
        ShapeError,
        "Row 1 (id='b'), input ids: its lists have different lengths. Pass lists of one length.",
    ),
    (
        {"ids": [1, 2, 3], "attention_mask": [1, 1]},
        ShapeError,
        "Row 1 (id='b'), input attention_mask: expected shape (n,) with n = 3, got (2,). Correct "
        "the row, or leave it out.",
    ),
    (
        {"ids": [[1, 2]], "attention_mask": [[1, 1]]},
        ShapeError,
        "Row 1 (id='b'), input ids: expected shape (n,), got (1, 2). Pass each row without its "
        "dimension of rows.",
    ),
]


@pytest.mark.parametrize(("row", "kind", "message"), TEXT_ERRORS)
def test_wrong_rows_are_named(
    text: RowScorer, row: dict[str, Any], kind: type[Exception], message: str
) -> None:
    right = {"id": "a", "ids": [1], "attention_mask": [1]}
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        text.score([right, {"id": "b", **row}])


COLUMN_ERRORS = [
    (
        {"idz": [[1]], "attention_mask": [[1]]},
        StructureError,
        "The columns lack ids: int32[n], an input of text; there are idz, attention_mask: did you "
        "mean idz? Add the column, or rename one.",
    ),
    (
        {"ids": [[1], [2]], "attention_mask": [[1]]},
        StructureError,
        "The columns have different numbers of rows: ids 2, attention_mask 1. Pass a value for "
        "each row.",
    ),
    (
        {"ids": 1, "attention_mask": [[1]]},
        StructureError,
        "The column ids has no rows: expected an array, a list or a Series with a value for each "
        "row, got 1.",
    ),
    (
        {"id": ["a"], "ids": [[1], [2]], "attention_mask": [[1], [2, 3]]},
        StructureError,
        "The columns have different numbers of rows: ids 2, attention_mask 2, id 1. Pass a value "
        "for each row.",
    ),
    (
        {"id": ["a", "b"], "ids": [[1], [2, 3]], "attention_mask": [[1], [1]]},
        ShapeError,
        "Row 1 (id='b'), input attention_mask: expected shape (n,) with n = 2, got (1,). Correct "
        "the row, or leave it out.",
    ),
    (
        {"ids": np.ones((2, 3)), "attention_mask": np.ones((2, 3), np.int32)},
        DTypeError,
        "Column ids: expected int32, got float64. Convert it first, as with np.asarray(ids, "
        "np.int32).",
    ),
]


@pytest.mark.parametrize(("columns", "kind", "message"), COLUMN_ERRORS)
def test_wrong_columns_are_named(
    text: RowScorer, columns: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        text.score_columns(columns)


def test_narrower_numbers_are_widened_if_none_is_rounded(text: RowScorer) -> None:
    ids = np.array([[1, 2], [3, 4]], np.int32)
    expected = text.score_columns({"ids": ids, "attention_mask": ids})
    mask = ids.astype(np.uint8)
    scores = text.score_columns({"ids": ids.astype(np.int16), "attention_mask": list(mask)})
    np.testing.assert_array_equal(scores["words"], expected["words"])
    for scale in (np.float16(1), ml_dtypes.bfloat16(1), jnp.bfloat16(1)):
        row = {"ids": ids[0], "attention_mask": mask[0]}
        assert len(text.score([row], shared_inputs={"scale": scale})) == 1
    for wider in (np.uint32, np.int64, np.bool_):
        with pytest.raises(DTypeError, match="Column ids: expected int32, got"):
            text.score_columns({"ids": ids.astype(wider), "attention_mask": ids})


def test_a_row_that_is_no_mapping_is_named(text: RowScorer) -> None:
    message = "Row 0: expected a mapping with ids: int32[n], attention_mask: int32[n], got int. "
    with pytest.raises(StructureError, match=f"^{re.escape(message)}"):
        text.score([3])


@pytest.mark.parametrize(
    "rows", [None, {"ids": [[1]]}, "text", types.SimpleNamespace(columns=["ids"])]
)
def test_rows_that_are_one_row_or_a_table_are_refused(text: RowScorer, rows: Any) -> None:
    message = f"got {type(rows).__name__}. Pass [row] for one row, or a table to score_columns."
    with pytest.raises(StructureError, match=f"{re.escape(message)}$"):
        text.score(rows)


def test_a_number_that_becomes_infinite_is_refused(text: RowScorer) -> None:
    row = {"ids": [1], "attention_mask": [1]}
    with pytest.raises(DTypeError, match=r"\['scale'\]: float32 does not hold 1e\+300\. Pass"):
        text.score([row], shared_inputs={"scale": 1e300})
    (infinite,) = text.score([row], shared_inputs={"scale": float("inf")})
    assert np.isinf(infinite["embedding"]).all()


SCORER_ERRORS = [
    ("model", {"signature": "txt"}, BridgeError, "has no signature 'txt': did you mean 'text'?"),
    (
        "model",
        {"signature": "text", "shared_inputs": {"scal": 1}},
        StructureError,
        "shared_inputs has 'scal', but text has no shared input 'scal': did you mean 'scale'?",
    ),
    (
        "model",
        {"signature": "text", "shared_inputs": {"scale": np.float64(1)}},
        DTypeError,
        "shared_inputs['scale']: expected float32, got float64. Convert it first, as with "
        "np.asarray(scale, np.float32).",
    ),
    (
        "model",
        {"signature": "text", "shared_inputs": {"scale": "large"}},
        DTypeError,
        "shared_inputs['scale']: expected float32, got <U5. Convert it first",
    ),
    (
        "model",
        {"signature": "text", "shared_inputs": {"scale": [1.0, 2.0]}},
        ShapeError,
        "shared_inputs['scale']: expected float32[], got the shape (2,). Pass an array of this "
        "shape.",
    ),
    ("plain", {"batch_size": 0}, ValueError, "batch_size must be an integer of 1 or more, got 0."),
    (
        "mixing",
        {},
        ShapeError,
        "cannot be scored in batches: a mask says which rows are real, so rows may influence each "
        "other. Call the signature with the rows that belong together.",
    ),
]


@pytest.mark.parametrize(("name", "options", "kind", "message"), SCORER_ERRORS)
def test_what_a_scorer_refuses(
    folder: Path, name: str, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        RowScorer(folder / name, **options)


def test_a_signature_without_rows_is_refused(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(
        lambda x, y: {"z": x + y},
        input_signature=[tf.TensorSpec([2], tf.float32, "x"), tf.TensorSpec([], tf.float32, "y")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.f.get_concrete_function())
    message = (
        f"serving_default of {tmp_path} takes no rows: no input begins with an open size (x: "
        "float32[2], y: float32[]). Save it with one, as with polymorphic_shapes='(b, ...)'."
    )
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        RowScorer(tmp_path)


def test_results_that_are_not_of_rows_are_refused(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(
        lambda x: {"sum": tf.reduce_sum(x)},
        input_signature=[tf.TensorSpec([None], tf.float32, "x")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.f.get_concrete_function())
    message = "output sum has the shape () for 2 rows, so it has no result for each row."
    with pytest.raises(ShapeError, match=re.escape(message)):
        RowScorer(tmp_path).score([1.0, 2.0])


def test_no_rows_have_no_results_if_the_rank_of_an_output_is_unknown(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(
        lambda x: {"y": tf.compat.v1.placeholder_with_default(x, None)},
        input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.f.get_concrete_function())
    assert RowScorer(tmp_path).score([]) == []


@pytest.mark.costly
def test_outputs_may_be_texts(tmp_path: Path) -> None:
    module = tf.Module()
    spec = tf.TensorSpec([None], tf.float32, "x")
    module.label = tf.function(
        lambda x: {"label": tf.where(x > 0, "up", "down")}, input_signature=[spec]
    )
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.label)
    scorer = RowScorer(tmp_path / "m", batch_size=2)
    rows = [{"x": np.float32(x)} for x in (1, -1, 2)]
    assert [row["label"] for row in scorer.score(rows)] == [b"up", b"down", b"up"]
