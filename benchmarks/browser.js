// Times a graph model against the same net of tf.layers, one call of each in turn.
//
//   node browser.js MODEL WEIGHTS ROUNDS
//
// MODEL is the JSON file of the net of examples/digits, and WEIGHTS that of its weights: [{"shape",
// "data"}...] in the order of the layers. Compares the results first. Prints JSON: for each backend and batch size,
// {"backend", "batch", "times": {"bridge": [milliseconds...], "tf.layers": [...]}}.
'use strict';

const fs = require('fs');
const path = require('path');
const {performance} = require('perf_hooks');
const tf = require('@tensorflow/tfjs');
const wasm = require('@tensorflow/tfjs-backend-wasm');

const WARM_UP = 5;

function readModel(file) {
  const json = JSON.parse(fs.readFileSync(file));
  return tf.io.getModelArtifactsForJSON(json, async (groups) => {
    const paths = groups.flatMap((group) => group.paths);
    const files = paths.map((name) => fs.readFileSync(path.join(path.dirname(file), name)));
    return [groups.flatMap((group) => group.weights), new Uint8Array(Buffer.concat(files)).buffer];
  });
}

function makeNet() {
  const conv = {kernelSize: 3, padding: 'same', activation: 'relu'};
  return tf.sequential({
    layers: [
      tf.layers.conv2d({...conv, inputShape: [8, 8, 1], filters: 32}),
      tf.layers.conv2d({...conv, filters: 64}),
      tf.layers.maxPooling2d({poolSize: 2}),
      tf.layers.flatten(),
      tf.layers.dense({units: 128, activation: 'relu'}),
      tf.layers.dense({units: 10, activation: 'softmax'}),
    ],
  });
}

async function time(call) {
  const start = performance.now();
  const result = call();
  await result.data();
  const took = performance.now() - start;
  tf.dispose(result);
  return took;
}

async function check(calls) {
  const results = Object.values(calls).map((call) => call());
  const difference = tf.max(tf.abs(tf.sub(...results)));
  if ((await difference.data())[0] > 1e-5) throw new Error(`The nets differ by ${difference}`);
  tf.dispose([results, difference]);
}

async function main(file, weightsFile, rounds) {
  const weights = JSON.parse(fs.readFileSync(weightsFile));
  wasm.setWasmPaths(`${path.dirname(require.resolve('@tensorflow/tfjs-backend-wasm'))}/`);
  wasm.setThreadsCount(1);
  const measured = [];
  for (const backend of ['wasm', 'cpu']) {
    await tf.setBackend(backend);
    const model = await tf.loadGraphModel({load: () => readModel(file)});
    const net = makeNet();
    net.setWeights(weights.map(({shape, data}) => tf.tensor(data, shape)));
    for (const batch of [1, 32]) {
      const images = tf.randomUniform([batch, 8, 8]);
      const calls = {
        bridge: () => model.execute({images}, 'probabilities'),
        'tf.layers': () => tf.tidy(() => net.predict(images.expandDims(-1).div(16))),
      };
      await check(calls);
      const times = {bridge: [], 'tf.layers': []};
      for (let i = -WARM_UP; i < Number(rounds); i++) {
        for (const name of Object.keys(calls)) {
          const took = await time(calls[name]);
          if (i >= 0) times[name].push(took);
        }
      }
      measured.push({backend, batch, times});
      images.dispose();
    }
  }
  console.log(JSON.stringify(measured));
}

main(...process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
