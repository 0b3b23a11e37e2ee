//! Exceptions from the rules. Every entry has a reason, but for those of [`NOT_YET`], which is to
//! stay empty.

/// Findings of a rule that the tree still has, by the rule's name. A rule without an entry allows
/// none. `the_table_is_tight` prints this table with the numbers of the tree as it is.
pub const NOT_YET: &[(&str, usize)] = &[];

/// Edges between modules that may close a cycle: group, from, to, reason.
pub const EDGES: &[(&str, &str, &str, &str)] = &[];

/// Types that share their name with another one in the workspace.
pub const SAME_NAME: &[(&str, &str)] = &[];

/// Dependencies that no source names: only their features matter.
pub const FEATURES_ONLY: &[(&str, &str)] = &[(
    "starling-features",
    "gives shared crates the features that they have in the workspace",
)];
