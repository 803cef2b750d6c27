"""Options of `jax2tf-bridge save` and `publish` for what is padded to buckets, and with what."""

from __future__ import annotations

import json
import shlex
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.saved_model import read_sidecar
from tests.cli.conftest import Ok, Run
from tests.saving.warm_up_files import read_warm_up_requests

MODELS = "tests.cli.models"
BUCKETS = ("--buckets", "n=4,8", "--vjp-order", "0")


@pytest.fixture
def words(ok: Ok) -> str:
    """A function that knows padding by the number 1."""
    ok("export", f"{MODELS}:real_words", "--args", "i32[1,n]", "-o", "words.jaxfn")
    return "words.jaxfn"


@pytest.fixture
def masked(ok: Ok) -> str:
    """A mean over what a mask says is real."""
    ok("export", f"{MODELS}:masked", "--args", "f32[n]", "f32[n]", "-o", "masked.jaxfn")
    return "masked.jaxfn"


def test_an_error_about_padding_names_options_that_mend_it(run: Run, ok: Ok, words: str) -> None:
    ended = run("save", words, "-o", "m", *BUCKETS)
    assert ended.code == 1
    assert (
        "name it: --mask INPUT; if the function uses a special number for padding, pad with "
        "that: --pad-values ids=1; if it is sound for all your requests, vouch for it: "
        "--unchecked-padding n; or give n no buckets. Tried with ids (integers from 0 to 3); "
        "--example FILE tries your values."
    ) in ended.error
    assert not Path("m").exists()
    ok("save", words, "-o", "m", *BUCKETS, "--pad-values", "ids=1")
    found = tf.saved_model.load("m").serving_default([[5, 1, 0, 7, 9]])
    np.testing.assert_array_equal(found, [4])


def test_padding_that_is_vouched_for(ok: Ok, words: str) -> None:
    ok("save", words, "-o", "m", *BUCKETS, "--unchecked-padding", "n", "--pad-values", "ids=0")
    sidecar = read_sidecar(Path("m"))
    assert sidecar is not None
    entry = sidecar[0].signatures["serving_default"]
    # Padding with 0 is nothing special.
    assert (entry.unchecked_padding, entry.pad_values) == (("n",), {})


def test_a_mask_is_filled(run: Run, ok: Ok, masked: str) -> None:
    ended = run("publish", masked, "-o", "models", *BUCKETS, "--mask", "mask")
    assert "Pass --oversize n=as-is, so that sizes above the largest bucket of n run" in ended.error
    whole = (*BUCKETS, "--mask", "mask", "--oversize", "n=as-is")
    text = ok("publish", masked, "-o", "models", *whole)
    assert text == "models/1: serving_default(x: float32[n]) -> (output_0: float32[])\n"
    model = tf.saved_model.load("models/1")
    np.testing.assert_allclose(model.serving_default([1.0, 2.0, 6.0]), 3)
    ended = run("publish", masked, "-o", "models", "--vjp-order", "0")
    assert ended.err == (
        "jax2tf-bridge: note: version 1 has buckets, and this one has none: to keep them, add "
        "--buckets n=4,8 --mask mask\n"
    )


def test_options_that_a_version_lacks_can_be_pasted(run: Run, ok: Ok) -> None:
    ok("export", f"{MODELS}:masked_twice", "--args", *["f32[n]"] * 3, "-o", "twice.jaxfn")
    publish = (
        "publish",
        "twice.jaxfn",
        "-o",
        "models",
        "--oversize",
        "n=as-is",
        "--vjp-order",
        "0",
    )
    padding = "--buckets n=4 --pad-values x=0.5 --mask mask,weight"
    ok(*publish, *padding.split())
    np.testing.assert_allclose(tf.saved_model.load("models/1").serving_default([1.0, 2.0]), 4.5)
    ended = run(*publish[:4], *publish[6:])
    assert ended.err == (
        "jax2tf-bridge: note: version 1 has buckets, and this one has none: to keep them, add "
        f"{padding}\n"
    )
    ok(*publish, *shlex.split(ended.err.partition("add ")[2]))
    assert read_sidecar(Path("models/3")) is not None


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_an_example_is_tried_and_kept(ok: Ok, words: str, kind: str) -> None:
    if kind == "json":
        Path("e.json").write_text(json.dumps({"ids": [[7, 8, 9]]}))
    else:
        np.savez("e.npz", ids=np.array([[7, 8, 9]]))  # of 64 bits
    ok(
        "save",
        words,
        "-o",
        "m",
        "--buckets",
        "n=4",
        "--vjp-order",
        "0",
        "--pad-values",
        "ids=1",
        "--example",
        f"e.{kind}",
    )
    (request,) = read_warm_up_requests(Path("m"))
    np.testing.assert_array_equal(request.inputs["ids"], [[7, 8, 9, 7]])
    assert request.inputs["ids"].dtype == np.int32


def test_misspelt_names(run: Run, masked: str) -> None:
    Path("e.json").write_text('{"y": [1.0]}')
    told = {
        (
            "--mask",
            "maks",
            "--mask",
            "mask",
        ): "--mask maks: there is no such input: did you mean 'mask'?",
        ("--pad-values", "xx=1"): "--pad-values xx=1: there is no such input: did you mean 'x'?",
        ("--pad-values", "xx=-inf"): "--pad-values xx=-inf: there is no such input: did you mean ",
        ("--unchecked-padding", "m"): "--unchecked-padding names 'm', which has no buckets",
        ("--oversize", "m=split"): "--oversize names 'm', which has no buckets",
        ("--example", "e.json"): "'y'",
    }
    for options, text in told.items():
        ended = run("save", masked, "-o", "m", *BUCKETS, *options)
        assert ended.code == 1
        assert text in ended.error, ended
        assert not Path("m").exists()


def test_examples_that_do_not_fit(run: Run, words: str) -> None:
    told = {
        '{"ids": [[1, 2], [3]]}': "The example for the input ids of the signature serving_default ",
        '{"ids": [[1.5, 2]]}': "does not fit it: expected int32, got [[1.5, 2]].",
        '{"ids": [[10000000000, 5]]}': "The example for the input ids of the signature "
        "serving_default holds 10000000000, and int32 is from -2147483648 to 2147483647. Give a ",
        '{"ids": [[100000000000000000000]]}': "does not fit it: expected int32, got [[100",
        '{"ids": [1, 2]}': "has the shape (2,), expected (1, None).",
    }
    for written, text in told.items():
        Path("e.json").write_text(written)
        ended = run("save", words, "-o", "m", *BUCKETS, "--example", "e.json")
        assert (ended.code, text in ended.error) == (1, True), ended


def _with_method(whole: bytes, method: int) -> bytes:
    """A zip file that says that it is compressed by a method of this number."""
    for place in (8, whole.index(b"PK\1\2") + 10):
        whole = whole[:place] + struct.pack("<H", method) + whole[place + 2 :]
    return whole


def test_files_that_are_no_examples(run: Run, words: str) -> None:
    Path("list.json").write_text("[1]")
    Path("none.npz").write_bytes(b"none")
    np.save("one.npy", np.ones(1))
    Path("one.npy").rename("one.npz")
    Path("folder.json").mkdir()
    np.savez_compressed("damaged.npz", ids=np.arange(1000))
    whole = Path("damaged.npz").read_bytes()
    Path("damaged.npz").write_bytes(whole[:200] + b"\xff" * 200 + whole[400:])
    Path("unknown.npz").write_bytes(_with_method(whole, 99))
    told = {
        "no.json": (2, "no.json: No such file or directory"),
        "e.txt": (2, "--example: expected a file .npz or .json with values of inputs by name. "),
        "list.json": (1, 'expected an object, as {"ids": [[4, 8, 15]]}'),
        "none.npz": (1, "--example: none.npz cannot be read as .npz with values of inputs by "),
        "damaged.npz": (1, "--example: damaged.npz cannot be read as .npz with values of inputs "),
        "unknown.npz": (1, "--example: unknown.npz cannot be read as .npz with values of inputs "),
        "one.npz": (1, "it holds one array without a name; write it with np.savez"),
        "folder.json": (1, "folder.json: Is a directory"),
    }
    for file, (code, text) in told.items():
        ended = run("save", words, "-o", "m", *BUCKETS, "--example", file)
        assert (ended.code, text in ended.error) == (code, True), ended


def test_options_that_are_not_written_so(run: Run, words: str) -> None:
    told = {
        ("--mask", "m"): "--mask is for sizes with buckets: add --buckets, as --buckets b=1,8,32",
        (
            "--oversize",
            "split",
            "--pad-values",
            "x=1",
        ): "--oversize and --pad-values are for sizes ",
        (*BUCKETS, "--buckets", "n=2"): "--buckets: n is given twice",
        (*BUCKETS, "--oversize", "split", "--oversize", "as-is"): "--oversize: it is given twice",
        (
            *BUCKETS,
            "--oversize",
            "n=split",
            "--oversize",
            "as-is",
        ): "--oversize: pass it once for all sizes, ",
        ("--buckets", "=1"): "'=1' is not of the form NAME=N,N, as b=1,8,32",
        ("--pad-values", "ids"): "'ids' is not of the form INPUT=X with a number, true or false, ",
        ("--pad-values", "ids=x"): "'ids=x' is not of the form INPUT=X with a number, ",
        (*BUCKETS, "--mask", "m;n"): "'m;n' is not of the form NAME,NAME, as n or b,n",
        ("--unchecked-padding", "n;m"): "'n;m' is not of the form NAME,NAME, as n or b,n",
    }
    for options, text in told.items():
        ended = run("save", words, "-o", "m", *options)
        assert (ended.code, text in ended.error) == (2, True), ended
    ended = run("publish", "-o", "m", "--params", "w", "--mask", "m", "--example", "e.json")
    assert (ended.code, ended.error.startswith("--mask, --example: without FILE, publish ")) == (
        2,
        True,
    )
