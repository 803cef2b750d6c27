"""`jax2tf-bridge versions`, `rollback`, `promote`, and labels and notes of `publish`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jax2tf_bridge import Signature, publish, write_weights
from jax2tf_bridge.saved_model import MANIFEST
from tests.cli.conftest import Ok, Run

W = np.ones((3, 2), np.float32)
DENSE = Signature(lambda w, x: x @ w, args=[np.ones((4, 3), np.float32)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns a root with two versions."""
    publish(tmp_path / "dense", DENSE, params=W)
    publish(tmp_path / "dense", params=W * 2, note="trained longer")
    return tmp_path / "dense"


@pytest.mark.usefixtures("root")
def test_versions_and_rollback(ok: Ok) -> None:
    assert (
        ok("rollback", "dense", "--note", "scores drifted") == "dense/3: the content of version 1\n"
    )
    lines = ok("versions", "dense", "--check").splitlines()
    assert [re.sub(r"\d{4}-.{11}|[0-9a-f]{12}", "_", line) for line in lines] == [
        "1  _  model  code _, weights _",
        "2  _  weights (graph of 1)  code _, weights _  trained longer",
        "3  _  rollback to 1  code _, weights _  scores drifted",
    ]
    listed = json.loads(ok("versions", "dense", "--json"))
    assert [each["base"] for each in listed] == [None, 1, 1]
    assert set(listed[0]) == {
        *("number", "path", "published", "change", "base", "code", "weights"),
        *("labels", "note", "problem"),
    }


@pytest.mark.usefixtures("root")
def test_labels(ok: Ok, run: Run, tmp_path: Path) -> None:
    write_weights("weights.msgpack", W * 3)
    words = ("publish", "-o", "dense", "--params", "weights.msgpack", "--label", "canary")
    ended = run(*words, "--note", "more data")
    assert ended.out == "dense/3: version 2 with the weights in weights.msgpack\n"
    assert ended.err == (
        "jax2tf-bridge: note: labels: canary is version 3, stable is version 2; serve them with "
        f"--model_config_file={tmp_path}/models.config --model_config_file_poll_wait_seconds=10 "
        "--allow_version_labels_for_unavailable_models=true in place of --model_name and "
        "--model_base_path\n"
    )
    assert "  labels: canary  more data" in ok("versions", "dense")
    assert ok("promote", "dense") == "dense/3: canary\ndense/3: stable\n"
    assert ok("promote", "dense", "1", "--to", "old").endswith("dense/1: old\ndense/3: stable\n")
    assert ok("promote", "dense", "old").endswith("dense/1: stable\n")
    assert ok("promote", "dense", "--remove", "old") == "dense/3: canary\ndense/1: stable\n"
    assert json.loads(ok("promote", "dense", "1", "--json")) == {
        "labels": {"canary": 3, "stable": 1}
    }
    ended = run("rollback", "dense", "--keep", "1", "--label", "canary", "--json")
    (*_, version) = json.loads(ok("versions", "dense", "--json"))
    assert json.loads(ended.out) == {**version, "removed": [2], "notes": []}
    assert version["labels"] == ["canary"]
    assert [each["number"] for each in json.loads(ok("versions", "dense", "--json"))] == [1, 3, 4]


@pytest.mark.usefixtures("root")
def test_wrong_versions_and_labels(run: Run, tmp_path: Path) -> None:
    assert run("rollback", "dense", "--to", "9").error == ("dense has no version 9. It has: 1, 2.")
    assert run("promote", "dense").error == (
        "dense has no version with the label 'canary'. It has no labels: publish a version with "
        "--label canary."
    )
    run("rollback", "dense")
    assert run("rollback", "dense").error == (
        "dense has no version before 1 to go back to. To publish a newer one again, pass its "
        "number: --to 2."
    )
    missing = run("rollback", "none")
    assert (missing.code, missing.error) == (2, "none has no version to go back to")
    for words in (("versions", "none"), ("versions", "none", "--json")):
        missing = run(*words)
        assert (missing.code, missing.out, missing.error) == (2, "", "none does not exist")
    (tmp_path / "empty").mkdir()
    assert run("versions", "empty").err == "jax2tf-bridge: note: empty has no version\n"


@pytest.mark.usefixtures("root")
def test_publish_prints_the_version_as_json(ok: Ok, run: Run) -> None:
    write_weights("weights.msgpack", W * 3)
    words = ("publish", "-o", "dense", "--params", "weights.msgpack", "--note", "more", "--json")
    ended = run(*words, "--keep", "2")
    (*_, version) = json.loads(ok("versions", "dense", "--json"))
    assert json.loads(ended.out) == {**version, "removed": [1], "notes": []}
    assert (version["number"], version["note"]) == (3, "more")


def test_contents_are_compared(ok: Ok, run: Run, root: Path) -> None:
    text = ok("inspect", "dense/2", "--check")
    assert re.fullmatch(r"dense/2: \d+ files, as they were published [-\d]+ [:\d]+ UTC\n", text)
    facts = json.loads(ok("inspect", "dense/2", "--check", "--json"))
    assert facts["path"] == "dense/2"
    assert text.startswith(f"dense/2: {facts['files']} files, ")
    assert facts["published"][:10] in text
    (root / "2" / "fingerprint.pb").unlink()
    (root / "2" / "more").write_text("x")
    ended = run("versions", "dense", "--check")
    assert (ended.code, ended.error) == (1, "dense: not sound: 2")
    assert re.search("NOT SOUND: .*dense/2 is not what was published: finger", ended.out)
    assert run("inspect", "dense/2", "--check").error == (
        "dense/2 is not what was published: fingerprint.pb is missing; more was not published."
    )
    (root / "1" / MANIFEST).unlink()
    ended = run("inspect", "dense/1", "--check")
    assert ended.out == "dense/1: complete; it has no manifest to compare its files with\n"
    assert ended.err == (
        f"jax2tf-bridge: note: publish writes {MANIFEST}; other tools, and later changes, leave it "
        "out\n"
    )
    assert json.loads(ok("inspect", "dense/1", "--check", "--json")) == {
        "path": "dense/1",
        "files": None,
        "published": None,
    }
    write_weights("weights.msgpack", W)
    assert run("inspect", "weights.msgpack", "--check").error == (
        "--check: weights.msgpack is not a folder; name a version that publish wrote"
    )


def test_retargeted_version_has_no_manifest(ok: Ok, run: Run, root: Path) -> None:
    assert run("retarget", "dense/1", "-o", "dense/7", "--tensorflow", "2.17").code == 0
    assert not (root / "7" / MANIFEST).exists()
    assert (root / "1" / MANIFEST).exists()
    assert ok("versions", "dense").splitlines()[-1] == "7  unknown date  without a manifest"
