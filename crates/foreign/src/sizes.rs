//! Sizes for symbolic dimensions: `b=32` by the name that `jax.export` knows it by, or `0:1=32` by parameter and dimension.
//!
//! MLIR itself writes `?` for each of them. Names come from the messages of the assertions that `jax.export` puts into a
//! program, which hold the shapes as they were specified: `args[0].shape = (2*b, 3),args[1].shape = (n,)`.
//!
//! Source: `jax/_src/export/shape_poly.py` of jax 0.10: how specifications and expressions of dimensions are printed.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::ForeignError;
use bf16scope_hlo::words::nearest;

/// A dimension whose size is not known, among the dims of a shape that was read.
pub(super) const UNKNOWN: i64 = -1;
/// The text before the specifications in a message.
const MARKER: &str = "polymorphic shapes specifications: ";
/// Expressions nest no deeper.
const MAX_DEPTH: u32 = 32;

/// Which dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Dim {
    Name(String),
    Place(usize, usize),
}

/// The size of one symbolic dimension: `b=32`, or `0:1=32` for dimension 1 of parameter 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    dim: Dim,
    size: i64,
}

/// Sizes of symbolic dimensions, none of them twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes(Vec<Size>);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        const FORM: &str = "expected a name and a size, such as b=32, or a parameter and its dimension, such as 0:1=32";
        let (name, size) = text.split_once('=').ok_or(FORM)?;
        let (name, size) = (name.trim(), size.trim());
        let size: i64 = size.parse().map_err(|_| format!("`{size}` is no size; {FORM}"))?;
        if size < 0 || size > i64::from(i32::MAX) {
            return Err(format!("the size is {size}, expected 0 to {}", i32::MAX));
        }
        let place =
            name.split_once(':').and_then(|(parameter, dim)| Some((parameter.parse().ok()?, dim.parse().ok()?)));
        let dim = match place {
            Some((parameter, dim)) => Dim::Place(parameter, dim),
            None if is_name(name) => Dim::Name(name.to_string()),
            None => return Err(format!("`{name}` names no dimension; {FORM}")),
        };
        Ok(Size { dim, size })
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Name(name) => f.write_str(name),
            Dim::Place(parameter, dim) => write!(f, "{parameter}:{dim}"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let of_name =
        |(at, letter): (usize, char)| letter == '_' || letter.is_alphabetic() || at > 0 && letter.is_numeric();
    !name.is_empty() && name.char_indices().all(of_name)
}

impl Sizes {
    /// These sizes.
    ///
    /// # Errors
    /// A dimension that is there twice, by its name.
    pub fn new(sizes: Vec<Size>) -> Result<Sizes, String> {
        for (at, size) in sizes.iter().enumerate() {
            if sizes[..at].iter().any(|other| other.dim == size.dim) {
                return Err(size.dim.to_string());
            }
        }
        Ok(Sizes(sizes))
    }

    /// These sizes and one more.
    ///
    /// # Errors
    /// A dimension that has a size already, by its name.
    pub fn and(&self, size: Size) -> Result<Sizes, String> {
        let mut sizes = self.0.clone();
        sizes.push(size);
        Sizes::new(sizes)
    }

    /// Whether no size is given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size of the dimension with this name.
    pub fn named(&self, name: &str) -> Option<i64> {
        self.0.iter().find(|size| matches!(&size.dim, Dim::Name(known) if known == name)).map(|size| size.size)
    }

    /// The size of a parameter's dimension.
    pub fn placed(&self, parameter: usize, dim: usize) -> Option<i64> {
        self.0.iter().find(|size| size.dim == Dim::Place(parameter, dim)).map(|size| size.size)
    }

    /// Gives every unknown dimension of a program's parameters its size. `text` is the program's, `file` what messages
    /// call it.
    ///
    /// # Errors
    /// Dimensions without a size, with all of their names; a size of what is no dimension; one that does not fit.
    pub(super) fn settle(&self, dims: &mut [Vec<i64>], text: &str, file: &str) -> Result<(), ForeignError> {
        let specs = aligned(dims, &specifications(text));
        let unknown: Vec<(usize, usize)> = places(dims).collect();
        let names: BTreeSet<&str> =
            unknown.iter().filter_map(|&(p, d)| specs[p].as_ref().map(|spec| names_of(&spec[d]))).flatten().collect();
        for size in &self.0 {
            let is_there = match &size.dim {
                Dim::Name(name) => names.contains(name.as_str()),
                Dim::Place(parameter, dim) => unknown.contains(&(*parameter, *dim)),
            };
            if !is_there {
                return Err(self.no_dimension(&size.dim, &names, &unknown, file));
            }
        }
        // A place whose specification is a name alone says the name's size too.
        let alone = |name: &str| {
            unknown.iter().find_map(|&(p, d)| {
                let spec = specs[p].as_ref()?;
                (spec[d] == name).then(|| self.placed(p, d)).flatten()
            })
        };
        let value_of = |name: &str| self.named(name).or_else(|| alone(name));
        let mut missing = BTreeSet::new();
        for &(p, d) in &unknown {
            let spec = specs[p].as_ref().map(|spec| spec[d].as_str());
            let value = self.placed(p, d).or_else(|| spec.and_then(|spec| value(spec, &value_of)));
            match (value, spec) {
                (Some(value), _) if (0..=i64::from(i32::MAX)).contains(&value) => dims[p][d] = value,
                (Some(value), _) => {
                    let spec = spec.unwrap_or("?");
                    return Err(ForeignError::of_sizes(
                        format!("{file}: dimension {d} of parameter {p} is {spec}, which is {value}"),
                        "give other sizes: no dimension is negative, or above 2147483647",
                    ));
                }
                (None, Some(spec)) => {
                    let before = missing.len();
                    missing.extend(names_of(spec).filter(|name| value_of(name).is_none()).map(str::to_string));
                    if missing.len() == before && names_of(spec).all(|name| value_of(name).is_some()) {
                        // An expression of another kind, or one that overflows.
                        missing.insert(format!("{p}:{d}"));
                    }
                }
                (None, None) => {
                    missing.insert(format!("{p}:{d}"));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
        let flags: Vec<String> = missing.iter().map(|name| format!("--dim {name}=32")).collect();
        let by_place = match missing.iter().any(|name| name.contains(':')) {
            true => " (PARAMETER:DIMENSION, for what the file has no name for)",
            false => "",
        };
        Err(ForeignError::Sizes {
            said: format!("{file}: its sizes are symbolic, and no size is given for {}", list.join(", ")),
            help: format!("say how large each is: {}{by_place}", flags.join(" ")),
        })
    }

    fn no_dimension(&self, dim: &Dim, names: &BTreeSet<&str>, unknown: &[(usize, usize)], file: &str) -> ForeignError {
        let mut known: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
        known.extend(unknown.iter().map(|(p, d)| format!("{p}:{d}")));
        let help = match nearest(&dim.to_string(), names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("its symbolic dimensions are {}", known.join(", ")),
        };
        ForeignError::Sizes { said: format!("{file}: no symbolic dimension is called `{dim}`"), help }
    }
}

/// The unknown dimensions, by parameter and place in it.
fn places(dims: &[Vec<i64>]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let of = |(p, dims): (usize, &'_ Vec<i64>)| {
        dims.iter().enumerate().filter(|(_, dim)| **dim == UNKNOWN).map(|(d, _)| (p, d)).collect::<Vec<_>>()
    };
    dims.iter().enumerate().flat_map(of)
}

/// The specifications of shapes in the first message that holds them.
fn specifications(text: &str) -> Vec<Vec<String>> {
    let Some(at) = text.find(MARKER) else { return Vec::new() };
    let rest = &text[at + MARKER.len()..];
    let mut rest = &rest[..rest.find(". Obtained").or_else(|| rest.find('"')).unwrap_or(rest.len())];
    let mut found = Vec::new();
    while let Some((_, after)) = rest.split_once(".shape = (") {
        let (mut depth, mut dims, mut dim) = (0, Vec::new(), String::new());
        let mut end = after.len();
        for (place, letter) in after.char_indices() {
            match letter {
                ')' if depth == 0 => {
                    end = place;
                    break;
                }
                ',' if depth == 0 => dims.push(std::mem::take(&mut dim)),
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if letter != ',' || depth > 0 {
                dim.push(letter);
            }
        }
        dims.push(dim);
        let dims: Vec<String> = dims.iter().map(|dim| dim.trim().to_string()).filter(|dim| !dim.is_empty()).collect();
        found.push(dims);
        rest = &after[end..];
    }
    found
}

/// Which specification is which parameter's: they come in order, and those of arguments that are not used have none.
fn aligned(dims: &[Vec<i64>], specs: &[Vec<String>]) -> Vec<Option<Vec<String>>> {
    let mut rest = specs.iter();
    let mut of = |dims: &Vec<i64>| {
        let fits = |spec: &&Vec<String>| {
            let agrees = |(&dim, spec): (&i64, &String)| match spec.parse::<i64>() {
                Ok(size) => dim == size,
                Err(_) => dim == UNKNOWN,
            };
            spec.len() == dims.len() && dims.iter().zip(spec.iter()).all(agrees)
        };
        if dims.contains(&UNKNOWN) { rest.find(fits).cloned() } else { None }
    };
    dims.iter().map(&mut of).collect()
}

/// The names in an expression, without those of functions.
fn names_of(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| is_name(word) && !matches!(*word, "floordiv" | "mod" | "max" | "min" | "non_negative"))
}

/// The value of an expression as JAX prints it: `2*b + 1`, `floordiv(b, 2)`; none where a name has none.
fn value(expression: &str, names: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut reader = Expression { rest: expression, names, depth: 0 };
    let value = reader.sum()?;
    reader.rest.trim().is_empty().then_some(value)
}

struct Expression<'t> {
    rest: &'t str,
    names: &'t dyn Fn(&str) -> Option<i64>,
    depth: u32,
}

impl Expression<'_> {
    fn eat(&mut self, mark: char) -> bool {
        let rest = self.rest.trim_start();
        let after = rest.strip_prefix(mark);
        self.rest = after.unwrap_or(rest);
        after.is_some()
    }

    fn sum(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut sum = self.product()?;
        loop {
            if self.eat('+') {
                sum = sum.checked_add(self.product()?)?;
            } else if self.eat('-') {
                sum = sum.checked_sub(self.product()?)?;
            } else {
                self.depth -= 1;
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut product: i64 = if self.eat('-') { -1 } else { 1 };
        loop {
            product = product.checked_mul(self.power()?)?;
            if !self.eat('*') {
                return Some(product);
            }
        }
    }

    fn power(&mut self) -> Option<i64> {
        let base = self.atom()?;
        if self.eat('^') { base.checked_pow(u32::try_from(self.atom()?).ok()?) } else { Some(base) }
    }

    fn atom(&mut self) -> Option<i64> {
        if self.eat('(') {
            let value = self.sum()?;
            return self.eat(')').then_some(value);
        }
        let n = self.rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(n);
        self.rest = rest;
        if word.starts_with(|first: char| first.is_ascii_digit()) {
            return word.parse().ok();
        } else if !self.eat('(') {
            return (self.names)(word);
        }
        let first = self.sum()?;
        let second = if self.eat(',') { Some(self.sum()?) } else { None };
        if !self.eat(')') {
            return None;
        }
        match (word, second) {
            ("floordiv", Some(by)) if by != 0 => Some(first.div_euclid(by)).filter(|_| by > 0),
            ("mod", Some(by)) if by > 0 => Some(first.rem_euclid(by)),
            ("max", Some(other)) => Some(first.max(other)),
            ("min", Some(other)) => Some(first.min(other)),
            ("non_negative", None) => Some(first.max(0)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
