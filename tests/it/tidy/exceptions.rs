//! Exceptions from the rules. Every entry has a reason, except those in [`NOT_YET`], which should
//! stay empty.

/// Number of findings that each rule still allows, by the rule's name. A rule without an entry
/// allows none. `the_table_is_tight` prints the table with the current numbers.
pub const NOT_YET: &[(&str, usize)] = &[];

/// Edges between modules that are allowed to close a cycle: group, from, to, reason.
pub const EDGES: &[(&str, &str, &str, &str)] = &[];

/// Types that may share their name with another type in the workspace, with the reason.
pub const SAME_NAME: &[(&str, &str)] = &[];

/// Dependencies that no source names, since only their features matter; with the reason.
pub const FEATURES_ONLY: &[(&str, &str)] = &[(
    "starling-features",
    "gives shared crates the features that they have in the workspace",
)];
