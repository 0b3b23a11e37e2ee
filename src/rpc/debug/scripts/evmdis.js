// The instructions of a transaction with what they push, as the disassembler evmdis reads them.
{
  frames: [{ ops: [] }],
  pushes: function (op) {
    if (op >= 0x60 && op <= 0x7f) return 1;
    if (op >= 0x80 && op <= 0x8f) return op - 0x80 + 2;
    if (op >= 0x90 && op <= 0x9f) return op - 0x90 + 2;
    if (op >= 0x01 && op <= 0x0b) return 1;
    if (op >= 0x10 && op <= 0x1a) return 1;
    if (op >= 0x40 && op <= 0x45) return 1;
    if (op >= 0xf0 && op <= 0xf2) return 1;
    return [0x20, 0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x38, 0x3a, 0x3b, 0x51, 0x54, 0x58, 0x59, 0x5a].indexOf(op) < 0 ? 0 : 1;
  },
  call: function (log, info, named, first) {
    var offset = log.stack.peek(first).valueOf();
    info.gas = log.stack.peek(0).valueOf();
    info.to = log.stack.peek(1).toString(16);
    if (named) info.op = log.op.toString();
    else info.value = log.stack.peek(2).toString();
    info.input = log.memory.slice(offset, offset + log.stack.peek(first + 1).valueOf());
    info.error = null;
    info.return = null;
    info.ops = [];
    this.frames.push(info);
  },
  step: function (log) {
    var frame = this.frames[this.frames.length - 1];
    var depth = log.getDepth();
    if (log.getError()) {
      frame.error = log.getError();
      return;
    }
    if (depth !== this.frames.length) {
      this.frames = this.frames.slice(0, depth);
      return;
    }
    var info = { op: log.op.toNumber(), depth: depth, result: [] };
    var before = frame.ops[frame.ops.length - 1];
    // The instruction after a call is left out, as by geth's script, and may have taken the result.
    var results = before === undefined ? 0 : Math.min(this.pushes(before.op), log.stack.length());
    for (var at = 0; at < results; at += 1) {
      before.result.push(log.stack.peek(at).toString(16));
    }
    switch (log.op.toString()) {
      case 'CALL':
      case 'CALLCODE':
        this.call(log, info, false, 3);
        break;
      case 'DELEGATECALL':
      case 'STATICCALL':
        this.call(log, info, true, 2);
        break;
      case 'RETURN':
      case 'REVERT':
        var offset = log.stack.peek(0).valueOf();
        frame.return = log.memory.slice(offset, offset + log.stack.peek(1).valueOf());
        break;
      case 'STOP':
      case 'SELFDESTRUCT':
        frame.return = log.memory.slice(0, 0);
        break;
      case 'JUMPDEST':
        info.pc = log.getPC();
    }
    if (log.op.isPush()) info.len = log.op.toNumber() - 0x5e;
    frame.ops.push(info);
  },
  fault: function () {},
  result: function () { return this.frames[0].ops; },
}
