//! Channels of our encoder, decoded by `kona-protocol`, a derivation library of other authors: the
//! same batches must come out. The package has nothing but this test; CONTRIBUTING.md says how to
//! run it.

#[cfg(test)]
mod tests;
