//! How many devices share a step, instead of what its file says; whether a slice has room for them.

use std::num::NonZeroU32;

use super::StudyError;
use bf16scope_tpu::Target;
use bf16scope_train::Mesh;

/// The devices of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeshChoice {
    /// As the file says.
    #[default]
    OfFile,
    /// So many, in replicas of as many as the file says.
    Devices(NonZeroU32),
    /// So many replicas, of so many devices each.
    Axes {
        /// Replicas.
        data: NonZeroU32,
        /// Partitions of each.
        model: NonZeroU32,
    },
}

impl MeshChoice {
    /// A mesh with the replicas that are chosen.
    ///
    /// # Errors
    /// Devices that do not split in replicas of the mesh.
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

/// A mesh of `n` devices, which are replicas of as many as it says.
///
/// # Errors
/// Devices that do not split so.
pub fn of_devices(mesh: Mesh, n: NonZeroU32) -> Result<Mesh, StudyError> {
    let model = mesh.model;
    let replicas = NonZeroU32::new(n.get() / model).filter(|_| n.get().is_multiple_of(model.get()));
    let replicas = replicas.ok_or_else(|| StudyError::devices(n, model))?;
    Ok(mesh.of_replicas(replicas))
}

/// Whether so many devices can be laid over a slice.
///
/// # Errors
/// A number of them that does not divide the slice.
pub fn check_slice(mesh: Mesh, n_partitions: u32, target: &Target) -> Result<(), StudyError> {
    let n = u64::from(mesh.data.get()) * u64::from(n_partitions);
    // What is too large the compiler's own check refuses, and names the slice that is enough.
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
        let of = |devices| MeshChoice::Devices(n(devices)).over(mesh).map(|mesh| mesh.data.get());
        assert_eq!(of(8).unwrap(), 4);
        let said = |devices| of(devices).unwrap_err().to_string();
        assert!(said(1).starts_with("1 device does not split in replicas of 2 (`mesh: {model: 2}`)\n"), "{}", said(1));
        assert!(said(5).starts_with("5 devices do not split in replicas of 2"), "{}", said(5));
        let axes = MeshChoice::Axes { data: n(8), model: n(2) };
        assert_eq!(axes.over(mesh).unwrap().data.get(), 8);
    }
}
