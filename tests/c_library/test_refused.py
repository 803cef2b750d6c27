"""compile_library refuses what tfcompile cannot do, and says how to mend it, before it compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    Padding,
    Processing,
    Signature,
    compile_library,
    load_library,
    save,
)

# Private: takes TensorFlow's tool away, and names that no signature can have.
from jax2tf_bridge.c_library import _tf_compat, write_open_library
from jax2tf_bridge.c_library._cpp_header import write_cpp_header
from jax2tf_bridge.c_library._interface import check_identifiers, make_identifier
from jax2tf_bridge.c_library._read import read_interface
from jax2tf_bridge.c_library._sources import write_header, write_wrapper
from jax2tf_bridge.errors import (
    FileFormatError,
    ModuleError,
    SavingError,
    ShapeError,
    UnsupportedByTargetError,
)
from tests.fresh_process import run_python
from tests.house.seams import take_away

X = np.ones((4, 3), np.float32)


def halve(x: Any, mask: Any) -> Any:
    return {"total": jnp.where(mask, x, 0), "int": x.astype(jnp.bfloat16)}


def pair(x: Any) -> Any:
    return jnp.reshape(x, (-1, 2, 3))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "1"
    signatures = {
        "serving_default": Signature(
            halve,
            args=[X, X > 0],
            polymorphic_shapes=("(b, 3)", "(b, 3)"),
            padding=Padding(buckets={"b": [2, 8]}, mask="mask"),
        ),
        "pair": Signature(pair, args=[X], polymorphic_shapes="(2*n, 3)"),
    }
    save(folder, signatures, vjp_order=0, warm_up=False)
    return folder


def test_header_has_sizes_arrays_and_what_is_compiled(model: Path) -> None:
    header = write_header(read_interface(model, "net", None, [{"n": 3}, {"b": 1, "n": 2}]))
    assert (
        """\
   Compiled for b=1; smaller ones are padded.
   Outputs are memory of the caller; an output that is NULL is left out. The memory of an output
   may be that of an input, but not that of another output. */
typedef struct {
  int64_t b;
  const float *x; /* [b, 3] */
} net_inputs;
typedef struct {
  uint16_t *int_; /* [b, 3], bits of bfloat16 */
  float *total; /* [b, 3] */
} net_outputs;
net_status net_run(net_handle *handle, const net_inputs *inputs,
    const net_outputs *outputs);
"""
        in header
    )
    assert "   Compiled for n=2 or n=3.\n" in header
    assert "net_status net_pair_run(net_handle *handle, const net_pair_inputs *inputs,\n" in header


def test_cpp_header_has_types_and_computes_shapes(model: Path) -> None:
    interface = read_interface(model, "net", None, [{"n": 3}, {"b": 1, "n": 2}])
    header = write_cpp_header(interface)
    assert "namespace net_lib {" in header
    start, end = header.index("namespace pair {"), header.index("}  // namespace pair")
    assert "  Span<const float> x;  // [2*n, 3]\n" in header[start:end]
    assert "  result.inputs.x = {{detail::maximum(0, (sizes.n * INT64_C(2))), 3}};" in header[
        start:end
    ].replace("(INT64_C(2) * sizes.n)", "(sizes.n * INT64_C(2))")
    assert "  Span<std::uint16_t> int_;  // [b, 3]\n" in header[end:]
    assert "net_status run(" in header
    assert "pair::Results pair_call(const pair::Inputs &inputs) {" in header
    # The namespace has a class of this name.
    renamed = replace(interface.signatures[0], name="Library", prefix="net_Library")
    header = write_cpp_header(replace(interface, signatures=(renamed,)))
    assert "namespace Library_ {" in header
    assert "net_status Library_run(" in header


def test_wrapper_computes_shapes_and_pads(model: Path) -> None:
    interface = read_interface(model, "net", None, [{"n": 3}])
    pair, default = interface.signatures
    assert default.sizes == ({"b": 2}, {"b": 8})  # the buckets
    wrapper = write_wrapper(interface, [[0], [0, 1]], separate=False)
    assert "shapes[0] = maximum(0, (sizes[0] * INT64_C(2)));" in wrapper.replace(
        "(INT64_C(2) * sizes[0])", "(sizes[0] * INT64_C(2))"
    )
    assert "const bool net_padded[] = {true};" in wrapper
    assert "const bool net_pair_padded[] = {false};" in wrapper
    assert pair.format_sizes() == "n=3"


def test_signatures_and_sizes_in_other_types(model: Path) -> None:
    for names in ("pair", ["pair", "pair"], ("pair",)):
        sizes: list[Any] = [{"n": np.int64(3)}, {"n": 3}]
        interface = read_interface(model, "net", names, sizes)
        assert [s.name for s in interface.signatures] == ["pair"]
        assert r"\"sizes\":[{\"n\":3}]" in write_wrapper(interface, [[0]], separate=False)


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        (
            [{"b": 1}],
            SavingError,
            "The signature pair has open sizes (n), and a program is compiled for fixed ones. Pass "
            "sizes for each program: sizes=[{'n': 8}]",
        ),
        (
            [{"b": 1, "m": 2}],
            SavingError,
            "sizes: no signature has the size m. Their open sizes: b, n.",
        ),
        ([{"n": 0}], SavingError, "sizes: n must be an integer from 1 to 2147483647. Got: 0."),
        (
            [{"n": 2**31}],
            SavingError,
            "sizes: n must be an integer from 1 to 2147483647. Got: 2147483648.",
        ),
        ([{"n": "1"}], SavingError, "sizes: n must be an integer from 1 to 2147483647. Got: '1'."),
        (
            {"n": [1, 32]},
            SavingError,
            "sizes must be a list with a mapping for each program, such as [{'b': 1}, {'b': 32}]. "
            "Got: {'n': [1, 32]}.",
        ),
        (
            None,
            SavingError,
            "sizes must be a list with a mapping for each program, such as [{'b': 1}, {'b': 32}]. "
            "Got: None.",
        ),
        (
            [1, 32],
            SavingError,
            "sizes must be a list with a mapping for each program, such as [{'b': 1}, {'b': 32}]. "
            "Got: [1, 32].",
        ),
    ],
)
def test_sizes(model: Path, sizes: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        compile_library(model / "lib", model, sizes=sizes)
    assert str(raised.value) == text


def test_unknown_signature(model: Path) -> None:
    with pytest.raises(SavingError, match="The model has no signature 'pear': did you mean 'pair'"):
        compile_library(model / "lib", model, signatures=["pear"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"name": "Math"},
            "The header math.h of the library would hide the system's. Pass name='Math_model'.",
        ),
        (
            {"name": "m"},
            "A build already has a target or a library named m. Pass name='m_model'.",
        ),
        (
            {"name": "a-b"},
            "'a-b' prefixes all names of the library, and is not an identifier in C. Pass "
            "name='a_b'.",
        ),
        (
            {"shared": True, "target_triple": "aarch64-unknown-linux-gnu"},
            "shared builds a library for this machine, so it cannot be combined with "
            "target_triple. Remove one of them. For another machine, build the folder with CMake.",
        ),
        ({"weights": "file"}, "weights must be 'embedded' or 'separate'. Got: 'file'."),
        (
            {"params": {}},
            "params are the weights of functions, and a SavedModel has weights of its own. Leave "
            "them out.",
        ),
    ],
)
def test_options(model: Path, options: Any, text: str) -> None:
    with pytest.raises(SavingError) as raised:
        compile_library(model / "lib", model, **options)
    assert str(raised.value) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"target_triple": "arch64-unknown-linux-gnu"},
            "TensorFlow's LLVM does not compile for 'arch64-unknown-linux-gnu'. Pass another "
            "target_triple, such as aarch64-unknown-linux-gnu.",
        ),
        (
            {"target_triple": "aarch64-unknown-linux-gnu", "target_cpu": "cortex"},
            "LLVM does not know the processor 'cortex' for aarch64-unknown-linux-gnu. Pass another "
            "target_cpu, or leave it out to support every processor of the architecture.",
        ),
    ],
)
def test_unknown_machines(tmp_path: Path, options: Any, text: str) -> None:
    twice = Signature(lambda x: x * 2, args=[X])
    with pytest.raises(SavingError) as raised:
        compile_library(tmp_path / "twice_lib", twice, **options)
    assert str(raised.value) == text
    assert not (tmp_path / "twice_lib").exists()


def test_constraints_of_sizes(tmp_path: Path) -> None:
    cut = Signature(
        lambda x: x[2:], args=[X], polymorphic_shapes="(b, 3)", polymorphic_constraints=["b >= 3"]
    )
    with pytest.raises(ShapeError, match=r"cannot have b=2: it needs b >= 3\. Pass other sizes"):
        compile_library(tmp_path / "cut_lib", cut, sizes=[{"b": 2}])


def _processes() -> Signature:
    return Signature(
        lambda x: x * 2,
        args=[X],
        polymorphic_shapes="(b, 3)",
        processing=Processing(
            preprocess=lambda text: tf.reshape(tf.strings.to_number(text), (-1, 3)),
            inputs={"text": tf.TensorSpec([None], tf.string)},
        ),
    )


def _transforms() -> Signature:
    return Signature(lambda x: jnp.abs(jnp.fft.fft(x)), args=[X])


def _returns_nothing() -> Signature:
    return Signature(lambda x: (), args=[X])


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (_processes, "has `processing`, which runs in TensorFlow and cannot be compiled. Save a"),
        (_transforms, "has a Fourier transform, which tfcompile cannot compile. Compute it"),
        (_returns_nothing, "has no outputs, which tfcompile cannot compile. Return an array"),
    ],
)
def test_functions(tmp_path: Path, signature: Any, text: str) -> None:
    with pytest.raises(UnsupportedByTargetError, match=text):
        compile_library(tmp_path / "f_lib", signature())
    assert not (tmp_path / "f_lib").exists()


def test_saved_processing(tmp_path: Path) -> None:
    save(tmp_path / "m", _processes())
    with pytest.raises(UnsupportedByTargetError, match=r"has `processing` around (text|x), which"):
        compile_library(tmp_path / "f_lib", tmp_path / "m", sizes=[{"b": 1}])


def test_saved_processing_with_the_names_of_the_function(tmp_path: Path) -> None:
    processing = Processing(
        preprocess=lambda x: x + 1, inputs={"x": tf.TensorSpec([None, 3], tf.float32)}
    )
    signature = Signature(
        lambda x: x * 2, args=[X], polymorphic_shapes="(b, 3)", processing=processing
    )
    save(tmp_path / "m", signature)
    with pytest.raises(UnsupportedByTargetError, match=r"has `processing`, which runs in"):
        compile_library(tmp_path / "f_lib", tmp_path / "m", sizes=[{"b": 1}])


def test_errors_name_the_argument_source(tmp_path: Path) -> None:
    sources: list[Any] = [[_transforms()], {}]
    for source in sources:
        with pytest.raises(SavingError, match=r"^source must be a path, a Signature or a function"):
            compile_library(tmp_path / "f_lib", source)


def test_changed_weights(tmp_path: Path) -> None:
    def learn(params: Any, x: Any) -> Any:
        return jnp.sum(x), {"w": params["w"] + x}

    step = Signature(learn, args=[X], updates_params=True)
    with pytest.raises(UnsupportedByTargetError) as raised:
        compile_library(tmp_path / "f_lib", step, params={"w": X})
    assert str(raised.value) == (
        "The signature serving_default assigns new values to params['w'], which tfcompile cannot "
        "compile. Leave it out by naming the signatures to compile, or return the new weights as "
        "outputs of a function that takes them as inputs."
    )


def test_other_models(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "m"))
    with pytest.raises(FileFormatError, match=r"is not a SavedModel that jax2tf_bridge.save wrote"):
        compile_library(tmp_path / "f_lib", tmp_path / "m")


def test_names_that_become_equal() -> None:
    names = [(name, make_identifier(name)) for name in ("a.b", "1", "double", "a_b")]
    assert names[:3] == [("a.b", "a_b"), ("1", "_1"), ("double", "double_")]
    assert make_identifier("mutable") == "mutable_"  # a keyword of C++ only
    with pytest.raises(SavingError) as raised:
        check_identifiers("inputs of f", names)
    text = "inputs of f: 'a.b' and 'a_b' both become a_b in C. Rename one of them."
    assert str(raised.value) == text


def test_without_tfcompile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, _tf_compat.SEAM, "Compile")
    with pytest.raises(ModuleError, match=r"Install tensorflow-cpu 2.21 for Linux or macOS"):
        compile_library(model / "lib", model, sizes=[{"n": 8}])


def test_older_tensorflow(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf, "__version__", "2.19.1")
    with pytest.raises(
        ModuleError, match=r"^The installed TensorFlow 2\.19\.1 has no tfcompile whose"
    ):
        compile_library(model / "lib", model, sizes=[{"n": 8}])


def test_existing_folder_and_missing_library(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError) as raised:
        compile_library(model, model)
    assert str(raised.value) == f"{model} already exists; overwrite=True replaces it"
    with pytest.raises(FileExistsError, match=r"is not replaced: it has other contents, and no "):
        compile_library(model, model, overwrite=True)
    absent = tmp_path / "absent"
    for call, text in (
        (load_library, "Write it with compile_library(..., shared=True)"),
        (
            lambda path: compile_library(tmp_path / "lib", path),
            "Pass the folder of a SavedModel, or the path of a .jaxfn file",
        ),
        (
            lambda path: write_open_library(path, tmp_path / "lib"),
            "Pass the path of a .jaxfn file",
        ),
    ):
        with pytest.raises(FileNotFoundError) as missing:
            call(absent)
        assert str(missing.value) == f"{absent} does not exist. {text}"
    with pytest.raises(IsADirectoryError) as is_folder:
        write_open_library(model, tmp_path / "lib")
    assert str(is_folder.value) == f"{model} is a folder. Pass the path of a .jaxfn file"
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(FileFormatError, match="is not a library that compile_library built"):
        load_library(tmp_path / "text.so")


def test_compiler_is_looked_for_first(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "absent")
    with pytest.raises(SavingError, match=r"but the PATH has none\. Install g\+\+, or set CXX"):
        compile_library(model / "lib", model, shared=True)


def test_loading_a_library_needs_numpy_alone() -> None:
    run_python(
        """
        import sys
        from jax2tf_bridge import load_library
        assert load_library
        assert not {"flatbuffers", "google", "jax", "tensorflow"} & sys.modules.keys()
        """
    )
