// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.28;

import {OutputOracle} from "./OutputOracle.sol";
import {StorageProof} from "./StorageProof.sol";

/// The functions of OptimismPortal before dispute games, for a development L1: deposits to L2, and withdrawals from it, which are proven
/// against an output and paid out some time later (specs: deposits, withdrawals).
/// It does not meter deposits: the real portal burns L1 gas for the gas bought on L2.
contract Portal {
    struct WithdrawalTransaction {
        uint256 nonce;
        address sender;
        address target;
        uint256 value;
        uint256 gasLimit;
        bytes data;
    }

    struct OutputRootProof {
        bytes32 version;
        bytes32 stateRoot;
        bytes32 messagePasserStorageRoot;
        bytes32 latestBlockhash;
    }

    struct ProvenWithdrawal {
        bytes32 outputRoot;
        uint128 timestamp;
        uint128 l2OutputIndex;
    }

    /// opaqueData is value ‖ value ‖ gas limit ‖ is creation ‖ calldata, packed (specs: deposits, deposit contract).
    event TransactionDeposited(address indexed from, address indexed to, uint256 indexed version, bytes opaqueData);
    event WithdrawalProven(bytes32 indexed withdrawalHash, address indexed from, address indexed to);
    event WithdrawalFinalized(bytes32 indexed withdrawalHash, bool success);

    error BadTarget();
    error SmallGasLimit();
    error LargeCalldata();

    /// Clients tell by the major version that withdrawals are proven against outputs of an oracle.
    string public constant version = "2.8.1-starling";

    uint256 private constant DEPOSIT_VERSION = 0;
    uint64 private constant RECEIVE_GAS_LIMIT = 100_000;
    uint256 private constant MAX_CALLDATA = 120_000;

    /// A contract on L1 acts on L2 under its address plus this, so that nobody else's contract there can be mistaken for it.
    uint160 private constant ALIAS_OFFSET = uint160(0x1111000000000000000000000000000000001111);

    /// The value of `l2Sender` while no withdrawal is paid out.
    address private constant NO_SENDER = 0x000000000000000000000000000000000000dEaD;

    /// A caller that estimates gas: for it a failed call of the target reverts, so that the estimate covers that call.
    address private constant ESTIMATION_ADDRESS = address(1);

    /// Gas that is left for this contract's own work after the call of the target.
    uint256 private constant GAS_AFTER_CALL = 60_000;

    OutputOracle public immutable l2Oracle;

    /// Sender on L2 of the withdrawal that is being paid out.
    address public l2Sender = NO_SENDER;

    mapping(bytes32 => bool) public finalizedWithdrawals;
    mapping(bytes32 => ProvenWithdrawal) public provenWithdrawals;

    constructor(OutputOracle l2Oracle_) {
        l2Oracle = l2Oracle_;
    }

    /// Ether sent plainly is a deposit to the sender's own address.
    receive() external payable {
        depositTransaction(msg.sender, msg.value, RECEIVE_GAS_LIMIT, false, bytes(""));
    }

    /// The least gas limit of a deposit: enough for the floor price of its calldata on L2 (EIP-7623).
    function minimumGasLimit(uint64 byteCount) public pure returns (uint64) {
        return byteCount * 40 + 21_000;
    }

    /// Mints the value sent for the sender on L2, and calls `to` there with `value`.
    function depositTransaction(address to, uint256 value, uint64 gasLimit, bool isCreation, bytes memory data) public payable {
        if (isCreation && to != address(0)) revert BadTarget();
        if (data.length > MAX_CALLDATA) revert LargeCalldata();
        if (gasLimit < minimumGasLimit(uint64(data.length))) revert SmallGasLimit();

        address from = msg.sender;
        if (from != tx.origin) {
            unchecked {
                from = address(uint160(from) + ALIAS_OFFSET);
            }
        }
        bytes memory opaqueData = abi.encodePacked(msg.value, value, gasLimit, isCreation, data);
        emit TransactionDeposited(from, to, DEPOSIT_VERSION, opaqueData);
    }

    /// Reverts unless the output at `l2OutputIndex` contains the withdrawal. The time to its payment begins with this call.
    function proveWithdrawalTransaction(
        WithdrawalTransaction memory withdrawal,
        uint256 l2OutputIndex,
        OutputRootProof calldata outputRootProof,
        bytes[] calldata withdrawalProof
    ) external {
        require(withdrawal.target != address(this), "OptimismPortal: you cannot send messages to the portal contract");
        bytes32 outputRoot = l2Oracle.getL2Output(l2OutputIndex).outputRoot;
        require(outputRoot == keccak256(abi.encode(outputRootProof)), "OptimismPortal: invalid output root proof");

        // A withdrawal is proven again only after its output was deleted: otherwise anybody could put off its payment.
        bytes32 withdrawalHash = hashOf(withdrawal);
        ProvenWithdrawal memory proven = provenWithdrawals[withdrawalHash];
        require(
            proven.timestamp == 0 || !isStill(proven), "OptimismPortal: withdrawal hash has already been proven"
        );

        // `sentMessages` of the message passer is at its slot 0.
        bytes32 slot = keccak256(abi.encode(withdrawalHash, uint256(0)));
        StorageProof.requireOne(outputRootProof.messagePasserStorageRoot, slot, withdrawalProof);
        provenWithdrawals[withdrawalHash] = ProvenWithdrawal(outputRoot, uint128(block.timestamp), uint128(l2OutputIndex));
        emit WithdrawalProven(withdrawalHash, withdrawal.sender, withdrawal.target);
    }

    /// Pays a proven withdrawal out, once, when neither its output can be deleted any more nor its proof is too young. A call of the
    /// target that fails is not repeated.
    function finalizeWithdrawalTransaction(WithdrawalTransaction memory withdrawal) external {
        require(l2Sender == NO_SENDER, "OptimismPortal: can only trigger one withdrawal per transaction");
        bytes32 withdrawalHash = hashOf(withdrawal);
        ProvenWithdrawal memory proven = provenWithdrawals[withdrawalHash];
        require(proven.timestamp != 0, "OptimismPortal: withdrawal has not been proven yet");
        require(
            isFinal(proven.timestamp), "OptimismPortal: proven withdrawal finalization period has not elapsed"
        );
        require(isStill(proven), "OptimismPortal: output root proven is not the same as current output root");
        require(
            isFinal(l2Oracle.getL2Output(proven.l2OutputIndex).timestamp),
            "OptimismPortal: output proposal finalization period has not elapsed"
        );
        require(!finalizedWithdrawals[withdrawalHash], "OptimismPortal: withdrawal has already been finalized");
        finalizedWithdrawals[withdrawalHash] = true;

        // EVM rule: a call gets at most 63/64 of the gas that is left.
        require(
            gasleft() * 63 >= withdrawal.gasLimit * 64 + GAS_AFTER_CALL * 63, "SafeCall: Not enough gas"
        );
        l2Sender = withdrawal.sender;
        (bool success,) = withdrawal.target.call{gas: gasleft() - GAS_AFTER_CALL, value: withdrawal.value}(withdrawal.data);
        l2Sender = NO_SENDER;
        emit WithdrawalFinalized(withdrawalHash, success);
        if (!success && tx.origin == ESTIMATION_ADDRESS) revert("OptimismPortal: withdrawal failed");
    }

    /// Whether the output at this index can be deleted no more.
    function isOutputFinalized(uint256 l2OutputIndex) external view returns (bool) {
        return isFinal(l2Oracle.getL2Output(l2OutputIndex).timestamp);
    }

    function isFinal(uint256 timestamp) private view returns (bool) {
        return block.timestamp > timestamp + l2Oracle.FINALIZATION_PERIOD_SECONDS();
    }

    /// Whether the oracle still has the output that a withdrawal was proven against.
    function isStill(ProvenWithdrawal memory proven) private view returns (bool) {
        return proven.l2OutputIndex < l2Oracle.nextOutputIndex()
            && l2Oracle.getL2Output(proven.l2OutputIndex).outputRoot == proven.outputRoot;
    }

    function hashOf(WithdrawalTransaction memory withdrawal) private pure returns (bytes32) {
        return keccak256(
            abi.encode(
                withdrawal.nonce, withdrawal.sender, withdrawal.target, withdrawal.value, withdrawal.gasLimit, withdrawal.data
            )
        );
    }
}
