// Counts the pairs of opcodes that follow each other within a depth.
{
  hist: {},
  before: '',
  depth: 0,
  step: function (log) {
    var op = log.op.toString();
    var depth = log.getDepth();
    if (depth === this.depth) {
      var pair = this.before + '-' + op;
      this.hist[pair] = (this.hist[pair] || 0) + 1;
    }
    this.before = op;
    this.depth = depth;
  },
  fault: function () {},
  result: function () { return this.hist; },
}
