//! Options of the sequencer, of its signer, and of the block signer on L1.

use super::*;
use crate::rollup::signer::{RemoteConfig, TlsFiles};
use value::Secret;

#[test]
fn a_sequencer_needs_one_good_key_and_never_shows_it() -> Result<(), CliError> {
    assert!(matches!(
        node("--sequencer.enabled", &[]),
        Err(CliError::Missing { .. })
    ));
    let error = node("--sequencer.enabled --p2p.sequencer.key=12ab", &[])
        .expect_err("short")
        .to_string();
    assert!(!error.contains("12ab"), "{error}");
    assert!(
        node(
            "--sequencer.enabled --p2p.sequencer.key.path=/nonexistent/key",
            &[]
        )
        .is_err()
    );

    let (config, notices) = node(
        &format!("--sequencer.enabled --p2p.sequencer.key={KEY}"),
        &[],
    )?;
    assert!(
        notices
            .iter()
            .any(|notice| notice.contains("--p2p.sequencer.key.path")
                && notice.contains("OP_NODE_P2P_SEQUENCER_KEY"))
    );
    assert!(!format!("{config:?}{notices:?}").contains(KEY));

    let (config, notices) = node("--sequencer.enabled", &[("OP_NODE_P2P_SEQUENCER_KEY", KEY)])?;
    assert_eq!(key(config).as_ref().map(Secret::expose), Some(KEY));
    assert!(notices.is_empty());
    Ok(())
}

fn key(config: NodeConfig) -> Option<Secret> {
    match config.sequencer?.signer {
        SignerConfig::Key(key) => Some(key),
        SignerConfig::Remote(_) => None,
    }
}

const SIGNER: &str = "--signer.endpoint=https://me:hush@signer:1/path --signer.address=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

/// Remote signer of a sequencer with these options. Checks that no secret is shown.
fn remote(line: &str, environment: &[(&str, &str)]) -> Result<RemoteConfig, CliError> {
    let (config, notices) = node(&format!("--sequencer.enabled {line}"), environment)?;
    let shown = format!("{config:?}{notices:?}");
    assert!(!shown.contains("hush"), "{shown}");
    match config.sequencer.map(|sequencer| sequencer.signer) {
        Some(SignerConfig::Remote(remote)) => Ok(remote),
        other => panic!("{other:?}"),
    }
}

fn tls_files(ca: &str, cert: &str, key: &str) -> Option<TlsFiles> {
    Some(TlsFiles {
        ca: ca.into(),
        cert: cert.into(),
        key: key.into(),
    })
}

fn headers(signer: &RemoteConfig) -> Vec<(&str, &str)> {
    let headers = signer.headers.iter();
    headers
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect()
}

#[test]
fn a_remote_signer_signs_in_the_place_of_a_key() -> Result<(), CliError> {
    let signer = remote(SIGNER, &[])?;
    assert_eq!(signer.endpoint.expose(), "https://me:hush@signer:1/path");
    assert_eq!(
        signer.address.to_string(),
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    );
    let files = tls_files("tls/ca.crt", "tls/tls.crt", "tls/tls.key");
    assert_eq!(signer.tls, files);
    assert!(signer.headers.is_empty());
    Ok(())
}

#[test]
fn a_remote_signer_has_certificates_and_headers() -> Result<(), CliError> {
    let files = "--signer.tls.ca=a --signer.tls.cert=b --signer.tls.key=c";
    let two = "--signer.header A=hush=1 --signer.header B=2";
    let signer = remote(&format!("{SIGNER} {files} {two}"), &[])?;
    assert_eq!(signer.tls, tls_files("a", "b", "c"));
    assert_eq!(headers(&signer), [("A", "hush=1"), ("B", "2")]);

    let plain = format!("{SIGNER} --signer.tls.enabled=false");
    let two = "--signer.header A=x,y --signer.header B=2";
    assert_eq!(
        headers(&remote(&format!("{plain} {two}"), &[])?),
        [("A", "x,y"), ("B", "2")],
        "a value may hold commas"
    );
    let signer = remote(&plain, &[("OP_NODE_SIGNER_HEADER", "C=3,D=4")])?;
    assert_eq!((signer.tls, signer.headers.len()), (None, 2));
    Ok(())
}

#[test]
fn incomplete_options_of_a_remote_signer_are_refused() {
    const ADDRESS: &str = "--signer.address=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    for (line, reason) in [
        (
            format!("{SIGNER} --p2p.sequencer.key={KEY}"),
            "the sequencer's key is given too",
        ),
        (
            "--signer.endpoint=https://signer".into(),
            "--signer.address",
        ),
        (ADDRESS.into(), "--signer.endpoint"),
        (
            "--signer.endpoint=https://signer --signer.address=0x12".into(),
            "20 bytes",
        ),
        (
            format!("--signer.endpoint=ws://signer {ADDRESS}"),
            "http://",
        ),
        (format!("{SIGNER} --signer.header=hush"), "key=value"),
    ] {
        let line = format!("--sequencer.enabled {line}");
        let error = node(&line, &[]).expect_err(&line).to_string();
        assert!(error.contains(reason) && !error.contains("hush"), "{error}");
    }
}

#[test]
fn a_replica_signs_nothing_with_a_remote_signer() -> Result<(), CliError> {
    let (config, notices) = node(SIGNER, &[])?;
    assert!(
        config.sequencer.is_none()
            && notices
                .iter()
                .any(|notice| notice.contains("--sequencer.enabled")),
        "{notices:?}"
    );
    Ok(())
}

#[test]
fn how_often_the_signer_is_read_and_how_far_behind_l1() -> Result<(), CliError> {
    let (config, _) = node("", &[])?;
    assert_eq!(
        (config.l1.reload_interval, config.l1.confs),
        (Duration::from_secs(600), 0)
    );
    let (config, _) = node(
        "--l1.runtime-config-reload-interval=0 --verifier.l1-confs=7",
        &[],
    )?;
    assert_eq!(
        (config.l1.reload_interval, config.l1.confs),
        (Duration::ZERO, 7)
    );
    Ok(())
}

#[test]
fn a_key_file_on_the_command_line_beats_a_key_in_the_environment() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("key");
    std::fs::write(&path, format!("0x{KEY}\n"))?;
    let environment = [("OP_NODE_P2P_SEQUENCER_KEY", "00")];
    let (config, notices) = node(
        &format!(
            "--sequencer.enabled --p2p.sequencer.key.path={}",
            path.display()
        ),
        &environment,
    )?;
    assert_eq!(
        key(config).and_then(|key| key.bytes()),
        hex::decode(KEY)?.try_into().ok()
    );
    assert_eq!(notices, Vec::<String>::new());
    let both = format!(
        "--sequencer.enabled --p2p.sequencer.key={KEY} --p2p.sequencer.key.path={}",
        path.display()
    );
    assert!(matches!(node(&both, &[]), Err(CliError::Invalid { .. })));
    Ok(())
}
