//! Where a plugin comes from: a path, an environment variable, the cache directory, or [`install`].
//!
//! The user's settings are in `setup`, the pinned plugin in `spec`; nothing is linked at build time.

use std::path::{Path, PathBuf};

use super::install::{InstallError, install};
use super::setup::{Located, Setup, Source, variable};
use super::whole::{self, Installed};
use super::{Pinned, PjrtError, PjrtErrorKind, PjrtPlace, PluginSpec};

/// The file that a user or caller named as the plugin, and its source. It need not exist.
pub fn named(spec: &PluginSpec, setup: &Setup) -> Option<(PathBuf, Source)> {
    let from_spec = spec.path.clone().map(|path| (path, Source::Given));
    let named = || spec.variable.filter(|_| setup.variables).and_then(variable);
    from_spec.or_else(|| Some((named()?.into(), Source::Named)))
}

/// Finds a plugin, and installs it if it is missing. Nothing is loaded.
pub fn locate(spec: &PluginSpec, setup: &Setup) -> Result<Located, PjrtError> {
    if let Some((path, source)) = named(spec, setup) {
        if !path.exists() {
            let named_by = if source == Source::Named { spec.variable_or_path() } else { "plugin:PATH" };
            return Err(PjrtError::missing(&path, named_by));
        }
        return Ok(Located { path, source });
    }
    let Some(artifact) = &spec.artifact else {
        let place = PjrtPlace::Plugin(spec.name.to_string());
        let error = PjrtError::new(PjrtErrorKind::Plugin, place, "no file and no wheel is named for it");
        return Err(error.with_help(format!("name its library in {}", spec.variable_or_path())));
    };
    let cache_dir = setup.cache_dir.as_deref().ok_or(InstallError::NoCacheDir)?;
    let path = artifact.path_in(cache_dir);
    if whole::installed(artifact, &path) == Installed::Whole {
        return Ok(Located { path, source: Source::Cache });
    }
    Ok(install(artifact, spec.variable_or_path(), setup)?)
}

/// The state of a pinned library in a cache directory. Nothing is installed.
pub fn installed(artifact: &Pinned, cache_dir: &Path) -> Installed {
    whole::installed(artifact, &artifact.path_in(cache_dir))
}
