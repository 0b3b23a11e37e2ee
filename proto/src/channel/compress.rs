//! The compressors of channels: batches in, compressed bytes out.

use super::{BROTLI_VERSION, ChannelWriteError};
use brotli::{
    enc::{
        StandardAlloc,
        encode::{BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct},
    },
    interface::{InputPair, InputReferenceMut, PredictionModeContextMap, StaticCommand},
};
use flate2::{Compression, write::ZlibEncoder};
use std::{
    fmt,
    io::{BufWriter, Write},
    str::FromStr,
};

/// Brotli's window size as a power of 2: 4 MiB, the default of the brotli command-line tool.
const BROTLI_WINDOW: u32 = 22;

/// Bytes that are passed to the zlib encoder at a time. A call for each small batch would cost 5 %
/// of the encoder's time.
const ZLIB_INPUT: usize = 16 << 10;

/// Compression of a channel, as in op-batcher. The text forms are the values of
/// `--compression-algo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelCompression {
    /// zlib, level 9.
    Zlib,
    /// brotli, level 9; from Fjord on.
    Brotli9,
    /// brotli, level 10; from Fjord on.
    Brotli10,
    /// brotli, level 11; from Fjord on.
    Brotli11,
}

/// A text that is not the name of a [`ChannelCompression`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression: use zlib, brotli, brotli-9, brotli-10 or brotli-11")]
pub struct UnknownCompression;

impl ChannelCompression {
    /// Every compression, in the order of the variants.
    pub const ALL: [Self; 4] = [Self::Zlib, Self::Brotli9, Self::Brotli10, Self::Brotli11];

    /// Whether this compression is only valid from Fjord on.
    pub fn needs_fjord(self) -> bool {
        self != Self::Zlib
    }

    fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Brotli9 => "brotli-9",
            Self::Brotli10 => "brotli-10",
            Self::Brotli11 => "brotli-11",
        }
    }
}

impl fmt::Display for ChannelCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses a name; `brotli` alone is level 10.
impl FromStr for ChannelCompression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "brotli" {
            return Ok(Self::Brotli10);
        }
        let named = Self::ALL.into_iter().find(|one| one.name() == text);
        named.ok_or(UnknownCompression)
    }
}

/// A compressed stream in progress, with its output so far.
pub(crate) enum Compressor {
    Zlib(BufWriter<ZlibEncoder<Vec<u8>>>),
    Brotli(Box<BrotliStream>),
    Closed(Vec<u8>),
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zlib(_) => "Zlib",
            Self::Brotli(_) => "Brotli",
            Self::Closed(_) => "Closed",
        })
    }
}

impl Compressor {
    pub fn new(compression: ChannelCompression) -> Self {
        let level = match compression {
            ChannelCompression::Zlib => return Self::zlib(Compression::best()),
            ChannelCompression::Brotli9 => 9,
            ChannelCompression::Brotli10 => 10,
            ChannelCompression::Brotli11 => 11,
        };
        Self::Brotli(Box::new(BrotliStream::new(level)))
    }

    /// A zlib stream that stores its input uncompressed.
    pub fn stored() -> Self {
        Self::zlib(Compression::none())
    }

    fn zlib(level: Compression) -> Self {
        let encoder = ZlibEncoder::new(Vec::new(), level);
        Self::Zlib(BufWriter::with_capacity(ZLIB_INPUT, encoder))
    }

    /// Compresses `input` to a complete stream.
    pub fn compress(
        compression: ChannelCompression,
        input: &[u8],
    ) -> Result<Vec<u8>, ChannelWriteError> {
        let mut all = Self::new(compression);
        all.write(input)?;
        all.close()?;
        Ok(std::mem::take(all.output_mut()))
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelWriteError> {
        match self {
            Self::Zlib(writer) => writer.write_all(bytes).map_err(failed),
            Self::Brotli(stream) => stream.write(bytes),
            Self::Closed(_) => Err(ChannelWriteError::Closed),
        }
    }

    /// Compresses all buffered input now, which makes the output slightly larger.
    pub fn flush(&mut self) -> Result<(), ChannelWriteError> {
        match self {
            Self::Zlib(writer) => writer.flush().map_err(failed),
            Self::Brotli(stream) => stream.flush(),
            Self::Closed(_) => Ok(()),
        }
    }

    /// Ends the stream; the output is then complete.
    pub fn close(&mut self) -> Result<(), ChannelWriteError> {
        let output = match std::mem::replace(self, Self::Closed(Vec::new())) {
            // `BufWriter::flush` would also flush the encoder, which adds bytes to the output.
            Self::Zlib(writer) => match writer.into_inner() {
                Ok(encoder) => encoder.finish().map_err(failed)?,
                Err(_) => return Err(ChannelWriteError::Compressor),
            },
            Self::Brotli(stream) => stream.finish()?,
            Self::Closed(output) => output,
        };
        *self = Self::Closed(output);
        Ok(())
    }

    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// Compressed bytes so far, without those that the owner has already removed.
    pub fn output(&self) -> &Vec<u8> {
        match self {
            Self::Zlib(writer) => writer.get_ref().get_ref(),
            Self::Brotli(stream) => &stream.output,
            Self::Closed(output) => output,
        }
    }

    pub fn output_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Zlib(writer) => writer.get_mut().get_mut(),
            Self::Brotli(stream) => &mut stream.output,
            Self::Closed(output) => output,
        }
    }
}

fn failed(_: std::io::Error) -> ChannelWriteError {
    ChannelWriteError::Compressor
}

/// A brotli stream after the channel's version byte. When it is dropped, the remaining input is not
/// compressed, unlike with [`brotli::CompressorWriter`], where this takes up to a second at level
/// 10.
pub(crate) struct BrotliStream {
    state: BrotliEncoderStateStruct<StandardAlloc>,
    output: Vec<u8>,
}

impl BrotliStream {
    fn new(level: u32) -> Self {
        let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, level);
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, BROTLI_WINDOW);
        Self {
            state,
            output: vec![BROTLI_VERSION],
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ChannelWriteError> {
        self.run(BrotliEncoderOperation::BROTLI_OPERATION_PROCESS, bytes)
    }

    fn flush(&mut self) -> Result<(), ChannelWriteError> {
        self.run(BrotliEncoderOperation::BROTLI_OPERATION_FLUSH, &[])
    }

    fn finish(mut self) -> Result<Vec<u8>, ChannelWriteError> {
        self.run(BrotliEncoderOperation::BROTLI_OPERATION_FINISH, &[])?;
        Ok(self.output)
    }

    fn run(
        &mut self,
        operation: BrotliEncoderOperation,
        input: &[u8],
    ) -> Result<(), ChannelWriteError> {
        let mut ignored = |_: &mut PredictionModeContextMap<InputReferenceMut<'_>>,
                           _: &mut [StaticCommand],
                           _: InputPair<'_>,
                           _: &mut StandardAlloc| ();
        let (mut left, mut read) = (input.len(), 0);
        loop {
            // With an empty output buffer, the encoder keeps its output until it is taken below.
            let went_well = self.state.compress_stream(
                operation,
                &mut left,
                input,
                &mut read,
                &mut 0,
                &mut [],
                &mut 0,
                &mut None,
                &mut ignored,
            );
            if !went_well {
                return Err(ChannelWriteError::Compressor);
            }
            while self.state.has_more_output() {
                let mut len = 0;
                let taken = self.state.take_output(&mut len);
                self.output.extend_from_slice(&taken[..len]);
            }
            if left == 0 {
                return Ok(());
            }
        }
    }
}
