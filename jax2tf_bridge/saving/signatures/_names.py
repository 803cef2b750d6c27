"""Names inputs and outputs of a signature, from the paths of a function's leaves."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import SavingError


def valid_names(paths: Iterable[str], prefix: str) -> tuple[str, ...]:
    """Makes a unique name that TensorFlow accepts for each path.

    Args:
      paths: the paths, in Python's notation.
      prefix: the prefix of names that would be empty, begin with a digit or be a keyword.

    >>> valid_names(["x", "p['w']", "p['w'][0].mean", "p_w"], "input")
    ('x', 'p_w', 'p_w_0_mean', 'p_w_1')
    >>> valid_names([""], "output"), valid_names(["[0]", "[1]['a b']"], "output")
    (('output_0',), ('output_0', 'output_1_a_b'))
    """
    names: list[str] = []
    taken: set[str] = set()
    for path in paths:
        plain = re.sub(r"\W+", "_", path, flags=re.ASCII).strip("_") or "0"
        name = unique = plain if _can_be_keyword(plain) else f"{prefix}_{plain}"
        for number in itertools.count(1):
            # TensorFlow compares the names of operations without regard to case.
            if unique.lower() not in taken:
                break
            unique = f"{name}_{number}"
        taken.add(unique.lower())
        names.append(unique)
    return tuple(names)


def rename_ports(
    names: Sequence[str],
    paths: Sequence[str],
    given: Mapping[str, str] | Sequence[str],
    signature: str,
    kind: str,
) -> tuple[str, ...]:
    """Replaces names by those that the user gave.

    Args:
      names: the names that follow from the paths.
      paths: the paths, in Python's notation.
      given: the user's names, by name or path; or one for each, in order.
      signature: the signature's name, for messages.
      kind: "input" or "output".

    Raises:
      SavingError: names do not exist, clash, or are forbidden by TensorFlow.
    """
    argument, where = f"{kind}_names", f"of the signature {signature}"
    if isinstance(given, str) or not isinstance(given, (Mapping, Sequence)):
        raise SavingError(
            f"{argument} {where} must be a mapping, or a sequence of one name each. Got: {given!r}"
        )
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise SavingError(
                f"{argument} {where} must name each of {len(names)} {kind}s "
                f"({', '.join(names)}). Got {len(given)}: {list(given)}"
            )
        given = dict(zip(names, given, strict=True))
    for old, new in given.items():
        if old not in names and old not in paths:
            raise SavingError(
                f"{argument} {where} renames {old!r}, which is not an {kind}"
                f"{did_you_mean(old, [*names, *paths]) or '.'} The {kind}s: {', '.join(names)}."
            )
        if (
            not isinstance(new, str)
            or not new.isascii()
            or not new.isidentifier()
            or (not _can_be_keyword(new))
        ):
            raise SavingError(
                f"{argument} {where} has the name {new!r}, which TensorFlow does not take: it "
                "begins with a letter and has letters, digits and underscores."
            )
    result = tuple(
        given.get(name, given.get(path, name)) for name, path in zip(names, paths, strict=True)
    )
    for i, name in enumerate(result):
        first = [other.lower() for other in result].index(name.lower())
        if first != i:
            raise SavingError(
                f"Two {kind}s {where} are named {name!r}, for {paths[first] or names[first]} and "
                f"{paths[i] or names[i]}: rename one by {argument} (TensorFlow does not tell "
                "upper from lower case)."
            )
    return result


def _can_be_keyword(name: str) -> bool:
    return name[0].isalpha() and not keyword.iskeyword(name) and name != "self"
