//! The reasons why a frame failed, in geth's wording.

use alloy_primitives::hex;
use revm::{
    bytecode::opcode::{self, OpCode},
    interpreter::InstructionResult,
};

/// Largest number of words on the EVM's stack.
const STACK_LIMIT: usize = 1024;
/// The error text of a frame that executed REVERT.
pub(super) const REVERTED: &str = "execution reverted";

/// The reason why a frame failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub text: String,
    pub out_of_gas: bool,
    /// Whether geth detects the failure before it runs the instruction. The error is then reported
    /// with the instruction itself.
    pub before_step: bool,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            out_of_gas: false,
            before_step: false,
        }
    }

    /// An error that geth finds before it runs the instruction.
    pub(super) fn before(text: impl Into<String>) -> Self {
        Self {
            before_step: true,
            ..Self::new(text)
        }
    }

    pub(super) fn out_of_gas(text: &str) -> Self {
        Self {
            out_of_gas: true,
            ..Self::before(text)
        }
    }

    /// The failure of a deposit before its first frame, in op-geth's wording.
    pub(super) fn failed_deposit() -> Self {
        Self::new("failed deposit transaction")
    }

    pub(super) fn reverted() -> Self {
        Self::new(REVERTED)
    }

    pub(super) fn is_revert(&self) -> bool {
        self.text == REVERTED
    }

    /// The failure of an instruction on a stack with this number of words, if they are too few or
    /// too many.
    pub(super) fn of_stack(op: OpCode, stack: usize) -> Option<Self> {
        let (needs, makes) = (usize::from(op.inputs()), usize::from(op.outputs()));
        if stack < needs {
            return Some(Self::before(format!(
                "stack underflow ({stack} <=> {needs})"
            )));
        }
        let limit = STACK_LIMIT + needs - makes;
        (stack > limit).then(|| Self::before(format!("stack limit reached {stack} ({limit})")))
    }

    /// The failure of an instruction with this result, if geth finds no error before it runs.
    pub(super) fn of_step(result: InstructionResult, op: u8) -> Option<Self> {
        use InstructionResult as R;
        if result.is_ok() {
            return None;
        }
        Some(match result {
            R::Revert => Self::reverted(),
            R::OutOfGas | R::MemoryOOG | R::PrecompileOOG => Self::out_of_gas("out of gas"),
            R::MemoryLimitOOG | R::InvalidOperandOOG => Self::before("gas uint64 overflow"),
            R::OpcodeNotFound | R::NotActivated | R::InvalidFEOpcode => {
                Self::new(format!("invalid opcode: {}", op_name(op)))
            }
            other => Self::of_frame(other, false),
        })
    }

    /// The failure of a frame in which no instruction failed: the frame did not start, its
    /// precompile failed, or its new code was rejected. `of_step` also calls it, for results that it
    /// does not word itself.
    pub(super) fn of_frame(result: InstructionResult, creation: bool) -> Self {
        use InstructionResult as R;
        match result {
            R::OutOfGas if creation => Self {
                out_of_gas: true,
                ..Self::new("contract creation code storage out of gas")
            },
            R::Revert => Self::reverted(),
            R::OutOfGas
            | R::MemoryOOG
            | R::MemoryLimitOOG
            | R::PrecompileOOG
            | R::InvalidOperandOOG => Self::out_of_gas("out of gas"),
            R::InvalidJump => Self::new("invalid jump destination"),
            R::OutOfOffset => Self::new("return data out of bounds"),
            R::StateChangeDuringStaticCall | R::CallNotAllowedInsideStatic => {
                Self::new("write protection")
            }
            R::CallTooDeep => Self::new("max call depth exceeded"),
            R::OutOfFunds | R::OverflowPayment => Self::new("insufficient balance for transfer"),
            R::CreateCollision => Self::new("contract address collision"),
            R::NonceOverflow => Self::new("nonce uint64 overflow"),
            R::CreateContractSizeLimit => Self::new("max code size exceeded"),
            R::CreateContractStartingWithEF | R::CreateInitCodeStartingEF00 => {
                Self::new("invalid code: must not begin with 0xef")
            }
            R::CreateInitCodeSizeLimit => Self::new("max initcode size exceeded"),
            R::PrecompileError => Self::new("precompiled failed"),
            other => Self::new(format!("{other:?}")),
        }
    }
}

/// The name of an opcode as geth prints it.
pub fn op_name(op: u8) -> String {
    match OpCode::new(op) {
        Some(_) if op == opcode::DIFFICULTY => "DIFFICULTY".to_owned(),
        Some(op) => op.as_str().to_owned(),
        None => format!(
            "opcode 0x{} not defined",
            hex::encode([op]).trim_start_matches('0')
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(result: InstructionResult, op: u8) -> (String, bool) {
        let failure = Failure::of_step(result, op).unwrap();
        (failure.text, failure.before_step)
    }

    fn on_stack(op: u8, stack: usize) -> Option<String> {
        let failure = Failure::of_stack(OpCode::new(op).unwrap(), stack)?;
        failure.before_step.then_some(failure.text)
    }

    #[test]
    fn failures_are_in_geths_words() {
        use InstructionResult as R;
        let before = |text: &str| (text.to_owned(), true);
        let during = |text: &str| (text.to_owned(), false);
        assert_eq!(Failure::of_step(R::Stop, opcode::STOP), None);
        let few = "stack underflow (1 <=> 2)";
        assert_eq!(on_stack(opcode::ADD, 1).as_deref(), Some(few));
        let many = "stack limit reached 1024 (1023)";
        assert_eq!(on_stack(opcode::PUSH1, 1024).as_deref(), Some(many));
        assert_eq!(on_stack(opcode::ADD, 1024), None);
        assert_eq!(text(R::OutOfGas, opcode::ADD), before("out of gas"));
        assert_eq!(
            text(R::InvalidJump, opcode::JUMP),
            during("invalid jump destination")
        );
        assert_eq!(
            text(R::OpcodeNotFound, 0x0c),
            during("invalid opcode: opcode 0xc not defined")
        );
        assert_eq!(
            text(R::InvalidFEOpcode, 0xfe),
            during("invalid opcode: INVALID")
        );
        assert_eq!(
            text(R::Revert, opcode::REVERT),
            during("execution reverted")
        );
    }
}
