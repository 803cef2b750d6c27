"""Prepares the site: its pages, with links that work there, and Zensical's configuration.

Guides are the pages of the repository. The pages of the reference, of versions and of models are
made from the sources. Nothing here imports the bridge, which needs no environment then.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _docs_versions import versions_page
from _env import ROOT

SETTINGS = ROOT / "scripts" / "site"
PACKAGE = "jax2tf_bridge"
OTHER_PACKAGES = ("shape_poly",)
ERRORS_PAGE = "docs/errors.md"
# Files beside the pages that a browser shows by itself. Others become pages with their text.
ASSETS = {".svg", ".png", ".jpg", ".gif", ".ipynb", ".json"}
_FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_IMAGE = re.compile(r'(?<=src=")(?P<target>[^"#]+)(?P<anchor>)(?=")')
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]+)" src="([^"]+)">\s*</picture>'
)
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class SiteError(RuntimeError):
    """The site cannot be built as its settings or pages are; the text says why."""


def read_settings() -> dict[str, Any]:
    """Reads the settings of the site."""
    return tomllib.loads((SETTINGS / "zensical.toml").read_text())


def find_pages() -> list[str]:
    """Lists the pages of the repository, by their paths."""
    names = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
    return sorted(path.relative_to(ROOT).as_posix() for path in names)


def place_of_page(page: str) -> str:
    """Returns the place of a repository's page on the site.

    >>> [place_of_page(p) for p in ("README.md", "docs/saving.md", "benchmarks/README.md")]
    ['index.md', 'saving.md', 'benchmarks.md']
    """
    if page == "README.md":
        return "index.md"
    if page.startswith("docs/"):
        return page.removeprefix("docs/").replace("/README.md", "/index.md")
    return page.removesuffix("/README.md").removesuffix(".md").lower() + ".md"


# The public names.


@dataclass(frozen=True)
class Entry:
    """A public name, as an entry of the reference.

    Attributes:
        path: the name with its package, as users import it.
        origin: the library that a name of others comes from, such as "jax.export"; "" for ours.
    """

    path: str
    origin: str = ""

    @property
    def name(self) -> str:
        """The name without its package."""
        return self.path.rpartition(".")[2]


def _module_file(module: str) -> Path:
    folder = ROOT.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _read_names(package: str) -> dict[str, str]:
    """Lists the public names of a package, each with the module that it is imported from."""
    if not _module_file(package).exists():
        return {}
    tree, homes = _parse(_module_file(package)), _read_imports(_module_file(package))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            return {name: homes.get(name, (package, name))[0] for name in names}
    # The module of errors has no __all__, and also defines what their texts are made of.
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return {name: package for name in classes if re.fullmatch(r"[A-Z]\w+Error", name)}


def _full_path(name: str) -> str:
    return name if name.split(".")[0] in OTHER_PACKAGES else f"{PACKAGE}.{name}"


def read_reference(settings: Mapping[str, Any]) -> dict[str, list[Entry]]:
    """Returns the entries of each page of the reference, by the page's name.

    Raises:
        SiteError: a name is listed twice.
    """
    tables = settings["reference"]
    listed = [_full_path(name) for table in tables for name in table["names"]]
    plain = {path for path in listed if not path.endswith(".*")}
    if len(listed) != len({*listed}):
        raise SiteError(
            f"scripts/site/zensical.toml lists {max(listed, key=listed.count)} twice. Remove one."
        )
    pages: dict[str, list[Entry]] = {}
    for table in tables:
        entries = [
            entry for path in map(_full_path, table["names"]) for entry in _expand(path, plain)
        ]
        if entries:
            pages[table["page"]] = entries
    return pages


def _expand(path: str, plain: Container[str]) -> Iterator[Entry]:
    """Yields the entries of a name, or of a pattern those without an entry of their own."""
    package, _, name = path.rpartition(".")
    if name != "*":
        yield Entry(path)
        return
    for public, home in _read_names(package).items():
        is_in_facade = _resolve(package, public) == _resolve(PACKAGE, public)
        public_path = f"{PACKAGE}.{public}" if is_in_facade else f"{package}.{public}"
        if public_path not in plain and f"{package}.{public}" not in plain:
            is_own = home.split(".")[0] in (PACKAGE, *OTHER_PACKAGES)
            yield Entry(public_path, "" if is_own else home)


def _resolve(package: str, name: str) -> tuple[str, str]:
    """Follows imports to the module that defines a name."""
    while package.split(".")[0] in (PACKAGE, *OTHER_PACKAGES):
        # The facade imports lazily; its stub has the imports.
        path = _module_file(package)
        imports = _read_imports(path.with_suffix(".pyi") if package == PACKAGE else path)
        if name not in imports:
            break
        package, name = imports[name]
    return package, name


@functools.cache
def _read_imports(path: Path) -> dict[str, tuple[str, str]]:
    """Maps each name that a module imports from another one to that module and its name there."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def read_summary(entry: Entry) -> str:
    """Returns the first line of a name's docstring, or ""."""
    module, name = _resolve(entry.path.rpartition(".")[0], entry.name)
    if not _module_file(module).exists():
        return f"from {entry.origin}."
    text: str | None = None
    body = _parse(_module_file(module)).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            text = ast.get_docstring(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) == name and isinstance(following, ast.Expr):
                text = ast.literal_eval(following.value)
    return re.split(r"\n\n|(?<=\.)\s", text)[0].replace("\n", " ") if text else ""


# Pages that are made.


def make_reference(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Makes the pages of the reference, the list of all names first."""
    pages = read_reference(settings)
    tables = [table for table in settings["reference"] if table["page"] in pages]
    lines = [
        "# Every public name",
        "",
        "Names of `jax2tf_bridge` and of its packages, by task.",
        "",
    ]
    for table in tables:
        lines += [f"## [{table['title']}]({table['page']}.md)", ""]
        for entry in pages[table["page"]]:
            link = f"[`{entry.path}`]({table['page']}.md#{entry.path})"
            summary = read_summary(entry)
            lines.append(f"- {link}: {summary}" if summary else f"- {link}")
        lines.append("")
    yield "reference/index.md", "\n".join(lines)
    advice = read_error_table()
    for table in tables:
        parts = [f"# {table['title']}\n\n{table['intro']}\n"]
        for entry in pages[table["page"]]:
            parts.append(_entry_text(entry))
            parts += _error_text(entry, advice) if table["page"] == "errors" else []
        yield f"reference/{table['page']}.md", "\n".join(parts)


def _entry_text(entry: Entry) -> str:
    if entry.origin:
        heading = f'## {entry.path} {{ #{entry.path} data-toc-label="{entry.name}" }}'
        link = f"[`{entry.origin}.{entry.name}`](https://docs.jax.dev/en/latest/jax.export.html)"
        return f"{heading}\n\nThe same as {link}.\n"
    options = {"heading": entry.path, "toc_label": entry.name}
    lines = [f"      {key}: {value}" for key, value in options.items()]
    return "\n".join([f"::: {entry.path}", "    options:", *lines, ""])


def read_error_table() -> dict[str, tuple[str, str]]:
    """Reads from the page of errors when each is raised, and what to do."""
    advice = {}
    for line in (ROOT / ERRORS_PAGE).read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and (name := re.fullmatch(r"`(\w+)`", cells[1])):
            advice[name[1]] = cells[3], cells[4]
    return advice


def _error_text(entry: Entry, advice: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    when, action = advice.get(entry.name, ("", ""))
    if when:
        yield f"**Raised when**: {_deeper(when)}.\n"
    if action:
        yield f"**What to do**: {_deeper(action)}.\n"


def _deeper(text: str) -> str:
    """Changes links of a page for a page in a folder beside it."""
    return _LINK.sub(lambda match: "../" + match[0], text)


def _light_and_dark(light: str, dark: str, text: str) -> str:
    """Writes an image that follows the site's scheme, which a <picture> does not."""
    return f"![{text}]({light}#only-light)\n![{text}]({dark}#only-dark)"


# Pages of the repository.


@dataclass
class Staging:
    """The folder of the pages on their way to the site.

    Attributes:
        folder: where the pages lie, in Markdown.
        places: the place of each page, by its path in the repository.
        sources: other files of the repository that pages link to.
        written: the places of all files in the folder.
    """

    folder: Path
    places: dict[str, str]
    sources: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def write(self, place: str, text: str) -> None:
        """Writes a page, unless it is there already: Zensical rebuilds what has changed."""
        self.written.add(place)
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def translate(self, page: str) -> str:
        """Returns the text of a page with the site's links."""
        parts = split_code((ROOT / page).read_text())
        translated = [
            part if is_code else self._translate_links(part, page) for part, is_code in parts
        ]
        text = "".join(translated)
        if page == ERRORS_PAGE:
            link = rf"| [`\1`](reference/errors.md#{PACKAGE}.errors.\1) |"
            text = re.sub(r"^\| `(\w+Error)` \|", link, text, flags=re.MULTILINE)
        return text

    def _translate_links(self, text: str, page: str) -> str:
        text = _PICTURE.sub(lambda m: _light_and_dark(m[3], m[1], m[2]), text)
        for pattern in (_LINK, _IMAGE):
            text = pattern.sub(lambda match: self._translate_link(match, page), text)
        return text

    def _translate_link(self, match: re.Match[str], page: str) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        place = self.places.get(path) or self._place_of_source(path, page)
        return os.path.relpath(place, os.path.dirname(self.places[page]) or ".") + anchor

    def _place_of_source(self, path: str, page: str) -> str:
        if not (ROOT / path).exists():
            raise SiteError(f"{page} links to {path}, which does not exist. Correct the link.")
        self.sources.add(path)
        return path if Path(path).suffix in ASSETS else f"source/{path}.md"

    def write_sources(self) -> None:
        """Copies images, and makes pages of the sources that pages link to."""
        for path in sorted(self.sources):
            source = ROOT / path
            if source.suffix in ASSETS:
                (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self.folder / path)
                self.written.add(path)
            else:
                self.write(f"source/{path}.md", _source_page(path))

    def remove_others(self) -> None:
        """Removes files of an earlier run."""
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            if path.relative_to(self.folder).as_posix() not in self.written:
                path.unlink()


def split_code(text: str) -> Iterator[tuple[str, bool]]:
    r"""Splits Markdown into parts with and without fenced blocks.

    >>> list(split_code("a\n```\nb\n```\nc"))
    [('a\n', False), ('```\nb\n```', True), ('\nc', False)]
    """
    end = 0
    for match in _FENCE.finditer(text):
        yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield text[end:], False


def _source_page(path: str) -> str:
    """Makes a page that shows a source file, or the files of a folder."""
    source = ROOT / path
    files = [source] if source.is_file() else sorted(f for f in source.rglob("*") if _is_text(f))
    parts = [f"# {path}\n"]
    for file in files:
        if file != source:
            parts.append(f"## {file.relative_to(source).as_posix()}\n")
        language = {".py": "python", ".sh": "bash", ".js": "js", ".c": "c"}.get(file.suffix, "text")
        parts.append(f"````{language}\n{file.read_text().rstrip()}\n````\n")
    return "\n".join(parts)


def _is_text(file: Path) -> bool:
    return file.is_file() and file.suffix in {".py", ".md", ".sh", ".c", ".js", ".java", ".go"}


# Navigation.


def make_navigation(nav: Any, pages: Sequence[str]) -> tuple[Any, list[str]]:
    """Replaces patterns by the pages that have no entry of their own.

    Args:
        nav: the navigation of the settings: a path, a pattern, or groups of them.
        pages: the paths of all pages.

    Returns:
        The navigation by paths alone, and these paths in its order.

    Raises:
        SiteError: a page has no entry or two, or an entry has no page.
    """
    used: list[str] = []
    listed = {*_paths_in(nav)}

    def expand(item: Any) -> Iterator[Any]:
        if isinstance(item, dict):
            ((title, items),) = item.items()
            entries = [entry for each in items for entry in expand(each)]
            if entries:
                yield {title: entries}
            return
        matches = [item] if item in pages else []
        if "*" in item:
            taken = {*listed, *used}
            matches = [page for page in fnmatch.filter(pages, item) if page not in taken]
        elif not matches:
            raise SiteError(
                f"The navigation lists {item}, which does not exist. Remove it from `nav` of "
                "scripts/site/zensical.toml."
            )
        used.extend(matches)
        yield from matches

    navigation = [entry for item in nav for entry in expand(item)]
    for page in pages:
        if used.count(page) != 1:
            count = "no" if page not in used else "more than one"
            raise SiteError(
                f"{page} has {count} entry in the navigation. List it once in `nav` of "
                "scripts/site/zensical.toml."
            )
    return navigation, used


def _map_pages(nav: Any, change: Callable[[str], Any]) -> Any:
    if isinstance(nav, dict):
        return {title: _map_pages(items, change) for title, items in nav.items()}
    return [_map_pages(item, change) for item in nav] if isinstance(nav, list) else change(nav)


def title_of(text: str) -> str:
    """Returns the title of a page."""
    match = _TITLE.search(text)
    if match is None:
        raise SiteError(f"A page has no title. It begins: {text[:60]!r}")
    return match[1].replace("`", "")


def make_pages(settings: Mapping[str, Any]) -> dict[str, str]:
    """Makes the pages that are not in the repository, by their places."""
    return {
        **dict(make_reference(settings)),
        "versions.md": versions_page(),
    }


def stage(folder: Path) -> Path:
    """Writes all pages and the configuration below a folder.

    Returns:
        The path of the configuration. `html` beside it will have the site.

    Raises:
        SiteError: a page has no entry in the navigation, or a link leads nowhere.
    """
    settings = read_settings()
    made = make_pages(settings)
    places = {page: place_of_page(page) for page in find_pages()}
    nav, order = make_navigation(settings["project"]["nav"], [*places, *made])
    staging = Staging(folder / "pages", places)
    for page, place in places.items():
        staging.write(place, staging.translate(page))
    for place, text in made.items():
        staging.write(place, text)
    for light_or_dark in ("light", "dark"):
        staging.sources.add(f"benchmarks/chart-{light_or_dark}.svg")
    staging.write_sources()
    staging.write("site.css", (SETTINGS / "site.css").read_text())
    in_order = [places.get(page, page) for page in order]
    _write_for_models(staging, settings, nav, in_order)
    staging.remove_others()
    titles = {place: title_of((staging.folder / place).read_text()) for place in in_order}
    titles["index.md"] = "Overview"
    project = {
        **settings["project"],
        "docs_dir": "pages",
        "site_dir": "html",
        "nav": _map_pages(nav, lambda page: _titled(places.get(page, page), titles)),
    }
    python = project["plugins"]["mkdocstrings"]["handlers"]["python"]
    python["paths"] = [str(ROOT)]
    python["options"]["extensions"] = [{str(SETTINGS / "griffe_docstrings.py"): {}}]
    configuration = folder / "mkdocs.yml"  # JSON is YAML, and Zensical otherwise reads TOML
    text = json.dumps(project, indent=1)
    if not configuration.exists() or configuration.read_text() != text:
        configuration.write_text(text)
    return configuration


def _titled(place: str, titles: Mapping[str, str]) -> dict[str, str]:
    return {titles[place]: place}


def _write_for_models(
    staging: Staging, settings: Mapping[str, Any], nav: Any, places: Sequence[str]
) -> None:
    """Writes llms.txt, which lists the pages, and llms-full.txt, which has their text."""
    project = settings["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}.", ""]
    full = []
    by_page = dict(zip(_paths_in(nav), places, strict=True))
    for group in nav:
        ((title, items),) = group.items()
        lines += [f"## {title}", ""]
        for page in _paths_in(items):
            place = by_page[page]
            text = (staging.folder / place).read_text()
            is_reference = place.startswith("reference/")
            link = place.removesuffix(".md") + ".html" if is_reference else place
            lines.append(f"- [{title_of(text)}]({link}): {_first_sentence(text)}")
            full += [] if is_reference else [text.rstrip() + "\n"]
        lines.append("")
    staging.write("llms.txt", "\n".join(lines))
    staging.write("llms-full.txt", "\n\n".join(full))


def _paths_in(nav: Any) -> list[str]:
    if isinstance(nav, dict):
        nav = [item for items in nav.values() for item in items]
    return [path for item in nav for path in _paths_in(item)] if isinstance(nav, list) else [nav]


def _first_sentence(text: str) -> str:
    """Returns the first sentence below the title, without its links."""
    for paragraph in text.split("\n\n"):
        if not re.match(r"\s*(#|<|!|\||- |```|:::)", paragraph):
            plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:])\s", plain)[0].rstrip(".:") + "."
    raise SiteError(f"A page has no sentence. It begins: {text[:60]!r}")
