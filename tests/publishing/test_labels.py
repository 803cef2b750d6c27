"""Tests labels of versions in TensorFlow Serving's file of models."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError, SavingError
from jax2tf_bridge.publishing import promote, publish_version, published_versions
from jax2tf_bridge.publishing._labels import MODEL_CONFIG, read_labels, update_labels

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
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"")


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
        "label."
    )
    with pytest.raises(SavingError, match=r"dense has no version 7\. It has: 1\."):
        promote(root, 7)
    promote(root, 1)
    with pytest.raises(SavingError, match=r"label 'canary'\. It has: stable \(version 1\)\."):
        promote(root)
    with pytest.raises(SavingError, match=r"to must be a word of letters, .* Got: 'a b'\."):
        promote(root, 1, to="a b")
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
        ("a: [1, 2", "it ends within a field"),
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


labels = st.dictionaries(st.from_regex(r"[A-Za-z0-9_.-]+", fullmatch=True), st.integers(0, 2**63))


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
