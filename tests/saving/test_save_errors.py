"""Errors of save(): names, weights, calls and options that cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Processing, Signature, convert, export, save
from jax2tf_bridge.errors import (
    DTypeError,
    FunctionError,
    GradientError,
    InconclusiveShapeError,
    SavingError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.portable import PolyShape

# Private: its limit of 2 GB is lowered.
from jax2tf_bridge.saving import _save
from tests.saving.saved_functions import DENSE, PARAMS, X, contents, dense


def test_trainable_names_that_are_not_there(tmp_path: Path) -> None:
    message = (
        r"^trainable has 'dens', which is not a prefix of any weight's name: did you mean dense\? "
        r"The names begin with: dense, steps\.$"
    )
    with pytest.raises(SavingError, match=message):
        save(tmp_path / "m", DENSE, params=PARAMS, trainable=["dens"])
    assert contents(tmp_path) == []


def test_trainable_of_another_type(tmp_path: Path) -> None:
    message = (
        r"^trainable must be True, False or a list of prefixes of names, as \['params'\]\. "
        r"Got: 5\.$"
    )
    with pytest.raises(SavingError, match=message):
        save(tmp_path / "m", DENSE, params=PARAMS, trainable=5)  # type: ignore[arg-type]
    assert contents(tmp_path) == []


def test_path_that_tensorflow_takes_for_a_pattern(tmp_path: Path) -> None:
    for path in (tmp_path / "run[1]" / "m", "memory://bucket/run[1]/m"):
        with pytest.raises(
            OSError, match=r"/run\[1\]/m cannot hold a SavedModel: TensorFlow reads"
        ):
            save(path, DENSE, params=PARAMS)
    assert contents(tmp_path) == []


def dropped(params: Any) -> Any:
    return {key: value for key, value in params.items() if key != "steps"}


_NOTHING_TO_COMPILE = re.escape(
    "precompile=True has nothing to compile: each signature has open sizes, and neither buckets "
    "nor an example. Give buckets={...}, or Signature(..., example={...}), or leave it out."
)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (dropped(PARAMS), StructureError, r"params.*steps"),
        (
            {**PARAMS, "dense": {**PARAMS["dense"], "bias": np.ones(3, np.float32)}},
            ShapeError,
            r"^params do not fit the argument params of dense:\n"
            r"  - params\['dense'\]\['bias'\]: expected shape \(2,\), got \(3,\)\n"
            r"Pass the weights that it was exported with, or export it for these\.$",
        ),
        (
            {**PARAMS, "steps": np.float32(1)},
            DTypeError,
            r"params\['steps'\]: expected int32, got float32",
        ),
    ],
)
def test_weights_that_do_not_fit(params: Any, error: Any, message: str, tmp_path: Path) -> None:
    portable = export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X)
    with pytest.raises(error, match=message):
        save(tmp_path / "m", portable, params=params)
    assert contents(tmp_path) == []


@pytest.mark.parametrize(
    ("signatures", "message"),
    [
        ({}, r"^signatures must be a mapping with at least one signature\. Got: \{\}$"),
        ({"a b": DENSE}, r"A signature cannot be named 'a b': the loaded model has a method of"),
        ({"params": DENSE}, r"A signature cannot be named 'params': a loaded model has another"),
        (
            Signature(dense, args=[X], input_names={"y": "z"}),
            r"^input_names of the signature serving_default renames 'y', which is not an input.* "
            r"The inputs: x\.$",
        ),
        (
            Signature(dense, args=[X], input_names={0: "z"}),  # type: ignore[dict-item]
            r"^input_names of the signature serving_default renames 0, which is not an input\. ",
        ),
        (
            Signature(dense, args=[X], input_names={"x": "a/b"}),
            r"has the name 'a/b', which cannot be used",
        ),
        (
            Signature(lambda p, x: (x, x), args=[X], output_names=["a", "A"]),
            r"^Two outputs of the signature serving_default are named 'A'",
        ),
        (
            Signature(lambda p, x: (x, x), args=[X], output_names=["a"]),
            r"must name each of 2 outputs \(output_0, output_1\)\. Got 1: \['a'\]$",
        ),
        (
            Signature(dense, args=[X], defaults={"z": 1.0}),
            r"^defaults of the signature serving_default names 'z', which is not an input",
        ),
        (
            Signature(dense, args=[X], defaults={"x": "a"}),
            r"^The default of the input x of the signature serving_default does not fit it: "
            r"expected float32, got 'a'\. ",
        ),
        (
            Signature(dense, args=[X], processing=Processing(preprocess=lambda x: x)),
            r"has a preprocess but no inputs. Pass inputs=\{'x': tf\.TensorSpec",
        ),
        (
            Signature(
                dense, args=[X], processing=Processing(postprocess=lambda output_0: {1: output_0})
            ),
            r"^postprocess of the signature serving_default returns an output named 1: names are "
            r"str",
        ),
        (
            Signature(
                dense, args=[X], processing=Processing(postprocess=lambda output_0: {"y": object()})
            ),
            r"^postprocess of the signature serving_default returns a value that is no tensor: ",
        ),
        (
            Signature(dense, args=[X], processing=Processing(resources=tf.Variable(0))),
            r"^resources of the signature serving_default must be a list, as resources=\[table\]",
        ),
        (
            Signature(export(dense)(PARAMS, X), args=[X]),
            r"^The signature serving_default has args, but its function was already exported",
        ),
        (
            Signature(export(dense)(PARAMS, X), args=X),  # type: ignore[arg-type]
            r"^The signature serving_default has args, but its function was already exported",
        ),
        (
            Signature(dense, args=[X], example=X),  # type: ignore[arg-type]
            r"^example of the signature serving_default must be a mapping of values by input, or a "
            r"list of such mappings\. Got: ndarray\.$",
        ),
    ],
)
def test_signatures_that_make_no_sense(signatures: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SavingError, match=message):
        save(tmp_path / "m", signatures, params=PARAMS)
    assert contents(tmp_path) == []


def test_polymorphic_shapes_of_another_form(tmp_path: Path) -> None:
    with pytest.raises(StructureError, match=r"^polymorphic_shapes of dense must be None, .*: 3$"):
        save(tmp_path / "m", Signature(dense, args=[X], polymorphic_shapes=3), params=PARAMS)
    with pytest.warns(DeprecationWarning, match="PolyShape"):
        shape = PolyShape("b", ...)
    signature = Signature(dense, args=[X], polymorphic_shapes=shape)
    saved = save(tmp_path / "m", signature, params=PARAMS, vjp_order=0)
    assert str(saved.signatures["serving_default"].inputs["x"]) == "float32[b,3]"


def test_weights_without_a_function_for_them(tmp_path: Path) -> None:
    with pytest.raises(SavingError, match="has takes_params=True, but save got no params"):
        save(tmp_path / "m", Signature(export(dense)(PARAMS, X), takes_params=True))
    with pytest.raises(SavingError, match="has no positional argument to take them"):
        save(tmp_path / "m", export(lambda: jnp.ones(2))(), params=PARAMS)
    for order in (-1, "2", True):
        with pytest.raises(SavingError, match=r"^vjp_order must be an integer, 0 or more\. Got: "):
            save(tmp_path / "m", DENSE, params=PARAMS, vjp_order=order)  # type: ignore[arg-type]
    with pytest.raises(SavingError, match=_NOTHING_TO_COMPILE):
        save(tmp_path / "m", DENSE, params=PARAMS, precompile=True)


@pytest.mark.parametrize(
    ("signature", "params", "message"),
    [
        (Signature(dense, args=[X]), None, r"takes \(params, x\), and would be called as dense"),
        (dense, PARAMS, r"would be called as dense\(params\): missing a required argument: 'x'\. "),
        (
            Signature(dense, args=[PARAMS, X]),
            PARAMS,
            r"dense\(params, <dict>, <ndarray>\): too many",
        ),
        (
            Signature(dense, args=cast("Any", X)),
            PARAMS,
            r"must be a list with an example of each argument: write",
        ),
        ([DENSE], PARAMS, r"^signatures must be one Signature or function, or a mapping of them"),
        (tf.function(dense), PARAMS, r"is a TensorFlow function\. Pass the JAX function itself"),
        (convert(dense), PARAMS, r"is a TensorFlow function\. Pass the JAX function itself"),
    ],
)
def test_calls_that_the_function_does_not_take(
    signature: Any, params: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SavingError, match=message):
        save(tmp_path / "m", signature, params=params)
    assert contents(tmp_path) == []


def test_what_is_no_function(tmp_path: Path) -> None:
    with pytest.raises(FunctionError, match="3"):
        save(tmp_path / "m", 3)


def test_errors_of_the_users_own_say_how_it_was_called(tmp_path: Path) -> None:
    with pytest.raises(KeyError) as caught:
        save(tmp_path / "m", DENSE, params={"dens": {}})
    (note,) = [n for n in caught.value.__notes__ if n.startswith("The signature")]
    assert note == "The signature serving_default calls it as dense(params, <ndarray>)."
    assert caught.value.__notes__[-1] == "There are no weights in params."


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    def never_traced(x: Any) -> Any:
        raise AssertionError("it was traced")

    (tmp_path / "file").touch()
    for path, text in (
        (tmp_path / "file", "already exists, and is not a folder"),
        (tmp_path / "file" / "model", "is a file, not a folder"),
    ):
        with pytest.raises(NotADirectoryError, match=text):
            save(path, Signature(never_traced, args=[X]))


def test_a_missing_weight_lists_the_weights(tmp_path: Path) -> None:
    many = {"dens": PARAMS["dense"], "more": [np.float32(i) for i in range(10)]}
    with pytest.raises(KeyError, match="'dense'") as caught:
        save(tmp_path / "m", DENSE, params=many)
    assert caught.value.__notes__[-1] == (
        "The weights in params are params['dens']['bias'], params['dens']['kernel'], "
        + ", ".join(f"params['more'][{i}]" for i in range(8))
        + " and 2 more."
    )
    without_params = Signature(lambda x: PARAMS["z"], args=[X], takes_params=False)
    with pytest.raises(KeyError) as caught:
        save(tmp_path / "m", without_params)
    assert caught.value.__notes__[-1].startswith("The signature serving_default calls it")


_ADVICE = (
    "The argument x is (4, 3), which JAX takes as 2 integers and not as an array of this shape. "
    "Pass an array, as np.zeros((4, 3), np.float32), or jax.ShapeDtypeStruct((4, 3), np.float32)."
)


@pytest.mark.parametrize("shape", [(4, 3), [4, 3]])
def test_a_shape_in_place_of_an_example(shape: Any, tmp_path: Path) -> None:
    opened = Signature(dense, args=[shape], polymorphic_shapes="(b, 3)")
    with pytest.raises(ShapeError) as refused:
        save(tmp_path / "m", opened, params=PARAMS)
    assert str(refused.value) == _ADVICE
    with pytest.raises(TypeError) as failed:
        save(tmp_path / "m", Signature(dense, args=[shape]), params=PARAMS)
    assert _ADVICE in failed.value.__notes__
    with pytest.raises(AttributeError) as without_attribute:
        save(tmp_path / "m", Signature(lambda x: x.sum(), kwargs={"x": shape}))
    assert _ADVICE in without_attribute.value.__notes__


def test_more_gradients_than_were_stored(tmp_path: Path) -> None:
    portable = export(dense, polymorphic_shapes=[None, "(b, 3)"])(PARAMS, X).with_vjp(1)
    message = r"^The signature serving_default cannot be saved with vjp_order=2: .* Where the func"
    with pytest.raises(GradientError, match=message):
        save(tmp_path / "m", portable, params=PARAMS, vjp_order=2)


def test_what_would_not_fit_into_a_graph_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(_save, "_MAX_GRAPH_BYTES", 100)
    with pytest.raises(SavingError, match=r"^The modules take 0\.00 GB \(serving_default: 0\.00"):
        save(tmp_path / "m", DENSE, params=PARAMS)
    assert contents(tmp_path) == []


def test_a_model_that_is_there_is_replaced_only_if_asked(tmp_path: Path) -> None:
    signature = Signature(lambda x: x + 1, args=[X])
    save(tmp_path / "m", signature, vjp_order=np.int64(0))  # type: ignore[arg-type]
    text = "already exists; overwrite=True replaces it"
    with pytest.raises(FileExistsError, match=text):
        save(tmp_path / "m", signature)
    save(tmp_path / "m", Signature(lambda x: x + 2, args=[X]), overwrite=True, vjp_order=0)
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m").serving_default(X), X + 2)


def test_a_constraint_is_advised_for_the_signature(tmp_path: Path) -> None:
    def best(x: Any) -> Any:
        return jax.lax.top_k(x, 5)[0]

    x = np.zeros(8, np.float32)
    with pytest.raises(InconclusiveShapeError) as caught:
        save(tmp_path / "m", Signature(best, args=[x], polymorphic_shapes="(b,)"))
    (code,) = (line for line in str(caught.value).splitlines() if line.startswith("    "))
    assert code.strip() == (
        "Signature(best, args=[...], polymorphic_shapes='(b,)', "
        'polymorphic_constraints=["b >= 5"])'
    )
    names = {"Signature": Signature, "best": best, "x": x}
    save(tmp_path / "m", eval(code.strip().replace("[...]", "[x]"), names))
