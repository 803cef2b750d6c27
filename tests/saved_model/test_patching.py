"""Modules are replaced in saved_model.pb, and every other byte of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting import read_saved_model

# Private: its limit of 2 GB is lowered.
from jax2tf_bridge.saved_model import (
    NewModule,
    _editing,
    bytes_field,
    read_message,
    replace_modules,
    varint_field,
)
from tests.saved_model.by_hand import Call, Model, calling, constant, differentiable

UNKNOWN = bytes_field(1000, b"of a newer version") + varint_field(1001, -5)

MODEL = Model(
    {
        "helper": [constant("k", (3,)), Call(b"first", platforms=["CPU"]).node() + UNKNOWN],
        "main": [calling("c", "helper"), Call(b"second", flags=["use_shardy_partitioner"]).node()],
        "vjp": [differentiable("d", "kind")],
    },
    gradients={"kind": "vjp"},
    nodes=[Call(b"of the graph", version=5).node()],
    variables={"w": (2,)},
)


def patched(folder: Path, modules: list[NewModule]) -> bytes:
    return b"".join(replace_modules(read_message(folder), modules))


def test_the_modules_are_other_ones_and_all_else_stays(tmp_path: Path) -> None:
    folder = MODEL.write(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(MODEL.proto() + UNKNOWN)
    before = read_saved_model(folder)
    assert [bytes(m.module) for m in before.modules] == [b"of the graph", b"first", b"second"]
    new = [NewModule(bytes([i]) * 300, 9, False) for i in range(3)]
    data = patched(folder, new)
    (folder / "saved_model.pb").write_bytes(data)
    after = read_saved_model(folder)
    assert [bytes(m.module) for m in after.modules] == [n.module for n in new]
    assert [m.calling_convention_version for m in after.modules] == [9, 9, 9]
    assert [m.uses_shardy for m in after.modules] == [False] * 3
    assert after.entries == before.entries
    assert after.variables == before.variables
    assert [m.platforms for m in after.modules] == [m.platforms for m in before.modules]
    assert data.count(UNKNOWN) == 2


def test_the_modules_that_were_there_give_an_equal_model(tmp_path: Path) -> None:
    folder = MODEL.write(tmp_path / "m")
    modules = read_saved_model(folder).modules
    same = [
        NewModule(bytes(m.module), m.calling_convention_version, m.uses_shardy) for m in modules
    ]
    data = patched(folder, same)
    (folder / "saved_model.pb").write_bytes(data)
    assert patched(folder, same) == data  # the order of attributes is settled by the first time
    assert len(data) == len(MODEL.proto())


def test_modules_of_several_graphs_keep_their_numbers(tmp_path: Path) -> None:
    other = Model({"main": [Call(b"third").node()]}, nodes=[Call(b"zeroth").node()])
    folder = other.write(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(other.proto() + MODEL.proto())
    names = [b"zeroth", b"third", b"of the graph", b"first", b"second"]
    assert [bytes(m.module) for m in read_saved_model(folder).modules] == names
    changed = [NewModule(name.upper(), 8, False) for name in names]
    (folder / "saved_model.pb").write_bytes(patched(folder, changed))
    assert [bytes(m.module) for m in read_saved_model(folder).modules] == [n.upper() for n in names]


def test_a_function_that_is_there_twice(tmp_path: Path) -> None:
    """Reading and writing take the last one."""
    model = Model({"main": [Call(b"a").node()], "mine": [Call(b"b").node()]})
    folder = model.write(tmp_path / "m")
    (folder / "saved_model.pb").write_bytes(model.proto().replace(b"mine", b"main"))
    assert [bytes(m.module) for m in read_saved_model(folder).modules] == [b"b"]
    data = patched(folder, [NewModule(b"c", 8, False)])
    (folder / "saved_model.pb").write_bytes(data)
    assert [bytes(m.module) for m in read_saved_model(folder).modules] == [b"c"]


def test_more_or_fewer_modules_are_refused(tmp_path: Path) -> None:
    folder = MODEL.write(tmp_path / "m")
    with pytest.raises(ValueError, match="the model has 3 modules, not 1"):
        replace_modules(read_message(folder), [NewModule(b"", 8, False)])


def test_a_file_that_becomes_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = MODEL.write(tmp_path / "m")
    monkeypatch.setattr(_editing, "MAX_MESSAGE_BYTES", 5000)
    with pytest.raises(FileFormatError, match=r"would have .* and TensorFlow reads at most 2 GiB"):
        replace_modules(read_message(folder), [NewModule(bytes(3000), 8, False)] * 3)
