use super::*;
use crate::rpc::error::METHOD_NOT_FOUND;

const KEYS: &str = r#"
[costs]
default = 1
eth_call = 10
"debug_*" = 100

[[key]]
name = "indexer"
key = "0123456789abcdef"
namespaces = ["eth"]
methods = ["debug_traceTransaction"]
per-second = 100
burst = 200

[[key]]
name = "free"
sha256 = "62ad2f9c9c6e8f2f9b4b5e1f2b7a0d3b5b1f4b9e6f0d9e8c7b6a5f4e3d2c1b0a"
"#;

const KEY: &str = "0123456789abcdef";

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn access(text: &str) -> Arc<Access> {
    Arc::new(Access::parse(text).expect("a file of limits"))
}

fn refusal(text: &str) -> String {
    Access::parse(text).expect_err("it is refused").to_string()
}

#[test]
fn a_key_is_required_unless_the_file_says_otherwise() {
    let closed = access(KEYS);
    let denied = |key| closed.caller(key, address(1)).expect_err("no access");
    assert_eq!(denied(None), Denied::NoKey);
    assert_eq!(denied(Some("0123456789abcdeg")), Denied::UnknownKey);
    assert_eq!(denied(Some("")), Denied::UnknownKey);
    assert_eq!(denied(Some(&"x".repeat(1 << 20))), Denied::UnknownKey);
    assert!(closed.caller(Some(KEY), address(1)).is_ok());
    let open = access(&format!("[anonymous]\n{KEYS}"));
    assert!(open.caller(None, address(1)).is_ok());
    assert!(open.caller(Some("0123456789abcdeg"), address(1)).is_err());
}

#[test]
fn a_key_has_its_namespaces_and_methods() {
    let caller = access(KEYS).caller(Some(KEY), address(1)).unwrap();
    let now = Instant::now();
    assert!(caller.admit("eth_blockNumber", now).is_ok());
    assert!(caller.admit("debug_traceTransaction", now).is_ok());
    for method in ["debug_traceCall", "admin_peers", "ethx_call", "", "_"] {
        let error = caller.admit(method, now).unwrap_err();
        assert_eq!(error.code, METHOD_NOT_FOUND, "{method}");
    }
    let usage = caller.access.usage();
    let UsageJson {
        calls,
        cost,
        not_allowed,
        over_budget,
    } = usage["indexer"];
    assert_eq!((calls, cost, not_allowed, over_budget), (2, 101, 5, 0));
    assert_eq!(usage["free"].calls, 0);
}

#[test]
fn a_budget_refuses_until_the_time_that_it_names() {
    let caller = access(KEYS).caller(Some(KEY), address(1)).unwrap();
    let now = Instant::now();
    for _ in 0..20 {
        assert!(caller.admit("eth_call", now).is_ok());
    }
    let error = caller.admit("eth_call", now).unwrap_err();
    assert_eq!(error.code, LIMIT_EXCEEDED);
    let data: serde_json::Value = serde_json::from_str(error.data.unwrap().get()).unwrap();
    let wait = data["retryAfterMs"].as_u64().unwrap();
    assert!(
        (100..=102).contains(&wait),
        "{wait} ms for 10 at 100 a second"
    );
    let later = now + Duration::from_millis(wait);
    assert!(caller.admit("eth_call", later).is_ok());
    assert!(caller.admit("eth_call", later).is_err());
    let usage = &caller.access.usage()["indexer"];
    assert_eq!((usage.calls, usage.over_budget), (21, 2));
}

#[test]
fn an_address_has_a_budget_over_all_keys_and_others_are_not_concerned() {
    let file = r#"
        [address]
        per-second = 1
        burst = 3
        [anonymous]
        [[key]]
        name = "one"
        key = "0123456789abcdef"
        per-second = 1
        burst = 100
    "#;
    let access = access(file);
    let now = Instant::now();
    let caller = |key, last| access.caller(key, address(last)).unwrap();
    let (anonymous, keyed) = (caller(None, 1), caller(Some(KEY), 1));
    assert!(anonymous.admit("eth_chainId", now).is_ok());
    assert!(keyed.admit("eth_chainId", now).is_ok());
    assert!(anonymous.admit("eth_chainId", now).is_ok());
    assert!(keyed.admit("eth_chainId", now).is_err());
    assert!(caller(None, 2).admit("eth_chainId", now).is_ok());
    // A call that the address could not pay for has cost the key nothing.
    let elsewhere = caller(Some(KEY), 3);
    let passed = (0..200).filter(|call| {
        let elsewhere = caller(Some(KEY), 3 + (call / 3) as u8);
        elsewhere.admit("eth_chainId", now).is_ok()
    });
    assert_eq!(passed.count(), 99, "of 100, one is used already");
    assert!(elsewhere.admit("eth_chainId", now).is_err());
}

#[test]
fn addresses_of_one_ipv6_network_are_one_and_many_are_bounded() {
    let access = access("[address]\nper-second = 1\nburst = 1\n[anonymous]");
    let now = Instant::now();
    let caller = |bits: u128| {
        let address = IpAddr::V6(Ipv6Addr::from_bits(bits));
        access.caller(None, address).unwrap()
    };
    let network = 0x2001_0db8u128 << 96;
    assert!(caller(network | 1).admit("eth_chainId", now).is_ok());
    assert!(caller(network | 2).admit("eth_chainId", now).is_err());
    for other in 1..=ADDRESSES.get() as u128 + 10 {
        let caller = caller(network | other << 64);
        assert!(caller.admit("eth_chainId", now).is_ok());
    }
    assert_eq!(access.addresses.lock().len(), ADDRESSES.get());
}

#[test]
fn mistakes_in_the_file_are_named() {
    let key = |rest: &str| refusal(&format!("[[key]]\nname = \"one\"\n{rest}"));
    assert!(key("key = \"short\"").contains("key one: it has not 16 to 256 characters"));
    assert!(key("").contains("give either key or sha256"));
    assert!(key("sha256 = \"0x12\"").contains("sha256 is not 32 bytes in hex"));
    let good = "key = \"0123456789abcdef\"\n";
    assert!(key(&format!("{good}burst = 1")).contains("burst is given without per-second"));
    assert!(key(&format!("{good}per-second = 0")).contains("nothing would ever pass"));
    assert!(key(&format!("{good}per-secnd = 1")).contains("per-secnd"));
    let twice = format!("[[key]]\nname = \"one\"\n{good}[[key]]\nname = \"two\"\n{good}");
    assert!(refusal(&twice).contains("key two: another has the same key"));
    let costly = "[costs]\neth_call = 50\n[address]\nper-second = 1\nburst = 49";
    assert!(refusal(costly).contains("a call of 50 would never pass"));
    assert!(refusal("[costs]\neth_call = -1").contains("it is no TOML of this form"));
    assert!(refusal("keys = 1").contains("it is no TOML of this form"));
}
