//! Reports why a command could not run: on standard error for people, and with `--json` on standard output too.

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;

use clap::ArgMatches;
use serde::Serialize;

use super::{module_file, progress, terminal};
use bf16scope_audit::AuditError;
use bf16scope_hlo::Module;
use bf16scope_pjrt::PjrtError;

/// Exit code of a command that could not run.
pub(super) const COULD_NOT_RUN: u8 = 2;

/// The parts of an error; the value of `error` in JSON.
#[derive(Debug, PartialEq, Serialize)]
struct Failure {
    message: String,
    /// The remedy.
    help: Option<String>,
    /// The causes, the nearest first, without repetitions of the line above.
    causes: Vec<String>,
    exit_code: u8,
}

impl Failure {
    /// From an error's texts, the outermost first.
    fn from_texts(texts: impl IntoIterator<Item = String>, exit_code: u8) -> Failure {
        let (mut said, mut helps): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        let mut above = String::new();
        for text in texts {
            if !above.contains(&text) || said.is_empty() {
                let mut parts = text.split("\nhelp: ");
                said.extend(parts.next().map(terminal::both_ends_of_message));
                helps.extend(parts.map(terminal::both_ends_of_message));
            }
            above = text;
        }
        let message = if said.is_empty() { String::new() } else { said.remove(0) };
        let help = (!helps.is_empty()).then(|| helps.join("\n"));
        Failure { message, help, causes: said, exit_code }
    }

    /// Prints one line on standard output. If that is closed, there is no other way to report.
    fn print(&self) {
        let text = serde_json::json!({ "error": self }).to_string();
        let mut stdout = io::stdout().lock();
        drop(writeln!(stdout, "{}", terminal::visible_json(&text)).and_then(|()| stdout.flush()));
    }
}

/// Adds to a plugin's error about a module that XLA has already compiled the module, if so.
pub(super) fn about(error: anyhow::Error, module: &Module, path: &Path) -> anyhow::Error {
    let mut causes = error.chain();
    let is_plugins = |cause: &(dyn Error + 'static)| {
        cause.is::<PjrtError>() || matches!(cause.downcast_ref(), Some(AuditError::Pjrt(_)))
    };
    match module.is_scheduled && causes.any(is_plugins) {
        true => error.context(module_file::compiled_already(module, path)),
        false => error,
    }
}

/// Prints an error: `bf16scope: ` and the error, then one indented line for each cause that the line above does not
/// already contain; and as JSON, if requested.
pub(super) fn report(error: &anyhow::Error, exit_code: u8, in_json: bool) {
    let mut text = format!("bf16scope: {error}\n");
    let mut shown = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !shown.contains(&cause) {
            text += &format!("  caused by: {cause}\n");
        }
        shown = cause;
    }
    let help = help_of_system(error);
    if let Some(help) = help {
        text += &format!("  help: {help}\n");
    }
    progress::clear_all();
    // Standard error may be closed as well, and then there is no other way to report.
    drop(io::stderr().lock().write_all(terminal::message(&text).as_bytes()));
    if in_json {
        let mut failure = Failure::from_texts(error.chain().map(ToString::to_string), exit_code);
        failure.help = failure.help.or(help.map(str::to_string));
        failure.print();
    }
}

/// The remedy for an error of the operating system whose message has none.
fn help_of_system(error: &anyhow::Error) -> Option<&'static str> {
    if error.chain().any(|cause| cause.to_string().contains("help: ")) {
        return None;
    }
    let kind = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>())?.kind();
    Some(match kind {
        io::ErrorKind::NotFound => {
            "name a path that is there; a relative one begins at the folder that the command runs in"
        }
        io::ErrorKind::AlreadyExists => "something else is there, or where the path has a folder: name another place",
        io::ErrorKind::NotADirectory => "a part of the path is a file: name a path whose folders are folders",
        io::ErrorKind::InvalidFilename => "the system takes names of 255 bytes at most: choose a shorter one",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space there, or name another place",
        io::ErrorKind::PermissionDenied => "change its permissions (`ls -ld` shows them), or name another place",
        io::ErrorKind::ReadOnlyFilesystem => "nothing can be written there: name another place",
        io::ErrorKind::IsADirectory => "name a file in that folder",
        _ => return None,
    })
}

/// Reports wrong arguments; help and version are also handled here.
pub(super) fn report_usage(error: &clap::Error, in_json: bool) {
    let text = error.render().to_string();
    let message = terminal::message(&text);
    if !error.use_stderr() {
        let shown = terminal::shown(&text);
        drop(if shown == text { error.print() } else { io::stdout().lock().write_all(shown.as_bytes()) });
    } else if message == text {
        // With the terminal's colours. An error means that the terminal is gone.
        drop(error.print());
    } else {
        drop(io::stderr().lock().write_all(message.as_bytes()));
    }
    if in_json && error.use_stderr() {
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        let (message, help) = text.split_once("\n\n").unwrap_or((text, ""));
        Failure::from_texts(
            [format!("{message}{}{help}", if help.is_empty() { "" } else { "\nhelp: " })],
            COULD_NOT_RUN,
        )
        .print();
    }
}

/// Whether the parsed command has `--json`.
pub(super) fn wants_json(matches: &ArgMatches) -> bool {
    let is_set = matches.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json);
    is_set || matches.subcommand().is_some_and(|(_, matches)| wants_json(matches))
}

/// Whether arguments that cannot be parsed contain `--json`.
pub(super) fn mentions_json(mut args: impl Iterator<Item = OsString>) -> bool {
    args.by_ref().take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_taken_apart() {
        let failure = Failure::from_texts(
            ["cannot write x", "cannot write x: denied", "denied\nhelp: chmod\nhelp: or else", "denied"]
                .map(str::to_string),
            2,
        );
        let expected = Failure {
            message: "cannot write x".to_string(),
            help: Some("chmod\nor else".to_string()),
            causes: vec!["cannot write x: denied".to_string(), "denied".to_string()],
            exit_code: 2,
        };
        assert_eq!(failure, expected);
    }

    #[test]
    fn errors_of_the_system_say_what_to_do_unless_the_message_does() {
        let help = |kind: io::ErrorKind, context: &'static str| {
            help_of_system(&anyhow::Error::new(io::Error::from(kind)).context(context))
        };
        assert_eq!(help(io::ErrorKind::StorageFull, "cannot write x"), Some("free space there, or name another place"));
        assert_eq!(help(io::ErrorKind::StorageFull, "cannot write x\nhelp: delete y"), None);
        // A missing file, whatever the command.
        assert!(help(io::ErrorKind::NotFound, "cannot read x.hlo").is_some_and(|help| help.starts_with("name a path")));
        let help_of_file = help(io::ErrorKind::AlreadyExists, "cannot write x/y");
        assert!(help_of_file.is_some_and(|help| help.starts_with("something else is there")));
        assert_eq!(help(io::ErrorKind::BrokenPipe, "cannot write x"), None);
        assert_eq!(help_of_system(&anyhow::anyhow!("no error of the system")), None);
    }

    #[test]
    fn json_is_asked_for_before_the_end_of_options() {
        let mentions = |args: &[&str]| mentions_json(args.iter().map(OsString::from));
        assert!(mentions(&["bits", "--json", "x"]));
        assert!(!mentions(&["bits", "--", "--json"]) && !mentions(&["bits", "--jsonx"]));
    }
}
