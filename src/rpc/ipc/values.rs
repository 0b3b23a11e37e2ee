//! Splits a stream of bytes into JSON values.
//!
//! Only the nesting of brackets and strings is tracked: the parser of a value checks whether it is
//! valid JSON. The bytes of one value are bounded.

use std::collections::VecDeque;

/// The error for a value that is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueTooLong;

/// The bytes of an incomplete value, and the values that are complete.
pub struct Splitter {
    limit: usize,
    bytes: Vec<u8>,
    /// Number of bytes that have been scanned.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    complete: VecDeque<Vec<u8>>,
}

impl Splitter {
    /// A splitter for values of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
            seen: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            complete: VecDeque::new(),
        }
    }

    /// Number of bytes of the incomplete value.
    pub fn pending(&self) -> usize {
        self.bytes.len()
    }

    /// Removes and returns the oldest complete value.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.complete.pop_front()
    }

    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ValueTooLong> {
        self.bytes.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(byte) = self.bytes.get(self.seen).copied() {
            self.seen += 1;
            if self.ends_value(byte) {
                let value = &self.bytes[start..self.seen];
                if !value.iter().all(u8::is_ascii_whitespace) {
                    self.complete.push_back(value.to_vec());
                }
                start = self.seen;
            }
        }
        // Drain once for all complete values: a drain for each value would move all bytes after it.
        self.bytes.drain(..start);
        self.seen -= start;
        if self.bytes.len() > self.limit {
            return Err(ValueTooLong);
        }
        Ok(())
    }

    /// Whether a value ends with this byte. Outside brackets a line feed ends a value too, so that
    /// text that is no request gets an error response.
    fn ends_value(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            b'\n' => return self.depth == 0,
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(chunks: &[&str]) -> Vec<String> {
        let mut splitter = Splitter::new(100);
        for chunk in chunks {
            splitter.push(chunk.as_bytes()).unwrap();
        }
        std::iter::from_fn(|| splitter.take())
            .map(|value| String::from_utf8(value).unwrap().trim().to_owned())
            .collect()
    }

    #[test]
    fn values_are_split_by_their_brackets_wherever_the_stream_is_cut() {
        let stream = r#"{"a":"}{\"\\"}[{"b":[]},{}] {"c":1}"#;
        let expected = [r#"{"a":"}{\"\\"}"#, r#"[{"b":[]},{}]"#, r#"{"c":1}"#];
        assert_eq!(values(&[stream]), expected);
        for cut in 1..stream.len() {
            assert_eq!(values(&[&stream[..cut], &stream[cut..]]), expected, "{cut}");
        }
        let bytes: Vec<&str> = stream.split_inclusive(|_: char| true).collect();
        assert_eq!(values(&bytes), expected);
    }

    #[test]
    fn a_line_that_is_no_request_is_a_value_and_white_space_is_none() {
        assert_eq!(values(&["nonsense\n\n \n{}\n"]), ["nonsense", "{}"]);
        assert_eq!(values(&["}"]), ["}"]);
        assert_eq!(values(&["{\n\n}"]), ["{\n\n}"]);
    }

    #[test]
    fn many_values_in_one_read_are_split_in_linear_time() {
        let mut splitter = Splitter::new(usize::MAX);
        let begun = std::time::Instant::now();
        splitter.push(&b"{}".repeat(1 << 20)).unwrap();
        // Moving the remaining bytes once for each value would move a terabyte in total.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        assert_eq!(splitter.pending(), 0);
        assert_eq!(std::iter::from_fn(|| splitter.take()).count(), 1 << 20);
    }

    #[test]
    fn a_value_without_end_is_refused() {
        let mut splitter = Splitter::new(10);
        assert_eq!(splitter.push(b"{\"abcdef\""), Ok(()));
        assert_eq!(splitter.pending(), 9);
        assert_eq!(splitter.push(b":1"), Err(ValueTooLong));
    }
}
