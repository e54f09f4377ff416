//! Lists of equal elements: TensorFlow's `TensorList`, `TensorArray` and `Stack`.
//!
//! A list is lowered to an array `[size, element…]` for each array of its elements (an element is an array or again a list), and
//! a length that is known at compile time or is a scalar. A list that was never written is all zeros, which are emitted when
//! they are read. A `TensorArray` is represented by its flow, so that loops carry it as any other value.
//!
//! Source: `tensor_list_utils.cc` of TensorFlow's `tf2xla/kernels`; `list_kernels.cc` and `tensor_array.h` of its CPU kernels.

use std::rc::Rc;

use super::Value;
use crate::error::Problem;
use bf16scope_hlo::ops::PadDim;
use bf16scope_hlo::{ArrayShape, DType, Emitter, InstrId, Literal, Op};

/// The identity of a `TensorArray`: its number, and the source of a gradient's array (empty for the array itself).
pub(crate) type Owner = (usize, String);

/// A list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct List {
    pub kind: ListKind,
    /// Its arrays; empty while every element is zero.
    pub leaves: Vec<InstrId>,
    /// Its length, if the kind does not have it.
    pub len: Option<InstrId>,
    /// The place and the value of the only element that is not zero, if there is only one: sums of lists add just this element.
    pub only: Option<(InstrId, Vec<InstrId>)>,
}

/// The facts about a list that are known at compile time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListKind {
    /// The `TensorArray` that it belongs to.
    pub owner: Option<Owner>,
    /// The type of its elements; `None` until one is written.
    pub element: Option<Element>,
    /// Its length, if it is known.
    pub n: Option<i64>,
    /// The size of its arrays; `None` if that is its length.
    pub capacity: Option<i64>,
    /// Whether all elements are the same constant, such as shapes that loops save for their gradients.
    pub same: Same,
    /// Whether pushes stay within the capacity, by a loop's bound or TensorFlow's own.
    pub is_bounded: bool,
}

/// The known values of a list's elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Same {
    /// The list is empty.
    Empty,
    /// Every element is this constant.
    One(Literal),
    /// Elements differ, or are not known.
    Several,
}

impl Same {
    /// The known values of the elements of two lists together.
    pub(crate) fn joined(&self, other: &Same) -> Same {
        match (self, other) {
            (Same::Empty, same) | (same, Same::Empty) => same.clone(),
            (Same::One(a), Same::One(b)) if a == b => self.clone(),
            _ => Same::Several,
        }
    }
}

/// The type of an element.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element {
    Array(ArrayShape),
    List(Box<ListKind>),
    /// The handle of a `TensorArray` that every trip of a loop makes; it has no arrays.
    Handle(Rc<Handle>),
    /// An optional's value: branches save values of different shapes for their gradients in the same place.
    OneOf(Vec<Element>),
}

/// A `TensorArray`'s handle, or that of a gradient's array.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Handle {
    pub kind: ListKind,
    pub dtype: DType,
    /// Whether it grows when it is written beyond its end.
    pub grows: bool,
}

impl Element {
    /// The arrays of an element.
    pub(crate) fn leaves(&self) -> Vec<ArrayShape> {
        match self {
            Element::Array(shape) => vec![shape.clone()],
            Element::List(kind) => kind.leaves(),
            Element::Handle(_) => Vec::new(),
            Element::OneOf(all) => all.iter().flat_map(Element::leaves).collect(),
        }
    }

    /// The type that holds values of both, if there is one.
    fn joined(&self, other: &Element) -> Option<Element> {
        match (self, other) {
            (Element::List(a), Element::List(b)) => Some(Element::List(Box::new(a.joined(b, Join::Branches).ok()?))),
            (a, b) => (a == b).then(|| a.clone()),
        }
    }
}

/// The alternatives of two optionals together.
fn alternatives(a: &[Element], b: &[Element]) -> Vec<Element> {
    let mut all = a.to_vec();
    for new in b {
        let joined = all.iter().enumerate().find_map(|(at, known)| Some((at, known.joined(new)?)));
        match joined {
            Some((at, joined)) => all[at] = joined,
            None => all.push(new.clone()),
        }
    }
    all
}

fn prefixed(prefix: &[i64], shape: &ArrayShape) -> ArrayShape {
    ArrayShape::new(shape.dtype, [prefix, &shape.dims[..]].concat())
}

impl ListKind {
    /// A list of `n` zeros.
    pub(crate) fn zeros(n: i64, element: Option<Element>) -> ListKind {
        ListKind { owner: None, element, n: Some(n), capacity: None, same: Same::Several, is_bounded: false }
    }

    /// An empty list of at most `most` elements; a negative `most` is no bound.
    pub(crate) fn empty(most: i64, element: Option<Element>) -> ListKind {
        let capacity = (most >= 0).then_some(most.min(MAX_LENGTH));
        ListKind { owner: None, element, n: Some(0), capacity, same: Same::Empty, is_bounded: capacity.is_some() }
    }

    /// The same kind, without facts that `original` does not know yet: a trip of the loop determines them.
    pub(crate) fn forgetful(&self, original: &ListKind) -> ListKind {
        let element = original.element.as_ref().and(self.element.clone());
        ListKind { element, same: original.same.clone(), ..self.clone() }
    }

    /// The first dim of its arrays.
    pub(crate) fn size(&self) -> i64 {
        self.capacity.or(self.n).unwrap_or(0)
    }

    /// The arrays that carry a list of this kind: those of its elements, then its length if it is not known.
    pub(crate) fn leaves(&self) -> Vec<ArrayShape> {
        let element_shapes = self.element.iter().flat_map(Element::leaves);
        let length = self.n.is_none().then(|| ArrayShape::new(DType::S32, []));
        element_shapes.map(|shape| prefixed(&[self.size()], &shape)).chain(length).collect()
    }

    /// The kind that holds lists of both kinds: `other` is another branch's kind, or the kind after a loop's trip from `self`.
    pub(crate) fn joined(&self, other: &ListKind, by: Join) -> Result<ListKind, Problem> {
        if self == other {
            return Ok(self.clone());
        }
        let element = match (&self.element, &other.element) {
            (None, element) | (element, None) => element.clone(),
            (Some(Element::List(a)), Some(Element::List(b))) => {
                Some(Element::List(Box::new(a.joined(b, Join::Branches)?)))
            }
            (Some(Element::OneOf(a)), Some(Element::OneOf(b))) => Some(Element::OneOf(alternatives(a, b))),
            (Some(a), Some(b)) if a == b => Some(a.clone()),
            (Some(a), Some(b)) => {
                let say =
                    |element: &Element| element.leaves().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("a list has elements of {} and of {}, expected one shape", say(a), say(b));
                return Err(Problem::new(message).with_help("write elements of one shape"));
            }
        };
        let owner = self.owner.clone().or(other.owner.clone());
        let same = self.same.joined(&other.same);
        if self.n.is_some() && self.n == other.n && self.capacity == other.capacity {
            return Ok(ListKind { owner, element, same, ..self.clone() });
        }
        let n_pushed = (other.size() - self.size()).max(0);
        let capacity = match by {
            _ if self.is_bounded || n_pushed == 0 => Some(self.size()),
            Join::Branches => Some(other.size()),
            Join::Loop(None) => {
                let message = "a loop pushes on a list, and how often it runs is not known before it runs";
                return Err(Problem::new(message)
                    .with_help("give `maximum_iterations=` to tf.while_loop, as XLA asks where a loop has gradients"));
            }
            Join::Loop(Some(n_trips)) => n_trips.checked_mul(n_pushed).and_then(|n| n.checked_add(self.size())),
        };
        match capacity.filter(|capacity| *capacity <= MAX_LENGTH) {
            Some(capacity) => {
                let is_bounded = self.is_bounded || matches!(by, Join::Loop(_));
                Ok(ListKind { owner, element, n: None, capacity: Some(capacity), same, is_bounded })
            }
            None => Err(Problem::new(format!("a loop pushes more than {MAX_LENGTH} elements on a list"))
                .with_help("give the loop a smaller bound")),
        }
    }
}

/// Why two kinds of a list are joined.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Join {
    /// They come from two branches.
    Branches,
    /// The second comes after a trip of a loop with this maximal trip count, if that is known.
    Loop(Option<i64>),
}

/// The largest length of a list.
pub(crate) const MAX_LENGTH: i64 = 1 << 24;

impl List {
    /// A list that was never written.
    pub(crate) fn zeros(kind: ListKind) -> List {
        List { kind, leaves: Vec::new(), len: None, only: None }
    }

    /// Its arrays.
    pub(crate) fn arrays(&self, e: &Emitter) -> Vec<InstrId> {
        match self.leaves.is_empty() {
            true => {
                let shapes = self.kind.element.iter().flat_map(Element::leaves);
                shapes.map(|shape| zeros(e, &prefixed(&[self.kind.size()], &shape))).collect()
            }
            false => self.leaves.clone(),
        }
    }

    /// Its length as a scalar.
    pub(crate) fn length(&self, e: &Emitter) -> InstrId {
        self.len.unwrap_or_else(|| e.scalar(DType::S32, self.kind.n.unwrap_or(0) as f64))
    }

    /// The arrays that carry it.
    pub(crate) fn carried(&self, e: &Emitter) -> Vec<InstrId> {
        let length = self.kind.n.is_none().then(|| self.length(e));
        self.arrays(e).into_iter().chain(length).collect()
    }

    /// The list that these arrays carry.
    pub(crate) fn from_carried(kind: &ListKind, mut leaves: Vec<InstrId>) -> List {
        let len = if kind.n.is_none() { leaves.pop() } else { None };
        List { kind: kind.clone(), leaves, len, only: None }
    }

    /// The same list in a more general kind.
    pub(crate) fn promoted(&self, e: &Emitter, kind: &ListKind) -> List {
        if self.kind == *kind {
            return self.clone();
        }
        let len = kind.n.is_none().then(|| self.length(e));
        let is_array = !matches!(self.kind.element, Some(Element::List(_)));
        if self.leaves.is_empty() && is_array {
            return List { kind: kind.clone(), leaves: Vec::new(), len, only: None };
        }
        let leaves = match (&self.kind.element, &kind.element) {
            (Some(from), Some(to)) => fitted(e, &[self.kind.size()], from, to, self.arrays(e)),
            _ => self.arrays(e),
        };
        let target = kind.element.iter().flat_map(Element::leaves).map(|shape| prefixed(&[kind.size()], &shape));
        let leaves = leaves.into_iter().zip(target).map(|(leaf, shape)| enlarged(e, leaf, &shape.dims)).collect();
        List { kind: kind.clone(), leaves, len, only: None }
    }
}

/// The arrays `[prefix…, element…]` of elements as those of a more general type, before they are enlarged to its sizes.
fn fitted(e: &Emitter, prefix: &[i64], from: &Element, to: &Element, mut leaves: Vec<InstrId>) -> Vec<InstrId> {
    let zeros_of = |element: &Element, prefix: &[i64]| -> Vec<InstrId> {
        element.leaves().iter().map(|shape| zeros(e, &prefixed(prefix, shape))).collect()
    };
    match (from, to) {
        (Element::List(from), Element::List(to)) => {
            let length = if from.n.is_none() { leaves.pop() } else { None };
            let mut leaves = match (&from.element, &to.element) {
                (Some(inner), Some(outer)) => fitted(e, &[prefix, &[from.size()]].concat(), inner, outer, leaves),
                (None, Some(outer)) => zeros_of(outer, &[prefix, &[to.size()]].concat()),
                (_, None) => leaves,
            };
            // The lengths of inner lists, which were all equal.
            let equal = from.n.filter(|_| to.n.is_none()).map(|length| e.full(DType::S32, prefix, length as f64));
            leaves.extend(length.or(equal));
            leaves
        }
        (Element::OneOf(from), Element::OneOf(to)) => {
            let mut leaves = leaves.into_iter();
            let parts: Vec<(&Element, Vec<InstrId>)> =
                from.iter().map(|one| (one, leaves.by_ref().take(one.leaves().len()).collect())).collect();
            let part = |to: &Element| match parts.iter().find(|(one, _)| one.joined(to).is_some()) {
                Some((one, leaves)) => fitted(e, prefix, one, to, leaves.clone()),
                None => zeros_of(to, prefix),
            };
            to.iter().flat_map(part).collect()
        }
        _ => leaves,
    }
}

/// Zeros of a shape.
pub(crate) fn zeros(e: &Emitter, shape: &ArrayShape) -> InstrId {
    e.full(shape.dtype, &shape.dims, 0.0)
}

/// An array padded with zeros at its end, up to these dims.
fn enlarged(e: &Emitter, x: InstrId, dims: &[i64]) -> InstrId {
    let from = e.dims(x);
    if from == dims || from.len() != dims.len() {
        return x;
    }
    let pads: Vec<PadDim> =
        from.iter().zip(dims).map(|(from, to)| PadDim { low: 0, high: to - from, interior: 0 }).collect();
    e.pad(x, e.scalar(e.dtype(x), 0.0), &pads)
}

/// The element at `index` of an array `[size, element…]`.
pub(crate) fn row(e: &Emitter, leaf: InstrId, index: InstrId) -> InstrId {
    let dims = e.dims(leaf);
    let Some((_, inner)) = dims.split_first() else { return leaf };
    let slice_sizes: Vec<i64> = std::iter::once(1).chain(inner.iter().copied()).collect();
    let part = e.emit(Op::DynamicSlice { slice_sizes }, &starts(e, leaf, index), None);
    e.reshape(part, inner)
}

/// An array `[size, element…]` with `value` as the element at `index`.
pub(crate) fn with_row(e: &Emitter, leaf: InstrId, index: InstrId, value: InstrId) -> InstrId {
    let dims: Vec<i64> = std::iter::once(1).chain(e.dims(value)).collect();
    let mut operands = starts(e, leaf, index);
    operands.insert(1, e.reshape(value, &dims));
    e.emit(Op::DynamicUpdateSlice, &operands, None)
}

/// The operands of a dynamic slice of row `index`: the array and the start indices.
fn starts(e: &Emitter, leaf: InstrId, index: InstrId) -> Vec<InstrId> {
    let zero = e.scalar(e.dtype(index), 0.0);
    let rest = e.dims(leaf).len().saturating_sub(1);
    [leaf, index].into_iter().chain(std::iter::repeat_n(zero, rest)).collect()
}

/// The element type and the arrays of a value.
pub(crate) fn element(e: &Emitter, value: &Value) -> Result<(Element, Vec<InstrId>), Problem> {
    match value {
        Value::Array(id) => {
            let shape = e.array(*id).unwrap_or_else(|| ArrayShape::new(DType::F32, []));
            Ok((Element::Array(shape), vec![*id]))
        }
        Value::List(list) => Ok((Element::List(Box::new(list.kind.clone())), list.carried(e))),
        Value::Handle(handle) => Ok((Element::Handle(handle.clone()), Vec::new())),
        Value::Variable(_) | Value::Store(_) | Value::Nothing => {
            Err(Problem::new("an element of its list is no array: a variable, or text")
                .with_help("write arrays of numbers to the list"))
        }
    }
}

/// The value of an element, from its arrays.
pub(crate) fn value(element: &Element, leaves: Vec<InstrId>) -> Value {
    match (element, &leaves[..]) {
        (Element::Array(_), [one]) => Value::Array(*one),
        (Element::Array(_), _) => Value::Nothing,
        (Element::List(kind), _) => Value::List(Rc::new(List::from_carried(kind, leaves))),
        (Element::Handle(handle), _) => Value::Handle(handle.clone()),
        // `OptionalGetValue` chooses among its alternatives.
        (Element::OneOf(_), _) => Value::Nothing,
    }
}
