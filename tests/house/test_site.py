"""The site: every page is in its navigation, every public name in its reference, no link is broken.

The slow tests build it, and open its pages in Chromium where there is one.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jax2tf_bridge
import shape_poly
from jax2tf_bridge import errors
from scripts._env import TENSORFLOW
from tests.consumers import harness
from tests.consumers.environments import process_environment
from tests.house.imports import ROOT

pytestmark = pytest.mark.checkout

HTML = ROOT / ".site" / "html"


@pytest.fixture
def import_script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns a function that imports a module of scripts/, which import each other by name."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.startswith(("_docs", "_env")):
            del sys.modules[name]


@pytest.fixture
def pages(import_script: Any) -> Any:
    return import_script("_docs_pages")


def resolve(path: str) -> object:
    """Returns the object that an entry of the reference stands for."""
    package, _, name = path.rpartition(".")
    return getattr(importlib.import_module(package), name)


def public_names() -> Iterator[str]:
    """Yields all public names, by the packages that export them."""
    exported: list[str] = jax2tf_bridge.__all__  # type: ignore[attr-defined]
    yield from (f"jax2tf_bridge.{name}" for name in [*exported, "KerasLayer"])
    packages: list[str] = jax2tf_bridge._PACKAGES.split()  # type: ignore[attr-defined]
    for package in (*packages, "shape_poly"):
        module = shape_poly if package == "shape_poly" else getattr(jax2tf_bridge, package)
        names = getattr(module, "__all__", None)
        if package == "errors":
            names = [
                name
                for name, kind in vars(errors).items()
                if isinstance(kind, type) and issubclass(kind, errors.BridgeError)
            ]
        assert names, package
        yield from (f"{module.__name__}.{name}" for name in names)


def test_every_public_name_has_an_entry(pages: Any) -> None:
    reference = pages.read_reference(pages.read_settings())
    entries = {entry.path for entries in reference.values() for entry in entries}
    assert len(entries) == sum(map(len, reference.values())), "a name has two entries"
    shown: dict[str, list[object]] = {}
    for path in entries:
        with contextlib.suppress(errors.MissingDependencyError):  # an engine that is not here
            shown.setdefault(path.rpartition(".")[2], []).append(resolve(path))
    missing = [
        path
        for path in public_names()
        if not any(each is resolve(path) for each in shown.get(path.rpartition(".")[2], ()))
    ]
    assert not missing, "list them in a [[reference]] of scripts/site/zensical.toml"
    bare = [e.path for each in reference.values() for e in each if not pages.read_summary(e)]
    assert not bare, "give them a docstring"


def test_names_of_jax_are_said_to_be_jax(pages: Any) -> None:
    reference = pages.read_reference(pages.read_settings())
    origins = {e.path: e.origin for entries in reference.values() for e in entries if e.origin}
    assert set(origins.values()) == {"jax.export"}
    for path in origins:
        assert resolve(path).__module__.startswith("jax."), path


def test_every_page_is_in_the_navigation(pages: Any) -> None:
    settings = pages.read_settings()
    made = [f"reference/{page}.md" for page in pages.read_reference(settings)]
    made += ["reference/index.md", "versions.md"]
    names = [*pages.find_pages(), *made]
    _, order = pages.make_navigation(settings["project"]["nav"], names)
    assert sorted(order) == sorted(names)


@pytest.mark.parametrize(
    ("nav", "text"),
    [
        (["a.md"], "docs/b.md has no entry in the navigation. List it once in `nav`"),
        (["a.md", "docs/b.md", {"More": ["docs/b.md"]}], "docs/b.md has more than one entry"),
        (
            ["a.md", "docs/*", "c.md"],
            "The navigation lists c.md, which does not exist. Remove it from `nav`",
        ),
    ],
)
def test_navigation_errors(pages: Any, nav: list[Any], text: str) -> None:
    with pytest.raises(pages.SiteError, match=re.escape(text)):
        pages.make_navigation(nav, ["a.md", "docs/b.md"])


def test_patterns_of_the_navigation(pages: Any) -> None:
    nav = [
        {"Start": ["a.md"]},
        {"Tutorials": ["t/z.md", "t/n*.md", "t/*.md"]},
        {"Later": ["later/*.md"]},
    ]
    navigation, order = pages.make_navigation(nav, ["a.md", "t/m.md", "t/n.md", "t/z.md"])
    assert navigation == [{"Start": ["a.md"]}, {"Tutorials": ["t/z.md", "t/n.md", "t/m.md"]}]
    assert order == ["a.md", "t/z.md", "t/n.md", "t/m.md"]


def test_links_lead_to_the_places_on_the_site(
    pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    for folder in ("docs/tutorials", "benchmarks", "examples"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "benchmarks" / "chart-light.svg").write_text("<svg/>")
    (tmp_path / "examples" / "small.py").write_text("x = 1\n")
    page = tmp_path / "docs" / "tutorials" / "first.md"
    page.write_text(
        "# First\n[a](../saving.md#sizes) [b](../../README.md) [c](../../benchmarks/README.md)\n"
        "[d](../../examples/small.py) [e](https://jax.dev/x.md) [f](#first)\n"
        '<img src="../../benchmarks/chart-light.svg">\n'
        "```text\n[g](../saving.md)\n```\n"
    )
    places = {
        name: pages.place_of_page(name)
        for name in (
            "README.md",
            "docs/saving.md",
            "benchmarks/README.md",
            "docs/tutorials/first.md",
        )
    }
    staging = pages.Staging(tmp_path / "pages", places)
    assert staging.translate("docs/tutorials/first.md") == (
        "# First\n[a](../saving.md#sizes) [b](../index.md) [c](../benchmarks.md)\n"
        "[d](../source/examples/small.py.md) [e](https://jax.dev/x.md) [f](#first)\n"
        '<img src="../benchmarks/chart-light.svg">\n'
        "```text\n[g](../saving.md)\n```\n"
    )
    staging.write_sources()
    assert (tmp_path / "pages" / "benchmarks" / "chart-light.svg").exists()
    text = (tmp_path / "pages" / "source" / "examples" / "small.py.md").read_text()
    assert text == "# examples/small.py\n\n````python\nx = 1\n````\n"
    page.write_text("[h](no.md)")
    with pytest.raises(pages.SiteError, match=r"first.md links to docs/tutorials/no.md, which do"):
        staging.translate("docs/tutorials/first.md")


def test_examples_of_the_script(pages: Any) -> None:
    result = doctest.testmod(pages)
    assert result.attempted > 1
    assert result.failed == 0


def test_charts_follow_the_scheme_of_the_site(pages: Any) -> None:
    staging = pages.Staging(Path(), {"README.md": "index.md"})
    text = staging.translate("README.md")
    assert "benchmarks/chart-light.svg#only-light)" in text
    assert "benchmarks/chart-dark.svg#only-dark)" in text


def test_every_error_says_when_and_what_to_do(pages: Any) -> None:
    advice = pages.read_error_table()
    reference = pages.read_reference(pages.read_settings())["errors"]
    names = {entry.name for entry in reference}
    assert names - advice.keys() == {"BridgeError"}
    assert all(when for when, _ in advice.values())
    made = dict(pages.make_reference(pages.read_settings()))["reference/errors.md"]
    assert made.count("**Raised when**") == len(advice)
    assert "](../shapes.md)" in made


def test_versions_are_those_of_the_matrix(import_script: Any) -> None:
    versions = import_script("_docs_versions")
    page = versions.versions_page()
    pins = versions.read_constants(ROOT / "scripts" / "_commands.py")["OLDEST_PINS"]
    jax, tensorflow = (
        next(pin.split("==")[1] for pin in pins if pin.startswith(f"{name}=="))
        for name in ("jax", TENSORFLOW)
    )
    assert f" | {jax} | {tensorflow} |\n" in page
    for release in (*harness.CONSUMER_RELEASES, harness.RELEASE_CANDIDATE):
        assert f" | 3.11 | not installed | {release} |\n" in page
    for requirement in (harness.LITERT, *harness.ONNX[:2], harness.OPENVINO):
        assert requirement.split("==")[1] in page


def test_versions_of_an_environment(import_script: Any, tmp_path: Path) -> None:
    versions = import_script("_docs_versions")
    assert versions.installed_versions(tmp_path) == {}
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    for name in ("jax-0.12.0.1", "tensorflow_cpu-2.21.0"):
        (tmp_path / "lib/python3.12/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    expected = {"python": "3.12", "jax": "0.12.0.1", "tensorflow-cpu": "2.21.0"}
    assert versions.installed_versions(tmp_path) == expected


def test_broken_links_are_found(import_script: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top-of-a">A</h1><a href="b.html#here">1</a> <a href="b.html#gone">2</a>'
        '<a href="c.html">3</a> <a href="#top-of-a">4</a> <a href="https://jax.dev">5</a>'
        '<img src="chart.svg">'
    )
    (tmp_path / "b.html").write_text('<a id="here"></a><a href="/a.html">A</a>')
    assert list(import_script("_docs_links").find_broken_links(tmp_path)) == [
        "a.html: b.html#gone: no such anchor",
        "a.html: c.html: no such file",
        "a.html: chart.svg: no such file",
    ]


@pytest.fixture(scope="module")
def site() -> Path:
    """Builds the site, in an environment of its own."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs")],
        capture_output=True,
        text=True,
        env=process_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return HTML


@pytest.mark.slow
def test_the_site_is_built_without_warnings(site: Path, pages: Any) -> None:
    for page, entries in pages.read_reference(pages.read_settings()).items():
        text = (site / "reference" / f"{page}.html").read_text()
        for entry in entries:
            _, anchor, rest = text.partition(f'id="{entry.path}"')
            assert anchor, entry.path
            body = re.sub(
                r"<details.*?</details>|<[^>]+>", "", rest.partition("<h2")[0], flags=re.S
            )
            assert len(" ".join(body.split())) > 50, f"{entry.path} has no docstring"
    save = (site / "reference" / "save.html").read_text()
    assert "language-pycon" in save
    assert "Source code in" in save
    assert 'href="errors.html#jax2tf_bridge.errors.ModuleError"' in save
    listed = (site / "llms.txt").read_text()
    for page in pages.find_pages():
        assert f"]({pages.place_of_page(page)}): " in listed, page
    assert "polymorphic_shapes" in (site / "llms-full.txt").read_text()


@pytest.mark.slow
def test_pages_fit_a_laptop_and_a_phone(site: Path, import_script: Any) -> None:
    docs = import_script("_docs")
    chromium = docs.find_chromium()
    if chromium is None:
        pytest.skip(f"none of {', '.join(docs.CHROMIUM)} is on the PATH: no page was opened")
    python = ROOT / ".venvs" / "docs" / "bin" / "python"
    script = ROOT / "scripts" / "_docs_browser.py"
    wide = site / "wide.html"
    wide.write_text('<article><div style="width: 600px">wide</div></article>')
    try:
        done = subprocess.run(
            [str(python), str(script), str(site), chromium],
            capture_output=True,
            text=True,
            env=process_environment(),
            check=False,
        )
    finally:
        wide.unlink()
    assert done.returncode == 1, done.stdout + done.stderr
    (problem,) = done.stdout.splitlines()
    assert problem.startswith("wide.html: wider than 400 pixels: <div style=")
