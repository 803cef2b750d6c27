"""Reads the imports of a module from its syntax tree, for the layering tests."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Import:
    """A module that some code imports.

    Attributes:
        module: the absolute dotted name; for `from a import b` it is "a".
        name: "b" in `from a import b`, else None.
        line: where.
        is_lazy: it happens within a function, or at the first use of a facade's name.
        is_for_types: it stands under `if TYPE_CHECKING`.
    """

    module: str
    name: str | None
    line: int
    is_lazy: bool = False
    is_for_types: bool = False

    @property
    def target(self) -> str:
        """Dotted name of what is imported, be it a module or a name in one."""
        return self.module if self.name is None else f"{self.module}.{self.name}"


@dataclass(frozen=True)
class DynamicImport:
    """An import whose module is computed: "" or the literal beginning of its name."""

    prefix: str
    line: int


def module_name(path: Path) -> str:
    """Returns the dotted name of a file of the checkout: a package's for its __init__.py."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


class ImportVisitor(ast.NodeVisitor):
    """Collects the imports of a module.

    Attributes:
        imports: those whose module is written out, as a statement or as a string.
        dynamic: those whose module is computed.
        aliases: for each name that an import binds, the dotted name of what it is bound to.
    """

    def __init__(self, module: str, *, is_package: bool, only_statements: bool = False) -> None:
        """`only_statements`: no expression of the module imports anything."""
        self._only_statements = only_statements
        self.package = module if is_package else module.rpartition(".")[0]
        self.imports: list[Import] = []
        self.dynamic: list[DynamicImport] = []
        self.aliases: dict[str, str] = {}
        self._functions = 0
        self._typing = 0

    def _add(self, module: str, name: str | None, line: int, *, is_lazy: bool = False) -> None:
        lazy = is_lazy or self._functions > 0
        self.imports.append(Import(module, name, line, lazy, self._typing > 0))

    def _absolute(self, module: str, level: int) -> str:
        if level == 0:
            return module
        parts = self.package.split(".")
        base = ".".join(parts[: len(parts) - level + 1])
        return f"{base}.{module}" if module else base

    def generic_visit(self, node: ast.AST) -> None:
        """Visits what may hold an import: most of a tree are expressions, which take longest."""
        if not self._only_statements:
            super().generic_visit(node)
            return
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in getattr(node, field, ()):
                self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, None, node.lineno)
            first = alias.name.split(".")[0]
            self.aliases[alias.asname or first] = alias.name if alias.asname else first

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = self._absolute(node.module or "", node.level)
        for alias in node.names:
            self._add(module, alias.name, node.lineno)
            self.aliases[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_Call(self, node: ast.Call) -> None:
        if _last_name(node.func) in {"import_module", "__import__"} and node.args:
            self._visit_dynamic(node.args[0])
        self.generic_visit(node)

    def _visit_dynamic(self, argument: ast.expr) -> None:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            name = argument.value
            stripped = name.lstrip(".")
            module = self._absolute(stripped, len(name) - len(stripped))
            self._add(module, None, argument.lineno)
            return
        first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
        while isinstance(first, ast.BinOp):
            first = first.left
        literal = first.value if isinstance(first, ast.Constant) else ""
        prefix = literal if isinstance(literal, str) else ""
        self.dynamic.append(DynamicImport(prefix, argument.lineno))

    def visit_If(self, node: ast.If) -> None:
        self._typing += (for_types := _last_name(node.test) == "TYPE_CHECKING")
        for statement in node.body:
            self.visit(statement)
        self._typing -= for_types
        for statement in node.orelse:
            self.visit(statement)

    def _visit_function(self, node: ast.AST) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    visit_FunctionDef = _visit_function
    visit_AsyncFunctionDef = _visit_function
    visit_Lambda = _visit_function


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def read(
    source: str, module: str, *, is_package: bool = False, tree: ast.Module | None = None
) -> ImportVisitor:
    """Reads the imports in a module's source text; `tree` is what was parsed from it, if it was."""
    plain = "import_module" not in source and "__import__" not in source
    visitor = ImportVisitor(module, is_package=is_package, only_statements=plain)
    visitor.visit(tree or ast.parse(source))
    return visitor


@functools.cache
def read_file(path: Path) -> ImportVisitor:
    """Reads the imports of a file of the checkout once; a facade's lazy ones are in its stub."""
    found = read(path.read_text(), module_name(path), is_package=path.name == "__init__.py")
    stub = path.with_suffix(".pyi")
    if stub.exists():
        lines = read(stub.read_text(), module_name(path), is_package=True).imports
        found.imports += [replace(entry, is_lazy=True) for entry in lines]
    return found


def python_files(*folders: str) -> Iterator[Path]:
    """Every Python file below the folders of the checkout, in a fixed order."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))
