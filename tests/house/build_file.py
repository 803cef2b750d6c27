"""BUILD, made from what lies on disk and from what the imports say.

A library for each package, a test for each test file. Where the subpackages of a package import
modules that lie directly in it, those modules are a library of their own (PACKAGE/base), since
Bazel's libraries must not depend on each other in a circle.

Standard library only, so that scripts/update_build.py runs without an environment.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.house.imports import ROOT, Import, module_name, python_files, read_file
from tests.house.layering import LOOKS_UP

PACKAGES = ("jax2tf_bridge", "shape_poly")
TESTS = "tests"
# Where Python files of ours lie; scripts/ and setup.py are run, not imported.
FOLDERS = (*PACKAGES, "benchmarks", "examples", "saved_models", TESTS)
# Runs one test file under pytest, where Bazel would only execute it.
RUNNER = "tests/run_under_bazel.py"
# Where the name of the distribution is not that of the import.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit_learn"}

HEADER = '''"""The libraries and tests of jax2tf-bridge.

Written by scripts/update_build.py: run that instead of editing this.
"""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

licenses(["notice"])

exports_files(["LICENSE"])
'''


@dataclass(frozen=True)
class Library:
    """A py_library: the Python files of one package."""

    name: str
    sources: tuple[str, ...]
    deps: tuple[str, ...]
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Test:
    """A py_test: one test file."""

    name: str
    source: str
    deps: tuple[str, ...]
    tags: tuple[str, ...] = ()


@dataclass
class _Groups:
    """Which library each module belongs to."""

    files: dict[str, list[Path]] = field(default_factory=dict)
    library_of: dict[str, str] = field(default_factory=dict)

    def add(self, library: str, path: Path) -> None:
        self.files.setdefault(library, []).append(path)
        self.library_of[module_name(path)] = library


def _internal(entry: Import, modules: Container[str]) -> str | None:
    """The module of the checkout that an import loads, the deepest one."""
    for name in (entry.target, entry.module):
        if name in modules:
            return name
    return None


def _counts(importer: str, entry: Import) -> bool:
    """Whether an import is a dependency: not for types alone, nor the record's look up."""
    return not entry.is_for_types and not (
        entry.is_lazy and any(importer == a and entry.target.startswith(b) for a, b in LOOKS_UP)
    )


class BuildFile:
    """What BUILD has to say of the checkout."""

    def __init__(self) -> None:
        sources = list(python_files(*FOLDERS))
        self.paths = {module_name(path): path for path in sources}
        self.imports = {
            module: [e for e in read_file(path).imports if _counts(module, e)]
            for module, path in self.paths.items()
        }
        self.groups = _Groups()
        self._bases: dict[str, set[str]] = {}
        self.test_files = [path for path in sources if _is_test(path)]
        for module, path in self.paths.items():
            if not _is_test(path) and str(path.relative_to(ROOT)) != RUNNER:
                self.groups.add(self._library(module, path), path)

    def _library(self, module: str, path: Path) -> str:
        package = path.parent.relative_to(ROOT).as_posix()
        if path.name == "__main__.py":  # above everything else in its package
            return f"{package}/main"
        if package not in self._bases:
            self._bases[package] = self._base(package)
        return f"{package}/base" if module in self._bases[package] else package

    def _base(self, package: str) -> set[str]:
        """The modules directly in a package that its subpackages need, and what those need."""
        dotted, folder = package.replace("/", "."), ROOT / package
        within = {m: path for m, path in self.paths.items() if m.startswith(f"{dotted}.")}
        direct = {m for m, path in within.items() if path.parent == folder}
        direct -= {m for m, path in within.items() if path.name == "__init__.py"}
        queue = [m for m, path in within.items() if path.parent != folder]
        base: set[str] = set()
        while queue:
            for entry in self.imports[queue.pop()]:
                target = _internal(entry, self.paths)
                if target in direct and target not in base:
                    base.add(target)
                    queue.append(target)
        return base

    def _deps(self, modules: Iterable[str], own: str) -> set[str]:
        labels = set()
        for module in modules:
            for entry in self.imports[module]:
                target = _internal(entry, self.paths)
                top = entry.module.split(".")[0]
                if target is not None and target in self.groups.library_of:
                    labels.add(f":{self.groups.library_of[target]}")
                elif top in FOLDERS:
                    raise ValueError(f"{module}, line {entry.line}: there is no {entry.module}")
                elif top not in sys.stdlib_module_names:
                    labels.add(f"@pypi//{DISTRIBUTIONS.get(top, top)}")
        return labels - {f":{own}"}

    def libraries(self) -> list[Library]:
        """One for each package, in the order of their names."""
        found = []
        for name, paths in sorted(self.groups.files.items()):
            deps = self._deps(map(module_name, paths), name)
            if f"{name}/base" in self.groups.files:
                deps.add(f":{name}/base")
            sources = tuple(sorted(path.relative_to(ROOT).as_posix() for path in paths))
            typed = ROOT / name / "py.typed"
            data = (typed.relative_to(ROOT).as_posix(),) if typed.exists() else ()
            found.append(Library(name, sources, _ordered(deps), data))
        _check_acyclic(found)
        return found

    def tests(self) -> list[Test]:
        """One for each test file, in the order of their names."""
        found = []
        for path in self.test_files:
            relative = path.relative_to(ROOT)
            deps = self._deps([module_name(path)], "")
            # pytest imports the conftest.py of every folder above.
            folders = [parent.as_posix() for parent in relative.parents]
            deps |= {f":{folder}" for folder in folders if folder in self.groups.files}
            tags = ("manual",) if "mark.checkout" in path.read_text() else ()
            name = relative.with_suffix("").as_posix()
            found.append(Test(name, relative.as_posix(), _ordered(deps | {"@pypi//pytest"}), tags))
        return sorted(found, key=lambda test: test.name)

    def text(self) -> str:
        """The whole of BUILD."""
        rules = [HEADER]
        for library in self.libraries():
            attributes = {"srcs": library.sources, "data": library.data, "deps": library.deps}
            is_public = library.name.split("/")[0] in PACKAGES
            visibility = ("//visibility:public",) if is_public else ()
            rules.append(_rule("py_library", library.name, attributes | {"visibility": visibility}))
        for test in self.tests():
            rules.append(
                _rule(
                    "py_test",
                    test.name,
                    {"srcs": (test.source, RUNNER), "args": (test.source,)},
                    main=RUNNER,
                    last={"tags": test.tags, "deps": test.deps},
                )
            )
        return "\n".join(rules)


def _is_test(path: Path) -> bool:
    return path.name.startswith("test_")


def _ordered(labels: set[str]) -> tuple[str, ...]:
    """Our own first, then third parties, as buildifier has it."""
    return tuple(sorted(labels, key=lambda label: (label.startswith("@"), label)))


def _check_acyclic(libraries: list[Library]) -> None:
    """Raises ValueError if libraries depend on each other in a circle."""
    deps = {f":{library.name}": library.deps for library in libraries}
    done: set[str] = set()

    def visit(label: str, path: tuple[str, ...]) -> None:
        if label in path:
            raise ValueError("libraries in a circle: " + " -> ".join((*path, label)))
        if label not in done:
            for dep in deps.get(label, ()):
                visit(dep, (*path, label))
            done.add(label)

    for label in deps:
        visit(label, ())


def _rule(
    kind: str,
    name: str,
    attributes: dict[str, tuple[str, ...]],
    *,
    main: str = "",
    last: dict[str, tuple[str, ...]] | None = None,
) -> str:
    lines = [f"{kind}(", f'    name = "{name}",']
    lines += _attributes(attributes)
    lines += [f'    main = "{main}",'] if main else []
    lines += _attributes(last or {})
    return "\n".join([*lines, ")", ""])


def _attributes(attributes: dict[str, tuple[str, ...]]) -> list[str]:
    lines = []
    for attribute, values in attributes.items():
        if len(values) == 1:
            lines.append(f'    {attribute} = ["{values[0]}"],')
        elif values:
            lines += [f"    {attribute} = [", *(f'        "{v}",' for v in values), "    ],"]
    return lines
