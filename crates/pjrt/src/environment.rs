//! The environment variables of this process that plugins read when they are loaded.
//!
//! Setting one is safe only while no other thread reads the environment: Rust's own functions synchronise with each
//! other, but C's `getenv` with nothing. So variables are set only while this process has a single thread, which is
//! checked: a program with threads calls [`prepare_environment`] first in `main`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::{PjrtError, PjrtErrorKind, PjrtPlace, PluginSpec, Purpose, Setting};

/// Variables that this crate set for compiling without a device. A plugin that runs programs must not see them.
static SET_TO_COMPILE: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Sets the variables that the pinned plugins read when they are loaded, unless they are set.
///
/// Loading a plugin does this as well, and fails if it must set a variable while this process has other threads. A
/// program with threads of its own calls this first in `main`:
///
/// ```no_run
/// use bf16scope_pjrt::{Purpose, prepare_environment};
///
/// fn main() -> Result<(), bf16scope_pjrt::PjrtError> {
///     prepare_environment(Purpose::Compile)?; // For TPUs, without one.
///     // Threads may start here.
///     Ok(())
/// }
/// ```
///
/// # Errors
/// A variable must be set and this process has more than the calling thread.
pub fn prepare_environment(purpose: Purpose) -> Result<(), PjrtError> {
    for spec in PluginSpec::pinned() {
        prepare(spec, purpose)?;
    }
    #[cfg(feature = "xla")]
    keep_roundings();
    Ok(())
}

/// Sets the variables that this plugin reads when it is loaded, unless they are set.
pub(super) fn prepare(spec: &PluginSpec, purpose: Purpose) -> Result<(), PjrtError> {
    let missing: Vec<Setting> = unset(spec, purpose).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut set_to_compile = SET_TO_COMPILE.lock().unwrap_or_else(PoisonError::into_inner);
    let n_threads = n_threads();
    if n_threads != Some(1) {
        let needed: Vec<Setting> = missing.into_iter().filter(|setting| setting.purpose.is_some()).collect();
        return match needed.is_empty() {
            // The only consequence is noise from the plugin on stderr.
            true => Ok(()),
            false => Err(unset_under_threads(spec, needed[0], purpose, n_threads)),
        };
    }
    for setting in missing {
        // SAFETY: this process has one thread, as just counted, which is this one: no other thread reads the
        // environment.
        unsafe { std::env::set_var(setting.variable, setting.value) };
        if setting.purpose == Some(Purpose::Compile) {
            set_to_compile.insert(setting.variable);
        }
    }
    Ok(())
}

/// Sets the variables that other pinned plugins read when they compile for devices that are not here, unless they are set. A
/// plugin that is loaded starts threads, after which none can be set: a program that trains on the CPU may ask for a TPU's
/// compiler later.
pub(super) fn prepare_others(spec: &PluginSpec) -> Result<(), PjrtError> {
    let is_absent = |other: &&PluginSpec| {
        other.name != spec.name && other.hardware.as_ref().is_some_and(|hardware| !hardware.is_here())
    };
    match n_threads() {
        Some(1) => {
            PluginSpec::pinned().into_iter().filter(is_absent).try_for_each(|other| prepare(other, Purpose::Compile))
        }
        _ => Ok(()),
    }
}

/// The error for a required variable that cannot be set while other threads may read the environment.
fn unset_under_threads(spec: &PluginSpec, setting: Setting, purpose: Purpose, n_threads: Option<usize>) -> PjrtError {
    let Setting { variable, value, .. } = setting;
    let threads = n_threads.map_or("threads that cannot be counted".to_string(), |n| format!("{n} threads"));
    let text = format!("{variable} is unset, and cannot be set safely in a process of {threads}");
    environment_error(spec, text).with_help(format!(
        "call pjrt::prepare_environment(Purpose::{purpose:?}) first in main, or start the process with {variable}={value}"
    ))
}

fn environment_error(spec: &PluginSpec, text: String) -> PjrtError {
    PjrtError::new(PjrtErrorKind::Plugin, PjrtPlace::Plugin(spec.name.to_string()), text)
}

fn unset(spec: &PluginSpec, purpose: Purpose) -> impl Iterator<Item = Setting> {
    spec.environment(purpose).copied().filter(|setting| std::env::var_os(setting.variable).is_none())
}

/// Ok, or an error if variables that this process set for compiling would interfere with running.
pub(super) fn check(spec: &PluginSpec, purpose: Purpose) -> Result<(), PjrtError> {
    let set = set_against(purpose);
    let variables: Vec<&str> =
        set.into_iter().filter(|set| spec.settings.iter().any(|it| it.variable == *set)).collect();
    match variables.is_empty() {
        true => Ok(()),
        false => {
            let text = format!(
                "it is to run on devices that are here, and this process set {} to compile for devices that are not",
                variables.join(", ")
            );
            Err(environment_error(spec, text).with_help("run in another process, or in a child (Client::in_child)"))
        }
    }
}

/// Variables that this process set for compiling, if that is not the purpose.
fn set_against(purpose: Purpose) -> Vec<&'static str> {
    match purpose {
        Purpose::Compile => Vec::new(),
        Purpose::Run => SET_TO_COMPILE.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect(),
    }
}

/// Checks that the grid variables of `spec`, where set, hold a grid's sizes.
pub(super) fn check_grids(spec: &PluginSpec) -> Result<(), PjrtError> {
    for &variable in spec.grids {
        let Some(value) = std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned()) else {
            continue;
        };
        if !value.is_empty() && !is_grid(&value) {
            let text =
                format!("{variable} is {value:?}, expected three whole numbers from 1 up, with commas, such as 2,2,1");
            let help = "correct it, or unset it: the plugin would end the process over it";
            return Err(environment_error(spec, text).with_help(help));
        }
    }
    Ok(())
}

fn is_grid(value: &str) -> bool {
    value.split(',').count() == 3 && value.split(',').all(|size| size.parse::<u32>().is_ok_and(|size| size > 0))
}

/// How a child's environment differs from this process's: variables to set, or to remove. The environment of a new
/// process can always be chosen.
pub(super) fn of_child(spec: &PluginSpec, purpose: Purpose) -> Vec<(&'static str, Option<&'static str>)> {
    let set = unset(spec, purpose).map(|setting| (setting.variable, Some(setting.value)));
    let removed = set_against(purpose).into_iter().map(|variable| (variable, None));
    set.chain(removed).collect()
}

/// Threads of this process; `None` if the system does not say.
fn n_threads() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

/// Turns XLA's excess precision off for the process, unless the user's `XLA_FLAGS` set it: xla-rs offers no other way,
/// and reports if it is on. Plugins get the option with each program, whatever these flags are.
#[cfg(feature = "xla")]
fn keep_roundings() {
    const VARIABLE: &str = "XLA_FLAGS";
    const FLAG: &str = "xla_allow_excess_precision";
    let flags = std::env::var(VARIABLE).unwrap_or_default();
    if !flags.contains(FLAG) && n_threads() == Some(1) {
        // SAFETY: this process has one thread, as just counted, which is this one: no other thread reads the
        // environment.
        unsafe { std::env::set_var(VARIABLE, format!("{flags} --{FLAG}=false").trim_start()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_three_sizes() {
        assert!(["2,2,1", "16,16,1"].iter().all(|value| is_grid(value)));
        assert!(["2,2", "2,2,1,1", "2,,1", "0,2,1", "2x2x1", "-1,2,1", "2, 2,1"].iter().all(|value| !is_grid(value)));
    }

    #[test]
    fn a_variable_that_cannot_be_set_says_where_to_set_it() {
        let setting = Setting { variable: "A", value: "1", purpose: Some(Purpose::Compile) };
        assert_eq!(
            unset_under_threads(PluginSpec::tpu(), setting, Purpose::Compile, None).to_string(),
            "plugin tpu: A is unset, and cannot be set safely in a process of threads that cannot be counted\nhelp: call \
             pjrt::prepare_environment(Purpose::Compile) first in main, or start the process with A=1"
        );
    }
}
