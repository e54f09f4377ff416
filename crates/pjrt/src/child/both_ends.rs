//! A child's standard error: the beginning and the end of it, without sequences that could harm a terminal.

use std::collections::VecDeque;

/// Bytes kept of the beginning, and of the end.
const KEPT: usize = 8 << 10;

/// A text of any length; both of its ends are kept.
#[derive(Debug, Default)]
pub(super) struct BothEnds {
    start: Vec<u8>,
    end: VecDeque<u8>,
    n_left_out: usize,
}

impl BothEnds {
    /// Appends text.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        tracing::debug!("child: {}", harmless(&String::from_utf8_lossy(bytes)));
        let (start, rest) = bytes.split_at(bytes.len().min(KEPT - self.start.len()));
        self.start.extend_from_slice(start);
        self.end.extend(rest);
        let n_over = self.end.len().saturating_sub(KEPT);
        self.end.drain(..n_over);
        self.n_left_out += n_over;
    }

    /// The text for people: without stack addresses, which are useless without symbols, and without log prefixes.
    pub(super) fn text(&self) -> String {
        let mut bytes = self.start.clone();
        if self.n_left_out > 0 {
            bytes.extend_from_slice(format!("\n... {} bytes ...\n", self.n_left_out).as_bytes());
        }
        bytes.extend(&self.end);
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<String> = text.lines().filter(|line| !is_noise(line)).map(harmless).collect();
        lines.join("\n").trim().to_string()
    }
}

fn is_noise(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("@ ")
        || line == "*** Check failure stack trace: ***"
        || line.starts_with("WARNING: All log messages before absl::InitializeLog() is called")
}

/// Escapes control characters as Rust does.
fn harmless(text: &str) -> String {
    let keep = |c: char| !c.is_control() || c == '\t';
    text.chars().map(|c| if keep(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_kept() {
        let mut output = BothEnds::default();
        output.push(b"first\n");
        assert_eq!(output.text(), "first");
        for _ in 0..KEPT {
            output.push(b"0123456789\n");
        }
        output.push(b"last\n");
        let text = output.text();
        assert!(text.starts_with("first\n01") && text.ends_with("89\nlast"), "{text}");
        let n_bytes = 6 + 11 * KEPT + 5;
        assert!(text.contains(&format!("\n... {} bytes ...\n", n_bytes - 2 * KEPT)), "{text}");
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        let mut output = BothEnds::default();
        output.push(b"\x1b[2Jred \x07\xff\n    @     0x7f00 (unknown)\n*** Check failure stack trace: ***\nlast");
        assert_eq!(output.text(), "\\u{1b}[2Jred \\u{7}\u{fffd}\nlast");
    }
}
