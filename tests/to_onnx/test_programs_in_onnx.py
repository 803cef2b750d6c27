"""The programs table and the shape corpus in ONNX Runtime, at several sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from jax2tf_bridge import save_onnx
from jax2tf_bridge.errors import BridgeError
from tests.consumers.export_for_converters import EXPORTED, MORE, Exported
from tests.models.comparing import compare
from tests.to_onnx.running import parts, session

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "fp8_inside": "ONNX has no operations for tensor<?x8xf8E4M3FN>",
        "fp8_arguments": "has dtype float8_e4m3fn, which ONNX Runtime does not compute with",
        "no_results": "returns nothing, and ONNX Runtime loads no model without outputs",
    }
)
"""A part of the error of each program that ONNX cannot express."""


def check(each: Exported, folder: Path) -> list[str]:
    """Writes a program as an ONNX model; returns where its results are not JAX's."""
    with each.precision():
        answered = each.answer()
        saved = save_onnx(folder / "model.onnx", answered.signature, verify=False, overwrite=True)
    ((_, signature),) = saved.signatures.items()
    loaded = session(saved.path)
    differences: list[str] = []
    for i, (inputs, results) in enumerate(answered.answers):
        feed = dict(zip(signature.inputs, map(parts, inputs), strict=True))
        got = loaded.run([*signature.outputs], feed)
        want = [*map(parts, results)]
        names = [*signature.outputs]
        differences += compare(f"call {i}, ", names, got, want, answered.tolerance)
    return differences


# Programs of different kinds that take little time: indices, loops, images, dtypes, linear algebra.
_SAMPLE = frozenset(
    {"mlp_symbolic", "gru_scan", "conv_symbolic_image", "segments", "bf16", "complex64"}
    | {"int4_arguments", "small_integers", "infinities", "case-shifted_windows"}
)


_EVERY = 6
"""The slow tests have one of so many cases of the shape corpus, and all programs."""


def _parameters() -> list[Any]:
    rows = []
    for i, each in enumerate((*EXPORTED, *MORE)):
        is_left_out = each.name.startswith("case-") and i % _EVERY
        mark = pytest.mark.complete if is_left_out else pytest.mark.slow
        rows.append(pytest.param(each, marks=() if each.name in _SAMPLE else mark))
    return rows


@pytest.mark.parametrize("each", _parameters(), ids=str)
def test_values_are_those_of_jax(each: Exported, tmp_path: Path) -> None:
    refusal = REFUSED.get(each.name)
    if refusal is None:
        assert check(each, tmp_path) == []
        return
    with pytest.raises(BridgeError, match=re.escape(refusal)):
        check(each, tmp_path)


def test_the_sample_and_the_refused_programs_exist() -> None:
    assert {*_SAMPLE, *REFUSED} <= {each.name for each in (*EXPORTED, *MORE)}


@pytest.mark.checkout
def test_the_page_has_how_many_programs_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "onnx-and-openvino.md"
    text = page.read_text()
    for is_case, title in ((False, "programs"), (True, "cases of the shape corpus")):
        names = {e.name for e in EXPORTED if e.name.startswith("case-") == is_case}
        row = f"| {title} | {len(names)} | {len(names - REFUSED.keys())} | "
        assert row in text
