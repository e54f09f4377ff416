//! One example as a program gets it: for inspecting data, not for training.

use super::{Loader, NamedArray};
use crate::error::DataError;

impl Loader<'_> {
    /// Example `index` as a batch of one: in evaluation mode, or as training sees it in `epoch`, with the same windows,
    /// flips and shifts. A bad example is not replaced by another.
    ///
    /// # Errors
    /// Those of an item of [`Loader::epoch`] or [`Loader::in_order`].
    pub fn example(&self, index: u64, epoch: Option<u64>) -> Result<Vec<NamedArray>, DataError> {
        let mut arrays: Vec<NamedArray> = self.columns.iter().map(|column| column.zeros(1)).collect();
        let mut place: Vec<&mut [u8]> = arrays.iter_mut().map(|array| &mut array.bytes[..]).collect();
        self.fill(index, epoch, &mut place)?;
        Ok(arrays)
    }
}
