//! `--devices`, `--mesh` and `--split`: how many devices share a step, and how a replica's own devices split it.

use std::num::NonZeroU32;
use std::str::FromStr;

use anyhow::ensure;

use super::whole::whole;
use bf16scope_passes::partition;
use bf16scope_study::MeshChoice;
use bf16scope_train::MAX_REPLICAS;

/// Arguments that set how many devices share a step.
#[derive(Debug, clap::Args)]
pub(super) struct MeshArgs {
    /// Devices that share every batch of a model's training step, instead of its mesh: with `model: 2` half as many replicas
    #[arg(long, value_name = "N", value_parser = whole(1..=MAX_REPLICAS), allow_negative_numbers = true)]
    devices: Option<u32>,
    /// The devices by named axes: data=128, or data=64,model=2 for replicas of two partitions each
    #[arg(long, value_name = "AXIS=N,…", conflicts_with = "devices")]
    mesh: Option<Axes>,
}

/// Arguments that set how the partitions of a replica split it.
#[derive(Debug, Default, clap::Args)]
pub(super) struct SplitArgs {
    /// Shard parameters over the model axis of --mesh: a pattern of names and the parameters' axis, such as '*/query/kernel=1'
    /// or images=1; may be repeated
    #[arg(long, value_name = "PATTERN=AXIS")]
    split: Vec<Rule>,
}

/// The number of devices along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axes {
    data: NonZeroU32,
    model: NonZeroU32,
}

impl FromStr for Axes {
    type Err = String;

    fn from_str(text: &str) -> Result<Axes, String> {
        let (mut data, mut model) = (None, None);
        for part in text.split(',') {
            let Some((axis, n)) = part.split_once('=') else {
                return Err("expected axes and their devices, such as data=8 or data=8,model=2".to_string());
            };
            let size = match axis {
                "data" => &mut data,
                "model" => &mut model,
                _ => {
                    return Err(format!(
                        "there is no axis `{axis}`: expected data (replicas) or model (their partitions)"
                    ));
                }
            };
            let n = n.parse::<u32>().ok().filter(|n| *n <= MAX_REPLICAS).and_then(NonZeroU32::new);
            let n = n.ok_or_else(|| format!("`{part}` has no number of devices: expected 1 to {MAX_REPLICAS}"))?;
            if size.replace(n).is_some() {
                return Err(format!("`{axis}` stands twice"));
            }
        }
        let or_one = |n: Option<NonZeroU32>| n.unwrap_or(NonZeroU32::MIN);
        Ok(Axes { data: or_one(data), model: or_one(model) })
    }
}

/// [`partition::Rule`], as an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule(partition::Rule);

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let parts = text.rsplit_once('=').and_then(|(pattern, axis)| Some((pattern, axis.parse().ok()?)));
        match parts {
            Some((pattern, axis)) if !pattern.is_empty() => {
                Ok(Rule(partition::Rule { pattern: pattern.to_string(), axis }))
            }
            _ => Err("expected the pattern of a name and an axis, such as '*/query/kernel=1'".to_string()),
        }
    }
}

impl MeshArgs {
    /// The flag that was given.
    pub(super) fn flag(&self) -> Option<&'static str> {
        match (self.devices, self.mesh) {
            (Some(_), _) => Some("--devices"),
            (None, Some(_)) => Some("--mesh"),
            (None, None) => None,
        }
    }

    /// The chosen mesh.
    pub(super) fn choice(&self) -> MeshChoice {
        match (self.devices.and_then(NonZeroU32::new), self.mesh) {
            (Some(n), _) => MeshChoice::Devices(n),
            (None, Some(Axes { data, model })) => MeshChoice::Axes { data, model },
            (None, None) => MeshChoice::OfFile,
        }
    }

    /// Whether --mesh sets the number of partitions of a replica.
    pub(super) fn names_the_model_axis(&self) -> bool {
        self.mesh.is_some_and(|axes| axes.model.get() > 1)
    }
}

impl SplitArgs {
    /// Whether anything is split.
    pub(super) fn is_some(&self) -> bool {
        !self.split.is_empty()
    }

    /// The partition rules, for a replica of this many partitions.
    ///
    /// # Errors
    /// There are rules but no partitions.
    pub(super) fn rules(&self, n_partitions: u32) -> anyhow::Result<Vec<partition::Rule>> {
        ensure!(
            n_partitions > 1 || self.split.is_empty(),
            "--split says what the model axis splits, and there is none\nhelp: add it, such as --mesh data=4,model=2"
        );
        Ok(self.split.iter().map(|rule| rule.0.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_is_axes_by_name() {
        let axes = |text: &str| text.parse::<Axes>().map(|axes| (axes.data.get(), axes.model.get()));
        for (text, expected) in
            [("data=8", (8, 1)), ("data=4,model=2", (4, 2)), ("model=2", (1, 2)), ("data=2048", (2048, 1))]
        {
            assert_eq!(axes(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("8", "expected axes and their devices, such as data=8 or data=8,model=2"),
            ("batch=8", "there is no axis `batch`: expected data (replicas) or model (their partitions)"),
            ("data=0", "`data=0` has no number of devices: expected 1 to 2048"),
            ("data=2049", "`data=2049` has no number of devices: expected 1 to 2048"),
            ("data=8,data=8", "`data` stands twice"),
        ] {
            assert_eq!(axes(text), Err(expected.to_string()), "{text}");
        }
    }

    #[test]
    fn a_rule_is_a_pattern_and_an_axis() {
        let Rule(rule) = "*/query/kernel=1".parse().unwrap();
        assert_eq!((rule.pattern.as_str(), rule.axis), ("*/query/kernel", 1));
        for text in ["", "=1", "images", "images=", "images=-1"] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }
}
