"""`jax2tf-bridge compile --open-sizes`; tests/c_library has the libraries themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Ok, Run


def test_open_sizes(ok: Ok, tmp_path: Path, exported_cube: bytes) -> None:
    (tmp_path / "cube.jaxfn").write_bytes(exported_cube)
    printed = ok("compile", "cube.jaxfn", "-o", "lib", "--open-sizes")
    assert printed == "lib: a C library for any sizes. Its README.md says how to build it.\n"
    assert {"cube.h", "cube.c", "cube.jaxfn"} <= {
        file.name for file in (tmp_path / "lib").iterdir()
    }
    printed = ok(
        *("compile", "cube.jaxfn", "-o", "other", "--open-sizes", "--name", "power", "--json")
    )
    assert json.loads(printed) == {"path": "other"}
    assert "power_run" in (tmp_path / "other" / "power.h").read_text()


@pytest.mark.usefixtures("cube")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("cube.jaxfn", "--sizes", "b=1", "--shared", "--target-cpu", "haswell"),
            "--sizes, --target-cpu, --shared: --open-sizes writes a library for any sizes, which "
            "TensorFlow compiles where it runs. Remove these options, or --open-sizes",
        ),
        (
            ("a=cube.jaxfn",),
            "--open-sizes takes one file, without NAME=, and writes one function",
        ),
        (
            (".",),
            ". is a folder. Pass the path of a .jaxfn file",
        ),
        (("cube.jaxfn", "--name", "a-b"), "'a-b' is not an identifier in C. Pass --name a_b."),
        (
            ("cube.jaxfn", "--name", "main"),
            "The library has other files with the name main. Pass --name main_library.",
        ),
    ],
)
def test_open_sizes_are_refused(run: Run, words: tuple[str, ...], text: str) -> None:
    ended = run("compile", *words, "-o", "lib", "--open-sizes")
    assert ended.code
    assert text in ended.err


def test_options_of_fixed_sizes_are_named(run: Run, cube: str) -> None:
    for words, text in {
        ("-o", "c-lib"): "'c-lib' prefixes all names of the library, and is not an identifier in "
        "C. Pass --name c_lib.",
        ("-o", "lib", "--sizes", "n=0"): "--sizes: n must be an integer from 1 to "
        "2147483647. Got: 0.",
        ("-o", "lib", "--sizes", "b=1"): "--sizes: no signature has the size b. Their open sizes: "
        "n.",
    }.items():
        assert run("compile", cube, *words).error == text


def test_a_size_is_named_once(run: Run, cube: str) -> None:
    ended = run("compile", cube, "-o", "lib", "--sizes", "b=1,b=2")
    assert ended.code == 2
    assert ended.error.startswith(
        "argument --sizes: expected open sizes and their values, as b=1 or b=1,n=128. Got: b=1,b=2"
    )
