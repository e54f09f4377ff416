//! Evaluates a module of few ops, rounding to its dtypes, in less time than XLA takes to compile it, so that many can
//! be evaluated. It supports the ops of `programs` and of their gradients.

use bf16scope::hlo::ops::indexing::{GatherDims, ScatterDims};
use bf16scope::hlo::ops::{BinaryOp, Comparison, DotDims, UnaryOp};
use bf16scope::hlo::{ArrayShape, CompId, Computation, DType, Literal, Module, Op, Shape};

/// An array: its numbers in row-major order; pred is 0 or 1.
#[derive(Clone, Debug)]
struct Array {
    dtype: DType,
    dims: Vec<i64>,
    numbers: Vec<f64>,
}

/// The results of a module's entry, of arrays of f32, s32 and pred.
pub fn evaluate(module: &Module, arguments: &[Literal]) -> Vec<Literal> {
    let arguments = arguments.iter().map(|argument| vec![array(argument)]).collect();
    let literal = |array: Array| match array.dtype {
        DType::F32 => Literal::from_elements(array.dims, &array.numbers.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        DType::S32 => Literal::from_elements(array.dims, &array.numbers.iter().map(|&x| x as i32).collect::<Vec<_>>()),
        other => panic!("a result of {other}"),
    };
    run(module, module.entry(), arguments).into_iter().map(literal).collect()
}

fn array(literal: &Literal) -> Array {
    let Literal::Array { shape, .. } = literal else { panic!("no array: {literal:?}") };
    let numbers = match shape.dtype {
        DType::F32 => literal.elements::<f32>().unwrap().into_iter().map(f64::from).collect(),
        DType::BF16 => literal.elements::<half::bf16>().unwrap().into_iter().map(f64::from).collect(),
        DType::S32 => literal.elements::<i32>().unwrap().into_iter().map(f64::from).collect(),
        DType::Pred => {
            literal.elements::<bool>().unwrap().into_iter().map(|is_true| f64::from(u8::from(is_true))).collect()
        }
        other => panic!("an array of {other}"),
    };
    Array { dtype: shape.dtype, dims: shape.dims.clone(), numbers }
}

/// A number rounded to a dtype. XLA also computes bf16 in f32 and rounds the result.
fn rounded(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(x as f32),
        DType::BF16 => half::bf16::from_f32(x as f32).to_f64(),
        DType::S32 => x.trunc(),
        _ => x,
    }
}

impl Array {
    /// Computes each element from its index.
    fn from_fn(shape: &ArrayShape, number: impl Fn(&[i64]) -> f64) -> Array {
        let numbers = indices(&shape.dims).map(|index| rounded(shape.dtype, number(&index))).collect();
        Array { dtype: shape.dtype, dims: shape.dims.clone(), numbers }
    }

    fn at(&self, index: &[i64]) -> f64 {
        self.numbers[flat(&self.dims, index)]
    }

    fn scalar(&self) -> f64 {
        self.numbers[0]
    }
}

fn flat(dims: &[i64], index: &[i64]) -> usize {
    dims.iter().zip(index).fold(0, |flat, (dim, at)| flat * dim + at) as usize
}

/// All indices of an array in row-major order.
fn indices(dims: &[i64]) -> impl Iterator<Item = Vec<i64>> + use<> {
    let dims = dims.to_vec();
    (0..dims.iter().product::<i64>()).map(move |mut flat| {
        let mut index = vec![0; dims.len()];
        for (at, dim) in index.iter_mut().zip(&dims).rev() {
            (*at, flat) = (flat % dim, flat / dim);
        }
        index
    })
}

/// The parts of an index that are at `places`, or with `false` at none of them.
fn part(index: &[i64], places: &[i64], is_in: bool) -> Vec<i64> {
    let places = (0..index.len()).filter(|place| places.contains(&(*place as i64)) == is_in);
    places.map(|place| index[place]).collect()
}

/// A computation's result, as the arrays of its leaves.
fn run(module: &Module, computation: &Computation, arguments: Vec<Vec<Array>>) -> Vec<Array> {
    let mut computed: Vec<Vec<Array>> = Vec::with_capacity(computation.instructions.len());
    for instr in &computation.instructions {
        let operand = |nth: usize| computed[instr.operands[nth].idx()].clone();
        let call = |comp: CompId, arguments| run(module, module.comp(comp), arguments);
        let n = instr.operands.len();
        let results = match &instr.op {
            Op::Parameter { number, .. } => arguments[*number as usize].clone(),
            Op::Tuple => (0..n).flat_map(operand).collect(),
            Op::GetTupleElement { index } => {
                let elements = computation.instr(instr.operands[0]).shape.as_tuple().unwrap();
                let n_leaves = |element: &Shape| element.leaves().len();
                let start: usize = elements[..*index as usize].iter().map(n_leaves).sum();
                operand(0)[start..start + n_leaves(&elements[*index as usize])].to_vec()
            }
            Op::OptimizationBarrier | Op::Unary(UnaryOp::Copy) => operand(0),
            Op::Call { to_apply } => call(*to_apply, (0..n).map(operand).collect()),
            Op::While { condition, body } => {
                let mut state = operand(0);
                while call(*condition, vec![state.clone()])[0].scalar() != 0.0 {
                    state = call(*body, vec![state]);
                }
                state
            }
            Op::Conditional(conditional) => {
                let nth = if operand(0)[0].scalar() != 0.0 { 0 } else { 1 };
                call(conditional.branches[nth], vec![operand(nth + 1)])
            }
            op => {
                let operands: Vec<&Array> = instr.operands.iter().map(|id| &computed[id.idx()][0]).collect();
                vec![plain(module, op, instr.shape.as_array().unwrap(), &operands)]
            }
        };
        computed.push(results);
    }
    computed.swap_remove(computation.root.idx())
}

/// An op on arrays with one result.
fn plain(module: &Module, op: &Op, shape: &ArrayShape, operands: &[&Array]) -> Array {
    let apply = |comp: CompId, a: f64, b: f64, dtype: DType| {
        let scalar = |x: f64| vec![Array { dtype, dims: Vec::new(), numbers: vec![x] }];
        run(module, module.comp(comp), vec![scalar(a), scalar(b)])[0].scalar()
    };
    // The start of a box, clamped so that all of it is within.
    let starts = |from: usize, sizes: &[i64]| -> Vec<i64> {
        let most = operands[0].dims.iter().zip(sizes).map(|(dim, size)| dim - size);
        most.enumerate().map(|(dim, most)| (operands[from + dim].scalar() as i64).clamp(0, most)).collect()
    };
    let plus = |a: &[i64], b: &[i64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<i64>>();
    match op {
        Op::Constant(literal) => array(literal),
        Op::Iota { dimension } => Array::from_fn(shape, |index| index[*dimension as usize] as f64),
        Op::Unary(UnaryOp::Negate) => Array::from_fn(shape, |index| -operands[0].at(index)),
        Op::Unary(UnaryOp::Not) => Array::from_fn(shape, |index| 1.0 - operands[0].at(index)),
        Op::Binary(op) => Array::from_fn(shape, |index| {
            let (a, b) = (operands[0].at(index), operands[1].at(index));
            match op {
                BinaryOp::Add => a + b,
                BinaryOp::Subtract => a - b,
                BinaryOp::Multiply => a * b,
                BinaryOp::And => a.min(b),
                BinaryOp::Or | BinaryOp::Maximum => a.max(b),
                BinaryOp::Minimum => a.min(b),
                other => panic!("`{}` is not evaluated", other.name()),
            }
        }),
        Op::Compare { direction, .. } => Array::from_fn(shape, |index| {
            let (a, b) = (operands[0].at(index), operands[1].at(index));
            f64::from(u8::from(match direction {
                Comparison::Eq => a == b,
                Comparison::Ne => a != b,
                Comparison::Lt => a < b,
                Comparison::Le => a <= b,
                Comparison::Gt => a > b,
                Comparison::Ge => a >= b,
            }))
        }),
        Op::Select => Array::from_fn(shape, |index| {
            let chosen = if operands[0].dims.is_empty() { operands[0].scalar() } else { operands[0].at(index) };
            operands[if chosen != 0.0 { 1 } else { 2 }].at(index)
        }),
        Op::Clamp => Array::from_fn(shape, |index| {
            let bound = |operand: &Array| if operand.dims.is_empty() { operand.scalar() } else { operand.at(index) };
            operands[1].at(index).max(bound(operands[0])).min(bound(operands[2]))
        }),
        Op::Convert => Array::from_fn(shape, |index| operands[0].at(index)),
        Op::Broadcast { dimensions } => Array::from_fn(shape, |index| {
            operands[0].at(&dimensions.iter().map(|&dim| index[dim as usize]).collect::<Vec<_>>())
        }),
        Op::Reshape => Array { dtype: shape.dtype, dims: shape.dims.clone(), numbers: operands[0].numbers.clone() },
        Op::Transpose { permutation } => Array::from_fn(shape, |index| {
            let mut from = vec![0; index.len()];
            permutation.iter().zip(index).for_each(|(&dim, &at)| from[dim as usize] = at);
            operands[0].at(&from)
        }),
        Op::Slice(dims) => Array::from_fn(shape, |index| {
            operands[0].at(&dims.iter().zip(index).map(|(dim, at)| dim.start + dim.stride * at).collect::<Vec<_>>())
        }),
        Op::Pad(dims) => Array::from_fn(shape, |index| {
            let from = dims.iter().zip(index).zip(&operands[0].dims).map(|((dim, at), size)| {
                let at = at - dim.low;
                let is_inside = at >= 0 && at % (dim.interior + 1) == 0 && at / (dim.interior + 1) < *size;
                is_inside.then(|| at / (dim.interior + 1))
            });
            from.collect::<Option<Vec<i64>>>().map_or(operands[1].scalar(), |from| operands[0].at(&from))
        }),
        Op::Concatenate { dimension } => Array::from_fn(shape, |index| {
            let (dim, mut index) = (*dimension as usize, index.to_vec());
            for operand in operands {
                if index[dim] < operand.dims[dim] {
                    return operand.at(&index);
                }
                index[dim] -= operand.dims[dim];
            }
            unreachable!("an index is in one of the operands")
        }),
        Op::Reverse { dimensions } => Array::from_fn(shape, |index| {
            let mut from = index.to_vec();
            dimensions.iter().for_each(|&dim| from[dim as usize] = shape.dims[dim as usize] - 1 - from[dim as usize]);
            operands[0].at(&from)
        }),
        Op::DynamicSlice { slice_sizes } => {
            let start = starts(1, slice_sizes);
            Array::from_fn(shape, |index| operands[0].at(&plus(&start, index)))
        }
        Op::DynamicUpdateSlice => {
            let (mut whole, start) = (operands[0].clone(), starts(2, &operands[1].dims));
            for index in indices(&operands[1].dims) {
                let at = flat(&whole.dims, &plus(&start, &index));
                whole.numbers[at] = operands[1].at(&index);
            }
            whole
        }
        Op::Gather(dims) => Array::from_fn(shape, |index| operands[0].at(&gathered(dims, operands, index))),
        Op::Scatter { dims, to_apply } => {
            let mut whole = operands[0].clone();
            for index in indices(&operands[2].dims) {
                let to = scattered(dims, operands, &index);
                if to.iter().zip(&whole.dims).all(|(at, dim)| (0..*dim).contains(at)) {
                    let at = flat(&whole.dims, &to);
                    whole.numbers[at] = apply(*to_apply, whole.numbers[at], operands[2].at(&index), shape.dtype);
                }
            }
            whole
        }
        Op::Dot { dims, .. } => dot(dims, shape, operands),
        Op::Reduce { dimensions, to_apply } => {
            let mut whole = Array::from_fn(shape, |_| operands[1].scalar());
            for index in indices(&operands[0].dims) {
                let at = flat(&shape.dims, &part(&index, dimensions, false));
                whole.numbers[at] = apply(*to_apply, whole.numbers[at], operands[0].at(&index), shape.dtype);
            }
            whole
        }
        other => panic!("`{}` is not evaluated", other.opcode()),
    }
}

/// The index vector of a place among the indices.
fn start(indices: &Array, place: &[i64], index_vector_dim: i64) -> Vec<i64> {
    let dim = index_vector_dim as usize;
    let n = indices.dims.get(dim).copied().unwrap_or(1);
    let at = |nth: i64| {
        let mut index = place.to_vec();
        if dim < indices.dims.len() {
            index.insert(dim, nth);
        }
        indices.at(&index) as i64
    };
    (0..n).map(at).collect()
}

/// Where an array is looked up for an index of the result.
fn gathered(dims: &GatherDims, operands: &[&Array], index: &[i64]) -> Vec<i64> {
    let from = start(operands[1], &part(index, &dims.offset_dims, false), dims.index_vector_dim);
    let mut within = part(index, &dims.offset_dims, true).into_iter();
    let offset = |dim: i64| if dims.collapsed_slice_dims.contains(&dim) { 0 } else { within.next().unwrap() };
    let mut to: Vec<i64> = (0..operands[0].dims.len() as i64).map(offset).collect();
    for (&dim, from) in dims.start_index_map.iter().zip(from) {
        let dim = dim as usize;
        to[dim] += from.clamp(0, operands[0].dims[dim] - dims.slice_sizes[dim]);
    }
    to
}

/// The place of an update.
fn scattered(dims: &ScatterDims, operands: &[&Array], index: &[i64]) -> Vec<i64> {
    let from = start(operands[1], &part(index, &dims.update_window_dims, false), dims.index_vector_dim);
    let mut within = part(index, &dims.update_window_dims, true).into_iter();
    let offset = |dim: i64| if dims.inserted_window_dims.contains(&dim) { 0 } else { within.next().unwrap() };
    let mut to: Vec<i64> = (0..operands[0].dims.len() as i64).map(offset).collect();
    dims.scatter_dims_to_operand_dims.iter().zip(from).for_each(|(&dim, from)| to[dim as usize] += from);
    to
}

/// Products summed in f32, one by one, and rounded once.
fn dot(dims: &DotDims, shape: &ArrayShape, operands: &[&Array]) -> Array {
    assert!(dims.lhs_batch.is_empty(), "a dot with a batch is not evaluated");
    let contracted: Vec<i64> = dims.lhs_contracting.iter().map(|&dim| operands[0].dims[dim as usize]).collect();
    let n_free = operands[0].dims.len() - contracted.len();
    let place = |free: &[i64], by: &[i64], contracting: &[i64]| {
        let mut free = free.iter();
        let n = free.len() + by.len();
        let at = |dim: usize| match contracting.iter().position(|&contracted| contracted == dim as i64) {
            Some(nth) => by[nth],
            None => *free.next().unwrap(),
        };
        (0..n).map(at).collect::<Vec<i64>>()
    };
    Array::from_fn(shape, |index| {
        let terms = indices(&contracted).map(|by| {
            let a = operands[0].at(&place(&index[..n_free], &by, &dims.lhs_contracting));
            a * operands[1].at(&place(&index[n_free..], &by, &dims.rhs_contracting))
        });
        terms.fold(0.0, |sum, term| rounded(DType::F32, sum + term))
    })
}
