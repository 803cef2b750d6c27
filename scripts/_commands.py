"""Commands of the scripts: each is a list of steps, with a summary at the end."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from _build import PACKAGES
from _build import build as build_distributions
from _coverage import coverage_table
from _docs import build_site, check_site, serve_site
from _docs_pages import SiteError
from _env import (
    OLDEST_PYTHON,
    ROOT,
    TENSORFLOW,
    Environment,
    EnvironmentUnavailableError,
    Python,
    demonstration,
    development,
    documentation,
    find_pythons,
    installed,
    main_python,
    process_environment,
    released,
    say,
)
from _times import BUDGETS, Clock, TestTime, over_limit, read_test_times, table

# The oldest JAX that is supported: those before it compare products of sizes in reshapes. With the
# oldest TensorFlow that can run all of the fast tests: sharded modules need 2.20 (calling
# convention 10), 4-bit integers 2.19. tests/consumers goes back to 2.15.
OLDEST_PINS = (
    "jax==0.8.2",
    "z3-solver==5.0.0",
    "cloudpickle==3.0.0",
    "google-crc32c==1.5.0",
    "fsspec==2024.2.0",
    "orbax-checkpoint==0.11.30",
    "onnx==1.18.0",
    "flatbuffers==24.3.25",
    "msgpack==1.0.8",
    "tqdm==4.66.0",
    f"{TENSORFLOW}==2.20.0",
)
# Folder of the wheel and the source archive.
DISTRIBUTIONS = ROOT / "dist"
# Those that need neither JAX nor TensorFlow first: they are quicker to answer, by themselves.
_PARTS = ("--pure", "--not-pure")
# scripts/test runs half of the tests that are not pure, and scripts/slow the rest.
_PARTS_OF_TEST, _REST = ("--pure", "--not-pure --half"), "--not-pure --rest"
# On the newest and the oldest pair each test function runs with a part of its parameters. The pure
# ones would be on the oldest what scripts/test runs: the same Python and the same NumPy.
_PARTS_ON_NEWEST = ("--pure --every 3 --offset 1", "--not-pure --every 5 --offset 1")
_PARTS_ON_OLDEST = ("--not-pure --every 6",)
DURATION_OF_ALL = "about two hours on two cores"
# Laws are then tried on more examples: tests/sampling.py reads it.
THOROUGH = "JAX2TF_BRIDGE_THOROUGH"
FAST = "not slow and not complete"
SLOW = "slow and not complete"


@dataclass(frozen=True)
class Row:
    """Result of a step: its title, success, seconds, and the last line that it printed."""

    title: str
    passed: bool
    wall: float
    cpu: float
    last: str


@dataclass
class Steps:
    """Runs commands one after another, and remembers how each came out."""

    script: str
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    times: list[TestTime] = field(default_factory=list)
    coverage: list[str] = field(default_factory=list)

    def run(
        self,
        title: str,
        command: Sequence[str],
        *,
        cwd: Path = ROOT,
        extra: Mapping[str, str] | None = None,
    ) -> bool:
        """Runs a command with its output shown, and keeps its last line for the summary."""
        say(title)
        clock = Clock()
        last = ""
        with subprocess.Popen(
            command,
            cwd=cwd,
            env=process_environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        passed = process.returncode == 0
        self.rows.append(Row(title, passed, clock.wall(), clock.cpu(), last))
        return passed

    def pytest(
        self,
        title: str,
        environment: Environment,
        arguments: Sequence[str],
        *,
        cwd: Path = ROOT,
    ) -> bool:
        """Runs pytest and keeps the time of each test.

        Args:
            title: of the step.
            environment: whose pytest.
            arguments: of pytest.
            cwd: where it runs.
        """
        command = [environment.python, "-m", "pytest", "-n", _workers(), "--dist", "worksteal"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "times.json")
            command += ["--cpu-times", str(path), *arguments]
            extra = {THOROUGH: "1"} if self.script == "all" else None
            passed = self.run(title, command, cwd=cwd, extra=extra)
            self.times += read_test_times(path)
        return passed

    def warn(self, text: str) -> None:
        """Says loudly, now and in the summary, what this machine could not run."""
        self.warnings.append(text)
        say(f"WARNING: {text}")

    def finish(self, environments: Sequence[Environment]) -> None:
        """Prints the summary and ends the script: with status 1 if a step failed."""
        if self.times:
            print("\n== time by folder of tests")
            for line in table(self.times):
                print(f"   {line}")
        if self.coverage:
            print("\n== lines run by the tests, of each package")
            for line in self.coverage:
                print(f"   {line}")
        print("\n== summary")
        for environment in environments:
            print(f"   {environment.folder}: {environment.versions()}")
        print("            wall s    CPU s")
        for row in self.rows:
            outcome = "ok" if row.passed else "FAILED"
            last = row.last.strip("= ")[:80]
            print(f"   {outcome:<7}{row.wall:8.1f} {row.cpu:8.1f}  {row.title:<34} {last}")
        wall, cpu = sum(row.wall for row in self.rows), sum(row.cpu for row in self.rows)
        print(f"   {'':<7}{wall:8.1f} {cpu:8.1f}  in all")
        if self.script in BUDGETS:
            print(f"   {BUDGETS[self.script].verdict(wall)}")
        for text in self.warnings:
            print(f"   WARNING: {text}")
        for text in self.failures:
            print(f"   FAILED: {text}")
        sys.exit(0 if all(row.passed for row in self.rows) and not self.failures else 1)


def _workers() -> str:
    """Counts the tests to run at once: one a core, within what a laptop's memory holds."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return str(min(cores or 1, 8))


def _typed_paths() -> list[str]:
    folders = [*PACKAGES, "tests", "examples", "benchmarks"]
    return [name for name in folders if any((ROOT / name).rglob("*.py"))]


def _lint(steps: Steps, environment: Environment) -> None:
    ruff = [environment.python, "-m", "ruff"]
    steps.run("ruff check", [*ruff, "check", "."])
    steps.run("ruff format --check", [*ruff, "format", "--check", "."])


def _typecheck(steps: Steps, environment: Environment) -> None:
    mypy = [environment.python, "-m", "mypy", "--python-executable", environment.python]
    steps.run("mypy --strict", [*mypy, "--num-workers", _workers(), *_typed_paths()])
    # The scripts import each other from their own folder, not from the checkout's root.
    scripts = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
    command = [*mypy, "--config-file", str(ROOT / "pyproject.toml"), *scripts]
    root = {"MYPYPATH": str(ROOT)}
    steps.run("mypy --strict (scripts)", command, cwd=ROOT / "scripts", extra=root)


def _against_wheel(
    steps: Steps,
    title: str,
    environment: Environment,
    expression: str,
    rest: Sequence[str],
    parts: Sequence[str] = _PARTS,
) -> None:
    """Runs the tests with the wheel as the packages, without those that need the checkout."""
    chosen = ["--against-wheel", "-m", f"({expression}) and not checkout"]
    with _tests_alone() as folder:
        if rest:
            steps.pytest(title, environment, [*chosen, *rest], cwd=folder)
            return
        for part in parts:
            words = part.split()
            steps.pytest(f"{title} {part}", environment, [*chosen, *words], cwd=folder)


def _follow_readme(steps: Steps, environment: Environment, *, fresh: bool) -> None:
    environment.ensure(fresh=fresh)
    command = [environment.python, "-m", "tests.house.pages", str(ROOT / "README.md")]
    with _tests_alone() as folder:
        steps.run("README, from top to bottom", command, cwd=folder)


@contextlib.contextmanager
def _tests_alone() -> Iterator[Path]:
    """A copy of the checkout without the packages, so that the wheel is what the tests import."""
    left_out = {*PACKAGES, "dist"}
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-tests-") as name:
        for entry in ROOT.iterdir():
            if entry.name in left_out or entry.name.startswith("."):
                continue
            if entry.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "output")
                shutil.copytree(entry, Path(name, entry.name), ignore=ignored)
            else:
                shutil.copy2(entry, name)
        yield Path(name)


def _newest_python(steps: Steps) -> Python:
    newest = find_pythons()[-1]
    if newest.minor == OLDEST_PYTHON:
        steps.warn(
            "no Python 3.12 or later on the PATH or among pyenv's versions: the newest JAX "
            f"was NOT tested, only the last one for {newest}"
        )
    return newest


def build(options: argparse.Namespace, rest: list[str]) -> None:
    """Builds the wheel and the source archive into dist/, twice, and compares their bytes."""
    build_distributions(DISTRIBUTIONS, fresh=options.fresh)


def test(options: argparse.Namespace, rest: list[str]) -> None:
    """Lints, checks the types and runs the fast tests.

    Without arguments for pytest, tests that need JAX or TensorFlow run with half of their
    parameters, and costly ones do not run; scripts/slow runs the rest.
    """
    steps = Steps("test")
    environment = development(main_python())
    environment.ensure(fresh=options.fresh)
    if not (options.no_lint or options.fast or options.coverage):
        _lint(steps, environment)
        _typecheck(steps, environment)
    if options.coverage:
        _measure_coverage(steps, environment, rest)
    elif options.fast or rest:
        fast = ["--exitfirst", "--failed-first"] if options.fast else []
        steps.pytest("pytest", environment, [*fast, *rest])
    else:
        for part in _PARTS_OF_TEST:
            steps.pytest(f"pytest {part}", environment, part.split())
        steps.failures += _find_long_tests(steps, environment)
    steps.finish([environment])


def _find_long_tests(steps: Steps, environment: Environment) -> list[str]:
    """Names the tests that take too much of the CPU time, measured twice.

    A stall of the machine counts as the time of the test that it hits.
    """
    times, names = list(steps.times), list(over_limit(steps.times))
    if not names:
        return []
    steps.pytest("pytest, long tests again", environment, ["-n0", *names])
    return list(over_limit(times, steps.times[len(times) :]).values())


def _measure_coverage(steps: Steps, environment: Environment, rest: Sequence[str]) -> None:
    """Runs the fast tests, and prints the share of the lines of each package that they ran."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "coverage.json")
        sources = [f"--cov={package}" for package in PACKAGES]
        steps.pytest("pytest", environment, [*sources, f"--cov-report=json:{path}", *rest])
        if path.exists():
            steps.coverage = list(coverage_table(path))


def wheel(options: argparse.Namespace, rest: list[str]) -> None:
    """Builds the wheel, follows the README with it, and runs fast tests on the newest Python found.

    The README's environment has the wheel, JAX and TensorFlow, and nothing else. Each test runs
    with every third or fifth set of its parameters; `scripts/slow --all` runs all of them.
    """
    steps = Steps("wheel")
    python = _newest_python(steps)
    built = build_distributions(DISTRIBUTIONS)
    if not rest:
        _follow_readme(steps, installed(python, built), fresh=options.fresh)
    newest = released("newest", python, built)
    newest.ensure(fresh=options.fresh)
    _against_wheel(steps, "newest wheel", newest, FAST, rest, _PARTS_ON_NEWEST)
    steps.finish([newest])


def slow(options: argparse.Namespace, rest: list[str]) -> None:
    """Runs the slow tests, and the fast ones on the oldest JAX with its oldest TensorFlow.

    It also runs the fast tests and parameters that scripts/test leaves out. The slow tests make
    environments of their own: TensorFlow alone, and other releases of JAX. With --all it runs every
    test, those that prove tables complete among them, and all but the slow ones on the newest pair
    too: that is what to run before a release, and takes hours.
    """
    if options.all:
        say(f"everything, on three pairs of JAX and TensorFlow: {DURATION_OF_ALL}")
    steps = Steps("all" if options.all else "slow")
    environment = development(main_python())
    environment.ensure(fresh=options.fresh)
    newest_python = _newest_python(steps)
    title = "pytest, all" if options.all else "pytest, slow"
    expression = "" if options.all else SLOW
    # Installing waits for the network and the disk, so it takes little from the tests beside it.
    with ThreadPoolExecutor(1) as background:
        making = background.submit(_released_pairs, options, newest_python)
        steps.pytest(title, environment, ["-m", expression, *rest])
        if not (options.all or rest):
            steps.pytest(f"pytest {_REST}", environment, _REST.split())
        pairs = making.result()
    fast_ones = "not slow" if options.all else FAST
    for pair in pairs:
        is_sample = pair.name == "oldest" and not options.all
        parts = _PARTS_ON_OLDEST if is_sample else _PARTS
        _against_wheel(steps, f"{pair.name} wheel", pair, fast_ones, rest, parts)
    if "oldest" not in [pair.name for pair in pairs]:
        steps.warn(f"no Python 3.11 or 3.12 found: {' and '.join(OLDEST_PINS)} were NOT tested")
    steps.finish([environment, *pairs])


def _released_pairs(options: argparse.Namespace, newest_python: Python) -> list[Environment]:
    """Builds the wheel, and makes the environments that scripts/slow runs the fast tests in."""
    built = build_distributions(DISTRIBUTIONS, once=not options.all)
    pairs = [released("newest", newest_python, built)] if options.all else []
    oldest_python = find_pythons()[0]
    if oldest_python.minor <= (3, 12):
        pairs.append(released("oldest", oldest_python, built, *OLDEST_PINS))
    for pair in pairs:
        pair.ensure(fresh=options.fresh)
    return pairs


def lint(options: argparse.Namespace, rest: list[str]) -> None:
    """Runs ruff: its rules and its format."""
    steps = Steps("lint")
    environment = development(main_python())
    environment.ensure(fresh=options.fresh)
    _lint(steps, environment)
    steps.finish([environment])


def typecheck(options: argparse.Namespace, rest: list[str]) -> None:
    """Runs mypy in its strict mode."""
    steps = Steps("typecheck")
    environment = development(main_python())
    environment.ensure(fresh=options.fresh)
    _typecheck(steps, environment)
    steps.finish([environment])


def format(options: argparse.Namespace, rest: list[str]) -> None:
    """Lets ruff format the code and mend what it can."""
    steps = Steps("format")
    environment = development(main_python())
    environment.ensure(fresh=options.fresh)
    ruff = [environment.python, "-m", "ruff"]
    steps.run("ruff check --fix", [*ruff, "check", "--fix", "."])
    steps.run("ruff format", [*ruff, "format", "."])
    steps.finish([environment])


def demo(options: argparse.Namespace, rest: list[str]) -> None:
    """Trains, converts, saves and serves a small model: examples/digits."""
    clock = Clock()
    environment = demonstration(main_python())
    environment.ensure(fresh=options.fresh)
    say("running examples/digits/main.py")
    command = [environment.python, str(ROOT / "examples" / "digits" / "main.py"), *rest]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")}
    status = subprocess.run(command, cwd=ROOT, env=process_environment(quiet), check=False)
    say(BUDGETS["demo"].verdict(clock.wall()))
    sys.exit(status.returncode)


def docs(options: argparse.Namespace, rest: list[str]) -> None:
    """Builds the site from docs/ and the docstrings; broken links and warnings fail."""
    environment = documentation(main_python())
    environment.ensure(fresh=options.fresh)
    if options.serve:
        serve_site(environment)
        return
    try:
        build_site(environment)
        if options.check or options.screenshots:
            check_site(environment, options.screenshots)
    except SiteError as e:
        sys.exit(f"error: {e}")


COMMANDS = {
    command.__name__: command
    for command in (build, demo, docs, format, lint, slow, test, typecheck, wheel)
}


def main(name: str) -> None:
    """Runs one command with the options of the command line."""
    command = COMMANDS[name]
    takes_rest = name in {"demo", "slow", "test", "wheel"}
    parser = argparse.ArgumentParser(
        prog=f"scripts/{name}",
        description=command.__doc__,
        allow_abbrev=False,  # pytest has options that begin like these
        epilog="Other arguments go to pytest." if takes_rest and name != "demo" else None,
    )
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    if name == "slow":
        parser.add_argument("--all", action="store_true", help="everything, before a release")
    if name == "test":
        parser.add_argument("--no-lint", action="store_true", help="only the tests")
        parser.add_argument(
            "--coverage",
            action="store_true",
            help="only the tests, and which part of each package they run",
        )
        parser.add_argument(
            "--fast",
            action="store_true",
            help="only the tests, those that failed last time first, up to the first failure",
        )
    if name == "docs":
        parser.add_argument("--serve", action="store_true", help="serve it while you edit")
        parser.add_argument(
            "--check", action="store_true", help="open each page in headless Chromium as well"
        )
        parser.add_argument(
            "--screenshots", metavar="FOLDER", help="check, and take screenshots of some pages"
        )
    options, rest = parser.parse_known_args()
    if rest and not takes_rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if "--" in rest:
        rest.remove("--")
    os.chdir(ROOT)
    try:
        if sys.version_info[:2] < OLDEST_PYTHON:
            # The commands need a supported Python; environments choose their own.
            newer = main_python()
            os.execv(newer.path, [newer.path, *sys.argv])
        command(options, rest)
    except EnvironmentUnavailableError as e:
        sys.exit(f"error: {e}")
