//! Reads little-endian numbers from bytes that may end anywhere.

/// Bytes, consumed from the front.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// An unsigned number of up to eight bytes.
    pub fn number(&mut self, n_bytes: usize) -> Option<u64> {
        let bytes = self.take(n_bytes).filter(|bytes| bytes.len() <= 8)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| (number << 8) | u64::from(byte)))
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.number(1).map(|byte| byte as u8)
    }

    pub fn short(&mut self) -> Option<u16> {
        self.number(2).map(|short| short as u16)
    }

    pub fn word(&mut self) -> Option<u32> {
        self.number(4).map(|word| word as u32)
    }

    pub fn long(&mut self) -> Option<u64> {
        self.number(8)
    }

    /// A length as a `usize`.
    pub fn size(&mut self, n_bytes: usize) -> Option<usize> {
        usize::try_from(self.number(n_bytes)?).ok()
    }
}
