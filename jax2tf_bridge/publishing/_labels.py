"""Labels of versions, such as "stable" and "canary", in TensorFlow Serving's file of models.

The file is `models.config` beside the model's folder, in the text format of ModelServerConfig
(tensorflow_serving/config/model_server_config.proto). Only the labels of one model are replaced in
its text: comments, other fields and other models stay as they are.

An entry without a version policy gets one that loads all versions. A server refuses to move a label
to a version that is not loaded, and then also ignores a new version policy in the same file.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jax2tf_bridge.errors import FileFormatError, SavingError, make_path_error
from jax2tf_bridge.storage import AnyPath, lock_folder, replace_file_at

MODEL_CONFIG = "models.config"
STABLE, CANARY = "stable", "canary"

_INTEGER = re.compile(r"0|[1-9][0-9]*|0[xX][0-9a-fA-F]+")
_BYTES = "surrogateescape"
"""Error handler that keeps bytes that are not UTF-8, such as a comment in Latin-1."""
_MAX_BYTES = 1 << 24
"""Maximum size of a file of models, in bytes."""
_MAX_DEPTH = 32
"""Maximum nesting depth of messages."""
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
# A space, a comment, or a token: a bracket or separator, a string, a word or number.
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<token>[{}<>:\[\],;]|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
    r"""|[^\s{}<>:\[\],;\#"']+)"""
)
_CLOSING = {"{": "}", "<": ">"}
_QUOTES = "\"'"
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_POLICY = "model_version_policy { all {} }\n"
_OPTIONS = (
    "--model_config_file={file}",
    "--model_config_file_poll_wait_seconds=10",
    "--allow_version_labels_for_unavailable_models=true",
)


@dataclass(frozen=True)
class _Field:
    """A field of a message in text format.

    Attributes:
      name: its name.
      start, end: its place in the text.
      value: the text of a number or word, or the content of a string.
      fields: the fields of a message.
      end_of_fields: the place of the bracket that closes the message; 0 for other values.
    """

    name: str
    start: int
    end: int
    value: str = ""
    fields: tuple[_Field, ...] = ()
    end_of_fields: int = 0

    def values(self, name: str) -> list[str]:
        return [field.value for field in self.messages(name)]

    def messages(self, name: str) -> list[_Field]:
        return [field for field in self.fields if field.name == name]


class _FormatError(Exception):
    pass


class _Parser:
    """Parser of protobuf's text format, as far as files of models use it."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_split(text))
        self._next = 0
        self._length = len(text)

    def fields(self, closing: str | None, depth: int = 0) -> tuple[_Field, ...]:
        """Reads fields up to a closing bracket, or up to the end of the text."""
        if depth > _MAX_DEPTH:
            raise _FormatError("its messages are nested too deeply")
        fields: list[_Field] = []
        while (token := self._peek()) != closing:
            if token is None:
                raise _FormatError(f"a {closing} is missing at its end")
            fields += self._parse_field(depth)
            if fields and self._peek() in (",", ";"):
                _, _, end = self._take()
                fields[-1] = replace(fields[-1], end=end)
        return tuple(fields)

    def _parse_field(self, depth: int) -> Iterator[_Field]:
        name, start, _ = self._take()
        if not name.isidentifier():
            raise _FormatError(f"expected the name of a field, got {name!r}")
        if self._peek() == ":":
            self._take()
        if self._peek() != "[":
            yield self._parse_value(name, start, depth)
            return
        self._take()
        while self._peek() != "]":
            value = self._parse_value(name, self._place(), depth)
            if self._peek() == ",":
                _, _, end = self._take()
                value = replace(value, end=end)
            elif self._peek() != "]":
                raise _FormatError(f"a comma or ] is missing in the list {name}")
            yield value
        self._take()

    def _parse_value(self, name: str, start: int, depth: int) -> _Field:
        token, _, end = self._take()
        closing = _CLOSING.get(token)
        if closing is not None:
            fields = self.fields(closing, depth + 1)
            _, inner_end, end = self._take()
            return _Field(name, start, end, fields=fields, end_of_fields=inner_end)
        if token in "{}<>:[],;":
            raise _FormatError(f"expected the value of {name}, got {token!r}")
        if token[0] not in _QUOTES:
            return _Field(name, start, end, token)
        text = _unquote(token)
        while (following := self._peek()) is not None and following[0] in _QUOTES:
            token, _, end = self._take()  # adjacent strings are one
            text += _unquote(token)
        return _Field(name, start, end, text)

    def _peek(self) -> str | None:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def _place(self) -> int:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else self._length

    def _take(self) -> tuple[str, int, int]:
        if self._next == len(self._tokens):
            raise _FormatError("it ends within a field")
        self._next += 1
        return self._tokens[self._next - 1]


def _split(text: str) -> Iterator[tuple[str, int, int]]:
    """Yields the tokens of a text, each with its start and its end."""
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _FormatError(f"{text[place : place + 20]!r} is not a token")
        place = match.end()
        if match["token"]:
            yield match["token"], match.start("token"), place


def locate_model_config(root: AnyPath) -> AnyPath:
    """Returns the path of the file with the labels of the versions below `root`."""
    return root.parent / MODEL_CONFIG


@dataclass(frozen=True)
class ConfiguredModel:
    """Entry of a model in the file of models.

    Attributes:
      name: the name of the model in requests.
      labels: its labels, with their versions.
    """

    name: str
    labels: Mapping[str, int]


def read_configured_model(root: AnyPath) -> ConfiguredModel | None:
    """Reads the entry of the model whose versions are below `root`; None without one.

    Raises:
      FileFormatError: the file of models is damaged.
      OSError: it cannot be read.
    """
    entry = _read_entry(root)
    if entry is None:
        return None
    name = next(iter(entry.values("name")), root.name)
    return ConfiguredModel(name, _read_entry_labels(entry, locate_model_config(root)))


def read_labels(root: AnyPath) -> dict[str, int]:
    """Returns the labels of the versions below `root`, with their versions.

    Raises:
      FileFormatError: the file of models is damaged.
      OSError: it cannot be read.
    """
    model = read_configured_model(root)
    return {} if model is None else dict(model.labels)


def list_label_options(root: AnyPath) -> list[str]:
    """Lists TensorFlow Serving's options for labels, instead of a model's name and path."""
    return [option.format(file=locate_model_config(root)) for option in _OPTIONS]


def describe_labels(root: AnyPath, labels: Mapping[str, int]) -> str:
    """Describes the labels, and the options with which a server reads them."""
    versions = ", ".join(f"{label} is version {number}" for label, number in sorted(labels.items()))
    options = " ".join(list_label_options(root))
    return (
        f"labels: {versions}; serve them with {options} in place of --model_name and "
        "--model_base_path"
    )


def describe_missing(root: AnyPath, labels: Mapping[str, int]) -> str:
    """Says that versions with labels were removed by hand, and how to move the labels."""
    texts = (f"{label!r} to version {number}" for label, number in sorted(labels.items()))
    return (
        f"{locate_model_config(root)} gives the label {', '.join(texts)}, which does not exist, so "
        "requests with it fail: move the label by promote"
    )


def describe_unloaded(root: AnyPath, versions: Sequence[int]) -> str:
    """Says that a server will not load versions with labels, and how to change that."""
    numbers = ", ".join(map(str, versions))
    return (
        f"{locate_model_config(root)} has a model_version_policy that leaves out version {numbers},"
        " so the server refuses the labels: write model_version_policy { all {} } for "
        f"{root.name}"
    )


def check_label(label: str, argument: str = "label") -> None:
    """Checks that a text can be a label.

    Raises:
      SavingError: it cannot.
    """
    if not isinstance(label, str) or _LABEL.fullmatch(label) is None:
        raise SavingError(
            f"{argument} must be a word of letters, digits, '_', '-' and '.' that begins with a "
            f"letter, such as {CANARY!r}. Got: {label!r}."
        )


def update_labels(
    root: AnyPath, update: Callable[[Mapping[str, int]], Mapping[str, int]]
) -> dict[str, int]:
    """Changes the labels of the versions below `root`, and returns them.

    Args:
      root: the folder of the versions, absolute if it is on disk.
      update: takes the labels, and returns the new ones. If the storage has locks, it is called
        for one caller at a time.

    Raises:
      FileFormatError: the file of models is damaged.
      OSError: it cannot be read or written.
    """
    file = locate_model_config(root)
    with lock_folder(file.parent):
        text = _read_text(file) if file.exists() else "model_config_list {\n}\n"
        fields = _parse(text, file)
        entry = _find_model(fields, root)
        old_labels = {} if entry is None else _read_entry_labels(entry, file)
        labels = dict(sorted(update(old_labels).items()))
        if labels != old_labels:
            new_text = _replace_labels(text, fields, entry, root, labels)
            new_entry = _find_model(_parse(new_text, file), root)
            if new_entry is None or _read_entry_labels(new_entry, file) != labels:
                raise _make_format_error(file, "the labels cannot be written into it")
            with replace_file_at(file, bytes_of="publish") as stream:
                stream.write(new_text.encode(errors=_BYTES))
    return labels


def check_labels_writable(root: AnyPath) -> None:
    """Checks, before any work, that the file with the labels can be written.

    Raises:
      PermissionError: its folder is not writable.
    """
    file = locate_model_config(root)
    if isinstance(file, Path):
        folder = Path(os.path.realpath(file)).parent
        if folder.is_dir() and not os.access(folder, os.W_OK):
            text = "cannot be written, and it has the labels: allow it, or publish without a label"
            raise make_path_error(errno.EACCES, text, file)


def find_unloaded(
    root: AnyPath, versions: Collection[int], labelled: Collection[int] | None = None
) -> list[int]:
    """Returns the versions with labels that the server does not load, by its version policy.

    Args:
      root: the folder of the versions.
      versions: the versions below it.
      labelled: the versions to look at; None takes those that have labels.

    Raises:
      FileFormatError: the file of models is damaged.
      OSError: it cannot be read.
    """
    entry = _read_entry(root)
    if entry is None:
        return []
    file = locate_model_config(root)
    loaded = set(versions)
    for policy in entry.messages("model_version_policy"):
        for specific in policy.messages("specific"):
            loaded &= {_read_integer(text, file) for text in specific.values("versions")}
        for latest in policy.messages("latest"):
            # TensorFlow Serving takes 0 for the default.
            count = max([1, *(_read_integer(t, file) for t in latest.values("num_versions"))])
            loaded &= set(sorted(versions)[-count:])
    if labelled is None:
        labelled = _read_entry_labels(entry, file).values()
    return sorted(set(labelled) - loaded)


def _read_entry(root: AnyPath) -> _Field | None:
    file = locate_model_config(root)
    return _find_model(_parse(_read_text(file), file), root) if file.is_file() else None


def _read_text(file: AnyPath) -> str:
    if file.stat().st_size > _MAX_BYTES:
        raise FileFormatError(
            f"{file} has {file.stat().st_size} bytes, and at most {_MAX_BYTES} are read.",
            file=str(file),
        )
    return file.read_bytes().decode(errors=_BYTES)


def _parse(text: str, file: AnyPath) -> tuple[_Field, ...]:
    try:
        fields = _Parser(text).fields(None)
    except _FormatError as e:
        raise _make_format_error(file, str(e)) from e
    if any(field.name == "custom_model_config" for field in fields):
        raise _make_format_error(file, "it has a custom_model_config, so it cannot list models")
    return fields


def _make_format_error(file: AnyPath, problem: str) -> FileFormatError:
    return FileFormatError(
        f"{file} is not a file of models for TensorFlow Serving: {problem}. Correct or remove it.",
        file=str(file),
    )


def _find_model(fields: tuple[_Field, ...], root: AnyPath) -> _Field | None:
    """Finds the entry of a model, by its path or else by its name."""
    entries = [
        entry
        for models in fields
        if models.name == "model_config_list"
        for entry in models.fields
        if entry.name == "config"
    ]
    paths = [[path.rstrip("/") for path in e.values("base_path")] for e in entries]
    by_path = [e for e, own in zip(entries, paths, strict=True) if str(root) in own]
    by_name = [e for e in entries if root.name in e.values("name")]
    return next(iter([*by_path, *by_name]), None)


def _read_entry_labels(entry: _Field, file: AnyPath) -> dict[str, int]:
    labels = {}
    for field in entry.messages("version_labels"):
        keys, values = field.values("key"), field.values("value")
        if len(keys) != 1 or len(values) != 1:
            raise _make_format_error(file, "version_labels needs one key and one value")
        labels[keys[0]] = _read_integer(values[0], file)
    return labels


def _read_integer(text: str, file: AnyPath) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise _make_format_error(file, f"expected the number of a version, got {text!r}")
    return int(text, 0)


def _replace_labels(
    text: str,
    fields: tuple[_Field, ...],
    entry: _Field | None,
    root: AnyPath,
    labels: Mapping[str, int],
) -> str:
    labels_text = _format_labels(labels)
    if entry is not None:
        if not entry.messages("model_version_policy"):
            labels_text = _POLICY + labels_text
        for field in reversed(entry.messages("version_labels")):
            before, after = text[: field.start], text[field.end :]
            # A line that becomes empty goes; any other line break stays, as it may end a comment.
            is_last = after.lstrip(" \t\r").startswith("\n")
            text = before.rstrip() + after if is_last else before + after.lstrip(" \t")
        entry = _find_model(_Parser(text).fields(None), root)
        return _insert_fields(text, entry, labels_text)
    models = next((f for f in fields if f.name == "model_config_list"), None)
    if models is None:
        text += "\nmodel_config_list {\n}\n"
        models = _Parser(text).fields(None)[-1]
    name = f"name: {_quote(root.name)}\nbase_path: {_quote(str(root))}\n"
    body = _indent(f'{name}model_platform: "tensorflow"\n{_POLICY}{labels_text}')
    return _insert_fields(text, models, f"config {{\n{body}}}\n")


def _insert_fields(text: str, message: _Field | None, fields: str) -> str:
    """Inserts fields at the end of a message.

    A message on one line stays on one line; otherwise the fields are one level deeper than the line
    of its closing bracket.
    """
    assert message is not None
    place = message.end_of_fields
    body = text[:place].rstrip()
    if message.fields and "\n" not in text[message.start : place]:
        line = " ".join(each.strip() for each in fields.strip().split("\n"))
        return f"{body} {line} {text[place:]}"
    line = text[:place].rpartition("\n")[2]
    margin = line[: len(line) - len(line.lstrip())]
    return f"{body}\n{_indent(fields, margin + '  ')}{margin}{text[place:]}"


def _format_labels(labels: Mapping[str, int]) -> str:
    return "".join(
        f"version_labels {{ key: {_quote(label)} value: {number} }}\n"
        for label, number in sorted(labels.items())
    )


def _unquote(token: str) -> str:
    """Returns the content of a string; escapes are bytes of UTF-8."""

    def unescape(match: re.Match[str]) -> str:
        octal, hexadecimal, letter = match.groups()
        if letter is not None:
            return {"n": "\n", "r": "\r", "t": "\t"}.get(letter, letter)
        return chr(int(octal, 8) if octal else int(hexadecimal, 16))

    text = _ESCAPE.sub(unescape, token[1:-1])
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:  # it has characters that are not escaped
        return text


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _indent(text: str, margin: str = "  ") -> str:
    return "".join(f"{margin}{line}\n" for line in text.rstrip().split("\n"))
