// Counts the instructions of a transaction.
{
  count: 0,
  step: function () { this.count += 1; },
  fault: function () {},
  result: function () { return this.count; },
}
