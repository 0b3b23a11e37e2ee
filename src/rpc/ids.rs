//! Ids of subscriptions and filters, for [`frame`](super::frame) and [`filters`](super::filters).

/// The id of a subscription or a filter: 16 random bytes, as a quantity. Other clients cannot guess
/// it.
pub fn random_id() -> String {
    format!("{:#x}", rand::random::<u128>())
}
