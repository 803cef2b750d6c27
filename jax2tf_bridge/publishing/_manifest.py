"""The manifest of a version: its origin, and the size and digest of each file; checks of versions.

The manifest is assets.extra/jax2tf_bridge.manifest.json. It shows whether a version was damaged or
edited by hand after it was published.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from jax2tf_bridge._utils import JsonProblem, JsonValue, printable, progress_bar
from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import FileFormatError, SavingError
from jax2tf_bridge.saved_model import (
    GRAPH_FILE,
    MANIFEST,
    VARIABLES_FOLDER,
    NewerFormatError,
    TensorBundle,
    read_format,
    read_json,
    read_saved_model,
)
from jax2tf_bridge.storage import AnyPath, open_file, walk_files

FORMAT = 1
"""Version of the JSON; increased for every change, including new fields."""

Change: TypeAlias = Literal["model", "weights", "rollback"]
"""Change that a version makes: the whole model, its weights only, or back to an older version."""

_MAX_BYTES = 1 << 26
"""Maximum size of a manifest, in bytes."""
_BLOCK_BYTES = 1 << 20
_DIGEST_CHARACTERS = 12
"""Number of hexadecimal digits of a digest that people compare."""


@dataclass(frozen=True)
class Origin:
    """Origin of a version.

    Attributes:
      change: what it changed.
      base: the version with the same graph, for new weights; the one with the same content, for a
        rollback; None for a new model.
      note: a note of the publisher.
    """

    change: Change = "model"
    base: int | None = None
    note: str = ""


NEW_MODEL = Origin()


@dataclass(frozen=True)
class FileEntry:
    """A file: its size in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Contents of a manifest.

    Attributes:
      bridge: the release of jax2tf-bridge that published the version.
      published: the time of publication, in UTC.
      origin: how the version came to be.
      files: the files by their paths relative to the version, without the manifest.
    """

    bridge: str
    published: datetime.datetime
    origin: Origin
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    def weights_digest(self) -> str:
        """Returns a short digest of the variables; equal weights have equal digests."""
        return self._compute_digest(lambda name: name.startswith(f"{VARIABLES_FOLDER}/"))

    def code_digest(self) -> str:
        """Returns a short digest of the graph; versions that share one have equal digests."""
        return self._compute_digest(lambda name: name == GRAPH_FILE)

    def _compute_digest(self, is_part: Callable[[str], bool]) -> str:
        lines = [f"{name} {entry.sha256}\n" for name, entry in self.files.items() if is_part(name)]
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def check_note(note: str) -> None:
    """Checks that a publisher's note is a line of text.

    Raises:
      SavingError: it is not.
    """
    if not isinstance(note, str) or note != printable(note) or len(note.splitlines()) > 1:
        raise SavingError(f"note must be one line of text. Got: {note!r}.")


def write_manifest(
    folder: Path, origin: Origin, files: Mapping[str, FileEntry] | None = None
) -> None:
    """Writes the manifest of a new version.

    Args:
      folder: the version.
      origin: how it came to be.
      files: the entries of its files; None reads all of them.

    Raises:
      OSError: a file cannot be read, or the manifest cannot be written.
    """
    (folder / MANIFEST).unlink(missing_ok=True)  # it may be a hard link to that of another version
    files = _read_entries(folder) if files is None else files
    value = {
        "format": FORMAT,
        "bridge": __version__,
        "published": datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat(),
        "origin": asdict(origin),
        "files": {name: asdict(entry) for name, entry in files.items()},
    }
    (folder / MANIFEST.parent).mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


def read_manifest(folder: AnyPath) -> Manifest | None:
    """Reads the manifest of a version; None without one, as in versions by other tools.

    Raises:
      FileFormatError: it is damaged, or of a newer format.
      OSError: it cannot be read.
    """
    file = folder / MANIFEST
    if not file.exists():
        return None
    try:
        return _decode(read_json(file, _MAX_BYTES))
    except NewerFormatError as e:
        raise FileFormatError(f"{file} {e}", file=str(file)) from e
    except JsonProblem as e:
        raise FileFormatError(
            f"{file} is damaged: {e}. Publish the version again.", file=str(file)
        ) from e


def iterate_differences(folder: AnyPath, manifest: Manifest, *, contents: bool) -> Iterator[str]:
    """Yields the differences between the files of a version and its manifest, as text.

    Args:
      folder: the version.
      manifest: its manifest.
      contents: whether to read the files, and to name files that are not in the manifest; otherwise
        only their sizes are compared.
    """
    sizes = _list_sizes(folder)
    for name, entry in manifest.files.items():
        if name not in sizes:
            yield f"{name} is missing"
        elif sizes[name] != entry.size:
            yield f"{name} has {sizes[name]} bytes; {entry.size} were published"
    if contents:
        yield from (f"{name} was not published" for name in sizes if name not in manifest.files)
        expected = {name: entry.size for name, entry in manifest.files.items()}
        same_sizes = {name: size for name, size in sizes.items() if expected.get(name) == size}
        for name, digest in _compute_digests(folder, same_sizes).items():
            if digest != manifest.files[name].sha256:
                yield f"{name} has other contents than were published"


def _list_sizes(folder: AnyPath) -> dict[str, int]:
    """Returns the sizes of all files by relative path, except for the manifest."""
    return {name: size for name, size in walk_files(folder) if name != MANIFEST.as_posix()}


def _read_entries(folder: Path) -> dict[str, FileEntry]:
    sizes = _list_sizes(folder)
    digests = _compute_digests(folder, sizes)
    return {name: FileEntry(sizes[name], digest) for name, digest in digests.items()}


def _compute_digests(folder: AnyPath, sizes: Mapping[str, int]) -> dict[str, str]:
    digests = {}
    with progress_bar("checking files", sum(sizes.values()), "B") as advance:
        for name in sizes:
            digest = hashlib.sha256()
            with open_file(folder / name) as (file, _):
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    advance(len(block))
            digests[name] = digest.hexdigest()
    return digests


def _decode(root: JsonValue) -> Manifest:
    read_format(root, FORMAT)
    _, bridge, published, origin, files = root.fields(
        "format", "bridge", "published", "origin", "files"
    )
    return Manifest(
        bridge.text(), _decode_time(published), _decode_origin(origin), dict(_decode_files(files))
    )


def _decode_time(place: JsonValue) -> datetime.datetime:
    try:
        time = datetime.datetime.fromisoformat(place.text())
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise place.problem("a time with a time zone")
    return time


def _decode_origin(place: JsonValue) -> Origin:
    change, base, note = place.fields("change", "base", "note")
    if change.value not in get_args(Change):
        raise change.problem(f"one of {', '.join(get_args(Change))}")
    number = None if base.value is None else base.integer(0)
    return Origin(cast(Change, change.value), number, note.text())


def _decode_files(place: JsonValue) -> Iterator[tuple[str, FileEntry]]:
    for name, entry in place.items():
        size, digest = entry.fields("size", "sha256")
        yield name, FileEntry(size.integer(0), digest.text())


def check_complete(folder: AnyPath) -> None:
    """Reads the graph of a SavedModel, and compares the sizes of its files with their indexes.

    It reads no arrays, so it is fast for large models and in remote storage.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: the graph or the variables are missing, empty or truncated, or other files
        are missing that TensorFlow needs.
      OSError: a file cannot be read.
    """
    contents = read_saved_model(folder, accept_any_tool=True)
    for missing in (*contents.missing_files, *contents.missing_functions):
        raise FileFormatError(f"{folder} has no {missing}.", file=str(folder))
    if contents.warm_up is not None and contents.warm_up.problem is not None:
        raise FileFormatError(
            f"The warm-up requests of {folder} are damaged: {contents.warm_up.problem}.",
            file=str(folder),
        )
    if (folder / VARIABLES_FOLDER / "variables.index").exists():
        _check_variables(folder)


def _check_variables(folder: AnyPath) -> None:
    bundle = TensorBundle(folder / VARIABLES_FOLDER / VARIABLES_FOLDER)
    ends: dict[int, int] = {}
    for entry in bundle.entries.values():
        ends[entry.shard] = max(ends.get(entry.shard, 0), entry.start + entry.size)
    for shard, end in ends.items():
        path = bundle.shard(shard)
        size = path.stat().st_size if path.exists() else None
        if size is None:
            raise FileFormatError(f"{path} is missing.", file=str(path))
        if size < end:
            raise FileFormatError(
                f"{path} is cut short: it has {size} bytes, and variables up to byte {end}.",
                file=str(path),
            )


def check_published(folder: AnyPath, *, contents: bool) -> Manifest | None:
    """Checks that a version is complete, and that its files match its manifest, if it has one.

    Args:
      folder: the version.
      contents: whether to read and compare all files; otherwise only their sizes.

    Returns:
      The manifest; None without one.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: it is incomplete, or differs from its manifest; the text names each file.
      OSError: a file cannot be read.
    """
    check_complete(folder)
    manifest = read_manifest(folder)
    if manifest is not None:
        check_files(folder, manifest, contents=contents)
    return manifest


def check_files(
    folder: AnyPath, manifest: Manifest, *, contents: bool, version: AnyPath | None = None
) -> None:
    """Compares the files of a version with its manifest.

    Args:
      folder: the version, or a copy of it.
      manifest: its manifest.
      contents: as for `check_published`.
      version: the path of the version for the message, if `folder` is a copy.

    Raises:
      FileFormatError: they differ; the text names each file.
      OSError: a file cannot be read.
    """
    differences = list(iterate_differences(folder, manifest, contents=contents))
    if differences:
        place = str(version or folder)
        raise FileFormatError(
            f"{place} is not what was published: {'; '.join(differences)}.", file=place
        )
