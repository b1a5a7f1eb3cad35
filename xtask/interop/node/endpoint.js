// Endpoint on Node.js. The contract is in ../README.md.
'use strict';
const { constants } = require('node:crypto');
const fs = require('node:fs');
const tls = require('node:tls');

const role = process.argv[2];
const isServer = role === 'server';
const args = Object.fromEntries(process.argv.slice(3).map((argument) => {
  const at = argument.indexOf('=');
  return [argument.slice(0, at), argument.slice(at + 1)];
}));
const number = (name, otherwise = 0) => (name in args ? Number(args[name]) : otherwise);

function fail(text) {
  process.stderr.write(`${role}: ${text}\n`);
  process.exit(1);
}
setTimeout(() => fail('out of time'), 50000).unref();

function options() {
  const version = `TLSv${args.version}`;
  let secureOptions = 0;
  if (args.resume === 'id') secureOptions |= constants.SSL_OP_NO_TICKET;
  if (number('etm', 1) === 0) secureOptions |= 1 << 19; // SSL_OP_NO_ENCRYPT_THEN_MAC
  if (number('ems', 1) === 0) secureOptions |= 1; // SSL_OP_NO_EXTENDED_MASTER_SECRET
  const all = {
    minVersion: version,
    maxVersion: version,
    secureOptions,
    rejectUnauthorized: false,
    ca: fs.readFileSync(args.ca),
  };
  // One option for the suites of both versions.
  if (args.suite) all.ciphers = args.version === '1.2' ? `${args.suite}:@SECLEVEL=0` : args.suite;
  if (args.groups) all.ecdhCurve = args.groups;
  if (args.cert) {
    all.cert = fs.readFileSync(args.cert);
    all.key = fs.readFileSync(args.key);
  }
  if (isServer && number('auth')) {
    all.requestCert = true;
    all.rejectUnauthorized = true;
  }
  if (isServer) all.dhparam = 'auto';
  if (args.psk) {
    const psk = Buffer.from(args.psk, 'hex');
    all.pskCallback = isServer
      ? (socket, identity) => (identity === 'mmtls' ? psk : null)
      : () => ({ psk, identity: 'mmtls' });
    all.checkServerIdentity = () => undefined;
  }
  return all;
}

function logKeys(line) {
  if (args.keylog) fs.appendFileSync(args.keylog, line);
}

// Reads exactly as many bytes as asked for; write() waits until the bytes are with the kernel.
class Connection {
  constructor(socket, index) {
    this.socket = socket;
    this.payload = fs.readFileSync(`${args.send}.${index}`);
    this.path = `${args.received}.${index}`;
    this.parts = [];
    this.length = 0;
    this.ended = false;
    this.wake = () => {};
    socket.on('data', (data) => {
      this.parts.push(data);
      this.length += data.length;
      this.wake();
    });
    socket.on('end', () => {
      this.ended = true;
      this.wake();
    });
    socket.on('error', (error) => fail(`connection ${index}: ${error.message}`));
  }

  async receive(length) {
    while (this.length < length) {
      if (this.ended) fail(`the peer ended after ${this.length} bytes`);
      await new Promise((resolve) => { this.wake = resolve; });
    }
    if (this.length > length) fail('more bytes than expected');
  }

  async send(part) {
    const chunk = number('chunk') || part.length;
    for (let at = 0; at < part.length; at += chunk) {
      await new Promise((resolve) => this.socket.write(part.subarray(at, at + chunk), resolve));
    }
  }

  async exchange() {
    const rounds = number('rounds', 1);
    const edge = (length, round) => Math.floor((length * round) / rounds);
    for (let round = 0; round < rounds; round += 1) {
      const part = this.payload.subarray(
        edge(this.payload.length, round), edge(this.payload.length, round + 1));
      if (isServer) await this.receive(edge(number('expect'), round + 1));
      if (!isServer && round > 0 && number('reneg')) {
        await new Promise((resolve) => this.socket.renegotiate({}, (error) => {
          if (error) fail(`renegotiation: ${error.message}`);
          resolve();
        }));
      }
      await this.send(part);
      if (!isServer) await this.receive(edge(number('expect'), round + 1));
    }
    // The client closes first.
    if (!isServer) this.socket.end();
    while (!this.ended) await new Promise((resolve) => { this.wake = resolve; });
    if (isServer) this.socket.end();
    fs.writeFileSync(this.path, Buffer.concat(this.parts));
  }
}

function serve() {
  let index = 0;
  let done = 0;
  const server = tls.createServer({ allowHalfOpen: true, ...options() }, async (socket) => {
    socket.allowHalfOpen = true;
    const connection = new Connection(socket, index);
    index += 1;
    await connection.exchange();
    done += 1;
    if (done === number('connections', 1)) server.close();
  });
  const sessions = new Map();
  server.on('newSession', (id, data, resume) => {
    sessions.set(id.toString('hex'), data);
    resume();
  });
  server.on('resumeSession', (id, resume) => resume(null, sessions.get(id.toString('hex')) ?? null));
  server.on('keylog', logKeys);
  server.on('tlsClientError', (error) => fail(error.message));
  server.listen(number('port'), args.host, () => process.stdout.write('ready\n'));
}

async function connect() {
  let session;
  for (let index = 0; index < number('connections', 1); index += 1) {
    const reused = args.resume ? session : undefined;
    const socket = tls.connect({
      host: args.host,
      port: number('port'),
      servername: 'server.test',
      allowHalfOpen: true,
      session: reused,
      ...options(),
    });
    socket.on('keylog', logKeys);
    socket.on('session', (ticket) => { session = ticket; });
    const connection = new Connection(socket, index);
    await new Promise((resolve) => socket.once('secureConnect', resolve));
    if (reused && !socket.isSessionReused()) fail('not resumed');
    await connection.exchange();
    socket.destroy();
  }
}

if (role === 'version') {
  process.stdout.write(`Node.js ${process.version}, OpenSSL ${process.versions.openssl}\n`);
} else if (isServer) serve();
else connect();
