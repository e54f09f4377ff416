//! Builds commands for the user to type next, with paths quoted for a shell.

use std::path::Path;

pub(super) use bf16scope_study::word;

/// An option with its value, preceded by a space; empty without a value.
pub(super) fn option(flag: &str, path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| format!(" {flag} {}", word(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_its_flag_and_a_word() {
        assert_eq!(option("--run", Some(Path::new("a b"))), " --run 'a b'");
        assert_eq!(option("--run", None), "");
    }
}
