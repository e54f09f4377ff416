//! Modules that JAX and TensorFlow made come in and go out unharmed.

use bf16scope::hlo::proto::messages::HloModuleProto;
use prost::Message;
use std::path::{Path, PathBuf};

/// Every module in `tests/data/oracle_*` of this extension; there are seven.
fn oracles(extension: &str) -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths = Vec::new();
    for folder in ["oracle_jax", "oracle_tf"] {
        for entry in std::fs::read_dir(data.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().ends_with(extension) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    assert_eq!(paths.len(), 7, "{paths:?}");
    paths
}

/// Whatever field of a message we did not declare would be missing from its bytes. JAX's modules have at most one entry
/// in each map and come back identical; in TensorFlow's, C++ wrote maps in hash order, where ours are sorted.
#[test]
fn messages_lose_no_byte() {
    for path in oracles(".hlo.pb") {
        let mut bytes = std::fs::read(&path).unwrap();
        let message = HloModuleProto::decode(bytes.as_slice()).unwrap();
        let mut encoded = message.encode_to_vec();
        if path.parent().unwrap().ends_with("oracle_tf") {
            bytes.sort_unstable();
            encoded.sort_unstable();
        }
        assert!(encoded == bytes, "{}: re-encoded bytes differ", path.display());
    }
}
