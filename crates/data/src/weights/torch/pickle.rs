//! Pickled state dicts, read as data: dicts, lists, numbers, texts and tensors. Nothing is imported and nothing is
//! called.
//!
//! A pickle is a program for a stack machine. This machine supports containers, plain values, and four constructors of
//! PyTorch: a storage, a tensor, a parameter, a size. Any other name or operation is an error that names it.
//!
//! Source: Python's `pickletools.py`, protocols 2 to 5; PyTorch's `torch/_utils.py`.

use std::path::Path;
use std::rc::Rc;

use super::dtype;
use crate::weights::WeightsError;
use bf16scope_hlo::DType;

/// The largest nesting depth of containers.
const MAX_DEPTH: usize = 32;
/// The largest number of visited values: a shared value is visited wherever it occurs.
const MAX_VALUES: usize = 4 << 20;
/// The largest total size of all names: a long key is repeated in the name of each value below it.
const MAX_NAMES: usize = 64 << 20;
/// The largest rank of a tensor, as in PyTorch.
const MAX_RANK: usize = 64;
/// Plain values that are listed; the rest are counted.
const MAX_LEFT_OUT: usize = 16;

/// A tensor: a view of a storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub storage: Rc<str>,
    /// The storage's bytes, as the pickle counts them.
    pub n_storage: u64,
    pub dtype: DType,
    /// The first element, counted in elements.
    pub start: u64,
    pub dims: Vec<u64>,
    pub strides: Vec<u64>,
}

/// The content of a state dict.
#[derive(Debug, Default)]
pub(super) struct State {
    pub tensors: Vec<(String, Tensor)>,
    /// Names of values that are not tensors.
    pub left_out: Vec<String>,
    /// Whether an optimizer in it has several parameter groups.
    pub has_groups: bool,
}

/// A value that a pickle constructs.
#[derive(Clone, Debug)]
enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float,
    Text(Rc<str>),
    Bytes,
    /// Its parts, and the nesting depth of tuples in it.
    Tuple(Rc<Vec<Value>>, usize),
    List(usize),
    Dict(usize),
    Name(Name),
    /// A dtype of PyTorch.
    DType(DType),
    /// A storage's key, the dtype of its elements if it has one, and how many it has.
    Storage(Rc<str>, Option<DType>, u64),
    Tensor(Rc<Tensor>),
}

/// An allowed global name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    OrderedDict,
    Tensor,
    TensorOfDType,
    Parameter,
    Size,
    Storage(Option<DType>),
}

fn name(module: &str, name: &str) -> Option<Value> {
    let name = match (module, name) {
        ("collections", "OrderedDict") => Name::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Name::Tensor,
        ("torch._utils", "_rebuild_tensor_v3") => Name::TensorOfDType,
        ("torch._utils", "_rebuild_parameter") => Name::Parameter,
        ("torch", "Size") => Name::Size,
        ("torch.storage" | "torch", "UntypedStorage") => Name::Storage(None),
        ("torch" | "torch.cuda", storage) if storage.ends_with("Storage") => Name::Storage(Some(dtype(storage)?)),
        ("torch", other) => return dtype(other).map(Value::DType),
        _ => return None,
    };
    Some(Value::Name(name))
}

/// The budget spent on visiting a value: the number of values, and the size of their names.
#[derive(Default)]
struct Looked {
    n_values: usize,
    n_name_bytes: usize,
}

/// A stack machine that constructs values.
struct Machine<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Vec<Option<Value>>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
}

type Made<T> = Result<T, WeightsError>;

/// Reads a pickle whose value is a dict of tensors, of dicts and lists of them, and of plain values.
pub(super) fn read(path: &Path, bytes: &[u8]) -> Made<State> {
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new());
    let mut machine = Machine { path, bytes, at: 0, stack, marks, memo, lists: Vec::new(), dicts: Vec::new() };
    let value = machine.run()?;
    let (mut state, mut n) = (State::default(), Looked::default());
    if !matches!(value, Value::Dict(_) | Value::Tensor(_) | Value::List(_)) {
        return Err(machine.unsupported(format!("it holds {}; expected a dict of tensors", words(&value))));
    }
    machine.collect("", &value, 0, &mut n, &mut state)?;
    Ok(state)
}

fn words(value: &Value) -> &'static str {
    match value {
        Value::None => "None",
        Value::Bool(_) => "a bool",
        Value::Int(_) => "an integer",
        Value::Float => "a float",
        Value::Text(_) => "a text",
        Value::Bytes => "bytes",
        Value::Tuple(..) => "a tuple",
        Value::List(_) => "a list",
        Value::Dict(_) => "a dict",
        Value::Name(_) | Value::DType(_) => "a name",
        Value::Storage(..) => "a storage",
        Value::Tensor(_) => "a tensor",
    }
}

impl Machine<'_> {
    fn damaged(&self, message: impl Into<String>) -> WeightsError {
        let message = format!("its pickle (data.pkl) at byte {}: {}", self.at, message.into());
        WeightsError::new(crate::weights::WeightsErrorKind::Damaged, self.path, message).help("copy or save it again")
    }

    fn unsupported(&self, message: impl Into<String>) -> WeightsError {
        let message = format!("its pickle (data.pkl) at byte {}: {}", self.at, message.into());
        let help = "save tensors alone: torch.save(model.state_dict(), FILE), or safetensors.torch.save_file";
        WeightsError::unsupported(self.path, message).help(help)
    }

    fn take(&mut self, n: usize) -> Made<&[u8]> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.damaged("it ends within an operation"))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    /// An unsigned number of this many bytes, little-endian.
    fn number(&mut self, n_bytes: usize) -> Made<usize> {
        let bytes = self.take(n_bytes)?;
        let number = bytes.iter().rev().fold(0u64, |number, &byte| (number << 8) | u64::from(byte));
        // A pickle ends before a length that memory cannot hold.
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn text(&mut self, n: usize) -> Made<Rc<str>> {
        let bytes = self.take(n)?.to_vec();
        let text = String::from_utf8(bytes).map_err(|_| self.damaged("a text is not UTF-8"))?;
        Ok(text.into())
    }

    fn line(&mut self) -> Made<Rc<str>> {
        let rest = &self.bytes[self.at..];
        let n = memchr::memchr(b'\n', rest).ok_or_else(|| self.damaged("a name does not end"))?;
        let text = self.text(n)?;
        self.take(1)?;
        Ok(text)
    }

    fn pop(&mut self) -> Made<Value> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        match self.stack.len() > bottom {
            true => Ok(self.stack.pop().expect("the stack is longer than its bottom")),
            false => Err(self.damaged("an operation lacks its operand")),
        }
    }

    fn pop_mark(&mut self) -> Made<Vec<Value>> {
        let mark = self.marks.pop().ok_or_else(|| self.damaged("an operation lacks its mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn memoize(&mut self, idx: usize) -> Made<()> {
        let value = self.pop()?;
        // Every memo index is assigned by its own operation, so there are fewer than the pickle's bytes.
        if idx > self.bytes.len() {
            return Err(self.damaged(format!("it remembers a value under {idx}")));
        }
        if self.memo.len() <= idx {
            self.memo.resize(idx + 1, None);
        }
        self.memo[idx] = Some(value.clone());
        self.stack.push(value);
        Ok(())
    }

    fn recall(&mut self, idx: usize) -> Made<()> {
        let value = self.memo.get(idx).cloned().flatten();
        let value = value.ok_or_else(|| self.damaged(format!("there is nothing remembered under {idx}")))?;
        self.stack.push(value);
        Ok(())
    }

    fn run(&mut self) -> Made<Value> {
        loop {
            let op = self.take(1)?[0];
            if op == b'.' {
                return self.pop();
            }
            match op {
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'(' => self.marks.push(self.stack.len()),
                b'q' | b'r' | 0x94 => {
                    let idx = match op {
                        b'q' => self.number(1)?,
                        b'r' => self.number(4)?,
                        _ => self.memo.len(),
                    };
                    self.memoize(idx)?;
                }
                b'h' | b'j' => {
                    let idx = self.number(if op == b'h' { 1 } else { 4 })?;
                    self.recall(idx)?;
                }
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_mark()?),
                b'c' | 0x93 => self.name(op)?,
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                b'b' => self.build()?,
                b's' | b'u' | b'a' | b'e' => self.fill(op)?,
                op => {
                    let value = self.value(op)?;
                    self.stack.push(value);
                }
            }
        }
    }

    /// An operation that constructs a value from its arguments or from the stack.
    fn value(&mut self, op: u8) -> Made<Value> {
        Ok(match op {
            b'N' => Value::None,
            0x88 | 0x89 => Value::Bool(op == 0x88),
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            b'J' => Value::Int(i64::from(self.number(4)? as u32 as i32)),
            0x8a => {
                let n = self.number(1)?;
                self.long(n)?
            }
            b'G' => {
                self.take(8)?;
                Value::Float
            }
            b'X' | 0x8c | 0x8d => {
                let n = self.number(match op {
                    b'X' => 4,
                    0x8c => 1,
                    _ => 8,
                })?;
                Value::Text(self.text(n)?)
            }
            b'U' | b'T' | b'C' | b'B' => {
                let n = self.number(if matches!(op, b'U' | b'C') { 1 } else { 4 })?;
                self.take(n)?;
                Value::Bytes
            }
            b')' => self.tuple(Vec::new())?,
            b't' => {
                let values = self.pop_mark()?;
                self.tuple(values)?
            }
            0x85..=0x87 => {
                let mut values = (0x85..=op).map(|_| self.pop()).collect::<Made<Vec<Value>>>()?;
                values.reverse();
                self.tuple(values)?
            }
            b']' => self.list(Vec::new()),
            b'l' => {
                let values = self.pop_mark()?;
                self.list(values)
            }
            b'}' => self.dict(),
            op => {
                return Err(
                    self.unsupported(format!("operation {op:#04x} makes another thing than a state dict holds"))
                );
            }
        })
    }

    /// A signed number of any length; one of more than eight bytes is not a size, and is ignored.
    fn long(&mut self, n: usize) -> Made<Value> {
        let bytes = self.take(n)?;
        if n > 8 {
            return Ok(Value::Float);
        }
        let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { -1 } else { 0 };
        Ok(Value::Int(bytes.iter().rev().fold(sign, |number, &byte| (number << 8) | i64::from(byte))))
    }

    /// A tuple of values. Tuples own their parts, so their nesting depth is bounded, like that of state dicts, for the
    /// recursion of walking and dropping.
    fn tuple(&self, values: Vec<Value>) -> Made<Value> {
        let depths = values.iter().map(|value| if let Value::Tuple(_, depth) = value { depth + 1 } else { 1 });
        let depth = depths.max().unwrap_or(1);
        if depth > MAX_DEPTH {
            return Err(self.unsupported(format!("its tuples are in one another deeper than {MAX_DEPTH}")));
        }
        Ok(Value::Tuple(Rc::new(values), depth))
    }

    fn list(&mut self, values: Vec<Value>) -> Value {
        self.lists.push(values);
        Value::List(self.lists.len() - 1)
    }

    fn dict(&mut self) -> Value {
        self.dicts.push(Vec::new());
        Value::Dict(self.dicts.len() - 1)
    }

    fn name(&mut self, op: u8) -> Made<()> {
        let (module, called) = if op == b'c' {
            (self.line()?, self.line()?)
        } else {
            match (self.pop()?, self.pop()?) {
                (Value::Text(called), Value::Text(module)) => (module, called),
                _ => return Err(self.damaged("a name is not text")),
            }
        };
        let value = name(&module, &called).ok_or_else(|| {
            self.unsupported(format!(
                "it asks Python for `{module}.{called}`, which no state dict needs; nothing of it was run"
            ))
        })?;
        self.stack.push(value);
        Ok(())
    }

    /// `('storage', type, key, location, n_elements)`.
    fn storage(&mut self) -> Made<()> {
        let pid = self.pop()?;
        let Value::Tuple(parts, _) = &pid else { return Err(self.damaged("a storage is not a tuple")) };
        match parts.as_slice() {
            [Value::Text(kind), Value::Name(Name::Storage(dtype)), Value::Text(key), _, Value::Int(n), ..]
                if &**kind == "storage" && *n >= 0 =>
            {
                self.stack.push(Value::Storage(key.clone(), *dtype, n.unsigned_abs()));
                Ok(())
            }
            _ => Err(self.unsupported("a storage is not said as PyTorch says it")),
        }
    }

    fn call(&mut self) -> Made<()> {
        let (args, called) = (self.pop()?, self.pop()?);
        let (Value::Tuple(args, _), Value::Name(called)) = (&args, &called) else {
            return Err(self.unsupported(format!("it calls {}", words(&called))));
        };
        let value = match (called, args.as_slice()) {
            (Name::OrderedDict, []) => self.dict(),
            (Name::Tensor, [storage, start, dims, strides, _, _, bits @ ..]) => {
                self.check_bits(bits)?;
                self.tensor(storage, None, [start, dims, strides])?
            }
            (Name::TensorOfDType, [storage, start, dims, strides, _, _, Value::DType(dtype), bits @ ..]) => {
                self.check_bits(bits)?;
                self.tensor(storage, Some(*dtype), [start, dims, strides])?
            }
            (Name::Parameter, [tensor @ Value::Tensor(_), ..]) => tensor.clone(),
            (Name::Size, [sizes @ Value::Tuple(..)]) => sizes.clone(),
            _ => return Err(self.unsupported(format!("it makes {called:?} of {} values", args.len()))),
        };
        self.stack.push(value);
        Ok(())
    }

    /// A tensor's flags: whether its elements are to be negated, or conjugated, when read.
    fn check_bits(&self, bits: &[Value]) -> Made<()> {
        let dict = match bits {
            [] | [Value::None] => return Ok(()),
            [Value::Dict(idx)] => &self.dicts[*idx],
            _ => return Err(self.unsupported("a tensor is made of other values than PyTorch writes")),
        };
        for (key, value) in dict {
            match (key, value) {
                (Value::Text(key), Value::Bool(false)) if matches!(&**key, "conj" | "neg") => {}
                (Value::Text(key), Value::Bool(true)) if matches!(&**key, "conj" | "neg") => {
                    let message = format!(
                        "a tensor's elements are stored before an operation (`{key}`) that is still to be done"
                    );
                    let error = WeightsError::unsupported(
                        self.path,
                        format!("its pickle (data.pkl) at byte {}: {message}", self.at),
                    );
                    return Err(error.help("save it as `tensor.resolve_conj().resolve_neg()`"));
                }
                (Value::Text(key), _) => {
                    let message = format!("a tensor has `{}`, which is not known", key.escape_debug());
                    return Err(self.unsupported(message));
                }
                _ => return Err(self.unsupported("a tensor has what PyTorch does not write")),
            }
        }
        Ok(())
    }

    fn tensor(&self, storage: &Value, dtype: Option<DType>, [start, dims, strides]: [&Value; 3]) -> Made<Value> {
        let size = |value: &Value| match value {
            Value::Int(size) => u64::try_from(*size).ok(),
            _ => None,
        };
        let sizes = |value: &Value| match value {
            Value::Tuple(sizes, _) if sizes.len() <= MAX_RANK => sizes.iter().map(size).collect::<Option<Vec<u64>>>(),
            _ => None,
        };
        let tensor = match (storage, size(start), sizes(dims), sizes(strides)) {
            (Value::Storage(key, storage_dtype, n), Some(start), Some(dims), Some(strides))
                if dims.len() == strides.len() =>
            {
                // An untyped storage counts its bytes.
                let n_storage = n.saturating_mul(storage_dtype.map_or(1, |dtype| dtype.n_bytes() as u64));
                let dtype = dtype.or(*storage_dtype);
                dtype.map(|dtype| Tensor { storage: key.clone(), n_storage, dtype, start, dims, strides })
            }
            _ => None,
        };
        tensor.map(|tensor| Value::Tensor(Rc::new(tensor))).ok_or_else(|| self.damaged("a tensor's sizes are none"))
    }

    /// A dict's attributes, such as the versions of modules, are ignored.
    fn build(&mut self) -> Made<()> {
        let (_, object) = (self.pop()?, self.pop()?);
        match object {
            Value::Dict(_) => {
                self.stack.push(object);
                Ok(())
            }
            object => Err(self.unsupported(format!("it sets attributes of {}", words(&object)))),
        }
    }

    /// Adds values to the dict or list below them on the stack.
    fn fill(&mut self, op: u8) -> Made<()> {
        let mut values = match op {
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                vec![key, value]
            }
            b'a' => vec![self.pop()?],
            _ => self.pop_mark()?,
        };
        let object = self.pop()?;
        match (&object, op) {
            (Value::Dict(idx), b's' | b'u') if values.len().is_multiple_of(2) => {
                let mut values = values.into_iter();
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    self.dicts[*idx].push((key, value));
                }
            }
            (Value::List(idx), b'a' | b'e') => self.lists[*idx].append(&mut values),
            _ => return Err(self.damaged(format!("it fills {}", words(&object)))),
        }
        self.stack.push(object);
        Ok(())
    }

    /// The tensors of a value, each with the keys that lead to it.
    fn collect(&self, name: &str, value: &Value, depth: usize, n: &mut Looked, state: &mut State) -> Made<()> {
        n.n_values += 1;
        n.n_name_bytes = n.n_name_bytes.saturating_add(name.len());
        if depth > MAX_DEPTH || n.n_values > MAX_VALUES {
            return Err(self.unsupported(format!("its values are in one another deeper than {MAX_DEPTH}, or too many")));
        }
        if n.n_name_bytes > MAX_NAMES {
            let message = format!("the names of its values have more than {MAX_NAMES} bytes");
            return Err(WeightsError::new(crate::weights::WeightsErrorKind::TooLarge, self.path, message));
        }
        if let Value::List(idx) = value {
            state.has_groups |= name.ends_with("param_groups") && self.lists[*idx].len() > 1;
        }
        let below = |key: &str| if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        let mut each = |key: &str, value: &Value| self.collect(&below(key), value, depth + 1, n, state);
        match value {
            Value::Tensor(tensor) => state.tensors.push((name.to_string(), (**tensor).clone())),
            Value::Dict(idx) => {
                for (key, value) in &self.dicts[*idx] {
                    match key {
                        Value::Text(key) => each(key, value)?,
                        Value::Int(key) => each(&key.to_string(), value)?,
                        other => return Err(self.unsupported(format!("a key of a dict is {}", words(other)))),
                    }
                }
            }
            Value::List(idx) => {
                (self.lists[*idx].iter().enumerate()).try_for_each(|(nth, value)| each(&nth.to_string(), value))?;
            }
            Value::Tuple(values, _) => {
                (values.iter().enumerate()).try_for_each(|(nth, value)| each(&nth.to_string(), value))?;
            }
            _ if state.left_out.len() < MAX_LEFT_OUT => state.left_out.push(format!("{name} ({})", words(value))),
            _ => {}
        }
        Ok(())
    }
}
