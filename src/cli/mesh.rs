//! `--devices`, `--mesh` and `--split`: how many devices share a step, and what a replica's own devices split.

use std::num::NonZeroU32;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};

use super::again;
use super::program::Which;
use crate::document::{self, NodeError, Step};
use crate::files;
use crate::hlo::Module;
use crate::passes::partition::{self, partition, sum_in_f32};
use crate::tpu::Target;
use crate::train::{MAX_REPLICAS, Mesh, MeshConfig, SumOf};

/// Arguments that say how many devices share a step.
#[derive(Debug, clap::Args)]
pub(super) struct MeshArgs {
    /// Devices that share every batch of a model's training step, instead of its mesh: with `model: 2` half as many replicas
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_REPLICAS)))]
    devices: Option<u32>,
    /// The same, by the names of axes: data=128, or data=64,model=2 for replicas of two partitions each
    #[arg(long, value_name = "AXIS=N,…", conflicts_with = "devices")]
    mesh: Option<Axes>,
}

/// Arguments that say what the partitions of a replica split.
#[derive(Debug, Default, clap::Args)]
pub(super) struct SplitArgs {
    /// What the model axis of --mesh splits: parameters by the pattern of their name, and an axis of theirs, such as
    /// '*/query/kernel=1' or images=1; may be repeated
    #[arg(long, value_name = "PATTERN=AXIS")]
    split: Vec<Rule>,
}

/// How many devices there are along each axis.
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
    /// The flag that is given.
    pub(super) fn flag(&self) -> Option<&'static str> {
        match (self.devices, self.mesh) {
            (Some(_), _) => Some("--devices"),
            (None, Some(_)) => Some("--mesh"),
            (None, None) => None,
        }
    }

    /// A mesh with the replicas that are given, if any are: of devices, as many as they are enough for.
    ///
    /// # Errors
    /// Devices that do not split in replicas of the mesh.
    pub(super) fn over(&self, mesh: Mesh) -> anyhow::Result<Mesh> {
        match self.devices.and_then(NonZeroU32::new) {
            Some(n) => of_devices(mesh, n),
            None => Ok(self.mesh.map_or(mesh, |axes| mesh.of_replicas(axes.data))),
        }
    }

    /// Whether --mesh says over how many partitions a replica is split.
    pub(super) fn names_the_model_axis(&self) -> bool {
        self.mesh.is_some_and(|axes| axes.model.get() > 1)
    }

    /// Partitions of each replica.
    pub(super) fn n_partitions(&self, mesh: Mesh) -> u32 {
        self.mesh.map_or(mesh.model, |axes| axes.model).get()
    }

    /// Whether a program can be over several devices.
    ///
    /// # Errors
    /// One that is no training step.
    pub(super) fn check(&self, which: Which) -> anyhow::Result<()> {
        match (self.flag(), which) {
            (Some(flag), Which::Infer) => bail!(
                "{flag} is for a training step, whose batch they share, and this is --program infer\nhelp: leave it out: an \
                 inference is of one device"
            ),
            (Some(_) | None, _) => Ok(()),
        }
    }
}

impl SplitArgs {
    /// Whether anything is split.
    pub(super) fn is_some(&self) -> bool {
        !self.split.is_empty()
    }

    /// A training step, laid over the partitions of each replica, as the file says unless --split says otherwise. They sum
    /// as its replicas do.
    ///
    /// # Errors
    /// Rules without partitions; rules that do not fit the program.
    pub(super) fn apply(
        &self,
        module: Module,
        n_partitions: u32,
        of_file: &[partition::Rule],
        sum: SumOf,
    ) -> anyhow::Result<Module> {
        if n_partitions == 1 {
            ensure!(
                self.split.is_empty(),
                "--split says what the model axis splits, and there is none\nhelp: add it, such as --mesh data=4,model=2"
            );
            return Ok(module);
        }
        let module = if sum == SumOf::F32 { sum_in_f32(&module) } else { module };
        let mut rules: Vec<partition::Rule> = self.split.iter().map(|rule| rule.0.clone()).collect();
        if rules.is_empty() {
            rules = of_file.to_vec();
        }
        let (module, report) =
            partition(&module, n_partitions as usize, &rules).context("the step cannot be laid over its partitions")?;
        for (parameter, axis) in report.split {
            tracing::debug!("{parameter} is split along axis {axis}");
        }
        Ok(module)
    }
}

/// A mesh of `n` devices, which are replicas of as many as it says.
///
/// # Errors
/// Devices that do not split so.
pub(super) fn of_devices(mesh: Mesh, n: NonZeroU32) -> anyhow::Result<Mesh> {
    let model = mesh.model;
    let replicas = NonZeroU32::new(n.get() / model).filter(|_| n.get().is_multiple_of(model.get()));
    let Some(replicas) = replicas else {
        let devices = if n.get() == 1 { "1 device does" } else { &format!("{n} devices do") };
        bail!(
            "{devices} not split in replicas of {model} (`mesh: {{model: {model}}}`)\nhelp: give a multiple of {model}"
        );
    };
    Ok(mesh.of_replicas(replicas))
}

/// Refuses the model axis of the file at `path`, with its line, for a command that lays replicas of one device each.
///
/// # Errors
/// A model axis.
pub(super) fn check_no_model_axis(command: &str, path: &Path, of_file: &MeshConfig, batch: u32) -> anyhow::Result<()> {
    if of_file.model.get() == 1 {
        return Ok(());
    }
    let key = |name: &str| Step::Key(name.to_string());
    let error = NodeError::new(
        vec![key("mesh"), key("model")],
        format!(
            "{command} lays a batch over replicas of one device each, and here each replica is split over {}",
            of_file.model
        ),
    );
    let text = files::read_text(path, document::MAX_BYTES as u64).unwrap_or_default();
    let data = (32 / of_file.model.get()).max(1);
    let help = format!(
        "leave `model` and `split` out for {command}; what a step with them takes on a slice of 32 cores says `bf16scope compile \
         {} --target tpu-v3:4x4 --mesh data={data},model={} --batch {}`",
        again::word(path),
        of_file.model,
        // One that its replicas share.
        batch.next_multiple_of(data)
    );
    Err(document::error_at(&path.display().to_string(), &text, error.with_help(help)).into())
}

/// Whether so many devices can be laid over a slice.
///
/// # Errors
/// A number of them that does not divide the slice.
pub(super) fn check_slice(mesh: Mesh, n_partitions: u32, target: &Target) -> anyhow::Result<()> {
    let n = u64::from(mesh.data.get()) * u64::from(n_partitions);
    // What is too large the compiler's own check refuses, and names the slice that is enough.
    if let Some(n_cores) = target.n_cores().filter(|&n_cores| n <= n_cores && !n_cores.is_multiple_of(n)) {
        let below = (1..=n).rev().find(|n| n_cores.is_multiple_of(*n)).unwrap_or(1);
        bail!(
            "a mesh of {n} devices does not divide {target}, which has {n_cores} cores\nhelp: use all of them, or a part of the \
             slice, such as {below}"
        );
    }
    Ok(())
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
    fn devices_are_as_many_replicas_as_they_are_enough_for() {
        let n = |n: u32| NonZeroU32::new(n).unwrap();
        let mut mesh = Mesh::replicas(n(2));
        mesh.model = n(2);
        let of = |devices| MeshArgs { devices: Some(devices), mesh: None }.over(mesh).map(|mesh| mesh.data.get());
        assert_eq!(of(8).unwrap(), 4);
        let said = |devices| of(devices).unwrap_err().to_string();
        assert!(said(1).starts_with("1 device does not split in replicas of 2 (`mesh: {model: 2}`)\n"), "{}", said(1));
        assert!(said(5).starts_with("5 devices do not split in replicas of 2"), "{}", said(5));
        let axes = MeshArgs { devices: None, mesh: Some("data=8,model=2".parse().unwrap()) };
        assert_eq!(axes.over(mesh).unwrap().data.get(), 8);
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
