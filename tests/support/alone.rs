//! Tests of what holds for a whole process: each runs in one of its own, which this test program starts again.

use std::process::Command;

/// Says to the process that was started which test it is for.
const VARIABLE: &str = "BF16SCOPE_TEST_ALONE";

/// Runs `body` in a process that runs nothing else. `test` is the test's whole name, as the test program lists it.
pub fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(VARIABLE).is_some_and(|name| name == test) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, test)
        .output()
        .unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{test}, alone: {}\n{said}", output.status);
}
