//! A test op-signer: TLS in both directions with certificates of its own authority, and op-signer's
//! checks of a request.

use super::*;
use alloy_primitives::{Keccak256, U256, address};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedKey as Issuer, DnType, IsCa, KeyPair};
use rustls::{ServerConfig, server::WebPkiClientVerifier};
use starling_proto::sign::SecretKey;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpListener,
};

const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";
const ADDRESS: Address = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");
const CHAIN: u64 = 901;

/// The response to `eth_signTransaction`: bytes in hex, or an error.
pub(crate) type TransactionSigning =
    Arc<dyn Fn(&Value) -> Result<String, (i32, String)> + Send + Sync>;

/// The scripted behaviour of the test signer.
#[derive(Clone, Default)]
pub(crate) struct Behaviour {
    /// Signs transactions; with `None`, `eth_signTransaction` is an unknown method.
    pub transaction: Option<TransactionSigning>,
    /// Only the first version of the signing call is supported.
    pub old: bool,
    /// Every call gets this HTTP status as its response.
    pub status: Option<u16>,
    /// No call gets a response.
    pub silent: bool,
    /// Every connection is closed at its first call.
    pub hangs_up: bool,
    /// The signer's certificate comes from an authority that the client does not trust.
    pub untrusted: bool,
    /// Every call gets this body as its response.
    pub body: Option<String>,
    /// The signer has another key than the expected one.
    pub wrong_key: bool,
    /// Every call waits for a permit of this semaphore and consumes it.
    pub hold: Option<Arc<tokio::sync::Semaphore>>,
}

/// A running test signer, and the files for its client.
pub(crate) struct StandIn {
    pub config: RemoteConfig,
    pub behaviour: Arc<Mutex<Behaviour>>,
    /// Methods of the requests so far.
    pub calls: Arc<Mutex<Vec<String>>>,
    files: tempfile::TempDir,
}

/// A certificate issued by `issuer`, and the certificate's key, as PEM.
fn certificate(issuer: &Issuer, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
    (
        params
            .signed_by(&key, &issuer.cert, &issuer.key_pair)
            .unwrap()
            .pem(),
        key.serialize_pem(),
    )
}

fn authority(name: &str) -> Issuer {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key_pair = KeyPair::generate().unwrap();
    Issuer {
        cert: params.self_signed(&key_pair).unwrap(),
        key_pair,
    }
}

/// Writes the client's certificates, and those of an authority that the signer does not trust.
fn write_files(ours: &Issuer, files: &tempfile::TempDir) -> TlsFiles {
    let write = |name: &str, text: String| {
        std::fs::write(files.path().join(name), text).unwrap();
        files.path().join(name)
    };
    let (cert, key) = certificate(&authority("another"), "sequencer");
    write("other.crt", cert);
    write("other.key", key);
    let (cert, key) = certificate(ours, "sequencer");
    TlsFiles {
        ca: write("ca.crt", ours.cert.pem()),
        cert: write("tls.crt", cert),
        key: write("tls.key", key),
    }
}

/// TLS on the signer's side. It requires a client certificate of the authority `ours`, and its own
/// certificate is issued by `issuer`.
fn acceptor(ours: &Issuer, issuer: &Issuer) -> tokio_rustls::TlsAcceptor {
    let mut roots = RootCertStore::empty();
    let authority = ours.cert.pem();
    roots
        .add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .unwrap();
    let (cert, key) = certificate(issuer, "localhost");
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(server))
}

impl StandIn {
    pub(crate) async fn start() -> Self {
        let (ours, files) = (authority("signer"), tempfile::tempdir().unwrap());
        let tls = write_files(&ours, &files);
        let trusted = acceptor(&ours, &ours);
        let untrusted = acceptor(&ours, &authority("a stranger"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!(
            "https://user:hush@localhost:{}/path",
            listener.local_addr().unwrap().port()
        );
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let calls = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn({
            let (behaviour, calls) = (behaviour.clone(), calls.clone());
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let acceptor = if behaviour.lock().untrusted {
                        untrusted.clone()
                    } else {
                        trusted.clone()
                    };
                    let (behaviour, calls) = (behaviour.clone(), calls.clone());
                    tokio::spawn(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            let _ = serve(BufStream::new(stream), &behaviour, &calls).await;
                        }
                    });
                }
            }
        });
        let headers = vec![("X-Tenant".to_owned(), Secret::new("hush"))];
        let config = RemoteConfig {
            endpoint: Secret::new(endpoint),
            address: ADDRESS,
            headers,
            tls: Some(tls),
            timeout: Duration::from_secs(60),
        };
        Self {
            config,
            behaviour,
            calls,
            files,
        }
    }
}

/// Serves one connection, which is kept alive between calls.
async fn serve(
    mut stream: BufStream<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>,
    behaviour: &Mutex<Behaviour>,
    calls: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    while let Some(RequestHead { length, tenant }) = read_head(&mut stream).await? {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let request: Value = serde_json::from_slice(&body).unwrap();
        let method = request["method"].as_str().unwrap().to_owned();
        calls.lock().push(method.clone());
        let mood = behaviour.lock().clone();
        if mood.hangs_up || mood.untrusted {
            return Ok(());
        }
        if mood.silent {
            std::future::pending::<()>().await;
        }
        if let Some(hold) = &mood.hold {
            hold.acquire().await.unwrap().forget();
        }
        let status = if tenant {
            mood.status.unwrap_or(200)
        } else {
            400
        };
        let body = match answer(&method, &request["params"][0], &mood) {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }),
            Err((code, message)) => {
                json!({ "jsonrpc": "2.0", "id": request["id"], "error": { "code": code, "message": message } })
            }
        };
        let body = match mood.body {
            _ if status != 200 => "no".to_owned(),
            Some(body) => body,
            None => body.to_string(),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.flush().await?;
    }
    Ok(())
}

struct RequestHead {
    length: usize,
    /// Whether the request has the header that the signer requires.
    tenant: bool,
}

/// Reads the head of a request; `None` at the end of the connection.
async fn read_head(
    stream: &mut (impl tokio::io::AsyncBufRead + Unpin),
) -> std::io::Result<Option<RequestHead>> {
    let mut head = RequestHead {
        length: 0,
        tenant: false,
    };
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            head.length = value.trim().parse().unwrap();
        }
        head.tenant |= line == "x-tenant: hush";
        if line.is_empty() {
            return Ok(Some(head));
        }
    }
}

/// Domain, chain id, payload hash and sender of a request, parsed according to the version of the
/// call.
fn read(method: &str, args: &Value) -> Option<(B256, U256, B256, Address)> {
    let sender = args["senderAddress"].as_str()?.parse().ok()?;
    match method {
        V2 => {
            let chain = args["chainId"]
                .as_str()
                .and_then(|text| U256::from_str_radix(text, 10).ok())?;
            Some((
                args["domain"].as_str()?.parse().ok()?,
                chain,
                args["payloadHash"].as_str()?.parse().ok()?,
                sender,
            ))
        }
        _ => {
            let domain: [u8; 32] = serde_json::from_value(args["domain"].clone()).ok()?;
            let hash = BASE64_STANDARD.decode(args["payloadHash"].as_str()?).ok()?;
            Some((
                domain.into(),
                U256::from(args["chainId"].as_u64()?),
                B256::try_from(&hash[..]).ok()?,
                sender,
            ))
        }
    }
}

fn signing_hash(domain: B256, chain: U256, payload_hash: B256) -> B256 {
    let mut hasher = Keccak256::new();
    hasher.update(domain);
    hasher.update(chain.to_be_bytes::<32>());
    hasher.update(payload_hash);
    hasher.finalize()
}

fn answer(method: &str, args: &Value, mood: &Behaviour) -> Result<String, (i32, String)> {
    if let (SIGN_TRANSACTION, Some(sign)) = (method, &mood.transaction) {
        return sign(args);
    }
    match method {
        "health_status" => return Ok("v1.2.3".into()),
        V1 => {}
        V2 if !mood.old => {}
        unknown => {
            return Err((
                -32601,
                format!("the method {unknown} does not exist/is not available"),
            ));
        }
    }
    let Some((domain, chain, hash, sender)) = read(method, args) else {
        return Err((-32012, format!("invalid payload {args}")));
    };
    if domain != B256::ZERO || chain != U256::from(CHAIN) {
        return Err((-32012, "invalid block payload: domain or chain".into()));
    }
    if sender != ADDRESS {
        return Err((-32013, "unauthorized block payload: sender".into()));
    }
    let key = if mood.wrong_key {
        "11".repeat(32)
    } else {
        KEY.to_owned()
    };
    let key: SecretKey = sign::secret_from_hex(&key).unwrap();
    Ok(hex::encode_prefixed(sign::sign_hash(
        &key,
        signing_hash(domain, chain, hash),
    )))
}

const HASH: B256 = B256::repeat_byte(0x5a);

#[tokio::test]
async fn blocks_are_signed_through_v2_and_where_it_is_unknown_through_v1() {
    let signer = StandIn::start().await;
    let remote = Remote::connect(&signer.config).await.unwrap();
    let expected = sign::sign_hash(
        &sign::secret_from_hex(KEY).unwrap(),
        sign::signing_hash(CHAIN, HASH),
    );
    assert_eq!(remote.sign(CHAIN, HASH).await.unwrap(), expected);
    assert_eq!(*signer.calls.lock(), ["health_status", V2]);

    signer.behaviour.lock().old = true;
    let remote = Remote::connect(&signer.config).await.unwrap();
    signer.calls.lock().clear();
    assert_eq!(remote.sign(CHAIN, HASH).await.unwrap(), expected);
    assert_eq!(remote.sign(CHAIN, HASH).await.unwrap(), expected);
    assert_eq!(
        *signer.calls.lock(),
        [V2, V1, V1],
        "what is unknown is asked for once"
    );
}

#[tokio::test]
async fn each_failure_has_one_sentence_and_no_signature() {
    let signer = StandIn::start().await;
    let hasty = Remote::connect(&RemoteConfig {
        timeout: Duration::from_secs(3),
        ..signer.config.clone()
    })
    .await
    .unwrap();
    let patient = Remote::connect(&signer.config).await.unwrap();
    let mood = |mood: Behaviour| *signer.behaviour.lock() = mood;
    let fails = async |remote: &Remote, chain, part: &str| {
        let error = remote.sign(chain, HASH).await.unwrap_err().to_string();
        assert!(
            error.starts_with("the signer at https://localhost:") && error.contains(part),
            "{error}"
        );
        assert!(
            !error.contains("hush") && !error.contains("/path"),
            "{error}"
        );
    };
    mood(Behaviour {
        status: Some(401),
        ..Default::default()
    });
    fails(&patient, CHAIN, "401 Unauthorized").await;
    mood(Behaviour {
        status: Some(403),
        ..Default::default()
    });
    fails(&patient, CHAIN, "403 Forbidden").await;
    mood(Behaviour {
        status: Some(503),
        ..Default::default()
    });
    fails(&patient, CHAIN, "HTTP status 503").await;
    mood(Behaviour {
        wrong_key: true,
        ..Default::default()
    });
    fails(&patient, CHAIN, "it signs as 0x").await;
    mood(Behaviour {
        silent: true,
        ..Default::default()
    });
    fails(&hasty, CHAIN, "no answer within 3s").await;
    mood(Behaviour::default());
    fails(&patient, 902, "error -32012: invalid block payload").await;
    patient.sign(CHAIN, HASH).await.unwrap();
}

#[tokio::test]
async fn certificates_are_checked_on_both_sides_and_named_when_they_are_wrong() {
    let signer = StandIn::start().await;
    let connect = async |change: &dyn Fn(&mut TlsFiles)| {
        let mut config = signer.config.clone();
        change(config.tls.as_mut().unwrap());
        Remote::connect(&config)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let file = |name: &str| signer.files.path().join(name);
    assert_eq!(connect(&|_| ()).await, Ok(()));
    // The signer does not trust the client's authority, or the client does not trust the signer's.
    let error = connect(&|tls| (tls.cert, tls.key) = (file("other.crt"), file("other.key")))
        .await
        .unwrap_err();
    assert!(error.contains("cannot be reached"), "{error}");
    let error = connect(&|tls| tls.ca = file("other.crt"))
        .await
        .unwrap_err();
    assert!(
        error.contains("cannot be reached") && error.contains("certificate"),
        "{error}"
    );
    assert_eq!(
        *signer.calls.lock(),
        ["health_status"],
        "no call went through"
    );
    // The files cannot be read.
    for (change, option) in [
        (
            &(|tls: &mut TlsFiles| tls.ca = file("none")) as &dyn Fn(&mut TlsFiles),
            "--signer.tls.ca",
        ),
        (&|tls| tls.cert = file("none"), "--signer.tls.cert"),
        (&|tls| tls.key = file("none"), "--signer.tls.key"),
        (&|tls| tls.key = file("other.key"), "--signer.tls.cert"),
        (&|tls| tls.ca = file("tls.key"), "--signer.tls.ca"),
    ] {
        let error = connect(change).await.unwrap_err();
        assert!(error.contains(option), "{option}: {error}");
    }
    let plain = RemoteConfig {
        endpoint: Secret::new(signer.config.endpoint.expose().replace("https", "http")),
        ..signer.config.clone()
    };
    assert!(
        Remote::connect(&plain)
            .await
            .err()
            .unwrap()
            .to_string()
            .contains("--signer.tls.enabled=false")
    );
}

#[tokio::test]
async fn a_renewed_certificate_is_used_by_the_next_connection() {
    let signer = StandIn::start().await;
    let tls = signer.config.tls.clone().unwrap();
    let provider = Arc::new(ring::default_provider());
    let last = Mutex::new(read_identity(&tls, &provider).unwrap());
    let identity = TlsIdentity {
        files: tls.clone(),
        provider,
        last,
    };
    let shown = || identity.resolve(&[], &[]).unwrap().cert[0].clone();
    let first = shown();
    std::fs::copy(signer.files.path().join("other.crt"), &tls.cert).unwrap();
    assert_eq!(shown(), first, "half of it is not used");
    std::fs::copy(signer.files.path().join("other.key"), &tls.key).unwrap();
    assert_ne!(shown(), first);
}

#[test]
fn the_arguments_are_those_of_the_vectors() {
    let Some(text) = starling_testkit::fixture_text("p2p-wire/signer-api.json") else {
        return;
    };
    let file: Value = serde_json::from_str(&text).unwrap();
    for vector in file["vectors"].as_array().unwrap() {
        let word = |name: &str| vector[name].as_str().unwrap().parse::<B256>().unwrap();
        let chain = vector["chain_id"].as_u64().unwrap();
        let (domain, hash) = (word("domain"), word("payload_hash"));
        let payload = hex::decode(vector["payload_bytes"].as_str().unwrap()).unwrap();
        assert_eq!(sign::payload_hash(&payload), hash);
        for (version, method, args) in [
            ("v1", V1, args_v1(domain, chain, hash, ADDRESS)),
            ("v2", V2, args_v2(domain, chain, hash, ADDRESS)),
        ] {
            assert_eq!(
                (
                    vector[version]["method"].as_str(),
                    &vector[version]["params"][0]
                ),
                (Some(method), &args),
                "{version}"
            );
            let (domain, chain, hash, sender) = read(method, &args).unwrap();
            assert_eq!(
                (signing_hash(domain, chain, hash), sender),
                (word("signing_hash"), ADDRESS)
            );
        }
    }
}
