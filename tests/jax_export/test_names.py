"""Every name of jax.export has a counterpart, and docs/jax-export.md says which."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export as jax_export

from jax2tf_bridge import jax_export as of_the_bridge
from tests.fresh_process import run_python

PAGE = Path(__file__).parents[2] / "docs" / "jax-export.md"
# As JAX 0.4.30 had them, and those that it had dropped by then.
OLDER = {
    *("Exported", "DisabledSafetyCheck", "export", "call", "call_exported", "serialize"),
    *("default_lowering_platform", "deserialize", "SymbolicScope", "is_symbolic_dim"),
    *("minimum_supported_serialization_version", "maximum_supported_serialization_version"),
    *("symbolic_shape", "symbolic_args_specs", "args_specs", "poly_spec", "poly_specs"),
    "shape_and_dtype_jax_array",
}


def _documented(heading: str) -> dict[str, str]:
    """Reads what the table below a heading says of each name."""
    text = PAGE.read_text()
    section = text[text.index(f"## {heading}\n") :].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+) \|$", section, re.MULTILINE)
    return {name: said for names, said in rows for name in re.findall(r"`(\w+)`", names)}


def _public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def _of_exported() -> set[str]:
    fields = {field.name for field in dataclasses.fields(jax_export.Exported)}
    return {name for name in fields | _public(jax_export.Exported) if not name.startswith("_")}


@pytest.mark.checkout
def test_the_page_has_every_name_of_the_installed_jax_and_no_other() -> None:
    for installed, heading in (
        (_public(jax_export), "Names of jax.export"),
        (_of_exported(), "Fields and methods of Exported"),
    ):
        documented = _documented(heading)
        unknown = sorted(installed - set(documented))
        assert not unknown, (
            f"JAX {jax.__version__} has names that the bridge does not: {unknown}. Give each a "
            f"counterpart in jax2tf_bridge/jax_export, and a row in {PAGE.name}, {heading!r}."
        )
        gone = {name for name in set(documented) - installed if " on; " not in documented[name]}
        assert not gone, f"JAX {jax.__version__} does not have these names of the page"


@pytest.mark.checkout
def test_names_of_older_releases_are_on_the_page() -> None:
    documented = {*_documented("Names of jax.experimental.export"), *_public(jax_export)}
    assert documented >= OLDER


def test_every_name_is_there() -> None:
    names = _public(jax_export) | OLDER | {"symbolic_dim_bounds"}
    missing = sorted(name for name in names if not hasattr(of_the_bridge, name))
    assert not missing, f"of JAX {jax.__version__}"
    assert set(of_the_bridge.__all__) == names


def test_every_field_and_method_is_there() -> None:
    portable = of_the_bridge.export(jax.jit(jax.numpy.sin))(np.float32(0))
    exported = jax_export.export(jax.jit(jax.numpy.sin))(np.float32(0))
    for name in sorted(_of_exported()):
        theirs, ours = getattr(exported, name), getattr(portable, name)
        assert callable(theirs) == callable(ours), name
    # A field with a default would be found on the class, before the portable function is asked.
    defaults = [
        f.name
        for f in dataclasses.fields(jax_export.Exported)
        if f.default is not dataclasses.MISSING
    ]
    assert not defaults


def test_a_name_of_a_newer_jax_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_export, "new_in_jax", None, raising=False)
    with pytest.raises(AttributeError, match=r"'new_in_jax'\. jax.export of JAX .* Use JAX's, "):
        _ = of_the_bridge.new_in_jax  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no attribute 'in_no_jax'$"):
        _ = of_the_bridge.in_no_jax  # type: ignore[attr-defined]


def test_the_module_needs_jax_and_says_so() -> None:
    code = """
    import jax2tf_bridge
    try:
        from jax2tf_bridge import jax_export
    except jax2tf_bridge.errors.MissingDependencyError as error:
        print(error)
    """
    printed = run_python(code, without_jax=True)
    assert printed.startswith("jax2tf_bridge.jax_export needs JAX, which is not installed here")
