//! A choice of devices that overrides the file's mesh, and a check that a slice has room for them.

use std::num::NonZeroU32;

use super::StudyError;
use bf16scope_tpu::Target;
use bf16scope_train::Mesh;

/// The devices of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeshChoice {
    /// The mesh in the file.
    #[default]
    OfFile,
    /// This many devices, with the file's number of partitions per replica.
    Devices(NonZeroU32),
    /// This many replicas, with this many devices each.
    Axes {
        /// Replicas.
        data: NonZeroU32,
        /// Partitions of each.
        model: NonZeroU32,
    },
}

impl MeshChoice {
    /// The mesh with the chosen replicas.
    ///
    /// # Errors
    /// The devices do not divide into replicas of the mesh.
    pub fn over(self, mesh: Mesh) -> Result<Mesh, StudyError> {
        match self {
            MeshChoice::OfFile => Ok(mesh),
            MeshChoice::Devices(n) => of_devices(mesh, n),
            MeshChoice::Axes { data, .. } => Ok(mesh.of_replicas(data)),
        }
    }

    /// Partitions of each replica.
    pub fn n_partitions(self, mesh: Mesh) -> u32 {
        match self {
            MeshChoice::Axes { model, .. } => model.get(),
            MeshChoice::OfFile | MeshChoice::Devices(_) => mesh.model.get(),
        }
    }
}

/// A mesh of `n` devices, with as many devices per replica as in `mesh`.
///
/// # Errors
/// The devices do not divide in that way.
pub fn of_devices(mesh: Mesh, n: NonZeroU32) -> Result<Mesh, StudyError> {
    let model = mesh.model;
    let replicas = NonZeroU32::new(n.get() / model).filter(|_| n.get().is_multiple_of(model.get()));
    let replicas = replicas.ok_or_else(|| StudyError::devices(n, model))?;
    Ok(mesh.of_replicas(replicas))
}

/// Checks that this many devices can be placed on a slice.
///
/// # Errors
/// Their number does not divide the slice.
pub fn check_slice(mesh: Mesh, n_partitions: u32, target: &Target) -> Result<(), StudyError> {
    let n = u64::from(mesh.data.get()) * u64::from(n_partitions);
    // The compiler itself refuses too many devices, and names a slice that is large enough.
    if let Some(n_cores) = target.n_cores().filter(|&n_cores| n <= n_cores && !n_cores.is_multiple_of(n)) {
        let below = (1..=n).rev().find(|n| n_cores.is_multiple_of(*n)).unwrap_or(1);
        return Err(StudyError::slice(n, target, n_cores, below));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_as_many_replicas_as_they_are_enough_for() {
        let n = |n: u32| NonZeroU32::new(n).unwrap();
        let mut mesh = Mesh::replicas(n(2));
        mesh.model = n(2);
        let n_replicas = |devices| MeshChoice::Devices(n(devices)).over(mesh).map(|mesh| mesh.data.get());
        assert_eq!(n_replicas(8).unwrap(), 4);
        let message = |devices| n_replicas(devices).unwrap_err().to_string();
        assert!(
            message(1).starts_with("1 device does not split in replicas of 2 (`mesh: {model: 2}`)\n"),
            "{}",
            message(1)
        );
        assert!(message(5).starts_with("5 devices do not split in replicas of 2"), "{}", message(5));
        let axes = MeshChoice::Axes { data: n(8), model: n(2) };
        assert_eq!(axes.over(mesh).unwrap().data.get(), 8);
    }
}
