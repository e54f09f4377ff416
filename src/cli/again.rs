//! Commands that a user may type next: paths in them are words of a shell.

use std::path::Path;

/// A path as one word of a POSIX shell: as it is where nothing in it means something there, else in single quotes.
pub(super) fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// An option with its value, behind a space; nothing for none.
pub(super) fn option(flag: &str, path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| format!(" {flag} {}", word(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_the_path_back() {
        for path in
            ["a.yaml", "my runs/a.yaml", "it's", "a;b&c|d", "$HOME/*", "ä/ö", "", "`x`", "a\nb", "~/x", "#", "-v"]
        {
            let shell = Command::new("sh").args(["-c", &format!("printf %s {}", word(Path::new(path)))]).output();
            assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), path);
        }
        assert_eq!(word(Path::new("runs/mlp-bf16")), "runs/mlp-bf16");
        assert_eq!(option("--run", Some(Path::new("a b"))), " --run 'a b'");
        assert_eq!(option("--run", None), "");
    }
}
