"""Writes errors, notes and progress to stderr, with options in place of arguments."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TextIO

from jax2tf_bridge._utils import one_line, printable
from jax2tf_bridge.errors import Argument, Blank, Message, MissingDependencyError
from jax2tf_bridge.portable import AUTO

PROGRAM = "jax2tf-bridge"


_BOLD, _RED, _YELLOW, _CYAN = "1", "1;31", "1;33", "1;36"
_COLOURS = {"error": _RED, "warning": _YELLOW, "note": _CYAN}
_LABEL = re.compile(r"^(error|warning|note)(?=: )", re.MULTILINE)
_NOT_SOUND = re.compile(r"\bNOT SOUND(?=: )")
_TITLE = re.compile(r"\A[^,:\n]+|^(?:signature|module) [^,(\n]+", re.MULTILINE)
_HELP_TITLE = re.compile(r"^(?:usage|[a-z][^\n:]*)(?=:(?: jax2tf|\n))", re.MULTILINE)
_STEP_SECONDS = 1.0
"""Time after which a step shows how long it has taken, and then between updates."""


def has_colour(stream: TextIO) -> bool:
    """Returns whether to write colours; NO_COLOR and FORCE_COLOR come before the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _paint(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def show_report(text: str, *, has_title: bool = True) -> None:
    """Prints a report to stdout; on a terminal its titles are bold, and its problems coloured.

    Args:
      text: the report; its control characters are escaped here.
      has_title: whether the first line is a title.
    """
    text = printable(text)
    if has_colour(sys.stdout):
        if has_title:
            text = _TITLE.sub(lambda match: _paint(match[0], _BOLD), text)
        text = _LABEL.sub(lambda match: _paint(match[0], _COLOURS[match[0]]), text)
        text = _NOT_SOUND.sub(lambda match: _paint(match[0], _RED), text)
    print(text)


def paint_help(text: str) -> str:
    r"""Makes the titles of a help text bold.

    >>> paint_help("usage: jax2tf-bridge [-h]\n\noptions:\n  -h  help")
    '\x1b[1musage\x1b[0m: jax2tf-bridge [-h]\n\n\x1b[1moptions\x1b[0m:\n  -h  help'
    """
    return _HELP_TITLE.sub(lambda match: _paint(match[0], _BOLD), text)


class Console:
    """Writer to stderr; commands write their results to stdout themselves."""

    def __init__(self, *, verbose: bool = False) -> None:
        """`verbose` prints a line for each step, even if stderr is not a terminal."""
        self.verbose = verbose

    def error(self, text: str) -> None:
        """Prints the reason why the command fails, in one line."""
        self._print_labeled("error", text)

    def note(self, text: str) -> None:
        """Prints a note about a command that succeeds, in one line."""
        self._print_labeled("note", text)

    def _print_labeled(self, label: str, text: str) -> None:
        shown = _paint(label, _COLOURS[label]) if has_colour(sys.stderr) else label
        line = f"{PROGRAM}: {shown}: {one_line(text)}"
        if sys.stderr.isatty():
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)  # above the current step, if there is one
        else:
            print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Shows the current step, and how long it takes; with `verbose`, its time afterwards."""
        begun = time.monotonic()
        try:
            if sys.stderr.isatty():
                with _show_step(text):
                    yield
            else:
                yield
        finally:
            if self.verbose:
                seconds = time.monotonic() - begun
                print(f"{PROGRAM}: {text}: {seconds:.1f} s", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def loading(self, package: str, command: str) -> Iterator[None]:
        """Shows that a command imports a package, in the `with` block.

        Ctrl-C ends the process at once during the import, because extension modules swallow
        KeyboardInterrupt while they are loaded, and continue half-loaded.

        Raises:
          MissingDependencyError: it is not installed; the text says for which command.
        """
        with self.step(f"starting {package}"), contextlib.ExitStack() as stack:
            if gc.isenabled():  # imports create no garbage
                gc.disable()
                stack.callback(gc.enable)
            with contextlib.suppress(ValueError):  # only the main thread gets signals
                handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
                stack.callback(signal.signal, signal.SIGINT, handler)
            try:
                yield
            except MissingDependencyError as e:
                raise MissingDependencyError(e.package, e.extra, f"{PROGRAM} {command}") from e


@contextlib.contextmanager
def _show_step(text: str) -> Iterator[None]:
    """Shows a step on the terminal, with its time from the first second on.

    Progress bars inside the step are shown below it.
    """
    # Imported late: without a terminal nothing is shown.
    from tqdm import tqdm

    has_ended = threading.Event()
    with tqdm(
        desc=f"{text} ...",
        bar_format="{desc}",
        leave=False,
        file=sys.stderr,
        dynamic_ncols=True,
    ) as line:

        def update() -> None:
            while not has_ended.wait(_STEP_SECONDS):
                line.bar_format = "{desc} {elapsed}"
                line.refresh()

        clock = threading.Thread(target=update, daemon=True)
        clock.start()
        try:
            yield
        finally:
            has_ended.set()
            clock.join()


def quiet_tensorflow(*, debug: bool, is_timed: bool) -> None:
    """Keeps TensorFlow from writing to stderr when it starts and when it saves.

    Call this before the command line is parsed: parsing a path in cloud storage loads TensorFlow.

    Args:
      debug: True to let it write.
      is_timed: True to compute with oneDNN, as a server does; TensorFlow prints that.
    """
    if debug:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not is_timed:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def get_first_line(error: BaseException) -> str:
    """Returns the first non-empty line of an error's text."""
    return next(filter(None, map(str.strip, str(error).splitlines())), "")


_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "polymorphic_shapes": "--shapes",
        "polymorphic_constraints": "--constraints",
        "target": "--tensorflow",
        "signatures": "FILE",
    }
)
"""Options whose names differ from their arguments."""

_SHAPES = Argument("polymorphic_shapes")

_METAVARS: Mapping[str, str] = MappingProxyType(
    {"buckets": "NAME=N,N", "mask": "INPUT", "example": "FILE"}
)


def format_for_command_line(text: str, options: argparse.Namespace) -> str:
    """Writes the arguments in a message as options of the running command.

    >>> text = Message("The ", Argument("polymorphic_shapes"), " entry '(b, 3)'")
    >>> format_for_command_line(text, argparse.Namespace(command="export", shapes=["(b, 3)"]))
    "The --shapes entry '(b, 3)'"
    """
    if not isinstance(text, Message):
        return text
    # --args may name the open sizes instead of --shapes.
    in_args = getattr(options, "command", None) == "export" and not options.shapes
    files = getattr(options, "file", "FILE")
    if isinstance(files, list):  # with several files, the text does not say which
        files = files[0][1] if len(files) == 1 else "FILE"
    file = shlex.quote(str(files))

    def write(argument: Argument) -> str:
        if argument.name == "file":
            return file
        return "--args" if in_args and argument == _SHAPES else format_option(argument)

    return text.format_with(write)


def get_option_name(argument: str) -> str:
    """Returns the name of the option for an argument.

    >>> get_option_name("pad_values"), get_option_name("target")
    ('--pad-values', '--tensorflow')
    """
    return _OPTIONS.get(argument, f"--{argument.replace('_', '-')}")


def format_option(argument: Argument) -> str:
    """Writes an argument as its option of the command line.

    >>> format_option(Argument("oversize", {"b": "as is", "n": "as is"}))
    '--oversize b=as-is --oversize n=as-is'
    >>> format_option(Argument("polymorphic_constraints", ["b >= 2", "c == 3"]))
    "--constraints 'b >= 2' 'c == 3'"
    """
    name, value = argument.name, argument.value
    option = get_option_name(name)
    if value is ... or value is True:
        return option
    if isinstance(value, Blank):
        return f"{option} {_METAVARS[name]}"
    if name in ("polymorphic_shapes", "polymorphic_constraints"):
        entries = value if isinstance(value, (list, tuple)) else [value]
        return " ".join([option, *(shlex.quote(_format_entry(entry)) for entry in entries)])
    if isinstance(value, dict):
        return " ".join(f"{option} {key}={_format_word(each)}" for key, each in value.items())
    return f"{option} {_format_word(value)}"


def _format_entry(entry: Any) -> str:
    """Writes an entry of --shapes or --constraints.

    >>> [_format_entry(entry) for entry in (None, "(b, 3)", {"x": "(b,)"})]
    ['None', '(b, 3)', '{"x": "(b,)"}']
    """
    if isinstance(entry, (dict, list, tuple)):
        return json.dumps(entry, default=lambda _: "auto")
    return "auto" if entry is AUTO else str(entry)


def _format_word(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_format_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value).replace("as is", "as-is")
