// What an application does with viem and its OP Stack actions, against one node: `node viem.mjs '{"http": …, "ws": …, "key": …}'`.
// Ends with status 0 when every answer was right.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { BaseError, ContractFunctionRevertedError, createPublicClient, createWalletClient, defineChain, http as overHttp, keccak256, pad, parseEther, parseGwei, toHex, webSocket } from 'viem';
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts';
import { chainConfig, publicActionsL2, walletActionsL2 } from 'viem/op-stack';

const { http, ws, key, chainId } = JSON.parse(process.argv[2]);
const { abi, bytecode } = JSON.parse(readFileSync(new URL('contracts/Token.json', import.meta.url), 'utf8'));
const chain = defineChain({
  ...chainConfig,
  id: chainId,
  name: 'Local network',
  nativeCurrency: { name: 'Ether', symbol: 'ETH', decimals: 18 },
  rpcUrls: { default: { http: [http] } },
});
const account = privateKeyToAccount(key);
const friend = privateKeyToAccount(generatePrivateKey()).address;
const client = createPublicClient({ chain, transport: overHttp(http, { batch: true }), pollingInterval: 200 }).extend(publicActionsL2());
const wallet = createWalletClient({ account, chain, transport: overHttp(http), pollingInterval: 200 }).extend(walletActionsL2());
const mined = async (hash) => client.waitForTransactionReceipt({ hash });

// Accounts, in one batch.
const [id, balance, nonce, code] = await Promise.all([
  client.getChainId(),
  client.getBalance({ address: account.address }),
  client.getTransactionCount({ address: account.address, blockTag: 'pending' }),
  client.getCode({ address: account.address }),
]);
assert.deepEqual([id, nonce, code], [chainId, 0, undefined]);
assert.ok(balance > parseEther('10'));

// Fees: of the execution, of L1, in all. The receipt must agree with the estimate.
const { maxFeePerGas, maxPriorityFeePerGas } = await client.estimateFeesPerGas();
assert.ok(maxFeePerGas > maxPriorityFeePerGas && maxPriorityFeePerGas > 0n);
const history = await client.getFeeHistory({ blockCount: 4, rewardPercentiles: [25, 75] });
assert.equal(history.baseFeePerGas.length, history.gasUsedRatio.length + 1);
const transfer = { account, to: friend, value: parseEther('0.25'), gas: 21_000n, nonce: 0, maxFeePerGas: parseGwei('20'), maxPriorityFeePerGas };
const l1Fee = await client.estimateL1Fee(transfer);
const total = await client.estimateTotalFee(transfer);
assert.ok(l1Fee > 0n && total > l1Fee);
assert.ok(await client.estimateL1Gas(transfer) > 0n);
const sent = await mined(await wallet.sendTransaction(transfer));
assert.deepEqual([sent.status, sent.type], ['success', 'eip1559']);
assert.equal(await client.getBalance({ address: friend }), parseEther('0.25'));
assert.ok(sent.l1Fee > 0n && sent.l1GasPrice > 0n && sent.l1GasUsed > 0n && typeof sent.l1FeeScalar === 'number');
// L1's base fee may have moved between the two, by an eighth a block.
assert.ok(l1Fee < sent.l1Fee * 2n && sent.l1Fee < l1Fee * 2n, `estimated ${l1Fee}, paid ${sent.l1Fee}`);

// Deployment and calls.
const deployed = await mined(await wallet.deployContract({ abi, bytecode, args: ['Stirling', 500n] }));
const token = { abi, address: deployed.contractAddress };
assert.equal(await client.readContract({ ...token, functionName: 'name' }), 'Stirling');
assert.equal(await client.readContract({ ...token, functionName: 'balanceOf', args: [account.address] }), 500n);
assert.equal(await client.getStorageAt({ address: token.address, slot: '0x1' }), pad(toHex(500)));

// Filters and subscriptions, set before the transfer that they tell of.
const events = await client.createContractEventFilter({ ...token, eventName: 'Transfer', args: { to: friend }, fromBlock: deployed.blockNumber });
const blocks = await client.createBlockFilter();
const socket = createPublicClient({ chain, transport: webSocket(ws) });
const stops = [];
const heard = new Promise((resolve) => stops.push(socket.watchContractEvent({ ...token, eventName: 'Transfer', onLogs: resolve })));
const headed = new Promise((resolve) => stops.push(socket.watchBlocks({ onBlock: resolve })));
await socket.getBlockNumber();
const { request, result } = await client.simulateContract({ ...token, account, functionName: 'transfer', args: [friend, 7n] });
assert.equal(result, true);
const contractTotal = await client.estimateContractTotalFee({ ...token, account, functionName: 'transfer', args: [friend, 7n] });
assert.ok(contractTotal > 0n);
const moved = await mined(await wallet.writeContract(request));
const args = { from: account.address, to: friend, value: 7n };
assert.deepEqual((await client.getFilterChanges({ filter: events })).map((log) => [log.args, log.transactionHash]), [[args, moved.transactionHash]]);
assert.deepEqual(await client.getFilterChanges({ filter: events }), []);
assert.deepEqual((await client.getFilterLogs({ filter: events })).map((log) => log.args), [args]);
assert.ok((await client.getFilterChanges({ filter: blocks })).includes(moved.blockHash));
assert.equal(await client.uninstallFilter({ filter: events }), true);
const logs = await client.getContractEvents({ ...token, eventName: 'Transfer', fromBlock: deployed.blockNumber });
assert.deepEqual(logs.map((log) => log.args.value), [500n, 7n]);
assert.deepEqual((await heard).map((log) => [log.args, log.removed]), [[args, false]]);
assert.ok((await headed).number > deployed.blockNumber);
stops.forEach((stop) => stop());

// Reverts, decoded.
const reverts = async (call) => {
  const error = await call.then(() => assert.fail('it must revert'), (error) => error);
  assert.ok(error instanceof BaseError, `${error}`);
  const reverted = error.walk((inner) => inner instanceof ContractFunctionRevertedError);
  return [reverted.data?.errorName, reverted.reason ?? reverted.data?.args];
};
const call = (functionName, args) => client.simulateContract({ ...token, account, functionName, args });
assert.deepEqual(await reverts(call('transfer', [friend, 9_999n])), ['InsufficientBalance', [493n, 9_999n]]);
assert.deepEqual(await reverts(call('failWithReason', [])), ['Error', 'not today']);
assert.equal((await reverts(call('failWithPanic', [0n])))[0], 'Panic');
const failed = await mined(await wallet.writeContract({ ...token, functionName: 'transfer', args: [friend, 9_999n], gas: 100_000n }));
assert.equal(failed.status, 'reverted');

// A state override, an access list, a proof, blocks by tag.
const pretended = await client.readContract({
  ...token, functionName: 'totalSupply', stateOverride: [{ address: token.address, stateDiff: [{ slot: pad('0x1'), value: pad('0x5') }] }],
});
assert.equal(pretended, 5n);
const { accessList } = await client.createAccessList({ account: account.address, to: token.address, data: '0x18160ddd' });
assert.deepEqual(accessList, [{ address: token.address.toLowerCase(), storageKeys: [pad('0x1')] }]);
const [block, proof] = await Promise.all([
  client.getBlock({ blockNumber: moved.blockNumber, includeTransactions: true }),
  client.getProof({ address: token.address, storageKeys: [pad('0x1')], blockNumber: moved.blockNumber }),
]);
assert.equal(keccak256(proof.accountProof[0]), block.stateRoot);
assert.equal(keccak256(proof.storageProof[0].proof[0]), proof.storageHash);
assert.equal(proof.storageProof[0].value, 500n);
// The first transaction of every block tells of L1.
assert.deepEqual([block.transactions[0].type, block.transactions[0].isSystemTx ?? false], ['deposit', false]);
assert.ok((await client.getBlock({ blockTag: 'pending' })).number >= block.number);

// Simulated blocks: a transfer of ether is a log, and the second block sees what the first has done.
const [first, second] = await client.simulateBlocks({
  traceTransfers: true,
  blocks: [
    { calls: [{ account: account.address, to: friend, value: 7n }, { account: account.address, to: token.address, abi, functionName: 'transfer', args: [friend, 9_999n] }] },
    { calls: [{ to: token.address, abi, functionName: 'totalSupply' }], stateOverrides: [{ address: token.address, stateDiff: [{ slot: pad('0x1'), value: pad('0x6') }] }] },
  ],
});
assert.deepEqual(first.calls.map((one) => one.status), ['success', 'failure']);
assert.equal(first.calls[0].logs.length, 1);
assert.equal(second.calls[0].result, 6n);
assert.equal(second.parentHash, first.hash);
const waited = await client.request({ method: 'eth_sendRawTransactionSync', params: [await wallet.signTransaction(await wallet.prepareTransactionRequest({ to: friend, value: 1n }))] });
assert.equal(waited.status, '0x1');

process.exit(0);
