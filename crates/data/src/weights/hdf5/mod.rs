//! HDF5 files, as Keras and h5py write weights: `.weights.h5`, `.h5`, and the one inside a `.keras` archive. Read only.
//!
//! Supported: superblocks of versions 0 to 3 (`header`), old and new groups (`groups`), datasets of numbers, booleans
//! and fixed-length texts in the header, contiguous, or chunked (`dataset`, `chunks`), with the filters gzip, shuffle
//! and Fletcher32. Anything else is refused by its name, elements in other files (external or virtual) included. A
//! dataset that was never written is its fill value, or listed as one without values if it has none. Each path to a
//! dataset is the name of an array; if Keras recorded the names
//! of the layers on that path (`attributes`), an array is found by those names too: `layers/dense_1/vars/0` is the
//! first variable of `logits`, and also `logits/vars/0`. Other attributes are ignored.
//!
//! Source: the HDF5 File Format Specification, version 3.0.

mod attributes;
mod chunks;
mod cursor;
mod dataset;
mod groups;
mod header;
mod layers;

use std::collections::BTreeSet;
use std::path::Path;

use zip::CompressionMethod;

use self::chunks::Chunk;
use self::dataset::{Dataset, Filter, Layout};
use self::header::Structure;
use super::region::{PIECE, Region, Sink};
use super::torch::{Zip, broken};
use super::{Entry, Format, Opened, Reader, WeightsDType, WeightsError, WeightsErrorKind, n_bytes};
use bf16scope_files as files;
use bf16scope_hlo::DType;

/// The first bytes of an HDF5 file.
pub(super) const MAGIC: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
/// The weights of a `.keras` archive.
pub(super) const KERAS_MEMBER: &str = "model.weights.h5";
/// The type of a dataset that was never written and has no fill value.
const WITHOUT_VALUES: &str = "elements that were never written";
/// The largest nesting depth of groups.
const MAX_DEPTH: usize = 64;
/// The largest total size of all names: a long name is stored once and repeated in every path through it.
const MAX_NAMES: u64 = 64 << 20;

struct Hdf5 {
    region: Region,
    arrays: Vec<(Dataset, Vec<Chunk>)>,
}

/// Reads the list of arrays in a file.
pub(super) fn open(region: Region, format: Format) -> Result<Opened, WeightsError> {
    let mut listing = Found::default();
    let (file, root) = Structure::open(&region)?;
    listing.walk(&file, root, &Place::default(), 0)?;
    let Found { entries, arrays, left_out, .. } = listing;
    Ok(Opened { format, entries, reader: Box::new(Hdf5 { region, arrays }), left_out, order: Vec::new() })
}

/// Opens the weights of a `.keras` archive, which are an uncompressed member, and verifies the member's checksum.
pub(super) fn open_keras(path: &Path, mut zip: Zip) -> Result<Opened, WeightsError> {
    let mut member = zip.by_name(KERAS_MEMBER).map_err(|error| broken(path, error))?;
    if member.compression() != CompressionMethod::Stored {
        let message = format!("its {KERAS_MEMBER} is packed ({}), as Keras does not do", member.compression());
        return Err(WeightsError::unsupported(path, message).help(format!("unpack it, and name {KERAS_MEMBER}")));
    }
    let (start, n_bytes) = (member.data_start(), member.size());
    std::io::copy(&mut member, &mut std::io::sink()).map_err(|cause| {
        WeightsError::damaged(path, start, format!("its {KERAS_MEMBER} cannot be read")).because(cause)
    })?;
    drop(member);
    let layers = layers::of_model(&mut zip);
    let opened = open(Region::open(path)?.part(KERAS_MEMBER, start, n_bytes)?, Format::Keras)?;
    let order = layers.and_then(|layers| layers::order(&layers, &opened.entries)).unwrap_or_default();
    Ok(Opened { order, ..opened })
}

/// The group with the variables of a Keras layer, by number.
const VARIABLES: &str = "vars";

/// An object's position in the tree of groups.
#[derive(Default)]
struct Place {
    /// The names that lead to it.
    path: String,
    /// The layers that contain it, by Keras' names.
    layer: String,
    /// Whether its parent is a layer's `vars`.
    is_variable: bool,
}

impl Place {
    fn last(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    fn is_variables(&self) -> bool {
        self.last() == VARIABLES
    }

    /// The alias of an array here.
    fn alias(&self) -> Option<String> {
        let is_named = self.is_variable && !self.layer.is_empty();
        is_named.then(|| format!("{}/{VARIABLES}/{}", self.layer, self.last()))
    }
}

/// A name appended to a path.
fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}/{name}") }
}

#[derive(Default)]
struct Found {
    entries: Vec<Entry>,
    arrays: Vec<(Dataset, Vec<Chunk>)>,
    left_out: Vec<String>,
    seen: BTreeSet<u64>,
    n_name_bytes: u64,
    /// Bytes of arrays whose elements an earlier array has too.
    n_repeated: u64,
}

impl Found {
    /// The datasets of a group and of its subgroups. A dataset that several names lead to is an array for each of them;
    /// a group is read under the first, as it may contain itself.
    fn walk(&mut self, file: &Structure<'_>, at: u64, place: &Place, depth: usize) -> Result<(), WeightsError> {
        let path = &place.path;
        self.n_name_bytes += (path.len() + place.layer.len()) as u64;
        if depth > MAX_DEPTH || self.n_name_bytes > MAX_NAMES {
            return Err(file.unsupported(at, "its groups are in one another too deep, or their names too long"));
        }
        let messages = file.messages(at)?;
        let is_first = self.seen.insert(at);
        if groups::is_group(&messages) {
            if !is_first {
                self.left_out.push(format!("{path} (another name of a group)"));
                return Ok(());
            }
            let mut links = groups::links(file, at, &messages)?;
            links.sort();
            let variables = links.iter().find(|(name, _)| name == VARIABLES).and_then(|(_, object)| *object);
            let called = match variables.filter(|_| depth > 0) {
                Some(variables) => attributes::text(file, &file.messages(variables)?, "name"),
                None => None,
            };
            let layer = called.map_or(place.layer.clone(), |name| joined(&place.layer, &name));
            for (name, object) in links {
                let below =
                    Place { path: joined(path, &name), layer: layer.clone(), is_variable: place.is_variables() };
                match object {
                    Some(object) => self.walk(file, object, &below, depth + 1)?,
                    None => self.left_out.push(format!("{} (a link by name)", below.path)),
                }
            }
            return Ok(());
        }
        match dataset::read(file, at, path, &messages)? {
            Some(dataset) => {
                self.add(file, at, place, dataset)?;
                if is_first { Ok(()) } else { self.count_repeated(file) }
            }
            None => {
                self.left_out.push(format!("{path} (neither a group nor a dataset)"));
                Ok(())
            }
        }
    }

    fn add(&mut self, file: &Structure<'_>, at: u64, place: &Place, mut dataset: Dataset) -> Result<(), WeightsError> {
        let name = place.path.as_str();
        let wrong = |message: String| file.damaged(at, format!("dataset `{name}` {message}"));
        let too_much = || wrong(super::too_much(&dataset.dims));
        let n_elements = n_bytes(DType::U8, &dataset.dims).ok_or_else(too_much)?;
        let n_bytes = n_elements.checked_mul(dataset.width as u64).ok_or_else(too_much)?;
        let what = format!("dataset `{name}`");
        let is_unwritten = dataset.layout.is_unwritten();
        if is_unwritten && n_bytes > 0 && dataset.fill.is_none() {
            dataset.dtype = WeightsDType::Other(WITHOUT_VALUES);
        }
        let chunks = match &dataset.layout {
            // A type that is not numeric is not read, and needs no place.
            _ if matches!(dataset.dtype, WeightsDType::Other(_)) => Vec::new(),
            Layout::Compact(bytes) if bytes.len() as u64 >= n_bytes => Vec::new(),
            _ if is_unwritten => Vec::new(),
            Layout::Contiguous(Some((at, n))) if *n >= n_bytes => {
                file.region.check(*at, n_bytes, &what)?;
                Vec::new()
            }
            Layout::Chunked { dims, index } => chunks::find(file, at, name, &dataset, dims, *index)?,
            Layout::Compact(_) | Layout::Contiguous(_) => {
                return Err(wrong(format!("has fewer than the {n_bytes} bytes of its elements")));
            }
        };
        let (dtype, dims) = (dataset.dtype, dataset.dims.clone());
        self.entries.push(Entry {
            name: name.to_string(),
            aliases: place.alias().into_iter().collect(),
            dtype,
            dims,
            n_bytes,
        });
        self.arrays.push((dataset, chunks));
        Ok(())
    }

    /// Counts the last array, whose elements an earlier one has too: any number of names may lead to a dataset.
    fn count_repeated(&mut self, file: &Structure<'_>) -> Result<(), WeightsError> {
        self.n_repeated = self.n_repeated.saturating_add(self.entries.last().map_or(0, |entry| entry.n_bytes));
        if !files::is_bomb(file.region.n_bytes(), self.n_repeated) {
            return Ok(());
        }
        let message = format!(
            "further names of its datasets stand for {} bytes, in a file of {}; expected at most {} times as many beyond \
             {} bytes",
            self.n_repeated,
            file.region.n_bytes(),
            files::MAX_UNPACKED_RATIO,
            files::UNPACKED_WITHOUT_QUESTION
        );
        let error = WeightsError::new(WeightsErrorKind::TooLarge, file.region.path(), message);
        Err(error.help("write each dataset under one name"))
    }
}

impl Hdf5 {
    /// Refuses a dataset whose chunks together unpack to too many times their compressed size, even if each alone is
    /// acceptable.
    fn check_ratio(&self, entry: &Entry, dataset: &Dataset, chunks: &[Chunk]) -> Result<(), WeightsError> {
        let stored = chunks.iter().fold(0u64, |n, chunk| n.saturating_add(chunk.n_bytes()));
        if !dataset.filters.contains(&Filter::Deflate) || !files::is_bomb(stored, entry.n_bytes) {
            return Ok(());
        }
        let message = format!(
            "dataset `{}`: {stored} packed bytes are to become {}; expected at most {} times as many beyond {} bytes: it \
             may be a decompression bomb",
            entry.name,
            entry.n_bytes,
            files::MAX_UNPACKED_RATIO,
            files::UNPACKED_WITHOUT_QUESTION
        );
        let error = WeightsError::new(WeightsErrorKind::TooLarge, self.region.path(), message);
        Err(error.help("if it is not, save it without compression"))
    }

    /// Passes the fill value of a dataset that was never written, once for each element.
    fn pass_fill(&self, entry: &Entry, fill: &[u8], sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        if files::is_bomb(self.region.n_bytes(), entry.n_bytes) {
            let message = format!(
                "dataset `{}` was never written, and is to become {} bytes from a file of {}; expected at most {} times as \
                 many beyond {} bytes",
                entry.name,
                entry.n_bytes,
                self.region.n_bytes(),
                files::MAX_UNPACKED_RATIO,
                files::UNPACKED_WITHOUT_QUESTION
            );
            let error = WeightsError::new(WeightsErrorKind::TooLarge, self.region.path(), message);
            return Err(error.help("write its elements, or leave it out of the file"));
        }
        let piece = fill.repeat((PIECE / fill.len()).min(entry.n_elements() as usize));
        let mut left = entry.n_bytes;
        while left > 0 {
            let n = left.min(piece.len() as u64);
            sink(&piece[..n as usize])?;
            left -= n;
        }
        Ok(())
    }
}

impl Reader for Hdf5 {
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        let (dataset, chunks) = &self.arrays[idx];
        let width = dataset.width;
        let mut put = |piece: &[u8]| match dataset.is_big_endian {
            false => sink(piece),
            true => {
                let mut piece = piece.to_vec();
                piece.chunks_exact_mut(width).for_each(<[u8]>::reverse);
                sink(&piece)
            }
        };
        if dataset.layout.is_unwritten() {
            return match &dataset.fill {
                Some(fill) => self.pass_fill(entry, fill, &mut put),
                None => Ok(()),
            };
        }
        match &dataset.layout {
            Layout::Compact(bytes) => put(&bytes[..entry.n_bytes as usize]),
            Layout::Contiguous(None) => Ok(()),
            Layout::Contiguous(Some((at, _))) => {
                self.region.pass(*at, entry.n_bytes, &format!("dataset `{}`", entry.name), &mut put)
            }
            Layout::Chunked { dims, .. } => {
                self.check_ratio(entry, dataset, chunks)?;
                let n_chunk = dims.iter().product::<u64>() as usize * width;
                let mut whole = vec![0; entry.n_bytes as usize];
                for chunk in chunks {
                    let bytes = chunks::unpack(&self.region, &entry.name, dataset, chunk, n_chunk)?;
                    chunks::put(dataset, dims, chunk, &bytes, &mut whole);
                }
                whole.chunks(PIECE).try_for_each(put)
            }
        }
    }

    /// Fixed-length texts, without trailing zeros.
    fn texts(&self, idx: usize, entry: &Entry) -> Result<Vec<Vec<u8>>, WeightsError> {
        const MAX_TEXTS: u64 = 1 << 30;
        if entry.n_bytes > MAX_TEXTS {
            let what = format!("dataset `{}`", entry.name);
            return Err(WeightsError::too_large(self.region.path(), &what, entry.n_bytes, MAX_TEXTS));
        }
        let mut bytes = Vec::new();
        self.pass(idx, entry, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        let text = |text: &[u8]| text[..text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)].to_vec();
        Ok(bytes.chunks_exact(self.arrays[idx].0.width).map(text).collect())
    }
}
