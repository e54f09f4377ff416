//! A choice of tuning that overrides the file's.

use std::fmt;
use std::str::FromStr;

use bf16scope_passes::tuning::{Tune, Tuning};
use bf16scope_tpu::Target;

/// A tuning that overrides the file's or task's. As text: `auto`, `none` or a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TuneChoice {
    /// As in the file.
    #[default]
    OfFile,
    /// The choices that are beneficial on the program's target.
    Auto,
    /// No tuning.
    None,
    /// The file's tuning for this target, wherever the program runs.
    For(Target),
    /// This tuning, on any target.
    These(Box<Tuning>),
}

impl TuneChoice {
    /// The tuning of programs for `target` whose file or task specifies `tune`.
    pub fn tuning(&self, tune: &Tune, target: &Target) -> Tuning {
        match self {
            TuneChoice::OfFile => tune.tuning(&target.tuning()),
            TuneChoice::Auto => target.tuning(),
            TuneChoice::None => Tuning::none(),
            TuneChoice::These(tuning) => (**tuning).clone(),
            TuneChoice::For(other) => {
                if *tune == Tune::None {
                    tracing::warn!("the file says `tune: none`, for {other} too: nothing is tuned");
                }
                tune.tuning(&other.tuning())
            }
        }
    }
}

impl FromStr for TuneChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<TuneChoice, String> {
        match text {
            "auto" => Ok(TuneChoice::Auto),
            "none" => Ok(TuneChoice::None),
            target => {
                target.parse().map(TuneChoice::For).map_err(|error| format!("expected auto, none or a target\n{error}"))
            }
        }
    }
}

impl fmt::Display for TuneChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TuneChoice::OfFile => f.write_str("as the file says"),
            TuneChoice::Auto => f.write_str("auto"),
            TuneChoice::None => f.write_str("none"),
            TuneChoice::For(target) => target.fmt(f),
            TuneChoice::These(_) => f.write_str("as the objective says"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_model::document;
    use bf16scope_train::experiment::Experiment;

    fn of_file(tune: &str) -> Tune {
        let text = format!("model: {{kind: mlp, input: [4], n_classes: 2}}\n{tune}\n");
        document::from_str::<Experiment>("e.yaml", &text).unwrap().tune
    }

    fn tuning(choice: Option<&str>, file: &str, target: &str) -> Tuning {
        let choice = choice.map_or(TuneChoice::OfFile, |choice| choice.parse().unwrap());
        choice.tuning(&of_file(file), &target.parse().unwrap())
    }

    #[test]
    fn the_choice_goes_before_the_file_and_a_target_is_what_is_compiled_for_it() {
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
    fn a_choice_that_is_none_of_them_says_what_there_is() {
        let error = "tpu-v9".parse::<TuneChoice>().unwrap_err();
        assert!(error.starts_with("expected auto, none or a target\nno target `tpu-v9`: expected tpu-v2"), "{error}");
    }
}
