"""A fixed number of fuzzed cases for each reader; longer runs are made by hand."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import flax.serialization
import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge import PortableFunction, Signature, export, publish
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.saved_model import GRAPH_FILE, MANIFEST
from jax2tf_bridge.serialization import serialize
from tests.serialization.records import constant, simple, with_vjps
from tests.weights import msgpack_by_hand as by_hand

CASES = 12_000
ROOT = Path(__file__).parents[2]
ARCHIVES = ROOT / "tests" / "serialization" / "archives"


def _with_arrays() -> PortableFunction:
    """A function with lifted constants, which its VJP shares, and one whose array is elsewhere."""
    first = constant(Aval((2, 3), "float32"), bytes(range(24)), "weights")
    second = constant(Aval((3,), "bool"), bytes(3), "mask")
    elsewhere = replace(constant(Aval((5,), "int8"), b"12345", "bias"), data=None)
    portable = replace(simple(), lifted_constants=(first, second, elsewhere))
    return with_vjps(portable, b"the module of the VJP")


def _weights() -> list[bytes]:
    """Weights in msgpack: as Flax writes them, and with what it never writes."""
    tree = {
        "params": {"kernel": np.ones((2, 3), np.float32), "half": np.ones(2, ml_dtypes.bfloat16)},
        "step": np.int32(7),
        "others": {"0": 0.5, "1": 1 + 2j, "2": "text", "3": b"bytes", "4": None, "5": True},
        "dates": np.zeros(2, "datetime64[ns]"),
        "empty": {},
    }
    shape, chunks = by_hand.numbered(b"\x02"), [by_hand.floats(1, count=1)] * 2
    chunked = by_hand.chunked(shape, by_hand.numbered(*chunks))
    mixed = by_hand.sequence(by_hand.extension(9, b"x"), by_hand.extension(-1, bytes(12)))
    return [
        flax.serialization.msgpack_serialize(tree),
        by_hand.mapping(by_hand.text("large"), chunked, b"\x01", mixed),
        chunked,
    ]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each reader a folder with small files of its format, all of them sound."""
    portable = export(
        lambda p, x: {4: x @ p["w"], 3: (None, [x.sum()])},
        polymorphic_shapes=[None, "(b, 2)"],
        polymorphic_constraints=["b >= 2"],
        platforms=["cpu"],
    )({"w": np.ones((2, 3), np.float32)}, np.ones((4, 2), np.float32)).with_vjp(1)
    archives = [path.read_bytes() for path in sorted(ARCHIVES.glob("*/*.exported"))]
    assert archives
    corpora = {
        "jaxfn": [serialize(portable), serialize(portable, vjp_order=0), serialize(_with_arrays())],
        "exported": [data for data in archives if len(data) < 8192],
        "bytecode": [portable.module.data, portable.vjp().module.data],
        "msgpack": _weights(),
        "weights_file": _weights(),
    }
    root = tmp_path_factory.mktemp("published")
    published = publish(
        root / "dense",
        Signature(lambda w, x: x @ w, args=[np.ones((1, 2), np.float32)]),
        params=np.ones((2, 2), np.float32),
        label="stable",
    ).path
    corpora["saved_model"] = [(published / GRAPH_FILE).read_bytes()]
    corpora["manifest"] = [(published / MANIFEST).read_bytes()]
    corpora["model_config"] = [(root / "models.config").read_bytes()]
    corpora["jaxfn_file"] = corpora["jaxfn"] + corpora["exported"][:2]
    folders = {}
    for name, files in corpora.items():
        folders[name] = tmp_path_factory.mktemp(name)
        for i, data in enumerate(files):
            (folders[name] / f"{i}").write_bytes(data)
    return folders


@pytest.mark.slow
@pytest.mark.checkout
@pytest.mark.parametrize(
    "reader",
    [
        *("jaxfn", "jaxfn_file", "exported", "bytecode", "msgpack", "weights_file"),
        *("saved_model", "manifest", "model_config"),
    ],
)
def test_no_bytes_do_harm(reader: str, seeds: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has wheels for Linux alone")
    command = [sys.executable, "-m", "tests.fuzz.fuzz_readers", reader, str(seeds[reader])]
    limits = [f"-runs={CASES}", "-seed=1", "-timeout=10", "-rss_limit_mb=0", "-max_len=16384"]
    done = subprocess.run(
        [*command, *limits, f"-artifact_prefix={tmp_path}/"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert f"Done {CASES} runs" in done.stderr
