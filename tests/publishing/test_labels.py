"""Tests labels of versions in TensorFlow Serving's file of models."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError, SavingError

# Private: labels beside stable and canary, as somebody writes them by hand.
from jax2tf_bridge.publishing import (
    _labels,
    promote,
    publish_version,
    published_versions,
    remove_label,
    rollback,
)
from jax2tf_bridge.publishing._labels import MODEL_CONFIG, read_labels, update_labels
from jax2tf_bridge.saved_model import bytes_field

SMALLEST = bytes_field(2, b"")
"""SavedModel with an empty graph."""

WRITTEN = """\
# The models of this machine.
model_config_list: {
  config: [
    {
      name: 'words', base_path: "/models/words"; model_platform: "tensorflow"
    },
    <
      name: "dense"  # the one with labels
      base_path: "/elsewhere/dense"
      model_version_policy { latest { num_versions: 2 } }
      version_labels { key: "old" value: 1 }
      logging_config { sampling_config { sampling_rate: 0.5 } }
      version_labels: { key: 'stable', value: 2 }
    >
  ]
}
"""


def write(folder: Path) -> None:
    """Writes the smallest SavedModel, and another file."""
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(SMALLEST)
    (folder / "more").write_bytes(b"x")


def test_first_label_leaves_the_version_before_stable(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    assert publish_version(root, write).labels == {}
    new = publish_version(root, write, label="canary")
    assert new.labels == read_labels(root) == {"canary": 2, "stable": 1}
    assert (
        (tmp_path / MODEL_CONFIG).read_text()
        == f"""\
model_config_list {{
  config {{
    name: "dense"
    base_path: "{root}"
    model_platform: "tensorflow"
    model_version_policy {{ all {{}} }}
    version_labels {{ key: "canary" value: 2 }}
    version_labels {{ key: "stable" value: 1 }}
  }}
}}
"""
    )


def test_label_of_the_first_version(tmp_path: Path) -> None:
    assert publish_version(tmp_path / "dense", write, label="canary").labels == {"canary": 1}


def test_versions_without_a_label_are_noted(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write, label="stable")
    new = publish_version(root, write)
    assert new.labels == {"stable": 1}
    assert new.notes == (
        "version 2 has no label (stable is 1): a server that reads models.config uses it for "
        "requests without a label; give it one by promote",
    )
    assert promote(root, 2) == {"stable": 2}


def test_labelled_versions_stay(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    for label in ("stable", None, "canary", None, None):
        new = publish_version(root, write, keep=1, label=label)
    assert sorted(published_versions(root)) == [1, 3, 5]
    assert new.removed == (4,)
    # A server may not have read yet that the label moved.
    publish_version(root, write, keep=1, label="canary")
    assert sorted(published_versions(root)) == [1, 3, 6]
    publish_version(root, write, keep=1)
    assert sorted(published_versions(root)) == [1, 6, 7]


def test_promote_moves_stable_to_the_canary(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    publish_version(root, write, label="canary")
    assert promote(root) == read_labels(root) == {"canary": 2, "stable": 2}
    assert promote(root, 1, to="old") == {"canary": 2, "old": 1, "stable": 2}
    publish_version(root, write, label="canary")
    assert promote(root, "old", to="stable") == {"canary": 3, "old": 1, "stable": 1}


def test_promote_what_is_not_there(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    with pytest.raises(SavingError) as error:
        promote(root)
    assert str(error.value) == (
        f"{root} has no version with the label 'canary'. It has no labels: publish a version with "
        "label='canary'."
    )
    with pytest.raises(SavingError, match=r"dense has no version 7\. It has: 1\."):
        promote(root, 7)
    promote(root, 1)
    with pytest.raises(SavingError, match=r"label 'canary'\. It has: stable \(version 1\)\."):
        promote(root)
    for label in ("a b", "7", "-x", ".", ""):
        with pytest.raises(SavingError, match=rf"to must be a word .* Got: '{label}'\."):
            promote(root, 1, to=label)
    with pytest.raises(SavingError, match=r"label must be a word of letters, .* Got: ''\."):
        publish_version(root, write, label="")
    assert sorted(published_versions(root)) == [1]


def test_other_text_of_the_file_stays(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    file = tmp_path / MODEL_CONFIG
    file.write_text(WRITTEN)
    assert read_labels(root) == {"old": 1, "stable": 2}
    assert read_labels(tmp_path / "words") == read_labels(tmp_path / "more") == {}
    update_labels(root, lambda labels: {**labels, "stable": 3})
    assert (
        file.read_text()
        == """\
# The models of this machine.
model_config_list: {
  config: [
    {
      name: 'words', base_path: "/models/words"; model_platform: "tensorflow"
    },
    <
      name: "dense"  # the one with labels
      base_path: "/elsewhere/dense"
      model_version_policy { latest { num_versions: 2 } }
      logging_config { sampling_config { sampling_rate: 0.5 } }
      version_labels { key: "old" value: 1 }
      version_labels { key: "stable" value: 3 }
    >
  ]
}
"""
    )
    update_labels(tmp_path / "words", lambda _: {"stable": 1})
    assert read_labels(tmp_path / "words") == {"stable": 1}
    assert read_labels(root) == {"old": 1, "stable": 3}


def test_models_share_the_file(tmp_path: Path) -> None:
    names = ["dense", "words", 'quoted"name']
    for i, name in enumerate(names):
        update_labels(tmp_path / name, lambda _, i=i: {"stable": i})  # type: ignore[misc]
    assert [read_labels(tmp_path / name) for name in names] == [{"stable": i} for i in range(3)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model_config_list {", "a } is missing at its end"),
        ("model_config_list { config {} ", "a } is missing at its end"),
        ("model_config_list }", "expected the value of model_config_list, got '}'"),
        ("}", "expected the name of a field, got '}'"),
        ('a: "b', "'\"b' is not a token"),
        ("a:", "it ends within a field"),
        ("a: [1, 2", "a comma or ] is missing in the list a"),
        ("a: 1;;", "expected the name of a field, got ';'"),
        ("a: [1,, 2]", "expected the value of a, got ','"),
        ("custom_model_config { }", "it has a custom_model_config, so it cannot list models"),
        ("a {" * 40 + "}" * 40, "its messages are nested too deeply"),
        (
            "model_config_list { config { name: 'dense' version_labels { key: 'a' } } }",
            "version_labels needs one key and one value",
        ),
    ],
)
def test_damaged_file(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / MODEL_CONFIG
    file.write_text(text)
    with pytest.raises(FileFormatError) as error:
        publish_version(tmp_path / "dense", write, label="canary")
    assert str(error.value) == (
        f"{file} is not a file of models for TensorFlow Serving: {problem}. Correct or remove it."
    )
    assert file.read_text() == text
    assert not published_versions(tmp_path / "dense")


labels = st.dictionaries(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]*", fullmatch=True), st.integers(0, 2**63)
)


@pytest.mark.costly
@given(st.lists(labels, min_size=1, max_size=4))
def test_labels_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, states: list[dict[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    (folder / MODEL_CONFIG).write_text(WRITTEN)
    for state in states:
        update_labels(folder / "dense", lambda _, state=state: state)  # type: ignore[misc]
        assert read_labels(folder / "dense") == state
        assert "# the one with labels" in (folder / MODEL_CONFIG).read_text()


@pytest.mark.parametrize(
    "text",
    [
        'model_config_list { config { name: "dense"; version_labels { key: "old" value: 1 }; }; }',
        'model_config_list { config { version_labels { key: "old" value: 1 }, name: "dense", }, },',
        'model_config_list { config: [{ name: "den" "se" version_labels: '
        '[{ key: "old", value: 0x1 }, { key: "o", value: 2 }] }] }',
        "model_config_list { config { name: 'd\\145nse' version_labels { key: 'old' value: 1 } } }",
        'model_config_list { config { name: "x" base_path: "ROOT/" version_labels '
        '{ key: "old" value: 1 } } }',
    ],
)
def test_every_form_of_a_file_stays_valid(tmp_path: Path, text: str) -> None:
    root = tmp_path / "dense"
    file = tmp_path / MODEL_CONFIG
    file.write_text(text.replace("ROOT", str(root)))
    assert read_labels(root)["old"] == 1
    update_labels(root, lambda _: {"stable": 2, "canary": 3})
    assert read_labels(root) == {"canary": 3, "stable": 2}
    written = file.read_text()
    assert written.count("config ") + written.count("config:") == 1
    assert "model_version_policy { all {} }" in written
    assert not re.search(r"[;,{]\s*[;,]", written)
    for number in range(2):
        update_labels(root, lambda _, number=number: {"stable": number})  # type: ignore[misc]
        assert read_labels(root) == {"stable": number}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'model_config_list { config { name: "dense" base_path: "/a" } }',
            'model_config_list { config { name: "dense" base_path: "/a" '
            'model_version_policy { all {} } version_labels { key: "stable" value: 1 } } }',
        ),
        (
            'model_config_list { config { name: "words" } }\n',
            'model_config_list { config { name: "words" } config { name: "dense" '
            'base_path: "ROOT" model_platform: "tensorflow" model_version_policy { all {} } '
            'version_labels { key: "stable" value: 1 } } }\n',
        ),
        (
            "model_config_list {}\n",
            "model_config_list {\n"
            "  config {\n"
            '    name: "dense"\n'
            '    base_path: "ROOT"\n'
            '    model_platform: "tensorflow"\n'
            "    model_version_policy { all {} }\n"
            '    version_labels { key: "stable" value: 1 }\n'
            "  }\n"
            "}\n",
        ),
        (
            'model_config_list {\n  config { name: "dense"\n    base_path: "/a" }\n}\n',
            'model_config_list {\n  config { name: "dense"\n    base_path: "/a"\n'
            "      model_version_policy { all {} }\n"
            '      version_labels { key: "stable" value: 1 }\n'
            "    }\n}\n",
        ),
    ],
)
def test_labels_fit_the_layout_of_the_file(tmp_path: Path, text: str, expected: str) -> None:
    root = tmp_path / "dense"
    (tmp_path / MODEL_CONFIG).write_text(text)
    update_labels(root, lambda _: {"stable": 1})
    assert (tmp_path / MODEL_CONFIG).read_text() == expected.replace("ROOT", str(root))


def test_a_comment_ends_where_it_did(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    start = 'model_config_list {\n  config {\n    name: "dense"  # ours\n'
    labels = 'version_labels { key: "old" value: 1 } version_labels { key: "new" value: 2 }'
    rest = 'base_path: "/a" model_version_policy { all {} }\n'
    (tmp_path / MODEL_CONFIG).write_text(f"{start}    {labels} {rest}  }}\n}}\n")
    update_labels(root, lambda _: {"stable": 1})
    assert (tmp_path / MODEL_CONFIG).read_text() == (
        f'{start}    {rest}    version_labels {{ key: "stable" value: 1 }}\n  }}\n}}\n'
    )


def test_bytes_that_are_not_utf8_stay(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    comment = "# f\xfcr den Server\n".encode("latin-1")
    (tmp_path / MODEL_CONFIG).write_bytes(
        comment + b'model_config_list {\n  config { name: "dense" }\n}\n'
    )
    assert promote_first(root) == {"stable": 1}
    assert (tmp_path / MODEL_CONFIG).read_bytes().startswith(comment)


def promote_first(root: Path) -> dict[str, int]:
    """Publishes a version, and makes it stable."""
    publish_version(root, write)
    return promote(root, 1)


def test_labels_of_removed_versions_go(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    for label in ("stable", "canary", "old"):
        publish_version(root, write, label=label)
    shutil.rmtree(root / "1")
    new = publish_version(root, write)
    assert new.labels == {"canary": 2, "old": 3}
    assert new.notes[0] == (
        f"{tmp_path / MODEL_CONFIG} gives the label 'stable' to version 1, which does not exist, "
        "so requests with it fail: move the label by promote"
    )
    assert publish_version(root, write, label="old").labels == {"canary": 2, "old": 5}
    assert read_labels(root) == {"canary": 2, "old": 5}
    shutil.rmtree(root / "2")
    with pytest.raises(SavingError, match=r"no version with the label 'canary'\. It has: old"):
        promote(root)
    assert promote(root, 5) == {"old": 5, "stable": 5}
    shutil.rmtree(root / "5")
    assert remove_label(root, "old") == {}
    # All labels are gone, so this is the first one.
    assert publish_version(root, write, label="canary").labels == {"canary": 6, "stable": 4}


def test_labels_that_the_server_would_not_load(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    for _ in range(3):
        publish_version(root, write)
    file = tmp_path / MODEL_CONFIG
    policies = {
        "latest { num_versions: 2 }": [1],
        "latest {}": [1, 2],
        "latest { num_versions: 0 }": [1, 2],
        "specific { versions: 1 versions: 2 }": [3],
        "all {}": [],
    }
    for policy, unloaded in policies.items():
        entry = f'name: "dense" model_version_policy {{ {policy} }}'
        file.write_text(f"model_config_list {{ config {{ {entry} }} }}")
        for number in (1, 2, 3):
            if number in unloaded:
                with pytest.raises(SavingError, match=f"leaves out version {number}, so the"):
                    promote(root, number)
            else:
                assert promote(root, number) == {"stable": number}
    file.write_text(
        'model_config_list { config { name: "dense" '
        "model_version_policy { specific { versions: 3 } } } }"
    )
    (note,) = publish_version(root, write, label="canary").notes
    assert note == (
        f"{file} has a model_version_policy that leaves out version 4, so the server refuses the "
        "labels: write model_version_policy { all {} } for dense"
    )


@pytest.mark.parametrize("policy", ["specific { versions: 1.5 }", "latest { num_versions: 1.5 }"])
def test_a_version_policy_with_no_number(tmp_path: Path, policy: str) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    (tmp_path / MODEL_CONFIG).write_text(
        f'model_config_list {{ config {{ name: "dense" model_version_policy {{ {policy} }} }} }}'
    )
    problem = "TensorFlow Serving: expected the number of a version, got '1.5'. Correct or remove"
    with pytest.raises(FileFormatError, match=problem):
        promote(root, 1)
    with pytest.raises(FileFormatError, match=problem):
        publish_version(root, write, label="canary")
    assert list(published_versions(root)) == [1]


def test_numbers_of_versions_that_are_none(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    assert promote(root, np.int64(1)) == {"stable": 1}  # type: ignore[arg-type]
    for number in (True, 1.0, None):
        with pytest.raises(SavingError) as error:
            promote(root, number)  # type: ignore[arg-type]
        assert str(error.value) == (
            f"version must be the number of a version, or a label. Got: {number!r}."
        )


def test_damaged_version_gets_no_label(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    (root / "1" / "more").unlink()
    with pytest.raises(FileFormatError, match="more is missing"):
        promote(root, 1)


def test_labels_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    publish_version(root, write, label="canary")
    assert remove_label(root, "canary") == read_labels(root) == {"stable": 1}
    with pytest.raises(SavingError, match=r"no version with the label 'canary'\. It has: stable"):
        remove_label(root, "canary")


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(PermissionError) as error:
            publish_version(root, write, label="canary")
    assert str(error.value) == (
        f"{tmp_path / MODEL_CONFIG} cannot be written, and it has the labels: allow it, or publish "
        "without a label"
    )
    assert sorted(published_versions(root)) == [1]

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_labels, "replace_file_at", fail)
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        publish_version(root, write, label="canary")
    assert str(caught.value) == (
        f"{tmp_path / MODEL_CONFIG} cannot be written ({os.strerror(code)}): version 2 is "
        "published, but without the label 'canary'. Give it the label by promote"
    )
    assert sorted(published_versions(root)) == [1, 2]


def test_damaged_file_does_not_stop_what_needs_no_label(tmp_path: Path) -> None:
    root = tmp_path / "dense"
    publish_version(root, write)
    (tmp_path / MODEL_CONFIG).write_text("model_config_list {")
    new = publish_version(root, write, keep=1)
    assert new.removed == ()
    assert new.notes[0].startswith("the labels are unknown, so older versions stay: ")
    assert rollback(root).result == 1
