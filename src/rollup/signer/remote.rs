//! A signer in another process that has the key: op-signer's JSON-RPC over HTTP, by default with
//! TLS in both directions.
//!
//! Each signature is one attempt; the sequencer decides whether and when to retry. A signature is
//! used only if it recovers to the expected address, so a signer with the wrong key does no harm.
//! The client's certificate is read again for every connection, so renewing it needs no restart.

use crate::{
    rollup::http::{causes, endpoint_of, excerpt},
    secret::Secret,
};
use alloy_primitives::{Address, B256, Bytes, hex};
use base64::{Engine, prelude::BASE64_STANDARD};
use jsonrpsee::{
    core::{ClientError, client::ClientT, http_helpers::HttpError},
    http_client::{HeaderMap, HeaderValue, HttpClient, HttpClientBuilder, transport},
    rpc_params,
};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore, SignatureScheme,
    client::ResolvesClientCert,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
    version::TLS13,
};
use serde_json::{Value, json};
use starling_proto::sign::{self, SIGNATURE_LEN};
use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const V1: &str = "opsigner_signBlockPayload";
const V2: &str = "opsigner_signBlockPayloadV2";
const SIGN_TRANSACTION: &str = "eth_signTransaction";
/// Timeout of the health request at start (op-service: 3 s).
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of one signature request (op-node: time limit of a publication).
pub const SIGN_TIMEOUT: Duration = Duration::from_secs(5);
/// JSON-RPC error code of an unknown method.
const UNKNOWN_METHOD: i32 = -32601;
/// Largest response in bytes. A signature has 132 characters of hex. A signed transaction has at
/// most 128 KiB, the limit of L1's pools, or 256 KiB in hex.
const MAX_RESPONSE: u32 = 512 << 10;

/// Options of a remote signer (`--signer.*`).
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// URL with `https://`, or with `http://` if `tls` is `None`. May contain credentials.
    pub endpoint: Secret,
    /// Address to which the signatures must recover.
    pub address: Address,
    /// Headers sent with every request. Their values may be credentials.
    pub headers: Vec<(String, Secret)>,
    /// Certificates of both sides. With `None` there is no client certificate, and the system's
    /// certificate authorities are trusted.
    pub tls: Option<TlsFiles>,
    /// Timeout of one signature request.
    pub timeout: Duration,
}

/// Paths of PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the only authorities that are trusted to certify the signer.
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// A failed call, with the signer's endpoint.
#[derive(Debug, thiserror::Error)]
#[error("the signer at {endpoint}: {cause}")]
pub struct RemoteError {
    endpoint: Arc<str>,
    pub cause: RemoteCause,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoteCause {
    /// The configuration is invalid. The text names the option.
    #[error("{0}")]
    Config(String),
    /// There is no connection, or one side's TLS refused it.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error("no answer within {0:?}")]
    Slow(Duration),
    #[error(
        "401 Unauthorized: it saw no client certificate that it accepts; check --signer.tls.cert"
    )]
    Unauthorized,
    #[error("403 Forbidden: it knows the client certificate and signs nothing for it")]
    Forbidden,
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("error {code}: {message}")]
    Refused { code: i32, message: String },
    #[error("its answer is no signature: {0}")]
    Malformed(String),
    #[error("it signs as {signed_by}, not as {wanted} (--signer.address)")]
    WrongKey { signed_by: Address, wanted: Address },
}

/// A client of one remote signer.
#[derive(Clone)]
pub struct Remote {
    inner: Arc<RemoteInner>,
}

struct RemoteInner {
    http: HttpClient,
    endpoint: Arc<str>,
    address: Address,
    timeout: Duration,
    /// The signer has reported that it does not support the second version of the signing call.
    only_v1: AtomicBool,
}

impl Remote {
    /// Reads the certificates and checks that the signer responds.
    pub async fn connect(config: &RemoteConfig) -> Result<Self, RemoteError> {
        let endpoint: Arc<str> = endpoint_of(config.endpoint.expose()).into();
        let failed = |cause| RemoteError {
            endpoint: endpoint.clone(),
            cause,
        };
        let http = client(config).map_err(|reason| failed(RemoteCause::Config(reason)))?;
        let only_v1 = AtomicBool::new(false);
        let inner = RemoteInner {
            http,
            endpoint: endpoint.clone(),
            address: config.address,
            timeout: config.timeout,
            only_v1,
        };
        let signer = Self {
            inner: Arc::new(inner),
        };
        let health = signer
            .inner
            .http
            .request::<String, _>("health_status", rpc_params![]);
        let version = match tokio::time::timeout(HEALTH_TIMEOUT, health).await {
            Ok(answer) => answer.map_err(|error| signer.failure(error))?,
            Err(_) => return Err(failed(RemoteCause::Slow(HEALTH_TIMEOUT))),
        };
        tracing::info!(%endpoint, version, address = %config.address, "connected to a remote signer");
        Ok(signer)
    }

    pub fn address(&self) -> Address {
        self.inner.address
    }

    /// Requests the signature of a block with the second version of the call, or with the first if
    /// the signer does not support the second.
    pub async fn sign(
        &self,
        chain_id: u64,
        payload_hash: B256,
    ) -> Result<[u8; SIGNATURE_LEN], RemoteError> {
        let domain = sign::DOMAIN_BLOCKS_V1;
        let answer = if self.inner.only_v1.load(Ordering::Relaxed) {
            Err(ClientError::Call(jsonrpsee::types::ErrorObject::owned(
                UNKNOWN_METHOD,
                "",
                None::<()>,
            )))
        } else {
            self.inner
                .http
                .request(
                    V2,
                    rpc_params![args_v2(domain, chain_id, payload_hash, self.inner.address)],
                )
                .await
        };
        let answer: String = match answer {
            Err(ClientError::Call(refusal)) if refusal.code() == UNKNOWN_METHOD => {
                if !self.inner.only_v1.swap(true, Ordering::Relaxed) {
                    tracing::info!(endpoint = %self.inner.endpoint, "the block signer does not know {V2}; {V1} is used");
                }
                self.inner.http.request(V1, rpc_params![args_v1(domain, chain_id, payload_hash, self.inner.address)]).await
            }
            answer => answer,
        }
        .map_err(|error| self.failure(error))?;
        self.checked(&answer, sign::signing_hash(chain_id, payload_hash))
            .map_err(|cause| self.error(cause))
    }

    /// Requests the signature of an L1 transaction. The returned bytes of the response are
    /// unchecked; the caller must check them.
    pub async fn sign_transaction(&self, args: &Value) -> Result<Bytes, RemoteError> {
        let answer = self.inner.http.request(SIGN_TRANSACTION, rpc_params![args]);
        answer.await.map_err(|error| self.failure(error))
    }

    /// Decodes a response and checks that it is a signature by the expected address.
    fn checked(
        &self,
        answer: &str,
        signing_hash: B256,
    ) -> Result<[u8; SIGNATURE_LEN], RemoteCause> {
        let bytes =
            hex::decode(answer).map_err(|error| RemoteCause::Malformed(error.to_string()))?;
        let signature: [u8; SIGNATURE_LEN] = bytes[..].try_into().map_err(|_| {
            RemoteCause::Malformed(format!("{} bytes, not {SIGNATURE_LEN}", bytes.len()))
        })?;
        let signed_by = sign::recover_hash(&signature, signing_hash)
            .map_err(|error| RemoteCause::Malformed(error.to_string()))?;
        let wanted = self.inner.address;
        if signed_by == wanted {
            Ok(signature)
        } else {
            Err(RemoteCause::WrongKey { signed_by, wanted })
        }
    }

    fn failure(&self, error: ClientError) -> RemoteError {
        self.error(match error {
            ClientError::Call(refusal) => RemoteCause::Refused {
                code: refusal.code(),
                message: excerpt(refusal.message()),
            },
            ClientError::ParseError(error) => RemoteCause::Malformed(excerpt(error)),
            ClientError::RequestTimeout => RemoteCause::Slow(self.inner.timeout),
            ClientError::Transport(error) => match error.downcast_ref::<transport::Error>() {
                Some(transport::Error::Rejected { status_code: 401 }) => RemoteCause::Unauthorized,
                Some(transport::Error::Rejected { status_code: 403 }) => RemoteCause::Forbidden,
                Some(transport::Error::Rejected { status_code }) => {
                    RemoteCause::Status(*status_code)
                }
                Some(transport::Error::Http(HttpError::Malformed)) => {
                    RemoteCause::Malformed("it is no JSON".into())
                }
                Some(transport::Error::Http(HttpError::TooLarge)) => {
                    RemoteCause::Malformed(format!("it has more than {MAX_RESPONSE} bytes"))
                }
                _ => RemoteCause::Unreachable(excerpt(causes(&*error))),
            },
            error => RemoteCause::Unreachable(excerpt(error)),
        })
    }

    /// An error with this signer's endpoint.
    pub fn error(&self, cause: RemoteCause) -> RemoteError {
        RemoteError {
            endpoint: self.inner.endpoint.clone(),
            cause,
        }
    }
}

/// The arguments of [`V1`] in Go's JSON encoding: an array of numbers, a number, and base64.
pub(super) fn args_v1(domain: B256, chain_id: u64, payload_hash: B256, sender: Address) -> Value {
    json!({
        "domain": domain.0,
        "chainId": chain_id,
        "payloadHash": BASE64_STANDARD.encode(payload_hash),
        "senderAddress": sender,
    })
}

/// The arguments of [`V2`]: hex, and the chain id as a decimal string.
pub(super) fn args_v2(domain: B256, chain_id: u64, payload_hash: B256, sender: Address) -> Value {
    json!({
        "domain": domain,
        "chainId": chain_id.to_string(),
        "payloadHash": payload_hash,
        "senderAddress": sender,
    })
}

/// Builds the HTTP client. The error names the invalid option, and never contains a header's value.
fn client(config: &RemoteConfig) -> Result<HttpClient, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &config.headers {
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("--signer.header {name}: no value of a header"))?;
        value.set_sensitive(true);
        let name = name
            .parse::<http::HeaderName>()
            .map_err(|_| format!("--signer.header {name}: no name of a header"))?;
        headers.append(name, value);
    }
    let builder = HttpClientBuilder::new()
        .request_timeout(config.timeout)
        .max_response_size(MAX_RESPONSE)
        .set_headers(headers);
    let builder = match &config.tls {
        Some(_) if !config.endpoint.expose().starts_with("https://") => {
            return Err(
                "--signer.endpoint is no https:// URL: give one, or --signer.tls.enabled=false"
                    .into(),
            );
        }
        Some(files) => builder.with_custom_cert_store(tls(files)?),
        None => builder,
    };
    builder
        .build(config.endpoint.expose())
        .map_err(|error| format!("--signer.endpoint: {error}"))
}

/// TLS 1.3 with our client certificate. Only the authorities in `files.ca` are trusted.
fn tls(files: &TlsFiles) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let unreadable =
        |error: &dyn fmt::Display| format!("--signer.tls.ca: {}: {error}", files.ca.display());
    for certificate in
        CertificateDer::pem_file_iter(&files.ca).map_err(|error| unreadable(&error))?
    {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() {
        return Err(unreadable(&"there is no certificate in it"));
    }
    let identity = TlsIdentity {
        files: files.clone(),
        last: Mutex::new(read_identity(files, &provider)?),
        provider: provider.clone(),
    };
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    Ok(builder.with_client_cert_resolver(Arc::new(identity)))
}

fn read_identity(files: &TlsFiles, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let of_cert =
        |error: &dyn fmt::Display| format!("--signer.tls.cert: {}: {error}", files.cert.display());
    let of_key =
        |error: &dyn fmt::Display| format!("--signer.tls.key: {}: {error}", files.key.display());
    let chain = CertificateDer::pem_file_iter(&files.cert).map_err(|error| of_cert(&error))?;
    let chain: Vec<_> = chain
        .collect::<Result<_, _>>()
        .map_err(|error| of_cert(&error))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| of_key(&error))?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| of_key(&error))?;
    let identity = CertifiedKey::new(chain, key);
    match identity.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(Arc::new(identity))
        }
        Err(error) => Err(of_cert(&error)),
    }
}

/// The client certificate that is presented to the signer.
struct TlsIdentity {
    files: TlsFiles,
    provider: Arc<CryptoProvider>,
    /// The last certificate and key that were read. Used while the files are being replaced.
    last: Mutex<Arc<CertifiedKey>>,
}

impl ResolvesClientCert for TlsIdentity {
    /// Reads the files again for each new connection. Connections are kept alive, so this is rare.
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let mut last = self.last.lock();
        match read_identity(&self.files, &self.provider) {
            Ok(identity) => *last = identity,
            Err(reason) => {
                tracing::warn!(reason, "the certificate read last is used for the signer")
            }
        }
        Some(last.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity")
            .field("files", &self.files)
            .finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
