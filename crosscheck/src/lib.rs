//! Tests that `kona-protocol`, an independent derivation library, reads our encoder's batcher data,
//! and that we read kona's. The package has only tests; CONTRIBUTING.md has the command to run
//! them.

#[cfg(test)]
mod tests;
