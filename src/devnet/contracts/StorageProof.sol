// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.28;

/// Proofs that a storage slot holds 1: the nodes of a Merkle Patricia trie from the root down, as `eth_getProof` gives them.
/// Every node is bound to the one above it by hash, so a proof that nobody made from a real trie fails.
library StorageProof {
    error BadProof();

    /// An RLP item within a node: where its payload begins, and how long it is.
    struct Item {
        uint256 start;
        uint256 length;
        bool isList;
    }

    uint256 private constant BRANCH_ITEMS = 17;
    /// Nibbles of a hashed key.
    uint256 private constant KEY_NIBBLES = 64;

    /// Reverts unless the trie with this root has 1 at `slot`.
    function requireOne(bytes32 root, bytes32 slot, bytes[] calldata proof) internal pure {
        bytes32 key = keccak256(abi.encode(slot));
        bytes memory link = abi.encodePacked(root);
        uint256 nibble = 0;
        for (uint256 i = 0; i < proof.length; i++) {
            bytes memory node = proof[i];
            // A node of less than 32 bytes stands in its parent as it is; the root is always hashed.
            bytes32 linked = i == 0 || node.length >= 32 ? bytes32(link) : keccak256(link);
            if ((i == 0 || node.length >= 32) && link.length != 32) revert BadProof();
            if (linked != keccak256(node)) revert BadProof();

            (Item[BRANCH_ITEMS] memory items, uint256 count) = split(node);
            if (count == BRANCH_ITEMS) {
                if (nibble == KEY_NIBBLES) revert BadProof();
                link = content(node, items[nibbleOf(key, nibble)]);
                nibble++;
            } else if (count == 2) {
                bool isLeaf;
                (nibble, isLeaf) = follow(content(node, items[0]), key, nibble);
                link = content(node, items[1]);
                if (isLeaf) {
                    bool isOne = link.length == 1 && link[0] == 0x01;
                    if (nibble != KEY_NIBBLES || i + 1 != proof.length || !isOne) revert BadProof();
                    return;
                }
            } else {
                revert BadProof();
            }
        }
        revert BadProof();
    }

    /// Compares the path of a leaf or an extension (hex-prefix encoding) with the key. Returns the first nibble behind it.
    function follow(bytes memory path, bytes32 key, uint256 nibble) private pure returns (uint256, bool) {
        if (path.length == 0) revert BadProof();
        uint8 flags = uint8(path[0]) >> 4;
        if (flags > 3) revert BadProof();
        // With an odd number of nibbles the first one is in the byte of the flags.
        for (uint256 at = flags & 1 == 1 ? 1 : 2; at < path.length * 2; at++) {
            uint8 byte_ = uint8(path[at / 2]);
            uint8 expected = at % 2 == 0 ? byte_ >> 4 : byte_ & 0x0f;
            if (nibble == KEY_NIBBLES || nibbleOf(key, nibble) != expected) revert BadProof();
            nibble++;
        }
        return (nibble, flags & 2 == 2);
    }

    function nibbleOf(bytes32 key, uint256 at) private pure returns (uint8) {
        uint8 byte_ = uint8(key[at / 2]);
        return at % 2 == 0 ? byte_ >> 4 : byte_ & 0x0f;
    }

    /// The items of a node, which is one list. Items that are lists themselves are nodes that stand in this one.
    function split(bytes memory node) private pure returns (Item[BRANCH_ITEMS] memory items, uint256 count) {
        Item memory whole = item(node, 0);
        if (!whole.isList || whole.start + whole.length != node.length) revert BadProof();
        uint256 at = whole.start;
        while (at < node.length) {
            if (count == BRANCH_ITEMS) revert BadProof();
            Item memory next = item(node, at);
            uint256 end = next.start + next.length;
            // A child that stands in this node is compared with its header.
            items[count] = next.isList ? Item(at, end - at, true) : next;
            count++;
            at = end;
        }
    }

    /// The RLP item whose header is at `at`.
    function item(bytes memory node, uint256 at) private pure returns (Item memory found) {
        if (at >= node.length) revert BadProof();
        uint8 first = uint8(node[at]);
        if (first < 0x80) {
            found = Item(at, 1, false);
        } else {
            bool isList = first >= 0xc0;
            uint256 short = first - (isList ? 0xc0 : 0x80);
            if (short < 56) {
                found = Item(at + 1, short, isList);
            } else {
                uint256 bytesOfLength = short - 55;
                uint256 length = 0;
                for (uint256 i = 1; i <= bytesOfLength; i++) {
                    if (at + i >= node.length) revert BadProof();
                    length = (length << 8) | uint8(node[at + i]);
                }
                found = Item(at + 1 + bytesOfLength, length, isList);
            }
        }
        if (found.length > node.length || found.start > node.length - found.length) revert BadProof();
    }

    function content(bytes memory node, Item memory part) private pure returns (bytes memory copy) {
        copy = new bytes(part.length);
        for (uint256 i = 0; i < part.length; i++) copy[i] = node[part.start + i];
    }
}
