//! Errors of child processes.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A request to a child, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// `compiling`, `running`, …
    pub what: &'static str,
    /// Its object: the name of a module or a device.
    pub of: Option<String>,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Some(object) => write!(f, "{} `{object}`", self.what),
            None => f.write_str(self.what),
        }
    }
}

/// A child that did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChildError {
    /// The program cannot be started.
    #[error("child process: cannot start {}: {source}\nhelp: name a bf16scope program, or one that calls pjrt::serve", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The program is not bf16scope, or has another version.
    #[error(
        "child process: {} is not a bf16scope {} that serves: {why}{}\nhelp: name a bf16scope program of this version, or one that calls pjrt::serve",
        program.display(), env!("CARGO_PKG_VERSION"), quoted(output)
    )]
    NotAServer {
        /// The program.
        program: PathBuf,
        /// Its behaviour.
        why: String,
        /// Its output.
        output: String,
    },
    /// The child died during a request.
    #[error("{doing}: the child process ended with {how}{}\nhelp: {}", quoted(output), ended_help(.doing, .output, *.address_space))]
    Ended {
        /// The request.
        doing: Doing,
        /// A signal, or an exit status.
        how: String,
        /// The end of its standard error.
        output: String,
        /// The limit of its address space, if there is one.
        address_space: Option<u64>,
    },
    /// It exceeded the time limit, and was killed.
    #[error(
        "{doing}: not done after {measured:.1?}, and the limit is {limit:?}\nhelp: raise the limit (--timeout), if it is not a loop without an end"
    )]
    Timeout {
        /// The request.
        doing: Doing,
        /// The time waited.
        measured: Duration,
        /// The time limit.
        limit: Duration,
    },
    /// It exceeded the memory limit, and was killed.
    #[error("{doing}: {measured} bytes of memory in use ({}), and the limit is {limit} ({})\nhelp: raise the limit (--memory), or make the module's arrays smaller", gib(*measured), gib(*limit))]
    Memory {
        /// The request.
        doing: Doing,
        /// Its resident bytes.
        measured: u64,
        /// The memory limit.
        limit: u64,
    },
    /// A request to a child that has died.
    #[error(
        "{doing}: the child process ended before: {why}\nhelp: make another client: arrays and programs are gone with the child"
    )]
    Gone {
        /// The request.
        doing: Doing,
        /// The first line of the error with which it died.
        why: String,
    },
    /// The parent and its child could not communicate.
    #[error("{doing}: cannot communicate with the child process: {source}")]
    Io {
        /// The request.
        doing: Doing,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The answer does not match the request.
    #[error("{doing}: the child process answered {measured}: this is a bug of bf16scope, please report it")]
    Answer {
        /// The request.
        doing: Doing,
        /// The answer.
        measured: String,
    },
    /// An error in the child, as text.
    #[error("{text}")]
    Failed {
        /// The error's text.
        text: String,
    },
}

impl ChildError {
    /// Whether the program caused it: another program may well be compiled, or run, in another child.
    pub fn is_of_the_program(&self) -> bool {
        matches!(self, ChildError::Ended { .. } | ChildError::Timeout { .. } | ChildError::Memory { .. })
    }
}

/// Bytes, for people.
pub(super) fn gib(n_bytes: u64) -> String {
    format!("{:.2} GiB", n_bytes as f64 / f64::from(1u32 << 30))
}

/// A child's output, if any, on separate lines.
fn quoted(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(". It wrote:\n  {}", message.replace('\n', "\n  ")),
    }
}

fn ended_help(doing: &Doing, output: &str, address_space: Option<u64>) -> Cow<'static, str> {
    // Rust's words, at which LLVM's and XLA's recursion ends too.
    if output.contains("overflowed its stack") {
        return "it recursed until its stack was full: likely a function of the program calls itself, or its types or \
                regions are nested thousands of levels deep, and neither has HLO"
            .into();
    }
    if let Some(limit) = address_space {
        let limit = gib(limit);
        return format!(
            "processes may have {limit} of address space here (`ulimit -v`), and XLA ends its own where it gets no more: raise \
             that limit, and bound memory by --memory where the command has it"
        )
        .into();
    }
    match doing.what {
        "compiling" | "running" => {
            "XLA checks some rules by ending its process: the text above, if any, names the one that the module breaks"
                .into()
        }
        "converting" | "reading" => "XLA's converter ends on some programs that it should refuse, such as functions that \
                                     call themselves and types nested thousands of levels deep: the text above, if any, \
                                     says more"
            .into(),
        _ => "try again; if it happens again, -vv shows all that the child wrote".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that the converter does not bear end it each time.
    #[test]
    fn a_child_whose_stack_is_full_is_told_why() {
        let limited = |what: &'static str, output: &str, address_space: Option<u64>| {
            let (doing, how) = (Doing { what, of: Some("StableHLO".to_string()) }, "signal 6, SIGABRT".to_string());
            ChildError::Ended { doing, how, output: output.to_string(), address_space }.to_string()
        };
        let ended = |what, output| limited(what, output, None);
        assert_eq!(
            ended("converting", "thread 'main' has overflowed its stack"),
            "converting `StableHLO`: the child process ended with signal 6, SIGABRT. It wrote:\n  \
             thread 'main' has overflowed its stack\n\
             help: it recursed until its stack was full: likely a function of the program calls itself, or its types or \
             regions are nested thousands of levels deep, and neither has HLO"
        );
        let help =
            |error: String| error.split_once("SIGABRT\nhelp: ").map(|(_, help)| help.to_string()).unwrap_or(error);
        assert_eq!(
            help(ended("converting", "")),
            "XLA's converter ends on some programs that it should refuse, such as functions that call themselves and types \
             nested thousands of levels deep: the text above, if any, says more"
        );
        assert_eq!(help(ended("starting", "")), "try again; if it happens again, -vv shows all that the child wrote");
        assert_eq!(
            help(limited("starting", "", Some(3 << 29))),
            "processes may have 1.50 GiB of address space here (`ulimit -v`), and XLA ends its own where it gets no more: raise \
             that limit, and bound memory by --memory where the command has it"
        );
    }

    /// Faults of a child that is broken, or dies at the wrong moment.
    #[test]
    fn a_child_that_is_not_understood_is_named_with_what_it_was_doing() {
        let doing = || Doing { what: "compiling", of: Some("step".to_string()) };
        let io = ChildError::Io { doing: doing(), source: io::Error::from(io::ErrorKind::BrokenPipe) };
        assert_eq!(io.to_string(), "compiling `step`: cannot communicate with the child process: broken pipe");
        let answer = ChildError::Answer { doing: doing(), measured: "Flag(true)".to_string() };
        assert_eq!(
            answer.to_string(),
            "compiling `step`: the child process answered Flag(true): this is a bug of bf16scope, please report it"
        );
    }
}
