// SPDX-License-Identifier: MIT OR Apache-2.0
pragma solidity 0.8.28;

/// The parameters that L1 sets for L2, for a development L1. Nodes read the getters at start and follow the logs after that
/// (specs: system config). One owner may change everything.
contract SystemConfig {
    enum UpdateType {
        BATCHER,
        FEE_SCALARS,
        GAS_LIMIT,
        UNSAFE_BLOCK_SIGNER,
        EIP_1559_PARAMS,
        OPERATOR_FEE_PARAMS,
        MIN_BASE_FEE,
        DA_FOOTPRINT_GAS_SCALAR
    }

    event ConfigUpdate(uint256 indexed version, UpdateType indexed updateType, bytes data);

    error NotOwner();
    error BadParameters();

    uint256 private constant VERSION = 0;

    /// keccak256("systemconfig.unsafeblocksigner"): nodes read this slot itself.
    bytes32 private constant UNSAFE_BLOCK_SIGNER_SLOT = 0x65a7ed542fb37fe237fdfbdd70b31598523fe5b32879e307bae27a0bd9581c08;

    address public owner;
    bytes32 public batcherHash;
    uint64 public gasLimit;
    uint32 public basefeeScalar;
    uint32 public blobbasefeeScalar;
    uint32 public eip1559Denominator;
    uint32 public eip1559Elasticity;
    uint32 public operatorFeeScalar;
    uint64 public operatorFeeConstant;
    uint64 public minBaseFee;
    uint16 public daFootprintGasScalar;

    modifier onlyOwner() {
        if (msg.sender != owner) revert NotOwner();
        _;
    }

    constructor(
        address owner_,
        address batcher,
        address signer,
        uint64 gasLimit_,
        uint32 basefeeScalar_,
        uint32 blobbasefeeScalar_,
        uint32 denominator,
        uint32 elasticity
    ) {
        owner = owner_;
        batcherHash = bytes32(uint256(uint160(batcher)));
        gasLimit = gasLimit_;
        basefeeScalar = basefeeScalar_;
        blobbasefeeScalar = blobbasefeeScalar_;
        eip1559Denominator = denominator;
        eip1559Elasticity = elasticity;
        _storeSigner(signer);
    }

    /// Bedrock's overhead, gone since Ecotone.
    function overhead() external pure returns (uint256) {
        return 0;
    }

    /// Both fee scalars in Ecotone's packed form, version byte first.
    function scalar() public view returns (uint256) {
        return (uint256(1) << 248) | (uint256(blobbasefeeScalar) << 32) | basefeeScalar;
    }

    function unsafeBlockSigner() external view returns (address signer) {
        assembly {
            signer := sload(UNSAFE_BLOCK_SIGNER_SLOT)
        }
    }

    function setBatcherHash(bytes32 hash) external onlyOwner {
        batcherHash = hash;
        _update(UpdateType.BATCHER, abi.encode(hash));
    }

    function setGasConfigEcotone(uint32 baseScalar, uint32 blobScalar) external onlyOwner {
        basefeeScalar = baseScalar;
        blobbasefeeScalar = blobScalar;
        _update(UpdateType.FEE_SCALARS, abi.encode(uint256(0), scalar()));
    }

    function setGasLimit(uint64 limit) external onlyOwner {
        gasLimit = limit;
        _update(UpdateType.GAS_LIMIT, abi.encode(limit));
    }

    function setUnsafeBlockSigner(address signer) external onlyOwner {
        _storeSigner(signer);
        _update(UpdateType.UNSAFE_BLOCK_SIGNER, abi.encode(signer));
    }

    /// Zero has no meaning here: a denominator divides.
    function setEIP1559Params(uint32 denominator, uint32 elasticity) external onlyOwner {
        if (denominator == 0 || elasticity == 0) revert BadParameters();
        eip1559Denominator = denominator;
        eip1559Elasticity = elasticity;
        _update(UpdateType.EIP_1559_PARAMS, abi.encode((uint256(denominator) << 32) | elasticity));
    }

    function setOperatorFeeScalars(uint32 feeScalar, uint64 feeConstant) external onlyOwner {
        operatorFeeScalar = feeScalar;
        operatorFeeConstant = feeConstant;
        _update(UpdateType.OPERATOR_FEE_PARAMS, abi.encode((uint256(feeScalar) << 64) | feeConstant));
    }

    function setMinBaseFee(uint64 fee) external onlyOwner {
        minBaseFee = fee;
        _update(UpdateType.MIN_BASE_FEE, abi.encode(fee));
    }

    function setDAFootprintGasScalar(uint16 gasScalar) external onlyOwner {
        daFootprintGasScalar = gasScalar;
        _update(UpdateType.DA_FOOTPRINT_GAS_SCALAR, abi.encode(gasScalar));
    }

    function _update(UpdateType updateType, bytes memory data) private {
        emit ConfigUpdate(VERSION, updateType, data);
    }

    function _storeSigner(address signer) private {
        assembly {
            sstore(UNSAFE_BLOCK_SIGNER_SLOT, signer)
        }
    }
}
