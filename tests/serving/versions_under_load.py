"""Publishes, damages, removes and rolls back versions while a real server answers requests.

python -m tests.serving.versions_under_load --calls 100000 --changes 50 --seed 0
python -m tests.serving.versions_under_load --kills 1000
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf_bridge import Signature, Target, publish
from jax2tf_bridge.errors import FileFormatError, SavingError
from jax2tf_bridge.publishing import (
    check_published,
    publish_version,
    published_versions,
    rollback,
)

# Private: instructions for versions that another process publishes.
from jax2tf_bridge.saving.serving._instructions import make_serving_instructions
from jax2tf_bridge.serve_checking import find_server
from scripts._env import ROOT
from tests.consumers.environments import process_environment
from tests.consumers.harness import Harness
from tests.saving.published_models import assert_only_whole_versions, write_model
from tests.saving.test_publish_faults import measure, open_side
from tests.serving.conftest import RELEASE
from tests.serving.server import (
    Instructions,
    Runtime,
    Server,
    read_instructions,
    serving,
)

CALLERS = 8
_SECONDS_TO_LOAD = 30
_KINDS = ("publish", "publish_weights", "rollback")
_ROW = np.ones((1, 3), np.float32)


def dense(w: Any, x: Any) -> Any:
    return x @ w


class Publisher:
    """Changes the versions below a root at random, and checks that no sound version is lost.

    Attributes:
      values: the answers of all versions that were published, to a row of ones.
      damaged: the versions that were damaged.
      changes: the number of changes of each kind.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.values: set[float] = set()
        self.damaged: set[int] = set()
        self.changes: Counter[str] = Counter()

    def publish_model(self) -> Instructions:
        """Publishes a function and weights."""
        signature = Signature(dense, args=[_ROW], polymorphic_shapes="(b, 3)")
        target = Target.tensorflow("2.19", xla=False)
        published = publish(self.root, signature, params=self._new_weights(), target=target)
        assert published.saved is not None
        return read_instructions(str(published.saved.serving_from(published.path)))

    def publish_weights(self) -> None:
        """Publishes other weights for the newest version, or a model if that is damaged."""
        try:
            publish(self.root, params=self._new_weights())
        except FileFormatError:
            assert max(published_versions(self.root)) in self.damaged
            self.publish_model()

    def roll_back(self) -> None:
        """Publishes an older version again, or a model if there is none."""
        try:
            rollback(self.root)
        except SavingError:
            self.publish_model()

    def damage(self) -> None:
        """Cuts a file of a version short; the other names of the file stay as they are."""
        number = self.random.choice(list(published_versions(self.root)))
        files = sorted(p for p in (self.root / str(number)).rglob("*") if p.is_file())
        file = self.random.choice([p for p in files if p.stat().st_size])
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data[: self.random.randrange(len(data))])
        self.damaged.add(number)

    def remove(self) -> None:
        """Removes a version that is not the newest, as a person would."""
        older = sorted(published_versions(self.root))[:-1]
        if older:
            number = self.random.choice(older)
            shutil.rmtree(self.root / str(number))
            self.damaged.add(number)

    def change(self) -> None:
        """Makes a change, and checks all versions that are neither damaged nor removed."""
        kinds = [self.publish_weights, self.roll_back, self.damage, self.remove, self.publish_model]
        kind = self.random.choices(kinds, [5, 4, 3, 2, 1])[0]
        before = set(published_versions(self.root))
        kind()
        self.changes[kind.__name__] += 1
        after = set(published_versions(self.root))
        assert before - self.damaged <= after
        for number in after - self.damaged:
            check_published(self.root / str(number), contents=True)

    def _new_weights(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        weights = np.full((3, 2), len(self.values) + 1, np.float32)
        self.values.add(float((_ROW @ weights)[0, 0]))
        return weights


@dataclasses.dataclass(frozen=True)
class Report:
    """Outcome of a run.

    Attributes:
      changes: the number of changes of each kind.
      statuses: the number of calls that ended with each status.
      answers: the number of calls that got each answer.
      wrong: the answers that no version gives.
    """

    changes: dict[str, int]
    statuses: dict[str, int]
    answers: dict[float, int]
    wrong: list[float]


def run(runtime: Runtime, folder: Path, *, calls: int, changes: int, seed: int) -> Report:
    """Serves a model, and changes its versions while callers send requests.

    Args:
      runtime: the server.
      folder: an empty folder.
      calls: the minimum number of requests of all callers.
      changes: the number of changes.
      seed: the seed of the changes.
    """
    publisher = Publisher(folder / "dense", seed)
    instructions = publisher.publish_model()
    with serving(runtime, instructions, folder) as server:
        stop = folder / "stop"
        words = [
            sys.executable,
            "-m",
            "tests.serving.call_steadily",
            server.grpc_port,
            server.model,
        ]
        callers = subprocess.Popen(
            [str(word) for word in (*words, CALLERS, calls, stop)],
            cwd=ROOT,
            env=process_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            for _ in range(changes):
                publisher.change()
                _wait_for_newest(server, publisher)
        finally:
            stop.touch()
            output, _ = callers.communicate()
    assert callers.returncode == 0
    ended = json.loads(output.splitlines()[-1])
    answers = {float(value): count for value, count in ended["answers"].items()}
    wrong = sorted(set(answers) - publisher.values)
    return Report(dict(publisher.changes), ended["statuses"], answers, wrong)


def run_kills(runtime: Runtime, folder: Path, *, kills: int, seed: int) -> Counter[str]:
    """Kills publishers at random moments while a server polls, and counts what happened.

    Args:
      runtime: the server.
      folder: an empty folder.
      kills: the number of publishers that are killed.
      seed: the seed of the moments.
    """
    root, numbers, events = folder / "model", random.Random(seed), Counter[str]()
    publish_version(root, write_model)
    instructions = read_instructions(str(make_serving_instructions(root, "model")))
    with contextlib.ExitStack() as stack:
        side = stack.enter_context(open_side())
        # Before the server runs: it removes versions at once, and a server that finds one missing
        # when it begins to load it takes up no other for some seconds.
        seconds = {kind: measure(side, kind, root) for kind in _KINDS}
        server = stack.enter_context(serving(runtime, instructions, folder))
        while events["killed"] < kills:
            kind = numbers.choice(list(seconds))
            moment = numbers.uniform(0, seconds[kind])
            (answer,) = side.run(kind, root, keep=30, kill_after_s=moment)
            events["killed" if answer["status"] else "ended"] += 1
            assert_only_whole_versions(root)
            for state in _list_states(server):
                is_there = (root / state["version"]).exists()
                # A newer version may come before one is loaded.
                problem = state["status"]["error_code"] not in ("OK", "CANCELLED")
                assert not (problem and is_there), state
        newest = max(published_versions(root))
        events["versions"] = newest
        wait_until_available(server, newest)
    return events


def _list_states(server: Server) -> list[Any]:
    url = f"http://localhost:{server.rest_port}/v1/models/{server.model}"
    with urllib.request.urlopen(url) as answer:
        states: list[Any] = json.load(answer)["model_version_status"]
    return states


def wait_until_available(server: Server, version: int, state: str = "AVAILABLE") -> None:
    """Waits until the server has a version in a state."""
    end = time.monotonic() + _SECONDS_TO_LOAD
    while True:
        states = _list_states(server)
        if any(s["version"] == str(version) and s["state"] == state for s in states):
            return
        assert time.monotonic() < end, states
        time.sleep(0.1)


def _wait_for_newest(server: Server, publisher: Publisher) -> None:
    """Waits until the server has loaded the newest version, if it is sound."""
    newest = max(published_versions(publisher.root))
    if newest not in publisher.damaged:
        wait_until_available(server, newest)


def main() -> None:
    """Runs it with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--kills", type=int, help="kill this number of publishers instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    program = find_server()
    assert program is not None, "there is no TensorFlow Serving"
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(Path(folder), lambda text: print(text, file=sys.stderr))
        runtime = Runtime(program, harness.consumer_python(RELEASE))
        place = Path(folder, "models")
        place.mkdir()
        if options.kills:
            found: object = run_kills(runtime, place, kills=options.kills, seed=options.seed)
        else:
            counts = {"calls": options.calls, "changes": options.changes, "seed": options.seed}
            found = dataclasses.asdict(run(runtime, place, **counts))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
