//! Shapes with their layouts: `f32[2,3]{1,0:T(8,128)}`, `(f32[], s32[2])`, `token[]`.

use super::super::error::ParseErrorKind;
use super::{Cursor, Fault, Ints, MAX_DEPTH, Read, exact};
use crate::words::nearest;
use crate::{ArrayShape, DType, Layout, Shape, Tile};
use std::cell::Cell;

impl Cursor<'_> {
    /// A shape: `f32[2,3]{1,0}`, `(f32[], s32[2])`, `token[]`, `b(f32[2]{0})`.
    pub(crate) fn shape(&mut self) -> Read<Shape> {
        self.shape_at(0, true)
    }

    /// Skips a shape, and takes no memory for it.
    pub(crate) fn pass_shape(&mut self) -> Read<()> {
        let left = self.left.map(Cell::get);
        self.shape_at(0, false)?;
        if let (Some(cell), Some(left)) = (self.left, left) {
            cell.set(left);
        }
        Ok(())
    }

    /// Without `keep` the shape has none of its lists, as it is discarded.
    fn shape_at(&mut self, depth: usize, keep: bool) -> Read<Shape> {
        if depth > MAX_DEPTH {
            return Err(self.fault(ParseErrorKind::TooDeep { max: MAX_DEPTH }));
        }
        // Twice, as vectors grow by doubling.
        self.spend(2 * size_of::<Shape>())?;
        if self.peek() == Some(b'(') {
            let mut elements = Vec::new();
            self.sequence("(", ")", |cursor| {
                let element = cursor.shape_at(depth + 1, keep)?;
                if keep {
                    elements.push(element);
                }
                Ok(())
            })?;
            return Ok(Shape::Tuple(elements));
        }
        self.skip_blank();
        let start = self.pos;
        let name = self.word("a shape")?;
        match name {
            "token" | "opaque" => {
                self.expect("[")?;
                self.expect("]")?;
                return Ok(if name == "token" { Shape::Token } else { Shape::Opaque });
            }
            "b" if self.peek() == Some(b'(') => {
                self.pos += 1;
                let mut element = *self;
                let Shape::Array(array) = self.shape_at(depth + 1, keep)? else {
                    return Err(element.expected("an array, which alone a buffer can hold"));
                };
                self.expect(")")?;
                return Ok(Shape::Buffer(Box::new(array)));
            }
            _ => {}
        }
        let Some(dtype) = DType::from_name(name) else { return Err(unknown_dtype(start, name)) };
        let mut array = ArrayShape::new(dtype, Vec::new());
        let mut dims = Ints::new();
        self.sequence("[", "]", |cursor| {
            let is_unbounded = cursor.eat("?");
            let is_dynamic = is_unbounded || cursor.eat("<=");
            // Flags are stored only once there is one.
            if is_dynamic {
                array.dynamic.resize(dims.len(), false);
            }
            if is_dynamic || !array.dynamic.is_empty() {
                array.dynamic.push(is_dynamic);
            }
            cursor.spend(4 * size_of::<i64>())?;
            dims.push(if is_unbounded { ArrayShape::UNBOUNDED } else { cursor.int()? });
            Ok(())
        })?;
        if keep {
            array.dims = exact(dims);
        }
        // A brace after a blank opens a computation's body, not a layout.
        if self.byte(self.pos) == Some(b'{') {
            array.layout = Some(self.layout(depth, keep)?);
        }
        Ok(Shape::Array(array))
    }

    fn layout(&mut self, depth: usize, keep: bool) -> Read<Layout> {
        self.expect("{")?;
        let mut layout = Layout::default();
        let mut minor_to_major = Ints::new();
        while !matches!(self.peek(), Some(b':' | b'}')) {
            self.spend(2 * size_of::<i64>())?;
            minor_to_major.push(self.int()?);
            if !self.eat(",") {
                break;
            }
        }
        if keep {
            layout.minor_to_major = exact(minor_to_major);
        }
        if self.eat(":") {
            while self.peek() != Some(b'}') {
                self.layout_attribute(&mut layout, depth)?;
            }
        }
        self.expect("}")?;
        Ok(layout)
    }

    fn layout_attribute(&mut self, layout: &mut Layout, depth: usize) -> Read<()> {
        self.skip_blank();
        let start = self.pos;
        let key = if self.eat("#") {
            "#"
        } else if self.eat("*") {
            "*"
        } else {
            self.word("a layout attribute or `}`")?
        };
        match key {
            "T" => {
                while self.peek() == Some(b'(') {
                    let mut dims = Vec::new();
                    self.spend(6 * size_of::<Tile>())?;
                    self.sequence("(", ")", |cursor| {
                        cursor.spend(2 * size_of::<i64>())?;
                        dims.push(if cursor.eat("*") { Tile::COMBINE } else { cursor.int()? });
                        Ok(())
                    })?;
                    layout.tiles.push(Tile(dims));
                }
            }
            "E" => layout.element_size_in_bits = self.in_parens()?,
            "S" => layout.memory_space = self.in_parens()?,
            "L" | "M" => {
                self.in_parens()?;
                layout.extra.push_str(&self.text[start..self.pos]);
            }
            "#" | "*" => {
                self.expect("(")?;
                self.dtype()?;
                self.expect(")")?;
                layout.extra.push_str(&self.text[start..self.pos]);
            }
            "SC" => {
                while self.eat("(") {
                    self.int()?;
                    self.ints(":", ")")?;
                }
                layout.extra.push_str(&self.text[start..self.pos]);
            }
            "D" => {
                self.sequence("(", ")", |cursor| {
                    cursor.skip_blank();
                    let at = cursor.pos;
                    let level = cursor.word_or_empty();
                    cursor.eat("~");
                    if !matches!(level.trim_end_matches('+'), "D" | "C" | "S" | "H") {
                        cursor.pos = at;
                        return Err(cursor.expected("a level of the layout, one of D, C, S, H"));
                    }
                    Ok(())
                })?;
                layout.extra.insert_str(0, &self.text[start..self.pos]);
            }
            "P" => {
                self.expect("(")?;
                self.shape_at(depth + 1, false)?;
                self.expect(")")?;
                layout.extra.push_str(&self.text[start..self.pos]);
            }
            _ => {
                self.pos = start;
                return Err(self.expected("one of the layout attributes D, T, L, #, *, E, S, SC, P, M"));
            }
        }
        Ok(())
    }

    fn dtype(&mut self) -> Read<DType> {
        self.skip_blank();
        let start = self.pos;
        let name = self.word("a dtype")?;
        DType::from_name(name).ok_or_else(|| unknown_dtype(start, name))
    }

    fn in_parens(&mut self) -> Read<i64> {
        self.expect("(")?;
        let value = self.int()?;
        self.expect(")")?;
        Ok(value)
    }
}

#[cold]
fn unknown_dtype(offset: usize, name: &str) -> Fault {
    let nearest = nearest(name, DType::ALL.iter().map(|dtype| dtype.name())).map(str::to_string);
    Fault::new(offset, ParseErrorKind::UnknownName { what: "dtype", name: name.to_string(), nearest })
}
