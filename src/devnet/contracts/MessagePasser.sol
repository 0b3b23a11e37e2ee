// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.28;

/// The L2 predeploy 0x4200…0016: remembers withdrawals, so that a proof against its storage root shows one to L1
/// (specs: withdrawals). `sentMessages` is at slot 0, where such proofs look.
contract MessagePasser {
    event MessagePassed(
        uint256 indexed nonce,
        address indexed sender,
        address indexed target,
        uint256 value,
        uint256 gasLimit,
        bytes data,
        bytes32 withdrawalHash
    );

    uint256 private constant RECEIVE_GAS_LIMIT = 100_000;

    /// The version that the two highest bytes of a nonce say.
    uint256 private constant MESSAGE_VERSION = 1;

    mapping(bytes32 => bool) public sentMessages;
    uint240 private nextNonce;

    /// Ether sent plainly is withdrawn to the sender's own address.
    receive() external payable {
        initiateWithdrawal(msg.sender, RECEIVE_GAS_LIMIT, bytes(""));
    }

    /// The nonce of the next withdrawal.
    function messageNonce() public view returns (uint256) {
        return (MESSAGE_VERSION << 240) | nextNonce;
    }

    /// Withdraws the value sent, to be paid to `target` on L1 with `data`.
    function initiateWithdrawal(address target, uint256 gasLimit, bytes memory data) public payable {
        uint256 nonce = messageNonce();
        bytes32 withdrawalHash = keccak256(abi.encode(nonce, msg.sender, target, msg.value, gasLimit, data));
        sentMessages[withdrawalHash] = true;
        emit MessagePassed(nonce, msg.sender, target, msg.value, gasLimit, data, withdrawalHash);
        nextNonce++;
    }
}
