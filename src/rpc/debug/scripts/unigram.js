// Counts each opcode.
{
  hist: {},
  step: function (log) {
    var op = log.op.toString();
    this.hist[op] = (this.hist[op] || 0) + 1;
  },
  fault: function () {},
  result: function () { return this.hist; },
}
