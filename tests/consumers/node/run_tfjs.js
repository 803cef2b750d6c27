// Loads a graph model of TensorFlow.js and calls it, without TensorFlow.
//
//   node run_tfjs.js REQUEST ANSWER
//
// REQUEST and ANSWER are those of run.js, but "model" is the JSON file of the model, and "backend"
// takes the place of the signature: "cpu" or "wasm". Each call ends when its results are read.
'use strict';

const fs = require('fs');
const path = require('path');
const {performance} = require('perf_hooks');
const tf = require('@tensorflow/tfjs');
const wasm = require('@tensorflow/tfjs-backend-wasm');

const ARRAYS = {float32: Float32Array, int32: Int32Array, bool: Uint8Array};

function readModel(file) {
  const json = JSON.parse(fs.readFileSync(file));
  return tf.io.getModelArtifactsForJSON(json, async (groups) => {
    const paths = groups.flatMap((group) => group.paths);
    const files = paths.map((name) => fs.readFileSync(path.join(path.dirname(file), name)));
    const data = new Uint8Array(Buffer.concat(files));
    return [groups.flatMap((group) => group.weights), data.buffer];
  });
}

function tensor({dtype, shape, data}) {
  const bytes = new Uint8Array(Buffer.from(data, 'base64'));
  return tf.tensor(new ARRAYS[dtype](bytes.buffer), shape, dtype);
}

function describe(result) {
  const array = result.dataSync();
  const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
  return {array: array.constructor.name, shape: result.shape, data: bytes.toString('base64')};
}

function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));
}

async function call(model, given, repeat) {
  const inputs = mapped(given, tensor);
  const times = [];
  let results = {};
  for (let i = 0; i < repeat; i++) {
    tf.dispose(results);
    const start = performance.now();
    results = await model.predictAsync(inputs);
    await Promise.all(Object.values(results).map((result) => result.data()));
    times.push(performance.now() - start);
  }
  const outputs = mapped(results, describe);
  tf.dispose([inputs, results]);
  return {outputs, times};
}

async function main(requestPath, answerPath) {
  const request = JSON.parse(fs.readFileSync(requestPath));
  wasm.setWasmPaths(`${path.dirname(require.resolve('@tensorflow/tfjs-backend-wasm'))}/`);
  wasm.setThreadsCount(1);
  await tf.setBackend(request.backend);
  const start = performance.now();
  const model = await tf.loadGraphModel({load: () => readModel(request.model)});
  const load = performance.now() - start;
  const calls = [];
  for (const inputs of request.calls) calls.push(await call(model, inputs, request.repeat));
  model.dispose();
  const versions = {node: process.versions.node, tfjs: tf.version.tfjs, backend: tf.getBackend()};
  const answer = {versions, load, calls, tensors: tf.memory().numTensors};
  fs.writeFileSync(answerPath, JSON.stringify(answer));
}

main(...process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
