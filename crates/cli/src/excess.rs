//! `--excess-precision`: whether the TPU compiler may keep more precision than a program specifies.
//!
//! JAX and TensorFlow compile their modules with excess precision, XLA's default, so the figures of such a module are
//! computed in the same way. Programs that bf16scope built keep every rounding: their figures are those of the program
//! that trains. On a CPU, numbers are always compared without excess precision. A program runs on a TPU as its figures
//! were compiled.

use bf16scope_pjrt::Platform;
use bf16scope_study::Asking;

/// The argument.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct ExcessArgs {
    /// Whether the compiler may leave out roundings to bf16 between wider operations [default: on for a module, as in JAX and
    /// TensorFlow; off for a model]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    excess_precision: Option<Switch>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Switch {
    /// It may
    On,
    /// Every rounding is kept
    Off,
}

impl ExcessArgs {
    /// Sets the compiler's option from the argument, or else as the program's framework would.
    pub(super) fn asking(self, asking: Asking, is_foreign: bool) -> Asking {
        let excess_precision = self.excess_precision.map_or(is_foreign, |switch| switch == Switch::On);
        Asking { excess_precision, ..asking }
    }
}

/// Whether a program runs with excess precision on a device: as requested, or on a TPU like the default of `compile`.
pub(super) fn to_run(asked: Option<Switch>, device: &Platform, is_reported: bool) -> bool {
    asked.map_or(*device == Platform::tpu() && is_reported, |switch| switch == Switch::On)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_compiled_as_its_framework_would_unless_told_otherwise() {
        let asked = |excess_precision: Option<Switch>, is_foreign: bool| {
            ExcessArgs { excess_precision }.asking(Asking::default(), is_foreign).excess_precision
        };
        assert_eq!((asked(None, true), asked(None, false)), (true, false));
        assert_eq!((asked(Some(Switch::Off), true), asked(Some(Switch::On), false)), (false, true));
    }

    #[test]
    fn what_runs_on_a_tpu_is_compiled_as_it_was_reported() {
        let (tpu, cpu) = (Platform::tpu(), Platform::cpu());
        assert_eq!((to_run(None, &tpu, true), to_run(None, &tpu, false)), (true, false));
        assert_eq!((to_run(None, &cpu, true), to_run(Some(Switch::On), &cpu, false)), (false, true));
        assert!(!to_run(Some(Switch::Off), &tpu, true));
    }
}
