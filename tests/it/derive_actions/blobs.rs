//! Blobs of an L1 that is made of our core, read through two beacon nodes that fail on command.

use super::{
    beacon::{BeaconFault, StandInBeacon},
    world::{ActionPlan, ActionWorld, VerifierLinks},
};
use crate::net::wait;
use std::time::Duration;

/// Longest wait for requests, each of which may take the timeouts of two endpoints.
const PATIENCE: Duration = Duration::from_secs(120);

struct BlobWorld {
    world: ActionWorld,
    /// The verifier's main beacon node, and its fallback.
    beacons: [StandInBeacon; 2],
}

impl BlobWorld {
    fn new() -> Self {
        let mut beacons = None;
        let plan = ActionPlan {
            window: 40,
            ..ActionPlan::default()
        };
        let world = ActionWorld::with_links(plan, |l1| {
            let both = [(), ()].map(|()| StandInBeacon::start(&l1.url, &l1.beacon));
            let options = vec![
                format!("--l1.beacon={}", both[0].url),
                format!("--l1.beacon-fallbacks={}", both[1].url),
            ];
            beacons = Some(both);
            VerifierLinks {
                l1: l1.url.clone(),
                options,
            }
        });
        let beacons = beacons.expect("both are started");
        Self { world, beacons }
    }

    fn set(&self, faults: [BeaconFault; 2]) {
        for (beacon, fault) in self.beacons.iter().zip(faults) {
            beacon.set(fault);
        }
    }

    /// Mines a block that contains a batch in two blobs.
    fn mine_in_blobs(&mut self) {
        let world = &mut self.world;
        world.l1.mine_to(world.l1.height() + 1);
        let blocks = world.extend(world.l1.height() - 1);
        let items = world.items(&blocks, 2);
        let call = world.blobs(&items);
        world.l1.mine(&[call]);
    }

    /// One channel in one L1 block, partly in calldata and partly in blobs of two transactions. The
    /// pool requires that the blob transactions have consecutive nonces.
    fn mine_in_blobs_and_calldata(&mut self) {
        let world = &mut self.world;
        world.l1.mine_to(world.l1.height() + 1);
        let blocks = world.extend(world.l1.height() - 1);
        let items = world.items(&blocks, 6);
        assert_eq!(items.len(), 6);
        let calls = [
            world.blobs(&items[..2]),
            world.blobs(&items[2..4]),
            world.calldata(&items[4]),
            world.calldata(&items[5]),
        ];
        world.l1.mine(&calls);
    }

    /// The safe head stays while neither beacon node has the blobs, and rises once both have them.
    fn fail_at_both(&mut self, fault: BeaconFault) {
        let before = self.world.author.head().number();
        self.set([fault; 2]);
        self.mine_in_blobs();
        self.wait_for_requests();
        let safe = self.world.verifier.safe();
        assert_eq!(safe, Some(before), "{fault:?}");
        self.set([BeaconFault::None; 2]);
        self.world.settle();
    }

    /// An L1 block is replaced whose blobs no beacon node has. Derivation continues on the new
    /// branch, and the batch counts once it is posted again.
    fn replace_a_block_without_blobs(&mut self) {
        let before = self.world.author.head().number();
        self.set([BeaconFault::NotFound; 2]);
        self.mine_in_blobs();
        self.wait_for_requests();
        self.world.l1.rewind(self.world.l1.height() - 1);
        self.world.l1.mine_to(self.world.l1.height() + 2);
        self.world.author.rewind(before);
        self.set([BeaconFault::None; 2]);
        self.world.settle();
        // Post as calldata, since the pool still has the replaced blob transaction with the same
        // nonce.
        let blocks = self.world.extend(self.world.l1.height() - 1);
        let call = self.world.post_span(&blocks);
        self.world.l1.mine(&[call]);
        self.world.settle();
    }

    /// Waits until both beacon nodes have received requests for blobs since their fault was set.
    fn wait_for_requests(&self) {
        wait("requests for blobs", PATIENCE, || {
            let asked = self.beacons.each_ref().map(StandInBeacon::requests);
            asked.iter().all(|requests| *requests > 0).then_some(())
        });
    }

    /// The safe head keeps rising while one beacon node fails, since one right response is enough.
    fn fail_at_one(&mut self, fault: BeaconFault) {
        self.set([fault, BeaconFault::None]);
        self.mine_in_blobs();
        self.world.settle();
        self.set([BeaconFault::None, fault]);
        self.mine_in_blobs();
        self.world.settle();
    }
}

#[test]
fn blobs_of_our_l1_are_derived_through_beacon_nodes_that_fail() {
    let mut world = BlobWorld::new();
    world.world.l1.mine_to(2);
    for fault in [
        BeaconFault::NotFound,
        BeaconFault::Broken,
        BeaconFault::Wrong,
        BeaconFault::Missing,
        BeaconFault::Html,
        BeaconFault::Silence,
    ] {
        world.fail_at_both(fault);
    }
    for fault in [
        BeaconFault::NotFound,
        BeaconFault::Wrong,
        BeaconFault::Reordered,
        BeaconFault::OnlySidecars,
    ] {
        world.fail_at_one(fault);
    }
    // Remove the replaced transaction from the pool.
    world.world.l1.maintain_pool();
    world.replace_a_block_without_blobs();
    // This step is the last one, since mined transactions are not removed from this L1's pool.
    world.mine_in_blobs_and_calldata();
    world.world.settle();
    let log = world.world.verifier.log();
    let causes = [
        "HTTP status 404",
        "HTTP status 500",
        "untrue",
        "a web page",
        "no response within",
    ];
    for cause in causes {
        assert!(log.contains(cause), "the log names {cause:?}");
    }
}
