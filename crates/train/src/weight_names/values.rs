//! Reads the values of a mapping: array by array, converted to our layout and dtype, and checked to be finite.

use super::error::WeightNameError;
use super::layout::Layout;
use super::mapping::{Found, Mapping};
use super::variable::{Given, Scale};
use bf16scope_data::weights::WeightsFile;
use bf16scope_hlo::element::floats;
use bf16scope_hlo::{ArrayShape, DType, Float, FloatVisitor, Literal};
use std::collections::BTreeMap;
use std::error::Error;

/// A file of arrays, as mappings read it.
pub trait Arrays {
    /// Its name in errors.
    fn name(&self) -> String;
    /// The arrays that it holds.
    fn given(&self) -> Vec<Given>;
    /// The bytes of an array, row-major and little-endian, in the dtype that [`Arrays::given`] says.
    ///
    /// # Errors
    /// A file that cannot be read.
    fn read(&self, name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>>;
}

impl Arrays for WeightsFile {
    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn given(&self) -> Vec<Given> {
        let places: BTreeMap<&str, usize> =
            self.order().iter().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
        let entries = self.entries().iter().map(|entry| Given {
            name: entry.name.clone(),
            aliases: entry.aliases.clone(),
            dtype: entry.dtype.array(),
            dims: entry.dims.iter().map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX)).collect(),
            place: places.get(entry.name.as_str()).copied(),
        });
        entries.collect()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        match WeightsFile::read(self, name)? {
            Literal::Array { bytes, .. } => Ok(bytes),
            Literal::Tuple(_) | Literal::Token => Err("it is not an array".into()),
        }
    }
}

/// Shape and bytes of one of our arrays.
pub type Value = (ArrayShape, Vec<u8>);

/// The values of all variables that a mapping found, by our names. Slots that are steps in the file ([`Scale::Step`])
/// are divided by minus the learning rate `rate`.
///
/// # Errors
/// A file that cannot be read; a number that is not finite.
pub fn values(arrays: &dyn Arrays, mapping: &Mapping, rate: f64) -> Result<BTreeMap<String, Value>, WeightNameError> {
    let dtypes: BTreeMap<String, DType> =
        arrays.given().into_iter().filter_map(|given| Some((given.name, given.dtype?))).collect();
    let mut values = BTreeMap::new();
    // Parts of one array are requested one after the other.
    let mut last: Option<(String, Vec<u8>)> = None;
    for mapped in &mapping.variables {
        let Found::Taken { theirs, layout, scale, .. } = &mapped.found else { continue };
        if last.as_ref().is_none_or(|(name, _)| name != theirs) {
            let bytes = arrays.read(theirs).map_err(|source| WeightNameError::Read {
                file: arrays.name(),
                theirs: theirs.clone(),
                source,
            })?;
            last = Some((theirs.clone(), bytes));
        }
        let (_, bytes) = last.as_ref().expect("it was just read");
        let from = dtypes[theirs];
        let shape = mapped.wanted.shape.clone();
        let factor = if *scale == Scale::Step { -1.0 / rate } else { 1.0 };
        let value = value((bytes, from), layout, &shape, factor).map_err(|problem| match problem {
            Problem::Length => WeightNameError::Read {
                file: arrays.name(),
                theirs: theirs.clone(),
                source: format!("it has {} bytes, which its shape has not", bytes.len()).into(),
            },
            Problem::NotFinite { idx, value, is_rounded } => WeightNameError::NotFinite {
                file: arrays.name(),
                theirs: theirs.clone(),
                ours: mapped.wanted.name.clone(),
                idx,
                value: value.to_string(),
                is_rounded,
            },
        })?;
        values.insert(mapped.wanted.name.clone(), (shape, value));
    }
    Ok(values)
}

enum Problem {
    Length,
    NotFinite { idx: usize, value: f64, is_rounded: bool },
}

fn value((bytes, from): (&[u8], DType), layout: &Layout, shape: &ArrayShape, factor: f64) -> Result<Vec<u8>, Problem> {
    let width = from.n_bytes();
    let n_theirs: i64 = layout.their_dims(&shape.dims).ok_or(Problem::Length)?.iter().product();
    if bytes.len() != n_theirs.max(0) as usize * width {
        return Err(Problem::Length);
    }
    let laid = layout.ours(bytes, &shape.dims, width).ok_or(Problem::Length)?;
    let Some(numbers) = floats(from, &laid) else { return Ok(laid) };
    let mut out = Vec::with_capacity(laid.len() / width * shape.dtype.n_bytes());
    for (idx, number) in numbers.enumerate() {
        let rounded = write(number * factor, shape.dtype, &mut out);
        if !rounded.is_finite() {
            return Err(Problem::NotFinite { idx, value: rounded, is_rounded: number.is_finite() });
        }
    }
    Ok(out)
}

/// Writes a number, rounded once, and returns the rounded number.
fn write(number: f64, dtype: DType, out: &mut Vec<u8>) -> f64 {
    struct Write<'a>(f64, &'a mut Vec<u8>);
    impl FloatVisitor for Write<'_> {
        type Output = f64;

        fn visit<T: Float>(self) -> f64 {
            let rounded = T::from_f64(self.0);
            rounded.write(self.1);
            rounded.to_f64()
        }
    }
    let dtype = if matches!(dtype, DType::BF16 | DType::F16 | DType::F64) { dtype } else { DType::F32 };
    dtype.visit_float(Write(number, out)).expect("floats of 16 to 64 bits are visited")
}
