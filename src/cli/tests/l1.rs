//! Options of L1 and its Beacon API.

use super::*;
use crate::{rollup::beacon::BeaconConfig, secret::Secret};

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
    assert_eq!(
        addresses(&beacon),
        [
            ("http://b", Some("X-Key:hush")),
            ("http://c", None),
            ("http://d", None)
        ]
    );
    assert!(beacon.ignore_health && !beacon.fetch_all_sidecars);
    let alone = node("--l1.beacon-fallbacks=http://c", &[])?.0.l1.beacon;
    assert_eq!(alone.expect("a beacon endpoint").addresses.len(), 1);
    assert!(node("--l1=http://a,ftp://b", &[]).is_err());
    Ok(())
}

/// URL and header of each endpoint.
fn addresses(beacon: &BeaconConfig) -> Vec<(&str, Option<&str>)> {
    let addresses = beacon.addresses.iter();
    addresses
        .map(|address| {
            let header = address.header.as_ref();
            (address.url.expose(), header.map(Secret::expose))
        })
        .collect()
}

/// Headers of fallbacks. Each is sent to the host that it names, and to no other.
#[test]
fn a_header_of_a_fallback_names_its_host() -> Result<(), CliError> {
    const LINE: &str = "--l1.beacon=http://a --l1.beacon-header=K:main \
        --l1.beacon-fallbacks=https://u:pw@b:5052/key,http://c:1,http://c:2/x,http://[::1]:3";
    let headers = |given: &[&str]| {
        let variable = given.join(",");
        let environment = [("STARLING_L1_BEACON_FALLBACK_HEADER", &*variable)];
        let beacon = node(LINE, &environment)?.0.l1.beacon;
        let beacon = beacon.expect("a beacon endpoint");
        let headers = addresses(&beacon)
            .into_iter()
            .map(|(_, header)| header.map(str::to_owned));
        Ok::<_, CliError>(headers.map(Option::unwrap_or_default).collect::<Vec<_>>())
    };
    assert_eq!(headers(&[])?, ["K:main", "", "", "", ""]);
    let each = headers(&["B:5052=K: b", "c:2=K: c2", "[::1]=K: v6"])?;
    assert_eq!(each, ["K:main", "K: b", "", "K: c2", "K: v6"]);
    assert_eq!(headers(&["c=K: c"])?, ["K:main", "", "K: c", "K: c", ""]);
    for wrong in [
        "K: hush",
        "a=K: hush",
        "b:1=K: hush",
        "b=K: x,hush",
        "b=K: x,b=hush",
        "pw@b=hush",
    ] {
        let error = headers(&[wrong]).expect_err(wrong).to_string();
        assert!(
            error.starts_with("--l1.beacon-fallback-header: "),
            "{error}"
        );
        assert!(!error.contains("hush") && !error.contains("pw"), "{error}");
    }
    let alone = "--l1.beacon-fallbacks=http://c --l1.beacon-header=K:hush";
    let error = node(alone, &[])
        .expect_err("a header of no endpoint")
        .to_string();
    assert!(
        error.contains("--l1.beacon-fallback-header") && !error.contains("hush"),
        "{error}"
    );
    Ok(())
}

/// Paths, user names, passwords and queries of URLs may be credentials.
#[test]
fn an_error_shows_no_more_of_a_url_than_its_endpoint() {
    for line in [
        "--l1.beacon=htp://user:hush@host:1/hush?key=hush",
        "--l1.beacon=user:hush@host:1/hush",
        "--l1=ftp://user:hush@host:1/hush",
        "--l1=http://good,user:hush@host:1/hush.ip",
        "--flashblocks-url=http://user:hush@host:1/hush",
        "--rollup.sequencerhttp=htp://user:hush@host:1/hush",
        "--rollup.historicalrpc=user:hush@host:1/hush?hush",
    ] {
        let error = node(line, &[]).expect_err(line).to_string();
        assert!(
            !error.contains("hush") && error.contains("host:1"),
            "{error}"
        );
    }
    let misspelt = node("--l1.beacn=http://user:hush@host/hush", &[]);
    let error = misspelt.expect_err("an unknown option").to_string();
    assert!(
        error.contains("--l1.beacn") && !error.contains("hush"),
        "{error}"
    );
}
