//! The order of a Keras model's layers, from `config.json` in a `.keras` archive: Keras numbers a model's variables,
//! and its optimizer state, in that order, while HDF5 sorts groups by name.
//!
//! Source: Keras 3's `saving_lib.py` and `Model.layers`.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde_json::Value;

use super::super::Entry;
use super::super::torch::Zip;
use super::VARIABLES;

/// The description of a model in a `.keras` archive.
const CONFIG: &str = "config.json";
/// The largest size of the description: models of thousands of layers have a few megabytes.
const MAX_CONFIG: u64 = 64 << 20;

/// The model's names of its layers, in order; `None` if the file is not in Keras' form: it does not affect which
/// weights are read.
pub(super) fn of_model(zip: &mut Zip) -> Option<Vec<String>> {
    let mut text = Vec::new();
    let n = zip.by_name(CONFIG).ok()?.take(MAX_CONFIG + 1).read_to_end(&mut text).ok()?;
    let config: Value = serde_json::from_slice(&text[..n.min(MAX_CONFIG as usize)]).ok()?;
    let layers = config.get("config")?.get("layers")?.as_array()?;
    layers.iter().map(|layer| Some(layer.get("config")?.get("name")?.as_str()?.to_string())).collect()
}

/// The names of arrays in the order of the layers, for each layer in the order of creation; `None` if a layer contains
/// layers with variables, whose order is not recorded.
pub(super) fn order(layers: &[String], entries: &[Entry]) -> Option<Vec<String>> {
    let places: BTreeMap<&str, usize> = layers.iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let mut names = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.name.starts_with("layers/")) {
        let place = entry.aliases.iter().find_map(|alias| {
            let (layer, number) = alias.rsplit_once('/')?;
            let layer = layer.strip_suffix(VARIABLES)?.strip_suffix('/')?;
            Some((*places.get(layer)?, number.parse::<usize>().ok()?))
        });
        names.insert(place?, entry.name.clone());
    }
    Some(names.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::DType;

    fn entry(name: &str, alias: &str) -> Entry {
        let entry = Entry::new(name.to_string(), DType::F32, vec![1]).unwrap();
        Entry { aliases: vec![alias.to_string()], ..entry }
    }

    #[test]
    fn variables_are_in_the_order_of_layers() {
        let layers = ["second".to_string(), "first".to_string()];
        let entries = [
            entry("layers/dense/vars/0", "first/vars/0"),
            entry("layers/dense_1/vars/1", "second/vars/1"),
            entry("layers/dense_1/vars/0", "second/vars/0"),
            entry("optimizer/vars/0", "adam/vars/0"),
        ];
        let expected = ["layers/dense_1/vars/0", "layers/dense_1/vars/1", "layers/dense/vars/0"];
        assert_eq!(order(&layers, &entries).unwrap(), expected);
        // The order of layers within a layer is unknown.
        let nested = [entry("layers/block/layers/dense/vars/0", "second/dense/vars/0")];
        assert_eq!(order(&layers, &nested), None);
    }
}
