"""list_versions(), rollback(), promote(): the versions of a model, and which of them is served."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import (
    Argument,
    BridgeError,
    FileFormatError,
    Message,
    SavingError,
    make_path_error,
)
from jax2tf_bridge.publishing._labels import (
    CANARY,
    STABLE,
    check_label,
    describe_unloaded,
    find_unloaded,
    read_labels,
    update_labels,
)
from jax2tf_bridge.publishing._manifest import (
    Change,
    Manifest,
    Origin,
    check_complete,
    check_files,
    check_published,
    read_manifest,
)
from jax2tf_bridge.publishing._versions import (
    NewVersion,
    keep_existing,
    link_files,
    open_version_folder,
    publish_version,
    published_versions,
)
from jax2tf_bridge.storage import AnyPath, on_disk


@dataclass(frozen=True)
class Version:
    """A version of a model; print it.

    Attributes:
      number: its number.
      path: its directory.
      published: the time of publication, in UTC; None without a manifest.
      change: what it changed: "model", "weights", or "rollback"; None without a manifest.
      base: the version with the same graph, for new weights; the one with the same content, for a
        rollback.
      code, weights: short digests; versions with the same graph, or the same weights, share them.
      labels: its labels for TensorFlow Serving.
      note: a note of the publisher.
      problem: what is damaged; "" if it is sound.
    """

    number: int
    path: AnyPath
    published: datetime.datetime | None = None
    change: Change | None = None
    base: int | None = None
    code: str = ""
    weights: str = ""
    labels: tuple[str, ...] = ()
    note: str = ""
    problem: str = ""

    @property
    def content(self) -> int:
        """The number of the version that first had the content: its own, or a rollback's base."""
        return self.base if self.change == "rollback" and self.base is not None else self.number

    def __str__(self) -> str:
        date = "unknown date" if self.published is None else f"{self.published:%Y-%m-%d %H:%M}"
        words = [str(self.number), date, self.describe_change()]
        if self.code:
            words.append(f"code {self.code}, weights {self.weights}")
        if self.labels:
            words.append(f"labels: {', '.join(self.labels)}")
        words += filter(None, [self.note, self.problem and f"NOT SOUND: {self.problem}"])
        return "  ".join(words)

    def describe_change(self) -> str:
        """Describes what it changed."""
        if self.change == "weights":
            return f"weights (graph of {self.base})"
        if self.change == "rollback":
            return f"rollback to {self.base}"
        return self.change or "without a manifest"


def list_versions(root: str | os.PathLike[str], *, contents: bool = False) -> list[Version]:
    """Describes the versions below a root, the newest last.

    Args:
      root: the folder of all versions, on disk or behind a scheme.
      contents: whether to read all files of each version and compare them with the digests of its
        manifest. Otherwise the graph is read, and the sizes of the files are compared.

    Returns:
      The versions; a damaged one has a `problem`. The list is empty if there is no such root.

    Raises:
      NotADirectoryError: `root` is a file.
      FileFormatError: the file with the labels is damaged.
      OSError: `root` cannot be read.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature, publish
    >>> root = tempfile.mkdtemp()
    >>> w = np.ones((3, 2), np.float32)
    >>> dense = Signature(lambda w, x: x @ w, args=[np.ones((4, 3), np.float32)])
    >>> published = publish(root, dense, params=w), publish(root, params=w * 2, note="trained more")
    >>> [(v.number, v.describe_change(), v.note, v.problem) for v in list_versions(root)]
    [(1, 'model', '', ''), (2, 'weights (graph of 1)', 'trained more', '')]
    """
    return _describe_all(root, read_labels(open_version_folder(root).path), contents=contents)


def _describe_all(
    root: str | os.PathLike[str], labels: Mapping[str, int], *, contents: bool = False
) -> list[Version]:
    return [
        _describe(number, path, labels, contents=contents)
        for number, path in published_versions(root).items()
    ]


def _read_labels_if_possible(root: str | os.PathLike[str]) -> Mapping[str, int]:
    # Another model's entry must not prevent a rollback.
    try:
        return read_labels(open_version_folder(root).path)
    except FileFormatError:
        return {}


def _describe(number: int, path: AnyPath, labels: Mapping[str, int], *, contents: bool) -> Version:
    version = Version(
        number, path, labels=tuple(sorted(name for name, n in labels.items() if n == number))
    )
    try:
        if (manifest := read_manifest(path)) is not None:
            version = replace(
                version,
                published=manifest.published,
                **vars(manifest.origin),
                code=manifest.code_digest(),
                weights=manifest.weights_digest(),
            )
        check_published(path, contents=contents)
    except (BridgeError, OSError) as e:
        return replace(version, problem=str(e))
    return version


def rollback(
    root: str | os.PathLike[str],
    to: int | None = None,
    *,
    keep: int | None = None,
    label: str | None = None,
    note: str = "",
) -> NewVersion[int]:
    """Publishes the content of an older version again, under the next number.

    A server loads the version with the largest number, so a rollback is a new version: complete or
    not at all, as in `publish`. Its files are hard links to those of the older version, or copies.
    They are first read, and compared with the older version's manifest. Needs neither JAX nor
    TensorFlow.

    Args:
      root: the folder of all versions, on disk or behind a scheme.
      to: the number of the older version. None takes the newest sound version whose content is
        older than the served content, which is that of the newest version, or of the version with
        `label`. So a second rollback goes one version further back.
      keep: the number of newest versions that stay, as in `publish`.
      label: a label that the new version gets, as in `publish`.
      note: a note for `list_versions`.

    Returns:
      The new version; its `result` is the number of the version whose content it has.

    Raises:
      SavingError: there is no such version, or no older sound one.
      FileFormatError: the version `to` is damaged.
      FileNotFoundError: there is no version below `root`.
      OSError: as for `publish`.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature, publish
    >>> root = tempfile.mkdtemp()
    >>> w = np.ones((3, 2), np.float32)
    >>> dense = Signature(lambda w, x: x @ w, args=[np.ones((4, 3), np.float32)])
    >>> published = publish(root, dense, params=w), publish(root, params=w * 2)
    >>> new = rollback(root)
    >>> new.version, new.result
    (3, 1)
    """
    if to is not None and as_integer(to) is None:
        raise SavingError(
            Message(Argument("to"), f" must be the number of a version. Got: {to!r}.")
        )
    versions = _describe_all(root, _read_labels_if_possible(root))
    if not versions:
        text = "has no version to go back to"
        raise make_path_error(errno.ENOENT, text, root)
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        if to is not None:
            source = _find_version(root, versions, to)
            local, manifest = stack.enter_context(_open_sound(source))
        else:
            served = next((v for v in versions if label in v.labels), versions[-1])
            source, local, manifest = _open_newest_before(stack, root, versions, served, notes)
        if manifest is None:
            notes.append(
                f"version {source.number} has no manifest: it is complete, but its contents could "
                "not be compared"
            )

        def write(folder: Path) -> int:
            folder.mkdir()
            link_files(local, folder)
            return source.content

        try:
            new = publish_version(
                root,
                write,
                keep=keep,
                check=check_complete,
                origin=Origin("rollback", source.content, note),
                label=label,
                files=None if manifest is None else manifest.files,
            )
        except FileNotFoundError as e:
            if source.path.exists():
                raise
            raise SavingError(
                f"Another publisher removed version {source.number} below {os.fspath(root)} "
                "meanwhile. Roll back again."
            ) from e
    newest = versions[-1].number
    if any(newest < number < new.version for number in published_versions(root)):
        notes.append(
            f"a version was published meanwhile; version {new.version} replaces it with the "
            f"content of {source.content}"
        )
    return replace(new, notes=(*new.notes, *notes))


def _find_version(
    root: str | os.PathLike[str], versions: Sequence[Version], number: int
) -> Version:
    version = next((v for v in versions if v.number == number), None)
    if version is None:
        raise _make_unknown_version_error(root, number, [v.number for v in versions])
    return version


def _make_unknown_version_error(
    root: str | os.PathLike[str], number: int, numbers: Iterable[int]
) -> SavingError:
    versions = ", ".join(map(str, numbers)) or "none"
    return SavingError(f"{os.fspath(root)} has no version {number}. It has: {versions}.")


@contextlib.contextmanager
def _open_sound(version: Version) -> Iterator[tuple[Path, Manifest | None]]:
    """Yields the files of a version on this disk, and its manifest; reads each file once.

    Raises:
      FileFormatError: the version is damaged.
      OSError: a file cannot be read.
    """
    if version.problem:
        raise FileFormatError(version.problem, file=str(version.path))
    with on_disk(version.path) as local:
        manifest = read_manifest(local)
        if manifest is not None:
            check_files(local, manifest, contents=True, version=version.path)
        yield local, manifest


def _open_newest_before(
    stack: contextlib.ExitStack,
    root: str | os.PathLike[str],
    versions: Sequence[Version],
    served: Version,
    notes: list[str],
) -> tuple[Version, Path, Manifest | None]:
    """Opens the newest sound version before the one whose content is served."""
    content = served.content
    for version in reversed(versions):
        if version.number < content and version.content < content:
            try:
                return version, *stack.enter_context(_open_sound(version))
            except (BridgeError, OSError) as e:
                notes.append(f"version {version.number} is passed over: {e}")
    if notes:
        raise SavingError(
            f"{os.fspath(root)} has no sound version before {content} to go back to: "
            f"{'; '.join(notes)}"
        )
    newer = [version.number for version in versions if version.content > content]
    start = f"{os.fspath(root)} has no version before {content} to go back to."
    if not newer:
        raise SavingError(start)
    advice = " To publish a newer one again, pass its number: "
    raise SavingError(Message(start, advice, Argument("to", newer[-1]), "."))


def promote(
    root: str | os.PathLike[str], version: int | str = CANARY, *, to: str = STABLE
) -> dict[str, int]:
    """Moves a label to a version: by default "stable" to the canary, which keeps its own label.

    The labels are in models.config beside `root`, which `publish(..., label=...)` writes. A server
    that polls this file moves the label without a new version.

    Args:
      root: the folder of all versions, on disk or behind a scheme.
      version: the number of the version, or a label that it has.
      to: the label that moves to it.

    Returns:
      All labels with their versions.

    Raises:
      SavingError: there is no such version or label, or the server would not load the version.
      FileFormatError: the version is damaged, or the file with the labels is.
      OSError: the file cannot be written.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature, publish
    >>> root = tempfile.mkdtemp() + "/dense"
    >>> w = np.ones((3, 2), np.float32)
    >>> dense = Signature(lambda w, x: x @ w, args=[np.ones((4, 3), np.float32)])
    >>> first = publish(root, dense, params=w)
    >>> publish(root, params=w * 2, label="canary").labels
    {'canary': 2, 'stable': 1}
    >>> promote(root)
    {'canary': 2, 'stable': 2}
    """
    check_label(to, "to")
    if not isinstance(version, str) and as_integer(version) is None:
        raise SavingError(f"version must be the number of a version, or a label. Got: {version!r}.")
    path = open_version_folder(root).path

    def move(labels: Mapping[str, int]) -> dict[str, int]:
        versions = published_versions(root)
        existing = keep_existing(labels, versions)
        number = (
            _find_labelled(root, existing, version) if isinstance(version, str) else int(version)
        )
        if number not in versions:
            raise _make_unknown_version_error(root, number, versions)
        check_published(versions[number], contents=False)
        if number in find_unloaded(path, versions, {number}):
            raise SavingError(f"{describe_unloaded(path, [number])}.")
        return {**existing, to: number}

    return update_labels(path, move)


def remove_label(root: str | os.PathLike[str], label: str) -> dict[str, int]:
    """Takes a label away, so that `keep` may remove its version; returns the other labels.

    Args:
      root: the folder of all versions, on disk or behind a scheme.
      label: the label.

    Raises:
      SavingError: no version has the label.
      FileFormatError: the file with the labels is damaged.
      OSError: the file cannot be written.
    """

    def remove(labels: Mapping[str, int]) -> dict[str, int]:
        _find_labelled(root, labels, label)
        existing = keep_existing(labels, published_versions(root))
        return {name: number for name, number in existing.items() if name != label}

    return update_labels(open_version_folder(root).path, remove)


def _find_labelled(root: str | os.PathLike[str], labels: Mapping[str, int], label: str) -> int:
    if label in labels:
        return labels[label]
    names = ", ".join(f"{name} (version {number})" for name, number in sorted(labels.items()))
    advice = (
        (f"It has: {names}.",)
        if names
        else ("It has no labels: publish a version with ", Argument("label", label), ".")
    )
    start = f"{os.fspath(root)} has no version with the label {label!r}. "
    raise SavingError(Message(start, *advice))
