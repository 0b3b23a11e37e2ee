//! Batcher data of our encoder, read by `kona-protocol`, a derivation library of other authors, and
//! the reverse. The package has nothing but tests; CONTRIBUTING.md has their command.

#[cfg(test)]
mod tests;
