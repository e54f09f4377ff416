//! Quotes paths for commands that a user may type next.

use std::path::Path;

/// A path as one word of a POSIX shell: unchanged if it has no special characters, otherwise in single quotes.
pub fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
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
    }
}
