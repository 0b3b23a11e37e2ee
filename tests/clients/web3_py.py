"""What a script does with web3.py, against one node: python3 web3_py.py '{"http": …, "ws": …, "key": …}'.
Ends with status 0 when every answer was right."""

import asyncio
import json
import pathlib
import sys

from web3 import AsyncWeb3, HTTPProvider, IPCProvider, Web3, WebSocketProvider
from web3.exceptions import ContractCustomError, ContractLogicError, ContractPanicError, Web3RPCError
from web3.middleware import SignAndSendRawMiddlewareBuilder
from web3.utils.subscriptions import LogsSubscription, NewHeadsSubscription

target = json.loads(sys.argv[1])
artifact = json.loads((pathlib.Path(__file__).parent / "contracts/Token.json").read_text())
w3 = Web3(HTTPProvider(target["http"]))
account = w3.eth.account.from_key(target["key"])
friend = w3.eth.account.create().address
w3.middleware_onion.inject(SignAndSendRawMiddlewareBuilder.build(account), layer=0)
w3.eth.default_account = account.address


def mined(tx_hash):
    return w3.eth.wait_for_transaction_receipt(tx_hash, poll_latency=0.2)


def fails(kind, function, *args, **more):
    try:
        function(*args, **more)
    except kind as error:
        return error
    raise AssertionError(f"{function} must fail with {kind}")


# Accounts and a batch.
assert w3.is_connected() and w3.eth.chain_id == target["chainId"]
assert w3.eth.accounts == [] and w3.eth.get_transaction_count(account.address) == 0
with w3.batch_requests() as batch:
    batch.add(w3.eth.get_balance(account.address))
    batch.add(w3.eth.get_block("latest"))
    balance, head = batch.execute()
assert balance > 10**19 and len(head["hash"]) == 32

# Fees and a transfer.
assert w3.eth.gas_price >= w3.eth.max_priority_fee > 0
history = w3.eth.fee_history(2, "latest", [50])
assert len(history["baseFeePerGas"]) == len(history["gasUsedRatio"]) + 1
receipt = mined(w3.eth.send_transaction({"to": friend, "value": 10**18}))
assert receipt["status"] == 1 and int(receipt["l1Fee"], 16) > 0
assert w3.eth.get_balance(friend) == 10**18

# Deployment, filters, a call.
deployed = mined(w3.eth.contract(abi=artifact["abi"], bytecode=artifact["bytecode"]).constructor("Pound", 100).transact())
token = w3.eth.contract(address=deployed["contractAddress"], abi=artifact["abi"])
assert token.functions.name().call() == "Pound"
transfers = token.events.Transfer.create_filter(from_block=deployed["blockNumber"], argument_filters={"to": friend})
blocks = w3.eth.filter("latest")
gas = token.functions.transfer(friend, 3).estimate_gas()


async def heard(begun):
    """The transfer, as the subscriptions tell it."""
    async with AsyncWeb3(WebSocketProvider(target["ws"])) as socket:
        seen = {}
        both = asyncio.Event()

        async def tell(context):
            seen[type(context.subscription)] = context.result
            if len(seen) == 2:
                both.set()

        await socket.subscription_manager.subscribe([
            NewHeadsSubscription(handler=tell),
            LogsSubscription(address=token.address, handler=tell),
        ])
        handling = asyncio.create_task(socket.subscription_manager.handle_subscriptions(run_forever=True))
        tx_hash = await asyncio.to_thread(begun)
        await asyncio.wait_for(both.wait(), 30)
        handling.cancel()
        return tx_hash, seen


tx_hash, seen = asyncio.run(heard(lambda: token.functions.transfer(friend, 3).transact({"gas": gas})))
moved = mined(tx_hash)
assert moved["status"] == 1 and token.functions.balanceOf(friend).call() == 3
assert seen[LogsSubscription]["transactionHash"] == tx_hash and not seen[LogsSubscription]["removed"]
assert [event["args"]["value"] for event in transfers.get_new_entries()] == [3]
assert transfers.get_new_entries() == []
assert [event["args"]["value"] for event in transfers.get_all_entries()] == [3]
assert moved["blockHash"] in blocks.get_new_entries()
assert w3.eth.uninstall_filter(transfers.filter_id)
fails(Web3RPCError, transfers.get_new_entries)
events = token.events.Transfer.get_logs(from_block=deployed["blockNumber"])
assert [event["args"]["value"] for event in events] == [100, 3]

# Reverts.
error = fails(ContractCustomError, token.functions.transfer(friend, 10**6).call)
assert error.data.startswith("0xcf479181"), error.data
assert "not today" in str(fails(ContractLogicError, token.functions.failWithReason().call))
fails(ContractPanicError, token.functions.failWithPanic(0).call)
assert mined(token.functions.transfer(friend, 10**6).transact({"gas": 100_000}))["status"] == 0
proof = w3.eth.get_proof(token.address, [1], moved["blockNumber"])
assert w3.keccak(proof["accountProof"][0]) == w3.eth.get_block(moved["blockNumber"])["stateRoot"]
assert int.from_bytes(proof["storageProof"][0]["value"], "big") == 100

# The local socket: the same chain, and namespaces that HTTP does not serve here.
local = Web3(IPCProvider(target["ipc"]))
assert local.is_connected() and local.eth.chain_id == target["chainId"]
assert local.eth.get_block(moved["blockNumber"])["hash"] == moved["blockHash"]
assert local.eth.get_balance(friend) == w3.eth.get_balance(friend)
assert local.geth.admin.datadir() in target["ipc"]
assert local.geth.admin.node_info()["protocols"]["eth"]["network"] == target["chainId"]
assert len(local.provider.make_request("debug_nothing", [])["error"]["message"]) > 0
