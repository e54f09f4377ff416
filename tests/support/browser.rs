//! Pages as a browser shows them, where `BF16SCOPE_TEST_PAGES` asks for that: `ci/check` does, and has a browser.
//!
//! Without it no browser is started. What the tests ask of a page's markup they ask before; one line says what is left.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Set to look at pages: a browser that is missing is then a failure.
const ASKED: &str = "BF16SCOPE_TEST_PAGES";

/// Chromium, which the page is checked in.
fn chromium() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    found.into_iter().find(|file| file.is_file()).unwrap_or_else(|| {
        panic!(
            "{ASKED} is set, and there is no Chromium on the PATH ({}): pages are looked at in it\nhelp: apt-get install \
             chromium, or unset {ASKED}",
            names.join(", ")
        )
    })
}

/// The page's document after its scripts have run; `None` if nobody asked for it.
pub fn dom(page: &Path) -> Option<String> {
    if std::env::var_os(ASKED).is_none_or(|asked| asked.is_empty() || asked == "0") {
        static SAID: Once = Once::new();
        let line = "pages are checked as text, in no browser: BF16SCOPE_TEST_PAGES=1 looks at them in Chromium";
        // Past the harness, which keeps what a passing test prints to itself.
        SAID.call_once(|| drop(writeln!(std::io::stderr(), "{line}")));
        return None;
    }
    let profile = tempfile::tempdir().unwrap();
    let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
                 --disable-component-update --disable-sync --disable-dev-shm-usage --dump-dom";
    let output = Command::new(chromium())
        .args(flags.split_whitespace())
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && dom.contains("</html>"), "{}\n{dom}", String::from_utf8_lossy(&output.stderr));
    Some(dom)
}
