"""Sidecars are read back as they were written, checked, and bounded."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.errors import FileFormatError, SavingError, SerializationError
from jax2tf_bridge.portable import Aval, GradientOnDemand

# Private: its limit is lowered, and its text is compared without a model.
from jax2tf_bridge.saved_model import (
    RECORDS,
    SIDECAR,
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
    VariableEntry,
    _sidecar,
    read_sidecar,
    write_sidecar,
)
from tests.sampling import examples
from tests.serialization.records import changed, constant, simple, vjp_of, with_vjps

TABLE = constant(Aval((2, 3), "float32"), bytes(range(24)), "table")
ENTRY = ConstantEntry(TABLE.digest, "float32", (2, 3), "constants/table/.ATTRIBUTES/VARIABLE_VALUE")
WEIGHT = VariableEntry("params['w']", "params/w", "params/w/.ATTRIBUTES/V", "float32", (3, 4), True)


def signature(**changes: Any) -> SignatureEntry:
    x, y = ArrayEntry("x", "float32", "(b, 28)"), ArrayEntry("['y']", "float32", "(b,)")
    return replace(SignatureEntry({"x": x}, {"y": y}, True, 1, {"b": (1, 8)}), **changes)


SIDECAR_OF_TWO = Sidecar(
    bridge="0.1.0",
    tensorflow="2.21.0",
    signatures={
        "serving_default": signature(
            masks={"mask": ArrayEntry("mask", "bool", "(b,)")},
            unchecked_padding=("b",),
            pad_values={"x": "-inf"},
            batching={"num_batch_threads": 2, "batch_timeout_micros": 0},
            updates={"[1]['w']": "params['w']"},
        ),
        "é / Ü": signature(vjp_order=0, buckets=None),
    },
    variables=(WEIGHT,),
    constants=(ENTRY,),
)


def portable() -> PortableFunction:
    """A function with a lifted constant, and VJPs to the second order."""
    return with_vjps(replace(simple(), lifted_constants=(TABLE,)), b"first", b"second")


RECORDS_OF_TWO = {"serving_default": portable(), "é / Ü": portable()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_sidecar(tmp_path, SIDECAR_OF_TWO, RECORDS_OF_TWO)
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(FileFormatError) as caught:
        read_sidecar(folder)
    text = str(caught.value)
    assert caught.value.file is not None
    assert text.startswith(caught.value.file)
    assert len(text) < 2000
    return text


def test_what_is_read_is_what_was_written(saved: Path) -> None:
    found = read_sidecar(saved)
    assert found is not None
    sidecar, portables = found
    assert sidecar == SIDECAR_OF_TWO
    assert portables.keys() == RECORDS_OF_TWO.keys()
    default, other = portables["serving_default"], portables["é / Ü"]
    # As many gradients as the signature has, and no arrays.
    assert default.vjp().module.data == b"first"
    assert not default.vjp().has_vjp
    assert not other.has_vjp
    for function in (default, default.vjp(), other):
        assert function.lifted_constants == (TABLE,)
        assert function.lifted_constants[0].data is None


def test_the_json_has_this_form(saved: Path) -> None:
    text = (saved / "assets.extra" / "jax2tf_bridge.json").read_text()
    facts = json.loads(text)
    assert text == json.dumps(facts, indent=2, sort_keys=True) + "\n"
    assert facts == {
        "format": 5,
        "bridge": "0.1.0",
        "tensorflow": "2.21.0",
        "signatures": {
            "serving_default": {
                "record": "serving_default.jaxfn",
                "inputs": {"x": {"path": "x", "dtype": "float32", "shape": "(b, 28)"}},
                "outputs": {"y": {"path": "['y']", "dtype": "float32", "shape": "(b,)"}},
                "takes_params": True,
                "vjp_order": 1,
                "buckets": {"b": [1, 8]},
                "masks": {"mask": {"path": "mask", "dtype": "bool", "shape": "(b,)"}},
                "unchecked_padding": ["b"],
                "pad_values": {"x": "-inf"},
                "any_padding": False,
                "batching": {"num_batch_threads": 2, "batch_timeout_micros": 0},
                "updates": {"[1]['w']": "params['w']"},
            },
            "é / Ü": {
                "record": "_.jaxfn",
                "inputs": {"x": {"path": "x", "dtype": "float32", "shape": "(b, 28)"}},
                "outputs": {"y": {"path": "['y']", "dtype": "float32", "shape": "(b,)"}},
                "takes_params": True,
                "vjp_order": 0,
                "buckets": None,
                "masks": {},
                "unchecked_padding": [],
                "pad_values": {},
                "any_padding": False,
                "batching": None,
                "updates": {},
            },
        },
        "variables": [
            {
                "path": "params['w']",
                "name": "params/w",
                "key": "params/w/.ATTRIBUTES/V",
                "dtype": "float32",
                "shape": [3, 4],
                "trainable": True,
            }
        ],
        "constants": [
            {"digest": TABLE.digest, "dtype": "float32", "shape": [2, 3], "key": ENTRY.key}
        ],
    }
    portables = saved / "assets.extra" / "jax2tf_bridge"
    assert sorted(os.listdir(portables)) == ["_.jaxfn", "serving_default.jaxfn"]
    assert TABLE.data is not None
    assert TABLE.data not in (portables / "_.jaxfn").read_bytes()


def test_a_saved_model_without_one(tmp_path: Path) -> None:
    assert read_sidecar(tmp_path) is None
    (tmp_path / "assets.extra").mkdir()
    assert read_sidecar(tmp_path) is None


def test_names_that_are_no_names_of_files(tmp_path: Path) -> None:
    names = ["../up", "..", "a/b", "a\\b", "a_b", "A_B", "", ".", "x" * 300, "x" * 301, "ÄÖ", "\n"]
    sidecar = Sidecar("1", "2", {name: signature(vjp_order=0) for name in names})
    modules = {name: changed(simple(), module=name.encode()) for name in names}
    write_sidecar(tmp_path, sidecar, modules)
    found = read_sidecar(tmp_path)
    assert found is not None
    assert {name: r.module.data for name, r in found[1].items()} == {n: n.encode() for n in names}
    files = os.listdir(tmp_path / RECORDS)
    assert len({file.lower() for file in files}) == len(names)
    assert os.listdir(tmp_path) == ["assets.extra"]


def test_mappings_of_every_kind_and_lazy_gradients(tmp_path: Path) -> None:
    vjp = vjp_of(simple(), module=b"the VJP")
    lazy = replace(simple(), gradient=GradientOnDemand(lambda: vjp))
    sidecar = Sidecar("1", "2", MappingProxyType({"f": signature()}))
    write_sidecar(tmp_path, sidecar, {"f": lazy})
    found = read_sidecar(tmp_path)
    assert found is not None
    assert found[0] == sidecar
    assert found[1]["f"].vjp().module.data == b"the VJP"


ODD: dict[str, Any] = {"name": b"w"}
LIST: dict[str, Any] = {"shape": [3]}


def two(**changes: Any) -> Sidecar:
    return replace(SIDECAR_OF_TWO, **changes)


@pytest.mark.parametrize(
    ("sidecar", "text"),
    [
        (two(signatures={}), "it has the signatures [], and the portable functions are th"),
        (
            two(constants=()),
            "the function of the signature 'serving_default' has the lifted constant 'table', "
            f"float32[2,3], with the digest {TABLE.digest}, which is not among the constants.",
        ),
        (two(constants=(replace(ENTRY, shape=(6,)),)), "which is not among the constants"),
        (two(variables=(WEIGHT, WEIGHT)), "variables: the name 'params/w' occurs twice"),
        (
            two(variables=(WEIGHT, replace(WEIGHT, name="v"))),
            "variables and constants: the key 'params/w/.ATTRIBUTES/V' occurs twice",
        ),
        (two(constants=(replace(ENTRY, digest="12"),)), "constants[0].digest: expected a SHA-256"),
        (two(bridge="\ud800"), "bridge: expected text, got '\\ud800'"),
        (two(variables=(replace(WEIGHT, shape=(-1,)),)), "variables[0].shape[0]: expected a whole"),
        (two(variables=(replace(WEIGHT, **ODD),)), "JSON cannot hold one of its values: Object of"),
        (two(variables=(replace(WEIGHT, **LIST),)), "it changes when it is read back"),
    ],
)
def test_a_sidecar_that_could_not_be_read_is_not_written(
    sidecar: Sidecar, text: str, tmp_path: Path
) -> None:
    with pytest.raises(SavingError) as caught:
        write_sidecar(tmp_path, sidecar, RECORDS_OF_TWO)
    assert str(caught.value).startswith(f"{SIDECAR} cannot be written: ")
    assert text in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_gradients_that_are_not_there(tmp_path: Path) -> None:
    sidecar = Sidecar("1", "2", {"f": signature(vjp_order=3)}, constants=(ENTRY,))
    with pytest.raises(SerializationError, match="only VJPs up to order 2 exist"):
        write_sidecar(tmp_path, sidecar, {"f": portable()})


def test_size_is_bounded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (saved / SIDECAR).stat().st_size
    monkeypatch.setattr(_sidecar, "_MAX_SIDECAR_BYTES", size)
    assert read_sidecar(saved) is not None
    monkeypatch.setattr(_sidecar, "_MAX_SIDECAR_BYTES", size - 1)
    assert f"it has {size} bytes, and at most {size - 1} are read" in refusal(saved)
    with pytest.raises(SavingError, match=f"it has {size} bytes, and at most {size - 1} are read"):
        write_sidecar(saved, SIDECAR_OF_TWO, RECORDS_OF_TWO)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "it is not JSON: Expecting value"),
        (b"[" * 1_000_000, "its values are nested too deeply"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"1" * 10_000, "it is not JSON: Exceeds the limit"),
        (b'{"a": 1, "a": 2}', "it is not JSON: an object has a field twice: a, a"),
        (b"[]", "the whole: expected an object with the field format, got []"),
        (
            b'{"format": 1}',
            "the whole: expected the fields bridge, constants, format, signatures, ",
        ),
        (b'{"format": 0}', "format: expected a whole number from 1 to "),
        (b'{"format": 1.0}', "format: expected a whole number from 1 to "),
    ],
)
def test_json_that_is_none(data: bytes, text: str, saved: Path) -> None:
    (saved / SIDECAR).write_bytes(data)
    found = refusal(saved)
    assert found.startswith(f"{saved / SIDECAR} is damaged: {text}")
    assert found.endswith(". Copy the SavedModel anew, or save it again.")


def test_a_newer_format(saved: Path) -> None:
    (saved / SIDECAR).write_text('{"format": 6, "what": "ever"}')
    assert refusal(saved) == (
        f"{saved / SIDECAR} is written by format 6, this bridge reads up to 5: upgrade "
        "jax2tf-bridge."
    )


@pytest.mark.parametrize(
    ("version", "masks", "unchecked", "pad_values"),
    [(1, [], (), {}), (2, ["mask"], ("b",), {}), (3, ["mask"], ("b",), {"x": "-inf"})],
)
def test_older_formats_are_read(
    version: int,
    masks: list[str],
    unchecked: tuple[str, ...],
    pad_values: dict[str, str],
    saved: Path,
) -> None:
    facts = json.loads((saved / SIDECAR).read_text())
    facts["format"] = version
    for entry in facts["signatures"].values():
        del entry["any_padding"], entry["batching"], entry["updates"]
        if version < 3:
            del entry["pad_values"]
        if version == 1:
            del entry["masks"], entry["unchecked_padding"]
    (saved / SIDECAR).write_text(json.dumps(facts))
    found = read_sidecar(saved)
    assert found is not None
    entry = found[0].signatures["serving_default"]
    assert (entry.buckets, list(entry.masks)) == ({"b": (1, 8)}, masks)
    assert (entry.unchecked_padding, entry.pad_values) == (unchecked, pad_values)
    assert entry.batching is None
    assert not entry.any_padding
    assert not entry.updates


def test_pad_values_are_numbers_of_every_kind() -> None:
    texts = {"a": "-1", "b": "1e-09", "c": "-inf", "d": "(1+2j)", "e": str(2**63)}
    entry = signature(pad_values=texts, unchecked_padding=("b",))
    numbers = {"a": -1, "b": 1e-9, "c": float("-inf"), "d": 1 + 2j, "e": 2**63}
    assert entry.pad_numbers() == numbers
    assert isinstance(entry.pad_numbers()["a"], int)
    assert entry.only_buckets() == {"b": (1, 8)}


def change_sidecar(folder: Path, change: Callable[[Any], object]) -> None:
    facts = json.loads((folder / SIDECAR).read_text())
    change(facts)
    (folder / SIDECAR).write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("bridge", 3, "bridge: expected text, got 3"),
        ("signatures", [], "signatures: expected an object, got []"),
        ("signatures.f", {}, "signatures['f']: expected the fields any_padding, batching, buc"),
        ("signatures.f.record", "../f.jaxfn", "expected the name of a .jaxfn file, without a fol"),
        ("signatures.f.record", "f", "expected the name of a .jaxfn file, without a folder, got "),
        (
            "signatures.f.record",
            "no.jaxfn",
            "it names assets.extra/jax2tf_bridge/no.jaxfn, wh",
        ),
        (
            "signatures.f.record",
            "g.jaxfn",
            "signatures: the portable function 'g.jaxfn' occurs twice",
        ),
        ("signatures.f.inputs.x", "x", "signatures['f'].inputs['x']: expected an object, got 'x'"),
        ("signatures.f.inputs.x.shape", [3], "inputs['x'].shape: expected text, got [3]"),
        ("signatures.f.takes_params", 1, "takes_params: expected true or false, got 1"),
        ("signatures.f.vjp_order", True, "vjp_order: expected a whole number from 0 to 200, got "),
        ("signatures.f.vjp_order", 2, "'f' has gradients to order 2, and its function to order"),
        ("signatures.f.buckets.b", [8, 1], "buckets['b']: expected sizes in ascending order, got"),
        ("signatures.f.buckets.b", [], "buckets['b']: expected sizes in ascending order, got []"),
        ("signatures.f.buckets.b", [0], "buckets['b'][0]: expected a whole number from 1 to "),
        ("signatures.f.pad_values", {"x": "one"}, "pad_values['x']: expected a number as text, go"),
        ("signatures.f.pad_values", {"x": "1_0"}, "pad_values['x']: expected a number as text, go"),
        ("signatures.f.pad_values", {"x": " 1\n"}, "pad_values['x']: expected a number as text, "),
        ("signatures.f.pad_values", {"x": "\u0661"}, "pad_values['x']: expected a number as text"),
        ("signatures.f.pad_values", {"x": "1" * 100_000}, "['x']: expected a number as text, got"),
        (
            "signatures.f.pad_values",
            {"y": "1"},
            "pad_values['y']: expected the name of an input (x), ",
        ),
        ("signatures.f.pad_values", {"x": "1j"}, "['x']: expected a number that float32 holds, g"),
        ("signatures.f.pad_values", {"x": 1}, "pad_values['x']: expected text, got 1"),
        ("variables", {}, "variables: expected a list, got {}"),
        ("variables.0.trainable", None, "variables[0].trainable: expected true or false, got None"),
        ("variables.0.shape", [2**63], "variables[0].shape[0]: expected a whole number from 0 to"),
        ("constants.0.digest", "A" * 64, "constants[0].digest: expected a SHA-256 in hexadecimal"),
        ("constants", [], "which is not among the constants"),
        ("more", 1, "the whole: expected the fields bridge, "),
    ],
)
def test_damaged_fields(path: str, value: Any, text: str, tmp_path: Path) -> None:
    sidecar = two(signatures={"f": signature(), "g": signature()})
    write_sidecar(tmp_path, sidecar, {"f": portable(), "g": portable()})

    def change(facts: Any) -> None:
        *parts, last = path.split(".") if ".jaxfn" not in path else [path]
        for part in parts:
            facts = facts[int(part)] if isinstance(facts, list) else facts[part]
        facts[last] = value

    change_sidecar(tmp_path, change)
    assert text in refusal(tmp_path)


def test_a_damaged_function(saved: Path) -> None:
    file = saved / RECORDS / "_.jaxfn"
    file.write_bytes(file.read_bytes()[:-1])
    assert refusal(saved).startswith(f"{file} cannot be read as a .jaxfn file: ")


def test_what_is_no_file(saved: Path) -> None:
    """Opening a pipe would wait for ever."""
    (saved / RECORDS / "_.jaxfn").unlink()
    os.mkfifo(saved / RECORDS / "_.jaxfn")
    assert f"it names {RECORDS / '_.jaxfn'}, which does not exist" in refusal(saved)
    (saved / SIDECAR).unlink()
    os.mkfifo(saved / SIDECAR)
    assert stat.S_ISFIFO((saved / SIDECAR).stat().st_mode)
    assert "it is not a regular file" in refusal(saved)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each nested value as its container and its key."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


FILES_OF_TWO = {"serving_default": "serving_default.jaxfn", "é / Ü": "_.jaxfn"}
TEXT_OF_TWO = _sidecar._encode(SIDECAR_OF_TWO, FILES_OF_TWO)

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(st.data())
@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_value_anywhere_is_read_or_refused(saved: Path, data: st.DataObject) -> None:
    (saved / SIDECAR).write_text(TEXT_OF_TWO)

    def change(facts: Any) -> None:
        places = list(_places(facts))
        inside, key = places[data.draw(st.integers(0, len(places) - 1))]
        if isinstance(inside, dict) and data.draw(st.booleans()):
            del inside[key]
        else:
            inside[key] = data.draw(_values)

    change_sidecar(saved, change)
    with contextlib.suppress(FileFormatError):
        found = read_sidecar(saved)
        assert found is not None
        write_sidecar(saved, *found)
