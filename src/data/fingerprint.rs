//! What tells one data set from another: hashes of its features and labels, in their order.

use super::dataset::Dataset;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A data set's identity. Features are hashed as they were read, scaled, and apart from labels: so it shows which changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// How many examples there are.
    pub n_examples: u64,
    /// SHA-256 of the dims of an example and of all features, row-major, little-endian.
    pub features: String,
    /// SHA-256 of the number of classes and of all labels, little-endian.
    pub labels: String,
}

impl Fingerprint {
    /// Of a data set. Another order is another fingerprint.
    pub fn of(dataset: &Dataset) -> Fingerprint {
        let mut features = Sha256::new();
        for number in [dataset.feature_dims.len() as i64].iter().chain(&dataset.feature_dims) {
            features.update(number.to_le_bytes());
        }
        // In parts, as each update costs.
        for values in dataset.features.chunks(1024) {
            features.update(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        }
        let mut labels = Sha256::new();
        labels.update((dataset.n_classes as u64).to_le_bytes());
        for values in dataset.labels.chunks(1024) {
            labels.update(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        }
        Fingerprint {
            n_examples: dataset.n_examples() as u64,
            features: hex(&features.finalize()),
            labels: hex(&labels.finalize()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_changes_shows_where_it_did() {
        let dataset = Dataset {
            features: (0..6000).map(|idx| idx as f32).collect(),
            feature_dims: vec![2],
            labels: (0..3000).map(|idx| idx % 3).collect(),
            n_classes: 3,
        };
        let whole = Fingerprint::of(&dataset);
        assert_eq!(whole, Fingerprint::of(&dataset.clone()));
        let changed = |change: &dyn Fn(&mut Dataset)| {
            let mut dataset = dataset.clone();
            change(&mut dataset);
            let other = Fingerprint::of(&dataset);
            (other.n_examples != whole.n_examples, other.features != whole.features, other.labels != whole.labels)
        };
        assert_eq!(changed(&|dataset| dataset.features[5999] = 0.0), (false, true, false));
        assert_eq!(changed(&|dataset| dataset.features.swap(0, 2)), (false, true, false));
        assert_eq!(changed(&|dataset| dataset.feature_dims = vec![2, 1]), (false, true, false));
        assert_eq!(changed(&|dataset| dataset.labels.swap(2998, 2999)), (false, false, true));
        assert_eq!(changed(&|dataset| dataset.n_classes = 4), (false, false, true));
        assert_eq!(changed(&|dataset| dataset.labels.truncate(2999)), (true, false, true));
    }
}
