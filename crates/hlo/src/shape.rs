//! Shapes: dtype and dims, with optional layout; tuples; tokens.
//!
//! Shapes print as XLA prints them (`bf16[64,224,224,3]{3,2,1,0}`). They do not say in which memory a buffer is,
//! except through [`Layout::memory_space`], which compilers set.
//!
//! Source: `ShapeProto`/`LayoutProto` in XLA's `xla_data.proto`, `shape_util` and `layout_util` for the text.

use super::DType;
use std::fmt;

/// The shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// A dense array.
    Array(ArrayShape),
    /// A tuple of shapes; may nest; may be empty.
    Tuple(Vec<Shape>),
    /// An ordering token of side effects.
    Token,
    /// An opaque value, `opaque[]`.
    Opaque,
    /// A reference to the memory of an array, `b(f32[2]{0})`, which some custom calls pass to each other.
    Buffer(Box<ArrayShape>),
}

/// The shape of a dense array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArrayShape {
    /// Element type.
    pub dtype: DType,
    /// Sizes, in logical order. For a bounded dynamic dimension this is the bound.
    pub dims: Vec<i64>,
    /// For each dimension whether its run-time size may be smaller (`<=n`). Empty means: all static.
    pub dynamic: Vec<bool>,
    /// Physical layout, where known. `None` lets the compiler choose.
    pub layout: Option<Layout>,
}

/// The physical layout of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Layout {
    /// Dimensions from the fastest varying to the slowest.
    pub minor_to_major: Vec<i64>,
    /// Tiles, outermost first; a TPU's `T(8,128)(2,1)` is two of them. Entries may be [`Tile::COMBINE`].
    pub tiles: Vec<Tile>,
    /// Bits of an element in memory, if other than its own width; 0 = its own (`E(4)`).
    pub element_size_in_bits: i64,
    /// Memory space; 0 is the default (`S(1)` is a TPU's VMEM).
    pub memory_space: i64,
    /// Anything else a compiler prints inside the braces, kept verbatim (`L(1024)`, `M(…)`); levels (`D(…)`) first.
    pub extra: String,
}

/// One tile of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tile(pub Vec<i64>);

impl Tile {
    /// A tile dimension that means "combine with the next more minor one"; prints as `*`. XLA's own sentinel.
    pub const COMBINE: i64 = i64::MIN;
}

impl Layout {
    /// The row-major layout of a rank: `{rank-1,…,1,0}`.
    pub fn descending(rank: usize) -> Layout {
        Layout { minor_to_major: (0..rank as i64).rev().collect(), ..Layout::default() }
    }
}

impl ArrayShape {
    /// The size of a dimension without a bound, `?`; it is also dynamic. XLA's own sentinel.
    pub const UNBOUNDED: i64 = i64::MIN;

    /// A static array without a layout.
    pub fn new(dtype: DType, dims: impl Into<Vec<i64>>) -> ArrayShape {
        ArrayShape { dtype, dims: dims.into(), dynamic: Vec::new(), layout: None }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements (1 for a scalar), saturating, as a broken module may have more than fits.
    pub fn n_elements(&self) -> i64 {
        self.dims.iter().fold(1i64, |product, &dim| product.saturating_mul(dim))
    }

    /// Bytes of a host literal of this shape, unpacked and untiled.
    pub fn n_bytes(&self) -> i64 {
        self.n_elements().saturating_mul(self.dtype.n_bytes() as i64)
    }

    /// This array with another dtype. A layout keeps its order of dimensions; tiles fit another width, so they are
    /// dropped.
    pub fn with_dtype(&self, dtype: DType) -> ArrayShape {
        let order = |layout: &Layout| Layout { minor_to_major: layout.minor_to_major.clone(), ..Layout::default() };
        ArrayShape { dtype, layout: self.layout.as_ref().map(order), ..self.clone() }
    }

    /// This array with the row-major layout if none is set.
    fn with_default_layout(&self) -> ArrayShape {
        let layout = self.layout.clone().unwrap_or_else(|| Layout::descending(self.rank()));
        ArrayShape { layout: Some(layout), ..self.clone() }
    }

    /// Whether dimension `axis` is dynamic.
    pub fn is_dynamic(&self, axis: usize) -> bool {
        self.dynamic.get(axis).copied().unwrap_or(false)
    }

    /// Whether any dimension is dynamic.
    pub fn has_dynamic(&self) -> bool {
        self.dynamic.iter().any(|&d| d)
    }
}

impl Shape {
    /// A static array without a layout.
    pub fn array(dtype: DType, dims: impl Into<Vec<i64>>) -> Shape {
        Shape::Array(ArrayShape::new(dtype, dims))
    }

    /// A scalar.
    pub fn scalar(dtype: DType) -> Shape {
        Shape::array(dtype, [])
    }

    /// The array shape, if this is one.
    pub fn as_array(&self) -> Option<&ArrayShape> {
        match self {
            Shape::Array(array) => Some(array),
            Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => None,
        }
    }

    /// The array shape, if this is one, or that of the memory a buffer refers to.
    pub fn stored(&self) -> Option<&ArrayShape> {
        match self {
            Shape::Array(array) => Some(array),
            Shape::Buffer(array) => Some(array),
            Shape::Tuple(_) | Shape::Token | Shape::Opaque => None,
        }
    }

    /// The elements, if this is a tuple.
    pub fn as_tuple(&self) -> Option<&[Shape]> {
        match self {
            Shape::Tuple(elements) => Some(elements),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => None,
        }
    }

    /// The dtype, if this is an array.
    pub fn dtype(&self) -> Option<DType> {
        self.as_array().map(|array| array.dtype)
    }

    /// The dims, if this is an array; empty for anything else.
    pub fn dims(&self) -> &[i64] {
        self.as_array().map_or(&[], |array| &array.dims)
    }

    /// Whether this is an array of rank 0.
    pub fn is_scalar(&self) -> bool {
        self.as_array().is_some_and(|array| array.dims.is_empty())
    }

    /// Whether both have the same dtypes, dims and structure; layouts and flags of dynamic bounds do not count.
    pub fn is_compatible(&self, other: &Shape) -> bool {
        match (self, other) {
            (Shape::Array(a), Shape::Array(b)) => a.dtype == b.dtype && a.dims == b.dims,
            (Shape::Tuple(a), Shape::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_compatible(b))
            }
            (Shape::Buffer(a), Shape::Buffer(b)) => a.dtype == b.dtype && a.dims == b.dims,
            (Shape::Token, Shape::Token) | (Shape::Opaque, Shape::Opaque) => true,
            (Shape::Array(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => false,
        }
    }

    /// This shape with every layout dropped.
    pub fn without_layout(&self) -> Shape {
        match self {
            Shape::Array(array) => Shape::Array(ArrayShape { layout: None, ..array.clone() }),
            Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(Shape::without_layout).collect()),
            Shape::Buffer(array) => Shape::Buffer(Box::new(ArrayShape { layout: None, ..(**array).clone() })),
            Shape::Token => Shape::Token,
            Shape::Opaque => Shape::Opaque,
        }
    }

    /// This shape with the row-major layout wherever none is set, as XLA's text and protos require.
    pub fn with_default_layout(&self) -> Shape {
        match self {
            Shape::Array(array) => Shape::Array(array.with_default_layout()),
            Shape::Buffer(array) => Shape::Buffer(Box::new(array.with_default_layout())),
            Shape::Tuple(elements) => Shape::Tuple(elements.iter().map(Shape::with_default_layout).collect()),
            Shape::Token => Shape::Token,
            Shape::Opaque => Shape::Opaque,
        }
    }

    /// This shape with dtype `to` in those arrays of dtype `from` for which `picks` returns true; it is called with
    /// their places among the [leaves](Shape::leaves).
    pub fn with_dtype(&self, from: DType, to: DType, mut picks: impl FnMut(usize) -> bool) -> Shape {
        let mut shape = self.clone();
        for (place, leaf) in shape.leaves_mut().into_iter().enumerate() {
            if let Shape::Array(array) = leaf
                && array.dtype == from
                && picks(place)
            {
                *array = array.with_dtype(to);
            }
        }
        shape
    }

    /// Bytes of all arrays, unpacked and untiled, saturating. A buffer counts as 0, as its memory belongs to another
    /// value.
    pub fn n_bytes(&self) -> i64 {
        match self {
            Shape::Array(array) => array.n_bytes(),
            Shape::Tuple(elements) => elements.iter().fold(0i64, |sum, e| sum.saturating_add(e.n_bytes())),
            Shape::Token | Shape::Opaque | Shape::Buffer(_) => 0,
        }
    }

    /// The arrays of this shape, depth first.
    pub fn leaves(&self) -> Vec<&Shape> {
        match self {
            Shape::Tuple(elements) => elements.iter().flat_map(Shape::leaves).collect(),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => vec![self],
        }
    }

    /// Gives each array the dtype of the array at its place in `other`.
    pub(super) fn take_dtypes(&mut self, other: &Shape) {
        for (leaf, other) in self.leaves_mut().into_iter().zip(other.leaves()) {
            if let (Shape::Array(array), Some(dtype)) = (leaf, other.dtype())
                && array.dtype != dtype
            {
                *array = array.with_dtype(dtype);
            }
        }
    }

    fn leaves_mut(&mut self) -> Vec<&mut Shape> {
        match self {
            Shape::Tuple(elements) => elements.iter_mut().flat_map(Shape::leaves_mut).collect(),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => vec![self],
        }
    }
}

impl From<ArrayShape> for Shape {
    fn from(array: ArrayShape) -> Shape {
        Shape::Array(array)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, &dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match dim {
                Tile::COMBINE => f.write_str("*")?,
                dim => write!(f, "{dim}")?,
            }
        }
        f.write_str(")")
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, dim) in self.minor_to_major.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { "," } else { "" })?;
        }
        let plain =
            self.tiles.is_empty() && self.element_size_in_bits == 0 && self.memory_space == 0 && self.extra.is_empty();
        if !plain {
            f.write_str(":")?;
            // Levels of a sparse layout come first, as XLA prints them.
            let levels = if self.extra.starts_with("D(") { self.extra.find(')').map_or(0, |end| end + 1) } else { 0 };
            let (levels, extra) = self.extra.split_at(levels);
            f.write_str(levels)?;
            if !self.tiles.is_empty() {
                f.write_str("T")?;
                self.tiles.iter().try_for_each(|tile| write!(f, "{tile}"))?;
            }
            // XLA prints paddings and pointer types before the memory space, splits and prefixes after it.
            let at = ["SC(", "P(", "M("].iter().filter_map(|key| extra.find(key)).min();
            let (before, after) = extra.split_at(at.unwrap_or(extra.len()));
            f.write_str(before)?;
            if self.element_size_in_bits != 0 {
                write!(f, "E({})", self.element_size_in_bits)?;
            }
            if self.memory_space != 0 {
                write!(f, "S({})", self.memory_space)?;
            }
            f.write_str(after)?;
        }
        f.write_str("}")
    }
}

impl fmt::Display for ArrayShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (axis, &dim) in self.dims.iter().enumerate() {
            f.write_str(if axis > 0 { "," } else { "" })?;
            match (self.is_dynamic(axis), dim) {
                (true, ArrayShape::UNBOUNDED) => f.write_str("?")?,
                (true, bound) => write!(f, "<={bound}")?,
                (false, dim) => write!(f, "{dim}")?,
            }
        }
        f.write_str("]")?;
        match &self.layout {
            Some(layout)
                if !(layout.minor_to_major.is_empty() && layout.tiles.is_empty() && layout.memory_space == 0) =>
            {
                write!(f, "{layout}")
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Array(array) => write!(f, "{array}"),
            Shape::Tuple(elements) => {
                f.write_str("(")?;
                for (i, element) in elements.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                        if i % 5 == 0 {
                            write!(f, "/*index={i}*/")?;
                        }
                    }
                    write!(f, "{element}")?;
                }
                f.write_str(")")
            }
            Shape::Token => f.write_str("token[]"),
            Shape::Opaque => f.write_str("opaque[]"),
            Shape::Buffer(array) => write!(f, "b({array})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_dtype_keeps_the_order_of_dimensions_and_drops_tiles() {
        let tiled = Layout { tiles: vec![Tile(vec![8, 128])], minor_to_major: vec![0, 1], ..Layout::default() };
        let array = Shape::Array(ArrayShape { layout: Some(tiled), ..ArrayShape::new(DType::F32, [8, 4]) });
        let shape = Shape::Tuple(vec![array.clone(), Shape::Token, Shape::Tuple(vec![array])]);
        let mut places = Vec::new();
        let narrow = shape.with_dtype(DType::F32, DType::BF16, |place| {
            places.push(place);
            place == 2
        });
        assert_eq!(places, [0, 2]);
        assert_eq!(narrow.to_string(), "(f32[8,4]{0,1:T(8,128)}, token[], (bf16[8,4]{0,1}))");
    }

    #[test]
    fn prints_as_xla_does() {
        let mut array = ArrayShape::new(DType::BF16, [64, 8, 128]);
        assert_eq!(array.to_string(), "bf16[64,8,128]");
        array.layout = Some(Layout {
            tiles: vec![Tile(vec![8, 128]), Tile(vec![2, 1])],
            memory_space: 1,
            ..Layout::descending(3)
        });
        array.dynamic = vec![true, false, false];
        assert_eq!(array.to_string(), "bf16[<=64,8,128]{2,1,0:T(8,128)(2,1)S(1)}");
        let tuple = Shape::Tuple(vec![Shape::scalar(DType::F32); 6]);
        assert_eq!(tuple.to_string(), "(f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[])");
        assert_eq!(Shape::scalar(DType::Pred).with_default_layout().to_string(), "pred[]");
    }

    #[test]
    fn sizes_saturate() {
        assert_eq!(ArrayShape::new(DType::F32, [i64::MAX, 4]).n_bytes(), i64::MAX);
    }
}
