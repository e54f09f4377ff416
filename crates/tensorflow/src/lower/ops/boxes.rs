//! Suppression of boxes that overlap better ones, as a loop with a trip for each box that may be kept.
//!
//! Source: `non_max_suppression_op.cc` of TensorFlow's kernels.

use super::super::call::Outputs;
use super::super::flow::nested;
use super::super::{Call, Gates, Value};
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::Comparison;
use bf16scope_hlo::{BinaryOp, DType, InstrId, Op, UnaryOp};

pub(super) const TABLE: Table = &[
    ("NonMaxSuppressionV4", padded_suppression),
    ("NonMaxSuppressionV5", padded_suppression),
    ("CombinedNonMaxSuppression", combined_suppression),
];

/// The boxes that are kept, for each row of a batch: their places (0 beyond their number), scores, and how many there are.
struct Kept {
    places: InstrId,
    scores: InstrId,
    n: InstrId,
}

/// Scalars of f32: the overlap above which a box goes, the score that is too low, and, if scores decay with the overlap instead,
/// the variance by which they do.
struct Limits {
    overlap: InstrId,
    score: InstrId,
    variance: Option<InstrId>,
}

impl Call<'_, '_> {
    fn scalar_f32(&mut self, number: usize) -> Result<InstrId, Problem> {
        let x = self.array(number)?;
        match self.dims(x).iter().product::<i64>() {
            1 => Ok(self.e().convert(self.e().reshape(x, &[]), DType::F32)),
            n => Err(Problem::new(format!("input {number} has {n} elements, expected 1"))),
        }
    }

    /// The best `most` boxes of each row, best first. Boxes are `[rows, n, 4]` (two corners), scores `[rows, n]`, both f32.
    fn kept(&mut self, boxes: InstrId, scores: InstrId, most: i64, limits: &Limits) -> Result<Kept, Problem> {
        let dims = self.dims(scores);
        let rows = dims.first().copied().unwrap_or(0);
        self.check_dims(&[rows, most])?;
        let is_soft = limits.variance.is_some();
        let state = {
            let e = self.e();
            let corner = |at: i64| e.reshape(self.slice_axis(boxes, 2, at, 1), &dims);
            let [a, b, c, d] = [0, 1, 2, 3].map(corner);
            let low = [(a, c), (b, d)].map(|(a, b)| e.binary(BinaryOp::Minimum, a, b));
            let high = [(a, c), (b, d)].map(|(a, b)| e.binary(BinaryOp::Maximum, a, b));
            let is_candidate = e.compare(Comparison::Gt, scores, e.broadcast(limits.score, &[], &dims));
            let left = e.select(is_candidate, scores, self.like(scores, f64::NEG_INFINITY));
            let none = e.full(DType::S32, &[rows, most], 0.0);
            let variance = limits.variance.unwrap_or(limits.overlap);
            vec![
                e.scalar(DType::S32, 0.0),
                left,
                none,
                e.full(DType::F32, &[rows, most], 0.0),
                e.full(DType::S32, &[rows], 0.0),
                low[0],
                low[1],
                high[0],
                high[1],
                limits.overlap,
                limits.score,
                variance,
            ]
        };
        if let Some(error) = self.e().error() {
            return Err(Problem { message: error.error.message, help: error.error.help });
        }
        let shapes: Vec<_> = state.iter().map(|id| self.e().shape(*id)).collect();
        let condition = self.lowering.inside("suppression_condition", &shapes, |this, elements| {
            let end = this.e.scalar(DType::S32, most as f64);
            Ok(vec![this.e.compare(Comparison::Lt, elements[0], end)])
        });
        let condition = condition.map_err(nested)?;
        let node = self.node;
        let body = self.lowering.inside("suppression_body", &shapes, |this, elements| {
            let c = Call { lowering: this, node, inputs: Vec::new(), gates: Gates::default() };
            Ok(c.suppression(elements, is_soft))
        });
        let body = body.map_err(nested)?;
        let e = self.e();
        let last = e.emit(Op::While { condition, body }, &[e.tuple(&state)], None);
        let [places, scores, n] = [2, 3, 4].map(|index| e.get_tuple_element(last, index));
        Ok(Kept { places, scores, n })
    }

    /// A trip: the best box of those that are left is kept, and the scores of those that overlap it fall.
    fn suppression(&self, elements: &[InstrId], is_soft: bool) -> Vec<InstrId> {
        let [at, left, places, kept_scores, n, y1, x1, y2, x2, overlap, least, variance] = elements[..] else {
            return elements.to_vec();
        };
        let e = self.e();
        let (dims, kept_dims) = (self.dims(left), self.dims(places));
        let none = self.like(left, f64::NEG_INFINITY);
        let best = self.first_best(left, 1, Comparison::Ge, BinaryOp::Maximum);
        let top = e.reduce(BinaryOp::Maximum, left, &[1]);
        let is_kept = e.compare(Comparison::Gt, top, e.broadcast(least, &[], &dims[..1]));
        let is_best = e.compare(Comparison::Eq, e.iota(DType::S32, &dims, 1), self.along(best, 0, &dims));
        let best_box = [y1, x1, y2, x2].map(|corner| {
            let masked = e.select(is_best, corner, self.like(corner, 0.0));
            self.along(e.reduce_sum(masked, &[1]), 0, &dims)
        });
        let ratio = self.overlaps([y1, x1, y2, x2], best_box);
        let fallen = match is_soft {
            true => {
                let exponent = e.div(e.mul_scalar(e.mul(ratio, ratio), -0.5), e.broadcast(variance, &[], &dims));
                let decayed = e.mul(left, e.unary(UnaryOp::Exp, exponent));
                e.select(e.compare(Comparison::Eq, left, none), none, decayed)
            }
            false => {
                let is_over = e.compare(Comparison::Gt, ratio, e.broadcast(overlap, &[], &dims));
                e.select(is_over, none, left)
            }
        };
        let fallen = e.select(is_best, none, fallen);
        let next = e.select(self.along(is_kept, 0, &dims), fallen, left);
        let is_place = e.compare(Comparison::Eq, e.iota(DType::S32, &kept_dims, 1), e.broadcast(at, &[], &kept_dims));
        let is_new = e.binary(BinaryOp::And, is_place, self.along(is_kept, 0, &kept_dims));
        let places = e.select(is_new, self.along(best, 0, &kept_dims), places);
        let kept_scores = e.select(is_new, self.along(top, 0, &kept_dims), kept_scores);
        let n = e.add(n, e.convert(is_kept, DType::S32));
        vec![e.add_scalar(at, 1.0), next, places, kept_scores, n, y1, x1, y2, x2, overlap, least, variance]
    }

    /// The shared area of boxes over that of both together; 0 where one has no area. A box is its low and its high corner.
    fn overlaps(&self, a: [InstrId; 4], b: [InstrId; 4]) -> InstrId {
        let e = self.e();
        let side = |axis: usize| {
            let low = e.binary(BinaryOp::Maximum, a[axis], b[axis]);
            let length = e.sub(e.binary(BinaryOp::Minimum, a[axis + 2], b[axis + 2]), low);
            e.binary(BinaryOp::Maximum, length, self.like(length, 0.0))
        };
        let shared = e.mul(side(0), side(1));
        let areas = [a, b].map(|[y1, x1, y2, x2]| e.mul(e.sub(y2, y1), e.sub(x2, x1)));
        let ratio = e.div(shared, e.sub(e.add(areas[0], areas[1]), shared));
        let [is_area, is_other] = areas.map(|area| self.is_positive(area));
        e.select(e.binary(BinaryOp::And, is_area, is_other), ratio, self.like(ratio, 0.0))
    }
}

/// Inputs: boxes, scores, the number of boxes, the overlap, the least score, and in version 5 the variance.
fn padded_suppression(c: &mut Call<'_, '_>) -> Outputs {
    if !c.node.flag("pad_to_max_output_size") {
        let problem = Problem::new("how many boxes it gives is known only when the program runs");
        return Err(problem.with_help("set `pad_to_max_output_size`, or name the boxes and scores before it"));
    }
    let (boxes, scores) = (c.array(0)?, c.array(1)?);
    let (dims, dtype) = (c.dims(boxes), c.dtype(scores));
    let [n, 4] = dims[..] else {
        return Err(Problem::new(format!("its boxes have dims {dims:?}, expected [n, 4]")));
    };
    if c.dims(scores) != [n] {
        return Err(Problem::new(format!("its scores have dims {:?}, expected [{n}]", c.dims(scores))));
    }
    let most = c.int(2)?;
    let is_soft = c.node.op.ends_with("V5");
    // A variance of 0 is a hard limit.
    let is_soft = is_soft && c.number(5)? > 0.0;
    let variance = if is_soft { Some(c.scalar_f32(5)?) } else { None };
    let limits = Limits { overlap: c.scalar_f32(3)?, score: c.scalar_f32(4)?, variance };
    let boxes = c.e().convert(c.e().reshape(boxes, &[1, n, 4]), DType::F32);
    let wide = c.e().convert(c.e().reshape(scores, &[1, n]), DType::F32);
    let selected = c.kept(boxes, wide, most, &limits)?;
    let places = c.e().reshape(selected.places, &[most]);
    let scores = c.e().convert(c.e().reshape(selected.scores, &[most]), dtype);
    let n = c.e().reshape(selected.n, &[]);
    let outputs = if c.node.op.ends_with("V5") { vec![places, scores, n] } else { vec![places, n] };
    Ok(outputs.into_iter().map(Value::Array).collect())
}

/// The best boxes of all classes, after each class's boxes were suppressed. Inputs: boxes `[batch, n, classes or 1, 4]`, scores
/// `[batch, n, classes]`, the number of boxes of a class, that of all, the overlap, the least score.
fn combined_suppression(c: &mut Call<'_, '_>) -> Outputs {
    let (boxes, scores) = (c.array(0)?, c.array(1)?);
    let (box_dims, dims) = (c.dims(boxes), c.dims(scores));
    let (&[batch, n, classes], &[_, _, sets, 4]) = (&dims[..], &box_dims[..]) else {
        return Err(Problem::new(format!("its boxes have dims {box_dims:?}, its scores {dims:?}")));
    };
    if box_dims[..2] != dims[..2] || ![1, classes].contains(&sets) {
        return Err(Problem::new(format!("its boxes have dims {box_dims:?}, its scores {dims:?}")));
    }
    let (of_class, most) = (c.int(2)?, c.int(3)?);
    let limits = Limits { overlap: c.scalar_f32(4)?, score: c.scalar_f32(5)?, variance: None };
    let each = of_class.min(n);
    let most = match c.node.flag("pad_per_class") {
        true => most.min(of_class.saturating_mul(classes)),
        false => most,
    };
    c.check_dims(&[batch, classes, each.max(n), most, 4])?;
    let rows = batch * classes;
    let [boxes, scores] = [boxes, scores].map(|x| c.e().convert(x, DType::F32));
    let by_class = c.e().transpose(boxes, &[0, 2, 1, 3]);
    let by_class = c.e().reshape(c.broadcast_to(by_class, &[batch, classes, n, 4])?, &[rows, n, 4]);
    let scores = c.e().reshape(c.e().transpose(scores, &[0, 2, 1]), &[rows, n]);
    let selected = c.kept(by_class, scores, each, &limits)?;
    // The boxes of all classes, best first; those beyond a class's number are last.
    let chosen = c.gathered(by_class, selected.places, 1, 1)?;
    let Some(&Value::Array(chosen)) = chosen.first() else { return Ok(chosen) };
    let all = classes * each;
    let e = c.e();
    let is_kept = {
        let place = e.iota(DType::S32, &[rows, each], 1);
        e.compare(Comparison::Lt, place, c.along(selected.n, 0, &[rows, each]))
    };
    let score = e.select(is_kept, selected.scores, c.like(selected.scores, f64::NEG_INFINITY));
    let (score, order) = c.sorted(e.reshape(score, &[batch, all]));
    let chosen = e.reshape(chosen, &[batch, all, 4]);
    let class = e.convert(e.div(order, c.like(order, each.max(1) as f64)), DType::F32);
    let n_kept = e.reduce_sum(e.reshape(selected.n, &[batch, classes]), &[1]);
    let n_kept = e.binary(BinaryOp::Minimum, n_kept, e.full(DType::S32, &[batch], most as f64));
    let sorted = c.gathered(chosen, order, 1, 1)?;
    let Some(&Value::Array(sorted)) = sorted.first() else { return Ok(sorted) };
    let boxes = match c.node.flag("clip_boxes") || c.node.kind("clip_boxes").is_none() {
        true => c.clamped(c.like(sorted, 0.0), sorted, c.like(sorted, 1.0)),
        false => sorted,
    };
    let outputs = [boxes, score, class].map(|x| c.first_or_zero(x, n_kept, most));
    Ok(outputs.into_iter().chain([n_kept]).map(Value::Array).collect())
}

impl Call<'_, '_> {
    /// The first `most` elements along axis 1, with 0 from the row's number on.
    fn first_or_zero(&self, x: InstrId, n: InstrId, most: i64) -> InstrId {
        let e = self.e();
        let mut dims = self.dims(x);
        let Some(held) = dims.get(1).map(|n| most.min(*n)) else { return x };
        let cut = self.slice_axis(x, 1, 0, held);
        dims[1] = most;
        let missing = [&dims[..1], &[most - held], &dims[2..]].concat();
        let whole = match held == most {
            true => cut,
            false => e.concatenate(&[cut, e.full(self.dtype(x), &missing, 0.0)], 1),
        };
        let is_in = e.compare(Comparison::Lt, e.iota(DType::S32, &dims, 1), self.along(n, 0, &dims));
        e.select(is_in, whole, self.like(whole, 0.0))
    }
}
