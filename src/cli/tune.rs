//! `--tune`: how a model's programs are tuned, instead of what its file says.

use std::str::FromStr;

use crate::experiment::Experiment;
use crate::pjrt::Platform;
use crate::tpu::{Spec, Target};
use crate::tuning::{Tune, Tuning};

/// What `--tune` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    /// What pays where the program goes.
    Auto,
    /// Nothing.
    None,
    /// What the file says, for this target, wherever the program goes.
    For(Target),
}

impl FromStr for Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Flag, String> {
        match text {
            "auto" => Ok(Flag::Auto),
            "none" => Ok(Flag::None),
            target => {
                target.parse().map(Flag::For).map_err(|error| format!("expected auto, none or a target\n{error}"))
            }
        }
    }
}

/// Of programs of a model.
#[derive(Debug, clap::Args)]
pub(super) struct TuneArg {
    /// How to tune a model's programs, instead of the file's `tune`: none is the program as TensorFlow writes it, auto is
    /// what pays off on the target; a target, such as tpu-v2, tunes for that one, wherever the program runs
    #[arg(long, value_name = "auto|none|TARGET")]
    tune: Option<Flag>,
}

impl TuneArg {
    pub(super) fn is_some(&self) -> bool {
        self.tune.is_some()
    }

    /// How the programs of an experiment are tuned that go to `target`.
    pub(super) fn tuning(&self, experiment: &Experiment, target: &Target) -> Tuning {
        match &self.tune {
            None => experiment.tune.tuning(&target.tuning()),
            Some(Flag::Auto) => target.tuning(),
            Some(Flag::None) => Tuning::none(),
            Some(Flag::For(other)) => {
                if experiment.tune == Tune::None {
                    tracing::warn!("the file says `tune: none`, for {other} too: nothing is tuned");
                }
                experiment.tune.tuning(&other.tuning())
            }
        }
    }

    /// The flag as text, for a command that continues this one.
    pub(super) fn again(&self) -> String {
        match &self.tune {
            None => String::new(),
            Some(Flag::Auto) => " --tune auto".to_string(),
            Some(Flag::None) => " --tune none".to_string(),
            Some(Flag::For(target)) => format!(" --tune {target}"),
        }
    }
}

/// The help of an option that takes TPUs: their names, then `more`.
pub(super) fn targets_help(more: &str) -> String {
    let mut names = Target::tpus();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}{more}", names.join(", "))
}

/// The target that a device is. A plugin in a file may be anything, and is not tuned for.
pub(super) fn target_of(device: &Platform) -> Target {
    match *device == Platform::tpu() {
        // All TPUs are tuned alike.
        true => Target::board(&Spec::ALL[0]),
        false => Target::Cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    fn experiment(tune: &str) -> Experiment {
        document::from_str("e.yaml", &format!("model: {{kind: mlp, input: [4], n_classes: 2}}\n{tune}\n")).unwrap()
    }

    fn tuning(flag: Option<&str>, file: &str, target: &str) -> Tuning {
        let flag = flag.map(|flag| flag.parse().unwrap());
        TuneArg { tune: flag }.tuning(&experiment(file), &target.parse().unwrap())
    }

    #[test]
    fn the_flag_goes_before_the_file_and_a_target_is_what_is_compiled_for_it() {
        for file in ["", "tune: auto", "tune: none", "tune: {softmax: one_pass}", "tune: {base: none, pace: true}"] {
            assert_eq!(tuning(Some("none"), file, "tpu-v3"), Tuning::none(), "{file}");
            assert_eq!(tuning(Some("auto"), file, "tpu-v3"), Tuning::tpu(), "{file}");
            assert_eq!(tuning(Some("auto"), file, "cpu"), Tuning::none(), "{file}");
            assert_eq!(tuning(Some("tpu-v2"), file, "cpu"), tuning(None, file, "tpu-v2"), "{file}");
            assert_eq!(tuning(Some("cpu"), file, "tpu-v2"), tuning(None, file, "cpu"), "{file}");
        }
        assert_eq!(tuning(None, "", "cpu"), Tuning::none());
        assert_eq!(tuning(None, "", "tpu-v2:4x4"), Tuning::tpu());
        assert_eq!(tuning(None, "tune: none", "tpu-v2"), Tuning::none());
        let keys = "tune: {base: none, pace: true}";
        assert_eq!(tuning(None, keys, "tpu-v2"), Tuning::none().with(|tuning| tuning.pace = true));
    }

    #[test]
    fn a_flag_that_is_none_of_them_says_what_there_is() {
        let error = "tpu-v9".parse::<Flag>().unwrap_err();
        assert!(error.starts_with("expected auto, none or a target\nno target `tpu-v9`: expected tpu-v2"), "{error}");
    }
}
