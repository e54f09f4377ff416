//! A cache directory for one test: the machine's plugins, and no compiles yet.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;

use bf16scope::pjrt::{PluginSpec, Setup, locate};
use tempfile::TempDir;

/// A cache directory whose plugins are the machine's, installed if they were not.
pub fn cache_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::from_env();
    locate(PluginSpec::tpu(), &setup).unwrap();
    let plugins = setup.cache_dir.unwrap().join("plugins");
    std::os::unix::fs::symlink(plugins, dir.path().join("plugins")).unwrap();
    dir
}

/// Where a program run in this test finds its plugins, and keeps its compiles.
pub fn setup(cache_dir: &Path) -> Setup {
    Setup { cache_dir: Some(cache_dir.to_path_buf()), ..Setup::from_env() }
}
