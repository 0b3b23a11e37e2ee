//! Range sync, what asks: one stream for one question.
//!
//! A peer can answer slowly, without end, or with anything. Every frame has a deadline and a largest size, an answer has as many items
//! as were asked for at most, and decoding runs on a blocking thread. What comes out is verified: headers link from the hash asked
//! about, blocks have the hashes asked for and the transactions of their headers.

use super::{Ask, Links, Status, Trouble};
use crate::{
    handle::Blocks,
    streams::{Control, OpenError},
    sync::Arrival,
};
use alloy_primitives::B256;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use starling_proto::{
    payload::{BlockId, Payload},
    wire::{self, Answer, Chunk, LENGTH, MAX_RESPONSE, Refusal},
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// For the next frame of an answer to come, and to come whole.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// A frame up to this size needs no permit.
const SMALL: usize = 1 << 20;
/// Larger frames read at the same time.
const LARGE: usize = 4;
/// Chunks decoded at the same time.
const DECODING: usize = 4;

/// What comes while a question is answered.
pub enum News {
    Links(Links),
    Blocks(Vec<Arrival>),
    /// The answer is over.
    End(Result<(), Trouble>),
}

/// Asks peers of our kind. Clones share the permits.
#[derive(Clone)]
pub struct Client {
    control: Control,
    protocol: StreamProtocol,
    chain_id: u64,
    genesis: B256,
    blocks: Arc<dyn Blocks>,
    large: Arc<Semaphore>,
    decoding: Arc<Semaphore>,
}

/// The protocol of the chain.
pub fn protocol(chain_id: u64) -> Option<StreamProtocol> {
    StreamProtocol::try_from_owned(wire::protocol_id(chain_id)).ok()
}

impl Client {
    /// `None` if the chain's id makes no protocol id.
    pub fn new(
        control: Control,
        chain_id: u64,
        genesis: B256,
        blocks: Arc<dyn Blocks>,
    ) -> Option<Self> {
        let protocol = protocol(chain_id)?;
        let [large, decoding] = [LARGE, DECODING].map(|permits| Arc::new(Semaphore::new(permits)));
        Some(Self {
            control,
            protocol,
            chain_id,
            genesis,
            blocks,
            large,
            decoding,
        })
    }

    /// What the peer has; an error in words that are for the log alone.
    pub async fn status(self, peer: PeerId) -> Result<Status, Trouble> {
        let mut stream = self
            .open(peer, wire::Ask::Status(wire::StatusRequest {}))
            .await?;
        let Some(Answer::Status(status)) = self.frame(&mut stream).await? else {
            return Err(Trouble::Malformed("no status".into()));
        };
        let read = || -> Result<_, wire::WireError> {
            let id = |block: Option<wire::Block>| block.map(|block| block.id()).transpose();
            let head = id(status.head.clone())?.ok_or(wire::WireError::NoHead)?;
            let said = Status {
                head,
                oldest: status.oldest,
                safe: id(status.safe.clone())?,
                finalized: id(status.finalized.clone())?,
            };
            Ok((said, wire::hash(&status.genesis_hash)?))
        };
        let (said, genesis) = read().map_err(malformed)?;
        // Of another chain: no offence, and nothing to ask it.
        if (status.chain_id, genesis) != (self.chain_id, self.genesis) {
            Err(Trouble::NotFound)
        } else {
            Ok(said)
        }
    }

    /// Answers to `ask` as they come; the last word is always [`News::End`].
    pub async fn ask(self, id: u64, peer: PeerId, ask: Ask, news: mpsc::Sender<(u64, News)>) {
        let outcome = match ask {
            Ask::Headers { from, count } => self.headers(id, peer, from, count, &news).await,
            Ask::Bodies {
                first,
                hashes,
                max_bytes,
            } => self.bodies(id, peer, first, hashes, max_bytes, &news).await,
        };
        let _ = news.send((id, News::End(outcome))).await;
    }

    async fn headers(
        &self,
        id: u64,
        peer: PeerId,
        from: BlockId,
        count: u32,
        news: &mpsc::Sender<(u64, News)>,
    ) -> Result<(), Trouble> {
        let request = wire::HeadersRequest {
            number: from.number,
            hash: from.hash.to_vec(),
            count,
        };
        let mut stream = self.open(peer, wire::Ask::Headers(request)).await?;
        let (mut at, mut missing) = (from, count as usize);
        while missing > 0 {
            let Some(answer) = self.frame(&mut stream).await? else {
                break;
            };
            let Answer::Headers(chunk) = answer else {
                return Err(no_answer(&answer));
            };
            let blocks = self.blocks.clone();
            let verify = move |chunk: Chunk| {
                let parents = verify_headers(&chunk, at, missing)?;
                Ok(Links {
                    known: first_known(&parents, &*blocks),
                    parents,
                })
            };
            let links = self.decode(chunk, verify).await?;
            missing -= links.parents.len();
            at.number -= links.parents.len() as u64;
            at.hash = links.parents.last().copied().unwrap_or(at.hash);
            // Each chunk at once: another peer may be asked for the rest.
            if news.send((id, News::Links(links))).await.is_err() {
                break;
            }
        }
        // It ended before it began, as a busy peer does.
        if missing == count as usize {
            Err(Trouble::Unreachable)
        } else {
            Ok(())
        }
    }

    async fn bodies(
        &self,
        id: u64,
        peer: PeerId,
        first: u64,
        hashes: Arc<[B256]>,
        max_bytes: u32,
        news: &mpsc::Sender<(u64, News)>,
    ) -> Result<(), Trouble> {
        let Some(last_hash) = hashes.last().map(|hash| hash.to_vec()) else {
            return Ok(());
        };
        let request = wire::BodiesRequest {
            first,
            last: first + hashes.len() as u64 - 1,
            last_hash,
            max_bytes,
        };
        let mut stream = self.open(peer, wire::Ask::Bodies(request)).await?;
        let mut done = 0;
        while done < hashes.len() {
            let Some(answer) = self.frame(&mut stream).await? else {
                break;
            };
            let Answer::Bodies(chunk) = answer else {
                return Err(no_answer(&answer));
            };
            let hashes = hashes.clone();
            let decoded = self
                .decode(chunk, move |chunk| {
                    verify_blocks(&chunk, first + done as u64, &hashes[done..])
                })
                .await?;
            done += decoded.len();
            let arrival = |payload| Arrival {
                payload: Arc::new(payload),
                from: Some(peer),
                known: false,
                parent_known: false,
            };
            let blocks = decoded.into_iter().map(arrival).collect();
            if news.send((id, News::Blocks(blocks))).await.is_err() {
                break;
            }
        }
        // It ended before it began, as a busy peer does.
        if done == 0 {
            Err(Trouble::Unreachable)
        } else {
            Ok(())
        }
    }

    async fn decode<T: Send + 'static>(
        &self,
        chunk: Chunk,
        verify: impl FnOnce(Chunk) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let permit = self
            .decoding
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| Trouble::Unreachable)?;
        let verified = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            verify(chunk)
        });
        verified
            .await
            .unwrap_or_else(|_| Err(Trouble::Malformed("decoding panicked".into())))
    }

    async fn open(&self, peer: PeerId, ask: wire::Ask) -> Result<Stream, Trouble> {
        let open = timeout(
            OPEN_TIMEOUT,
            self.control.open_stream(peer, self.protocol.clone()),
        );
        let mut stream = match open.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(OpenError::Unsupported)) => return Err(Trouble::NotFound),
            Ok(Err(_)) => return Err(Trouble::Unreachable),
            Err(_) => return Err(Trouble::NoAnswer),
        };
        let request = wire::frame(&wire::Request { ask: Some(ask) });
        let sent = timeout(OPEN_TIMEOUT, async {
            stream.write_all(&request).await?;
            stream.close().await
        });
        match sent.await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(_)) => Err(Trouble::Unreachable),
            Err(_) => Err(Trouble::NoAnswer),
        }
    }

    /// The next frame; `None` where the answer ends.
    async fn frame(&self, stream: &mut Stream) -> Result<Option<Answer>, Trouble> {
        let bytes = match timeout(FRAME_TIMEOUT, read_frame(stream, &self.large)).await {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(malformed(error));
            }
            Ok(Err(_)) => return Err(Trouble::Unreachable),
            Err(_) => return Err(Trouble::NoAnswer),
        };
        match wire::decode_response(bytes).map_err(malformed)? {
            Answer::Refusal(code) if code == Refusal::NotFound as u32 => Err(Trouble::NotFound),
            Answer::Refusal(_) => Err(Trouble::Unreachable),
            answer => Ok(Some(answer)),
        }
    }
}

async fn read_frame(stream: &mut Stream, large: &Semaphore) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; LENGTH];
    match stream.read(&mut length).await? {
        0 => return Ok(None),
        read => stream.read_exact(&mut length[read..]).await?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RESPONSE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes"),
        ));
    }
    let _permit = if length > SMALL {
        Some(large.acquire().await.map_err(io::Error::other)?)
    } else {
        None
    };
    // Memory is taken as it is filled: a length costs nothing.
    let mut bytes = Vec::with_capacity(length.min(64 << 10));
    stream.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(Some(bytes))
    }
}

fn malformed(error: impl ToString) -> Trouble {
    Trouble::Malformed(error.to_string())
}

fn no_answer(answer: &Answer) -> Trouble {
    let what = match answer {
        Answer::Status(_) => "a status",
        Answer::Headers(_) => "headers",
        Answer::Bodies(_) => "blocks",
        Answer::Refusal(_) => "a refusal",
    };
    Trouble::Malformed(format!("{what} was not asked for"))
}

/// The parents that a chunk of headers names, from the block `at` downward.
fn verify_headers(chunk: &Chunk, mut at: BlockId, most: usize) -> Result<Vec<B256>, Trouble> {
    let items = chunk.items().map_err(malformed)?;
    if items.is_empty() || items.len() > most {
        return Err(Trouble::Malformed(format!(
            "{} headers, at most {most} were asked for",
            items.len()
        )));
    }
    let mut parents = Vec::with_capacity(items.len());
    for item in &items {
        let (hash, header) = wire::decode_header(item).map_err(malformed)?;
        if hash != at.hash {
            return Err(Trouble::False(format!(
                "asked for header {at}, it sent {} ({hash})",
                header.number
            )));
        }
        // The hash is trusted, so the number is; below genesis nothing is.
        let number = at
            .number
            .checked_sub(1)
            .filter(|_| header.number == at.number);
        let number =
            number.ok_or_else(|| Trouble::Malformed(format!("a header below block {at}")))?;
        at = BlockId {
            number,
            hash: header.parent_hash,
        };
        parents.push(header.parent_hash);
    }
    Ok(parents)
}

/// The blocks of a chunk, which are to have these hashes.
fn verify_blocks(chunk: &Chunk, first: u64, hashes: &[B256]) -> Result<Vec<Payload>, Trouble> {
    let items = chunk.items().map_err(malformed)?;
    if items.is_empty() || items.len() > hashes.len() {
        return Err(Trouble::Malformed(format!(
            "{} blocks, at most {} were asked for",
            items.len(),
            hashes.len()
        )));
    }
    let verify = |(index, item): (usize, &alloy_primitives::Bytes)| {
        let asked = BlockId {
            number: first + index as u64,
            hash: hashes[index],
        };
        let payload = wire::decode_block(item).map_err(|error| match error {
            wire::WireError::TransactionsRoot { .. } => {
                Trouble::False(format!("asked for block {asked}: {error}"))
            }
            error => malformed(error),
        })?;
        match payload.hash == asked.hash {
            true => Ok(payload),
            false => Err(Trouble::False(format!(
                "asked for block {asked}, it sent {}",
                payload.id()
            ))),
        }
    };
    items.iter().enumerate().map(verify).collect()
}

/// The highest of these ancestors that the chain has: whoever has a block has those below it.
fn first_known(parents: &[B256], blocks: &dyn Blocks) -> Option<usize> {
    if !parents.last().is_some_and(|lowest| blocks.knows(*lowest)) {
        return None;
    }
    Some(parents.partition_point(|parent| !blocks.knows(*parent)))
}
