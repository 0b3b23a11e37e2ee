// Counts the selectors of calls, with the length of their arguments. Calls of precompiles are left out.
{
  counts: {},
  note: function (selector, length) {
    var key = toHex(selector) + '-' + length;
    this.counts[key] = (this.counts[key] || 0) + 1;
  },
  step: function (log) {
    var at = { CALL: 3, CALLCODE: 3, DELEGATECALL: 2, STATICCALL: 2 }[log.op.toString()];
    if (at === undefined || isPrecompiled(toAddress(log.stack.peek(1).toString(16)))) return;
    var size = log.stack.peek(at + 1).valueOf();
    if (size < 4) return;
    var offset = log.stack.peek(at).valueOf();
    this.note(log.memory.slice(offset, offset + 4), size - 4);
  },
  fault: function () {},
  result: function (ctx) {
    if (ctx.input.length >= 4) this.note(slice(ctx.input, 0, 4), ctx.input.length - 4);
    return this.counts;
  },
}
