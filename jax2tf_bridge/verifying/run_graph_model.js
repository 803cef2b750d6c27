// Loads a graph model of TensorFlow.js and calls it, without TensorFlow.
//
//   node run_graph_model.js REQUEST ANSWER
//
// REQUEST is a JSON file: {"model": FILE, "folders": [FOLDER...], "backends": [NAME...],
// "calls": [INPUTS...], "repeat": TIMES, "traced": BOOLEAN}. FILE is the JSON file of the model. The
// packages of TensorFlow.js are looked for in and above the folders, and in NODE_PATH. The backends
// are "wasm" and "cpu"; the second runs the model if the first is not installed or cannot run it.
// INPUTS has, for each name, {"dtype", "shape", "offset"}: the dtype of TensorFlow.js, and where the
// bytes begin in REQUEST.data. Each call is made TIMES times in a row, and ends when its results are
// read.
//
// ANSWER is written as JSON: {"versions", "load", "calls": [{"outputs", "times", "tensors"}...],
// "tensors"}. The outputs are described as the inputs are, with "array": the JavaScript type. The
// bytes are in ANSWER.data. Times are in milliseconds. "tensors" of a call has all tensors of the
// graph by node if "traced"; the last "tensors" counts those that are not disposed of.
//
// Errors are one line on stderr. The exit code is 3 if TensorFlow.js is not installed, else 1.
'use strict';

const fs = require('fs');
const path = require('path');
const {performance} = require('perf_hooks');

const ARRAYS = {
  float32: Float32Array, int32: Int32Array, bool: Uint8Array, complex64: Float32Array,
};
const NOT_INSTALLED = 3;

// Reads a request and writes its answer, with the arrays of both in files beside them.
class Exchange {
  constructor(tf, requestPath, answerPath) {
    this.tf = tf;
    this.answerPath = answerPath;
    this.data = fs.readFileSync(`${requestPath}.data`);
    this.answerData = fs.openSync(`${answerPath}.data`, 'w');
    this.size = 0;
  }

  makeTensor({dtype, shape, offset}) {
    const count = shape.reduce((a, b) => a * b, 1);
    const parts = dtype === 'complex64' ? 2 * count : count;
    const bytes = parts * ARRAYS[dtype].BYTES_PER_ELEMENT;
    const array = new ARRAYS[dtype](new Uint8Array(this.data.subarray(offset, offset + bytes)).buffer);
    if (dtype !== 'complex64') return this.tf.tensor(array, shape, dtype);
    const [real, imaginary] = [0, 1].map((part) => array.filter((_, i) => i % 2 === part));
    return this.tf.complex(this.tf.tensor(real, shape), this.tf.tensor(imaginary, shape));
  }

  describe(tensor) {
    const array = tensor.dataSync();
    const bytes = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
    const offset = this.size;
    fs.writeSync(this.answerData, bytes);
    this.size += bytes.length;
    return {dtype: tensor.dtype, array: array.constructor.name, shape: tensor.shape, offset};
  }

  // Calls predict(inputs) and reads the results, as often as asked.
  async call(described, repeat, predict) {
    const inputs = mapValues(described, (each) => this.makeTensor(each));
    const times = [];
    let results = {};
    for (let i = 0; i < repeat; i++) {
      this.tf.dispose(results);
      const start = performance.now();
      results = await predict(inputs);
      await Promise.all(Object.values(results).map((result) => result.data()));
      times.push(performance.now() - start);
    }
    const outputs = mapValues(results, (each) => this.describe(each));
    this.tf.dispose([inputs, results]);
    return {outputs, times};
  }

  write(answer) {
    fs.writeFileSync(this.answerPath, JSON.stringify(answer));
  }
}

function mapValues(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));
}

function find(name, folders) {
  return require.resolve(name, {paths: folders});
}

async function setBackend(tf, backend, folders) {
  if (backend === 'wasm') {
    const file = find('@tensorflow/tfjs-backend-wasm', folders);
    const wasm = require(file);
    wasm.setWasmPaths(`${path.dirname(file)}/`);
    wasm.setThreadsCount(1);
  }
  await tf.setBackend(backend);
}

function readModel(tf, file) {
  return tf.io.getModelArtifactsForJSON(JSON.parse(fs.readFileSync(file)), async (groups) => {
    const paths = groups.flatMap((group) => group.paths);
    const files = paths.map((name) => fs.readFileSync(path.join(path.dirname(file), name)));
    const data = new Uint8Array(Buffer.concat(files));
    return [groups.flatMap((group) => group.weights), data.buffer];
  });
}

async function run(tf, exchange, request) {
  const start = performance.now();
  const model = await tf.loadGraphModel({load: () => readModel(tf, request.model)});
  const load = performance.now() - start;
  const calls = [];
  for (const inputs of request.calls) {
    const answer = await exchange.call(inputs, request.repeat, (each) => model.predictAsync(each));
    if (request.traced) {
      const listed = ([name, tensors]) => [name, tensors.map((each) => each && exchange.describe(each))];
      answer.tensors = Object.fromEntries(Object.entries(model.getIntermediateTensors()).map(listed));
      model.disposeIntermediateTensors();
    }
    calls.push(answer);
  }
  model.dispose();
  return {load, calls};
}

async function main(requestPath, answerPath) {
  const request = JSON.parse(fs.readFileSync(requestPath));
  let file;
  try {
    file = find('@tensorflow/tfjs', request.folders);
  } catch (error) {
    process.exitCode = NOT_INSTALLED;
    return;
  }
  const tf = require(file);
  if (request.traced) tf.env().set('KEEP_INTERMEDIATE_TENSORS', true);
  const exchange = new Exchange(tf, requestPath, answerPath);
  for (const [i, backend] of request.backends.entries()) {
    try {
      await setBackend(tf, backend, request.folders);
      const answer = await run(tf, exchange, request);
      const versions = {node: process.versions.node, tfjs: tf.version.tfjs, backend};
      exchange.write({versions, ...answer, tensors: tf.memory().numTensors});
      return;
    } catch (error) {
      if (i === request.backends.length - 1) throw error;
    }
  }
}

function fail(error) {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
}

module.exports = {Exchange, fail};
if (require.main === module) main(...process.argv.slice(2)).catch(fail);
