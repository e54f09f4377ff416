//! Mutations of serialized messages: of fields in the wire format, and of bits.
//!
//! Source: the protocol buffers' encoding. The mutations are independent of the schema.

use rand::Rng;
use rand::rngs::SmallRng;

/// Varints at which something overflows, ends, or means nothing.
const NUMBERS: [u64; 14] =
    [0, 1, 2, 3, 5, 11, 16, 127, 128, 1 << 31, (1 << 31) - 1, 1 << 32, i64::MAX as u64, u64::MAX];

/// A field: its key, and what it holds.
#[derive(Clone)]
enum Field {
    Varint(u64, u64),
    /// 8 or 4 bytes.
    Fixed(u64, Vec<u8>),
    /// Bytes, text, or a message.
    Bytes(u64, Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

fn put(mut value: u64, into: &mut Vec<u8>) {
    while value > 127 {
        into.push(value as u8 | 128);
        value >>= 7;
    }
    into.push(value as u8);
}

/// The fields of a message, if the bytes are one.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let n_bytes = match key & 7 {
            0 => {
                fields.push(Field::Varint(key, varint(&mut bytes)?));
                continue;
            }
            1 => 8,
            5 => 4,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            _ => return None,
        };
        let (held, rest) = bytes.split_at_checked(n_bytes)?;
        bytes = rest;
        let held = held.to_vec();
        fields.push(if key & 7 == 2 { Field::Bytes(key, held) } else { Field::Fixed(key, held) });
    }
    (!fields.is_empty()).then_some(fields)
}

fn bytes_of(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        match field {
            Field::Varint(key, value) => {
                put(*key, &mut bytes);
                put(*value, &mut bytes);
            }
            Field::Fixed(key, held) => {
                put(*key, &mut bytes);
                bytes.extend(held);
            }
            Field::Bytes(key, held) => {
                put(*key, &mut bytes);
                put(held.len() as u64, &mut bytes);
                bytes.extend(held);
            }
        }
    }
    bytes
}

/// Changes the message once: one of its fields or a nested message's, or, rarely, bits or the end regardless of fields.
pub fn mutate(random: &mut SmallRng, bytes: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    match random.random_range(0..12) {
        0 if !changed.is_empty() => {
            let at = random.random_range(0..changed.len());
            changed[at] ^= 1 << random.random_range(0..8);
        }
        1 => changed.truncate(random.random_range(0..=bytes.len())),
        _ => {
            if let Some(of_field) = of_field(random, bytes) {
                changed = of_field;
            }
        }
    }
    changed
}

fn of_field(random: &mut SmallRng, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut fields = fields(bytes)?;
    let at = random.random_range(0..fields.len());
    // A field that can be a message usually is one, and its fields are more interesting than itself.
    if let Field::Bytes(_, held) = &mut fields[at]
        && random.random_bool(0.9)
        && let Some(changed) = of_field(random, held)
    {
        *held = changed;
        return Some(bytes_of(&fields));
    }
    match random.random_range(0..6) {
        0 => drop(fields.remove(at)),
        1 => fields.insert(at, fields[at].clone()),
        2 => {
            let other = random.random_range(0..fields.len());
            fields.swap(at, other);
        }
        _ => match &mut fields[at] {
            Field::Varint(_, value) => {
                *value = match random.random_range(0..3) {
                    0 => value.wrapping_add(1),
                    1 => value.wrapping_sub(1),
                    _ => NUMBERS[random.random_range(0..NUMBERS.len())],
                }
            }
            Field::Fixed(_, held) | Field::Bytes(_, held) => {
                if held.is_empty() {
                    held.push(1);
                }
                let byte = random.random_range(0..held.len());
                held[byte] = held[byte].wrapping_add(random.random_range(1..4));
            }
        },
    }
    Some(bytes_of(&fields))
}
