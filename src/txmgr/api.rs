//! RPC namespace `txmgr`: settings that an operator can read and change while the process runs. As
//! in op-service, amounts are numbers of wei, and durations are numbers of nanoseconds.

use super::machine::SendSettings;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::time::Duration;

/// Prefix of the namespace's methods.
pub const NAMESPACE: &str = "txmgr_";

/// The settings that the RPC methods read and change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxRuntime {
    pub settings: SendSettings,
    /// Whether the tip of a blob transaction is taken from recent blocks.
    pub blob_tip_dynamic: bool,
}

/// The reason why a call fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxApiError {
    #[error("the method {0} does not exist/is not available")]
    UnknownMethod(String),
    #[error("invalid argument 0: {0}")]
    Params(String),
}

impl TxApiError {
    /// JSON-RPC error code.
    pub fn code(&self) -> i32 {
        match self {
            Self::UnknownMethod(_) => -32601,
            Self::Params(_) => -32602,
        }
    }
}

/// Executes one call. `params` is a JSON array. Setters return null.
pub fn call(
    method: &str,
    params: &str,
    runtime: &mut TxRuntime,
) -> Result<Box<RawValue>, TxApiError> {
    let TxRuntime {
        settings: SendSettings { rules, fees },
        blob_tip_dynamic,
    } = runtime;
    let unknown = || TxApiError::UnknownMethod(method.to_owned());
    let name = method.strip_prefix(NAMESPACE).ok_or_else(unknown)?;
    let text = match name {
        "getMinBaseFee" => fees.min_base_fee.to_string(),
        "getMinPriorityFee" => fees.min_tip.to_string(),
        "getMinBlobFee" => fees.min_blob_fee.to_string(),
        "getFeeThreshold" => fees.limit_threshold.to_string(),
        "getBumpFeeRetryTime" => rules.resubmission_timeout.as_nanos().to_string(),
        "getRebroadcastInterval" => rules.rebroadcast_interval.as_nanos().to_string(),
        "getBlobTipCapDynamic" => blob_tip_dynamic.to_string(),
        _ => {
            match name {
                "setMinBaseFee" => fees.min_base_fee = only(params)?,
                "setMinPriorityFee" => fees.min_tip = only(params)?,
                "setMinBlobFee" => fees.min_blob_fee = only(params)?,
                "setFeeThreshold" => fees.limit_threshold = only(params)?,
                "setBumpFeeRetryTime" => rules.resubmission_timeout = resubmission(params)?,
                "setRebroadcastInterval" => rules.rebroadcast_interval = duration(params)?,
                "setBlobTipCapDynamic" => *blob_tip_dynamic = only(params)?,
                _ => return Err(unknown()),
            }
            tracing::info!(method, "a setting of the transaction manager was changed");
            "null".to_owned()
        }
    };
    RawValue::from_string(text).map_err(|error| TxApiError::Params(error.to_string()))
}

/// Parses `params`, which must have exactly one element.
fn only<T: DeserializeOwned>(params: &str) -> Result<T, TxApiError> {
    let read: Result<(T,), _> = serde_json::from_str(params);
    let read = read.map_err(|error| TxApiError::Params(error.to_string()))?;
    Ok(read.0)
}

/// Parses the only parameter as nanoseconds. A negative number means zero, as in the options.
fn duration(params: &str) -> Result<Duration, TxApiError> {
    let nanos: i64 = only(params)?;
    Ok(Duration::from_nanos(nanos.max(0).unsigned_abs()))
}

fn resubmission(params: &str) -> Result<Duration, TxApiError> {
    let time = duration(params)?;
    if time.is_zero() {
        return Err(TxApiError::Params(
            "must provide ResubmissionTimeout".into(),
        ));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txmgr::options::TxOptions;

    fn runtime() -> TxRuntime {
        TxRuntime {
            settings: TxOptions::default().settings().unwrap(),
            blob_tip_dynamic: false,
        }
    }

    #[test]
    fn each_setting_is_read_and_changes_exactly_one_value() {
        let defaults = [
            ("MinBaseFee", "1000000000", "7"),
            ("MinPriorityFee", "1000000000", "0"),
            (
                "MinBlobFee",
                "1000000000",
                "340282366920938463463374607431768211455",
            ),
            ("FeeThreshold", "100000000000", "5"),
            ("BumpFeeRetryTime", "48000000000", "1500000000"),
            ("RebroadcastInterval", "12000000000", "0"),
            ("BlobTipCapDynamic", "false", "true"),
        ];
        for (changed, _, value) in defaults {
            let mut runtime = runtime();
            let set = format!("txmgr_set{changed}");
            let answer = call(&set, &format!("[{value}]"), &mut runtime).unwrap();
            assert_eq!(answer.get(), "null");
            for (name, default, _) in defaults {
                let got = call(&format!("txmgr_get{name}"), "[]", &mut runtime).unwrap();
                assert_eq!(
                    got.get(),
                    if name == changed { value } else { default },
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn wrong_calls_are_refused_and_change_nothing() {
        let mut runtime = runtime();
        for (method, params, code) in [
            ("txmgr_setMinBaseFee", "[]", -32602),
            ("txmgr_setMinBaseFee", "[-1]", -32602),
            ("txmgr_setMinBaseFee", "[\"one\"]", -32602),
            ("txmgr_setMinBaseFee", "[1, 2]", -32602),
            ("txmgr_setBumpFeeRetryTime", "[0]", -32602),
            ("txmgr_setBlobTipCapDynamic", "[1]", -32602),
            ("txmgr_setMaxTipCap", "[1]", -32601),
            ("txmgr_get", "[]", -32601),
            ("admin_getMinBaseFee", "[]", -32601),
        ] {
            let error = call(method, params, &mut runtime).unwrap_err();
            assert_eq!(error.code(), code, "{method} {params}: {error}");
        }
        assert_eq!(runtime, self::runtime());
        let mut negative = self::runtime();
        call("txmgr_setRebroadcastInterval", "[-5]", &mut negative).unwrap();
        assert_eq!(negative.settings.rules.rebroadcast_interval, Duration::ZERO);
    }
}
