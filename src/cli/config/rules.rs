//! Options for the chain and its fork times: `--network`, `--op-network`, `--rollup.config`,
//! `--override.*`.

use super::{CliError, Values, expand_home};
use crate::networks::RollupSource;
use starling_proto::{fork::Fork, network::overrides::ForkOverrides};

/// Network named by `--network` or `--op-network`; `None` if neither is given. If both are given,
/// they must agree.
pub(super) fn network(
    values: &Values,
    names: &[&'static str],
) -> Result<Option<RollupSource>, CliError> {
    let mut found: Option<(RollupSource, &'static str)> = None;
    for name in names {
        let Some(given) = values.text(name)? else {
            continue;
        };
        let invalid = |reason| CliError::Invalid { name, reason };
        let network = RollupSource::named(&given).map_err(|error| invalid(error.to_string()))?;
        match &found {
            Some((other, by)) if *other != network => {
                return Err(invalid(format!("it names {network}, and --{by} {other}")));
            }
            _ => found = Some((network, name)),
        }
    }
    Ok(found.map(|(network, _)| network))
}

/// Source of the rollup config: `network`, or otherwise the file of `--rollup.config`. If both are
/// given, a notice says that the file is not read (as in op-node).
pub(super) fn rollup_source(
    values: &Values,
    network: Option<RollupSource>,
    notices: &mut Vec<String>,
) -> Result<Option<RollupSource>, CliError> {
    let file = values
        .text("rollup.config")?
        .map(|path| RollupSource::File(expand_home(&path)));
    match (network, file) {
        (Some(network), Some(file)) => {
            notices.push(format!(
                "--rollup.config is not read: the chain is {network}, and not that of {file}"
            ));
            Ok(Some(network))
        }
        (network, file) => Ok(network.or(file)),
    }
}

/// Names of one program's `--override.*` options.
struct OverrideNames {
    forks: &'static [(Fork, &'static str)],
    lagoon: &'static str,
}

const OP_NODE: OverrideNames = OverrideNames {
    forks: &[
        (Fork::Canyon, "override.canyon"),
        (Fork::Delta, "override.delta"),
        (Fork::Ecotone, "override.ecotone"),
        (Fork::Fjord, "override.fjord"),
        (Fork::Granite, "override.granite"),
        (Fork::Holocene, "override.holocene"),
        (Fork::Isthmus, "override.isthmus"),
        (Fork::Jovian, "override.jovian"),
        (Fork::Karst, "override.karst"),
    ],
    lagoon: "override.interop",
};

/// Options of the execution client in `starling node`, where the names without prefix are
/// op-node's.
const OF_THE_CORE: OverrideNames = OverrideNames {
    forks: &[
        (Fork::Canyon, "execution.override.canyon"),
        (Fork::Ecotone, "execution.override.ecotone"),
        (Fork::Fjord, "execution.override.fjord"),
        (Fork::Granite, "execution.override.granite"),
        (Fork::Holocene, "execution.override.holocene"),
        (Fork::Isthmus, "execution.override.isthmus"),
        (Fork::Jovian, "execution.override.jovian"),
        (Fork::Karst, "execution.override.karst"),
    ],
    lagoon: "execution.override.interop",
};

impl OverrideNames {
    fn read(&self, values: &Values) -> Result<ForkOverrides, CliError> {
        let mut overrides = ForkOverrides {
            lagoon: values.optional_uint(self.lagoon)?,
            ..Default::default()
        };
        for (fork, name) in self.forks {
            if let Some(time) = values.optional_uint(name)? {
                overrides.forks.insert(*fork, time);
            }
        }
        Ok(overrides)
    }
}

/// Reads the fork overrides of `starling node`. Rollup node and core share one set of rules in this
/// process. A time given for either applies to both, and two different times are an error.
pub(super) fn node_overrides(values: &Values) -> Result<ForkOverrides, CliError> {
    let mut overrides = OP_NODE.read(values)?;
    overrides.pectra_blob_schedule = values.optional_uint("override.pectrablobschedule")?;
    let keep = "override.keep-karst-upgrade-gas";
    overrides.keep_karst_upgrade_gas = match values.source(keep) {
        Some(_) => Some(values.bool(keep)?),
        None => None,
    };
    let core = OF_THE_CORE.read(values)?;
    let differs = |name| CliError::Invalid {
        name,
        reason: "the option without `execution.` gives this fork another time; give one of them"
            .into(),
    };
    for (fork, name) in OF_THE_CORE.forks {
        let Some(time) = core.forks.get(fork) else {
            continue;
        };
        if overrides
            .forks
            .insert(*fork, *time)
            .is_some_and(|other| other != *time)
        {
            return Err(differs(name));
        }
    }
    match (overrides.lagoon, core.lagoon) {
        (Some(one), Some(other)) if one != other => return Err(differs(OF_THE_CORE.lagoon)),
        (one, other) => overrides.lagoon = one.or(other),
    }
    Ok(overrides)
}

/// Reads the fork overrides of `starling execution`.
pub(super) fn execution_overrides(values: &Values) -> Result<ForkOverrides, CliError> {
    OP_NODE.read(values)
}
