//! Cache of analysed code by hash: the jump table of a contract is computed once, not in every
//! block and call that runs it.
//!
//! Shared by all threads of the process. Entries are keyed by the hash of the code, so none is ever
//! stale. Bounded in bytes; the least recently used entries are evicted first.

use alloy_primitives::{B256, Bytes};
use lru::LruCache;
use parking_lot::Mutex;
use revm::bytecode::Bytecode;
use std::sync::LazyLock;

/// Largest number of bytes in the cache.
const BUDGET: usize = 16 << 20;
/// Estimated bytes that an entry uses beside its code and jump table.
const OVERHEAD: usize = 256;

static CODES: LazyLock<Mutex<Codes>> = LazyLock::new(|| {
    Mutex::new(Codes {
        entries: LruCache::unbounded(),
        weight: 0,
    })
});

struct Codes {
    entries: LruCache<B256, Bytecode>,
    weight: usize,
}

/// The analysed code with this hash, from the cache or otherwise from `read`.
pub(super) fn analysed<E>(
    hash: B256,
    read: impl FnOnce() -> Result<Bytes, E>,
) -> Result<Bytecode, E> {
    if let Some(code) = CODES.lock().entries.get(&hash) {
        return Ok(code.clone());
    }
    let code = Bytecode::new_raw(read()?);
    CODES.lock().put(hash, code.clone(), BUDGET);
    Ok(code)
}

impl Codes {
    fn put(&mut self, hash: B256, code: Bytecode, budget: usize) {
        // The jump table has one bit for every byte of the code.
        let weight = |code: &Bytecode| OVERHEAD + code.len() + code.len() / 8;
        self.weight += weight(&code);
        if let Some((_, old)) = self.entries.push(hash, code) {
            self.weight -= weight(&old);
        }
        while self.weight > budget
            && let Some((_, old)) = self.entries.pop_lru()
        {
            self.weight -= weight(&old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;

    #[test]
    fn code_is_read_once() {
        let raw = Bytes::from_static(b"\x5b\x00 only this test has it");
        let hash = keccak256(&raw);
        let first = analysed(hash, || Ok::<_, ()>(raw.clone())).unwrap();
        assert_eq!(first.original_bytes(), raw);
        assert_eq!(analysed(hash, || Err("read again")), Ok(first));
        assert_eq!(
            analysed(B256::repeat_byte(1), || Err("missing")),
            Err("missing")
        );
    }

    #[test]
    fn the_weight_is_bounded_and_what_is_in_use_stays() {
        let mut codes = Codes {
            entries: LruCache::unbounded(),
            weight: 0,
        };
        let code = |byte: u8| {
            (
                B256::repeat_byte(byte),
                Bytecode::new_raw(vec![byte; 1024].into()),
            )
        };
        for byte in 0..100 {
            let (hash, code) = code(byte);
            codes.put(hash, code, 10_000);
            assert!(codes.entries.get(&B256::ZERO).is_some(), "after {byte}");
            assert!(codes.weight <= 10_000);
        }
        assert!(
            (6..=8).contains(&codes.entries.len()),
            "{}",
            codes.entries.len()
        );
    }
}
