// Answers with an empty object.
{
  step: function () {},
  fault: function () {},
  result: function () { return {}; },
}
