// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.28;

/// The deposits half of an OP Stack portal, for a development L1: what is sent here becomes a deposit transaction on L2.
/// It does not meter deposits (the real portal burns L1 gas for the gas bought on L2) and pays no withdrawals out.
contract DepositPortal {
    /// opaqueData is value ‖ value ‖ gas limit ‖ is creation ‖ calldata, packed (specs: deposits, deposit contract).
    event TransactionDeposited(address indexed from, address indexed to, uint256 indexed version, bytes opaqueData);

    error BadTarget();
    error SmallGasLimit();
    error LargeCalldata();

    uint256 private constant DEPOSIT_VERSION = 0;
    uint64 private constant RECEIVE_GAS_LIMIT = 100_000;
    uint256 private constant MAX_CALLDATA = 120_000;

    /// A contract on L1 acts on L2 under its address plus this, so that nobody else's contract there can be mistaken for it.
    uint160 private constant ALIAS_OFFSET = uint160(0x1111000000000000000000000000000000001111);

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
}
