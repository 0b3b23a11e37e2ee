// A deposit to a chain and a withdrawal from it, with viem's OP Stack actions: `node exit.mjs '{"step": "prove", …}'`, and, when L1's time has
// passed all delays, the same with `finalize` and the hash of the withdrawal. `wait` waits for these delays as an application would. The
// contracts are a portal with a dispute game factory, or a portal with an output oracle. Prints what the next step needs, and ends with
// status 0 when every answer was right.
import assert from 'node:assert/strict';
import { createPublicClient, createWalletClient, defineChain, http, parseAbi, parseEther } from 'viem';
import { privateKeyToAccount } from 'viem/accounts';
import { chainConfig, getL2TransactionHashes, getWithdrawals, publicActionsL1, publicActionsL2, walletActionsL1, walletActionsL2 } from 'viem/op-stack';

const { step, l1, l2, key, to, contracts, hash } = JSON.parse(process.argv[2]);
const nativeCurrency = { name: 'Ether', symbol: 'ETH', decimals: 18 };
const chainOf = (endpoint, more) => defineChain({
  ...more, id: endpoint.chainId, name: `Chain ${endpoint.chainId}`, nativeCurrency, rpcUrls: { default: { http: [endpoint.http] } },
});
const onL1 = (address) => ({ [l1.chainId]: { address } });
const chainL1 = chainOf(l1, {});
const targetChain = chainOf(l2, {
  ...chainConfig,
  sourceId: l1.chainId,
  contracts: {
    ...chainConfig.contracts,
    portal: onL1(contracts.portal), disputeGameFactory: onL1(contracts.factory), l2OutputOracle: onL1(contracts.oracle),
  },
});
const account = privateKeyToAccount(key);
const pollingInterval = 250;
// L1 has no Multicall contract: the calls carry its code.
const batch = { multicall: { deployless: true } };
const clientL1 = createPublicClient({ chain: chainL1, transport: http(l1.http), pollingInterval, batch }).extend(publicActionsL1());
const clientL2 = createPublicClient({ chain: targetChain, transport: http(l2.http), pollingInterval }).extend(publicActionsL2());
const walletL1 = createWalletClient({ account, chain: chainL1, transport: http(l1.http), pollingInterval }).extend(walletActionsL1());
const walletL2 = createWalletClient({ account, chain: targetChain, transport: http(l2.http), pollingInterval }).extend(walletActionsL2());
const mined = async (client, hash) => {
  const receipt = await client.waitForTransactionReceipt({ hash, timeout: 120_000 });
  assert.equal(receipt.status, 'success', `${hash}`);
  return receipt;
};
const status = (receipt) => clientL1.getWithdrawalStatus({ receipt, targetChain });
const amount = parseEther('1');

if (step === 'prove') {
  // The portal has no ether but what is deposited.
  const before = await clientL2.getBalance({ address: account.address });
  const deposit = await clientL2.buildDepositTransaction({ account, mint: 2n * amount, to: account.address });
  const deposited = await mined(clientL1, await walletL1.depositTransaction(deposit));
  const [onL2] = getL2TransactionHashes(deposited);
  await mined(clientL2, onL2);
  assert.equal(await clientL2.getBalance({ address: account.address }), before + 2n * amount);

  const request = await clientL1.buildInitiateWithdrawal({ account, to, value: amount });
  const receipt = await mined(clientL2, await walletL2.initiateWithdrawal(request));
  assert.equal(await status(receipt), 'waiting-to-prove');
  // viem cannot read the time to the next output from an oracle without outputs.
  const pause = () => new Promise((resolve) => setTimeout(resolve, pollingInterval));
  const outputs = () => clientL1.readContract({ address: contracts.oracle, abi: parseAbi(['function nextOutputIndex() view returns (uint256)']), functionName: 'nextOutputIndex' });
  while (contracts.oracle && (await outputs()) === 0n) await pause();
  const { game, output, withdrawal } = await clientL1.waitToProve({ receipt, targetChain, pollingInterval });
  assert.ok(game.l2BlockNumber > receipt.blockNumber);
  assert.equal(await status(receipt), 'ready-to-prove');
  // The portal takes no proof in the block of the game, and viem estimates its gas on the newest block.
  while ((await clientL1.getBlock()).timestamp <= game.timestamp) await pause();
  const proof = await clientL2.buildProveWithdrawal({ account, game, output, withdrawal });
  assert.equal(await clientL2.getBlock({ blockNumber: game.l2BlockNumber }).then(({ withdrawalsRoot }) => withdrawalsRoot), proof.outputRootProof.messagePasserStorageRoot);
  await mined(clientL1, await walletL1.proveWithdrawal(proof));
  assert.equal(await status(receipt), 'waiting-to-finalize');
  await assert.rejects(walletL1.finalizeWithdrawal({ targetChain, withdrawal }));
  console.log(JSON.stringify({ hash: receipt.transactionHash, game: `0x${game.metadata.slice(26)}`, block: Number(game.l2BlockNumber), claim: game.rootClaim }));
} else {
  const receipt = await clientL2.getTransactionReceipt({ hash });
  const [withdrawal] = getWithdrawals(receipt);
  if (step === 'wait') {
    await clientL1.waitToFinalize({ targetChain, withdrawalHash: withdrawal.withdrawalHash });
  } else if (step === 'early') {
    assert.equal(await status(receipt), 'waiting-to-finalize');
    await assert.rejects(walletL1.finalizeWithdrawal({ targetChain, withdrawal }));
  } else {
    assert.equal(await status(receipt), 'ready-to-finalize');
    const before = await clientL1.getBalance({ address: to });
    await mined(clientL1, await walletL1.finalizeWithdrawal({ targetChain, withdrawal }));
    assert.equal(await clientL1.getBalance({ address: to }), before + amount);
    assert.equal(await status(receipt), 'finalized');
    await assert.rejects(walletL1.finalizeWithdrawal({ targetChain, withdrawal }), 'nobody withdraws twice');
  }
}
process.exit(0);
