// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.28;

/// The outputs of L2 on a development L1, with the functions of L2OutputOracle (specs: withdrawals, output oracle). One account
/// proposes, another one may delete outputs that are not final.
contract OutputOracle {
    struct Output {
        bytes32 outputRoot;
        uint128 timestamp;
        uint128 l2BlockNumber;
    }

    event OutputProposed(
        bytes32 indexed outputRoot, uint256 indexed l2OutputIndex, uint256 indexed l2BlockNumber, uint256 l1Timestamp
    );
    event OutputsDeleted(uint256 indexed prevNextOutputIndex, uint256 indexed newNextOutputIndex);

    error NotProposer();
    error NotChallenger();
    error EmptyRoot();
    error UnexpectedBlock(uint256 expected);
    error FutureBlock();
    error OtherL1Block();
    error NoOutput();
    error FinalOutput();

    string public constant version = "1.8.0-starling";

    uint256 public submissionInterval;
    uint256 public l2BlockTime;
    uint256 public startingBlockNumber;
    uint256 public startingTimestamp;
    uint256 public finalizationPeriodSeconds;
    address public proposer;
    address public challenger;

    Output[] private outputs;

    constructor(
        uint256 submissionInterval_,
        uint256 l2BlockTime_,
        uint256 startingBlockNumber_,
        uint256 startingTimestamp_,
        address proposer_,
        address challenger_,
        uint256 finalizationPeriodSeconds_
    ) {
        submissionInterval = submissionInterval_;
        l2BlockTime = l2BlockTime_;
        startingBlockNumber = startingBlockNumber_;
        startingTimestamp = startingTimestamp_;
        proposer = proposer_;
        challenger = challenger_;
        finalizationPeriodSeconds = finalizationPeriodSeconds_;
    }

    /// Reverts unless the caller is the proposer, the block is the next one and in the past, and L1 has the block that is named. A
    /// zero hash names none.
    function proposeL2Output(bytes32 outputRoot, uint256 l2BlockNumber, bytes32 l1BlockHash, uint256 l1BlockNumber)
        external
        payable
    {
        if (msg.sender != proposer) revert NotProposer();
        if (outputRoot == bytes32(0)) revert EmptyRoot();
        if (l2BlockNumber != nextBlockNumber()) revert UnexpectedBlock(nextBlockNumber());
        if (computeL2Timestamp(l2BlockNumber) >= block.timestamp) revert FutureBlock();
        if (l1BlockHash != bytes32(0) && blockhash(l1BlockNumber) != l1BlockHash) revert OtherL1Block();
        emit OutputProposed(outputRoot, outputs.length, l2BlockNumber, block.timestamp);
        outputs.push(Output(outputRoot, uint128(block.timestamp), uint128(l2BlockNumber)));
    }

    /// Removes an output and all later ones.
    function deleteL2Outputs(uint256 index) external {
        if (msg.sender != challenger) revert NotChallenger();
        uint256 length = outputs.length;
        if (index >= length) revert NoOutput();
        if (block.timestamp - outputs[index].timestamp >= finalizationPeriodSeconds) revert FinalOutput();
        while (outputs.length > index) outputs.pop();
        emit OutputsDeleted(length, index);
    }

    function getL2Output(uint256 index) external view returns (Output memory) {
        return outputs[index];
    }

    /// The first output at or above a block.
    function getL2OutputAfter(uint256 l2BlockNumber) external view returns (Output memory) {
        return outputs[getL2OutputIndexAfter(l2BlockNumber)];
    }

    function getL2OutputIndexAfter(uint256 l2BlockNumber) public view returns (uint256) {
        // Clients know by these texts that they have to wait.
        require(
            l2BlockNumber <= latestBlockNumber(),
            "L2OutputOracle: cannot get output for a block that has not been proposed"
        );
        require(outputs.length > 0, "L2OutputOracle: cannot get output as no outputs have been proposed yet");
        (uint256 low, uint256 high) = (0, outputs.length);
        while (low < high) {
            uint256 middle = (low + high) / 2;
            if (outputs[middle].l2BlockNumber < l2BlockNumber) low = middle + 1;
            else high = middle;
        }
        return low;
    }

    function latestOutputIndex() external view returns (uint256) {
        return outputs.length - 1;
    }

    function nextOutputIndex() external view returns (uint256) {
        return outputs.length;
    }

    function latestBlockNumber() public view returns (uint256) {
        return outputs.length == 0 ? startingBlockNumber : outputs[outputs.length - 1].l2BlockNumber;
    }

    function nextBlockNumber() public view returns (uint256) {
        return latestBlockNumber() + submissionInterval;
    }

    function computeL2Timestamp(uint256 l2BlockNumber) public view returns (uint256) {
        return startingTimestamp + (l2BlockNumber - startingBlockNumber) * l2BlockTime;
    }

    function SUBMISSION_INTERVAL() external view returns (uint256) {
        return submissionInterval;
    }

    function L2_BLOCK_TIME() external view returns (uint256) {
        return l2BlockTime;
    }

    function FINALIZATION_PERIOD_SECONDS() external view returns (uint256) {
        return finalizationPeriodSeconds;
    }

    function PROPOSER() external view returns (address) {
        return proposer;
    }

    function CHALLENGER() external view returns (address) {
        return challenger;
    }
}
