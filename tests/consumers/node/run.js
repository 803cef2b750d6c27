// Loads a SavedModel and calls one of its signatures, as a service in Node does.
//
//   node run.js REQUEST ANSWER
//
// REQUEST and ANSWER are those of run_graph_model.js, but "model" is the folder of the SavedModel,
// and "signature" takes the place of the backends.
'use strict';

const fs = require('fs');
const {performance} = require('perf_hooks');
const tf = require('@tensorflow/tfjs-node');
const {Exchange, fail} = require('../../../jax2tf_bridge/verifying/run_graph_model.js');

async function main(requestPath, answerPath) {
  const request = JSON.parse(fs.readFileSync(requestPath));
  const exchange = new Exchange(tf, requestPath, answerPath);
  const start = performance.now();
  const model = await tf.node.loadSavedModel(request.model, ['serve'], request.signature);
  const load = performance.now() - start;
  const calls = [];
  for (const inputs of request.calls) {
    calls.push(await exchange.call(inputs, request.repeat, (each) => model.predict(each)));
  }
  model.dispose();
  const versions = {
    node: process.versions.node,
    'tfjs-node': tf.version['tfjs-node'],
    tensorflow: tf.backend().binding.TF_Version,
  };
  exchange.write({versions, load, calls, tensors: tf.memory().numTensors});
}

main(...process.argv.slice(2)).catch(fail);
