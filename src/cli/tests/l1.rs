//! Options of L1 and its Beacon API.

use super::*;
use crate::secret::Secret;

#[test]
fn l1_and_its_beacon_api_are_configured() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert!(config.l1.beacon.is_none());
    assert_eq!(config.l1.epoch_interval, Duration::from_secs(384));
    assert_eq!(config.l1.cache_size, 900);
    let (config, _) = node(
        "--l1=http://a,/run/geth.ipc --l1.rpckind=quicknode --l1.rpc-rate-limit=7.5 --l1.epoch-poll-interval=0 --l1.beacon=http://b \
         --l1.beacon-fallbacks=http://c,http://d --l1.beacon-header=X-Key:hush --l1.beacon.ignore",
        &[],
    )?;
    let client = &config.l1.client;
    assert_eq!(
        (client.rate_limit, client.kind),
        (7.5, crate::rollup::l1::RpcKind::QuickNode)
    );
    assert_eq!(config.l1.epoch_interval, Duration::ZERO);
    assert!(!format!("{:?}", config.l1.beacon).contains("hush"));
    let beacon = config.l1.beacon.expect("a beacon endpoint");
    let urls: Vec<_> = beacon.urls.iter().map(Secret::expose).collect();
    assert_eq!(urls, ["http://b", "http://c", "http://d"]);
    assert!(beacon.ignore_health && !beacon.fetch_all_sidecars);
    let alone = node("--l1.beacon-fallbacks=http://c", &[])?.0.l1.beacon;
    assert_eq!(alone.expect("a beacon endpoint").urls.len(), 1);
    assert!(node("--l1=http://a,ftp://b", &[]).is_err());
    Ok(())
}
