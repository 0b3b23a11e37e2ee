//! Options of the Beacon API (`--l1.beacon*`): its endpoints, and a header for each.

use super::{CliError, Secret, Values};
use crate::rollup::{
    beacon::{BeaconAddress, BeaconConfig},
    http::endpoint_of,
};

const MAIN_HEADER: &str = "l1.beacon-header";
const FALLBACK_HEADER: &str = "l1.beacon-fallback-header";

/// Reads the options; `None` without endpoints. A fallback without a main endpoint becomes the main
/// endpoint.
pub(super) fn read(values: &Values) -> Result<Option<BeaconConfig>, CliError> {
    let main = values.text("l1.beacon")?;
    let header = values.text(MAIN_HEADER)?.map(Secret::new);
    let fallbacks = values.list("l1.beacon-fallbacks")?.into_iter();
    let mut fallbacks: Vec<_> = fallbacks
        .map(|url| BeaconAddress::new(Secret::new(url)))
        .collect();
    for given in values.list(FALLBACK_HEADER)? {
        add_header(&mut fallbacks, &given)?;
    }
    let main = match (main, header) {
        (None, Some(_)) if !fallbacks.is_empty() => {
            return Err(invalid(
                MAIN_HEADER,
                "it is the header of --l1.beacon, which is not given; headers of fallbacks are given with --l1.beacon-fallback-header",
            ));
        }
        (main, header) => main.map(|url| BeaconAddress {
            url: Secret::new(url),
            header,
        }),
    };
    let addresses: Vec<_> = main.into_iter().chain(fallbacks).collect();
    if addresses.is_empty() {
        return Ok(None);
    }
    Ok(Some(BeaconConfig {
        addresses,
        fetch_all_sidecars: values.bool("l1.beacon.fetch-all-sidecars")?,
        seconds_per_slot: values.uint("l1.beacon.slot-duration-override")?,
        ignore_health: values.bool("l1.beacon.ignore")?,
        ..BeaconConfig::new(vec![])
    }))
}

/// Adds a header, given as `HOST=X-Key: Value`, to the fallbacks at this host. Errors do not quote
/// it.
fn add_header(fallbacks: &mut [BeaconAddress], given: &str) -> Result<(), CliError> {
    let Some((host, header)) = given.split_once('=') else {
        return Err(invalid(
            FALLBACK_HEADER,
            "a header is given as 'HOST=X-Key: Value', and its value has no comma",
        ));
    };
    let mut is_used = false;
    let at_host = |fallback: &&mut BeaconAddress| is_at(fallback.url.expose(), host.trim());
    for fallback in fallbacks.iter_mut().filter(at_host) {
        if fallback.header.is_some() {
            return Err(invalid(FALLBACK_HEADER, "a host has two headers"));
        }
        fallback.header = Some(Secret::new(header.trim()));
        is_used = true;
    }
    if is_used {
        return Ok(());
    }
    // The text before the `=` may be part of a value that was split at its comma.
    Err(invalid(
        FALLBACK_HEADER,
        "a header is for no host of --l1.beacon-fallbacks: it is given as 'HOST=X-Key: Value' or 'HOST:PORT=X-Key: Value', and its \
         value has no comma",
    ))
}

/// Whether a URL's host, or its host and port, is `host`.
fn is_at(url: &str, host: &str) -> bool {
    let endpoint = endpoint_of(url);
    let authority = endpoint
        .split_once("://")
        .map_or(&*endpoint, |(_, authority)| authority);
    let without_port = authority
        .trim_end_matches(|c: char| c.is_ascii_digit())
        .strip_suffix(':');
    authority.eq_ignore_ascii_case(host)
        || without_port.is_some_and(|name| name.eq_ignore_ascii_case(host))
}

fn invalid(name: &'static str, reason: &str) -> CliError {
    CliError::Invalid {
        name,
        reason: reason.into(),
    }
}
