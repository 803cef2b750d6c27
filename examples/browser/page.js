// Reads drawn digits with the model that train.py wrote, in TensorFlow.js or in LiteRT.js.

const MODULES = new URL('node_modules/', document.baseURI).href;

// Each runtime is a function of images, float32[b,8,8] with pixels from 0 to 16, that returns the
// probabilities of the digits, float32[b,10].
const RUNTIMES = {
  async tfjs() {
    tf.wasm.setWasmPaths(`${MODULES}@tensorflow/tfjs-backend-wasm/dist/`);
    await tf.setBackend('wasm');
    const model = await tf.loadGraphModel('tfjs/model.json');
    return async (images) => {
      const x = tf.tensor(images, [images.length / 64, 8, 8]);
      const results = await model.predictAsync({images: x});
      const probabilities = await results.probabilities.data();
      tf.dispose([x, results]);
      return probabilities;
    };
  },

  async litert() {
    const {loadLiteRt, loadAndCompile, Tensor} = await import('@litertjs/core');
    await loadLiteRt(`${MODULES}@litertjs/core/wasm/`);
    const model = await loadAndCompile('digits.tflite', {accelerator: 'wasm'});
    const classifyOne = async (image) => {
      const x = new Tensor(image, [1, 8, 8]);
      const results = await model.run({images: x});
      const probabilities = results.probabilities.toTypedArray().slice();
      for (const tensor of [x, ...Object.values(results)]) tensor.delete();
      return probabilities;
    };
    return async (images) => {
      const probabilities = new Float32Array((10 * images.length) / 64);
      for (let i = 0; i < images.length / 64; i++) {
        probabilities.set(await classifyOne(images.slice(64 * i, 64 * i + 64)), 10 * i);
      }
      return probabilities;
    };
  },
};

const find = (id) => document.getElementById(id);
const context = find('canvas').getContext('2d', {willReadFrequently: true});
let classify;

// The net learned from 8x8 images whose pixels count the black points of 4x4 blocks.
function drawnImage() {
  const {data} = context.getImageData(0, 0, 32, 32);
  const image = new Float32Array(64);
  for (let y = 0; y < 32; y++) {
    for (let x = 0; x < 32; x++) {
      if (data[4 * (32 * y + x) + 3] > 127) image[8 * (y >> 2) + (x >> 2)] += 1;
    }
  }
  return image;
}

function largest(numbers) {
  return numbers.indexOf(Math.max(...numbers));
}

async function read() {
  const probabilities = [...(await classify(drawnImage()))];
  const digit = largest(probabilities);
  find('digit').value = `${digit}`;
  find('status').value = `${(100 * probabilities[digit]).toFixed(1)}%`;
}

async function compare() {
  const {images, labels, probabilities} = await (await fetch('held_out.json')).json();
  const results = await classify(new Float32Array(images));
  let difference = 0;
  probabilities.forEach((p, i) => (difference = Math.max(difference, Math.abs(p - results[i]))));
  const right = labels.filter((label, i) => largest([...results.slice(10 * i, 10 * i + 10)]) === label);
  find('status').value =
    `${right.length} of ${labels.length} digits are right; ` +
    `the largest difference from JAX is ${difference.toExponential(0)}`;
}

async function load() {
  find('status').value = 'Loading';
  classify = await RUNTIMES[find('runtime').value]();
  find('status').value = 'Ready';
}

function reportErrors(action) {
  return (event) => Promise.resolve(action(event)).catch((error) => {
    find('status').value = `Error: ${error.message}`;
  });
}

function draw(event) {
  if (!event.buttons) return;
  const scale = 32 / find('canvas').clientWidth;
  context.lineWidth = 3.5;
  context.lineCap = context.lineJoin = 'round';
  context.lineTo(event.offsetX * scale, event.offsetY * scale);
  context.stroke();
}

find('canvas').addEventListener('pointerdown', (event) => {
  context.beginPath();
  draw(event);
});
find('canvas').addEventListener('pointermove', draw);
find('canvas').addEventListener('pointerup', reportErrors(read));
find('clear').addEventListener('click', () => context.clearRect(0, 0, 32, 32));
find('check').addEventListener('click', reportErrors(compare));
find('runtime').addEventListener('change', reportErrors(load));
reportErrors(load)();
