// The accounts and slots that a transaction touches, as they were before it.
{
  accounts: null,
  account: function (address, db) {
    var name = toHex(address);
    if (this.accounts[name] !== undefined) return;
    this.accounts[name] = {
      balance: '0x' + db.getBalance(address).toString(16),
      nonce: db.getNonce(address),
      code: toHex(db.getCode(address)),
      storage: {},
    };
  },
  step: function (log, db) {
    var own = log.contract.getAddress();
    var addressAt = function (index) { return toAddress(log.stack.peek(index).toString(16)); };
    if (this.accounts === null) {
      // The value of the transaction has been moved already: see `result`.
      this.accounts = {};
      this.account(own, db);
    }
    switch (log.op.toString()) {
      case 'BALANCE':
      case 'EXTCODECOPY':
      case 'EXTCODEHASH':
      case 'EXTCODESIZE':
        this.account(addressAt(0), db);
        break;
      case 'CALL':
      case 'CALLCODE':
      case 'DELEGATECALL':
      case 'STATICCALL':
        this.account(addressAt(1), db);
        break;
      case 'CREATE':
        this.account(toContract(own, db.getNonce(own)), db);
        break;
      case 'CREATE2':
        var offset = log.stack.peek(1).valueOf();
        var code = log.memory.slice(offset, offset + log.stack.peek(2).valueOf());
        this.account(toContract2(own, log.stack.peek(3).toString(16), code), db);
        break;
      case 'SLOAD':
      case 'SSTORE':
        var slot = toWord(log.stack.peek(0).toString(16));
        var storage = this.accounts[toHex(own)] && this.accounts[toHex(own)].storage;
        if (storage && storage[toHex(slot)] === undefined) storage[toHex(slot)] = toHex(db.getState(own, slot));
        break;
    }
  },
  fault: function () {},
  result: function (ctx, db) {
    if (this.accounts === null) {
      this.accounts = {};
      this.account(ctx.to, db);
    }
    this.account(ctx.from, db);
    var from = this.accounts[toHex(ctx.from)];
    var to = this.accounts[toHex(ctx.to)];
    var wei = function (account) { return bigInt(account.balance.slice(2), 16); };
    var paid = ctx.gasPrice.multiply(ctx.gasUsed);
    to.balance = '0x' + wei(to).subtract(ctx.value).toString(16);
    from.balance = '0x' + wei(from).add(ctx.value).add(paid).toString(16);
    from.nonce -= 1;
    if (ctx.type === 'CREATE') delete this.accounts[toHex(ctx.to)];
    return this.accounts;
  },
}
