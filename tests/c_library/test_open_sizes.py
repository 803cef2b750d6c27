"""C libraries that take any sizes: the generated files, and programs in C that call them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, export, serialize, write_function
from jax2tf_bridge.c_library import write_open_library
from jax2tf_bridge.errors import SavingError

# Private: damages files at places of the format.
from jax2tf_bridge.serialization.jaxfn import _format
from scripts._env import ROOT
from tests.consumers.cpp_programs import LINKER
from tests.consumers.environments import process_environment
from tests.consumers.harness import NEWEST_TENSORFLOW, Harness, NotAvailableError
from tests.house.snippets import python_program, snippets

PROGRAMS = Path(__file__).parent / "programs"
RUNTIME = ("jaxfn.c", "jaxfn_file.c")
_random = np.random.default_rng(0)
NARROW = _random.integers(0, 4, (128, 128)).astype(ml_dtypes.float8_e4m3fn)
WEIGHTS = [_random.normal(size=shape).astype(np.float32) for shape in ((8, 256), (256, 8))]


def attend(x: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    hidden = jnp.tanh(x @ WEIGHTS[0]) @ WEIGHTS[1] * mask[..., None]
    return {"out": hidden.sum(1), "halves": x[:, ::2, 0]}


def export_attend(**options: Any) -> PortableFunction:
    arguments = np.ones((2, 3, 8), np.float32), np.ones((2, 3), bool)
    constraints = ["t >= 2"]
    options = {"polymorphic_constraints": constraints, **options}
    return export(attend, polymorphic_shapes=("(b, t, 8)", "(b, t)"), **options)(*arguments)


def export_kinds() -> PortableFunction:
    def kinds(
        small: jax.Array,
        large: jax.Array,
        precise: jax.Array,
        more: dict[str, jax.Array],
        number: jax.Array,
    ) -> tuple[jax.Array, ...]:
        doubled = [2 * x for x in (small, large, precise, more["halves"], more["floats"])]
        return (*doubled, more["complex"] * 1j, number + 2, precise > 1)

    with jax.enable_x64(True):
        return export(kinds, polymorphic_shapes=("(n,)", "(n,)", "(n,)", "(n,)", None))(
            np.ones(2, np.int8),
            np.ones(2, np.uint64),
            np.ones(2, np.float64),
            {
                "halves": np.ones(2, ml_dtypes.bfloat16),
                "floats": np.ones(2, np.float16),
                "complex": np.ones(2, np.complex64),
            },
            np.int32(1),
        )


def test_header(tmp_path: Path) -> None:
    write_open_library(export_attend(), tmp_path / "library")
    header = (tmp_path / "library" / "attend.h").read_text()
    inputs = """\
typedef struct {
  int64_t b;
  int64_t t;
  const float *x; /* [b, t, 8] */
  const uint8_t *mask; /* [b, t], 0 or 1 */
} attend_inputs;
"""
    outputs = """\
typedef struct {
  float *halves; /* [b, floordiv(t + 1, 2)] */
  float *out; /* [b, 8] */
} attend_outputs;
"""
    assert inputs in header
    assert outputs in header


def test_slots_are_those_of_the_format() -> None:
    source = (
        Path(write_open_library.__code__.co_filename).parent / "runtime" / RUNTIME[1]
    ).read_text()
    slots = re.findall(
        r"^  (FILE|FUNCTION|LOWERING|AVALS|TREES)_(\w+) = (\d+)", source, re.MULTILINE
    )
    assert len(slots) == 33
    for table, field, slot in slots:
        assert getattr(_format, f"{table.title()}Record")[field] == int(slot)
    assert f"#define NEWEST_VERSION {_format.VERSION}\n" in source
    kinds = ", ".join(re.findall(r"enum { (LEAF.*) };", source)).split(", ")
    assert [getattr(_format, kind) for kind in kinds] == list(range(8))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            lambda key: jax.random.normal(key),
            (jax.eval_shape(lambda: jax.random.key(0)),),
            "key is key<fry>[], and C has no type for key<fry>. Convert it in the function, for "
            "instance with astype, or for PRNG keys with jax.random.key_data.",
        ),
        (
            lambda x: {"a.b": x, "a_b": x},
            (np.ones(2, np.float32),),
            """The results of <lambda>: "['a.b']" and "['a_b']" both become a_b in C. """
            "Rename one of them.",
        ),
        (
            lambda b: b,
            (jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), "float32"),),
            "The arguments of <lambda>: 'the size b' and 'b' both become b in C. Rename one of "
            "them.",
        ),
        (
            lambda x: x @ jnp.asarray(NARROW).astype(jnp.float32),
            (np.ones(128, np.float32),),
            "<lambda> cannot become a C library: it captures constant_0, float8_e4m3fn[128,128], "
            "which the library cannot pass to TensorFlow. Capture another dtype, and convert it in "
            "the function.",
        ),
        (
            lambda x: (),
            (np.ones(2, np.float32),),
            "<lambda> cannot become a C library: it has no results. Return an array.",
        ),
    ],
)
def test_what_c_cannot_have(
    function: Any, arguments: tuple[Any, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SavingError, match=re.escape(message)):
        write_open_library(export(function)(*arguments), tmp_path / "library")
    assert not (tmp_path / "library").exists()


def test_names(tmp_path: Path) -> None:
    portable = export(jnp.sin)(np.ones(2, np.float32))
    with pytest.raises(SavingError, match=r"^'a-b' is not an identifier in C. Pass name='a_b'\.$"):
        write_open_library(portable, tmp_path / "library", name="a-b")
    with pytest.raises(SavingError, match=r"name main. Pass name='main_library'\.$"):
        write_open_library(portable, tmp_path / "library", name="main")
    with pytest.raises(SavingError, match=r"^The header math\.h .* Pass name='math_model'\.$"):
        write_open_library(portable, tmp_path / "library", name="math")
    write_function(tmp_path / "sine-1.jaxfn", portable)
    write_open_library(tmp_path / "sine-1.jaxfn", tmp_path / "library")
    assert (tmp_path / "library" / "sine_1.jaxfn").read_bytes() == serialize(portable, vjp_order=0)
    with pytest.raises(FileExistsError):
        write_open_library(portable, tmp_path / "library")
    write_open_library(portable, tmp_path / "library", overwrite=True, name="other")
    assert not (tmp_path / "library" / "sine_1.h").exists()


def find_gcc() -> str:
    gcc = shutil.which("gcc")
    if gcc is None:
        raise NotAvailableError("no gcc on the PATH: C libraries with open sizes were NOT tested")
    return gcc


def find_tensorflow(harness: Harness) -> Path:
    python = harness.consumer_python(NEWEST_TENSORFLOW)
    (folder,) = python.parent.parent.glob("lib/python3*/site-packages/tensorflow")
    return folder


def run(*words: object, **options: str) -> subprocess.CompletedProcess[str]:
    environment = process_environment(options)
    command = list(map(str, words))
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.consumers
def test_damaged_files(tmp_path: Path) -> None:
    gcc = find_gcc()
    write_open_library(export_attend(), tmp_path / "library")
    program, library = tmp_path / "read", tmp_path / "library"
    sources = PROGRAMS / "read_damaged.c", library / "jaxfn_file.c"
    checks = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    done = run(gcc, "-g", *checks, f"-I{library}", *sources, "-o", program)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(program, library / "attend.jaxfn", tmp_path / "copy.jaxfn", 300, 1)
    assert (done.returncode, done.stderr) == (0, "")
    whole, cut, flipped, sealed = map(int, done.stdout.split())
    assert (whole, cut, flipped) == (1, 0, 0)
    # Some of the changes concern what the reader does not use, such as names of captured arrays.
    assert 0 < sealed < 150


@pytest.mark.slow
@pytest.mark.consumers
def test_calls_from_c(harness: Harness, tmp_path: Path) -> None:
    gcc = find_gcc()
    write_open_library(export_attend(), tmp_path / "attend")
    write_open_library(export_kinds(), tmp_path / "kinds")
    damaged = bytearray((tmp_path / "attend" / "attend.jaxfn").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged.jaxfn").write_bytes(damaged)
    tensorflow = find_tensorflow(harness)
    folders = tmp_path / "attend", tmp_path / "kinds"
    sources = [
        PROGRAMS / "call_open.c",
        *(folder / f"{folder.name}.c" for folder in folders),
        *(folders[0] / name for name in RUNTIME),
    ]
    libraries = "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-lpthread"
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-isystem{tensorflow}/include"]
    options += [f"-I{folder}" for folder in folders]
    links = f"-L{tensorflow}", *LINKER, *libraries, f"-Wl,-rpath,{tensorflow}"
    done = run(gcc, *options, *sources, *links, "-o", tmp_path / "call")
    assert (done.returncode, done.stderr) == (0, "")
    files = folders[0] / "attend.jaxfn", folders[1] / "kinds.jaxfn", tmp_path / "damaged.jaxfn"
    logs = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "xla_compiler=1"}
    done = run(tmp_path / "call", *files, **logs)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # attend: two sizes, and one in the thread with a handle of its own; kinds: one.
    assert len(re.findall("Building new computation", done.stderr)) == 4
    for sizes in ((2, 3), (4, 5), (2, 3)):
        _check_attend(lines, *sizes)
    assert lines[:5] == [
        "3 The size b is 0. Pass a size of at least 1.",
        "3 The sizes t = 1 do not satisfy the constraint t >= 2. Pass other sizes.",
        "3 x has a negative size, or too many elements. Pass other sizes.",
        "4 x is NULL. Pass an array of 192 bytes.",
        "thread agrees",
    ]
    assert lines[5] == "thread agrees"
    del lines[:6]
    _check_attend(lines, 2, 3)
    assert lines[0] == (
        "-6 10, 18446744073709551614 14, 0.2 2e+300, 4000 c080, 4000 c400, -2 1 -4 3, 42, 0 1"
    )
    types = "(float32[b,t,8], bool[b,t]) -> (float32[b,floordiv(t + 1, 2)], float32[b,8])"
    assert lines[1].startswith(f"2 {files[1]} holds a function (int8[n], ")
    assert f"but this library is for {types}" in lines[1]
    assert lines[1].endswith("Write the library again for this file.")
    assert lines[2].startswith("4 The handle is not open. ")
    assert lines[3] == (
        f"2 {files[2]} cannot be read as a .jaxfn file: the SHA-256 of an array is not the one in "
        "its description. The bytes are cut short or damaged: copy them anew, or write the file "
        "again."
    )
    assert len(lines) == 5


def _check_attend(lines: list[str], b: int, t: int) -> None:
    x = (np.arange(b * t * 8) % 7).astype(np.float32).reshape(b, t, 8) / 7
    mask = (np.arange(b * t) % 3 != 1).reshape(b, t)
    for name in ("out", "halves"):
        label, *numbers = lines.pop(0).split()
        assert label == name
        expected = np.asarray(attend(jnp.asarray(x), jnp.asarray(mask))[name]).ravel()
        np.testing.assert_allclose(np.array(numbers, np.float32), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.consumers
@pytest.mark.checkout
def test_the_page(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cmake") is None:
        raise NotAvailableError("no cmake on the PATH: docs/c-library-open-sizes.md was NOT tested")
    find_gcc()
    page = (ROOT / "docs" / "c-library-open-sizes.md").read_text()
    blocks = [block.text for block in snippets(page)]
    _, program, project, commands, output, _ = blocks  # the last one is the command line
    monkeypatch.chdir(tmp_path)
    exec(compile(python_program(page), "c-library-open-sizes.md", "exec"), {"__name__": "page"})
    (tmp_path / "call.c").write_text(program)
    (tmp_path / "CMakeLists.txt").write_text(project)
    settings = {"TENSORFLOW": str(find_tensorflow(harness)), "LDFLAGS": " ".join(LINKER)}
    done = run("bash", "-ec", commands, **settings)
    assert (done.returncode, done.stdout.endswith(output)) == (0, True), done.stdout + done.stderr
    example = tmp_path / "predict" / "main.c"
    done = run(find_gcc(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", example)
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "build" / "predict"
    done = run("cmake", "--install", folder, "--prefix", tmp_path / "installed")
    assert (done.returncode, done.stderr) == (0, "")
    assert "-lpredict" in (tmp_path / "installed/lib/pkgconfig/predict.pc").read_text()
