//! Crops of images that are resized, and colours.
//!
//! Source: `crop_and_resize_op.cc`, `colorspace_op.h`, `adjust_contrast_op.cc` of TensorFlow's kernels; `image_ops.cc` of
//! `tf2xla/kernels`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, DType, InstrId, UnaryOp};

pub(super) const TABLE: Table = &[
    ("CropAndResize", crops),
    ("CropAndResizeGradImage", crops_to_images),
    ("CropAndResizeGradBoxes", crops_to_boxes),
    ("RGBToHSV", |c| c.by_channels(|c, rgb| c.hsv(rgb))),
    ("HSVToRGB", |c| c.by_channels(|c, hsv| c.rgb(hsv))),
    ("AdjustContrastv2", contrast),
    ("AdjustHue", |c| {
        let delta = c.array(1)?;
        c.by_channels(|c, rgb| {
            let [hue, saturation, value] = c.hsv(rgb);
            let delta = c.e().broadcast(c.e().convert(delta, DType::F32), &[], &c.dims(hue));
            let turned = c.e().add(hue, delta);
            let turned = c.e().sub(turned, c.e().unary(UnaryOp::Floor, turned));
            c.rgb([turned, saturation, value])
        })
    }),
    ("AdjustSaturation", |c| {
        let scale = c.array(1)?;
        c.by_channels(|c, rgb| {
            let [hue, saturation, value] = c.hsv(rgb);
            let scale = c.e().broadcast(c.e().convert(scale, DType::F32), &[], &c.dims(hue));
            let scaled = c.e().mul(saturation, scale);
            c.rgb([hue, c.between_0_and_1(scaled), value])
        })
    }),
];

/// The places of crops along one axis of their images: `[crops, size of a crop]`.
struct Places {
    /// The pixel before a place, and the one behind it.
    pixels: [InstrId; 2],
    /// How far behind the first pixel a place is.
    part: InstrId,
    is_inside: InstrId,
}

/// Crops of images.
struct Crops {
    /// The image of each crop.
    images: InstrId,
    /// Along the height and along the width.
    axes: [Places; 2],
    /// Crops, and their heights and widths.
    dims: [i64; 3],
    /// The images' heights and widths.
    size: [i64; 2],
    is_nearest: bool,
}

impl Call<'_, '_> {
    /// The crops that boxes and the images' indices (two inputs from `first` on) make of images of this size.
    fn crops(&mut self, first: usize, size: [i64; 2], cropped: [i64; 2]) -> Result<Crops, Problem> {
        let (boxes, images) = (self.array(first)?, self.array(first + 1)?);
        let box_dims = self.dims(boxes);
        let [n, 4] = box_dims[..] else {
            return Err(Problem::new(format!("its boxes have dims {box_dims:?}, expected [n, 4]")));
        };
        if self.dims(images) != [n] {
            let dims = self.dims(images);
            return Err(Problem::new(format!("the images' indices have dims {dims:?}, expected [{n}]")));
        }
        if size.iter().chain(&cropped).any(|size| !(1..1 << 24).contains(size)) {
            return Err(Problem::new(format!("it makes crops of {cropped:?} pixels of images of {size:?}")));
        }
        let is_nearest = match self.node.text("method") {
            "" | "bilinear" => false,
            "nearest" => true,
            other => return Err(Problem::new(format!("its method is {other}, expected bilinear or nearest"))),
        };
        let dims = [n, cropped[0], cropped[1]];
        self.check_dims(&dims)?;
        let boxes = self.e().convert(boxes, DType::F32);
        let side = |at: i64| self.e().reshape(self.slice_axis(boxes, 1, at, 1), &[n]);
        let places = |axis: usize| {
            let ends = [side(axis as i64), side(axis as i64 + 2)];
            self.places(ends, [n, cropped[axis]], size[axis], is_nearest)
        };
        let axes = [places(0), places(1)];
        Ok(Crops { images: self.e().convert(images, DType::S32), axes, dims, size, is_nearest })
    }

    /// The places between two sides, an array of these dims: boxes, and places of each.
    fn places(&self, [start, end]: [InstrId; 2], dims: [i64; 2], n_pixels: i64, is_nearest: bool) -> Places {
        let e = self.e();
        let last = (n_pixels - 1) as f64;
        let place = match dims[1] {
            1 => e.reshape(e.mul_scalar(e.mul_scalar(e.add(start, end), 0.5), last), &dims),
            _ => {
                let length = e.mul_scalar(e.sub(end, start), last);
                let step = self.along(e.div(length, self.like(length, (dims[1] - 1) as f64)), 0, &dims);
                let first = self.along(e.mul_scalar(start, last), 0, &dims);
                e.add(first, e.mul(e.iota(DType::F32, &dims, 1), step))
            }
        };
        let is_inside = e.binary(
            BinaryOp::And,
            e.compare(Comparison::Ge, place, self.like(place, 0.0)),
            e.compare(Comparison::Le, place, self.like(place, last)),
        );
        let ends = match is_nearest {
            true => [UnaryOp::RoundNearestAfz; 2],
            false => [UnaryOp::Floor, UnaryOp::Ceil],
        };
        let pixels = ends.map(|round| e.convert(e.unary(round, place), DType::S32));
        let part = e.sub(place, e.unary(UnaryOp::Floor, place));
        Places { pixels, part, is_inside }
    }

    /// The indices of the pixels above or below, and left or right of the places of crops.
    fn pixels(&self, crops: &Crops, [below, right]: [usize; 2]) -> InstrId {
        let e = self.e();
        let column = [crops.dims[0], crops.dims[1], crops.dims[2], 1];
        let wide = |x: InstrId, axes: &[i64]| e.reshape(e.broadcast(x, axes, &crops.dims), &column);
        let rows = wide(crops.axes[0].pixels[below], &[0, 1]);
        let columns = wide(crops.axes[1].pixels[right], &[0, 2]);
        e.concatenate(&[wide(crops.images, &[0]), rows, columns], 3)
    }

    /// Whether a place of a crop is inside of its image, and how far below and right of a pixel it is: with the crops' dims.
    fn inside_and_parts(&self, crops: &Crops, depth: i64) -> (InstrId, [InstrId; 2]) {
        let e = self.e();
        let dims = [crops.dims[0], crops.dims[1], crops.dims[2], depth];
        let wide = |x: InstrId, axis: usize| e.broadcast(x, &[0, axis as i64 + 1], &dims);
        let [rows, columns] = [0, 1].map(|axis| wide(crops.axes[axis].is_inside, axis));
        (e.binary(BinaryOp::And, rows, columns), [0, 1].map(|axis| wide(crops.axes[axis].part, axis)))
    }

    /// The four pixels around each place: top left, top right, bottom left, bottom right.
    fn corners_of(&self, images: InstrId, crops: &Crops) -> Result<[InstrId; 4], Problem> {
        let at = |corner| self.gathered_at(images, self.pixels(crops, corner));
        Ok([at([0, 0])?, at([0, 1])?, at([1, 0])?, at([1, 1])?])
    }

    /// A function of three channels, the last axis; in f32 for 16-bit dtypes.
    fn by_channels(&mut self, function: impl Fn(&Self, [InstrId; 3]) -> [InstrId; 3]) -> Outputs {
        let x = self.array(0)?;
        let (dims, dtype) = (self.dims(x), self.dtype(x));
        let (axis, wide) = (dims.len() as i64 - 1, self.e().convert(x, self.sums_in(dtype)));
        if dims.last() != Some(&3) {
            return Err(Problem::new(format!("its input has dims {dims:?}, expected 3 channels at the end")));
        }
        let channels = function(self, [0, 1, 2].map(|channel| self.slice_axis(wide, axis, channel, 1)));
        self.one(self.e().convert(self.e().concatenate(&channels, axis), dtype))
    }

    fn between_0_and_1(&self, x: InstrId) -> InstrId {
        self.clamped(self.like(x, 0.0), x, self.like(x, 1.0))
    }

    /// Hue, saturation and value of red, green and blue.
    fn hsv(&self, [red, green, blue]: [InstrId; 3]) -> [InstrId; 3] {
        let e = self.e();
        let most = |op: BinaryOp| e.binary(op, red, e.binary(op, green, blue));
        let (value, least) = (most(BinaryOp::Maximum), most(BinaryOp::Minimum));
        let range = e.sub(value, least);
        let zero = self.like(value, 0.0);
        let saturation = e.select(self.is_positive(value), e.div(range, value), zero);
        let norm = e.div(self.like(range, 1.0 / 6.0), range);
        let turn = |a: InstrId, b: InstrId, from: f64| e.add_scalar(e.mul(norm, e.sub(a, b)), from);
        let is_value = |channel: InstrId| e.compare(Comparison::Eq, channel, value);
        let hue = e.select(is_value(green), turn(blue, red, 2.0 / 6.0), turn(red, green, 4.0 / 6.0));
        let hue = e.select(is_value(red), turn(green, blue, 0.0), hue);
        let hue = e.select(self.is_positive(range), hue, zero);
        let is_negative = e.compare(Comparison::Lt, hue, zero);
        [e.select(is_negative, e.add_scalar(hue, 1.0), hue), saturation, value]
    }

    /// Red, green and blue of hue, saturation and value.
    fn rgb(&self, [hue, saturation, value]: [InstrId; 3]) -> [InstrId; 3] {
        let e = self.e();
        let sixths = e.mul_scalar(hue, 6.0);
        let distance = |from: f64| e.unary(UnaryOp::Abs, e.add_scalar(sixths, -from));
        let red = e.add_scalar(distance(3.0), -1.0);
        let [green, blue] = [2.0, 4.0].map(|from| e.add_scalar(e.neg(distance(from)), 2.0));
        let rest = e.sub(self.like(saturation, 1.0), saturation);
        [red, green, blue].map(|ramp| {
            let pure = e.mul(saturation, self.between_0_and_1(ramp));
            e.mul(e.add(rest, pure), value)
        })
    }
}

/// Height and width of images, and their depth.
fn image_size(dims: &[i64]) -> Result<([i64; 2], i64), Problem> {
    match dims[..] {
        [_, height, width, depth] => Ok(([height, width], depth)),
        _ => Err(Problem::new(format!("its images have dims {dims:?}, expected 4"))),
    }
}

/// Inputs: images, boxes, the image of each box, the size of crops.
fn crops(c: &mut Call<'_, '_>) -> Outputs {
    let images = c.array(0)?;
    let (size, depth) = image_size(&c.dims(images))?;
    let cropped = c.ints(3)?;
    let [height, width] = cropped[..] else {
        return Err(Problem::new(format!("the size of its crops is {cropped:?}, expected two numbers")));
    };
    let crops = c.crops(1, size, [height, width])?;
    let wide = c.e().convert(images, DType::F32);
    let [top_left, top_right, bottom_left, bottom_right] = c.corners_of(wide, &crops)?;
    let (is_inside, [below, right]) = c.inside_and_parts(&crops, depth);
    let e = c.e();
    let between = |a: InstrId, b: InstrId, part: InstrId| e.add(a, e.mul(e.sub(b, a), part));
    let crop = match crops.is_nearest {
        true => top_left,
        false => {
            let (top, bottom) = (between(top_left, top_right, right), between(bottom_left, bottom_right, right));
            between(top, bottom, below)
        }
    };
    let outside = c.like(crop, f64::from(c.node.float("extrapolation_value").unwrap_or(0.0)));
    c.one(e.select(is_inside, crop, outside))
}

/// Inputs: the cotangent of crops, boxes, the image of each box, the dims of images.
fn crops_to_images(c: &mut Call<'_, '_>) -> Outputs {
    let dims = c.ints(3)?;
    c.check_dims(&dims)?;
    let (size, depth) = image_size(&dims)?;
    let cotangent = c.array(0)?;
    let ([height, width], _) = image_size(&c.dims(cotangent))?;
    let crops = c.crops(1, size, [height, width])?;
    let dtype = c.dtype_of("T")?;
    let (is_inside, [below, right]) = c.inside_and_parts(&crops, depth);
    let dy = c.e().convert(cotangent, DType::F32);
    let dy = c.e().select(is_inside, dy, c.like(dy, 0.0));
    let mut sum = c.e().full(DType::F32, &dims, 0.0);
    if crops.is_nearest {
        sum = c.scattered_nd(sum, c.pixels(&crops, [0, 0]), dy, Some(BinaryOp::Add))?;
        return c.one(c.e().convert(sum, dtype));
    }
    for (at, row) in [c.e().sub(c.like(below, 1.0), below), below].into_iter().enumerate() {
        for (to, column) in [c.e().sub(c.like(right, 1.0), right), right].into_iter().enumerate() {
            let share = c.e().mul(c.e().mul(row, dy), column);
            sum = c.scattered_nd(sum, c.pixels(&crops, [at, to]), share, Some(BinaryOp::Add))?;
        }
    }
    c.one(c.e().convert(sum, dtype))
}

/// Inputs: the cotangent of crops, images, boxes, the image of each box.
fn crops_to_boxes(c: &mut Call<'_, '_>) -> Outputs {
    let (cotangent, images) = (c.array(0)?, c.array(1)?);
    let (size, depth) = image_size(&c.dims(images))?;
    let ([height, width], _) = image_size(&c.dims(cotangent))?;
    let crops = c.crops(2, size, [height, width])?;
    let wide = c.e().convert(images, DType::F32);
    let [top_left, top_right, bottom_left, bottom_right] = c.corners_of(wide, &crops)?;
    let (is_inside, [below, right]) = c.inside_and_parts(&crops, depth);
    let e = c.e();
    let dy = e.select(is_inside, e.convert(cotangent, DType::F32), c.like(right, 0.0));
    let between = |a: InstrId, b: InstrId, part: InstrId| e.add(a, e.mul(e.sub(b, a), part));
    let down = between(e.sub(bottom_left, top_left), e.sub(bottom_right, top_right), right);
    let across = between(e.sub(top_right, top_left), e.sub(bottom_right, bottom_left), below);
    // A side's part of each place: it moves the places near it more.
    let side = |slope: InstrId, axis: usize, is_end: bool| {
        let by_place = e.reduce_sum(e.mul(slope, dy), &[2 - axis as i64, 3]);
        let (n, last) = (crops.dims[axis + 1], (crops.size[axis] - 1) as f64);
        let place = e.iota(DType::F32, &c.dims(by_place), 1);
        let scaled = e.mul_scalar(place, last / (n - 1).max(1) as f64);
        let share = match (n, is_end) {
            (1, _) => c.like(by_place, 0.5 * last),
            (_, true) => scaled,
            (_, false) => e.add_scalar(e.neg(scaled), last),
        };
        e.reshape(e.reduce_sum(e.mul(by_place, share), &[1]), &[crops.dims[0], 1])
    };
    let sides = [side(down, 0, false), side(across, 1, false), side(down, 0, true), side(across, 1, true)];
    c.one(e.concatenate(&sides, 1))
}

/// Pixels farther from or nearer to the mean of their channel in their image.
fn contrast(c: &mut Call<'_, '_>) -> Outputs {
    let (x, factor) = (c.array(0)?, c.array(1)?);
    let (dims, dtype) = (c.dims(x), c.dtype(x));
    let Some(rank) = dims.len().checked_sub(3) else {
        return Err(Problem::new(format!("its input has dims {dims:?}, expected images")));
    };
    let (e, rows) = (c.e(), rank as i64);
    let wide = e.convert(x, c.sums_in(dtype));
    let sum = e.reduce_sum(wide, &[rows, rows + 1]);
    let mean = e.div(sum, c.like(sum, dims[rank].saturating_mul(dims[rank + 1]) as f64));
    let batch_and_channels: Vec<i64> = (0..rows).chain([rows + 2]).collect();
    let mean = e.broadcast(mean, &batch_and_channels, &dims);
    let factor = e.broadcast(e.convert(factor, c.dtype(wide)), &[], &dims);
    c.one(e.convert(e.add(e.mul(e.sub(wide, mean), factor), mean), dtype))
}
