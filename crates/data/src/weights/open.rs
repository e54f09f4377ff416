//! Opens a file or a folder of weights: its content says which format's reader opens it, and what to do about formats
//! that are not read.

use super::region::{Region, Sink};
use super::{
    Entry, Format, Opened, Reader, WeightsError, WeightsErrorKind, WeightsFile, bundle, hdf5, npz, safetensors, torch,
};
use bf16scope_files as files;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Opens a file of weights, or a folder of them, and reads its list of arrays.
///
/// # Errors
/// A file that cannot be opened, is damaged, or has an unsupported format: the error names it, and what to do.
pub fn open(path: impl AsRef<Path>) -> Result<WeightsFile, WeightsError> {
    let path = path.as_ref();
    sorted(path, open_as_found(path)?)
}

/// The file with its arrays sorted by name; a duplicate name is an error.
pub(super) fn sorted(path: &Path, opened: Opened) -> Result<WeightsFile, WeightsError> {
    let Opened { format, entries, reader, left_out, order: numbered } = opened;
    let mut names = BTreeMap::new();
    for (idx, entry) in entries.iter().enumerate() {
        if names.insert(entry.name.as_str(), idx).is_some() {
            let message = format!("array `{}` is there twice; expected once", entry.name);
            return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).help("leave one out"));
        }
    }
    let mut order: Vec<usize> = names.into_values().collect();
    order.sort_by(|&left, &right| entries[left].name.cmp(&entries[right].name));
    let entries = order.iter().map(|&idx| entries[idx].clone()).collect();
    let reader = Box::new(Ordered { order, inner: reader });
    Ok(WeightsFile { path: path.to_path_buf(), format, entries, reader, left_out, order: numbered })
}

pub(super) fn open_as_found(path: &Path) -> Result<Opened, WeightsError> {
    if path.is_dir() {
        return open_folder(path);
    }
    // A bundle is named by its prefix, without `.index`; there is no file of that name.
    let index = bundle::index_of(path);
    if !path.exists() && index.exists() {
        return bundle::open(&Region::open(&index)?, Format::TensorFlow);
    }
    let region = Region::open(path)?;
    let head = region.read(0, region.n_bytes().min(16), "the file")?;
    match head.as_slice() {
        [] => {
            Err(WeightsError::format(path, "an empty file; expected a file of weights").help("copy or save it again"))
        }
        [b'P', b'K', 3 | 5, 4 | 6, ..] => open_zip(path),
        _ if head.starts_with(&hdf5::MAGIC) => hdf5::open(region, Format::Hdf5),
        // Checked first, because the length of its header may begin with a pickle's bytes, or with JSON's brace.
        _ if safetensors::is_head(&head) => safetensors::open(region),
        [0x80, 2..=5, ..] => Err(of_pickle(path, &head)),
        [b'{', ..] => safetensors::open_sharded(path),
        _ if bundle::is_table(&region)? || path.extension().is_some_and(|extension| extension == "index") => {
            bundle::open(&region, Format::TensorFlow)
        }
        _ => Err(not_weights(path, &head)),
    }
}

/// Opens an archive: Keras', PyTorch's, or NumPy's.
fn open_zip(path: &Path) -> Result<Opened, WeightsError> {
    let open = || files::open(path).map_err(|cause| WeightsError::open(path, cause));
    // Leaves the error for an invalid archive, or one of holes, to NumPy's reader.
    let has_end = files::has_zip_end(&open()?).map_err(|cause| WeightsError::read(path, cause))?;
    if !has_end || files::stored_of_hollow(path).is_some() {
        return npz::open(path);
    }
    let Ok(zip) = zip::ZipArchive::new(std::io::BufReader::new(open()?)) else { return npz::open(path) };
    let flaw = crate::npz::flaw(open()?, zip.central_directory_start());
    if let Some(message) = flaw.map_err(|cause| WeightsError::read(path, cause))? {
        return Err(WeightsError::new(WeightsErrorKind::Damaged, path, message).help("save it again: one is another's"));
    }
    if zip.index_for_name(hdf5::KERAS_MEMBER).is_some() {
        return hdf5::open_keras(path, zip);
    }
    match torch::root(&zip) {
        Some(root) => torch::open(path, zip, &root),
        None => npz::open(path),
    }
}

/// The first bytes of PyTorch's older files: a pickled long number.
const OLD_TORCH: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c";

fn of_pickle(path: &Path, head: &[u8]) -> WeightsError {
    match head.starts_with(OLD_TORCH) {
        true => WeightsError::unsupported(path, "a file of PyTorch before 1.6 (a pickle), which is not read").help(
            "load and save it again with a newer PyTorch: torch.save(torch.load(FILE, map_location=\"cpu\"), NEW)",
        ),
        false => WeightsError::unsupported(path, "a Python pickle, which may run anything, and is not read")
            .help("where it is trusted, load it in Python and save its arrays: numpy.savez(FILE, **arrays)"),
    }
}

/// Opens a folder, whose files determine the format.
fn open_folder(folder: &Path) -> Result<Opened, WeightsError> {
    let variables = folder.join("variables/variables.index");
    if folder.join("saved_model.pb").exists() || variables.exists() {
        return bundle::open(&Region::open(&variables)?, Format::SavedModel);
    }
    // Orbax also has a file called `checkpoint`.
    if let Some(item) = orbax_item(folder) {
        let message = "a checkpoint of Orbax, which is not read";
        return Err(WeightsError::unsupported(folder, message).help(from_orbax(&item)));
    }
    let state = folder.join("checkpoint");
    if state.exists() {
        let name = latest(&state)?;
        let mut index = bundle::index_of(&folder.join(&name));
        // TensorFlow may write absolute paths, and the folder may have moved since.
        if let (false, Some(file)) = (index.exists(), Path::new(&name).file_name()) {
            index = bundle::index_of(&folder.join(file));
        }
        if !index.exists() {
            let message =
                format!("it says that the latest checkpoint is `{name}`, and there is no {}", index.display());
            let help = "name the checkpoint that is there, with or without `.index`";
            return Err(WeightsError::new(WeightsErrorKind::NoShard, &state, message).help(help));
        }
        return bundle::open(&Region::open(&index)?, Format::TensorFlow);
    }
    let known =
        ["model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"];
    match known.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
        Some(path) => open_as_found(&path),
        None => {
            let message = "a folder without weights that are known: no `checkpoint`, no saved_model.pb, no \
                         model.safetensors, no pytorch_model.bin";
            Err(WeightsError::format(folder, message).help("name a file of weights in it"))
        }
    }
}

/// The largest size of a `checkpoint` file, which lists the names of the kept checkpoints.
const MAX_STATE: u64 = 1 << 20;

/// The name of the latest checkpoint in TensorFlow's file `checkpoint` (`CheckpointState` as text).
fn latest(state: &Path) -> Result<String, WeightsError> {
    let text = files::read_text(state, MAX_STATE).map_err(|cause| WeightsError::open(state, cause))?;
    let value = text.lines().find_map(|line| line.trim().strip_prefix("model_checkpoint_path:"));
    let value = value.map(str::trim).and_then(|value| value.strip_prefix('"')?.strip_suffix('"'));
    value.map(str::to_string).ok_or_else(|| {
        let message = "the file does not say `model_checkpoint_path: \"NAME\"`, as TensorFlow's does";
        WeightsError::format(state, message).help("name a checkpoint in this folder, with or without `.index`")
    })
}

/// The folder of Orbax' arrays: the folder itself, or an item in it (`default` first), or the step with the largest
/// number, as `CheckpointManager` writes them.
fn orbax_item(folder: &Path) -> Option<PathBuf> {
    let has_arrays = |folder: &Path| ["_METADATA", "manifest.ocdbt"].iter().any(|name| folder.join(name).exists());
    let in_step = |folder: &Path| {
        let mut items = files::folders_in(folder);
        items.sort_by_key(|item| (!item.ends_with("default"), item.clone()));
        items.into_iter().find(|item| has_arrays(item))
    };
    if has_arrays(folder) {
        return Some(folder.to_path_buf());
    }
    if folder.join("_CHECKPOINT_METADATA").exists() || folder.join("default").is_dir() {
        let item = in_step(folder);
        return item.or_else(|| folder.join("_CHECKPOINT_METADATA").exists().then(|| folder.to_path_buf()));
    }
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u64>().ok();
    let newest = files::folders_in(folder).into_iter().filter_map(|step| Some((number(&step)?, step))).max()?;
    if has_arrays(&newest.1) { Some(newest.1) } else { in_step(&newest.1) }
}

/// A path as a Python string within a shell's double quotes.
fn in_python(path: &Path, else_called: &str) -> String {
    let shown = path.display().to_string();
    let is_plain = !shown.contains(['\'', '"', '\\', '`', '$', '!']) && !shown.contains(char::is_control);
    format!("'{}'", if is_plain { &shown } else { else_called })
}

/// The command that converts an Orbax checkpoint to arrays by name, for a user who has JAX. Tested with Orbax 0.12.8,
/// which requires absolute paths.
fn from_orbax(item: &Path) -> String {
    format!(
        "where it was written, save its arrays by name: python -c \"import numpy, os, jax, orbax.checkpoint as o; leaves = \
         jax.tree_util.tree_leaves_with_path(o.PyTreeCheckpointer().restore(os.path.abspath({}))); \
         numpy.savez('weights.npz', **{{jax.tree_util.keystr(k, simple=True, separator='/'): numpy.asarray(v) for k, v in \
         leaves}})\"",
        in_python(item, "FOLDER")
    )
}

/// The same for a Flax file. Tested with Flax 0.12.8.
fn from_flax(path: &Path) -> String {
    format!(
        "save its arrays by name: python -c \"import numpy, flax.serialization as s, flax.traverse_util as t; \
         numpy.savez('weights.npz', **t.flatten_dict(s.msgpack_restore(open({}, 'rb').read()), sep='/'))\"",
        in_python(path, "FILE")
    )
}

/// Whether a file begins with a MessagePack map whose first key is a text, as Flax writes parameters.
fn is_msgpack(head: &[u8]) -> bool {
    let rest = match head {
        [0x81..=0x8f, rest @ ..] => rest,
        [0xde, _, _, rest @ ..] => rest,
        [0xdf, _, _, _, _, rest @ ..] => rest,
        _ => return false,
    };
    matches!(rest, [0xa1..=0xbf | 0xd9..=0xdb, ..])
}

/// Other formats for weights: their first bytes, their names, and what to do about them.
const OTHERS: &[(&[u8], &str, &str)] = &[
    (b"\x93NUMPY", "one array of NumPy (.npy)", "save it under its variable's name: np.savez(FILE, **{NAME: x})"),
    (b"GGUF", "a GGUF file", "take the safetensors or torch files that it was converted from"),
    (b"\x1f\x8b", "compressed (gzip)", "unpack it first: `gunzip FILE`"),
];

fn not_weights(path: &Path, head: &[u8]) -> WeightsError {
    let known = OTHERS.iter().find(|(start, ..)| head.starts_with(start));
    match known {
        Some((_, what, help)) => {
            WeightsError::unsupported(path, format!("{what}, which is not read as weights")).help(*help)
        }
        None if is_msgpack(head) => {
            let message = "a dict in MessagePack, as Flax writes parameters, which is not read";
            WeightsError::unsupported(path, message).help(from_flax(path))
        }
        None => {
            let shown = &head[..head.len().min(8)];
            let message = format!("no file of weights that is known: it begins with {shown:02x?}");
            WeightsError::format(path, message).help(READ)
        }
    }
}

/// The supported formats, as a remedy.
const READ: &str = "name a checkpoint of TensorFlow (with or without .index, or its folder), Keras' .h5 or .keras, PyTorch's \
     .pt or .bin, an .npz archive, a .safetensors file or the index of several, or a checkpoint of bf16scope";

/// A reader whose arrays were reordered.
struct Ordered {
    order: Vec<usize>,
    inner: Box<dyn Reader>,
}

impl Reader for Ordered {
    fn pass(&self, idx: usize, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WeightsError> {
        self.inner.pass(self.order[idx], entry, sink)
    }

    fn texts(&self, idx: usize, entry: &Entry) -> Result<Vec<Vec<u8>>, WeightsError> {
        self.inner.texts(self.order[idx], entry)
    }

    fn check(&self) -> Result<(), WeightsError> {
        self.inner.check()
    }
}
