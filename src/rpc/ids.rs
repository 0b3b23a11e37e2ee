//! Ids of subscriptions and filters, for [`frame`](super::frame) and [`filters`](super::filters).

/// The id of a subscription or a filter, which nobody else can guess: 16 random bytes, as a
/// quantity.
pub fn random_id() -> String {
    format!("{:#x}", rand::random::<u128>())
}
