//! Pages as a browser shows them.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Chromium, which the page is checked in.
fn chromium() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    found.into_iter().find(|file| file.is_file()).unwrap_or_else(|| {
        panic!(
            "no Chromium on the PATH ({}): the page is checked in it\nhelp: apt-get install chromium",
            names.join(", ")
        )
    })
}

/// The page's document after its scripts have run.
pub fn dom(page: &Path) -> String {
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
    dom
}
