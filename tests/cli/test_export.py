"""`jax2tf-bridge export`: what it writes, and what it says where it cannot."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, inspect, to_tf

# Private: JAX must have each dtype of the table.
from jax2tf_bridge.cli._export import DTYPES
from jax2tf_bridge.serialization import read_function
from tests.cli import models
from tests.cli.conftest import Ok, Run

M = "tests.cli.models"


def exported(ok: Ok, *words: str) -> PortableFunction:
    """Exports with these words, without gradients unless they say more, and reads the file."""
    without = () if "--vjp-order" in words else ("--vjp-order", "0")
    ok("export", *words, *without, "-o", "f.jaxfn")
    return read_function("f.jaxfn")


def shapes(portable: PortableFunction) -> list[str]:
    return list(map(str, portable.in_avals))


def test_says_what_it_wrote(ok: Ok) -> None:
    text = ok("export", f"{M}:predict", "--args", f"@{M}:params", "f32[b,3]", "-o", "f.jaxfn")
    assert text == (
        "f.jaxfn: predict(params['b']: float32[2], params['w']: float32[3,2], x: float32[b,3]) -> "
        "(float32[], float32[b,2]); gradients to order 1; runs on TensorFlow 2.15 to 2.22\n"
    )
    portable = read_function("f.jaxfn")
    assert portable.name == "predict"
    assert portable.vjp().tensorflow_releases[0] == "2.15"
    assert not portable.vjp().has_vjp


@pytest.mark.parametrize(
    "words",
    [
        ("--args", f"@{M}:params", "f32[b,3]"),
        ("--args", f"@{M}:make_params", "f32[b,3]"),
        ("--args", '{"w": "f32[3,2]", "b": "f32[2]"}', "f32[b,3]"),
        ("--args", "{'w': 'f32[3,2]', 'b': 'f32[2]'}", "--args", "f32[b,3]"),
        ("--args", f"@{M}:example_args", "--shapes", "None", "(b, _)"),
        ("--args", f"@{M}:example_args", "--shapes", '{"w": "(3, 2)", "b": null}', "(b, ...)"),
        ("--args", f"@{M}:params", "f32[4,3]", "--shapes", "-", "auto"),
    ],
)
def test_arguments(ok: Ok, words: tuple[str, ...]) -> None:
    portable = exported(ok, f"{M}:predict", *words)
    assert shapes(portable) == ["float32[2]", "float32[3,2]", "float32[b,3]"]


def test_json_is_that_of_inspect(ok: Ok) -> None:
    words = ("--args", "f32[n]", "--vjp-order", "0", "-o", "cube.jaxfn", "--json")
    printed = ok("export", f"{M}:cube", *words)
    assert json.loads(printed) == inspect("cube.jaxfn").as_json()


def test_one_shape_for_all_arguments(ok: Ok) -> None:
    portable = exported(
        ok, f"{M}:solve", "--args", "f32[2,3,3]", "f32[2,3,3]", "--shapes", "b, 3, 3"
    )
    assert shapes(portable) == ["float32[b,3,3]"] * 2
    portable = exported(ok, f"{M}:cube", "--args", "f32[2,3]", "--shapes", "auto")
    assert shapes(portable) == ["float32[b,d1]"]


def test_keyword_arguments_may_be_open_as_well(ok: Ok) -> None:
    words = ("--args", "f32[b,3]", "--kwargs", "scale=f32[b,1]")
    assert shapes(exported(ok, f"{M}:scaled", *words)) == ["float32[b,3]", "float32[b,1]"]
    words = ("--args", "f32[b,3]", "--kwargs", f"scale=@{M}:scale_of_two")
    assert shapes(exported(ok, f"{M}:scaled", *words)) == ["float32[b,3]", "float32[]"]


def test_a_named_tuple_is_one_argument(ok: Ok) -> None:
    portable = exported(ok, f"{M}:product", "--args", "('f32[n]', 'f32[n]')")
    assert portable.in_paths() == ("pair[0]", "pair[1]")


def test_a_pytree_that_can_be_called_is_not(ok: Ok) -> None:
    portable = exported(ok, f"{M}:call", "--args", f"@{M}:layer", "f32[b,3]")
    assert portable.in_paths() == ("layer.weights", "x")


def test_methods_keys_and_scalars(ok: Ok) -> None:
    assert exported(ok, f"{M}:net.apply", "--args", "f32").name == "apply"
    assert shapes(exported(ok, f"{M}:noise", "--args", "key<fry>[]")) == ["key<fry>[]"]
    assert shapes(exported(ok, f"{M}:cube", "--args", "bf16[2*n]")) == ["bfloat16[2*n]"]


def test_64_bits_have_to_be_asked_for(run: Run, ok: Ok) -> None:
    words = ("export", f"{M}:cube", "--args", "f64[n]", "-o", "f.jaxfn")
    ended = run(*words)
    assert ended.code == 2
    assert ended.error == ("JAX would take float64 in 32 bits; add --x64, or set JAX_ENABLE_X64=1")
    try:
        ok(*words, "--x64")
    finally:
        jax.config.update("jax_enable_x64", False)
    assert shapes(read_function("f.jaxfn")) == ["float64[n]"]


def test_target_and_platforms(ok: Ok) -> None:
    words = ("--args", "f32[n]", "--tensorflow", "2.17", "--platforms", "cpu, gpu")
    portable = exported(ok, f"{M}:cube", *words)
    assert portable.module.stablehlo_version == (1, 1, 1)
    assert portable.platforms == ("cpu", "cuda", "rocm")


def test_constraints_are_given_or_found(ok: Ok) -> None:
    portable = exported(ok, f"{M}:halves", "--args", "f32[b]", "--constraints", "b >= 2", "b <= 64")
    assert (portable.constraints, portable.requirements) == (("b >= 2", "b <= 64"), ())
    portable = exported(ok, f"{M}:halves", "--args", "f32[b]", "--constraints", "auto")
    assert (portable.constraints, portable.requirements) == ((), ("b >= 2",))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_orders_of_gradients(ok: Ok, order: int) -> None:
    portable = exported(ok, f"{M}:cube", "--args", "f32[n]", "--vjp-order", str(order))
    for _ in range(order):
        portable = portable.vjp()
    assert not portable.has_vjp


def test_dropped_platforms_are_noted(run: Run) -> None:
    ended = run("export", f"{M}:per_platform", "--args", "f32[3]", "-o", "f.jaxfn")
    assert ended.code == 0
    cuda, rocm = ended.err.splitlines()
    assert cuda.startswith("jax2tf-bridge: note: not for cuda: ")
    assert rocm.startswith("jax2tf-bridge: note: not for rocm: ")


def test_checks_of_values_are_left_out_on_request(run: Run, ok: Ok) -> None:
    words = ("export", f"{M}:checked", "--args", "f32[3]", "-o", "f.jaxfn")
    ended = run(*words)
    assert ended.code == 1
    assert "Leave its checks out with --runtime-checks drop, or export lambda" in ended.err
    ok(*words, "--runtime-checks", "drop")
    np.testing.assert_array_equal(to_tf(read_function("f.jaxfn"))(-np.ones(3, np.float32)), -2)


def test_a_function_without_gradient_is_noted(run: Run) -> None:
    because = "Reverse-mode differentiation does not work"
    ended = run("export", f"{M}:until_large", "--args", "f32[n]", "-o", "f.jaxfn")
    assert ended.code == 0
    assert "; no gradient; " in ended.out
    assert ended.err.startswith(
        f"jax2tf-bridge: note: until_large is stored without a gradient: {because}"
    )
    problem = read_function("f.jaxfn").gradient_problem()
    assert problem is not None
    assert problem.startswith(f"until_large has no gradient: {because}")
    words = ("--args", "f32[n]", "--vjp-order", "1", "-o", "g.jaxfn")
    ended = run("export", f"{M}:until_large", *words)
    assert ended.code == 1
    assert ended.error.startswith(f"until_large has no gradient: {because}")
    assert not Path("g.jaxfn").exists()


def test_modules_are_found_in_the_current_folder(
    ok: Ok, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models" / "__init__.py").touch()
    (tmp_path / "own_models" / "simple.py").write_text("def double(x):\n    return 2 * x\n")
    before = list(sys.path)
    assert exported(ok, "own_models.simple:double", "--args", "f32[n]").name == "double"
    assert sys.path == before
    ended = run("export", "own_models.sample:double", "--args", "f32[n]", "-o", "f.jaxfn")
    assert ended.error.endswith("did you mean own_models.simple?")
    ended = run("export", "own_model:double", "--args", "f32[n]", "-o", "f.jaxfn")
    assert ended.error == (
        f"module:function: there is no module own_model in {tmp_path} or in the installed "
        "packages: did you mean own_models?"
    )
    for name in ("own_models", "own_models.simple"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (
            [f"{M}:predct"],
            2,
            f"module:function: the module {M} has no predct: did you mean predict?",
        ),
        ([f"{M}:net.aply"], 2, f"module:function: {M}:net has no aply: did you mean apply?"),
        (
            ["predict"],
            2,
            "module:function: expected module:name, as model:predict or package.module:net.apply. "
            "Got: 'predict'",
        ),
        (
            ["sub/model.py:f"],
            2,
            "module:function: sub/model.py:f names a file; write the module as Python imports it, "
            "from the folder that it is in: sub.model:f",
        ),
        (
            [f"{M}:params"],
            2,
            f"module:function: {M}:params must be a function. Got: dict",
        ),
        (
            [f"{M}:predict", "--args", "f32[b,3]"],
            2,
            f"--args: {M}:predict(params, x): missing a required argument: 'x'. Got: 1 in --args",
        ),
        (
            [f"{M}:scaled", "--args", "f32", "--kwargs", "scael=f32"],
            2,
            f"--args: {M}:scaled(x, *, scale): missing a required ",
        ),
        (
            [f"{M}:scaled", "--kwargs", "scale"],
            2,
            "--kwargs: expected name=SPEC, as scale=f32[3]. Got: 'scale'",
        ),
        (
            [f"{M}:cube", "--args", f"@{M}:parms"],
            2,
            f"--args: the module {M} has no parms: did you mean params?",
        ),
        (
            [f"{M}:cube", "--args", f"@{M}:fails"],
            1,
            f"--args: calling {M}:fails() failed: OSError: the checkpoint (--debug shows all of "
            "it)",
        ),
        (
            [f"{M}:breaks", "--args", "f32[3]"],
            1,
            f"tracing {M}:breaks failed at {models.__file__}:88 (breaks): RuntimeError: no (3,) "
            "(--debug shows all of it)",
        ),
        (
            [f"{M}:exits"],
            1,
            f"tracing {M}:exits failed at {models.__file__}:"
            f"{models.exits.__code__.co_firstlineno + 1} (exits): SystemExit: no checkpoint ",
        ),
        (
            [f"{M}:cube", "--args", f"@{M}:exits"],
            1,
            f"--args: calling {M}:exits() failed: SystemExit: no checkpoint (--debug shows all ",
        ),
        (
            [f"{M}:cube", "--args", "f32[b]", "--shapes", "(b)"],
            2,
            "--shapes: argument 1 of --args names open sizes itself; write them either there or in "
            "--shapes",
        ),
        (
            [f"{M}:cube", "--args", "f32[4]", "--shapes", "(b, 3)"],
            1,
            "The argument x has shape (4,), which does not match its --shapes entry '(b, 3)': ",
        ),
        (
            [f"{M}:cube", "--args", "f32[4]", "--shapes", "(b", "--constraints", "b >= 2"],
            1,
            "The argument x of shape (4,) has no valid --shapes entry: ",
        ),
        (
            [f"{M}:solve", "--args", "f32[3,3]", "f32[3,3]", "--shapes", "auto", "auto", "auto"],
            2,
            "--shapes: expected one shape for all arguments, or one for each of the 2 of --args. "
            "Got: 3",
        ),
        (
            [f"{M}:cube", "--args", "f32[b]", "--constraints", "infer"],
            1,
            "--constraints infer cannot be read. To let the bridge add the constraints, pass "
            "--constraints auto.",
        ),
        (
            [f"{M}:cube", "--args", "f32[b]", "--constraints", "c >= 2"],
            1,
            "--constraints 'c >= 2' use c, which no entry of --args names. Its variables: b.",
        ),
        (
            [f"{M}:cube", "--args", "f32[b]", "--constraints", "b >= 2", "b <= 1"],
            1,
            "--constraints: The constraints 'b >= 2' and 'b <= 1' contradict each other",
        ),
        (
            [f"{M}:halves", "--args", "f32[6]", "--shapes", "auto"],
            1,
            "--shapes auto finds no dimension that can stay open for all sizes: the function needs "
            "d0 >= 2 (d0, d1, ... are the leading dimensions of its arguments). Pass --constraints "
            "auto to have it checked when the function is called, or write --shapes and "
            "--constraints yourself.",
        ),
        (
            [f"{M}:noise", "--args", "key<fri>[]"],
            2,
            "JAX has no PRNG keys of type fri; it has fry, rbg, urbg",
        ),
        (
            [f"{M}:cube", "--args", "f32", "--platforms", "cpu,cdua"],
            2,
            "--platforms: unknown platform 'cdua'. Did you mean cuda",
        ),
        (
            [f"{M}:cube", "--args", "f32", "--tensorflow", "2.1"],
            2,
            "--tensorflow 2.1: TensorFlow 2.15 is the oldest that can run a module: use "
            "--tensorflow 2.15 or newer.",
        ),
        (
            [f"{M}:cube", "--args", "f32", "--tensorflow", "2.99"],
            2,
            "--tensorflow 2.99: TensorFlow 2.22 is the newest that is known here. Use "
            "--tensorflow 2.22, or leave --tensorflow out.",
        ),
        (
            [f"{M}:cube", "--args", "f32", "-o", "no_folder/f.jaxfn"],
            2,
            "--output: there is no folder no_folder",
        ),
        (
            [f"{M}:cube", "--args", "f32", "-o", "."],
            2,
            "--output: . is a folder; name the file to write",
        ),
    ],
)
def test_errors(run: Run, words: list[str], code: int, error: str) -> None:
    ended = run("export", *([*words, "-o", "f.jaxfn"] if "-o" not in words else words))
    assert (ended.code, ended.out) == (code, "")
    assert ended.error.startswith(error)
    assert not Path("f.jaxfn").exists()


def test_sizes_that_do_not_fit_say_what_to_write(run: Run) -> None:
    ended = run("export", f"{M}:halves", "--args", "f32[b]", "-o", "f.jaxfn")
    assert ended.code == 1
    assert ended.error.startswith("halves needs b >= 2")
    assert ended.error.endswith(
        "If your sizes always satisfy this, add it: --constraints 'b >= 2' or let --constraints "
        "auto add it. Calls with other sizes then fail."
    )
    words = ("--args", "f32[6,3]", "--shapes", "(n, _)", "--constraints", "n <= 9")
    ended = run("export", f"{M}:halves", *words, "-o", "f.jaxfn")
    assert " add it: --constraints 'n <= 9' 'n >= 2' or let --constraints auto add " in (
        ended.error
    )
    ended = run("export", f"{M}:ones", "--args", "f32[n]", "-o", "f.jaxfn")
    assert "Give that size as a number in --args, or compute with it by " in ended.error


def test_no_error_speaks_of_arguments_of_python(run: Run) -> None:
    for words in (
        ("halves", "--args", "f32[b]"),
        ("ones", "--args", "f32[b]"),
        ("halves", "--args", "f32[6]", "--shapes", "auto"),
        ("halves", "--args", "f32[6]", "--shapes", "auto", "--constraints", "b >= 2"),
        ("cube", "--args", "f32[4]", "--shapes", "(b, 3)"),
        ("cube", "--args", "f32[4,2]", "--shapes", "atuo"),
        ("cube", "--args", "f32[2*b*c]"),
        ("cube", "--args", "f32[4]", "--shapes", '{"a": "b"}'),
    ):
        ended = run("export", f"{M}:{words[0]}", *words[1:], "-o", "f.jaxfn")
        assert ended.code == 1, ended
        for word in ("polymorphic_", "AUTO", "export(", "jax2tf_bridge"):
            assert word not in ended.error


def test_a_file_that_cannot_be_written_is_named_as_the_user_named_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", *map(str, paths[:1]))

    monkeypatch.setattr(os, "replace", refuse)
    ended = run("export", f"{M}:cube", "--args", "f32[n]", "-o", "f.jaxfn")
    assert (ended.code, ended.error) == (1, "f.jaxfn: Permission denied")
    assert list(Path.cwd().iterdir()) == []


def test_a_module_that_fails_to_import(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_package_here\n")
    (tmp_path / "ends.py").write_text("raise SystemExit('no')\n")
    ended = run("export", "needs_more:f", "-o", "f.jaxfn")
    assert (ended.code, ended.error) == (
        1,
        "importing needs_more failed: ModuleNotFoundError: No module named "
        "'no_such_package_here' (--debug shows all of it)",
    )
    ended = run("export", "ends:f", "-o", "f.jaxfn")
    assert (ended.code, ended.error) == (
        1,
        "importing ends failed: SystemExit: no (--debug shows all of it)",
    )


def test_verbose_says_what_takes_how_long(run: Run) -> None:
    ended = run("export", f"{M}:cube", "--args", "f32[n]", "-o", "f.jaxfn", "--verbose")
    assert ended.code == 0
    steps = [line.removeprefix("jax2tf-bridge: ").split(": ")[0] for line in ended.err.splitlines()]
    assert steps[0] == "starting JAX"
    assert steps[-1] == "writing f.jaxfn"


def test_every_dtype_is_one_of_jax() -> None:
    missing = [name for name in set(DTYPES.values()) if not hasattr(jax.numpy, name)]
    # ml_dtypes has them; JAX does not offer them all.
    assert all(hasattr(ml_dtypes, name) for name in missing)
    assert {DTYPES[short] for short in ("f16", "i2", "u64", "bf16")} <= set(DTYPES.values())
    assert np.dtype(DTYPES["i64"]) == np.int64


NEEDED = {
    "JAX": ("jax", "jax", ("jax2tf_bridge.from_jax", "jax2tf_bridge.loading")),
    "TensorFlow": ("tensorflow", "tensorflow-cpu", ("jax2tf_bridge.saving",)),
}
"""For each package: its module, the extra that installs it, and ours that import it."""


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ("JAX", "export tests.cli.models:cube --args f32[n] -o f.jaxfn"),
        ("JAX", "retarget cube.jaxfn --tensorflow 2.16"),
        ("JAX", "verify model --against tests.cli.models:cube"),
        ("TensorFlow", "save cube.jaxfn -o m"),
        ("TensorFlow", "publish cube.jaxfn -o m"),
    ],
)
@pytest.mark.usefixtures("cube")
def test_a_package_that_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, needs: str, words: str
) -> None:
    module, extra, ours = NEEDED[needs]
    monkeypatch.setitem(sys.modules, module, None)
    for name in [m for m in sys.modules if m.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    ended = run(*words.split())
    assert (ended.code, ended.error) == (
        1,
        f"jax2tf-bridge {words.split()[0]} needs {needs}, which is not installed here. Install it "
        f"with: pip install 'jax2tf-bridge[{extra}]'",
    )
