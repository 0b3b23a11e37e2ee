// Counts three opcodes that follow each other within a depth. The first instruction at another depth
// is left out.
{
  hist: {},
  before: ['', ''],
  depth: 0,
  step: function (log) {
    var depth = log.getDepth();
    if (depth !== this.depth) {
      this.before = ['', ''];
      this.depth = depth;
      return;
    }
    var op = log.op.toString();
    var three = this.before.concat(op).join('-');
    this.hist[three] = (this.hist[three] || 0) + 1;
    this.before = [this.before[1], op];
  },
  fault: function () {},
  result: function () { return this.hist; },
}
