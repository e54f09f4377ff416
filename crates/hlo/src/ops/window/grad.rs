//! Gradients of windowed ops.

use super::WindowDim;
use crate::ops::grad::{Combiner, Cotangent, Cotangents, Vjp, Why, accum_dtype, combiner};
use crate::ops::grad::{comparison_computation, constant_value, sum_all};
use crate::ops::{BinaryOp, Comparison, PadDim};
use crate::{CompId, DType, Emitter, InstrId, Metadata, Op, Shape};

/// The size of `n` elements with `dilation - 1` holes between neighbours.
pub(crate) fn dilated(n: i64, dilation: i64) -> i64 {
    if n == 0 { 0 } else { (n - 1) * dilation + 1 }
}

/// Padding under which the reversed window, sliding with stride `base_dilation` over the result spread by `stride`,
/// has one position per operand element: the adjoint of sliding `dim` over `n_in` elements into `n_out` positions.
pub(crate) fn transposed_padding(dim: &WindowDim, n_in: i64, n_out: i64) -> (i64, i64) {
    let window = dilated(dim.size, dim.window_dilation);
    let low = window - 1 - dim.padding_low;
    let high = dilated(n_in, dim.base_dilation) + window - 1 - dilated(n_out, dim.stride) - low;
    (low, high)
}

/// Sums: each element's cotangent is the sum over the windows it was in. Maxima and minima: each window's cotangent
/// goes to the first element that attains it (`select-and-scatter`, in the operand's dtype, as TensorFlow's
/// `MaxPoolGrad`).
pub(crate) fn reduce_window(vjp: &Vjp<'_>, window: &[WindowDim], to_apply: CompId) -> Cotangents {
    if vjp.operands.len() != 2 {
        return Err("a windowed reduction of several arrays has no rule; reduce them one by one".into());
    }
    if vjp.wants(1) {
        return Err("the initial value of a windowed reduction also fills its padding; make it a constant".into());
    }
    let cotangent = match vjp.e.with_module(|module| combiner(module, to_apply)) {
        Combiner::Binary(BinaryOp::Add) => Ok(window_sum(vjp, window)),
        Combiner::Binary(BinaryOp::Maximum) => window_extremum(vjp, window, Comparison::Ge),
        Combiner::Binary(BinaryOp::Minimum) => window_extremum(vjp, window, Comparison::Le),
        Combiner::Binary(_) | Combiner::Compare(_) | Combiner::Second | Combiner::Other => {
            Err("only windowed sums, maxima and minima have rules".into())
        }
    };
    Ok(vec![Cotangent::Array(cotangent?), Cotangent::Zero])
}

fn window_sum(vjp: &Vjp<'_>, window: &[WindowDim]) -> InstrId {
    let (e, g) = (vjp.e, vjp.g());
    let dtype = e.dtype(g);
    let accum = accum_dtype(dtype);
    let (n_in, n_out) = (e.dims(vjp.operand(0)), e.dims(g));
    if n_out.contains(&0) {
        return e.zeros_like(vjp.operand(0));
    }
    let pads: Vec<PadDim> = (window.iter().zip(n_in.iter().zip(&n_out)))
        .map(|(dim, (&n_in, &n_out))| {
            let (low, high) = transposed_padding(dim, n_in, n_out);
            PadDim { low, high, interior: dim.stride - 1 }
        })
        .collect();
    let spread = e.pad(e.convert(g, accum), e.scalar(accum, 0.0), &pads);
    let backward = window
        .iter()
        .map(|dim| WindowDim {
            stride: dim.base_dilation,
            padding_low: 0,
            padding_high: 0,
            base_dilation: 1,
            reversal: false,
            ..*dim
        })
        .collect();
    let op = Op::ReduceWindow { window: backward, to_apply: e.scalar_computation(BinaryOp::Add, accum) };
    e.convert(e.emit(op, &[spread, e.scalar(accum, 0.0)], None), dtype)
}

fn window_extremum(vjp: &Vjp<'_>, window: &[WindowDim], direction: Comparison) -> Result<InstrId, Why> {
    let (e, g, x) = (vjp.e, vjp.g(), vjp.operand(0));
    let dtype = e.dtype(x);
    if window.iter().any(|dim| dim.window_dilation != 1 || dim.base_dilation != 1) {
        return Err("select-and-scatter, which takes a maximum's cotangent back, has no dilation; slice instead".into());
    }
    let loses_always = match (constant_value(e, vjp.operand(1)), direction) {
        (Some(init), Comparison::Ge) => init <= lowest(dtype),
        (Some(init), _) => init >= -lowest(dtype),
        (None, _) => false,
    };
    if !loses_always {
        return Err("the initial value could win a window; start from the constant -inf (for a minimum, inf)".into());
    }
    Ok(select_extremum(e, x, g, window, direction))
}

/// For each element of x the sum of the cotangents of the windows whose first largest (`Ge`) or least (`Le`) element
/// it is.
pub fn select_extremum(e: &Emitter, x: InstrId, g: InstrId, window: &[WindowDim], direction: Comparison) -> InstrId {
    let dtype = e.dtype(x);
    let zero = e.scalar(dtype, 0.0);
    let select = e.with_module_mut(|module| comparison_computation(module, direction, dtype));
    let scatter = e.scalar_computation(BinaryOp::Add, dtype);
    e.emit(Op::SelectAndScatter { window: window.to_vec(), select, scatter }, &[x, g, zero], None)
}

/// The lowest finite value of a floating-point type that gradients run in.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::from(half::f16::MIN),
        DType::BF16 => f64::from(half::bf16::MIN),
        DType::F32 => f64::from(f32::MIN),
        _ => f64::MIN,
    }
}

/// Scattering sums: linear in the source, whose cotangent is that of the element which its window selected. The array
/// that selects has none: the selected element is constant almost everywhere.
pub(crate) fn select_and_scatter(vjp: &Vjp<'_>, window: &[WindowDim], select: CompId, scatter: CompId) -> Cotangents {
    let e = vjp.e;
    let (select, scatter) = e.with_module(|module| (combiner(module, select), combiner(module, scatter)));
    if scatter != Combiner::Binary(BinaryOp::Add) {
        return Err("only a select-and-scatter that adds has a rule".into());
    }
    let direction = match select {
        Combiner::Compare(direction @ (Comparison::Ge | Comparison::Gt | Comparison::Le | Comparison::Lt)) => direction,
        _ => return Err("only a select-and-scatter that compares its elements by order has a rule".into()),
    };
    Ok(vec![
        Cotangent::Zero,
        if vjp.wants(1) { Cotangent::Array(select_and_gather(vjp, window, direction)) } else { Cotangent::Zero },
        if vjp.wants(2) {
            // The initial value is added to every element once.
            Cotangent::Array(sum_all(e, vjp.g()))
        } else {
            Cotangent::Zero
        },
    ])
}

/// For each window the element of `g` where the window's selected element of the operand is: one windowed reduction of
/// pairs.
fn select_and_gather(vjp: &Vjp<'_>, window: &[WindowDim], direction: Comparison) -> InstrId {
    let (e, g, x) = (vjp.e, vjp.g(), vjp.operand(0));
    let dtype = e.dtype(x);
    let worst = match direction {
        Comparison::Ge | Comparison::Gt => f64::NEG_INFINITY,
        Comparison::Le | Comparison::Lt | Comparison::Eq | Comparison::Ne => f64::INFINITY,
    };
    let to_apply = pair_selection(e, direction, dtype);
    let init = [e.scalar(dtype, worst), e.scalar(dtype, 0.0)];
    let op = Op::ReduceWindow { window: window.to_vec(), to_apply };
    e.get_tuple_element(e.emit(op, &[x, g, init[0], init[1]], None), 1)
}

/// The computation `(x, a, y, b) -> x direction y ? (x, a) : (y, b)` on scalars of `dtype`; made once.
fn pair_selection(e: &Emitter, direction: Comparison, dtype: DType) -> CompId {
    e.with_module_mut(|module| {
        let name = format!("select_{}_{dtype}", direction.name().to_lowercase());
        module.made_once(&name, |module, comp| {
            let scalar = Shape::scalar(dtype);
            let [x, a, y, b] = [0, 1, 2, 3].map(|number| {
                module.append(comp, Op::parameter(number), Vec::new(), scalar.clone(), Metadata::default())
            });
            let mut push = |op, operands: Vec<InstrId>, shape: Shape| {
                module.append(comp, op, operands, shape, Metadata::default())
            };
            let wins = push(Op::Compare { direction, kind: None }, vec![x, y], Shape::scalar(DType::Pred));
            let key = push(Op::Select, vec![wins, x, y], scalar.clone());
            let value = push(Op::Select, vec![wins, a, b], scalar.clone());
            push(Op::Tuple, vec![key, value], Shape::Tuple(vec![scalar.clone(), scalar.clone()]));
        })
    })
}
