"""save() with the user's own TensorFlow around a function: what is served, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Processing, Signature, save
from jax2tf_bridge.errors import SavingError, UnsoundBucketsError
from jax2tf_bridge.portable import is_accepted_as
from jax2tf_bridge.saving import SavedModel
from tests.saving.flat_signatures import flat_signature
from tests.saving.saved_functions import contents
from tests.saving.text_classifier import PARAMS, scores_of, signature
from tests.saving.warm_up_files import read_warm_up_requests

X = np.ones((2, 3), np.float32)
BUCKETS: dict[str, Any] = {"buckets": {"b": [1, 4], "l": [2, 4]}, "oversize": {"l": "as is"}}
TEXTS = ["good film", "not a good film"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    """Saves the classifier with buckets, and a short and a long example."""
    with_examples = signature(example=[{"text": [text]} for text in TEXTS])
    path = tmp_path_factory.mktemp("classifier") / "1"
    return save(path, with_examples, params=PARAMS, **BUCKETS, vjp_order=0)


@pytest.mark.costly
def test_what_is_printed_is_what_is_served(saved: SavedModel) -> None:
    line = "(text: string[?]) -> (label: string[?], scores: float32[?,2])"
    (served,) = saved.signatures.values()
    assert str(served) == line
    assert str(saved).splitlines()[1:4] == [
        f"  serving_default{line}",
        "    buckets b 1, 4; l 2, 4; mask filled by the buckets",
        "  weights: 2, 2 trainable",
    ]
    assert saved.notes == ()
    loaded = tf.saved_model.load(saved.path).signatures["serving_default"]
    assert set(loaded.structured_outputs) == set(served.outputs)
    assert set(loaded.structured_input_signature[1]) == set(served.inputs)


@pytest.mark.costly
def test_strings_go_in_and_labels_come_out(saved: SavedModel) -> None:
    loaded = tf.saved_model.load(saved.path)
    texts = ["bad film", "not good", "good"]
    for call in (loaded.serving_default, loaded.signatures["serving_default"]):
        results = call(text=tf.constant(texts))
        np.testing.assert_allclose(results["scores"], scores_of(texts), rtol=1e-5)
        expected = [(b"negative", b"positive")[int(i)] for i in scores_of(texts).argmax(1)]
        assert results["label"].numpy().tolist() == expected


def test_examples_become_a_request_for_each_choice_of_buckets(saved: SavedModel) -> None:
    short, long = (text.encode() for text in TEXTS)
    requests = list(read_warm_up_requests(Path(saved.path)))
    assert [r.inputs["text"].tolist() for r in requests] == [
        *([short], [long]),
        *([short] * 4, [long] * 4),
    ]
    assert str(requests[0]) == "serving_default(text: string[1])"


def test_requests_for_strings_are_joined_and_not_padded(saved: SavedModel) -> None:
    batching = saved.serving.batching
    assert batching is not None
    assert batching.allowed_batch_sizes == (1, 4)
    assert not batching.pad_variable_length_inputs


def test_a_preprocess_that_changes_only_sizes_is_recorded(tmp_path: Path) -> None:
    signature = flat_signature(
        lambda x: x + 1,
        args=[X],
        polymorphic_shapes="(b, 3)",
        buckets={"b": [1, 4]},
        preprocess=lambda x: x[:, :3],
        inputs={"x": tf.TensorSpec([None, None], tf.float32)},
    )
    saved = quickly(tmp_path / "m", signature)
    assert saved.serving.batching is None


def rows(**options: Any) -> Signature:
    """A function of rows whose preprocess reads numbers from strings."""
    given: dict[str, Any] = {
        "args": [X],
        "preprocess": lambda text: tf.strings.to_number(text),
        "inputs": {"text": tf.TensorSpec([None, 3], tf.string)},
    }
    return flat_signature(lambda x: x + 1, **{**given, **options})


def quickly(path: Path, given: Signature, **options: Any) -> SavedModel:
    return save(path, given, vjp_order=0, **options)


def test_the_example_that_is_asked_for_can_be_pasted(tmp_path: Path) -> None:
    def lengths(text: Any, scale: Any) -> Any:
        return tf.cast(tf.strings.length(text), tf.float32)[:, None] * tf.ones((1, 3)) * scale

    options: dict[str, Any] = {
        "preprocess": lengths,
        "inputs": {"text": tf.TensorSpec([None], tf.string), "scale": tf.TensorSpec([], "float32")},
        "polymorphic_shapes": "(b, 3)",
    }
    (note,) = quickly(tmp_path / "1", rows(**options)).notes
    code = "{'text': ['some text'], 'scale': np.zeros((), 'float32')}"
    assert note == (
        "no warm-up requests for serving_default: they need an example of what its preprocess "
        f"takes, as Signature(..., example={code})"
    )
    pasted = quickly(tmp_path / "2", rows(**options, example=eval(code)))
    assert pasted.notes == ()
    (request,) = read_warm_up_requests(tmp_path / "2")
    assert str(request) == "serving_default(text: string[1], scale: float32[])"


@pytest.mark.costly
def test_choices_that_no_example_reaches_are_told(tmp_path: Path) -> None:
    one = signature(example={"text": ["good film", "bad"]})
    saved = save(tmp_path / "1", one, params=PARAMS, **BUCKETS, vjp_order=0)
    assert saved.notes == (
        "no warm-up requests for serving_default with the buckets b = 1, l = 4; b = 4, l = 4: no "
        "example has such sizes after preprocess; give more of them, as Signature(..., "
        "example=[{...}, {...}])",
    )
    assert [str(request) for request in read_warm_up_requests(tmp_path / "1")] == [
        "serving_default(text: string[1])",
        "serving_default(text: string[2])",
    ]


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            {"texts": ["1"]},
            "example of the signature serving_default names 'texts', which is not an input: did "
            "you "
            "mean text? The inputs: text.",
        ),
        (
            {"text": [["1", "2", "3"]]},
            "preprocess of the signature serving_default does not return the arguments of <lambda> "
            "for the example (text: string[1,3]): x: expected float32[2,3], got float32[1,3]. Its "
            "sizes are fixed: open them with polymorphic_shapes, or pad to them in preprocess.",
        ),
        (
            {"text": [["a", "2", "3"]]},
            "preprocess of the signature serving_default fails on the example (text: string[1,3]): "
            "StringToNumberOp could not correctly convert string: a",
        ),
        (
            {"text": ["1"]},
            "The example for the input text of the signature serving_default has the shape (1,), "
            "expected (None, 3).",
        ),
        (
            ["1"],
            "example of the signature serving_default must be a mapping of values by input, or a "
            "list of such mappings. Got: str.",
        ),
    ],
)
def test_examples_that_preprocess_does_not_take(example: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "1", rows(example=example))
    assert str(caught.value).startswith(message)
    assert contents(tmp_path) == []


@pytest.mark.parametrize(
    ("shapes", "options", "problem"),
    [
        (
            ["(b, n)", "(b, n)"],
            {"buckets": {"b": [4], "n": [8]}},
            "x: float32[1,5] does not fit float32[b,n], since n is 6 (by ids: float32[1,6]).",
        ),
        (
            ["(b, n)", "(b, 2*n)"],
            {},
            "x: float32[1,5] does not fit float32[b,2*n], since 2*n is 12 for n = 6 (by ids: "
            "float32[1,6]).",
        ),
    ],
)
def test_sizes_that_preprocess_gives_must_agree(
    shapes: Any, options: Any, problem: str, tmp_path: Path
) -> None:
    two = Signature(
        lambda ids, x: ids.sum() + x.sum(),
        args=[np.ones((2, 4), np.float32), np.ones((2, 8 if "2" in shapes[1] else 4), np.float32)],
        polymorphic_shapes=shapes,
        processing=Processing(
            preprocess=lambda text: (text, text[:, 1:]),
            inputs={"text": tf.TensorSpec([None, None])},
        ),
        example={"text": np.zeros((1, 6), np.float32)},
    )
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "1", two, **options)
    assert str(caught.value) == (
        "preprocess of the signature serving_default returns sizes that contradict each other, for "
        f"the example (text: float32[1,6]): {problem} Make them agree in preprocess, or give the "
        "arguments different variables in polymorphic_shapes."
    )
    assert contents(tmp_path) == []


def test_an_example_has_a_value_for_each_input(tmp_path: Path) -> None:
    two = rows(
        preprocess=lambda text, scale: tf.strings.to_number(text) * scale,
        inputs={"text": tf.TensorSpec([2, 3], tf.string), "scale": tf.TensorSpec([], tf.float32)},
        example={"text": [["1", "2", "3"]] * 2},
    )
    with pytest.raises(SavingError, match=r"has no value for scale, which preprocess takes as we"):
        quickly(tmp_path / "1", two)
    quickly(tmp_path / "1", dataclasses.replace(two, defaults={"scale": 2.0}))
    (request,) = read_warm_up_requests(tmp_path / "1")
    assert request.inputs["scale"] == 2
    several = Signature(lambda x: x, args=[X], example=[{"x": X}] * 2)
    with pytest.raises(
        SavingError, match=r"^example of the signature serving_default, which has only fixed"
    ):
        quickly(tmp_path / "2", several)
    opened = dataclasses.replace(several, polymorphic_shapes="(b, _)")
    with pytest.raises(
        SavingError,
        match=r"^example of the signature serving_default, which has buckets, must be one mapping "
        r"of values by input. A list of mappings is for signatures with a preprocess, or with open "
        r"sizes and no buckets\.$",
    ):
        quickly(tmp_path / "2", opened, buckets={"b": [2]})


def test_nothing_to_precompile_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SavingError, match=r"has nothing to compile: no warm-up requests for ser"):
        quickly(tmp_path / "1", rows(), precompile=True)


def given_by(preprocess: Any) -> Any:
    return rows(preprocess=lambda text: preprocess(tf.strings.to_number(text)))


@pytest.mark.parametrize(
    ("preprocess", "difference"),
    [
        (lambda x: x[0], "x: expected float32[2,3], got float32[3]. It must have 2 dimensions."),
        (
            lambda x: tf.cast(x, tf.int32),
            "x: expected float32[2,3], got int32[?,3]. Cast it: tf.cast(..., tf.float32).",
        ),
        (
            lambda x: tf.ones((4, 3)),
            "x: expected float32[2,3], got float32[4,3]. Its sizes are fixed: open them with "
            "polymorphic_shapes.",
        ),
        (
            lambda x: tf.as_string(x),
            "x: expected float32[2,3], got string[?,3]. Convert it to numbers with a lookup table "
            "or tf.strings.to_number.",
        ),
        (
            lambda x: tf.RaggedTensor.from_tensor(x),
            "x: expected float32[2,3], got a RaggedTensor. Make it dense: to_tensor().",
        ),
        (1, "x: expected float32[2,3], got int32[]. Cast it: tf.cast(..., tf.float32)."),
    ],
)
def test_what_preprocess_gives_must_be_the_arguments(
    preprocess: Any, difference: str, tmp_path: Path
) -> None:
    wrong = given_by(preprocess if callable(preprocess) else lambda x: tf.constant(preprocess))
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "1", wrong)
    assert str(caught.value) == (
        "preprocess of the signature serving_default does not return the arguments of <lambda>:\n"
        f"  - {difference}\nChange what preprocess returns, or save the function for such "
        "arguments."
    )
    assert contents(tmp_path) == []


def test_64_bits_and_unknown_ranks_are_taken(tmp_path: Path) -> None:
    wide = given_by(lambda x: tf.py_function(lambda x: tf.cast(x, tf.float64), [x], tf.float64))
    quickly(tmp_path / "1", wide)
    two = rows(
        args=[X, np.float32(0)], preprocess=lambda text: (tf.strings.to_number(text, tf.float64), 2)
    )
    save(
        tmp_path / "2",
        dataclasses.replace(two, function=lambda x, scale: x * scale),
    )
    loaded = tf.saved_model.load(tmp_path / "2")
    text = tf.constant([["1", "2", "3"]] * 2)
    np.testing.assert_array_equal(loaded.serving_default(text=text)["output_0"], [[2, 4, 6]] * 2)


def test_what_is_cast_is_what_jax_takes_for_another_dtype() -> None:
    names = [f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (16, 32, 64)]
    names += ["int8", "uint8", "bool", "complex64", "complex128", "bfloat16"]
    with jax.enable_x64(False):
        taken = {name: str(jax.dtypes.canonicalize_dtype(name)) for name in names}
    for given in names:
        tensor = tf.zeros((), given)
        assert {n for n in names if is_accepted_as(tensor, n)} == {given, taken[given]}


@pytest.mark.parametrize(
    ("postprocess", "outputs"),
    [
        (lambda output_0: tf.as_string(output_0), "(output_0: string[2,3])"),
        (
            lambda output_0: (tf.shape(output_0), output_0),
            "(output_0: int32[2], output_1: float32[2,3])",
        ),
        (lambda output_0: {"rows": 2, "last": output_0[-1]}, "(rows: int32[], last: float32[3])"),
    ],
)
def test_outputs_of_postprocess_are_served_as_printed(
    postprocess: Any, outputs: str, tmp_path: Path
) -> None:
    given = Signature(lambda x: x + 1, args=[X], processing=Processing(postprocess=postprocess))
    (printed,) = quickly(tmp_path / "1", given).signatures.values()
    assert str(printed) == f"(x: float32[2,3]) -> {outputs}"
    served = tf.saved_model.load(tmp_path / "1").signatures["serving_default"](x=tf.constant(X))
    assert set(served) == set(printed.outputs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            rows(preprocess=lambda x: x),
            "preprocess of the signature serving_default is called with the inputs by keyword "
            "(text), and takes (x): missing a required argument: 'x'. Rename its parameters.",
        ),
        (
            Signature(lambda x: x, args=[X], processing=Processing(postprocess=lambda y: y)),
            "postprocess of the signature serving_default is called with the results of the "
            "function by keyword (output_0), and takes (y): missing a required argument: 'y'. "
            "Rename its parameters, or the results by output_names.",
        ),
        (
            Signature(
                lambda x: x,
                args=[X],
                processing=Processing(postprocess=lambda output_0: {"a": {"b": output_0}}),
            ),
            "postprocess of the signature serving_default returns a dict for the output a. Return "
            "a flat dict of tensors, as {'label': label, 'scores': scores}.",
        ),
    ],
)
def test_functions_around_it_that_do_not_fit(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "1", given)
    assert str(caught.value) == message


def test_requests_that_are_no_rows_stay_apart(tmp_path: Path) -> None:
    one = rows(
        preprocess=lambda text: tf.strings.to_number(tf.strings.split(text))[None],
        inputs={"text": tf.TensorSpec([], tf.string)},
        polymorphic_shapes="(b, 3)",
        example={"text": "1 2 3"},
    )
    saved = quickly(tmp_path / "1", one, buckets={"b": [1, 8]})
    assert saved.serving.batching is None
    assert "because of serving_default: text: string[] has no open rows." in str(saved.serving)
    assert "the buckets b = 8: no example" in saved.notes[0]


def test_tables_are_found_behind_helpers_or_asked_for(tmp_path: Path) -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["one"], [1.0]), default_value=0.0
    )

    def numbers(text: Any, default: float) -> Any:
        return table.lookup(text) + default

    helped = rows(preprocess=lambda text: functools.partial(numbers, default=0.0)(text))
    quickly(tmp_path / "1", helped)
    loaded = tf.saved_model.load(tmp_path / "1")
    found = loaded.serving_default(text=tf.constant([["one", "two", "one"]] * 2))["output_0"]
    np.testing.assert_array_equal(found, [[2, 1, 2]] * 2)

    # A global that only a nested function uses, as in the body of a loop.
    module = {"table": table}
    exec("def look_up(text):\n    return (lambda: (lambda: table.lookup(text))())()", module)
    quickly(tmp_path / "nested", rows(preprocess=module["look_up"]))

    tables = [table]
    hidden = rows(preprocess=lambda text: tables[0].lookup(text))
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "2", hidden)
    assert str(caught.value) == (
        "preprocess or postprocess uses a table or variable that TensorFlow does not find, so "
        "it cannot save it. Name it: Processing(..., resources=[table])."
    )
    quickly(
        tmp_path / "2",
        dataclasses.replace(
            hidden, processing=dataclasses.replace(hidden.processing, resources=tables)
        ),
    )


def test_an_example_that_cannot_be_doubled_is_taken_as_it_is(tmp_path: Path) -> None:
    framed = Signature(
        lambda x: x * 2,
        args=[np.ones((1, 4), np.float32)],
        polymorphic_shapes="(b, 4)",
        processing=Processing(
            preprocess=lambda audio: tf.reshape(audio, [1, 4]),
            inputs={"audio": tf.TensorSpec([None], tf.float32)},
        ),
        example={"audio": np.ones(4, np.float32)},
    )
    saved = save(tmp_path / "m", framed, buckets={"b": [1, 4]}, vjp_order=0)
    assert [
        request.inputs["audio"].shape for request in read_warm_up_requests(Path(saved.path))
    ] == [(4,)]
    (note,) = saved.notes
    assert "with the buckets b = 4" in note


def test_an_example_that_becomes_empty_is_not_tried(tmp_path: Path) -> None:
    numbers = Signature(
        lambda x: x.sum(1),
        args=[np.ones((1, 4), np.float32)],
        polymorphic_shapes="(b, n)",
        processing=Processing(
            preprocess=lambda s: tf.strings.to_number(tf.strings.split(s).to_tensor("0")),
            inputs={"s": tf.TensorSpec([None], tf.string)},
        ),
        example={"s": [""]},
    )
    saved = save(tmp_path / "m", numbers, buckets={"b": [1, 4], "n": [8]}, vjp_order=0)
    served = tf.saved_model.load(saved.path).serving_default
    assert served(s=tf.constant(["1 2", "3"]))["output_0"].numpy().tolist() == [3, 3]


def test_a_preprocess_with_buckets_and_without_inputs(tmp_path: Path) -> None:
    without = signature(example={"text": ["good"]}, inputs={})
    with pytest.raises(SavingError, match="has a preprocess but no inputs"):
        save(tmp_path / "m", without, params=PARAMS, **BUCKETS)


def test_python_code_in_preprocess_is_told_from_tensorflows(tmp_path: Path) -> None:
    wrong = rows(preprocess=lambda text: text.lower().split())
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "1", wrong)
    assert str(caught.value).startswith(
        "preprocess of the signature serving_default runs as TensorFlow code, with tensors that "
        "have no values yet, and failed: AttributeError: "
    )
    assert "Python code, such as a tokenizer, cannot run there." in str(caught.value)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_names_that_preprocess_returns_are_compared_with_the_arguments(tmp_path: Path) -> None:
    wrong = Signature(
        lambda ids, lengths: ids + lengths[:, None],
        args=[np.ones((2, 3), np.int32), np.ones(2, np.int32)],
        processing=Processing(
            inputs={"text": tf.TensorSpec([None], tf.string)},
            preprocess=lambda text: {
                "ids": tf.zeros((2, 3), tf.int32),
                "length": tf.zeros(2, tf.int32),
            },
        ),
    )
    with pytest.raises(SavingError) as caught:
        quickly(tmp_path / "1", wrong)
    hint = "it returns 'ids', 'length', and lacks lengths: did you mean 'length'? "
    assert hint in str(caught.value)


def test_missing_inputs_are_asked_for_by_the_name_of_the_parameter(tmp_path: Path) -> None:
    without = rows(preprocess=lambda sentence: sentence, inputs={})
    code = r"inputs=\{'sentence': tf\.TensorSpec\(\[None\], tf\.string\)\}\.$"
    with pytest.raises(SavingError, match=code):
        quickly(tmp_path / "1", without)


@pytest.mark.slow
def test_padding_of_preprocess_that_the_function_takes_for_words(tmp_path: Path) -> None:
    def mix(params: Any, tokens: Any, mask: Any) -> Any:
        words = jnp.where(mask[..., None], params["embedding"][tokens], 0)
        return {"scores": words.sum(1) @ params["head"]}

    right = signature(example={"text": ["good film", "bad"]})
    save(tmp_path / "1", right, params=PARAMS, **BUCKETS, vjp_order=0)
    joined = signature(example=[{"text": ["good film"]}, {"text": ["bad"]}])
    for each in (right, joined):
        wrong = dataclasses.replace(each, function=mix)
        with pytest.raises(UnsoundBucketsError) as caught:
            save(tmp_path / "2", wrong, params=PARAMS, **BUCKETS, vjp_order=0)
        text = str(caught.value)
        assert "running row 1 of the example beside the other rows changes the output" in text
        assert "Return a mask of what is real from preprocess" in text
