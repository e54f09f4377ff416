//! Text attributes: a group's `name`, which is Keras' name for the layer whose variables are in the group, and `dtype`
//! of a dataset whose type HDF5 lacks.
//!
//! Source: the HDF5 File Format Specification, version 3.0, sections III.E (global heap) and IV.A.2.m (the message).

use super::cursor::Cursor;
use super::header::{Message, Structure};

const ATTRIBUTE: u16 = 0x0C;
/// The largest size of a name.
const MAX_NAME: usize = 4096;
/// The largest size of a heap of texts; h5py's have 4,096 bytes.
const MAX_HEAP: u64 = 1 << 20;
/// Classes of datatypes.
const FIXED_TEXT: u8 = 3;
const VARIABLE_LENGTH: u8 = 9;

/// The text of an object's attribute; `None` if it does not exist or is not a text.
pub(super) fn text(file: &Structure<'_>, messages: &[Message], name: &str) -> Option<String> {
    let attributes = messages.iter().filter(|message| message.kind == ATTRIBUTE && !message.is_shared);
    let (class, value) = attributes.into_iter().find_map(|message| named(&message.bytes, name))?;
    let bytes = match class {
        FIXED_TEXT => value.to_vec(),
        VARIABLE_LENGTH => {
            let mut rest = Cursor(value);
            let (n_bytes, heap, idx) = (rest.size(4)?, rest.long()?, rest.word()?);
            in_heap(file, heap, idx)?.get(..n_bytes)?.to_vec()
        }
        _ => return None,
    };
    let text = String::from_utf8(bytes).ok()?;
    let text = text.trim_end_matches('\0');
    let is_name = !text.is_empty() && text.len() <= MAX_NAME && !text.chars().any(char::is_control);
    is_name.then(|| text.to_string())
}

/// The class of the datatype, and the value, if the attribute has this name.
fn named<'a>(bytes: &'a [u8], expected: &str) -> Option<(u8, &'a [u8])> {
    let mut rest = Cursor(bytes);
    let (version, _flags) = (rest.byte()?, rest.byte()?);
    let [name, datatype, dataspace] = [rest.size(2)?, rest.size(2)?, rest.size(2)?];
    rest.take(if version == 3 { 1 } else { 0 })?;
    // The first version pads each part to eight bytes.
    let mut part = |n: usize| rest.take(if version == 1 { n.next_multiple_of(8) } else { n });
    let is_it = part(name)?.split(|&byte| byte == 0).next() == Some(expected.as_bytes());
    let class = part(datatype)?.first()? & 0x0f;
    part(dataspace)?;
    is_it.then_some((class, rest.0))
}

/// An object of a global heap.
fn in_heap(file: &Structure<'_>, at: u64, idx: u32) -> Option<Vec<u8>> {
    let head = file.read(at, 16, "a heap of texts").ok()?;
    let n_bytes = Cursor(head.strip_prefix(b"GCOL")?.get(4..)?).long()?;
    let heap = file.read(at, Some(n_bytes).filter(|&n| n <= MAX_HEAP)?, "a heap of texts").ok()?;
    let mut rest = Cursor(heap.get(16..)?);
    loop {
        let (number, _references, _reserved, n) = (rest.short()?, rest.short()?, rest.word()?, rest.size(8)?);
        // The object with number 0 is the free space.
        if number == 0 {
            return None;
        }
        let bytes = rest.take(n.checked_next_multiple_of(8)?)?;
        if u32::from(number) == idx {
            return Some(bytes[..n].to_vec());
        }
    }
}
