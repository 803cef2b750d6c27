// Loads a SavedModel and calls one of its signatures, as a service in Node does.
//
//   node run.js REQUEST ANSWER
//
// REQUEST is a JSON file: {"model": FOLDER, "signature": NAME, "calls": [INPUTS...],
// "repeat": TIMES}. INPUTS has, for each name, {"dtype", "shape", "data"}: the dtype as
// TensorFlow.js names it, the data in base64. Each call is made TIMES times in a row.
// ANSWER is written as JSON: {"versions", "load", "calls": [{"outputs", "times"}...],
// "tensors"}, with the outputs as the inputs are, but "array" in place of the dtype: the
// JavaScript type that they come as. Times are in milliseconds; "tensors" counts those
// that are left when all are disposed of. An error ends it with status 1 and one line
// on stderr.
'use strict';

const fs = require('fs');
const {performance} = require('perf_hooks');
const tf = require('@tensorflow/tfjs-node');

const ARRAYS = {float32: Float32Array, int32: Int32Array, bool: Uint8Array};

function tensor({dtype, shape, data}) {
  const bytes = new Uint8Array(Buffer.from(data, 'base64'));
  return tf.tensor(new ARRAYS[dtype](bytes.buffer), shape, dtype);
}

function described(result) {
  const array = result.dataSync();
  const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
  return {array: array.constructor.name, shape: result.shape, data: bytes.toString('base64')};
}

function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));
}

function call(model, given, repeat) {
  const inputs = mapped(given, tensor);
  const times = [];
  let results = {};
  for (let i = 0; i < repeat; i++) {
    tf.dispose(results);
    const start = performance.now();
    results = model.predict(inputs);
    times.push(performance.now() - start);
  }
  const outputs = mapped(results, described);
  tf.dispose([inputs, results]);
  return {outputs, times};
}

async function main(requestPath, answerPath) {
  const request = JSON.parse(fs.readFileSync(requestPath));
  const start = performance.now();
  const model = await tf.node.loadSavedModel(request.model, ['serve'], request.signature);
  const load = performance.now() - start;
  const calls = request.calls.map((inputs) => call(model, inputs, request.repeat));
  model.dispose();
  const versions = {
    node: process.versions.node,
    'tfjs-node': tf.version['tfjs-node'],
    tensorflow: tf.backend().binding.TF_Version,
  };
  const answer = {versions, load, calls, tensors: tf.memory().numTensors};
  fs.writeFileSync(answerPath, JSON.stringify(answer));
}

main(...process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
