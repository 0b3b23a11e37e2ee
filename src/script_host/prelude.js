// The functions and objects that geth gives to tracers in JavaScript, over a few native functions.
// The value of this script is an object with a function for each event.
(function (root) {
  'use strict';

  const take = function (name) {
    const value = root[name];
    delete root[name];
    return value;
  };
  const peek = take('__peek');
  const readMemory = take('__memory');
  const ask = take('__ask');
  const createAddress = take('__create');
  const create2Address = take('__create2');
  const isPrecompile = take('__precompile');
  const opName = take('__op_name');
  const fail = take('__fail');
  // Kept, since a script may replace them later.
  const { assign } = Object;
  const { parse, stringify } = JSON;

  // Older scripts use a method that is no part of the language any more.
  Object.defineProperty(String.prototype, 'substr', {
    configurable: true,
    writable: true,
    value: function (start, length) {
      const text = String(this);
      const from = start < 0 ? Math.max(text.length + start, 0) : start;
      return text.slice(from, length === undefined ? undefined : Math.max(from + length, 0));
    },
  });

  // Integers of any size, by the methods of the library that geth's scripts know as `bigInt`.
  const BigInteger = function (value) {
    this.value = value;
  };
  const toNative = function (value, radix) {
    if (value instanceof BigInteger) return value.value;
    if (typeof value === 'bigint') return value;
    if (typeof value === 'number') return BigInt(Math.trunc(value));
    if (value === undefined || value === null) return 0n;
    const text = String(value).trim();
    const negative = text[0] === '-';
    const digits = negative || text[0] === '+' ? text.slice(1) : text;
    let number = 0n;
    if (radix !== undefined && Number(radix) !== 10) {
      const base = BigInt(radix);
      for (const digit of digits.toLowerCase()) {
        const one = parseInt(digit, 36);
        if (!(BigInt(one) < base)) throw new Error(digit + ' is not a valid digit in base ' + radix + '.');
        number = number * base + BigInt(one);
      }
    } else {
      number = BigInt(digits);
    }
    return negative ? -number : number;
  };
  const bigInt = function (value, radix) {
    return new BigInteger(toNative(value, radix));
  };
  const abs = (number) => (number < 0n ? -number : number);
  const gcd = function (a, b) {
    let [x, y] = [abs(a), abs(b)];
    while (y !== 0n) [x, y] = [y, x % y];
    return x;
  };
  const modPow = function (base, exponent, modulus) {
    if (modulus === 0n) throw new Error('Cannot take modPow with modulus 0');
    let result = 1n;
    let power = base % modulus;
    for (let left = exponent; left > 0n; left /= 2n) {
      if (left % 2n === 1n) result = (result * power) % modulus;
      power = (power * power) % modulus;
    }
    return result;
  };
  const binary = {
    add: (a, b) => a + b,
    subtract: (a, b) => a - b,
    multiply: (a, b) => a * b,
    divide: (a, b) => a / b,
    mod: (a, b) => a % b,
    pow: (a, b) => a ** b,
    and: (a, b) => a & b,
    or: (a, b) => a | b,
    xor: (a, b) => a ^ b,
    shiftLeft: (a, b) => a << b,
    shiftRight: (a, b) => a >> b,
    gcd: gcd,
    lcm: (a, b) => abs(a * b) / gcd(a, b),
    max: (a, b) => (a > b ? a : b),
    min: (a, b) => (a < b ? a : b),
  };
  const same = { add: ['plus'], subtract: ['minus'], multiply: ['times'], divide: ['over'], mod: ['remainder'] };
  for (const name of Object.keys(binary)) {
    const method = function (other) {
      return new BigInteger(binary[name](this.value, toNative(other)));
    };
    for (const alias of [name].concat(same[name] || [])) BigInteger.prototype[alias] = method;
  }
  const unary = {
    abs: abs,
    negate: (a) => -a,
    next: (a) => a + 1n,
    prev: (a) => a - 1n,
    not: (a) => ~a,
    square: (a) => a * a,
  };
  for (const name of Object.keys(unary)) {
    BigInteger.prototype[name] = function () {
      return new BigInteger(unary[name](this.value));
    };
  }
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const comparisons = {
    equals: (order) => order === 0, eq: (order) => order === 0,
    notEquals: (order) => order !== 0, neq: (order) => order !== 0,
    greater: (order) => order > 0, gt: (order) => order > 0,
    lesser: (order) => order < 0, lt: (order) => order < 0,
    greaterOrEquals: (order) => order >= 0, geq: (order) => order >= 0,
    lesserOrEquals: (order) => order <= 0, leq: (order) => order <= 0,
  };
  for (const name of Object.keys(comparisons)) {
    BigInteger.prototype[name] = function (other) {
      return comparisons[name](compare(this.value, toNative(other)));
    };
  }
  const tests = {
    isZero: (a) => a === 0n, isNegative: (a) => a < 0n, isPositive: (a) => a > 0n,
    isEven: (a) => a % 2n === 0n, isOdd: (a) => a % 2n !== 0n, isUnit: (a) => abs(a) === 1n,
  };
  for (const name of Object.keys(tests)) {
    BigInteger.prototype[name] = function () {
      return tests[name](this.value);
    };
  }
  assign(BigInteger.prototype, {
    compare: function (other) { return compare(this.value, toNative(other)); },
    compareTo: function (other) { return compare(this.value, toNative(other)); },
    compareAbs: function (other) { return compare(abs(this.value), abs(toNative(other))); },
    isDivisibleBy: function (other) {
      const divisor = toNative(other);
      return divisor !== 0n && this.value % divisor === 0n;
    },
    divmod: function (other) {
      const divisor = toNative(other);
      return { quotient: new BigInteger(this.value / divisor), remainder: new BigInteger(this.value % divisor) };
    },
    modPow: function (exponent, modulus) {
      return new BigInteger(modPow(this.value, toNative(exponent), toNative(modulus)));
    },
    bitLength: function () {
      const number = this.value < 0n ? -this.value - 1n : this.value;
      return new BigInteger(number === 0n ? 0n : BigInt(number.toString(2).length));
    },
    toJSNumber: function () { return Number(this.value); },
    valueOf: function () { return Number(this.value); },
    toString: function (radix) { return this.value.toString(radix === undefined ? 10 : Number(radix)); },
    toJSON: function () { return this.value.toString(); },
  });
  bigInt.zero = bigInt(0);
  bigInt.one = bigInt(1);
  bigInt.minusOne = bigInt(-1);
  bigInt.isInstance = (value) => value instanceof BigInteger;
  for (const name of ['max', 'min', 'gcd', 'lcm']) {
    bigInt[name] = (a, b) => new BigInteger(binary[name](toNative(a), toNative(b)));
  }

  // Bytes are `Uint8Array` in scripts and hexadecimal digits for native functions.
  const digits = [];
  for (let byte = 0; byte < 256; byte += 1) digits.push((byte < 16 ? '0' : '') + byte.toString(16));
  const toBuffer = function (hex) {
    const bytes = new Uint8Array(hex.length / 2);
    for (let at = 0; at < bytes.length; at += 1) bytes[at] = parseInt(hex.slice(2 * at, 2 * at + 2), 16);
    return bytes;
  };
  const fromBuffer = function (value, allowText) {
    if (typeof value === 'string' && allowText) {
      const hex = value.slice(0, 2).toLowerCase() === '0x' ? value.slice(2) : value;
      return /^[0-9a-fA-F]*$/.test(hex) ? (hex.length % 2 === 1 ? '0' : '') + hex.toLowerCase() : '';
    }
    if (!Array.isArray(value) && !(value instanceof Uint8Array)) fail('invalid buffer type');
    const parts = new Array(value.length);
    for (let at = 0; at < value.length; at += 1) parts[at] = digits[value[at] & 255];
    return parts.join('');
  };
  const fitted = (hex, bytes) => hex.slice(-2 * bytes).padStart(2 * bytes, '0');
  const address = (value, allowText) => fitted(fromBuffer(value, allowText), 20);

  assign(root, {
    bigInt: bigInt,
    toHex: (value) => '0x' + fromBuffer(value, false),
    toWord: (value) => toBuffer(fitted(fromBuffer(value, true), 32)),
    toAddress: (value) => toBuffer(address(value, true)),
    toContract: (from, nonce) => toBuffer(createAddress(address(from, true), Number(nonce))),
    toContract2: (from, salt, code) =>
      toBuffer(create2Address(address(from, true), fitted(fromBuffer(String(salt), true), 32), fromBuffer(code, true))),
    isPrecompiled: (value) => isPrecompile(address(value, true)),
    slice: function (value, start, end) {
      const hex = fromBuffer(value, false);
      const length = hex.length / 2;
      if (start < 0 || start > end || end > length) {
        fail('Tracer accessed out of bound memory: available ' + length + ', offset ' + start + ', size ' + (end - start));
      }
      return toBuffer(hex.slice(2 * start, 2 * end));
    },
  });

  const step = {};
  let contract = { caller: '', address: '', value: '0x0', input: '' };
  const log = {
    op: {
      toNumber: () => step.op,
      toString: () => opName(step.op),
      isPush: () => step.op >= 0x5f && step.op <= 0x7f,
    },
    memory: {
      slice: function (begin, end) {
        if (end === begin) return new Uint8Array(0);
        if (end < begin || begin < 0) fail('tracer accessed out of bound memory: offset ' + begin + ', end ' + end);
        return readMemory(begin, end - begin);
      },
      getUint: function (offset) {
        if (offset < 0 || step.memory < offset + 32) {
          fail('tracer accessed out of bound memory: available ' + step.memory + ', offset ' + offset + ', size 32');
        }
        return new BigInteger(BigInt('0x' + fromBuffer(readMemory(offset, 32), false)));
      },
      length: () => step.memory,
    },
    stack: {
      peek: function (index) {
        if (!(index >= 0 && index < step.stack)) {
          fail('tracer accessed out of bound stack: size ' + step.stack + ', index ' + index);
        }
        return new BigInteger(peek(index));
      },
      length: () => step.stack,
    },
    contract: {
      getCaller: () => toBuffer(contract.caller),
      getAddress: () => toBuffer(contract.address),
      getValue: () => new BigInteger(BigInt(contract.value)),
      getInput: () => toBuffer(contract.input),
    },
    getPC: () => step.pc,
    getGas: () => step.gas,
    getCost: () => step.cost,
    getDepth: () => step.depth,
    getRefund: () => step.refund,
    getError: () => step.error,
  };
  const db = {
    getBalance: (of) => new BigInteger(BigInt('0x' + ask('balance', address(of, false), ''))),
    getNonce: (of) => Number(BigInt('0x' + ask('nonce', address(of, false), ''))),
    getCode: (of) => toBuffer(ask('code', address(of, false), '')),
    getState: (of, slot) => toBuffer(ask('storage', address(of, false), fitted(fromBuffer(slot, false), 32))),
    exists: (of) => ask('exists', address(of, false), '') !== '00',
  };

  let frame = {};
  const enterFrame = {
    getType: () => frame.kind,
    getFrom: () => toBuffer(frame.from),
    getTo: () => toBuffer(frame.to),
    getInput: () => toBuffer(frame.input),
    getGas: () => frame.gas,
    getValue: () => (frame.value === undefined ? undefined : new BigInteger(BigInt(frame.value))),
  };
  let ended = {};
  const exitFrame = {
    getGasUsed: () => ended.gasUsed,
    getOutput: () => toBuffer(ended.output),
    getError: () => ended.error,
  };

  let script;
  const isFunction = (name) => typeof script[name] === 'function';
  const BUFFERS = ['from', 'to', 'input', 'output', 'coinbase', 'blockHash', 'txHash'];
  const NUMBERS = ['value', 'gasPrice'];
  return {
    load: function (object, config) {
      script = Object(object);
      for (const name of ['result', 'fault']) {
        if (!isFunction(name)) fail('trace object must expose a function ' + name + '()');
      }
      if (isFunction('enter') !== isFunction('exit')) {
        fail('trace object must expose either both or none of enter() and exit()');
      }
      if (isFunction('setup')) script.setup(config);
      return (isFunction('step') ? 1 : 0) + (isFunction('enter') ? 2 : 0);
    },
    contract: function (caller, own, value, input) {
      contract = { caller: caller, address: own, value: value, input: input };
    },
    step: function (pc, op, gas, cost, depth, refund, memory, stack, error) {
      assign(step, { pc: pc, op: op, gas: gas, cost: cost, depth: depth, refund: refund });
      assign(step, { memory: memory, stack: stack, error: error });
      script.step(log, db);
    },
    fault: function (error) {
      step.error = error;
      script.fault(log, db);
    },
    enter: function (kind, from, to, input, gas, value) {
      frame = { kind: kind, from: from, to: to, input: input, gas: gas, value: value };
      script.enter(enterFrame);
    },
    exit: function (gasUsed, output, error) {
      ended = { gasUsed: gasUsed, output: output, error: error };
      script.exit(exitFrame);
    },
    result: function (text) {
      const context = parse(text);
      for (const name of BUFFERS) {
        if (name in context) context[name] = toBuffer(context[name].slice(2));
      }
      for (const name of NUMBERS) context[name] = bigInt(context[name]);
      const answer = stringify(script.result(context, db));
      return answer === undefined ? 'null' : answer;
    },
  };
})(globalThis);
