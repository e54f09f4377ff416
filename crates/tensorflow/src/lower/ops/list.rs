//! Ops on lists: `TensorList` (TensorFlow 2's `TensorArray`, and residuals of loops), and v1's `TensorArray` and `Stack`.
//!
//! A list is a value. A write to a gradient's `TensorArray` adds to its element. The value of that array arrives along the flow:
//! the flow of another array means that nothing is written yet.
//!
//! Source: `tensor_list_ops.cc`, `tensor_array_ops.cc`, `stack_ops.cc` of `tf2xla/kernels`; `tensor_array_grad.py`, `list_ops.py`.

use std::rc::Rc;

use super::super::call::Outputs;
use super::super::carried::Store;
use super::super::list::{
    Element, Handle, Join, List, ListKind, MAX_LENGTH, Same, element, row, value, with_row, zeros,
};
use super::super::{Call, Value};
use super::Table;
use crate::dtypes;
use crate::error::Problem;
use bf16scope_hlo::{ArrayShape, BinaryOp, DType, InstrId};

pub(super) const TABLE: Table = &[
    ("TensorListReserve", |c| {
        let n = c.length(1)?;
        let element = c.element_type(0)?;
        c.list(List::zeros(ListKind::zeros(n, element)))
    }),
    ("EmptyTensorList", |c| {
        let most = c.int(1)?;
        let element = c.element_type(0)?;
        c.list(List::zeros(ListKind::empty(most, element)))
    }),
    ("TensorListFromTensor", |c| {
        let x = c.array(0)?;
        let list = c.list_of(x)?;
        c.list(list)
    }),
    ("TensorListStack", |c| {
        let list = c.shaped_list(0, 1)?;
        let n = c.node.int("num_elements").filter(|n| *n >= 0);
        let x = c.stacked(&list, n)?;
        c.one(x)
    }),
    ("TensorListGetItem", |c| {
        let (list, index) = (c.shaped_list(0, 2)?, c.array(1)?);
        c.item(&list, index)
    }),
    ("TensorListSetItem", |c| {
        let (list, index, item) = (c.list_at(0)?, c.array(1)?, c.input(2)?.clone());
        let list = match c.node.flag("resize_if_index_out_of_bounds") {
            true => Rc::new(c.grown(&list, index)?),
            false => list,
        };
        let list = c.with_item(&list, index, &item)?;
        c.list(list)
    }),
    ("TensorListPushBack", |c| {
        let (list, item) = (c.list_at(0)?, c.input(1)?.clone());
        let list = c.pushed(&list, &item)?;
        c.list(list)
    }),
    ("TensorListPopBack", |c| {
        let list = c.shaped_list(0, 1)?;
        let (list, item) = c.popped(&list)?;
        Ok(vec![Value::List(Rc::new(list)), item])
    }),
    ("TensorListLength", |c| {
        let list = c.list_at(0)?;
        c.one(list.length(c.e()))
    }),
    ("TensorListElementShape", |c| {
        let list = c.list_at(0)?;
        let dtype = c.node.dtype("shape_type").unwrap_or(DType::S32);
        c.one(match &list.kind.element {
            Some(Element::Array(shape)) => c.ints_constant(&shape.dims, &[shape.dims.len() as i64], dtype),
            Some(Element::List(_) | Element::Handle(_) | Element::OneOf(_)) => c.ints_constant(&[], &[0], dtype),
            None => c.ints_constant(&[-1], &[], dtype),
        })
    }),
    ("TensorListResize", |c| {
        let list = c.list_at(0)?;
        let size = c.array(1)?;
        if c.lowering.known(size).is_none() {
            // A gradient's trip removes the element that the forward trip added; the arrays keep their size.
            let kind = ListKind { n: None, capacity: Some(list.kind.size()), is_bounded: true, ..list.kind.clone() };
            let len = Some(c.e().convert(size, DType::S32));
            return c.list(List { kind, len, ..(*list).clone() });
        }
        let n = c.length(1)?;
        let kind = ListKind { n: Some(n), capacity: None, ..list.kind.clone() };
        let size = list.kind.size();
        if list.kind.n != Some(size) {
            return Err(c.growing());
        }
        let list = match n < size {
            true => List {
                leaves: list.leaves.iter().map(|leaf| c.slice_axis(*leaf, 0, 0, n)).collect(),
                ..List::zeros(kind)
            },
            false => list.promoted(c.e(), &kind),
        };
        c.list(list)
    }),
    ("TensorListGather", |c| {
        let list = c.shaped_list(0, 2)?;
        c.gathered_items(&list, 1)
    }),
    ("TensorListScatterV2", |c| {
        let places = c.ints(1)?;
        let n = c.int(3)?;
        let n = if n >= 0 { n } else { places.iter().max().map_or(0, |most| most.saturating_add(1)) };
        let list = c.with_items(&List::zeros(ListKind::zeros(n, None)), 1, 0)?;
        c.list(list)
    }),
    ("TensorListScatterIntoExistingList", |c| {
        let list = c.list_at(0)?;
        let list = c.with_items(&list, 2, 1)?;
        c.list(list)
    }),
    ("TensorListConcatV2", |c| {
        let list = c.list_at(0)?;
        c.joined(&list)
    }),
    ("TensorListConcat", |c| {
        let list = c.list_at(0)?;
        c.joined(&list)
    }),
    ("TensorListSplit", |c| {
        let x = c.array(0)?;
        let list = c.split_evenly(x, 2)?;
        c.list(list)
    }),
    ("TensorArrayV3", |c| {
        let n = c.length(0)?;
        let dtype = c.dtype_of("dtype")?;
        let dims = c.node.dims("element_shape").filter(|dims| dims.iter().all(|dim| *dim >= 0));
        let element = dims.map(|dims| Element::Array(ArrayShape::new(dtype, dims)));
        c.lowering.n_arrays += 1;
        let owner = Some((c.lowering.n_arrays, String::new()));
        let kind = ListKind { owner, ..ListKind::zeros(n, element) };
        let handle = Handle { kind: kind.clone(), dtype, grows: c.node.flag("dynamic_size") };
        Ok(vec![Value::Handle(Rc::new(handle)), Value::List(Rc::new(List::zeros(kind)))])
    }),
    ("TensorArrayGradV3", |c| {
        let source = c.node.text("source").to_string();
        let handle = c.handle()?;
        // The gradient has the array's element shape, which only the array's own flow knows.
        let number = |kind: &ListKind| kind.owner.as_ref().map(|(number, _)| *number);
        let kind = match c.inputs.get(1) {
            Some(Value::List(list)) if number(&list.kind) == number(&handle.kind) => list.kind.clone(),
            _ => handle.kind.clone(),
        };
        let element = kind.element.or(handle.kind.element.clone());
        let owner = number(&handle.kind).map(|number| (number, source));
        // If the array grew, the gradient is as long as the grown array.
        let n = kind.n.max(handle.kind.n);
        let handle = Handle { kind: ListKind { owner, element, n, ..handle.kind.clone() }, ..(*handle).clone() };
        Ok(vec![Value::Handle(Rc::new(handle)), c.input(1)?.clone()])
    }),
    ("TensorArrayWriteV3", |c| {
        let (handle, mut list) = c.tensor_array(3)?;
        let (index, item) = (c.array(1)?, c.input(2)?.clone());
        if handle.grows && !is_gradient(&handle) {
            list = c.grown(&list, index)?;
        }
        let item = match (&item, is_gradient(&handle) && !list.leaves.is_empty()) {
            (Value::Array(item), true) => {
                let sums: Vec<InstrId> =
                    list.leaves.iter().map(|leaf| c.e().add(row(c.e(), *leaf, index), *item)).collect();
                sums.first().map_or(Value::Nothing, |sum| Value::Array(*sum))
            }
            _ => item,
        };
        let list = c.with_item(&list, index, &item)?;
        c.list(list)
    }),
    ("TensorArrayReadV3", |c| {
        let (_, list) = c.tensor_array(2)?;
        let index = c.array(1)?;
        c.item(&list, index)
    }),
    ("TensorArrayGatherV3", |c| {
        let (_, mut list) = c.tensor_array(2)?;
        c.shape_by_attribute(&mut list)?;
        c.gathered_items(&list, 1)
    }),
    ("TensorArrayScatterV3", |c| {
        let (handle, list) = c.tensor_array(3)?;
        let written = match is_gradient(&handle) && !list.leaves.is_empty() {
            true => {
                let fresh = c.with_items(&List::zeros(list.kind.clone()), 1, 2)?;
                c.list_sum(&list, &fresh)?
            }
            false => c.with_items(&list, 1, 2)?,
        };
        c.list(written)
    }),
    ("TensorArrayConcatV3", |c| {
        let (_, list) = c.tensor_array(1)?;
        c.joined(&list)
    }),
    ("TensorArraySplitV3", |c| {
        let (_, list) = c.tensor_array(3)?;
        let x = c.array(1)?;
        let mut split = c.split_evenly(x, 2)?;
        split.kind.owner = list.kind.owner;
        c.list(split)
    }),
    ("TensorArraySizeV3", |c| {
        let (_, list) = c.tensor_array(1)?;
        c.one(list.length(c.e()))
    }),
    ("TensorArrayCloseV3", |_| Ok(Vec::new())),
    ("OptionalFromValue", |c| c.optional()),
    ("OptionalNone", |c| c.list(List::zeros(ListKind::zeros(1, Some(Element::OneOf(Vec::new())))))),
    ("OptionalGetValue", |c| c.optional_value()),
    ("StackV2", |c| {
        let most = c.int(0)?;
        let kind = ListKind::empty(most, None);
        c.lowering.stores.push(Store { list: Some(Rc::new(List::zeros(kind))) });
        Ok(vec![Value::Store(c.lowering.stores.len() - 1)])
    }),
    ("StackPushV2", |c| {
        let (store, list, item) = (c.stack()?, c.stored()?, c.input(1)?.clone());
        // For a stack that a trip of an outer loop made, its contents are pushed.
        let new = match &item {
            Value::Store(inner) => c.pushed(&list, &Value::List(c.lowering.store(*inner)?))?,
            item => c.pushed(&list, item)?,
        };
        c.put(store, &list, new)?;
        Ok(vec![item])
    }),
    ("StackPopV2", |c| {
        let (store, list) = (c.stack()?, c.stored()?);
        let (new, mut item) = c.popped(&list)?;
        c.put(store, &list, new)?;
        if let (Value::List(list), Some(dtypes::RESOURCE)) = (&item, c.node.type_number("elem_type")) {
            c.lowering.stores.push(Store { list: Some(list.clone()) });
            item = Value::Store(c.lowering.stores.len() - 1);
        }
        Ok(vec![item])
    }),
    ("StackCloseV2", |_| Ok(Vec::new())),
];

fn is_gradient(handle: &Handle) -> bool {
    handle.kind.owner.as_ref().is_some_and(|(_, source)| !source.is_empty())
}

impl Call<'_, '_> {
    fn list(&self, list: List) -> Outputs {
        Ok(vec![Value::List(Rc::new(list))])
    }

    /// A branch's residual for its gradient: a list of one element, which stays unwritten for `OptionalNone`.
    fn optional(&mut self) -> Outputs {
        if self.inputs.len() != 1 {
            return Err(Problem::new(format!("it holds {} values, expected 1", self.inputs.len())));
        }
        let (element, leaves) = element(self.e(), self.input(0)?)?;
        let as_row = |leaf: InstrId| self.e().reshape(leaf, &[&[1], &self.dims(leaf)[..]].concat());
        let leaves = leaves.into_iter().map(as_row).collect();
        let kind = ListKind::zeros(1, Some(Element::OneOf(vec![element])));
        self.list(List { leaves, ..List::zeros(kind) })
    }

    /// The value of an optional: the alternative of the dtype and dims that the op names; zeros of one that nothing filled.
    fn optional_value(&mut self) -> Outputs {
        let list = self.list_at(0)?;
        let (types, shapes) = (self.node.list("output_types"), self.node.list("output_shapes"));
        let dtype = types.and_then(|list| dtypes::hlo(*list.r#type.first()?));
        let dims = shapes.and_then(|list| crate::node::dims_of(list.shape.first()?));
        let has_dims = |known: &[i64]| match &dims {
            Some(dims) => {
                dims.len() == known.len() && dims.iter().zip(known).all(|(dim, known)| *dim < 0 || dim == known)
            }
            None => true,
        };
        let is_meant = |element: &Element| match (element, dtype) {
            (Element::Array(shape), Some(dtype)) => shape.dtype == dtype && has_dims(&shape.dims),
            (element, dtype) => !matches!(element, Element::Array(_)) && dtype.is_none(),
        };
        let Some(Element::OneOf(all)) = &list.kind.element else { return Err(Problem::new("input 0 is no optional")) };
        let mut leaves = list.arrays(self.e()).into_iter();
        let parts: Vec<(&Element, Vec<InstrId>)> =
            all.iter().map(|one| (one, leaves.by_ref().take(one.leaves().len()).collect())).collect();
        let mut meant = parts.into_iter().filter(|(element, _)| is_meant(element));
        match (meant.next(), meant.next(), dtype, dims.as_ref().filter(|dims| dims.iter().all(|dim| *dim >= 0))) {
            (Some((element, leaves)), None, ..) => {
                let without_row = |leaf: InstrId| self.e().reshape(leaf, self.dims(leaf).get(1..).unwrap_or_default());
                Ok(vec![value(element, leaves.into_iter().map(without_row).collect())])
            }
            (None, _, Some(dtype), Some(dims)) if all.is_empty() => {
                self.check_dims(dims)?;
                self.one(zeros(self.e(), &ArrayShape::new(dtype, dims.clone())))
            }
            (None, ..) => Err(Problem::new("no branch saves a value of its dtype and dims")),
            (Some(_), Some(_), ..) => {
                Err(Problem::new("branches save several values of its dtype, and its `output_shapes` fits them all")
                    .with_help("give the inputs of the branches shapes that are known, the batch's size too"))
            }
        }
    }

    fn list_at(&self, number: usize) -> Result<Rc<List>, Problem> {
        match self.input(number)? {
            Value::List(list) => Ok(list.clone()),
            _ => Err(Problem::new(format!("input {number} is no list"))),
        }
    }

    /// A list's length, from an input.
    fn length(&mut self, number: usize) -> Result<i64, Problem> {
        let n = self.int(number)?;
        match (0..=MAX_LENGTH).contains(&n) {
            true => Ok(n),
            false => Err(Problem::new(format!("its list has {n} elements, expected 0 to {MAX_LENGTH}"))),
        }
    }

    fn growing(&self) -> Problem {
        Problem::new("its TensorArray grows as it is written, and HLO needs its size before")
            .with_help("write it at a loop's counter from its end on, or give it its size and leave `dynamic_size` out")
    }

    /// A list with room for an element at `index`: of length `index + 1` if the index is known. On a trip of a loop the list has
    /// one element more than before; the loop multiplies this by its trip count and checks it.
    fn grown(&mut self, list: &List, index: InstrId) -> Result<List, Problem> {
        let known = self.lowering.known(index).and_then(|known| known.values.first()?.whole());
        let kind = match (known, list.kind.n) {
            (Some(place), Some(n)) if (0..n).contains(&place) => return Ok(list.clone()),
            (Some(place), Some(_)) if (0..MAX_LENGTH).contains(&place) => {
                ListKind { n: Some(place + 1), capacity: None, ..list.kind.clone() }
            }
            (None, Some(n)) if self.lowering.grows_by(index) => {
                ListKind { n: Some(n + 1), capacity: None, ..list.kind.clone() }
            }
            (None, None) if list.kind.is_bounded && self.lowering.grows_by(index) => {
                let next = self.e().convert(self.e().add_scalar(index, 1.0), DType::S32);
                let len = self.e().binary(BinaryOp::Maximum, list.length(self.e()), next);
                return Ok(List { len: Some(len), ..list.clone() });
            }
            _ => return Err(self.growing()),
        };
        Ok(list.promoted(self.e(), &kind))
    }

    /// The element type, from an input that holds the element shape; `None` if the shape is not fully known.
    fn element_type(&mut self, number: usize) -> Result<Option<Element>, Problem> {
        let Some(dtype) = self.node.dtype("element_dtype") else { return Ok(None) };
        let shape = self.array(number)?;
        let rank = self.dims(shape).len();
        let dims = match self.lowering.known(shape) {
            Some(_) => self.ints(number)?,
            None => return Ok(None),
        };
        let is_whole = rank == 1 && dims.iter().all(|dim| *dim >= 0);
        if is_whole {
            self.check_dims(&dims)?;
        }
        Ok(is_whole.then(|| Element::Array(ArrayShape::new(dtype, dims))))
    }

    /// A list input; if it was never written, its element type comes from the input with the element shape.
    fn shaped_list(&mut self, number: usize, shape: usize) -> Result<List, Problem> {
        let mut list = (*self.list_at(number)?).clone();
        if list.kind.element.is_none() {
            list.kind.element = self.element_type(shape)?;
        }
        Ok(list)
    }

    fn shape_by_attribute(&self, list: &mut List) -> Result<(), Problem> {
        let dims = self.node.dims("element_shape").filter(|dims| dims.iter().all(|dim| *dim >= 0));
        if let (None, Some(dims)) = (&list.kind.element, dims) {
            self.check_dims(&dims)?;
            list.kind.element = Some(Element::Array(ArrayShape::new(self.dtype_of("dtype")?, dims)));
        }
        Ok(())
    }

    fn unshaped(&self) -> Problem {
        Problem::new("nothing was written to its list, and nothing says what its elements are")
            .with_help("give the TensorArray its `element_shape`")
    }

    /// The rows of an array as a list.
    fn list_of(&self, x: InstrId) -> Result<List, Problem> {
        let dims = self.dims(x);
        let Some((n, inner)) = dims.split_first() else {
            return Err(Problem::new("its tensor is a scalar, expected rows"));
        };
        let element = Some(Element::Array(ArrayShape::new(self.dtype(x), inner.to_vec())));
        Ok(List { leaves: vec![x], ..List::zeros(ListKind::zeros(*n, element)) })
    }

    /// All elements stacked into a single array.
    fn stacked(&mut self, list: &List, n: Option<i64>) -> Result<InstrId, Problem> {
        let Some(Element::Array(_)) = list.kind.element else { return Err(self.unshaped()) };
        let n = list.kind.n.or(n).ok_or_else(|| {
            Problem::new("how many elements its list has is not known before it runs")
                .with_help("give the TensorArray its size; XLA has no array whose size changes")
        })?;
        let [all] = list.arrays(self.e())[..] else { return Err(self.unshaped()) };
        let size = self.dims(all)[0];
        match n <= size {
            true => Ok(if n == size { all } else { self.slice_axis(all, 0, 0, n) }),
            false => Err(Problem::new(format!("it stacks {n} elements of a list of {size}"))),
        }
    }

    fn item(&mut self, list: &List, index: InstrId) -> Outputs {
        let Some(element) = &list.kind.element else { return Err(self.unshaped()) };
        if list.kind.size() == 0 {
            return Err(Problem::new("its list has no elements"));
        }
        if let (true, Element::Array(shape)) = (list.leaves.is_empty(), element) {
            return self.one(zeros(self.e(), shape));
        }
        let rows = list.arrays(self.e()).into_iter().map(|leaf| row(self.e(), leaf, index)).collect();
        Ok(vec![value(element, rows)])
    }

    /// The kind and the arrays of a list that can hold `item`, and the arrays of the item in that form.
    fn ready(&self, list: &List, item: &Value) -> Result<(ListKind, Vec<InstrId>, Vec<InstrId>), Problem> {
        let (new, leaves) = element(self.e(), item)?;
        let one = ListKind { element: Some(new.clone()), ..list.kind.clone() };
        let kind = list.kind.joined(&one, Join::Branches)?;
        let into = match &kind.element {
            Some(Element::List(into)) if Some(&new) != kind.element.as_ref() => match item {
                Value::List(item) => item.promoted(self.e(), into).carried(self.e()),
                _ => leaves,
            },
            _ => leaves,
        };
        let arrays = match &list.kind.element {
            None => List::zeros(kind.clone()).arrays(self.e()),
            Some(_) => list.promoted(self.e(), &kind).arrays(self.e()),
        };
        Ok((kind, arrays, into))
    }

    fn with_item(&mut self, list: &List, index: InstrId, item: &Value) -> Result<List, Problem> {
        if list.kind.size() == 0 {
            return Err(Problem::new("its list has no elements"));
        }
        let (kind, arrays, item) = self.ready(list, item)?;
        let kind = ListKind { same: Same::Several, ..kind };
        let leaves = arrays.iter().zip(&item).map(|(leaf, item)| with_row(self.e(), *leaf, index, *item)).collect();
        let only = list.leaves.is_empty().then_some((index, item));
        Ok(List { kind, leaves, len: list.len, only })
    }

    /// A list with an element appended.
    fn pushed(&mut self, list: &List, item: &Value) -> Result<List, Problem> {
        let grown = match (list.kind.capacity, list.kind.n) {
            _ if list.kind.is_bounded => list.kind.clone(),
            (Some(capacity), _) => ListKind { capacity: Some(capacity + 1), ..list.kind.clone() },
            (None, n) => ListKind { n: n.map(|n| n + 1), ..list.kind.clone() },
        };
        if grown.size() > MAX_LENGTH {
            return Err(Problem::new(format!("its list has more than {MAX_LENGTH} elements")));
        }
        let index = list.length(self.e());
        let is_full = list.kind.is_bounded && list.kind.n.is_some_and(|n| n >= list.kind.size());
        if is_full {
            return Err(Problem::new(format!("its list is full: it has {} elements", list.kind.size())));
        }
        let same = match item {
            Value::Array(id) => self.lowering.literal(*id).map_or(Same::Several, Same::One),
            _ => Same::Several,
        };
        let (mut kind, arrays, item) = self.ready(&list.promoted(self.e(), &grown), item)?;
        (kind.n, kind.same) = (list.kind.n.map(|n| n + 1), list.kind.same.joined(&same));
        let leaves = arrays.iter().zip(&item).map(|(leaf, item)| with_row(self.e(), *leaf, index, *item)).collect();
        let len = list.len.map(|len| self.e().add_scalar(len, 1.0));
        Ok(List { kind, leaves, len, only: None })
    }

    /// A list without its last element, and that element.
    fn popped(&mut self, list: &List) -> Result<(List, Value), Problem> {
        let Some(element) = list.kind.element.clone() else { return Err(self.unshaped()) };
        if list.kind.n == Some(0) || list.kind.size() == 0 {
            return Err(Problem::new("its list is empty"));
        }
        let length = list.length(self.e());
        let index = self.e().add_scalar(length, -1.0);
        let arrays = list.arrays(self.e());
        let rows = arrays.iter().map(|leaf| row(self.e(), *leaf, index)).collect();
        // The arrays keep their size.
        let kind = ListKind { n: list.kind.n.map(|n| n - 1), capacity: Some(list.kind.size()), ..list.kind.clone() };
        let len = list.len.map(|_| index);
        let item = match &list.kind.same {
            Same::One(literal) => Value::Array(self.e().constant(literal.clone())),
            _ => value(&element, rows),
        };
        Ok((List { kind, leaves: arrays, len, only: None }, item))
    }

    /// The elements at some indices, as a single array.
    fn gathered_items(&mut self, list: &List, places: usize) -> Outputs {
        let indices = self.array(places)?;
        let Some(Element::Array(_)) = list.kind.element else { return Err(self.unshaped()) };
        let [all] = list.arrays(self.e())[..] else { return Err(self.unshaped()) };
        let known = self.lowering.known(indices);
        let is_all = known
            .is_some_and(|known| known.values.iter().map(|value| value.whole()).eq((0..self.dims(all)[0]).map(Some)));
        if is_all {
            return self.one(all);
        }
        self.gathered(all, indices, 0, 0)
    }

    /// A list with the rows of an array as elements at known indices.
    fn with_items(&mut self, list: &List, places: usize, rows: usize) -> Result<List, Problem> {
        let (places, rows) = (self.ints(places)?, self.array(rows)?);
        let dims = self.dims(rows);
        if dims.first() != Some(&(places.len() as i64)) {
            return Err(Problem::new(format!("it has {} places for an array of dims {dims:?}", places.len())));
        }
        let n = list.kind.size();
        if let Some(place) = places.iter().find(|place| !(0..n).contains(*place)) {
            return Err(Problem::new(format!("it writes element {place} of a list of {n}")));
        }
        if places.iter().copied().eq(0..n) {
            let whole = self.list_of(rows)?;
            let element = whole.kind.element.clone();
            let kind = list.kind.joined(&ListKind { element, ..list.kind.clone() }, Join::Branches)?;
            return Ok(List { kind, leaves: whole.leaves, len: list.len, only: None });
        }
        if places.len() > MAX_ROWS {
            return Err(Problem::new(format!(
                "it writes {} elements in no order, expected at most {MAX_ROWS}",
                places.len()
            )));
        }
        let mut list = list.clone();
        for (at, place) in places.iter().enumerate() {
            let one = self.slice_axis(rows, 0, at as i64, 1);
            let item = Value::Array(self.e().reshape(one, &dims[1..]));
            let index = self.ints_constant(&[*place], &[], DType::S32);
            list = self.with_item(&list, index, &item)?;
        }
        list.only = None;
        Ok(list)
    }

    /// The concatenated elements, and their lengths.
    fn joined(&mut self, list: &List) -> Outputs {
        let all = self.stacked(list, None)?;
        let dims = self.dims(all);
        let [n, each, inner @ ..] = &dims[..] else {
            return Err(Problem::new("its elements are scalars, expected rows to put end to end"));
        };
        let flat = self.e().reshape(all, &[&[n * each], inner].concat());
        let lengths = self.e().full(DType::S64, &[*n], *each as f64);
        Ok(vec![Value::Array(flat), Value::Array(lengths)])
    }

    /// An array split into parts of equal length.
    fn split_evenly(&mut self, x: InstrId, lengths: usize) -> Result<List, Problem> {
        let lengths = self.ints(lengths)?;
        let dims = self.dims(x);
        let each = lengths.first().copied().unwrap_or(0);
        let total = each.checked_mul(lengths.len() as i64);
        if lengths.iter().any(|length| *length != each) || dims.first().copied() != total {
            let message = format!("it cuts an array of dims {dims:?} into {lengths:?}, expected parts of one length");
            return Err(Problem::new(message));
        }
        let parts = self.e().reshape(x, &[&[lengths.len() as i64, each], &dims[1..]].concat());
        self.list_of(parts)
    }

    fn handle(&self) -> Result<Rc<Handle>, Problem> {
        match self.input(0)? {
            Value::Handle(handle) => Ok(handle.clone()),
            _ => Err(Problem::new("input 0 is no TensorArray")),
        }
    }

    /// A `TensorArray`'s handle, and its value from the flow.
    fn tensor_array(&mut self, flow: usize) -> Result<(Rc<Handle>, List), Problem> {
        let handle = self.handle()?;
        let list = match self.input(flow)? {
            Value::List(list) if list.kind.owner == handle.kind.owner => (**list).clone(),
            _ => List::zeros(handle.kind.clone()),
        };
        Ok((handle, list))
    }

    fn stack(&self) -> Result<usize, Problem> {
        match self.input(0)? {
            Value::Store(store) => Ok(*store),
            _ => Err(Problem::new("input 0 is no stack")),
        }
    }

    fn stored(&self) -> Result<Rc<List>, Problem> {
        let store = self.stack()?;
        self.lowering.store(store)
    }

    /// Sets a stack to a new value; it keeps its old one where the node's gates do not hold.
    fn put(&mut self, store: usize, old: &Rc<List>, new: List) -> Result<(), Problem> {
        let old = Value::List(old.clone());
        let mut value = Value::List(Rc::new(new));
        for (pred, is_true) in self.gates.clone().iter() {
            let (on_true, on_false) = if *is_true { (&value, &old) } else { (&old, &value) };
            value = self.lowering.chosen(*pred, on_true, on_false)?;
        }
        if let Value::List(list) = value {
            self.lowering.stores[store].list = Some(list);
        }
        Ok(())
    }

    /// The sum of the inputs if one of them is a list; scalar flows of zero add nothing.
    pub(super) fn sum_of_lists(&mut self) -> Option<Outputs> {
        let lists: Vec<Rc<List>> = self
            .inputs
            .iter()
            .filter_map(|input| match input {
                Value::List(list) => Some(list.clone()),
                _ => None,
            })
            .collect();
        let (first, rest) = lists.split_first()?;
        let mut sum = (**first).clone();
        for list in rest {
            match self.list_sum(&sum, list) {
                Ok(next) => sum = next,
                Err(problem) => return Some(Err(problem)),
            }
        }
        Some(self.list(sum))
    }

    fn list_sum(&mut self, a: &List, b: &List) -> Result<List, Problem> {
        let kind = a.kind.joined(&b.kind, Join::Branches)?;
        if kind.n != a.kind.n || a.kind.size() != b.kind.size() {
            return Err(Problem::new("it adds lists of other lengths").with_help("add lists of one length"));
        }
        let (a, b) = if a.only.is_some() && b.only.is_none() { (b, a) } else { (a, b) };
        if a.leaves.is_empty() || b.leaves.is_empty() {
            let whole = if a.leaves.is_empty() { b } else { a };
            return Ok(List { kind, ..whole.clone() });
        }
        let Some(Element::Array(_)) = kind.element else { return Err(Problem::new("it adds lists of lists")) };
        if let Some((index, item)) = &b.only {
            let leaves = a.leaves.iter().zip(item).map(|(leaf, item)| {
                let sum = self.e().add(row(self.e(), *leaf, *index), *item);
                with_row(self.e(), *leaf, *index, sum)
            });
            return Ok(List { kind, leaves: leaves.collect(), len: a.len, only: None });
        }
        let leaves = a.leaves.iter().zip(&b.leaves).map(|(a, b)| self.e().binary(BinaryOp::Add, *a, *b)).collect();
        Ok(List { kind, leaves, len: a.len, only: None })
    }

    /// Zeros like the first input, if it is a list: a list of zeros, or a scalar flow of zero for a `TensorArray`'s flow.
    pub(super) fn zeros_like_list(&self) -> Option<Outputs> {
        let Some(Value::List(list)) = self.inputs.first() else { return None };
        if list.kind.owner.is_some() {
            return Some(self.one(self.e().scalar(DType::F32, 0.0)));
        }
        Some(self.list(List { len: list.len, ..List::zeros(list.kind.clone()) }))
    }
}

/// Rows that are written one by one, at most.
const MAX_ROWS: usize = 512;
