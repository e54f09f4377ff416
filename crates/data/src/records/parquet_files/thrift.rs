//! Thrift's compact protocol, as much of it as the heads of Parquet's pages need.
//!
//! The crate `parquet` reads footers and keeps its reader of page heads to itself. Ours reads a structure to a map of what its
//! numbers are called in `parquet.thrift`, so that sizes are looked at before anything is allocated.
//!
//! Source: `thrift-compact-protocol.md` of Apache Thrift.

use std::collections::BTreeMap;

/// Structures within structures at most; Parquet has four.
const MAX_DEPTH: usize = 16;

/// A structure: its fields by number.
pub(super) type Struct = BTreeMap<i16, Field>;

/// A field's value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field {
    Int(i64),
    Bool(bool),
    Struct(Struct),
    /// Texts, lists, maps and floats, of which it is enough that they are there.
    Other,
}

/// Why there is no structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes end within it.
    Short,
    /// They are none.
    Wrong,
}

/// Reads the structure at the beginning of `bytes`; also how many bytes it has.
pub(super) fn read(bytes: &[u8]) -> Result<(Struct, usize), Fault> {
    let mut reader = Reader { bytes, at: 0 };
    let found = reader.structure(0)?;
    Ok((found, reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.bytes.get(self.at).ok_or(Fault::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, n_bytes: u64) -> Result<(), Fault> {
        let end = usize::try_from(n_bytes).ok().and_then(|n| self.at.checked_add(n)).ok_or(Fault::Wrong)?;
        if end > self.bytes.len() {
            return Err(Fault::Short);
        }
        self.at = end;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::Wrong)
    }

    fn zigzag(&mut self) -> Result<i64, Fault> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn structure(&mut self, depth: usize) -> Result<Struct, Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::Wrong);
        }
        let (mut found, mut id) = (Struct::new(), 0i16);
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(found);
            }
            id = match head >> 4 {
                0 => i16::try_from(self.zigzag()?).map_err(|_| Fault::Wrong)?,
                delta => id.checked_add(i16::from(delta)).ok_or(Fault::Wrong)?,
            };
            let value = match head & 0x0f {
                1 => Field::Bool(true),
                2 => Field::Bool(false),
                kind => self.value(kind, depth)?,
            };
            found.insert(id, value);
        }
    }

    /// A value as it stands in a list too, where a bool takes a byte.
    fn value(&mut self, kind: u8, depth: usize) -> Result<Field, Fault> {
        match kind {
            1..=3 => self.skip(1)?,
            4..=6 => return Ok(Field::Int(self.zigzag()?)),
            7 => self.skip(8)?,
            8 => {
                let n_bytes = self.varint()?;
                self.skip(n_bytes)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let n = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                self.elements(n, &[head & 0x0f], depth)?;
            }
            11 => {
                let n = self.varint()?;
                if n > 0 {
                    let kinds = self.byte()?;
                    self.elements(n, &[kinds >> 4, kinds & 0x0f], depth)?;
                }
            }
            12 => return Ok(Field::Struct(self.structure(depth + 1)?)),
            13 => self.skip(16)?,
            _ => return Err(Fault::Wrong),
        }
        Ok(Field::Other)
    }

    fn elements(&mut self, n: u64, kinds: &[u8], depth: usize) -> Result<(), Fault> {
        if depth >= MAX_DEPTH {
            return Err(Fault::Wrong);
        }
        // Each takes a byte at least, so this ends with the bytes.
        for _ in 0..n {
            for kind in kinds {
                self.value(*kind, depth + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_read_and_what_is_none_is_refused() {
        // {1: -1, 2: true, 5: {1: 300}, 6: "ab", 7: [1, 2], 23: false}
        let bytes = [
            0x15, 0x01, 0x11, 0x3c, 0x15, 0xd8, 0x04, 0x00, 0x18, 2, b'a', b'b', 0x19, 0x25, 2, 4, 0x02, 46, 0x00, 0x99,
        ];
        let (found, n_bytes) = read(&bytes).unwrap();
        let inner = Struct::from([(1, Field::Int(300))]);
        let expected = [
            (1, Field::Int(-1)),
            (2, Field::Bool(true)),
            (5, Field::Struct(inner)),
            (6, Field::Other),
            (7, Field::Other),
            (23, Field::Bool(false)),
        ];
        assert_eq!((found, n_bytes), (expected.into(), bytes.len() - 1));
        for end in 0..bytes.len() - 1 {
            assert_eq!(read(&bytes[..end]), Err(Fault::Short), "{end}");
        }
        // A kind that is none; structures without end; a list of 2^60 structures of no bytes each cannot be.
        assert_eq!(read(&[0x1f, 0]), Err(Fault::Wrong));
        assert_eq!(read(&[0x1c; 100]), Err(Fault::Wrong));
        assert_eq!(read(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0]), Err(Fault::Short));
    }
}
