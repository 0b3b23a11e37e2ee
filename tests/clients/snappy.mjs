// Snappy's framing format (framing_format.txt): chunks of at most 64 KiB, each with a masked CRC-32C of what it holds.
import snappy from 'snappyjs';

const IDENTIFIER = Buffer.from([0xff, 6, 0, 0, ...Buffer.from('sNaPpY')]);
const CHUNK = 1 << 16;

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) {
    crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  }
  return crc >>> 0;
});

function checksum(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) {
    crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  }
  crc = ~crc >>> 0;
  return (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
}

function chunk(type, checked, body) {
  const head = Buffer.alloc(8);
  head.writeUInt8(type, 0);
  head.writeUIntLE(body.length + 4, 1, 3);
  head.writeUInt32LE(checksum(checked), 4);
  return Buffer.concat([head, body]);
}

export class Framed {
  #parts = [IDENTIFIER];

  add(bytes) {
    for (let at = 0; at < bytes.length; at += CHUNK) {
      const plain = Buffer.from(bytes.subarray(at, at + CHUNK));
      this.#parts.push(chunk(0, plain, Buffer.from(snappy.compress(plain))));
    }
    return this;
  }

  bytes() {
    return Buffer.concat(this.#parts);
  }
}

export function unframed(bytes, most) {
  const parts = [];
  let size = 0;
  for (let at = 0; at < bytes.length;) {
    const [type, length] = [bytes[at], bytes.readUIntLE(at + 1, 3)];
    const body = bytes.subarray(at + 4, at + 4 + length);
    at += 4 + length;
    if (type === 0xff || type >= 0x80) {
      continue;
    }
    if (type > 1 || body.length !== length) {
      throw new Error(`bad chunk of type ${type}`);
    }
    const plain = type === 0 ? Buffer.from(snappy.uncompress(body.subarray(4), CHUNK)) : body.subarray(4);
    if (checksum(plain) !== body.readUInt32LE(0)) {
      throw new Error('bad checksum');
    }
    size += plain.length;
    if (size > most) {
      throw new Error('too large');
    }
    parts.push(plain);
  }
  return Buffer.concat(parts);
}
