"""Time of a call in TensorFlow.js, against the same net of tf.layers, in Node on one thread."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from benchmarks import _measure
from examples.digits import model
from jax2tf_bridge import Signature, save_tfjs
from tests.consumers.harness import Harness
from tests.consumers.node_addon import node_for_browsers

_BASELINE = "tf.layers"


def main() -> None:
    options = _measure.make_parser(__doc__, rounds=41).parse_args()
    signature = Signature(
        model.predict, args=[np.ones((1, 8, 8), np.float32)], polymorphic_shapes="(b, 8, 8)"
    )
    rows, measured = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        node = node_for_browsers(Harness(folder, lambda text: print(text, file=sys.stderr)))
        params = model.init(jax.random.key(0))
        save_tfjs(folder / "model", signature, params=params)
        weights = [
            {"shape": params[layer][name].shape, "data": np.ravel(params[layer][name]).tolist()}
            for layer in ("conv1", "conv2", "dense1", "dense2")
            for name in ("kernel", "bias")
        ]
        (folder / "weights.json").write_text(json.dumps(weights))
        program = Path(__file__).with_suffix(".js")
        files = (folder / "model" / "model.json", folder / "weights.json")
        done = node.run(program, *files, options.rounds)
        if done.returncode != 0:
            raise RuntimeError(f"{program.name} ended with {done.returncode}: {done.stderr}")
    for each in json.loads(done.stdout.splitlines()[-1]):
        times = {who: [t / 1e3 for t in taken] for who, taken in each["times"].items()}
        for who, taken in times.items():
            took, ratio = _measure.Spread.of(taken), _measure.compute_ratios(times, who, _BASELINE)
            where = {"backend": each["backend"], "batch": each["batch"], "who": who}
            measured.append({**where, "seconds": took, "ratio": ratio})
            text = _measure.seconds_text(took.median)
            rows.append([each["backend"], str(each["batch"]), who, text, ratio.ratio_text()])
    _measure.report(
        "A call in TensorFlow.js",
        ["backend", "batch", "run by", "median", f"x {_BASELINE}"],
        rows,
        measured,
        json_path=options.json,
    )


if __name__ == "__main__":
    main()
