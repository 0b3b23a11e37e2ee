//! Options of tracers, as Go's JSON decoder reads them.

use serde::{Deserialize, Deserializer};

/// Reads a member for which null is as good as its absence.
pub(super) fn null_is_default<'de, D, T>(member: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(member).map(Option::unwrap_or_default)
}
