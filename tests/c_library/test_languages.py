"""Programs in C and C++ call compiled libraries, here and on another machine."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, compile_library
from scripts._env import ROOT
from tests.c_library.building import build_by_cmake, run
from tests.consumers.harness import NotAvailableError
from tests.house.snippets import snippets

pytestmark = [pytest.mark.slow, pytest.mark.consumers, pytest.mark.usefixtures("cmake")]

PROGRAMS = Path(__file__).parent / "programs"
PARAMS = {"kernel": np.random.default_rng(0).normal(size=(28, 10)).astype(np.float32)}
KERNEL = np.random.default_rng(1).normal(size=(3, 3, 2, 4)).astype(np.float32)
X = (0.1 * np.arange(28)).astype(np.float32)[None]
IMAGE = (np.arange(72) % 7 - 2).astype(np.float32).reshape(1, 6, 6, 2)
A, B = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
WARNINGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")


def predict(params: Any, x: Any) -> Any:
    return {"scores": jax.nn.softmax(x @ params["kernel"])}


def see(image: Any) -> Any:
    numbers = "NHWC", "HWIO", "NHWC"
    pixels = jax.lax.conv_general_dilated(
        image, jnp.asarray(KERNEL), (1, 1), "SAME", dimension_numbers=numbers
    )
    return {"pixels": pixels, "order": jnp.argsort(pixels[0, 0, :, 0])}


def mix(a: Any, b: Any) -> Any:
    # Programs call a function that makes bfloat16, which not every compiler has.
    return {"a": b[::-1], "b": a + b + (a > 9).astype(jnp.bfloat16)}


def compile_predict(folder: Path, **options: Any) -> Path:
    signatures = {
        "serving_default": Signature(predict, args=[X], polymorphic_shapes="(b, 28)"),
        "see": Signature(see, args=[IMAGE], takes_params=False),
        "mix": Signature(mix, args=[A, B], takes_params=False),
    }
    path = folder / "predict_lib"
    compile_library(path, signatures, params=PARAMS, sizes=[{"b": 1}], **options)
    return path


def check_lines(text: str) -> None:
    """Compares what call_predict.cc prints with JAX's results."""
    *lines, error, message = text.splitlines()
    expected = {**jax.jit(predict)(PARAMS, X), **jax.jit(see)(IMAGE), **jax.jit(mix)(A, B)}
    results = {name: numbers for name, *numbers in map(str.split, lines)}
    assert list(results) == ["scores", "order", "pixels", "a", "b"]
    for name, numbers in results.items():
        values = np.asarray(expected[name]).ravel()
        np.testing.assert_allclose(np.array(numbers, np.float64), values, 2e-5, 1e-5, err_msg=name)
    assert error == "4 x: expected 56 elements, got 28."
    assert message == "serving_default is not compiled for b=2. Its sizes: b=1."


@pytest.mark.checkout
def test_programs_in_c_and_cpp(tmp_path: Path) -> None:
    library = compile_predict(tmp_path)
    page = [*snippets((ROOT / "docs" / "c-library.md").read_text())]
    (in_c,) = [block.text for block in page if "int main" in block.text and block.language == "c"]
    (in_cpp,) = [block.text for block in page if block.language == "cpp"]
    # The program of a C project links the C++ library as well.
    app = tmp_path / "app"
    app.mkdir()
    (app / "page.c").write_text(in_c)
    (app / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\n"
        "project(app C)\n"
        f"add_subdirectory({library} predict)\n"
        "add_executable(page page.c)\n"
        "target_link_libraries(page predict)\n"
    )
    build = tmp_path / "build"
    build_by_cmake(app, build, "-DCMAKE_CXX_FLAGS_RELEASE=-O1")
    ones = np.zeros((1, 28), np.float32)
    ones[0, 0] = 1
    first = float(jax.jit(predict)(PARAMS, ones)["scores"][0, 0])
    assert float(run([build / "page"])) == pytest.approx(first, abs=1e-6)
    printed = run([build / "predict" / "predict_example"])
    assert "serving_default: scores = 0.1 0.1" in printed
    (app / "page.cc").write_text(in_cpp)
    for source in (app / "page.cc", PROGRAMS / "call_predict.cc"):
        program = build / source.stem
        command = ["g++", *WARNINGS, f"-I{library}", source, build / "predict" / "libpredict.a"]
        run([*command, "-o", program])
        if source.parent == app:
            assert float(run([program])) == pytest.approx(first, abs=1e-6)
        else:
            check_lines(run([program]))
    plain = ["-fno-exceptions", "-fno-rtti", "-fsyntax-only"]
    run(["g++", *WARNINGS, *plain, f"-I{library}", app / "page.cc"])


@pytest.mark.checkout
@pytest.mark.parametrize("flags", [[], ["-march=native"]], ids=["any-processor", "this-processor"])
def test_products_of_every_processor(tmp_path: Path, flags: list[str]) -> None:
    """Runs the kernels that programs choose from at run time, as far as this processor can."""
    program = tmp_path / "products"
    runtime = ROOT / "jax2tf_bridge" / "c_library" / "runtime"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", *flags, f"-I{runtime}"]
    run([*command, PROGRAMS / "products.cc", "-o", program])
    first, *others = run([program]).splitlines()
    assert first == "compiled_for"
    if flags or platform.machine() != "x86_64":
        assert others == []
        return
    processor = Path("/proc/cpuinfo").read_text()
    kinds = {"avx2": 6, "avx512f": 12}
    lanes = [kind for kind in kinds if f" {kind} " in processor]
    columns = kinds[lanes[-1]] if lanes else 4
    assert others == [*(kind.rstrip("f") for kind in lanes), f"chosen: {columns} columns"]


def test_another_machine(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if platform.machine() != "x86_64" or compiler is None or emulator is None:
        raise NotAvailableError(
            "no x86-64 with aarch64-linux-gnu-g++ and qemu-aarch64: C libraries for another "
            "machine were NOT tested"
        )
    library = compile_predict(tmp_path, target_triple="aarch64-unknown-linux-gnu")
    build = tmp_path / "build"
    options = [
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
        "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    ]
    build_by_cmake(library, build, *options)
    program = build / "call_predict"
    command = [compiler, *WARNINGS, "-static", f"-I{library}", PROGRAMS / "call_predict.cc"]
    run([*command, build / "libpredict.a", "-o", program])
    check_lines(run([emulator, program]))
