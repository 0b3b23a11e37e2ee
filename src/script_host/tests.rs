//! The script host without a node, tested over its socket.

use super::serve;
use crate::chain::evm::script_message::{
    FromScript, MessageReader, ScriptHooks, ScriptQuestion, ScriptStep, ScriptTransaction,
    ToScript, write_message,
};
use alloy_primitives::{B256, Bytes, U256};
use std::{os::unix::net::UnixStream, thread};

/// A script host on a thread, and the connection to it.
struct HostThread {
    stream: UnixStream,
    reader: MessageReader,
}

impl HostThread {
    fn start() -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || serve(theirs));
        Self {
            stream,
            reader: MessageReader::default(),
        }
    }

    fn next(&mut self) -> FromScript {
        self.reader.read(&mut self.stream).unwrap().unwrap()
    }

    fn tell(&mut self, message: &ToScript) -> FromScript {
        write_message(&mut self.stream, message).unwrap();
        self.next()
    }

    fn load(&mut self, code: &str) -> FromScript {
        self.tell(&ToScript::Load {
            code: code.to_owned(),
            config: "{}".to_owned(),
            precompiles: vec![],
        })
    }
}

#[test]
fn a_script_asks_while_it_is_told_something() {
    let mut host = HostThread::start();
    let code = "{ last: 0, step: function (log) { this.last = log.stack.peek(20); }, fault: function () {}, \
        result: function () { return this.last; } }";
    let hooks = ScriptHooks {
        step: true,
        frames: false,
    };
    assert_eq!(host.load(code), FromScript::Loaded(hooks));
    let step = ScriptStep {
        stack: 30,
        ..ScriptStep::default()
    };
    let asked = host.tell(&ToScript::Step(step));
    assert_eq!(asked, FromScript::Ask(ScriptQuestion::Stack(20)));
    let word = B256::from(U256::from(77));
    let done = host.tell(&ToScript::Reply(word.into()));
    assert_eq!(done, FromScript::Done);
    let asked = ToScript::Result(Box::new(ScriptTransaction {
        value: "0".to_owned(),
        gas_price: "0".to_owned(),
        ..ScriptTransaction::default()
    }));
    assert_eq!(host.tell(&asked), FromScript::Result("\"77\"".to_owned()));
}

#[test]
fn a_stack_word_that_is_not_32_bytes_ends_the_script() {
    let mut host = HostThread::start();
    let code = "{ step: function (log) { log.stack.peek(20); }, fault: function () {}, result: function () {} }";
    assert!(matches!(host.load(code), FromScript::Loaded(_)));
    for length in [31, 33] {
        let step = ScriptStep {
            stack: 30,
            ..ScriptStep::default()
        };
        let asked = host.tell(&ToScript::Step(step));
        assert_eq!(asked, FromScript::Ask(ScriptQuestion::Stack(20)));
        let FromScript::Failed(text) = host.tell(&ToScript::Reply(vec![7_u8; length].into()))
        else {
            panic!("no failure");
        };
        assert!(text.contains(&format!("{length} bytes")), "{text}");
    }
}

#[test]
fn bytes_of_a_script_that_are_too_many_lose_the_first_ones_as_in_geth() {
    let mut host = HostThread::start();
    let long = format!("11{}", "22".repeat(32));
    let code = format!(
        "{{ fault: function () {{}}, result: function () {{ return [toHex(toWord('0x{long}')), toHex(toAddress('0x{}')), \
            toHex(toContract2('0x00000000000000000000000000000000deadbeef', '0x{long}', '0xdeadbeef')), toHex(toWord('0xzz'))]; }} }}",
        &long[..42]
    );
    assert!(matches!(host.load(&code), FromScript::Loaded(_)));
    let FromScript::Result(text) = host.tell(&ToScript::Result(Box::default())) else {
        panic!("no result");
    };
    // The address is op-geth's answer.
    let expected = [
        format!("0x{}", "22".repeat(32)),
        format!("0x{}", "22".repeat(20)),
        "0xad7b874fce1f4261aedcbdde71bfd943ca96dcd5".to_owned(),
        format!("0x{}", "00".repeat(32)),
    ];
    assert_eq!(text, serde_json::json!(expected).to_string());
}

#[test]
fn scripts_follow_each_other_without_what_the_first_has_left() {
    let mut host = HostThread::start();
    let first = "{ setup: function () { globalThis.left = 1; delete globalThis.toHex; }, result: function () {}, fault: function () {} }";
    assert_eq!(host.load(first), FromScript::Loaded(ScriptHooks::default()));
    let second = "{ result: function () { return [typeof left, typeof toHex, typeof __ask]; }, fault: function () {} }";
    assert_eq!(
        host.load(second),
        FromScript::Loaded(ScriptHooks::default())
    );
    let asked = ToScript::Result(Box::default());
    let FromScript::Result(text) = host.tell(&asked) else {
        panic!("no result");
    };
    assert_eq!(text, r#"["undefined","function","undefined"]"#);
}

#[test]
fn a_script_that_replaces_functions_of_the_language_changes_nothing_around_it() {
    let mut host = HostThread::start();
    let code = "{ seen: [], setup: function () { \
            Object.assign = function (target) { target.stack = 1e300; }; JSON.stringify = function () { return '1},'; }; }, \
        step: function (log) { this.seen.push(log.stack.length()); log.stack.peek(1e299); }, fault: function () {}, \
        result: function () { return this.seen; } }";
    assert!(matches!(host.load(code), FromScript::Loaded(_)));
    let step = ScriptStep {
        stack: 1,
        ..ScriptStep::default()
    };
    let FromScript::Failed(text) = host.tell(&ToScript::Step(step)) else {
        panic!("no failure");
    };
    assert!(text.contains("out of bound stack: size 1"), "{text}");
    let result = host.tell(&ToScript::Result(Box::default()));
    assert_eq!(result, FromScript::Result("[1]".to_owned()));
}

#[test]
fn what_is_out_of_turn_is_refused() {
    let mut host = HostThread::start();
    let answer = host.tell(&ToScript::Reply(Bytes::new()));
    assert!(matches!(answer, FromScript::Failed(_)), "{answer:?}");
    let step = host.tell(&ToScript::Step(ScriptStep::default()));
    assert!(matches!(step, FromScript::Failed(_)), "{step:?}");
}
