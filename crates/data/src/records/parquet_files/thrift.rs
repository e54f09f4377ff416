//! Thrift's compact protocol, as far as Parquet's page headers need it.
//!
//! The crate `parquet` reads footers but does not export its reader of page headers. This one reads a structure to a
//! map from the field numbers of `parquet.thrift`, so that sizes are checked before anything is allocated.
//!
//! Source: `thrift-compact-protocol.md` of Apache Thrift.

use std::collections::BTreeMap;

/// The largest nesting depth of structures; Parquet has four.
const MAX_DEPTH: usize = 16;

/// A structure: its fields by number.
pub(super) type Struct = BTreeMap<i16, Field>;

/// A field's value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field {
    Int(i64),
    Bool(bool),
    Struct(Struct),
    /// Texts, lists, maps and floats: only their presence matters.
    Other,
}

/// Why bytes are not a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes end within it.
    Short,
    /// The bytes are not valid.
    Wrong,
}

/// Reads the structure at the beginning of `bytes`; also returns its size.
pub(super) fn read(bytes: &[u8]) -> Result<(Struct, usize), Fault> {
    let mut reader = Reader { bytes, at: 0 };
    let fields = reader.structure(0)?;
    Ok((fields, reader.at))
}

/// The largest nesting depth of groups, and the largest total size of all columns' names including their groups': a
/// long group name is repeated in every column in it.
const MAX_GROUPS: usize = 64;
const MAX_NAMES: usize = 64 << 20;

/// Checks that a schema is small enough to walk: a footer's field 2, a list of elements, each with its number of
/// children (field 5). Returns the fault.
pub(super) fn fault_of_schema(footer: &[u8]) -> Option<String> {
    let mut reader = Reader { bytes: footer, at: 0 };
    let n = reader.pass_to_schema()?;
    // For each open group, the number of children still to come, and the size of its name including the groups around
    // it.
    let mut open: Vec<(i64, usize)> = Vec::new();
    let mut n_names = 0usize;
    for _ in 0..n {
        let from = reader.at;
        let element = reader.structure(0).ok()?;
        let around = open.last().map_or(0, |group| group.1);
        // An upper bound: its encoding is longer than its name.
        let n_bytes = around + reader.at - from;
        match element.get(&5) {
            Some(&Field::Int(n)) if n > 0 => open.push((n, n_bytes)),
            _ => n_names = n_names.saturating_add(n_bytes),
        }
        if open.len() > MAX_GROUPS {
            return Some(format!("its groups are in one another deeper than {MAX_GROUPS}"));
        }
        if n_names > MAX_NAMES {
            return Some(format!("the names of its columns have more than {MAX_NAMES} bytes"));
        }
        if element.get(&5).is_some_and(|n| matches!(n, Field::Int(1..))) {
            continue;
        }
        while let Some(group) = open.last_mut() {
            group.0 -= 1;
            if group.0 > 0 {
                break;
            }
            open.pop();
        }
    }
    None
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

    /// Skips to the first element of a footer's schema, and returns the number of elements.
    fn pass_to_schema(&mut self) -> Option<u64> {
        let mut id = 0i16;
        loop {
            let head = self.byte().ok().filter(|&head| head != 0)?;
            id = match head >> 4 {
                0 => i16::try_from(self.zigzag().ok()?).ok()?,
                delta => id.checked_add(i16::from(delta))?,
            };
            match (id, head & 0x0f) {
                (2, 9) => {
                    let head = self.byte().ok()?;
                    return if head >> 4 == 15 { self.varint().ok() } else { Some(u64::from(head >> 4)) };
                }
                (_, 1 | 2) => {}
                (_, kind) => drop(self.value(kind, 0).ok()?),
            }
        }
    }

    fn structure(&mut self, depth: usize) -> Result<Struct, Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::Wrong);
        }
        let (mut fields, mut id) = (Struct::new(), 0i16);
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(fields);
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
            fields.insert(id, value);
        }
    }

    /// A value as it is stored in a list too, where a bool takes a byte.
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
        // Each takes at least a byte, so this ends with the bytes.
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

    /// Version 1, and a schema of these elements: names, and numbers of children.
    fn footer(elements: &[(&str, u64)]) -> Vec<u8> {
        let varint = |mut value: u64| {
            let mut bytes = Vec::new();
            while value >= 0x80 {
                bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
            bytes
        };
        let mut bytes = vec![0x15, 2, 0x19, 0xfc];
        bytes.extend(varint(elements.len() as u64));
        for (name, n_children) in elements {
            bytes.extend([&[0x48][..], &varint(name.len() as u64), name.as_bytes()].concat());
            bytes.extend([&[0x15][..], &varint(n_children * 2), &[0]].concat());
        }
        bytes.push(0);
        bytes
    }

    /// Ten thousand nested groups used to crash the process when they were dropped.
    #[test]
    fn a_schema_that_is_too_deep_or_whose_names_are_too_long_is_told_before_it_is_read() {
        let nested = |n: usize| [vec![("g", 1); n], vec![("leaf", 0)]].concat();
        assert_eq!(fault_of_schema(&footer(&nested(64))), None);
        let deep = Some("its groups are in one another deeper than 64".to_string());
        assert_eq!(fault_of_schema(&footer(&nested(65))), deep);
        assert_eq!(fault_of_schema(&footer(&nested(10_000))), deep);
        // Side by side: a root of a hundred groups of one leaf each.
        let wide = [vec![("root", 100)], [("g", 1), ("leaf", 0)].repeat(100)].concat();
        assert_eq!(fault_of_schema(&footer(&wide)), None);
        let long = "n".repeat(1 << 20);
        let shared = [vec![(&*long, 100)], vec![("leaf", 0); 100]].concat();
        let expected = "the names of its columns have more than 67108864 bytes".to_string();
        assert_eq!(fault_of_schema(&footer(&shared)), Some(expected));
    }

    #[test]
    fn a_structure_is_read_and_what_is_none_is_refused() {
        // {1: -1, 2: true, 5: {1: 300}, 6: "ab", 7: [1, 2], 23: false}
        let bytes = [
            0x15, 0x01, 0x11, 0x3c, 0x15, 0xd8, 0x04, 0x00, 0x18, 2, b'a', b'b', 0x19, 0x25, 2, 4, 0x02, 46, 0x00, 0x99,
        ];
        let (fields, n_bytes) = read(&bytes).unwrap();
        let inner = Struct::from([(1, Field::Int(300))]);
        let expected = [
            (1, Field::Int(-1)),
            (2, Field::Bool(true)),
            (5, Field::Struct(inner)),
            (6, Field::Other),
            (7, Field::Other),
            (23, Field::Bool(false)),
        ];
        assert_eq!((fields, n_bytes), (expected.into(), bytes.len() - 1));
        for end in 0..bytes.len() - 1 {
            assert_eq!(read(&bytes[..end]), Err(Fault::Short), "{end}");
        }
        // An unknown type; endlessly nested structures; a list of 2^60 structures of no bytes each is impossible.
        assert_eq!(read(&[0x1f, 0]), Err(Fault::Wrong));
        assert_eq!(read(&[0x1c; 100]), Err(Fault::Wrong));
        assert_eq!(read(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0]), Err(Fault::Short));
    }
}
