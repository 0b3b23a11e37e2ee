//! The JavaScript engine around a script: the objects that the script sees, and its requests to the
//! tracer.
//!
//! Most of these objects are defined in JavaScript (`prelude.js`). There are few native functions.
//! They use the connection in the thread-local [`LINK`], since an engine runs on one thread.

use crate::chain::evm::{
    opcode_name,
    script_message::{
        FromScript, MessageReader, ScriptContract, ScriptExit, ScriptFrame, ScriptHooks,
        ScriptQuestion, ScriptStep, ToScript, write_message,
    },
};
use alloy_primitives::{Address, B256, Bytes, hex, keccak256};
use boa_engine::{
    Context, JsArgs, JsBigInt, JsNativeError, JsObject, JsResult, JsString, JsValue,
    NativeFunction, Source, js_string, object::builtins::JsUint8Array,
};
use std::{cell::RefCell, os::unix::net::UnixStream};

/// Largest depth of nested function calls, more than the EVM has frames.
const RECURSION: usize = 4096;
/// Largest number of values on the JavaScript engine's stack.
const VALUES: usize = 1 << 18;

/// The connection to the tracer, and data from it, for native functions.
struct Link {
    stream: UnixStream,
    reader: MessageReader,
    /// The top words of the EVM's stack, the topmost first.
    top: Vec<alloy_primitives::U256>,
    precompiles: Vec<Address>,
    /// The reason why the script must end, even if the script catches the exception.
    failure: Option<String>,
}

thread_local! {
    static LINK: RefCell<Option<Link>> = const { RefCell::new(None) };
}

/// A JavaScript engine with at most one script.
pub(super) struct ScriptEngine {
    script: Option<LoadedScript>,
}

/// A loaded script with its JavaScript context.
struct LoadedScript {
    context: Context,
    /// The prelude's functions, one for each tracer event.
    events: JsObject,
}

fn hex_of(bytes: impl AsRef<[u8]>) -> JsValue {
    js_string!(hex::encode(bytes)).into()
}

fn text_of(text: &str) -> JsValue {
    js_string!(text).into()
}

fn optional(text: Option<&String>) -> JsValue {
    text.map_or_else(JsValue::undefined, |text| text_of(text))
}

/// An amount of gas, which a script sees as a floating-point number.
fn number(value: u64) -> JsValue {
    JsValue::from(value as f64)
}

fn index(value: usize) -> JsValue {
    number(value as u64)
}

impl ScriptEngine {
    pub fn new(stream: UnixStream) -> Self {
        let link = Link {
            stream,
            reader: MessageReader::default(),
            top: Vec::new(),
            precompiles: Vec::new(),
            failure: None,
        };
        LINK.set(Some(link));
        Self { script: None }
    }

    /// Handles a message. Replies to the script's questions are read through `reader`, which may
    /// already have buffered a part of one.
    pub fn handle(
        &mut self,
        message: &ToScript,
        reader: &mut MessageReader,
    ) -> Result<FromScript, String> {
        with_link(|link| {
            link.failure = None;
            std::mem::swap(&mut link.reader, reader);
        });
        let reply = self.run(message);
        with_link(|link| std::mem::swap(&mut link.reader, reader));
        reply
    }

    fn run(&mut self, message: &ToScript) -> Result<FromScript, String> {
        match message {
            ToScript::Load {
                code,
                config,
                precompiles,
            } => {
                self.script = None;
                with_link(|link| link.precompiles.clone_from(precompiles));
                let mut script = LoadedScript::new()?;
                let hooks = script.load(code, config)?;
                self.script = Some(script);
                Ok(FromScript::Loaded(hooks))
            }
            ToScript::Reply(_) => Err("an answer without a request".to_owned()),
            other => match &mut self.script {
                Some(script) => script.event(other),
                None => Err("there is no script".to_owned()),
            },
        }
    }
}

/// Runs a function with this thread's link.
fn with_link<T>(run: impl FnOnce(&mut Link) -> T) -> Option<T> {
    LINK.with_borrow_mut(|link| link.as_mut().map(run))
}

/// The signature of native functions that scripts call.
type NativeFunctionPointer = fn(&JsValue, &[JsValue], &mut Context) -> JsResult<JsValue>;

impl LoadedScript {
    fn new() -> Result<Self, String> {
        let mut context = Context::default();
        let limits = context.runtime_limits_mut();
        limits.set_recursion_limit(RECURSION);
        limits.set_stack_size_limit(VALUES);
        let natives: [(&str, NativeFunctionPointer); 8] = [
            ("__peek", peek),
            ("__memory", memory),
            ("__ask", ask),
            ("__create", create_address),
            ("__create2", create2_address),
            ("__precompile", is_precompile),
            ("__op_name", op_name),
            ("__fail", fail),
        ];
        for (name, native) in natives {
            context
                .register_global_callable(
                    JsString::from(name),
                    0,
                    NativeFunction::from_fn_ptr(native),
                )
                .map_err(|error| error.to_string())?;
        }
        let prelude = include_str!("prelude.js");
        let events = context
            .eval(Source::from_bytes(prelude))
            .map_err(|error| error.to_string())?;
        let events = events.as_object().ok_or("the prelude has no events")?;
        Ok(Self { context, events })
    }

    fn load(&mut self, code: &str, config: &str) -> Result<ScriptHooks, String> {
        let wrapped = format!("({code}\n)");
        let object = self
            .context
            .eval(Source::from_bytes(&wrapped))
            .map_err(|error| failure_of(&error.to_string()))?;
        let hooks = self.call("load", &[object, text_of(config)])?;
        let hooks = hooks.as_number().unwrap_or_default() as u8;
        Ok(ScriptHooks {
            step: hooks & 1 != 0,
            frames: hooks & 2 != 0,
        })
    }

    fn call(&mut self, event: &str, values: &[JsValue]) -> Result<JsValue, String> {
        let context = &mut self.context;
        let text = |error: boa_engine::JsError| error.to_string();
        let function = self.events.get(JsString::from(event), context);
        let function = function.map_err(text)?;
        let function = function.as_object().ok_or("no such event")?;
        let this = JsValue::undefined();
        let called = function.call(&this, values, context);
        // A failure that a native function has noted ends the script, even if the script caught the
        // exception.
        match with_link(|link| link.failure.take()).flatten() {
            Some(failure) => Err(failure),
            None => called.map_err(text),
        }
    }

    fn event(&mut self, message: &ToScript) -> Result<FromScript, String> {
        let (name, told) = match message {
            ToScript::Contract(contract) => ("contract", self.contract(contract)),
            ToScript::Step(step) => ("step", self.step(step)),
            ToScript::Fault(error) => ("fault", self.call("fault", &[text_of(error)])),
            ToScript::Enter(frame) => ("enter", self.enter(frame)),
            ToScript::Exit(exit) => ("exit", self.exit(exit)),
            ToScript::Result(transaction) => {
                let text = serde_json::to_string(transaction).map_err(|error| error.to_string())?;
                ("result", self.call("result", &[text_of(&text)]))
            }
            ToScript::Load { .. } | ToScript::Reply(_) => return Err("no event".to_owned()),
        };
        let value =
            told.map_err(|error| format!("{error}    in server-side tracer function '{name}'"))?;
        if name != "result" {
            return Ok(FromScript::Done);
        }
        let text = value.as_string().map(|text| text.to_std_string_lossy());
        Ok(FromScript::Result(
            text.unwrap_or_else(|| "null".to_owned()),
        ))
    }

    fn contract(&mut self, contract: &ScriptContract) -> Result<JsValue, String> {
        let values = [
            hex_of(contract.caller),
            hex_of(contract.address),
            text_of(&format!("{:#x}", contract.value)),
            hex_of(&contract.input),
        ];
        self.call("contract", &values)
    }

    fn step(&mut self, step: &ScriptStep) -> Result<JsValue, String> {
        with_link(|link| link.top.clone_from(&step.top));
        let values = [
            index(step.pc),
            JsValue::from(step.op),
            number(step.gas),
            number(step.cost),
            index(step.depth),
            number(step.refund),
            index(step.memory),
            index(step.stack),
            optional(step.error.as_ref()),
        ];
        self.call("step", &values)
    }

    fn enter(&mut self, frame: &ScriptFrame) -> Result<JsValue, String> {
        let value = frame.value.map(|value| format!("{value:#x}"));
        let values = [
            text_of(&frame.kind),
            hex_of(frame.from),
            hex_of(frame.to),
            hex_of(&frame.input),
            number(frame.gas),
            optional(value.as_ref()),
        ];
        self.call("enter", &values)
    }

    fn exit(&mut self, exit: &ScriptExit) -> Result<JsValue, String> {
        let values = [
            number(exit.gas_used),
            hex_of(&exit.output),
            optional(exit.error.as_ref()),
        ];
        self.call("exit", &values)
    }
}

/// Notes a failure and returns the exception with which a native function ends the script.
fn failed(text: impl Into<String>) -> boa_engine::JsError {
    let text = text.into();
    with_link(|link| link.failure.get_or_insert_with(|| text.clone()).clone());
    JsNativeError::error().with_message(text).into()
}

/// The failure that a native function has noted, otherwise the text of the exception.
fn failure_of(exception: &str) -> String {
    let noted = with_link(|link| link.failure.take()).flatten();
    noted.unwrap_or_else(|| exception.to_owned())
}

/// Sends a question to the tracer and waits for the reply.
fn reply_to(question: ScriptQuestion) -> JsResult<Bytes> {
    let reply = with_link(|link| {
        write_message(&mut link.stream, &FromScript::Ask(question)).ok()?;
        link.reader.read::<ToScript>(&mut link.stream).ok()?
    });
    match reply.flatten() {
        Some(ToScript::Reply(bytes)) => Ok(bytes),
        _ => Err(failed("internal error: the tracer was lost; report it")),
    }
}

fn argument(values: &[JsValue], position: usize) -> JsResult<String> {
    let text = values.get_or_undefined(position).as_string();
    text.map(|text| text.to_std_string_lossy())
        .ok_or_else(|| failed("an argument is no text"))
}

fn bytes_argument(values: &[JsValue], position: usize) -> JsResult<Vec<u8>> {
    hex::decode(argument(values, position)?).map_err(|error| failed(error.to_string()))
}

fn address_argument(values: &[JsValue], position: usize) -> JsResult<Address> {
    let bytes = bytes_argument(values, position)?;
    Address::try_from(&bytes[..]).map_err(|error| failed(error.to_string()))
}

fn word_argument(values: &[JsValue], position: usize) -> JsResult<B256> {
    let bytes = bytes_argument(values, position)?;
    B256::try_from(&bytes[..]).map_err(|error| failed(error.to_string()))
}

fn size_argument(values: &[JsValue], position: usize) -> usize {
    let number = values.get_or_undefined(position).as_number();
    // The conversion clamps numbers to the range of the type and maps all other values to zero.
    number.unwrap_or_default() as usize
}

fn peek(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    let position = size_argument(values, 0);
    let near = with_link(|link| link.top.get(position).copied()).flatten();
    let word = match near {
        Some(word) => word,
        None => {
            let reply = reply_to(ScriptQuestion::Stack(position))?;
            let word = B256::try_from(&reply[..]).map_err(|_| {
                let length = reply.len();
                failed(format!(
                    "internal error: the tracer sent a stack word of {length} bytes; report it"
                ))
            })?;
            word.into()
        }
    };
    let number = JsBigInt::from_string_radix(&format!("{word:x}"), 16);
    number
        .map(JsValue::from)
        .ok_or_else(|| failed("a word is no number"))
}

fn memory(_: &JsValue, values: &[JsValue], context: &mut Context) -> JsResult<JsValue> {
    let (offset, length) = (size_argument(values, 0), size_argument(values, 1));
    let bytes = reply_to(ScriptQuestion::Memory { offset, length })?;
    if bytes.len() != length {
        return Err(failed(format!(
            "tracer reads too much memory at once: {length} bytes"
        )));
    }
    Ok(JsUint8Array::from_iter(bytes, context)?.into())
}

fn ask(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    let address = address_argument(values, 1)?;
    let question = match argument(values, 0)?.as_str() {
        "balance" => ScriptQuestion::Balance(address),
        "nonce" => ScriptQuestion::Nonce(address),
        "code" => ScriptQuestion::Code(address),
        "exists" => ScriptQuestion::Exists(address),
        _ => ScriptQuestion::Storage {
            address,
            slot: word_argument(values, 2)?,
        },
    };
    Ok(hex_of(reply_to(question)?))
}

fn create_address(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    let nonce = size_argument(values, 1) as u64;
    Ok(hex_of(address_argument(values, 0)?.create(nonce)))
}

fn create2_address(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    let code = keccak256(bytes_argument(values, 2)?);
    let salt = word_argument(values, 1)?;
    Ok(hex_of(address_argument(values, 0)?.create2(salt, code)))
}

fn is_precompile(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    let address = address_argument(values, 0)?;
    let known = with_link(|link| link.precompiles.contains(&address));
    Ok(known.unwrap_or_default().into())
}

fn op_name(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    Ok(text_of(&opcode_name(size_argument(values, 0) as u8)))
}

fn fail(_: &JsValue, values: &[JsValue], _: &mut Context) -> JsResult<JsValue> {
    Err(failed(argument(values, 0)?))
}
