// Opens the page of examples/browser in headless Chromium, and uses it with the mouse.
//
//   node browse.js CHROMIUM FOLDER
//
// FOLDER is served on a port of its own. The program chooses each runtime, compares it with JAX,
// and draws a 1. It prints one line of JSON for each: {"runtime", "compared", "digit", "drawn"}, with
// what the page shows. An error ends it with status 1 and a text on stderr.
'use strict';

const {spawn} = require('child_process');
const fs = require('fs');
const http = require('http');
const os = require('os');
const path = require('path');

const TYPES = {'.html': 'text/html', '.js': 'text/javascript', '.json': 'application/json',
  '.wasm': 'application/wasm'};

function serve(folder) {
  const server = http.createServer((request, response) => {
    const file = path.join(folder, decodeURIComponent(new URL(request.url, 'http://x').pathname));
    fs.readFile(file, (error, data) => {
      const type = TYPES[path.extname(file)] || 'application/octet-stream';
      response.writeHead(error ? 404 : 200, {'Content-Type': type});
      response.end(error ? '' : data);
    });
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

// Speaks Chromium's DevTools protocol over two pipes.
class Browser {
  constructor(program, profile) {
    const options = ['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run',
      '--remote-debugging-pipe', `--user-data-dir=${profile}`];
    this.process = spawn(program, options, {stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe']});
    this.waiting = new Map();
    this.count = 0;
    let rest = '';
    this.process.stdio[4].setEncoding('utf8').on('data', (text) => {
      const messages = (rest + text).split('\0');
      rest = messages.pop();
      for (const message of messages.map((each) => JSON.parse(each))) {
        const done = this.waiting.get(message.id);
        if (!done) continue;
        this.waiting.delete(message.id);
        if (message.error) done.reject(new Error(message.error.message));
        else done.resolve(message.result);
      }
    });
    this.process.on('exit', () => {
      for (const {reject} of this.waiting.values()) reject(new Error('Chromium ended'));
    });
  }

  send(method, params = {}) {
    const id = ++this.count;
    this.process.stdio[3].write(`${JSON.stringify({id, method, params, sessionId: this.session})}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, {resolve, reject}));
  }

  async open(address) {
    const {targetId} = await this.send('Target.createTarget', {url: address});
    this.session = (await this.send('Target.attachToTarget', {targetId, flatten: true})).sessionId;
  }

  async evaluate(expression) {
    const {result, exceptionDetails} = await this.send('Runtime.evaluate', {
      expression, awaitPromise: true, returnByValue: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.exception.description);
    return result.value;
  }

  // Waits until the page shows another status than before, and returns it.
  async status(...passing) {
    for (let i = 0; i < 600; i++) {
      const text = await this.evaluate(`document.getElementById('status')?.value ?? ''`);
      if (text && !passing.includes(text)) {
        if (text.startsWith('Error')) throw new Error(text);
        return text;
      }
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    throw new Error(`The page still shows: ${passing}`);
  }

  mouse(type, x, y) {
    const buttons = type === 'mouseReleased' ? 0 : 1;
    return this.send('Input.dispatchMouseEvent', {type, x, y, button: 'left', buttons, clickCount: 1});
  }
}

async function useRuntime(browser, runtime) {
  await browser.evaluate(`{
    const choice = document.getElementById('runtime');
    choice.value = '${runtime}';
    document.getElementById('status').value = 'Loading';
    choice.dispatchEvent(new Event('change'));
    document.getElementById('clear').click();
  }`);
  await browser.status('Loading');
  await browser.evaluate(`document.getElementById('check').click()`);
  const compared = await browser.status('Loading', 'Ready');
  const box = await browser.evaluate(`(() => {
    const {x, y, width} = document.getElementById('canvas').getBoundingClientRect();
    return {x, y, width};
  })()`);
  const at = (x, y) => [box.x + (box.width * x) / 32, box.y + (box.width * y) / 32];
  await browser.mouse('mousePressed', ...at(11, 9));
  for (const point of [[16, 4], [16, 16], [16, 28]]) await browser.mouse('mouseMoved', ...at(...point));
  await browser.mouse('mouseReleased', ...at(16, 28));
  const drawn = await browser.status(compared);
  const digit = await browser.evaluate(`document.getElementById('digit').value`);
  console.log(JSON.stringify({runtime, compared, digit, drawn}));
}

async function main(program, folder) {
  const server = await serve(folder);
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'chromium-'));
  const browser = new Browser(program, profile);
  try {
    await browser.open(`http://127.0.0.1:${server.address().port}/index.html`);
    await browser.status('Loading');
    for (const runtime of ['tfjs', 'litert']) await useRuntime(browser, runtime);
  } finally {
    const ended = new Promise((resolve) => browser.process.once('exit', resolve));
    browser.process.kill();
    await ended;
    server.close();
    fs.rmSync(profile, {recursive: true, force: true, maxRetries: 5});
  }
}

main(...process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
