//! Arrays for a module's parameters, from an `.npz` file by name or drawn at random; and writing of results.
//!
//! [`Inputs`] decides the source of every parameter's array before any is read, and reads them one at a time. The file
//! format is `data::npz`.

mod roots;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

use bf16scope_data::npz::{Header, NpzReader, NpzWriter};
use bf16scope_hlo::element::{f32s, f64s};
use bf16scope_hlo::numerics::bf16::{bf16_from_f32, f16_from_f32};
use bf16scope_hlo::{ArrayShape, DType, Literal, Module, Op, Shape};
use bf16scope_model::graph::Init;
use bf16scope_pjrt::available_memory;

use roots::Drawing;

/// Random integers are below this: small enough to be labels and indices for most programs, and never negative.
const RANDOM_INTS: u64 = 8;

/// A seed, as an argument.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}, such as 1", u64::MAX))
}

/// An array that the entry computation takes: a parameter, or a leaf of its single tuple parameter.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// The parameter's name, with the leaf's number if the parameter is a tuple.
    pub(super) name: String,
    /// The scoped name in its metadata (`fc1/kernel`); may be empty.
    op_name: String,
    /// The required dtype and dims.
    pub(super) shape: ArrayShape,
    /// The distribution of random values.
    drawing: Drawing,
}

/// The source of a parameter's array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The array of this name in the file.
    File(String),
    /// Drawn from this seed.
    Random(u64),
}

/// A source for each parameter of a module.
#[derive(Debug)]
pub(super) struct Inputs {
    /// In the order of the program's arguments.
    pub(super) parameters: Vec<Parameter>,
    /// One for each parameter.
    pub(super) sources: Vec<Source>,
    npz: Option<NpzReader>,
}

/// Whether the module takes one tuple instead of arrays.
pub(super) fn is_tupled(module: &Module) -> bool {
    let entry = module.entry();
    entry.parameters().iter().any(|&id| matches!(entry.instr(id).shape, Shape::Tuple(_)))
}

pub(super) fn parameters(module: &Module) -> anyhow::Result<Vec<Parameter>> {
    let entry = module.entry();
    let mut parameters = Vec::new();
    let drawings = roots::drawings(module);
    for id in entry.parameters() {
        let instr = entry.instr(id);
        let drawing = match &instr.op {
            Op::Parameter { number, .. } => drawings.get(number).copied().unwrap_or_default(),
            _ => Drawing::default(),
        };
        let leaves = instr.shape.leaves();
        let is_tuple = matches!(instr.shape, Shape::Tuple(_));
        for (number, leaf) in leaves.into_iter().enumerate() {
            let name = if is_tuple { format!("{}.{number}", instr.name) } else { instr.name.clone() };
            let Shape::Array(shape) = leaf else {
                bail!("parameter `{name}` is a {leaf}, and a program is run on arrays only");
            };
            ensure!(!shape.has_dynamic(), "parameter `{name}` is {shape}: a size that varies cannot be run here");
            let op_name = if is_tuple { String::new() } else { instr.metadata.op_name.clone() };
            let shape = ArrayShape { layout: None, ..shape.clone() };
            parameters.push(Parameter { name, op_name, shape, drawing });
        }
    }
    // A name shared by several parameters identifies none of them: TensorFlow calls every argument `XLA_Args`.
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    parameters.iter().for_each(|parameter| *counts.entry(parameter.op_name.clone()).or_default() += 1);
    for parameter in parameters.iter_mut().filter(|parameter| counts[&parameter.op_name] > 1) {
        parameter.op_name.clear();
    }
    Ok(parameters)
}

impl Inputs {
    /// Finds an array for each parameter: in `file` as `inN` or under the parameter's name, otherwise drawn from
    /// `seed`.
    ///
    /// # Errors
    /// Parameters without a source, ambiguous names, arrays of another type or shape.
    pub(super) fn new(module: &Module, file: Option<&Path>, seed: Option<u64>) -> anyhow::Result<Inputs> {
        Inputs::for_parameters(parameters(module)?, file, seed)
    }

    /// The same for the given parameters.
    pub(super) fn for_parameters(
        parameters: Vec<Parameter>,
        file: Option<&Path>,
        seed: Option<u64>,
    ) -> anyhow::Result<Inputs> {
        let npz = file.map(NpzReader::open).transpose()?;
        let mut named = match &npz {
            Some(npz) => assign(&parameters, npz)?,
            None => BTreeMap::new(),
        };
        let mut sources = Vec::new();
        let mut missing = Vec::new();
        for (position, parameter) in parameters.iter().enumerate() {
            match (named.remove(&position), seed) {
                (Some(name), _) => sources.push(Source::File(name)),
                (None, Some(seed)) => sources.push(Source::Random(seed)),
                (None, None) => missing.push(parameter.describe(position)),
            }
        }
        if !missing.is_empty() {
            bail!(missing_message(&missing, parameters.len(), npz.as_ref()));
        }
        let mut inputs = Inputs { parameters, sources, npz };
        inputs.check()?;
        Ok(inputs)
    }

    /// The same for parameters whose first dim is the batch, with arrays of any number of examples, which becomes the
    /// parameters'. `None` if the file does not have these arrays: by name, dtype and the dims of an example.
    ///
    /// # Errors
    /// Arrays of different numbers of examples, or of none.
    pub(super) fn of_examples(
        mut parameters: Vec<Parameter>,
        file: &Path,
        seed: Option<u64>,
    ) -> anyhow::Result<Option<Inputs>> {
        let Ok(mut npz) = NpzReader::open(file) else { return Ok(None) };
        let Ok((names, _)) = assigned(&parameters, &npz) else { return Ok(None) };
        if seed.is_none() && names.len() < parameters.len() {
            return Ok(None);
        }
        let mut counts: Vec<(&str, i64)> = Vec::new();
        for (position, name) in &names {
            let Ok(Some(entry)) = npz.entry(name) else { return Ok(None) };
            let (expected, header) = (&parameters[*position].shape, &entry.header);
            let is_taken = accepted(expected.dtype).contains(&(header.kind, header.width));
            match header.dims.split_first() {
                Some((&n, of_each)) if is_taken && expected.dims.get(1..) == Some(of_each) => {
                    counts.push((name.as_str(), n));
                }
                _ => return Ok(None),
            }
        }
        if let Some(&(first, n)) = counts.first() {
            let shown = file.display();
            if let Some((other, n_other)) = counts.iter().find(|(_, count)| *count != n) {
                bail!(
                    "{shown}: `{first}` has {n} examples, and `{other}` has {n_other}; expected as many in each\nhelp: the first \
                     dim of every array is the example"
                );
            }
            ensure!(n > 0, "{shown}: `{first}` has no examples; expected 1 or more\nhelp: give it a row for each");
            parameters.iter_mut().filter_map(|parameter| parameter.shape.dims.first_mut()).for_each(|batch| *batch = n);
        }
        Inputs::for_parameters(parameters, Some(file), seed).map(Some)
    }

    /// Compares the arrays in the file with the parameters, before anything is computed.
    fn check(&mut self) -> anyhow::Result<()> {
        let Some(npz) = &mut self.npz else { return Ok(()) };
        let path = npz.path().display().to_string();
        let mut assigned = Vec::new();
        for (position, (parameter, source)) in self.parameters.iter().zip(&self.sources).enumerate() {
            if let Source::File(name) = source {
                let entry = npz.entry(name)?.with_context(|| format!("{path}: array `{name}` has gone"))?;
                assigned.push((position, parameter, name, entry.header.clone()));
            }
        }
        let misfits: Vec<(&[i64], &[i64])> = (assigned.iter())
            .map(|(_, parameter, _, header)| (&header.dims[..], &parameter.shape.dims[..]))
            .filter(|(dims, expected)| dims != expected)
            .collect();
        let misfit = Misfit::classify(&misfits, assigned.len());
        assigned.iter().try_for_each(|(position, parameter, name, header)| {
            check_type(parameter, *position, name, &path, header, &misfit)
        })
    }

    /// Checks that there is memory for `copies` of every array and for making the largest: the kernel's out-of-memory
    /// killer would end a process, and not always this one.
    ///
    /// # Errors
    /// Too little memory; the error has both figures.
    pub(super) fn check_memory(&self, copies: u64) -> anyhow::Result<()> {
        let Some(available) = available_memory() else { return Ok(()) };
        let all = || self.parameters.iter().zip(&self.sources).enumerate();
        let total = all().fold(0u64, |sum, (_, (parameter, _))| sum.saturating_add(parameter.n_bytes()));
        let work = all().map(|(_, (parameter, source))| parameter.work_bytes(source)).max().unwrap_or(0);
        let needed = total.saturating_mul(copies).saturating_add(work);
        if needed <= available {
            return Ok(());
        }
        let largest = all().max_by_key(|(_, (parameter, _))| parameter.n_bytes());
        let largest = largest.map_or(String::new(), |(position, (parameter, _))| parameter.describe(position));
        bail!(
            "the parameters take {}, the largest of them is {largest}; making and copying them takes {}, and this machine \
             has {} available\nhelp: run it on a machine with more memory, or make the module for smaller arrays",
            gib(total),
            gib(needed),
            gib(available)
        )
    }

    /// The array of a parameter.
    ///
    /// # Errors
    /// A damaged file; a dtype without random numbers; an array in the file with another dtype or dims than its
    /// parameter.
    pub(super) fn literal(&mut self, position: usize) -> anyhow::Result<Literal> {
        let parameter = &self.parameters[position];
        match (&self.sources[position], &mut self.npz) {
            (Source::Random(seed), _) => random(parameter, position, *seed),
            (Source::File(name), Some(npz)) => {
                let path = npz.path().display().to_string();
                let entry = npz.entry(name)?.with_context(|| format!("{path}: array `{name}` has gone"))?;
                check_type(parameter, position, name, &path, &entry.header, &Misfit::One)?;
                let header = entry.header.clone();
                let bytes = from_numpy(parameter.shape.dtype, &header, entry.read()?);
                let bytes = bytes.map_err(|misfit| parameter.beyond(position, name, &path, &misfit))?;
                Ok(Literal::Array { shape: parameter.shape.clone(), bytes })
            }
            (Source::File(name), None) => bail!("array `{name}` comes from no file: this is a bug of bf16scope"),
        }
    }
}

/// The arrays in a file that are named after parameters, or by their positions as `inN`, by parameter number.
///
/// # Errors
/// A module that takes a tuple; ambiguous names, arrays of another type or shape.
pub(super) fn named_arrays(module: &Module, file: &Path) -> anyhow::Result<BTreeMap<i64, Literal>> {
    ensure!(!is_tupled(module), "the entry takes a tuple, whose leaves have no names");
    let parameters = parameters(module)?;
    let npz = NpzReader::open(file)?;
    let named = assign(&parameters, &npz)?;
    // The source of unnamed parameters does not matter: they are not read.
    let source = |position| named.get(&position).map_or(Source::Random(0), |name| Source::File(name.clone()));
    let sources = (0..parameters.len()).map(source).collect();
    let mut inputs = Inputs { parameters, sources, npz: Some(npz) };
    inputs.check()?;
    named.keys().map(|&position| Ok((position as i64, inputs.literal(position)?))).collect()
}

impl Parameter {
    /// The same for a batch that is shared by this many devices.
    pub(super) fn of_all(&mut self, n_devices: usize) {
        if let Some(batch) = self.shape.dims.first_mut() {
            *batch = batch.saturating_mul(n_devices as i64);
        }
    }

    /// Bytes of the array.
    fn n_bytes(&self) -> u64 {
        self.n_elements().saturating_mul(self.shape.dtype.n_bytes() as u64)
    }

    fn n_elements(&self) -> u64 {
        self.shape.dims.iter().fold(1u64, |product, &dim| product.saturating_mul(dim.unsigned_abs()))
    }

    /// Peak memory while the array is made: its own bytes, and the bytes that it is made from or its copy on the way to
    /// the device.
    fn work_bytes(&self, source: &Source) -> u64 {
        let dtype = self.shape.dtype;
        let made_from = match source {
            // Random numbers are drawn as 64 bits, normal ones as f32; a file may hold f32 for narrower floats.
            Source::Random(_) if dtype.is_integer() || dtype == DType::Pred => 8,
            Source::Random(_) | Source::File(_) => 4.max(dtype.n_bytes() as u64),
        };
        self.n_bytes().saturating_add(self.n_elements().saturating_mul(made_from).max(self.n_bytes()))
    }

    /// The error for an array with an element that the parameter's dtype cannot hold.
    fn beyond(&self, position: usize, name: &str, path: &str, beyond: &Beyond) -> anyhow::Error {
        let Beyond { idx, value, least, most } = beyond;
        anyhow::anyhow!(
            "{path}: element {idx} of `{name}` is {value}; expected {least} to {most}, which is what {} holds\nhelp: clip the \
             array, or scale it",
            self.describe(position)
        )
    }

    /// `in0` (`x`, f32[16,64]).
    fn describe(&self, position: usize) -> String {
        let name = if self.op_name.is_empty() { &self.name } else { &self.op_name };
        format!("in{position} (`{name}`, {})", self.shape)
    }
}

/// Assigns arrays of the file to parameters. Warns of unused arrays.
fn assign(parameters: &[Parameter], npz: &NpzReader) -> anyhow::Result<BTreeMap<usize, String>> {
    let (assigned, unused) = assigned(parameters, npz)?;
    if !unused.is_empty() {
        tracing::warn!("{}: no parameter is named {}; not used", npz.path().display(), few(&unused));
    }
    Ok(assigned)
}

/// The array of each parameter that has one in the file, and the names of the other arrays.
fn assigned(parameters: &[Parameter], npz: &NpzReader) -> anyhow::Result<(BTreeMap<usize, String>, Vec<String>)> {
    let mut holders: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (position, parameter) in parameters.iter().enumerate() {
        holders.entry(&parameter.name).or_default().push(position);
        if !parameter.op_name.is_empty() && parameter.op_name != parameter.name {
            holders.entry(&parameter.op_name).or_default().push(position);
        }
    }
    let shown = npz.path().display();
    let mut assigned: BTreeMap<usize, String> = BTreeMap::new();
    let mut unused = Vec::new();
    for name in npz.names() {
        let mut matches = holders.get(name).cloned().unwrap_or_default();
        let by_position = name.strip_prefix("in").and_then(|number| number.parse::<usize>().ok());
        if let Some(position) =
            by_position.filter(|position| *position < parameters.len() && !matches.contains(position))
        {
            matches.push(position);
        }
        match matches.as_slice() {
            [] => unused.push(name.to_string()),
            [position] => {
                if let Some(other) = assigned.insert(*position, name.to_string()) {
                    bail!(
                        "{shown}: parameter {position} has two arrays, `{other}` and `{name}`\nhelp: keep one of them"
                    );
                }
            }
            [first, second, ..] => bail!(
                "{shown}: array `{name}` names parameter {first} as well as parameter {second}\nhelp: name arrays by \
                 position, in0 to in{}",
                parameters.len() - 1
            ),
        }
    }
    Ok((assigned, unused))
}

fn missing_message(missing: &[String], n_parameters: usize, npz: Option<&NpzReader>) -> String {
    let holds = npz.map_or(String::new(), |npz| {
        let names: Vec<&str> = npz.names().collect();
        let names = if names.is_empty() { "no arrays".to_string() } else { few(&names) };
        format!("; {} holds {names}", npz.path().display())
    });
    format!(
        "{} of {n_parameters} parameters have no array: {}{holds}\nhelp: give them in an .npz file with --inputs, named \
         in0, in1, ... or as the parameters are; or draw them with --random SEED",
        missing.len(),
        few(missing)
    )
}

/// Bytes in a readable unit; small ones exactly.
pub(super) fn gib(n_bytes: u64) -> String {
    match n_bytes {
        n if n < 1 << 24 => format!("{n} bytes"),
        n => format!("{:.2} GiB", n as f64 / f64::from(1u32 << 30)),
    }
}

/// The first of many names.
fn few(names: &[impl AsRef<str>]) -> String {
    const MAX: usize = 8;
    let shown: Vec<&str> = names.iter().take(MAX).map(AsRef::as_ref).collect();
    let rest = names.len() - shown.len();
    if rest == 0 { shown.join(", ") } else { format!("{} and {rest} more", shown.join(", ")) }
}

/// NumPy's kinds and widths from which a dtype can be read, the best first. 16-bit floats are also read from f32, with
/// rounding; dtypes that NumPy lacks, from the bytes in which `ml_dtypes` stores them. Two raw bytes are bf16: NumPy
/// has its own f16.
fn accepted(dtype: DType) -> Vec<(char, usize)> {
    let header = Header::for_dtype(dtype, Vec::new());
    let mut all = match dtype {
        DType::BF16 => vec![('f', 4), (header.kind, header.width), ('V', 2)],
        DType::F16 => vec![('f', 4), (header.kind, header.width)],
        _ => vec![(header.kind, header.width)],
    };
    if header.width == 1 && dtype.bits() <= 8 && dtype != DType::Pred {
        all.push(('V', 1));
    }
    all
}

/// The argument of NumPy's `astype` for a dtype: `'f4'`, or `ml_dtypes.float8_e4m3fn` for a narrow float, which NumPy
/// itself lacks.
fn in_numpy(dtype: DType) -> String {
    let (kind, width) = accepted(dtype)[0];
    let narrow = dtype.name().strip_prefix('f').filter(|_| dtype.bits() <= 8);
    match narrow.and_then(|name| name.split_at_checked(1)) {
        Some((bits, rest)) => format!("ml_dtypes.float{bits}_{rest}"),
        None => format!("'{kind}{width}'"),
    }
}

/// How the sizes of a file's arrays differ from the parameters'.
enum Misfit {
    /// All differ only in their first axis, and alike: another batch.
    Batch,
    /// At most one of them.
    One,
    /// Several: this many, out of this many arrays.
    Several(usize, usize),
}

impl Misfit {
    /// Classifies the arrays whose dims differ from their parameters', among `n_arrays`.
    fn classify(misfits: &[(&[i64], &[i64])], n_arrays: usize) -> Misfit {
        let first_axis = |(dims, expected): &(&[i64], &[i64])| {
            let ((n, of_each), (batch, expected)) = (dims.split_first()?, expected.split_first()?);
            (of_each == expected).then_some((*n, *batch))
        };
        let of_first = misfits.first().and_then(first_axis);
        // An array with no other axis may be a bias as well as examples.
        let has_examples = misfits.iter().any(|(dims, _)| dims.len() > 1);
        match misfits.len() {
            _ if has_examples && of_first.is_some() && misfits.iter().all(|one| first_axis(one) == of_first) => {
                Misfit::Batch
            }
            n if n > 1 => Misfit::Several(n, n_arrays),
            _ => Misfit::One,
        }
    }
}

fn check_type(
    parameter: &Parameter,
    position: usize,
    name: &str,
    path: &str,
    header: &Header,
    misfit: &Misfit,
) -> anyhow::Result<()> {
    let expected = &parameter.shape;
    let dtype = expected.dtype;
    let is_taken = accepted(dtype).contains(&(header.kind, header.width));
    let help = if !is_taken && header.dims != expected.dims {
        "neither dtype nor dims are the parameter's: is an array before it one too many, or one left out?".to_string()
    } else if !is_taken {
        let wanted = in_numpy(dtype);
        match (header.kind, header.width) {
            ('c', _) if !matches!(dtype, DType::C64 | DType::C128) => {
                format!("save the part that is meant: .real, .imag or abs(), and .astype({wanted}) of it")
            }
            // NumPy does not convert void types.
            ('V', 2) => format!("it is bf16: convert it with .view(ml_dtypes.bfloat16).astype({wanted})"),
            ('V', 1) => format!(
                "say which float of `ml_dtypes` it is, and convert it: .view(ml_dtypes.float8_e4m3fn).astype({wanted})"
            ),
            ('V', _) => "NumPy says nothing of its elements: save the array with a dtype of its own".to_string(),
            _ => format!("convert it with .astype({wanted})"),
        }
    } else if header.dims == expected.dims {
        return Ok(());
    } else if let Some(axes) = order_of_axes(&header.dims, &expected.dims) {
        match &axes[..] {
            [1, 0] => "its axes are in the other order: give it as .T".to_string(),
            axes => {
                let axes: Vec<String> = axes.iter().map(usize::to_string).collect();
                format!("its axes are in another order: give it as .transpose({})", axes.join(", "))
            }
        }
    } else if header.n_bytes() / header.width as u64 == expected.n_elements().unsigned_abs() {
        let dims: Vec<String> = expected.dims.iter().map(i64::to_string).collect();
        format!("if the order of its elements is right, .reshape({})", dims.join(", "))
    } else {
        match (misfit, header.dims.first().zip(expected.dims.first())) {
            (Misfit::Batch, Some((n, batch))) => format!(
                "it takes {batch} examples at a time, no more and no fewer: cut {n} into parts of {batch}, and fill the last one up; \
                 or export it, or make the package (--batch), for {n}"
            ),
            (Misfit::Several(n, n_arrays), _) => format!(
                "{n} of the {n_arrays} arrays of the file are of other sizes than their parameters: is it another network's, or \
                 of another size?"
            ),
            _ => "the module was made for other sizes".to_string(),
        }
    };
    bail!("{path}: {} is given `{name}`, which is {header}, expected {expected}\nhelp: {help}", {
        let shown = if parameter.op_name.is_empty() { &parameter.name } else { &parameter.op_name };
        format!("parameter {position} (`{shown}`)")
    })
}

/// The permutation of axes that turns `dims` into `expected`, if there is one.
fn order_of_axes(dims: &[i64], expected: &[i64]) -> Option<Vec<usize>> {
    let mut axes: Vec<usize> = Vec::new();
    for size in expected {
        axes.push((0..dims.len()).find(|axis| dims[*axis] == *size && !axes.contains(axis))?);
    }
    // If only axes of size 1 move, a reshape is the simpler advice.
    let is_more = dims.iter().filter(|dim| **dim != 1).ne(expected.iter().filter(|dim| **dim != 1));
    (axes.len() == dims.len() && is_more).then_some(axes)
}

/// An element that its parameter's dtype cannot hold.
#[derive(Debug, PartialEq)]
struct Beyond {
    idx: usize,
    value: f64,
    /// The least and the largest value of the dtype.
    least: f64,
    most: f64,
}

/// A literal's bytes from NumPy's, for a type that [`accepted`] lists.
fn from_numpy(dtype: DType, header: &Header, bytes: Vec<u8>) -> Result<Vec<u8>, Beyond> {
    let rounded = |round: fn(f32) -> u16, infinity: u16, most: f64| {
        let each = f32s(DType::F32, &bytes).into_iter().flatten().enumerate().map(|(idx, value)| {
            let low = round(value);
            // An infinity stays one; a finite number must not become infinite.
            let is_beyond = value.is_finite() && low & 0x7fff == infinity;
            if is_beyond { Err(Beyond { idx, value: value.into(), least: -most, most }) } else { Ok(low.to_le_bytes()) }
        });
        Ok(each.collect::<Result<Vec<[u8; 2]>, Beyond>>()?.concat())
    };
    match (dtype, header.kind, header.width) {
        (DType::BF16, 'f', 4) => rounded(bf16_from_f32, 0x7f80, half::bf16::MAX.to_f64()),
        (DType::F16, 'f', 4) => rounded(f16_from_f32, 0x7c00, half::f16::MAX.to_f64()),
        (DType::Pred, _, _) => Ok(bytes.into_iter().map(|byte| u8::from(byte != 0)).collect()),
        // A type of fewer than 8 bits is stored in a byte, whose upper bits would be cut off.
        (dtype, _, 1) if dtype.bits() < 8 => {
            let n_values = 1i32 << dtype.bits();
            let (least, most) = if dtype.is_signed() { (-n_values / 2, n_values / 2 - 1) } else { (0, n_values - 1) };
            let value = |byte: u8| if dtype.is_signed() { i32::from(byte as i8) } else { i32::from(byte) };
            match bytes.iter().position(|&byte| !(least..=most).contains(&value(byte))) {
                Some(idx) => {
                    Err(Beyond { idx, value: value(bytes[idx]).into(), least: least.into(), most: most.into() })
                }
                None => Ok(bytes),
            }
        }
        _ => Ok(bytes),
    }
}

/// Random values from the seed, the position, the shape and the parameter's use: floats are standard normal, or as
/// [`Drawing`] requires (for example under a root), integers are uniform below [`RANDOM_INTS`] (or below the dtype's
/// limit), `pred` is a fair coin.
fn random(parameter: &Parameter, position: usize, seed: u64) -> anyhow::Result<Literal> {
    let ArrayShape { dtype, dims, .. } = &parameter.shape;
    let stream = format!("in{position}");
    let normals = |dims: &[i64]| -> Vec<f32> {
        let values = Init::Normal { stddev: 1.0 }.values(seed, &stream, dims);
        values.into_iter().map(|value| parameter.drawing.number(value)).collect()
    };
    let words = |bound: u64| Init::RandomBits.words(seed, &stream, dims).into_iter().map(move |word| word % bound);
    let bytes: Vec<u8> = match dtype {
        DType::F32 => normals(dims).into_iter().flat_map(f32::to_le_bytes).collect(),
        DType::F64 => normals(dims).into_iter().flat_map(|value| f64::from(value).to_le_bytes()).collect(),
        DType::BF16 => normals(dims).into_iter().flat_map(|value| bf16_from_f32(value).to_le_bytes()).collect(),
        DType::F16 => normals(dims).into_iter().flat_map(|value| f16_from_f32(value).to_le_bytes()).collect(),
        DType::C64 => normals(&[dims, [2].as_slice()].concat()).into_iter().flat_map(f32::to_le_bytes).collect(),
        DType::C128 => {
            let pairs = normals(&[dims, [2].as_slice()].concat());
            pairs.into_iter().flat_map(|value| f64::from(value).to_le_bytes()).collect()
        }
        DType::Pred => words(2).map(|word| word as u8).collect(),
        dtype if dtype.is_integer() => {
            let n_value_bits = dtype.bits() - usize::from(dtype.is_signed());
            let bound = if n_value_bits < 3 { 1 << n_value_bits } else { RANDOM_INTS };
            let width = dtype.n_bytes();
            words(bound).flat_map(|word| word.to_le_bytes().into_iter().take(width)).collect()
        }
        dtype => bail!(
            "no random numbers are drawn for parameter {position} (`{}`, {dtype})\nhelp: give it with --inputs",
            parameter.name
        ),
    };
    Ok(Literal::Array { shape: parameter.shape.clone(), bytes })
}

/// Writes a result in NumPy's dtype; bf16 as f32, or its bits as uint16.
pub(super) fn write(
    npz: &mut NpzWriter,
    name: &str,
    shape: &ArrayShape,
    bytes: &[u8],
    raw_bf16: bool,
) -> anyhow::Result<()> {
    if shape.dtype == DType::BF16 && !raw_bf16 {
        let widened: Vec<u8> = f32s(shape.dtype, bytes).into_iter().flatten().flat_map(f32::to_le_bytes).collect();
        return Ok(npz.add(name, &Header::for_dtype(DType::F32, shape.dims.clone()), &widened)?);
    }
    Ok(npz.add(name, &Header::for_dtype(shape.dtype, shape.dims.clone()), bytes)?)
}

/// Statistics of an array that fit in a line.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(super) struct Summary {
    /// The least value, ignoring NaNs. `None` if there is no value, or for dtypes that have no order or no decoder
    /// here.
    pub(super) min: Option<f64>,
    /// Largest value.
    pub(super) max: Option<f64>,
    /// Mean, summed in f64.
    pub(super) mean: Option<f64>,
    /// The number of NaNs.
    pub(super) n_nan: u64,
    /// The number of infinities.
    pub(super) n_infinite: u64,
}

/// Computes the statistics over all elements of an array.
pub(super) fn summarize(dtype: DType, bytes: &[u8]) -> Summary {
    let mut summary = Summary { min: None, max: None, mean: None, n_nan: 0, n_infinite: 0 };
    let Some(numbers) = f64s(dtype, bytes) else { return summary };
    let (mut sum, mut count) = (0.0, 0u64);
    for value in numbers {
        if value.is_nan() {
            summary.n_nan += 1;
            continue;
        }
        summary.n_infinite += u64::from(value.is_infinite());
        summary.min = Some(summary.min.map_or(value, |min| min.min(value)));
        summary.max = Some(summary.max.map_or(value, |max| max.max(value)));
        sum += value;
        count += 1;
    }
    summary.mean = (count > 0).then(|| sum / count as f64);
    summary
}

#[cfg(test)]
mod tests {
    use super::{Beyond, Drawing, Misfit, Parameter, check_type, from_numpy, in_numpy, order_of_axes};
    use bf16scope_data::npz::Header;
    use bf16scope_hlo::{ArrayShape, DType};

    /// `astype('u1')` would turn the 1.0 of an f8 into 2^-9.
    #[test]
    fn what_converts_an_array_is_said_in_numpys_words() {
        let words = [
            (DType::F8E4M3FN, "ml_dtypes.float8_e4m3fn"),
            (DType::F8E8M0FNU, "ml_dtypes.float8_e8m0fnu"),
            (DType::BF16, "'f4'"),
            (DType::F64, "'f8'"),
            (DType::S4, "'i1'"),
        ];
        words.into_iter().for_each(|(dtype, expected)| assert_eq!(in_numpy(dtype), expected));
    }

    /// NumPy writes bf16 as two bytes that mean nothing, which `astype` refuses to convert.
    #[test]
    fn bytes_of_bf16_are_viewed_before_they_are_converted() {
        let parameter = Parameter {
            name: "labels".to_string(),
            op_name: String::new(),
            shape: ArrayShape::new(DType::S32, [2]),
            drawing: Drawing::default(),
        };
        let header = Header { kind: 'V', width: 2, ..Header::for_dtype(DType::U16, vec![2]) };
        let error = check_type(&parameter, 0, "labels", "in.npz", &header, &Misfit::One).unwrap_err().to_string();
        assert!(error.ends_with("help: it is bf16: convert it with .view(ml_dtypes.bfloat16).astype('i4')"), "{error}");
    }

    /// Previously 9 in s4 became -7, and 70,000 in f16 infinite.
    #[test]
    fn an_element_that_a_parameter_does_not_hold_is_refused() {
        let narrow = |dtype, bytes: &[u8]| from_numpy(dtype, &Header::for_dtype(dtype, Vec::new()), bytes.to_vec());
        let beyond = |idx, value, least, most| Err(Beyond { idx, value, least, most });
        assert_eq!(narrow(DType::S4, &[7, 0xf8]), Ok(vec![7, 0xf8]));
        assert_eq!(narrow(DType::S4, &[7, 9]), beyond(1, 9.0, -8.0, 7.0));
        assert_eq!(narrow(DType::S4, &[0xf7]), beyond(0, -9.0, -8.0, 7.0));
        assert_eq!(narrow(DType::U4, &[15]), Ok(vec![15]));
        assert_eq!(narrow(DType::U4, &[16]), beyond(0, 16.0, 0.0, 15.0));
        assert_eq!(narrow(DType::S2, &[2]), beyond(0, 2.0, -2.0, 1.0));
        assert_eq!(narrow(DType::U2, &[4]), beyond(0, 4.0, 0.0, 3.0));
        assert_eq!(narrow(DType::U1, &[2]), beyond(0, 2.0, 0.0, 1.0));
        assert_eq!(narrow(DType::S8, &[0x80]), Ok(vec![0x80]));
        let wide = |dtype, values: &[f32]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            from_numpy(dtype, &Header::for_dtype(DType::F32, Vec::new()), bytes)
        };
        // 65,519 rounds to the largest f16, 65,520 overflows.
        assert_eq!(wide(DType::F16, &[65519.0, f32::NEG_INFINITY]), Ok(vec![0xff, 0x7b, 0x00, 0xfc]));
        assert_eq!(wide(DType::F16, &[0.0, -70000.0]), beyond(1, -70000.0, -65504.0, 65504.0));
        assert_eq!(wide(DType::F16, &[65520.0]), beyond(0, 65520.0, -65504.0, 65504.0));
        assert!(wide(DType::F16, &[f32::NAN]).is_ok());
        let largest = f64::from(half::bf16::MAX.to_f32());
        assert_eq!(wide(DType::BF16, &[f32::MAX]), beyond(0, f32::MAX.into(), -largest, largest));
        assert_eq!(wide(DType::BF16, &[half::bf16::MAX.to_f32()]), Ok(vec![0x7f, 0x7f]));
    }

    #[test]
    fn axes_in_another_order_are_told_from_other_sizes() {
        assert_eq!(order_of_axes(&[3, 2], &[2, 3]), Some(vec![1, 0]));
        // PyTorch's kernels of convolutions, [out, in, height, width], as [height, width, in, out].
        assert_eq!(order_of_axes(&[64, 3, 7, 7], &[7, 7, 3, 64]), Some(vec![2, 3, 1, 0]));
        // A reshape is enough for these.
        assert_eq!(order_of_axes(&[6], &[2, 3]), None);
        assert_eq!(order_of_axes(&[2, 1, 3], &[2, 3, 1]), None);
        assert_eq!(order_of_axes(&[4, 3], &[2, 6]), None);
    }

    /// Another network's file used to be reported as too many examples.
    #[test]
    fn other_batches_are_told_from_other_networks() {
        let is_batch = |misfits: &[(&[i64], &[i64])]| matches!(Misfit::classify(misfits, 9), Misfit::Batch);
        assert!(is_batch(&[(&[64, 8], &[32, 8]), (&[64], &[32])]));
        assert!(!is_batch(&[(&[64, 8], &[32, 8]), (&[96], &[32])]) && !is_batch(&[(&[384], &[128])]) && !is_batch(&[]));
        assert!(matches!(Misfit::classify(&[(&[64, 8], &[32, 8]), (&[8, 4], &[8, 2])], 9), Misfit::Several(2, 9)));
    }
}
