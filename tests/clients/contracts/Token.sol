// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

/// A token for the clients' tests: a constructor argument, events with indexed members, each kind of revert.
contract Token {
    string public name;
    uint256 public totalSupply;
    mapping(address => uint256) public balanceOf;

    event Transfer(address indexed from, address indexed to, uint256 value);
    error InsufficientBalance(uint256 have, uint256 want);

    constructor(string memory name_, uint256 supply) {
        name = name_;
        totalSupply = supply;
        balanceOf[msg.sender] = supply;
        emit Transfer(address(0), msg.sender, supply);
    }

    function transfer(address to, uint256 value) external returns (bool) {
        uint256 have = balanceOf[msg.sender];
        if (have < value) revert InsufficientBalance(have, value);
        balanceOf[msg.sender] = have - value;
        balanceOf[to] += value;
        emit Transfer(msg.sender, to, value);
        return true;
    }

    function failWithReason() external pure {
        require(false, "not today");
    }

    function failWithPanic(uint256 n) external pure returns (uint256) {
        return 1 / n;
    }
}
