//! Arrays on the host, where they are compared.
//!
//! Their memory is reused for later arrays: an audit fetches thousands of arrays of a few sizes, and getting memory
//! from the system takes several times as long as copying an array.

use std::sync::{Arc, Mutex, PoisonError};

use super::AuditError;
use super::device::Held;
use bf16scope_hlo::{ArrayShape, DType};

/// Memory that no array uses.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Vec<Box<[u8]>>>);

/// The elements of an array, on the host.
#[derive(Debug)]
pub(super) struct Bytes {
    pub dtype: DType,
    n: usize,
    /// The array, possibly with spare bytes behind it.
    memory: Box<[u8]>,
    spare: Arc<Spare>,
}

impl Bytes {
    /// The elements of a comparable array.
    pub(super) fn fetch(array: &Held, spare: &Arc<Spare>) -> Result<Bytes, AuditError> {
        let n = ArrayShape::new(array.dtype, array.dims.clone()).n_bytes();
        let n = usize::try_from(n).expect("an array that the device has is one that can be addressed");
        let mut bytes = Bytes { dtype: array.dtype, n, memory: spare.take(n), spare: Arc::clone(spare) };
        array.buffer.copy_to_host(&mut bytes.memory[..n])?;
        Ok(bytes)
    }

    /// Dense and row-major.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.n]
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.spare.pieces().push(std::mem::take(&mut self.memory));
    }
}

impl Spare {
    fn pieces(&self) -> std::sync::MutexGuard<'_, Vec<Box<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest piece that is large enough; without one, a new piece replaces the largest. So there are
    /// never more pieces than there were arrays at once.
    fn take(&self, n: usize) -> Box<[u8]> {
        let mut pieces = self.pieces();
        let large_enough = pieces.iter().enumerate().filter(|(_, piece)| piece.len() >= n);
        if let Some((idx, _)) = large_enough.min_by_key(|(_, piece)| piece.len()) {
            return pieces.swap_remove(idx);
        }
        if let Some((idx, _)) = pieces.iter().enumerate().max_by_key(|(_, piece)| piece.len()) {
            drop(pieces.swap_remove(idx));
        }
        drop(pieces);
        vec![0; n].into_boxed_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let spare = Arc::new(Spare::default());
        let with_size = |n| Bytes { dtype: DType::F32, n, memory: spare.take(n), spare: Arc::clone(&spare) };
        let lengths = || spare.pieces().iter().map(|piece| piece.len()).collect::<Vec<usize>>();
        drop((with_size(4), with_size(8)));
        assert_eq!(lengths(), [4, 8]);
        let (small, large) = (with_size(3), with_size(5));
        assert_eq!((small.bytes().len(), large.bytes().len(), lengths().len()), (3, 5, 0));
        drop((small, large));
        assert_eq!(lengths(), [4, 8]);
        drop(with_size(16));
        assert_eq!(lengths(), [4, 16], "the largest made room");
    }
}
