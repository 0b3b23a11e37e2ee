//! Nothing but dependencies: the features that the node adds to crates which `proto` or `p2p` use,
//! too.
//!
//! Cargo resolves features for the packages that are selected. With this dev-dependency,
//! `cargo test -p starling-p2p` and `-p starling-proto` use the dependencies that were compiled for
//! the workspace; without it they compile some ninety crates once more. `.ci/features` names the
//! features that are missing here.
