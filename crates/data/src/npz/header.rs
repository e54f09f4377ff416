//! The header of a `.npy` file: element type, order and dims. `npz` reads and writes the values.
//!
//! Source: NumPy's `numpy.lib.format`, versions 1.0 to 3.0 of the format.

use std::fmt;
use std::io::Read;

use crate::error::{DataError, DataErrorKind, DataPlace};
use bf16scope_hlo::DType;

/// The first bytes of any `.npy` file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Larger headers are refused. A header is a line of a hundred characters; NumPy itself stops at 10,000.
const MAX_BYTES: usize = 16 << 10;
/// The data begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// The element type and dims of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// NumPy's kind of element: `b`ool, `i`nt, `u`nsigned, `f`loat, `c`omplex, or `V` (void), which is how `ml_dtypes`
    /// stores bf16.
    pub kind: char,
    /// Bytes of an element.
    pub width: usize,
    /// Whether elements are stored with the most significant byte first.
    pub is_big_endian: bool,
    /// Whether the first axis varies fastest.
    pub is_fortran: bool,
    /// Sizes.
    pub dims: Vec<i64>,
}

impl Header {
    /// The header for writing elements of `dtype`: NumPy's own type if it has one, otherwise raw bits as unsigned
    /// integers. Types under a byte take one, as in literals.
    pub fn for_dtype(dtype: DType, dims: Vec<i64>) -> Header {
        let (kind, width) = match dtype {
            DType::Pred => ('b', 1),
            DType::S8 | DType::S16 | DType::S32 | DType::S64 => ('i', dtype.n_bytes()),
            DType::S4 | DType::S2 | DType::S1 => ('i', 1),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => ('u', dtype.n_bytes()),
            DType::U4 | DType::U2 | DType::U1 => ('u', 1),
            DType::F16 | DType::F32 | DType::F64 => ('f', dtype.n_bytes()),
            DType::C64 | DType::C128 => ('c', dtype.n_bytes()),
            DType::BF16 => ('u', 2),
            DType::F8E5M2
            | DType::F8E4M3FN
            | DType::F8E4M3B11FNUZ
            | DType::F8E5M2FNUZ
            | DType::F8E4M3FNUZ
            | DType::F8E4M3
            | DType::F8E3M4
            | DType::F4E2M1FN
            | DType::F6E3M2FN
            | DType::F6E2M3FN
            | DType::F8E8M0FNU => ('u', 1),
        };
        Header { kind, width, is_big_endian: false, is_fortran: false, dims }
    }

    /// Like [`for_dtype`](Header::for_dtype), but bf16 becomes a void type of two bytes, as `ml_dtypes` stores it and as
    /// readers here take it back.
    pub fn stored(dtype: DType, dims: Vec<i64>) -> Header {
        let header = Header::for_dtype(dtype, dims);
        if dtype == DType::BF16 { Header { kind: 'V', ..header } } else { header }
    }

    /// The HLO dtype of the elements; `None` for void types other than two bytes, which are bf16.
    pub fn dtype(&self) -> Option<DType> {
        match (self.kind, self.width) {
            // One byte could be any of seven floats; the file does not say which.
            ('V', 2) => Some(DType::BF16),
            (kind, width) => {
                const ALL: [DType; 14] = [
                    DType::Pred,
                    DType::S8,
                    DType::S16,
                    DType::S32,
                    DType::S64,
                    DType::U8,
                    DType::U16,
                    DType::U32,
                    DType::U64,
                    DType::F16,
                    DType::F32,
                    DType::F64,
                    DType::C64,
                    DType::C128,
                ];
                ALL.into_iter().find(|&dtype| {
                    let header = Header::for_dtype(dtype, Vec::new());
                    (header.kind, header.width) == (kind, width)
                })
            }
        }
    }

    /// The array's size in bytes, saturating: a damaged header may claim more than fits.
    pub fn n_bytes(&self) -> u64 {
        let sizes = self.dims.iter().map(|&dim| dim.unsigned_abs());
        sizes.fold(self.width as u64, u64::saturating_mul)
    }

    /// The header's bytes: version 1.0 if the line is short enough, else 2.0.
    pub fn to_bytes(&self) -> Vec<u8> {
        let order = if self.is_big_endian { '>' } else { '<' };
        let order = if self.width == 1 { '|' } else { order };
        let dims: Vec<String> = self.dims.iter().map(i64::to_string).collect();
        let comma = if dims.len() == 1 { "," } else { "" };
        let is_fortran = if self.is_fortran { "True" } else { "False" };
        let mut line = format!(
            "{{'descr': '{order}{}{}', 'fortran_order': {is_fortran}, 'shape': ({}{comma}), }}",
            self.kind,
            self.width,
            dims.join(", ")
        );
        let n_unpadded = MAGIC.len() + 4 + line.len() + 1;
        line.extend(std::iter::repeat_n(' ', n_unpadded.next_multiple_of(ALIGNMENT) - n_unpadded));
        line.push('\n');
        let mut bytes = MAGIC.to_vec();
        match u16::try_from(line.len()) {
            Ok(n_bytes) => {
                bytes.extend([1, 0]);
                bytes.extend(n_bytes.to_le_bytes());
            }
            Err(_) => {
                bytes.extend([2, 0]);
                bytes.extend((line.len() as u32).to_le_bytes());
            }
        }
        bytes.extend(line.into_bytes());
        bytes
    }

    /// Reads a header and leaves the reader at the first element.
    ///
    /// # Errors
    /// The bytes are not a header, or the elements are not numbers.
    pub fn read(reader: &mut impl Read) -> Result<Header, DataError> {
        let cut =
            |cause| wrong(DataErrorKind::Damaged, "the array ends within its header, or is damaged").because(cause);
        let mut start = [0u8; 8];
        reader.read_exact(&mut start).map_err(cut)?;
        let [magic @ .., major, minor] = start;
        if magic != *MAGIC {
            let message =
                format!("it begins with {magic:02x?}, expected a NumPy array, which begins with {MAGIC:02x?}");
            return Err(wrong(DataErrorKind::Format, message));
        }
        let n_bytes = match (major, minor) {
            (1, 0) => {
                let mut n_bytes = [0u8; 2];
                reader.read_exact(&mut n_bytes).map_err(cut)?;
                usize::from(u16::from_le_bytes(n_bytes))
            }
            (2 | 3, 0) => {
                let mut n_bytes = [0u8; 4];
                reader.read_exact(&mut n_bytes).map_err(cut)?;
                u32::from_le_bytes(n_bytes) as usize
            }
            (major, minor) => {
                let message = format!("the array is of format {major}.{minor}, expected 1.0, 2.0 or 3.0");
                return Err(wrong(DataErrorKind::Format, message));
            }
        };
        if n_bytes > MAX_BYTES {
            let message = format!("the header has {n_bytes} bytes, expected at most {MAX_BYTES}");
            return Err(wrong(DataErrorKind::TooLarge, message));
        }
        let mut line = vec![0u8; n_bytes];
        reader.read_exact(&mut line).map_err(cut)?;
        let line = String::from_utf8_lossy(&line);
        let [of_descr, of_order, of_shape] = members(&line)?;
        let (kind, width, is_big_endian) = descr(of_descr)?;
        let is_fortran = match of_order {
            Some("False") => false,
            Some("True") => true,
            magic => return Err(bad("fortran_order", magic, "True or False")),
        };
        Ok(Header { kind, width, is_big_endian, is_fortran, dims: dims(of_shape)? })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(i64::to_string).collect();
        let n_bits = 8 * self.width;
        match self.kind {
            'b' => write!(f, "pred")?,
            'i' => write!(f, "s{n_bits}")?,
            'V' => write!(f, "raw{n_bits}")?,
            kind => write!(f, "{kind}{n_bits}")?,
        }
        write!(f, "[{}]", dims.join(","))
    }
}

/// The keys of a header, each once.
const KEYS: [&str; 3] = ["descr", "fortran_order", "shape"];

/// The values in the line, a Python dictionary, one for each of [`KEYS`] if present.
///
/// # Errors
/// The line is not a dictionary, has another key, or has a key twice.
fn members(line: &str) -> Result<[Option<&str>; 3], DataError> {
    let line = line.trim();
    let start: String = line.chars().take(32).collect();
    let no_dictionary = || {
        wrong(DataErrorKind::Format, format!("the header is `{start}`, expected a dictionary of {}", KEYS.join(", ")))
    };
    let inner = line.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).ok_or_else(no_dictionary)?;
    let mut values = [None; 3];
    for member in parts(inner).ok_or_else(no_dictionary)? {
        let (key, value) = key_and_value(member).ok_or_else(no_dictionary)?;
        let Some(place) = KEYS.iter().position(|known| *known == key) else {
            let message = format!("the header has the key `{key}`, expected {} alone", KEYS.join(", "));
            return Err(wrong(DataErrorKind::Format, message));
        };
        if values[place].replace(value).is_some() {
            return Err(wrong(
                DataErrorKind::Format,
                format!("the header has the key `{key}` twice, expected it once"),
            ));
        }
    }
    Ok(values)
}

/// Splits a line at the commas outside of brackets and quotes; a trailing comma adds nothing. `None` if brackets or
/// quotes do not close.
fn parts(line: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let (mut depth, mut quote) = (0usize, None);
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (Some(open), _) => quote = (open != character).then_some(open),
            (None, '\'' | '"') => quote = Some(character),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.checked_sub(1)?,
            (None, ',') if depth == 0 => {
                parts.push(line[start..at].trim());
                start = at + 1;
            }
            (None, _) => {}
        }
    }
    let last = line[start..].trim();
    parts.extend((!last.is_empty()).then_some(last));
    (depth == 0 && quote.is_none()).then_some(parts)
}

/// Splits `'descr': '<f4'` into `'descr'` and `'<f4'`.
fn key_and_value(member: &str) -> Option<(&str, &str)> {
    let quote = member.chars().next().filter(|first| matches!(first, '\'' | '"'))?;
    let (key, rest) = member[1..].split_once(quote)?;
    let value = rest.trim_start().strip_prefix(':')?.trim();
    (!value.is_empty()).then_some((key, value))
}

fn bad(field: &'static str, rest: Option<&str>, expected: &'static str) -> DataError {
    let rest = rest.map_or("nothing".to_string(), |rest| format!("`{}`", rest.chars().take(40).collect::<String>()));
    wrong(DataErrorKind::Format, format!("the header says {field}: {rest}, expected {expected}"))
}

/// An error in a header; only the caller knows the array.
fn wrong(kind: DataErrorKind, message: impl Into<String>) -> DataError {
    DataError::new(kind, DataPlace::Nowhere, message)
}

fn no_numbers(descr: &str, what: &str, help: &str) -> DataError {
    wrong(DataErrorKind::Mismatch, format!("its elements are {what} ({descr}), expected numbers")).help(help)
}

/// Kind, width and byte order of `'<f4'`.
fn descr(value: Option<&str>) -> Result<(char, usize, bool), DataError> {
    const EXPECTED: &str = "the type of a number, such as '<f4'";
    let parsed = value.and_then(|value| {
        let text = unquoted(value)?;
        let order = text.chars().next()?;
        let unordered = text.strip_prefix(['<', '>', '|', '=']).unwrap_or(text);
        let kind = unordered.chars().next().filter(|kind| "biufcV".contains(*kind))?;
        let width = unordered[1..].parse().ok().filter(|width| (1..=16).contains(width))?;
        Some((kind, width, order == '>'))
    });
    parsed.ok_or_else(|| not_numbers(value).unwrap_or_else(|| bad("descr", value, EXPECTED)))
}

/// The text in quotes.
fn unquoted(value: &str) -> Option<&str> {
    ['\'', '"'].iter().find_map(|&quote| value.strip_prefix(quote)?.strip_suffix(quote))
}

/// The error for a NumPy type that no network reads.
fn not_numbers(rest: Option<&str>) -> Option<DataError> {
    let rest = rest?;
    if rest.starts_with('[') {
        let descr: String = rest.split_inclusive(']').next()?.chars().take(40).collect();
        let help = "save each field as an array of its own: `np.savez(FILE, a=x['a'], …)`";
        return Some(no_numbers(&descr, "records", help));
    }
    let text = unquoted(rest)?;
    let kind = text.trim_start_matches(['<', '>', '|', '=']).chars().next()?;
    let (what, help) = match kind {
        'U' | 'S' => ("texts", "make classes of them: in NumPy, `names, classes = np.unique(x, return_inverse=True)`"),
        'O' => ("Python objects", "make one array of numbers of them: in NumPy, `np.stack(x).astype('float32')`"),
        'M' | 'm' => ("times", "make numbers of them: in NumPy, `x.astype('int64')`"),
        _ => return None,
    };
    Some(no_numbers(&text.chars().take(40).collect::<String>(), what, help))
}

/// The sizes of `(3, 4)`.
fn dims(value: Option<&str>) -> Result<Vec<i64>, DataError> {
    let parsed = value.and_then(|value| {
        let inner = value.strip_prefix('(')?.strip_suffix(')')?;
        let sizes = parts(inner)?;
        // Python's `(4)` is a number.
        if sizes.len() == 1 && !inner.contains(',') {
            return None;
        }
        // Python 2 wrote long integers with an L.
        let parsed = sizes.iter().map(|size| size.trim_end_matches('L').parse().ok().filter(|dim: &i64| *dim >= 0));
        parsed.collect::<Option<Vec<i64>>>()
    });
    parsed.ok_or_else(|| bad("shape", value, "a tuple of sizes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back() {
        for &dtype in DType::ALL {
            for dims in [vec![], vec![3], vec![2, 0, 5]] {
                let header = Header::for_dtype(dtype, dims);
                let bytes = header.to_bytes();
                assert_eq!(bytes.len() % ALIGNMENT, 0);
                assert_eq!(Header::read(&mut bytes.as_slice()).unwrap(), header);
            }
        }
        let other = Header { kind: 'f', width: 8, is_big_endian: true, is_fortran: true, dims: vec![4, 4] };
        assert_eq!(Header::read(&mut other.to_bytes().as_slice()).unwrap(), other);
    }

    /// The bytes that `numpy.save` wrote for `numpy.zeros((2, 3), numpy.float32)`.
    #[test]
    fn headers_are_those_of_numpy() {
        let mut expected =
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".to_vec();
        expected.resize(127, b' ');
        expected.push(b'\n');
        let header = Header::read(&mut expected.as_slice()).unwrap();
        assert_eq!(header, Header::for_dtype(DType::F32, vec![2, 3]));
        assert_eq!(header.to_bytes(), expected);
        assert_eq!(header.to_string(), "f32[2,3]");
    }

    #[test]
    fn headers_that_are_none() {
        let read = |line: &str| {
            let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
            bytes.extend((line.len() as u16).to_le_bytes());
            bytes.extend(line.as_bytes());
            Header::read(&mut bytes.as_slice()).unwrap_err().to_string()
        };
        assert_eq!(
            read("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }"),
            "its elements are records ([('a', '<f4')]), expected numbers\nhelp: save each field as an array of its own: \
             `np.savez(FILE, a=x['a'], …)`"
        );
        let typed = |descr: &str| read(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}"));
        assert_eq!(
            typed("'<U4'"),
            "its elements are texts (<U4), expected numbers\nhelp: make classes of them: in NumPy, `names, classes = \
             np.unique(x, return_inverse=True)`"
        );
        assert_eq!(
            typed("'|O'"),
            "its elements are Python objects (|O), expected numbers\nhelp: make one array of numbers of them: in NumPy, \
             `np.stack(x).astype('float32')`"
        );
        assert_eq!(
            typed("'<M8[ns]'"),
            "its elements are times (<M8[ns]), expected numbers\nhelp: make numbers of them: in NumPy, `x.astype('int64')`"
        );
        assert_eq!(typed("'<q7'"), "the header says descr: `'<q7'`, expected the type of a number, such as '<f4'");
        assert_eq!(
            read("{'descr': '<f4', 'shape': (2,), }"),
            "the header says fortran_order: nothing, expected True or False"
        );
        assert_eq!(
            read("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }"),
            "the header says shape: `(-2,)`, expected a tuple of sizes"
        );
        // For a duplicate key, NumPy takes the last value and others take the first; no writer emits more than these
        // three keys.
        let refused = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), ";
        for (more, expected) in [
            ("'descr': '<i4'}", "the header has the key `descr` twice, expected it once"),
            ("'order': 'C'}", "the header has the key `order`, expected descr, fortran_order, shape alone"),
            (
                "} # }",
                "the header is `{'descr': '<f4', 'fortran_order'`, expected a dictionary of descr, fortran_order, shape",
            ),
            (
                "} or 1",
                "the header is `{'descr': '<f4', 'fortran_order'`, expected a dictionary of descr, fortran_order, shape",
            ),
            (
                "",
                "the header is `{'descr': '<f4', 'fortran_order'`, expected a dictionary of descr, fortran_order, shape",
            ),
        ] {
            assert_eq!(read(&format!("{refused}{more}")), expected, "{more}");
        }
        for shape in ["(2)", "(2,,)", "(2 3)", "[2]", "2"] {
            let header = read(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"));
            assert_eq!(header, format!("the header says shape: `{shape}`, expected a tuple of sizes"));
        }
        let read = |bytes: &[u8]| Header::read(&mut &*bytes).unwrap_err().to_string();
        assert_eq!(
            read(b"PK\x03\x04abcd"),
            "it begins with [50, 4b, 03, 04, 61, 62], expected a NumPy array, which begins with [93, 4e, 55, 4d, 50, 59]"
        );
        assert_eq!(read(b"\x93NUMPY\x09\x00"), "the array is of format 9.0, expected 1.0, 2.0 or 3.0");
        assert_eq!(
            read(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"),
            "the header has 4294967295 bytes, expected at most 16384"
        );
        assert_eq!(read(b"\x93NUM"), "the array ends within its header, or is damaged");
    }
}
