//! Searches a list of layers for segments that are alike, and ranks them by the lines that a block would save.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::parameters::ParameterPart;
use super::{Line, Wires, covered, is_merge};

/// Steps of a search at most, which bounds the length of segments in a long list.
const MAX_STEPS: usize = 400_000;

/// How many candidates are tried.
const N_CANDIDATES: usize = 60;

/// Layers of a block at least.
const SHORTEST: usize = 3;

/// Lines that a block has to save at least.
const LEAST_SAVED: i64 = 3;

/// Segments that are alike.
#[derive(Debug)]
pub(super) struct Alike {
    pub starts: Vec<usize>,
    pub length: usize,
}

/// Candidates for the next block.
pub(super) fn best(lines: &[Line], wires: &Wires) -> Vec<Alike> {
    let longest = (lines.len() / 2).min(MAX_STEPS / lines.len().max(1));
    let kinds: Vec<u64> = lines.iter().map(kind_of).collect();
    let mut groups: HashMap<(u64, usize), Vec<usize>> = HashMap::new();
    for start in 0..lines.len() {
        let mut hash = 0_u64;
        let mut outside: Vec<&str> = Vec::new();
        for length in 1..=longest.min(lines.len() - start) {
            let at = start + length - 1;
            let reads: Vec<(bool, usize)> =
                lines[at].reads.iter().map(|read| way(lines, wires, start, at, read, &mut outside)).collect();
            hash = hash_of(&(hash, kinds[at], reads));
            if length >= SHORTEST {
                groups.entry((hash, length)).or_default().push(start);
            }
        }
    }
    let mut candidates: Vec<(i64, Alike)> = Vec::new();
    for ((_, length), starts) in groups {
        let starts = apart(&starts, length);
        if starts.len() < 2 {
            continue;
        }
        let saved = saved(lines, wires, &starts, length);
        if saved >= LEAST_SAVED {
            candidates.push((saved, Alike { starts, length }));
        }
    }
    // A hash map's order differs from run to run.
    candidates.sort_by_key(|(saved, alike)| (-saved, alike.starts[0], alike.length));
    candidates.into_iter().take(N_CANDIDATES).map(|(_, alike)| alike).collect()
}

/// The starts whose segments do not overlap, first come first served.
fn apart(starts: &[usize], length: usize) -> Vec<usize> {
    let mut taken: Vec<usize> = Vec::new();
    for start in starts {
        if taken.last().is_none_or(|last| last + length <= *start) {
            taken.push(*start);
        }
    }
    taken
}

/// Lines that a block saves: the replaced lines, less its definition, its uses, and names that only its readers need.
fn saved(lines: &[Line], wires: &Wires, starts: &[usize], length: usize) -> i64 {
    let inner = |start: usize| &lines[start..start + length];
    let range = |start: usize| covered(inner(start));
    let is_odd = |at: usize| {
        !lines[starts[0] + at].has_variables
            && starts.iter().any(|start| wires.outside(&lines[start + at].name, &range(*start)))
    };
    let n_odd = (0..length - 1).filter(|at| is_odd(*at)).count();
    let n_inputs = super::outside_reads(inner(starts[0]), wires).len();
    // Consecutive uses are a single line.
    let n_uses = (0..starts.len()).filter(|n| *n == 0 || starts[n - 1] + length != starts[*n]).count() as i64;
    let (n, length) = (starts.len() as i64, length as i64);
    n * length - n_uses - length - 3 - 3 * (n_inputs as i64 - 1) - 2 * n_odd as i64
}

/// The source of a read: how many lines before in the segment, or which of the names outside.
fn way<'l>(
    lines: &'l [Line],
    wires: &Wires,
    start: usize,
    at: usize,
    read: &'l str,
    outside: &mut Vec<&'l str>,
) -> (bool, usize) {
    let is_inside = wires.position(read).is_some_and(|flat| flat >= lines[start].range.start);
    if is_inside {
        let from = (start..at).rev().find(|other| lines[*other].name == read);
        return (true, from.map_or(0, |from| at - from));
    }
    let number = outside.iter().position(|other| *other == read).unwrap_or_else(|| {
        outside.push(read);
        outside.len() - 1
    });
    (false, number)
}

/// A hash of everything that a parameter cannot express.
fn kind_of(line: &Line) -> u64 {
    let form = |text: &str| -> String {
        let mut form = String::new();
        for c in text.chars() {
            match c {
                '0'..='9' | '.' => {
                    if !form.ends_with('#') {
                        form.push('#');
                    }
                }
                c => form.push(c),
            }
        }
        form
    };
    let parts = line.block.as_ref().map(|block| block.parts.clone());
    let options: Vec<(&str, String)> = line
        .options
        .iter()
        .enumerate()
        .map(|(number, (option, value))| {
            let is_name_part = parts.as_ref().is_some_and(|parts| parts[number] != ParameterPart::Value);
            (option.as_str(), if is_name_part { String::new() } else { form(value) })
        })
        .collect();
    let first = if is_merge(&line.kind) { String::new() } else { form(&line.first) };
    hash_of(&(&line.kind, first, options, line.reads.len(), line.has_variables))
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
