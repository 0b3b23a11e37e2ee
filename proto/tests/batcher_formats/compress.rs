//! Compresses channels with encoders other than ours.

use std::io::Write;

pub fn zlib(bytes: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::fast();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = brotli::CompressorWriter::new(vec![1], 4096, 5, 22);
    encoder.write_all(bytes).unwrap();
    encoder.into_inner()
}
