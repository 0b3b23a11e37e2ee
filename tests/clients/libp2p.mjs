// A foreign peer made of js-libp2p: `node libp2p.mjs '{"connect": MULTIADDR, "chainId": N}'`.
//
// Two hosts in one process, which serve the blocks they have. The *mesh* host dials that node; it gets blocks and passes them on. The
// *lurker* waits to be dialled and refuses every mesh: from a node that only passes blocks on, one reaches it when an id that it was
// told (IHAVE) is one that it asks for (IWANT).
// Events go to stdout and orders come from stdin, a JSON object a line; the end of stdin is the end.
import { createHash } from 'node:crypto';
import { createInterface } from 'node:readline';
import { gossipsub } from '@chainsafe/libp2p-gossipsub';
import { noise } from '@chainsafe/libp2p-noise';
import { yamux } from '@chainsafe/libp2p-yamux';
import { generateKeyPair } from '@libp2p/crypto/keys';
import { identify } from '@libp2p/identify';
import { ping } from '@libp2p/ping';
import { tcp } from '@libp2p/tcp';
import { multiaddr } from '@multiformats/multiaddr';
import { concat, keccak256, recoverAddress, toBeHex, Signature } from 'ethers';
import { createLibp2p } from 'libp2p';
import { Framed, unframed } from './snappy.mjs';
import snappy from 'snappyjs';

// Node 20 lacks it, and libraries below call it.
Promise.withResolvers ??= () => {
  const deferred = {};
  deferred.promise = new Promise((resolve, reject) => Object.assign(deferred, { resolve, reject }));
  return deferred;
};

const { connect, chainId } = JSON.parse(process.argv[2]);
const MAX = 10 << 20;
const TOPICS = [0, 1, 2, 3].map((version) => `/optimism/${chainId}/${version}/blocks`);
const PROTOCOL = `/opstack/req/payload_by_number/${chainId}/0`;
const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const hex = (bytes) => `0x${Buffer.from(bytes).toString('hex')}`;

// Block messages (op-node's rules): snappy without frames; an id over domain, topic and what is inside.
function unpacked(data) {
  try {
    return snappy.uncompress(data, MAX);
  } catch {
    return null;
  }
}

function messageId({ topic, data }) {
  const inside = unpacked(data);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(Buffer.byteLength(topic)));
  const digest = createHash('sha256').update(Buffer.from([inside ? 1 : 0, 0, 0, 0])).update(length).update(topic).update(inside ?? data);
  return new Uint8Array(digest.digest().subarray(0, 20));
}

// A block as it is signed and served: the parent beacon block root, and SSZ.
function described(wire) {
  const ssz = Buffer.from(wire).subarray(32);
  return { number: Number(ssz.readBigUInt64LE(404)), hash: hex(ssz.subarray(472, 504)) };
}

function signerOf(signature, wire) {
  const digest = keccak256(concat([new Uint8Array(32), toBeHex(chainId, 32), keccak256(wire)]));
  const parts = { r: hex(signature.subarray(0, 32)), s: hex(signature.subarray(32, 64)), yParity: signature[64] };
  return recoverAddress(digest, Signature.from(parts));
}

async function host(name, options) {
  const node = await createLibp2p({
    privateKey: await generateKeyPair('secp256k1'),
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: {
      identify: identify(),
      ping: ping(),
      pubsub: gossipsub({
        globalSignaturePolicy: 'StrictNoSign',
        msgIdFn: messageId,
        fallbackToFloodsub: false,
        heartbeatInterval: 500,
        ...options,
      }),
    },
  });
  const { pubsub } = node.services;
  const announced = new Set();
  const handle = pubsub.handleReceivedRpc.bind(pubsub);
  pubsub.handleReceivedRpc = (from, rpc) => {
    for (const { messageIDs } of rpc.control?.ihave ?? []) {
      messageIDs.forEach((id) => announced.add(hex(id)));
    }
    return handle(from, rpc);
  };
  pubsub.addEventListener('gossipsub:message', ({ detail: { msg } }) => {
    const inside = unpacked(msg.data);
    const [signature, wire] = [inside.subarray(0, 65), inside.subarray(65)];
    const block = described(wire);
    kept.set(block.number, wire);
    const id = hex(messageId(msg));
    tell({ event: 'gossip', host: name, ...block, id, topic: msg.topic, signer: signerOf(signature, wire), announced: announced.has(id) });
  });
  TOPICS.forEach((topic) => pubsub.subscribe(topic));
  return node;
}

async function read(source) {
  const chunks = [];
  for await (const chunk of source) {
    chunks.push(Buffer.from(chunk.subarray()));
  }
  return Buffer.concat(chunks);
}

const kept = new Map();
const mesh = await host('mesh', {});
const lurker = await host('lurker', { D: 0, Dlo: 0, Dscore: 0, Dout: 0 });
const { pubsub: shy } = lurker.services;
shy.handleGraft = (id, grafts) => Promise.all(grafts.map(({ topicID }) => shy.makePrune(id, topicID, false, false)));

// What is kept is served, under both spellings of the protocol.
async function serve({ stream }) {
  const number = Number((await read(stream.source)).readBigUInt64LE());
  const wire = kept.get(number);
  const answer = wire ? Buffer.concat([Buffer.from([0, 1, 0, 0, 0]), new Framed().add(wire).bytes()]) : Buffer.from([1]);
  await stream.sink([answer]);
  tell({ event: 'served', number, found: wire !== undefined, protocol: stream.protocol });
}
await Promise.all([mesh, lurker].map((node) => node.handle([PROTOCOL, `${PROTOCOL}/`], serve)));

// Asks for a block as op-node does: eight bytes, half a close, and what comes until the end.
async function fetchBlock(number, protocol) {
  const stream = await mesh.dialProtocol(multiaddr(connect), protocol);
  const request = Buffer.alloc(8);
  request.writeBigUInt64LE(BigInt(number));
  await stream.sink([request]);
  const answer = await read(stream.source);
  if (answer[0] !== 0) {
    return { result: answer[0], length: answer.length };
  }
  const wire = unframed(answer.subarray(5), MAX);
  const before = kept.get(number);
  kept.set(number, wire);
  return { result: 0, version: answer.readUInt32LE(1), block: described(wire), same: before ? Buffer.from(before).equals(wire) : null };
}

await mesh.dial(multiaddr(connect));
tell({ event: 'ready', addresses: [mesh, lurker].map((node) => node.getMultiaddrs()[0].toString()) });
for await (const line of createInterface({ input: process.stdin })) {
  const { fetch, slash } = JSON.parse(line);
  tell({ event: 'fetched', number: fetch, ...(await fetchBlock(fetch, slash ? `${PROTOCOL}/` : PROTOCOL)) });
}
process.exit(0);
