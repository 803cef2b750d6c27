"""Names in the options of save: what is misspelt is told before any function is traced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import AUTO, Padding, Signature, export, save
from jax2tf_bridge.errors import DTypeError, SavingError, ShapeError
from tests.saving.flat_signatures import flat_signature

IDS = np.ones((2, 5), np.int32)
BUCKETS: dict[str, Any] = {"buckets": {"b": [1, 4], "n": [8]}}


def never_traced(w: Any, ids: Any, token_mask: Any) -> Any:
    raise AssertionError("it was traced")


def text(**options: Any) -> Signature:
    given = {"args": [IDS, IDS > 0], "polymorphic_shapes": "(b, n)", **options}
    return flat_signature(never_traced, **given)


def preprocessed(**options: Any) -> Signature:
    return text(
        preprocess=lambda text: (text, text),
        inputs={"text": tf.TensorSpec([None, None])},
        **options,
    )


@pytest.mark.parametrize(
    ("signature", "options", "message"),
    [
        (
            text(example={"idss": IDS}),
            {},
            "example of the signature serving_default names 'idss', which is not an input: "
            "did you mean "
            "ids? The inputs: ids, token_mask.",
        ),
        (
            text(example={"token_mask": IDS}, mask="token_mask"),
            BUCKETS,
            "example of the signature serving_default names 'token_mask', which the buckets fill "
            "(mask='token_mask'). Leave it out.",
        ),
        (
            text(defaults={"token_maks": True}),
            {},
            "defaults of the signature serving_default names 'token_maks', which is not an input: "
            "did "
            "you mean token_mask? The inputs: ids, token_mask.",
        ),
        (
            text(input_names={"idz": "words"}),
            {},
            "input_names of the signature serving_default renames 'idz', which is not an "
            "input: did you "
            "mean ids? The inputs: ids, token_mask.",
        ),
        (
            text(mask="token_maks"),
            BUCKETS,
            "serving_default: mask='token_maks': there is no such input: did you mean "
            "'token_mask'?",
        ),
        (
            text(pad_values={"id": 1}),
            BUCKETS,
            "serving_default: pad_values={'id': 1}: there is no such input: did you mean 'ids'?",
        ),
        (
            text(pad_values={"words": 1}),
            BUCKETS,
            "serving_default: pad_values={'words': 1}: there is no such input. The inputs: 'ids', "
            "'token_mask'.",
        ),
        (
            text(pad_values=1),
            BUCKETS,
            "serving_default: pad_values=1: expected a dict, as {'ids': 1}",
        ),
        (
            text(mask=5),
            BUCKETS,
            "serving_default: mask=5: expected the name of an input, as 'mask', or a list of names",
        ),
        (
            text(defaults=None),
            {},
            "defaults of the signature serving_default must be a mapping of values by input. Got: "
            "NoneType.",
        ),
        (
            text(unchecked_padding=5),
            BUCKETS,
            "serving_default: unchecked_padding=5: expected a list, as ['n']",
        ),
        (
            text(buckets="auto"),
            {},
            "serving_default: buckets='auto': expected a mapping, as {'b': [1, 8, 32]}. To have "
            "buckets chosen, pass save(..., expected_sizes=[...]), the sizes of requests.",
        ),
        (
            text(buckets=[1, 8]),
            {},
            "serving_default: buckets=[1, 8]: expected a mapping, as {'b': [1, 8, 32]}. To have "
            "buckets chosen, pass save(..., expected_sizes=[...]), the sizes of requests.",
        ),
        (
            text(polymorphic_shapes=AUTO, buckets=8),
            {},
            "serving_default: buckets=8: expected a mapping, as {'b': [1, 8, 32]}. To have "
            "buckets chosen, pass save(..., expected_sizes=[...]), the sizes of requests.",
        ),
        (
            text(pad_values={"ids": 1.5}),
            BUCKETS,
            "serving_default: pad_values={'ids': 1.5}: expected one number that int32 holds.",
        ),
        (
            text(),
            {**BUCKETS, "oversize": "spilt"},
            "serving_default: oversize='spilt': expected 'split' or 'as is': did you mean 'split'?",
        ),
        (
            text(),
            {"buckets": {"b": [4, 1], "n": [8]}},
            "serving_default: buckets={'b': [4, 1]}: buckets must increase, and 1 follows 4. Write "
            "buckets={'b': (1, 4)}.",
        ),
        (
            text(),
            {"buckets": {"b": np.array(4)}},
            "serving_default: buckets={'b': array(4)}: expected a sequence of sizes, as (1, 8, 32)",
        ),
        (
            text(unchecked_padding=["nn"]),
            BUCKETS,
            "serving_default: unchecked_padding names 'nn', which has no buckets: did "
            "you mean 'n'?",
        ),
        (
            text(buckets={"bb": [1]}),
            {},
            "serving_default: buckets for 'bb', which is not a dimension variable of its inputs: "
            "did "
            "you mean 'b'?",
        ),
        (
            text(),
            {"buckets": {"bb": [1]}},
            "save: buckets for 'bb', which is not a dimension variable of its inputs: did you mean "
            "'b'?",
        ),
        (
            text(),
            {"expected_sizes": {"nn": [1]}},
            "save: buckets for 'nn', which is not a dimension variable of its inputs: did you mean "
            "'n'?",
        ),
        (
            text(),
            {**BUCKETS, "oversize": {"nn": "as is"}},
            "oversize names 'nn', which has no buckets: did you mean 'n'?",
        ),
        (
            text(mask="token_mask"),
            {},
            "The signature serving_default has mask='token_mask' but no buckets; the "
            "option is for padded inputs. Give save buckets={...}, or leave it out.",
        ),
        (
            preprocessed(example={"txt": [[1]]}),
            {},
            "example of the signature serving_default names 'txt', which is not an input: did you "
            "mean "
            "text? The inputs: text.",
        ),
        (
            preprocessed(pad_values={"text": 1}),
            BUCKETS,
            "serving_default: pad_values={'text': 1}: that is an input of preprocess. Name an "
            "input of the function: 'ids', 'token_mask'",
        ),
        (
            text(preprocess=lambda words: words, inputs={"word": tf.TensorSpec([None])}),
            {},
            "preprocess of the signature serving_default is called with the inputs by keyword "
            "(word), and takes (words): missing a required argument: 'words'. Rename its "
            "parameters.",
        ),
        (
            text(inputs={"word": tf.TensorSpec([None])}),
            {},
            "The signature serving_default has inputs but no preprocess, and `inputs` are those of "
            "preprocess. To rename inputs, use input_names.",
        ),
        (
            text(preprocess=lambda words: words, inputs=[tf.TensorSpec([None])]),
            {},
            "inputs of the signature serving_default must be a mapping of tf.TensorSpec by name, "
            "as {'words': tf.TensorSpec([None], tf.string)}. Got: list.",
        ),
        (
            text(preprocess=lambda words: words, inputs={"words": "string"}),
            {},
            "inputs of the signature serving_default must be a mapping of tf.TensorSpec by name, "
            "as {'words': tf.TensorSpec([None], tf.string)}. Got: 'string' for 'words'.",
        ),
        (
            text(kwargs=[IDS]),
            {},
            "kwargs of the signature serving_default must be a mapping with an example of each "
            "keyword argument. Got: list.",
        ),
        (
            Signature(never_traced, padding={"b": [1, 8]}),  # type: ignore[arg-type]
            {},
            "padding of the signature serving_default must be a Padding, as Padding(...). Got: "
            "dict.",
        ),
        (
            Signature(never_traced, processing=tf.identity),
            {},
            "processing of the signature serving_default must be a Processing, as "
            "Processing(...). Got: function.",
        ),
        (
            text(),
            {"expected_sizes": 8},
            "The expected sizes must be integers in a list, as [1, 8, 32]. Got: 8.",
        ),
        (
            text(),
            {"expected_sizes": {"b": 8}},
            "The expected sizes must be integers in a list, as [1, 8, 32]. Got: 8.",
        ),
        (
            text(seed="scaler"),
            {},
            "seed of the signature serving_default must be 'key' or 'scalar'. Got: 'scaler'",
        ),
        (
            text(polymorphic_shapes=AUTO, mask="token_maks"),
            BUCKETS,
            "serving_default: mask='token_maks': there is no such input: did you mean "
            "'token_mask'?",
        ),
    ],
)
def test_names_are_checked_before_anything_is_traced(
    signature: Signature, options: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises((SavingError, ShapeError, DTypeError)) as caught:
        save(tmp_path / "m", signature, params=np.ones(3, np.float32), **options)
    assert str(caught.value) == message
    assert os.listdir(tmp_path) == []


def test_all_signatures_are_checked_before_the_first_is_traced(tmp_path: Path) -> None:
    portable = export(lambda x: x + 1, polymorphic_shapes="(rows,)", platforms=["cpu"])(np.ones(3))
    both = {"words": text(args=[*[IDS] * 3]), "rows": Signature(portable, example={"y": [1]})}
    with pytest.raises(SavingError, match="signature rows names 'y', which is not an input"):
        save(tmp_path / "m", both)
    named = {**both, "rows": Signature(portable)}
    with pytest.raises(ShapeError) as caught:
        save(tmp_path / "m", named, buckets={"row": [1, 4]})
    assert str(caught.value) == (
        "save: buckets for 'row', which is not a dimension variable of its inputs: did "
        "you mean 'rows'?"
    )


def test_variables_that_auto_finds_have_buckets(tmp_path: Path) -> None:
    found = Signature(lambda x: x * 2, [np.ones((2, 3), np.float32)], polymorphic_shapes=AUTO)
    with pytest.raises(ShapeError, match=r"save: buckets for 'rows', which is not a dimension v"):
        save(tmp_path / "m", found, buckets={"rows": [1]}, vjp_order=0)
    assert os.listdir(tmp_path) == []


def test_buckets_of_save_count_beside_a_signature_whose_variables_auto_finds(
    tmp_path: Path,
) -> None:
    """Refuses what uses them neither before the variables are found nor afterwards."""
    mask = Signature(
        lambda x, mask: x * mask,
        [np.ones(2, np.float32)] * 2,
        polymorphic_shapes="(b,)",
        padding=Padding(mask="mask"),
    )
    found = Signature(lambda x: x * 2, [np.ones((2, 3), np.float32)], polymorphic_shapes=AUTO)
    both = {"a": mask, "z": found}
    saved = save(tmp_path / "m", both, buckets={"b": [4]}, vjp_order=0)
    assert "mask filled by the buckets" in saved.signatures["a"].buckets
    with pytest.raises(SavingError, match="have 2 dimension variables"):
        save(tmp_path / "n", both, expected_sizes=[1, 4], vjp_order=0)


def test_buckets_are_chosen_once_and_from_an_iterator(tmp_path: Path) -> None:
    row = Signature(lambda x: x * 2, [np.ones(2, np.float32)], polymorphic_shapes="(b,)")
    saved = save(
        tmp_path / "m",
        row,
        expected_sizes=map(len, ["a", "abcd"]),
        vjp_order=0,
    )
    assert "buckets b 1, 4" in str(saved)


@pytest.mark.parametrize(
    ("option", "value", "dtype", "limits"),
    [
        ("default of", [300], np.int8, "300, and int8 is from -128 to 127"),
        ("default of", np.array([-300]), np.int8, "-300, and int8 is from -128 to 127"),
        ("default of", [8], jnp.int4, "8, and int4 is from -8 to 7"),
        ("example for", [-1], np.uint8, "-1, and uint8 is from 0 to 255"),
        ("example for", [16], jnp.uint4, "16, and uint4 is from 0 to 15"),
        (
            "example for",
            np.array([3 * 10**9]),
            np.int32,
            "3000000000, and int32 is from -2147483648 to 2147483647",
        ),
    ],
)
def test_integers_beyond_their_dtype_are_not_wrapped_around(
    option: str, value: Any, dtype: Any, limits: str, tmp_path: Path
) -> None:
    portable = export(lambda x: x, platforms=["cpu"])(np.ones(1, dtype))
    given: Any = {"defaults" if option == "default of" else "example": {"x": value}}
    with pytest.raises(SavingError) as caught:
        save(tmp_path / "m", flat_signature(portable, **given))
    assert str(caught.value) == (
        f"The {option} the input x of the signature serving_default holds {limits}. Give a number "
        "in this range, or export the function for a wider dtype."
    )


def test_keys_are_passed_as_their_words(tmp_path: Path) -> None:
    def draw(key: Any, x: Any) -> Any:
        return x + jax.random.normal(key, x.shape)

    key, x = jax.random.key(3), np.ones(2, np.float32)
    values = {"key": key}
    saved = save(
        tmp_path / "m",
        Signature(draw, [jax.random.key(0), x], defaults=values, example=values),
        vjp_order=0,
    )
    assert saved.serving.requests["serving_default"].inputs["key"].values == (0, 3)
    model = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(model.serving_default(None, x), draw(key, x), rtol=1e-6)
