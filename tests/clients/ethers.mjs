// What an application does with ethers, against one node: `node ethers.mjs '{"http": …, "ws": …, "key": …}'`.
// Ends with status 0 when every answer was right.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { Contract, ContractFactory, JsonRpcProvider, Wallet, WebSocketProvider, ZeroAddress, formatEther, id, parseEther, toBeHex, toQuantity, zeroPadValue } from 'ethers';

const { http, ws, key } = JSON.parse(process.argv[2]);
const { abi, bytecode } = JSON.parse(readFileSync(new URL('contracts/Token.json', import.meta.url), 'utf8'));
// Ethers answers a request that it sent within the last 250 ms from memory; a transfer can be in a block sooner.
const provider = new JsonRpcProvider(http, undefined, { polling: true, pollingInterval: 200, cacheTimeout: -1 });
const wallet = new Wallet(key, provider);
const friend = Wallet.createRandom().address;

// Accounts, and a batch: ethers joins the calls of one turn.
const [network, head, balance, nonce, code, accounts] = await Promise.all([
  provider.getNetwork(),
  provider.getBlockNumber(),
  provider.getBalance(wallet.address),
  provider.getTransactionCount(wallet.address),
  provider.getCode(wallet.address),
  provider.send('eth_accounts', []),
]);
assert.equal(BigInt(await provider.send('eth_chainId', [])), network.chainId);
assert.ok(head >= 0 && balance > parseEther('10'));
assert.deepEqual([nonce, code, accounts], [0, '0x', []]);
await assert.rejects(provider.send('eth_sendTransaction', [{ from: wallet.address, to: friend }]), /unknown account/);

// A transfer, with the fees that the node suggests.
const fees = await provider.getFeeData();
assert.ok(fees.maxFeePerGas > fees.maxPriorityFeePerGas && fees.maxPriorityFeePerGas > 0n);
const sent = await (await wallet.sendTransaction({ to: friend, value: parseEther('1.5') })).wait();
assert.equal(sent.status, 1);
assert.equal(formatEther(await provider.getBalance(friend)), '1.5');
assert.equal(await provider.getBalance(friend, sent.blockNumber - 1), 0n);
const receipt = await provider.send('eth_getTransactionReceipt', [sent.hash]);
assert.ok(BigInt(receipt.l1Fee) > 0n);
const spent = balance - await provider.getBalance(wallet.address);
assert.equal(spent, parseEther('1.5') + sent.fee + BigInt(receipt.l1Fee) + operatorFee(receipt));
const block = await provider.getBlock(sent.blockNumber, true);
assert.deepEqual(block.prefetchedTransactions.map((tx) => tx.hash).includes(sent.hash), true);
assert.equal((await provider.getTransaction(sent.hash)).blockHash, block.hash);

// Jovian and Isthmus charge an operator fee where the chain sets one.
function operatorFee({ gasUsed, operatorFeeScalar, operatorFeeConstant }) {
  return BigInt(gasUsed) * BigInt(operatorFeeScalar ?? 0) * 100n + BigInt(operatorFeeConstant ?? 0);
}

// Deployment.
const token = await new ContractFactory(abi, bytecode, wallet).deploy('Sterling', 1000n);
await token.waitForDeployment();
const address = await token.getAddress();
assert.equal(await token.name(), 'Sterling');
assert.equal(await token.balanceOf(wallet.address), 1000n);
const deployed = await provider.getTransactionReceipt(token.deploymentTransaction().hash);
assert.equal(deployed.contractAddress, address);
assert.notEqual(await provider.getCode(address), '0x');
// Slot 1 is the total supply.
assert.equal(await provider.getStorage(address, 1), zeroPadValue(toBeHex(1000), 32));

// Filters and subscriptions are set before the transfer that they tell of.
const filter = await provider.send('eth_newFilter', [{ address, fromBlock: toQuantity(deployed.blockNumber), topics: [id('Transfer(address,address,uint256)'), null, zeroPadValue(friend, 32)] }]);
const blocks = await provider.send('eth_newBlockFilter', []);
const socket = new WebSocketProvider(ws, undefined, { cacheTimeout: -1 });
const heard = new Promise((resolve) => new Contract(address, abi, socket).on('Transfer', (from, to, value) => resolve([from, to, value])));
const headed = new Promise((resolve) => socket.on('block', resolve));
await socket.send('eth_blockNumber', []);

// Estimates, access list, and the call itself.
const { accessList, gasUsed, error } = await provider.send('eth_createAccessList', [{ from: wallet.address, to: address, data: token.interface.encodeFunctionData('transfer', [friend, 25n]) }]);
assert.equal(error, undefined);
assert.deepEqual([accessList.length, accessList[0].address, accessList[0].storageKeys.length], [1, address.toLowerCase(), 2]);
const gas = await token.transfer.estimateGas(friend, 25n, { accessList });
assert.ok(gas >= BigInt(gasUsed) && BigInt(gasUsed) > 21000n);
const moved = await (await token.transfer(friend, 25n, { gasLimit: gas, accessList })).wait();
assert.equal(moved.status, 1);
assert.equal(await token.balanceOf(friend), 25n);

// Events: in the receipt, by query, by filter, by subscription.
assert.equal(moved.logs[0].fragment.name, 'Transfer');
const queried = await token.queryFilter(token.filters.Transfer(wallet.address), deployed.blockNumber);
assert.deepEqual(queried.map((event) => event.args.value), [25n]);
const minted = await token.queryFilter(token.filters.Transfer(ZeroAddress), deployed.blockNumber, 'latest');
assert.deepEqual(minted.map((event) => event.args.value), [1000n]);
const changes = await provider.send('eth_getFilterChanges', [filter]);
assert.deepEqual(changes.map((log) => [log.transactionHash, log.removed]), [[moved.hash, false]]);
assert.deepEqual(await provider.send('eth_getFilterChanges', [filter]), []);
assert.ok((await provider.send('eth_getFilterChanges', [blocks])).includes(moved.blockHash));
assert.deepEqual((await provider.send('eth_getFilterLogs', [filter])).map((log) => log.transactionHash), [moved.hash]);
assert.equal(await provider.send('eth_uninstallFilter', [filter]), true);
await assert.rejects(provider.send('eth_getFilterChanges', [filter]), /filter not found/);
assert.deepEqual(await heard, [wallet.address, friend, 25n]);
assert.ok((await headed) > deployed.blockNumber);

// Reverts: a custom error, a reason, a panic; then one in a block.
const failure = async (promise) => promise.then(() => assert.fail('it must revert'), (error) => error);
const custom = await failure(token.transfer.staticCall(friend, 10_000n));
assert.deepEqual([custom.code, custom.revert.name, [...custom.revert.args]], ['CALL_EXCEPTION', 'InsufficientBalance', [975n, 10_000n]]);
const estimate = await failure(token.transfer.estimateGas(friend, 10_000n));
assert.equal(token.interface.parseError(estimate.data).name, 'InsufficientBalance');
assert.equal((await failure(token.failWithReason())).reason, 'not today');
const panic = await failure(token.failWithPanic(0n));
assert.deepEqual([panic.revert.name, BigInt(panic.revert.args[0])], ['Panic', 0x12n]);
const reverted = await token.transfer(friend, 10_000n, { gasLimit: 100_000n });
assert.equal((await failure(reverted.wait())).receipt.status, 0);

// What a node refuses.
assert.equal((await failure(wallet.sendTransaction({ to: friend, value: 1n, nonce: 0 }))).code, 'NONCE_EXPIRED');
assert.equal((await failure(wallet.sendTransaction({ to: friend, value: parseEther('1000000000') }))).code, 'INSUFFICIENT_FUNDS');

await socket.destroy();
provider.destroy();
