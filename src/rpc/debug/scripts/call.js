// The calls of a transaction, nested, found by nothing but its instructions. Calls of precompiles are
// left out. The gas of a call is known only if its code runs.
{
  open: [{}],
  entered: false,
  hex: function (number) { return '0x' + bigInt(number).toString(16); },
  attach: function (call) {
    var parent = this.open[this.open.length - 1];
    parent.calls = parent.calls || [];
    parent.calls.push(call);
  },
  begin: function (log, call, offset, size) {
    call.from = toHex(log.contract.getAddress());
    if (offset !== undefined) call.input = toHex(log.memory.slice(offset, offset + size));
    call.before = { gas: log.getGas(), cost: log.getCost() };
    return call;
  },
  creation: function (log, op) {
    var value = this.hex(log.stack.peek(0));
    var call = { type: op, value: value };
    this.open.push(this.begin(log, call, log.stack.peek(1).valueOf(), log.stack.peek(2).valueOf()));
    this.entered = true;
  },
  message: function (log, op) {
    var to = toAddress(log.stack.peek(1).toString(16));
    if (isPrecompiled(to)) return;
    var sends = op === 'CALL' || op === 'CALLCODE';
    var first = sends ? 3 : 2;
    var call = { type: op, to: toHex(to) };
    if (sends) call.value = this.hex(log.stack.peek(2));
    this.begin(log, call, log.stack.peek(first).valueOf(), log.stack.peek(first + 1).valueOf());
    call.out = { offset: log.stack.peek(first + 2).valueOf(), size: log.stack.peek(first + 3).valueOf() };
    this.open.push(call);
    this.entered = true;
  },
  destruction: function (log, db) {
    var call = this.begin(log, { type: 'SELFDESTRUCT', to: toHex(toAddress(log.stack.peek(0).toString(16))) });
    call.value = this.hex(db.getBalance(log.contract.getAddress()));
    this.attach(call);
  },
  end: function (log, db) {
    var call = this.open.pop();
    var result = log.stack.peek(0);
    var spent = call.before.gas - call.before.cost - log.getGas();
    if (call.type === 'CREATE' || call.type === 'CREATE2') {
      call.gasUsed = this.hex(spent);
      if (!result.equals(0)) {
        var created = toAddress(result.toString(16));
        call.to = toHex(created);
        call.output = toHex(db.getCode(created));
      }
    } else {
      if (call.gas !== undefined) call.gasUsed = this.hex(spent + call.gas);
      if (!result.equals(0)) {
        call.output = toHex(log.memory.slice(call.out.offset, call.out.offset + call.out.size));
      }
    }
    if (result.equals(0) && call.error === undefined) call.error = 'internal failure';
    if (call.gas !== undefined) call.gas = this.hex(call.gas);
    this.attach(call);
  },
  step: function (log, db) {
    if (log.getError() !== undefined) return this.fault(log);
    var op = log.op.toString();
    if (op === 'CREATE' || op === 'CREATE2') return this.creation(log, op);
    if (op === 'SELFDESTRUCT') return this.destruction(log, db);
    if (op === 'CALL' || op === 'CALLCODE' || op === 'DELEGATECALL' || op === 'STATICCALL') return this.message(log, op);
    if (this.entered) {
      if (log.getDepth() >= this.open.length) this.open[this.open.length - 1].gas = log.getGas();
      this.entered = false;
    }
    if (op === 'REVERT') {
      this.open[this.open.length - 1].error = 'execution reverted';
    } else if (log.getDepth() === this.open.length - 1) {
      this.end(log, db);
    }
  },
  fault: function (log) {
    if (this.open[this.open.length - 1].error !== undefined) return;
    var call = this.open.pop();
    call.error = log.getError();
    if (call.gas !== undefined) {
      call.gas = this.hex(call.gas);
      call.gasUsed = call.gas;
    }
    if (this.open.length > 0) this.attach(call);
    else this.open.push(call);
  },
  result: function (ctx) {
    var root = this.open[0];
    var call = {
      type: ctx.type,
      from: toHex(ctx.from),
      to: toHex(ctx.to),
      value: this.hex(ctx.value),
      gas: this.hex(ctx.gas),
      gasUsed: this.hex(ctx.gasUsed),
      input: toHex(ctx.input),
      output: toHex(ctx.output),
      calls: root.calls,
      error: root.error !== undefined ? root.error : ctx.error,
    };
    if (call.error !== undefined && (call.error !== 'execution reverted' || call.output === '0x')) delete call.output;
    return this.shown(call);
  },
  shown: function (call) {
    var shown = {};
    var names = ['type', 'from', 'to', 'value', 'gas', 'gasUsed', 'input', 'output', 'error'];
    for (var at = 0; at < names.length; at += 1) {
      if (call[names[at]] !== undefined) shown[names[at]] = call[names[at]];
    }
    if (call.calls !== undefined) shown.calls = call.calls.map(this.shown, this);
    return shown;
  },
}
