//! What can go wrong with a child.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What a child was asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// `compiling`, `running`, …
    pub what: &'static str,
    /// Of what: a module's name, a device's.
    pub of: Option<String>,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.of {
            Some(of) => write!(f, "{} `{of}`", self.what),
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
    /// The program is another one, or another version.
    #[error(
        "child process: {} is not a bf16scope {} that serves: {why}{}\nhelp: name a bf16scope program of this version, or one that calls pjrt::serve",
        program.display(), env!("CARGO_PKG_VERSION"), quoted(said)
    )]
    NotAServer {
        /// The program.
        program: PathBuf,
        /// What it did instead.
        why: String,
        /// What it wrote.
        said: String,
    },
    /// The child ended in the middle.
    #[error("{doing}: the child process ended with {how}{}\nhelp: {}", quoted(said), ended_help(.doing, *.address_space))]
    Ended {
        /// What it was doing.
        doing: Doing,
        /// A signal, or an exit status.
        how: String,
        /// What was last written on standard error.
        said: String,
        /// The address space that it might have had, where that is limited.
        address_space: Option<u64>,
    },
    /// It took too long, and was ended.
    #[error(
        "{doing}: not done after {measured:.1?}, and the limit is {limit:?}\nhelp: raise the limit (--timeout), if it is not a loop without an end"
    )]
    Timeout {
        /// What it was doing.
        doing: Doing,
        /// How long it was waited for.
        measured: Duration,
        /// How long it might have taken.
        limit: Duration,
    },
    /// It took too much memory, and was ended.
    #[error("{doing}: {measured} bytes of memory in use ({}), and the limit is {limit} ({})\nhelp: raise the limit (--memory), or make the module's arrays smaller", gib(*measured), gib(*limit))]
    Memory {
        /// What it was doing.
        doing: Doing,
        /// Its resident bytes.
        measured: u64,
        /// How many it might have had.
        limit: u64,
    },
    /// A child that ended before was asked again.
    #[error(
        "{doing}: the child process ended before: {why}\nhelp: make another client: arrays and programs are gone with the child"
    )]
    Gone {
        /// What it was asked to do.
        doing: Doing,
        /// The first line of the error that it ended with.
        why: String,
    },
    /// The parent and its child could not communicate.
    #[error("{doing}: cannot communicate with the child process: {source}")]
    Io {
        /// What it was asked to do.
        doing: Doing,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// An answer to another question.
    #[error("{doing}: the child process answered {measured}: this is a bug of bf16scope, please report it")]
    Answer {
        /// What it was asked to do.
        doing: Doing,
        /// What it answered.
        measured: String,
    },
    /// An error that the child met, in its words.
    #[error("{text}")]
    Failed {
        /// The error's text.
        text: String,
    },
}

impl ChildError {
    /// Whether it is the program's doing: another program may well be compiled, or run, in another child.
    pub fn is_of_the_program(&self) -> bool {
        matches!(self, ChildError::Ended { .. } | ChildError::Timeout { .. } | ChildError::Memory { .. })
    }
}

/// Bytes, for eyes.
pub(super) fn gib(n_bytes: u64) -> String {
    format!("{:.2} GiB", n_bytes as f64 / f64::from(1u32 << 30))
}

/// What a child wrote, if anything, on lines of its own.
fn quoted(said: &str) -> String {
    match said {
        "" => String::new(),
        said => format!(". It wrote:\n  {}", said.replace('\n', "\n  ")),
    }
}

fn ended_help(doing: &Doing, address_space: Option<u64>) -> Cow<'static, str> {
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
        _ => "try again; if it happens again, -vv shows all that the child wrote".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What only a child that is broken, or gone at the wrong moment, does.
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
