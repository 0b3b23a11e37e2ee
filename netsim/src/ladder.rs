//! Common networks by name, from the best to the worst. A scenario names a rung, and the comment of
//! each rung names the sources of its figures. Delays are one way: half of a measured round trip.
//!
//! Where the directions differ, the near end is the home or the handset, and `up` is its upload.

use crate::{DirectionConditions, LinkBandwidth, LinkConditions};
use std::time::Duration;

/// One network of the ladder, with its name and its conditions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rung {
    pub name: &'static str,
    pub conditions: LinkConditions,
}

impl Rung {
    pub fn named(name: &str) -> Option<&'static Self> {
        LADDER.iter().find(|rung| rung.name == name)
    }
}

/// One gigabit per second, in bytes per second.
const GIGABIT: u64 = 125_000_000;
/// One megabit per second, in bytes per second.
const MEGABIT: u64 = 125_000;
const KIB: usize = 1 << 10;

const fn direction(delay: Duration, rate: u64, queue: usize) -> DirectionConditions {
    DirectionConditions {
        delay,
        bandwidth: Some(LinkBandwidth::new(rate, queue)),
        ..DirectionConditions::CLEAR
    }
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Ethernet of 1 Gbit/s (IEEE 802.3ab). Round trip in a data centre 0.5 ms: Jeff Dean, "Numbers
/// everyone should know" (2009). Queue: a switch whose ports share 4 MiB of packet memory.
const LAN: DirectionConditions = direction(us(250), GIGABIT, 4_096 * KIB);

/// Two availability zones of one region. Round trip 1.3 ms, deviation 0.06 ms: pings between EC2
/// zones, gist josephmisiti/10312241; James Hamilton's re:Invent talk of 2014 has "usually below 1,
/// always below 2 ms". 5 Gbit/s: EC2's limit of one flow outside of a placement group (user guide,
/// "Amazon EC2 instance network bandwidth"). Queue: 25 ms at that rate.
const SAME_REGION: DirectionConditions = DirectionConditions {
    jitter: us(60),
    ..direction(us(650), 5 * GIGABIT, 16_384 * KIB)
};

/// Two regions of one continent, such as US East and US West. Round trip 65 ms: between the 40 to
/// 70 ms of vetoralabs.com, "Latency Numbers Every Engineer Should Know", and the 75 ms of
/// graphql.guide, "Latency", for New York to San Francisco. 1 Gbit/s: EC2's limit for instances
/// below 32 vCPUs, divided among five nodes per machine. Queue: 50 ms at that rate.
const CROSS_REGION: DirectionConditions = DirectionConditions {
    jitter: us(500),
    ..direction(us(32_500), GIGABIT, 6_144 * KIB)
};

/// New York to London or Paris. Round trip 75 ms: graphql.guide, "Latency"; Verizon's service level
/// for New York to London is 90 ms. The rate is that between regions.
const TRANSATLANTIC: DirectionConditions = DirectionConditions {
    jitter: us(1_000),
    ..direction(us(37_500), GIGABIT, 6_144 * KIB)
};

/// ADSL2+. 11.32 Mbit/s down and 1 Mbit/s up at a round trip of 37 ms: Verizon, "Network
/// Performance", High Speed Internet of 7.1 to 15 Mbit/s with the latency of the tier below, from the
/// FCC's Measuring Broadband America of 2016. Queue: 128 KiB up and 256 KiB down, frequent sizes in
/// Kreibich et al., "Netalyzr: Illuminating the Edge Network" (2010): a second of upload.
const HOME_DSL: LinkConditions = LinkConditions {
    up: DirectionConditions {
        jitter: us(2_000),
        ..direction(us(18_500), MEGABIT, 128 * KIB)
    },
    down: DirectionConditions {
        jitter: us(2_000),
        ..direction(us(18_500), MEGABIT * 1_132 / 100, 256 * KIB)
    },
    ..LinkConditions::CLEAR
};

/// UMTS. 1.6 Mbit/s down and 768 kbit/s up at a round trip of 300 ms: the profile "3G" of
/// WebPageTest's connectivity.ini. Jitter 50 ms and loss 0.5 %: the mode "3G" of Loadero, "Network
/// Conditions". Queue: one second at each rate.
const THIRD_GENERATION: LinkConditions = LinkConditions {
    up: DirectionConditions {
        jitter: us(50_000),
        loss: 0.005,
        ..direction(us(150_000), MEGABIT * 768 / 1_000, 96 * KIB)
    },
    down: DirectionConditions {
        jitter: us(50_000),
        loss: 0.005,
        ..direction(us(150_000), MEGABIT * 16 / 10, 192 * KIB)
    },
    ..LinkConditions::CLEAR
};

/// Geostationary satellite. Round trip 600 ms: computer networks group of FAU Erlangen
/// (cs7.tf.fau.de, 2024); 477 ms of it are the propagation over four times 35,786 km. 25 Mbit/s
/// down and 3 Mbit/s up: the FCC's benchmark of broadband from 2015 to 2024. Queue: 300 ms at each
/// rate.
const SATELLITE: LinkConditions = LinkConditions {
    up: DirectionConditions {
        jitter: us(10_000),
        ..direction(us(300_000), 3 * MEGABIT, 112 * KIB)
    },
    down: DirectionConditions {
        jitter: us(10_000),
        ..direction(us(300_000), 25 * MEGABIT, 896 * KIB)
    },
    ..LinkConditions::CLEAR
};

/// Two regions with a path that loses 5 % each way: the step "5% packetloss" of Loadero, "Network
/// Conditions". A share of 0.05 % of the datagrams is overtaken, and as many arrive twice, so that
/// a long run has cases of both.
const LOSSY_5: DirectionConditions = DirectionConditions {
    loss: 0.05,
    reorder: 0.000_5,
    duplicate: 0.000_5,
    ..CROSS_REGION
};

/// All rungs, from the best to the worst.
pub const LADDER: [Rung; 9] = [
    Rung {
        name: "loopback",
        conditions: LinkConditions::CLEAR,
    },
    Rung {
        name: "lan",
        conditions: LinkConditions::symmetric(LAN),
    },
    Rung {
        name: "same-region",
        conditions: LinkConditions::symmetric(SAME_REGION),
    },
    Rung {
        name: "cross-region",
        conditions: LinkConditions::symmetric(CROSS_REGION),
    },
    Rung {
        name: "transatlantic",
        conditions: LinkConditions::symmetric(TRANSATLANTIC),
    },
    Rung {
        name: "home-dsl",
        conditions: HOME_DSL,
    },
    Rung {
        name: "3g",
        conditions: THIRD_GENERATION,
    },
    Rung {
        name: "satellite",
        conditions: SATELLITE,
    },
    Rung {
        name: "lossy-5",
        conditions: LinkConditions::symmetric(LOSSY_5),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rung_is_sound_and_found_by_its_name() {
        let mut names = BTreeSet::new();
        for rung in &LADDER {
            assert_eq!(rung.conditions.check(), Ok(()), "{}", rung.name);
            assert_eq!(Rung::named(rung.name), Some(rung));
            assert!(names.insert(rung.name), "{} twice", rung.name);
        }
        assert_eq!(Rung::named("dial-up"), None);
    }

    #[test]
    fn the_upload_of_a_home_is_the_slower_direction() {
        for name in ["home-dsl", "3g", "satellite"] {
            let conditions = Rung::named(name).unwrap().conditions;
            let rate = |it: DirectionConditions| it.bandwidth.unwrap().rate;
            assert!(rate(conditions.up) < rate(conditions.down), "{name}");
            assert_eq!(conditions.reversed().down, conditions.up);
        }
    }

    #[test]
    fn a_queue_holds_the_rate_for_milliseconds_at_most_for_seconds() {
        for rung in &LADDER {
            for direction in [rung.conditions.up, rung.conditions.down] {
                if let Some(bandwidth) = direction.bandwidth {
                    let seconds = bandwidth.queue as f64 / bandwidth.rate.get() as f64;
                    assert!((0.02..1.5).contains(&seconds), "{}: {seconds}", rung.name);
                }
            }
        }
    }
}
