//! The file that `jax.export` serializes: a FlatBuffer around a portable artifact.
//!
//! Only the program, its platforms and the number of devices are read; every offset is checked against the file.
//!
//! Source: the FlatBuffers binary format; the table `Exported` of jax 0.10's `jax/_src/export/serialization.py`.

/// Places in the table's vtable, in bytes: its two sizes, then one u16 per field.
const FIELD_N_DEVICES_SHORT: usize = 16;
const FIELD_PLATFORMS: usize = 22;
const FIELD_MODULE: usize = 30;
const FIELD_N_DEVICES: usize = 40;

/// The first bytes of MLIR bytecode.
pub(super) const BYTECODE: &[u8] = b"ML\xefR";

/// The parts of an exported function.
pub(super) struct Exported<'a> {
    /// MLIR bytecode.
    pub(super) module: &'a [u8],
    /// How many devices it is for.
    pub(super) n_devices: u64,
    /// The platforms it is lowered for: `cpu`. With several, the program's first parameter is the number of the platform.
    pub(super) platforms: Vec<String>,
}

/// Platforms that are read at most; JAX has four.
const MAX_PLATFORMS: usize = 16;

/// Reads the parts; `None` for another file, or a damaged one.
pub(super) fn read(bytes: &[u8]) -> Option<Exported<'_>> {
    let table = u32_at(bytes, 0)?;
    let vtable = i64::try_from(table).ok()? - i64::from(u32_at(bytes, table)? as u32 as i32);
    let vtable = usize::try_from(vtable).ok()?;
    let size = usize::from(u16_at(bytes, vtable)?);
    // The place of a field in the file; none where the writer left it out.
    let field = |at: usize| {
        let offset = if at + 2 <= size { usize::from(u16_at(bytes, vtable.checked_add(at)?)?) } else { 0 };
        (offset != 0).then(|| table.checked_add(offset)).flatten()
    };
    let place = field(FIELD_MODULE)?;
    let vector = place.checked_add(u32_at(bytes, place)?)?;
    let start = vector.checked_add(4)?;
    let module = bytes.get(start..start.checked_add(u32_at(bytes, vector)?)?)?;
    if !module.starts_with(BYTECODE) {
        return None;
    }
    let long = field(FIELD_N_DEVICES).and_then(|at| u32_at(bytes, at));
    let short = || field(FIELD_N_DEVICES_SHORT).and_then(|at| u16_at(bytes, at)).map(usize::from);
    let n_devices = long.filter(|&n| n > 0).or_else(short).unwrap_or(1);
    let platforms = field(FIELD_PLATFORMS).and_then(|at| strings(bytes, at)).unwrap_or_default();
    Some(Exported { module, n_devices: n_devices as u64, platforms })
}

/// The strings of the vector that is named here.
fn strings(bytes: &[u8], place: usize) -> Option<Vec<String>> {
    let vector = place.checked_add(u32_at(bytes, place)?)?;
    let string = |idx: usize| {
        let place = vector.checked_add(4 + 4 * idx)?;
        let string = place.checked_add(u32_at(bytes, place)?)?;
        let start = string.checked_add(4)?;
        let text = bytes.get(start..start.checked_add(u32_at(bytes, string)?)?)?;
        Some(std::str::from_utf8(text).ok()?.to_string())
    };
    (0..u32_at(bytes, vector)?.min(MAX_PLATFORMS)).map(string).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORTED: &[u8] = include_bytes!("../../../tests/data/stablehlo/mlp.jax");

    #[test]
    fn a_file_of_jax_gives_its_program() {
        let exported = read(EXPORTED).unwrap();
        assert_eq!((&exported.module[..4], exported.n_devices), (BYTECODE, 1));
        assert_eq!(exported.platforms, ["cpu"]);
        assert_eq!(read(include_bytes!("../../../tests/data/stablehlo/sharded.jax")).unwrap().n_devices, 8);
        let several = read(include_bytes!("../../../tests/data/stablehlo/platforms.jax")).unwrap();
        assert_eq!(several.platforms, ["cpu", "tpu"]);
    }

    #[test]
    fn no_offset_leads_out_of_the_file() {
        for n in 0..EXPORTED.len() {
            // Cut anywhere: no panic; and no program that is not whole.
            if let Some(exported) = read(&EXPORTED[..n]) {
                assert_eq!(exported.module, read(EXPORTED).unwrap().module);
            }
        }
        for at in 0..EXPORTED.len().min(400) {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = EXPORTED.to_vec();
                bytes[at] = value;
                let _ = read(&bytes);
            }
        }
    }
}
