"""`jax2tf-bridge versions`, `rollback` and `promote`: the versions of a served model."""

from __future__ import annotations

import argparse
import errno
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import POSITIVE, Command, add_json, print_json
from jax2tf_bridge.cli._console import Console, show_report
from jax2tf_bridge.errors import BridgeError, make_path_error
from jax2tf_bridge.publishing import (
    CANARY,
    STABLE,
    NewVersion,
    Version,
    describe_labels,
    list_versions,
    promote,
    remove_label,
    rollback,
)
from jax2tf_bridge.storage import AnyPath, as_path

if TYPE_CHECKING:
    from jax2tf_bridge.saving import Published

JSON_OF_VERSION = "print JSON about the new version, as versions --json does"

_VERSIONS = """\
Lists the versions of a model: number, date, what changed, digests, labels, and what is damaged.
Needs neither JAX nor TensorFlow."""

_VERSIONS_EXAMPLES = """\
examples:
  jax2tf-bridge versions models/predict
  jax2tf-bridge versions models/predict --check
  jax2tf-bridge versions models/predict --json | jq '.[].number'"""

_ROLLBACK = """\
Publishes the content of an older version again, under the next number, which a server takes up.
Checks its files first. Needs neither JAX nor TensorFlow."""

_ROLLBACK_EXAMPLES = """\
examples:
  jax2tf-bridge rollback models/predict
  jax2tf-bridge rollback models/predict --to 3 --note 'scores drifted'"""

_PROMOTE = """\
Gives the canary version the label "stable", in the models.config that TensorFlow Serving reads.
Needs neither JAX nor TensorFlow."""

_PROMOTE_EXAMPLES = """\
examples:
  jax2tf-bridge promote models/predict
  jax2tf-bridge promote models/predict 7 --to canary
  jax2tf-bridge promote models/predict --remove canary"""


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", type=as_path, metavar="ROOT", help="the folder of all versions")


def add_publishing_options(parser: argparse.ArgumentParser) -> None:
    """Adds --keep, --label and --note, for commands that publish a version."""
    parser.add_argument(
        "--keep",
        type=POSITIVE,
        metavar="N",
        help="afterwards, remove all versions but the newest N and those with a label",
    )
    parser.add_argument(
        "--label",
        metavar="LABEL",
        help=f"the label that the version gets in models.config beside ROOT, such as {CANARY}",
    )
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="a note that the command versions shows"
    )


def _add_versions_options(parser: argparse.ArgumentParser) -> None:
    _add_root(parser)
    parser.add_argument(
        "--check", action="store_true", help="read all files, and compare them with the manifests"
    )
    add_json(parser, "print JSON; docs/command-line.md has the fields")


def _run_versions(options: argparse.Namespace, console: Console) -> None:
    with console.step(f"reading {options.root}"):
        versions = list_versions(options.root, contents=options.check)
    if not versions and not options.root.exists():
        raise make_path_error(errno.ENOENT, "does not exist", options.root)
    if options.json:
        print_json([_as_json(version) for version in versions])
    elif not versions:
        console.note(f"{options.root} has no version")
    else:
        show_report("\n".join(map(str, versions)), has_title=False)
    unsound = [str(version.number) for version in versions if version.problem]
    if unsound and options.check:
        raise BridgeError(f"{options.root}: not sound: {', '.join(unsound)}")


def _as_json(version: Version) -> dict[str, object]:
    return {
        **vars(version),
        "path": str(version.path),
        "published": None if version.published is None else version.published.isoformat(),
    }


def print_notes(new: NewVersion[Any] | Published, console: Console, *more: str | None) -> None:
    """Prints notes about a new version: its own, `more`, removed versions, and labels."""
    for note in (*new.notes, *filter(None, more)):
        console.note(note)
    if new.removed:
        console.note(f"removed the versions {', '.join(map(str, new.removed))}")
    if new.labels:
        console.note(describe_labels(new.path.parent, new.labels))


def print_version(root: AnyPath, new: NewVersion[Any] | Published) -> None:
    """Prints a new version as JSON: as in `versions --json`, with what else changed."""
    version = next((v for v in list_versions(root) if v.number == new.version), None)
    # Another publisher may have removed it meanwhile.
    facts = {"number": new.version, "path": str(new.path)} if version is None else _as_json(version)
    print_json({**facts, "removed": list(new.removed), "notes": list(new.notes)})


def _add_rollback_options(parser: argparse.ArgumentParser) -> None:
    _add_root(parser)
    parser.add_argument(
        "--to",
        type=POSITIVE,
        metavar="N",
        help="the version to go back to; by default the newest sound one with older content",
    )
    add_publishing_options(parser)
    add_json(parser, JSON_OF_VERSION)


def _run_rollback(options: argparse.Namespace, console: Console) -> None:
    with console.step(f"publishing below {options.root}"):
        new = rollback(
            options.root, options.to, keep=options.keep, label=options.label, note=options.note
        )
    print_notes(new, console)
    if options.json:
        print_version(options.root, new)
    else:
        print(printable(f"{options.root / str(new.version)}: the content of version {new.result}"))


def _add_promote_options(parser: argparse.ArgumentParser) -> None:
    _add_root(parser)
    parser.add_argument(
        "version",
        nargs="?",
        default=CANARY,
        type=lambda text: int(text) if text.isdecimal() else text,
        metavar="VERSION",
        help=f"the number or the label of the version (default {CANARY})",
    )
    parser.add_argument("--remove", metavar="LABEL", help="remove this label instead of moving one")
    parser.add_argument(
        "--to", default=STABLE, metavar="LABEL", help=f"the label that it gets (default {STABLE})"
    )
    add_json(parser, "print JSON: the versions by their labels")


def _run_promote(options: argparse.Namespace, console: Console) -> None:
    if options.remove is not None:
        labels = remove_label(options.root, options.remove)
    else:
        labels = promote(options.root, options.version, to=options.to)
    if options.json:
        print_json({"labels": dict(sorted(labels.items()))})
        return
    for label, number in sorted(labels.items()):
        print(printable(f"{options.root / str(number)}: {label}"))


VERSIONS = Command(
    "versions",
    "list the versions of a served model",
    _VERSIONS,
    _VERSIONS_EXAMPLES,
    _add_versions_options,
    _run_versions,
)
ROLLBACK = Command(
    "rollback",
    "publish an older version again",
    _ROLLBACK,
    _ROLLBACK_EXAMPLES,
    _add_rollback_options,
    _run_rollback,
)
PROMOTE = Command(
    "promote",
    "move a label, such as stable, to a version",
    _PROMOTE,
    _PROMOTE_EXAMPLES,
    _add_promote_options,
    _run_promote,
)
