//! Checks that a file is a complete ELF shared library for x86-64. The dynamic loader maps a truncated one and dies of
//! SIGBUS when it touches a missing page, so the check comes first. Reads headers only.
//!
//! Source: System V ABI, ELF-64 object file format (file header, program headers).

use std::fs::File;
use std::io::Read;
use std::path::Path;

const HEADER_BYTES: usize = 64;
/// `ET_DYN`.
const SHARED_OBJECT: u16 = 3;
/// `EM_X86_64`.
const X86_64: u16 = 62;

/// Ok, or why the file cannot be loaded.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_string());
    }
    let n_bytes = metadata.len();
    let mut header = [0u8; HEADER_BYTES];
    if n_bytes < HEADER_BYTES as u64 {
        return Err(format!("it has {n_bytes} bytes, less than an ELF header's {HEADER_BYTES}"));
    }
    file.read_exact(&mut header).map_err(|error| error.to_string())?;
    if &header[..4] != b"\x7fELF" {
        return Err("it does not start with the ELF magic number".to_string());
    }
    if header[4] != 2 || header[5] != 1 || u16_at(&header, 16) != SHARED_OBJECT || u16_at(&header, 18) != X86_64 {
        return Err("it is not a 64-bit x86-64 ELF shared object".to_string());
    }
    // e_shoff, e_shentsize, e_shnum: the section headers are at the end of a linked library.
    let needed = u64_at(&header, 40)
        .saturating_add(u64::from(u16_at(&header, 58)).saturating_mul(u64::from(u16_at(&header, 60))))
        .max(end_of_segments(&mut file, &header, n_bytes)?);
    if n_bytes < needed {
        return Err(format!("it is truncated: measured {n_bytes} bytes, its headers expect {needed}"));
    }
    Ok(())
}

/// The end of the last segment in the file, by the program headers (which follow the file header in a library).
fn end_of_segments(file: &mut File, header: &[u8; HEADER_BYTES], n_bytes: u64) -> Result<u64, String> {
    let (start, entry_bytes, n_entries) =
        (u64_at(header, 32), usize::from(u16_at(header, 54)), usize::from(u16_at(header, 56)));
    let table_end = start.saturating_add((entry_bytes * n_entries) as u64);
    if start != HEADER_BYTES as u64 || entry_bytes < 56 || table_end > n_bytes {
        return Err("its program headers are not where a shared library has them".to_string());
    }
    let mut table = vec![0u8; entry_bytes * n_entries];
    file.read_exact(&mut table).map_err(|error| error.to_string())?;
    // p_offset + p_filesz of each.
    let ends = table.chunks_exact(entry_bytes).map(|entry| u64_at(entry, 8).saturating_add(u64_at(entry, 32)));
    Ok(ends.max().unwrap_or(0))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("a slice of two bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of eight bytes"))
}
