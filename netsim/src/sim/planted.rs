//! Bugs for tests of the checks. Each is planted in the code of the world that calls a machine:
//! an error that the node around the machine could have. No production code knows of them.

/// A planted bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PlantedBug {
    #[default]
    #[value(skip)]
    None,
    /// Every gossiped block counts as a child of a known block.
    ParentCheckForgotten,
    /// Static peers are not reported to the scores after a start.
    StaticPeersForgotten,
    /// The sequencer does not read the guards of blocks that it may have signed.
    GuardIgnored,
    /// The guard is not durable before the block is signed.
    GuardNotSynced,
    /// The verdict on every third block is not reported to sync.
    CreditLost,
    /// Checks read a view of the chain from before the loss of power.
    StaleView,
    /// Sync does not learn that a peer has disconnected.
    DisconnectForgotten,
    /// A new signer is not passed to the gossip check.
    SignerChangeForgotten,
    /// The signature of a gossiped block is not compared with the signer.
    SignatureIgnored,
    /// The blocks of a window are compared with the hashes of the next ones.
    WindowOffByOne,
    /// A block of the head's height becomes the head.
    EqualHeightWins,
    /// A banned peer stays connected.
    BanIgnored,
    /// A response is taken for that of another request.
    ResponsesSwapped,
    /// A node bans a hostile peer by itself at an offence, so that the ledger has no ban.
    BanNotRecorded,
    /// Disconnects are reported without their reason.
    DisconnectNotExplained,
    /// A disconnect is not reported to the dial schedules.
    RedialForgotten,
    /// A reconnected peer is not reported to sync.
    PeerForgotten,
    /// The sequencer builds a block on its head's parent instead of on its head.
    WrongParentSealed,
    /// A block is published before it is signed.
    PublishedBeforeSigned,
    /// A sequencer does not read its guards again after a restart.
    GuardsNotRestored,
    /// The block after the requested one is served.
    ServedOffByOne,
    /// Sync is not notified that its timer is due.
    TimerForgotten,
    /// Derivation restarts one L1 block after the recorded safe head's.
    ResetTooLate,
    /// The batcher leaves the transactions of every tenth block out.
    BatchWithoutTransactions,
    /// The batcher does not post again what an L1 reorg has removed.
    RepostForgotten,
    /// The batcher takes the unsafe head for the safe one.
    SafeHeadConfused,
    /// Transactions of the batcher carry the data of the request before.
    DataSwapped,
    /// A loss of power takes the payload log of a real chain.
    LogLost,
    /// The sequencer reads the system clock once for each block.
    ClockRead,
    /// The dial schedules have dice of their own, which no seed determines.
    OwnDice,
    /// Peers are sent to in the order of a randomly seeded map.
    MapOrder,
    /// The sequencer draws the dice of the seed once more for each block.
    ExtraDraw,
}

impl PlantedBug {
    /// The bugs that checks find.
    pub const CHECKED: [PlantedBug; 27] = [
        PlantedBug::ParentCheckForgotten,
        PlantedBug::StaticPeersForgotten,
        PlantedBug::GuardIgnored,
        PlantedBug::GuardNotSynced,
        PlantedBug::CreditLost,
        PlantedBug::StaleView,
        PlantedBug::DisconnectForgotten,
        PlantedBug::SignerChangeForgotten,
        PlantedBug::SignatureIgnored,
        PlantedBug::WindowOffByOne,
        PlantedBug::EqualHeightWins,
        PlantedBug::BanIgnored,
        PlantedBug::BanNotRecorded,
        PlantedBug::DisconnectNotExplained,
        PlantedBug::ResponsesSwapped,
        PlantedBug::RedialForgotten,
        PlantedBug::PeerForgotten,
        PlantedBug::WrongParentSealed,
        PlantedBug::PublishedBeforeSigned,
        PlantedBug::GuardsNotRestored,
        PlantedBug::ServedOffByOne,
        PlantedBug::TimerForgotten,
        PlantedBug::ResetTooLate,
        PlantedBug::BatchWithoutTransactions,
        PlantedBug::RepostForgotten,
        PlantedBug::SafeHeadConfused,
        PlantedBug::DataSwapped,
    ];
    /// The bugs that checks find in real worlds only.
    pub const REAL: [PlantedBug; 1] = [PlantedBug::LogLost];
    /// The bugs by which two runs of a seed differ.
    pub const NONDETERMINISTIC: [PlantedBug; 3] = [
        PlantedBug::ClockRead,
        PlantedBug::OwnDice,
        PlantedBug::MapOrder,
    ];

    /// The name on the command line; `None` if no bug is planted.
    pub fn name(self) -> Option<String> {
        use clap::ValueEnum;
        let value = self.to_possible_value()?;
        Some(value.get_name().to_owned())
    }
}
