//! The decisions about every op: its gradient, its precision class, and the other properties that passes query.
//!
//! There are two tables with a row for each op: [`gradient`] and, for every other question, `decisions`. They have no
//! wildcard arm, so the compiler asks for the answers when an op is added. The rules themselves are in the families.

use super::grad::{Combiner, Gradient, combiner};
use super::precision::{Amplification, Choice, Class, DeviceSum, Movement, Storage};
use super::{BinaryOp, Op, UnaryOp};
use super::{batch_norm, collective, control, conversion, convolution, dot, elementwise};
use super::{indexing, movement, reduction, window};
use crate::{CompId, Instruction, Literal, Module, Shape};

/// How reverse mode treats `op`.
pub fn gradient(op: &Op) -> Gradient<'_> {
    match op {
        Op::Parameter { .. } | Op::Constant(_) | Op::Iota { .. } => Gradient::Zero { why: "it has no operands" },
        Op::RngBitGenerator(_) => Gradient::Zero { why: "random bits are integers" },
        Op::Unary(op) => elementwise::grad::unary(*op),
        Op::Binary(op) => elementwise::grad::binary(*op),
        Op::Compare { .. } => Gradient::Zero { why: "a comparison is constant almost everywhere" },
        Op::Select => Gradient::vjp(elementwise::grad::select),
        Op::Clamp => Gradient::vjp(elementwise::grad::clamp),
        Op::Convert => Gradient::vjp(conversion::grad::convert),
        Op::BitcastConvert => Gradient::vjp(conversion::grad::bitcast_convert),
        Op::ReducePrecision { .. } => Gradient::vjp(conversion::grad::reduce_precision),
        Op::Broadcast { dimensions } => Gradient::vjp(|vjp| movement::grad::broadcast(vjp, dimensions)),
        Op::Reshape => Gradient::vjp(movement::grad::reshape),
        Op::Transpose { permutation } => Gradient::vjp(|vjp| movement::grad::transpose(vjp, permutation)),
        Op::Slice(dims) => Gradient::vjp(|vjp| movement::grad::slice(vjp, dims)),
        Op::Pad(dims) => Gradient::vjp(|vjp| movement::grad::pad(vjp, dims)),
        Op::Concatenate { dimension } => Gradient::vjp(|vjp| movement::grad::concatenate(vjp, *dimension)),
        Op::Reverse { dimensions } => Gradient::vjp(|vjp| movement::grad::reverse(vjp, dimensions)),
        Op::DynamicSlice { .. } => Gradient::vjp(indexing::grad::dynamic_slice),
        Op::DynamicUpdateSlice => Gradient::vjp(indexing::grad::dynamic_update_slice),
        Op::Gather(dims) => Gradient::vjp(|vjp| indexing::grad::gather(vjp, dims)),
        Op::Scatter { dims, to_apply } => Gradient::vjp(|vjp| indexing::grad::scatter(vjp, dims, *to_apply)),
        Op::Dot { dims, precision } => Gradient::vjp(|vjp| dot::grad::dot(vjp, dims, precision)),
        Op::Convolution(attributes) => Gradient::vjp(|vjp| convolution::grad::convolution(vjp, attributes)),
        Op::Reduce { dimensions, to_apply } => Gradient::vjp(|vjp| reduction::grad::reduce(vjp, dimensions, *to_apply)),
        Op::ReduceWindow { window, to_apply } => {
            Gradient::vjp(|vjp| window::grad::reduce_window(vjp, window, *to_apply))
        }
        Op::SelectAndScatter { window, select, scatter } => {
            Gradient::vjp(|vjp| window::grad::select_and_scatter(vjp, window, *select, *scatter))
        }
        Op::BatchNormTraining(attributes) => Gradient::vjp(|vjp| batch_norm::grad::training(vjp, attributes)),
        Op::BatchNormInference(attributes) => Gradient::vjp(|vjp| batch_norm::grad::inference(vjp, attributes)),
        Op::BatchNormGrad(attributes) => Gradient::vjp(|vjp| batch_norm::grad::gradients(vjp, attributes)),
        Op::Sort { dimension, is_stable, to_apply } => {
            Gradient::vjp(|vjp| reduction::grad::sort(vjp, *dimension, *is_stable, *to_apply))
        }
        Op::Tuple => Gradient::vjp(control::grad::tuple),
        Op::GetTupleElement { index } => Gradient::vjp(|vjp| control::grad::get_tuple_element(vjp, *index)),
        Op::Call { to_apply } => Gradient::vjp(|vjp| control::grad::call(vjp, *to_apply)),
        Op::While { condition, body } => Gradient::vjp(|vjp| vjp.called.while_loop(vjp, *condition, *body)),
        Op::Conditional(attributes) => Gradient::vjp(|vjp| control::grad::conditional(vjp, attributes)),
        Op::CustomCall(call) => Gradient::Undefined {
            why: format!("what the custom call {:?} computes is known to its back end only", call.target).into(),
        },
        Op::AllReduce(attributes) => Gradient::vjp(|vjp| collective::grad::all_reduce(vjp, attributes)),
        Op::OptimizationBarrier => Gradient::vjp(control::grad::optimization_barrier),
        Op::Opaque(opaque) => {
            Gradient::Undefined { why: format!("the meaning of opcode {:?} is not modelled", opaque.opcode).into() }
        }
    }
}

/// The decisions about an op: its row of [`decisions`].
struct Decisions {
    /// How it may be lowered.
    class: Decided<Class>,
    /// In which dtype devices sum its partial results.
    device_sum: Decided<DeviceSum>,
    /// How often it may be executed.
    execution: Execution,
    /// Whether it may be retyped inside a computation that a reduction, scatter or sort applies to scalars.
    is_retypable: bool,
    /// Why its operands and results keep their dtypes whatever its class, if they do.
    keeps_dtypes: bool,
    /// How it moves data.
    movement: Movement,
    /// Whether a TPU's compiler materialises its result (benches/tpu/policy.md says how that was measured).
    storage: Storage,
    /// Whether it computes a discrete value from numbers.
    choice: Choice,
    /// The factor by which it amplifies a rounding error.
    amplification: Amplification,
    /// Whether it gives integers where all that it reads are integers. An op that reads indices or truth values beside
    /// them is not marked.
    is_exact_on_integers: bool,
}

/// An answer to a question about an op.
enum Decided<T> {
    /// It depends on the op alone.
    Always(T),
    /// It depends on the computation that the op applies.
    By(CompId, fn(&Module, CompId) -> T),
}

impl From<Class> for Decided<Class> {
    fn from(class: Class) -> Decided<Class> {
        Decided::Always(class)
    }
}

impl<T: Copy> Decided<T> {
    fn resolve(&self, module: &Module) -> T {
        match *self {
            Decided::Always(answer) => answer,
            Decided::By(to_apply, rule) => rule(module, to_apply),
        }
    }
}

/// How often an op may be executed.
#[derive(PartialEq, Eq)]
enum Execution {
    /// Wherever its result is read: it computes each element from one element of each operand, or only places
    /// elements.
    Map,
    /// Twice, if rematerialisation asks for it.
    Repeatable,
    /// Once, or not at all if nothing reads its result.
    Once,
    /// Exactly as often as the program says.
    SideEffect,
}

impl Decisions {
    fn retypable(self, is_retypable: bool) -> Decisions {
        Decisions { is_retypable, ..self }
    }

    fn keeping_dtypes(self) -> Decisions {
        Decisions { keeps_dtypes: true, ..self }
    }

    fn moving(self, movement: Movement) -> Decisions {
        Decisions { movement, ..self }
    }

    fn stored(self, storage: Storage) -> Decisions {
        Decisions { storage, ..self }
    }

    fn choosing(self, choice: Choice) -> Decisions {
        Decisions { choice, ..self }
    }

    fn amplifying(self, amplification: Amplification) -> Decisions {
        Decisions { amplification, ..self }
    }

    fn exact_on_integers(self, is_exact_on_integers: bool) -> Decisions {
        Decisions { is_exact_on_integers, ..self }
    }

    fn summing(self, device_sum: DeviceSum) -> Decisions {
        Decisions { device_sum: Decided::Always(device_sum), ..self }
    }

    /// Devices sum by `to_apply`.
    fn combining(self, to_apply: CompId) -> Decisions {
        Decisions { device_sum: Decided::By(to_apply, sum_of_combiner), ..self }
    }
}

/// All decisions except the gradient: one row per op.
fn decisions(op: &Op) -> Decisions {
    use Class::{Clear, Infer, NotFloat};
    use Decided::By;
    use Execution::{Map, Once, Repeatable, SideEffect};
    use Movement::{Joins, Places, Repeats, TakesPart};
    use Storage::{Stored, StoredAlongLanes};
    fn row(class: impl Into<Decided<Class>>, execution: Execution) -> Decisions {
        let (class, device_sum) = (class.into(), Decided::Always(DeviceSum::Never));
        Decisions {
            class,
            device_sum,
            execution,
            is_retypable: false,
            keeps_dtypes: false,
            movement: Movement::None,
            storage: Storage::Fused,
            choice: Choice::Never,
            amplification: Amplification::None,
            is_exact_on_integers: false,
        }
    }
    let statistics = Class::island("batch statistics are sums over the batch, and its operands have one dtype");
    match op {
        Op::Parameter { .. } => row(Clear, Once).retypable(true),
        Op::Constant(literal) => row(Clear, Once).retypable(matches!(literal, Literal::Array { .. })),
        Op::Iota { .. } => row(Clear, Once).exact_on_integers(true),
        Op::RngBitGenerator(_) => row(NotFloat, Once),
        Op::Unary(op) => {
            let row = row(elementwise::precision::unary(*op), Map).retypable(true);
            let storage = if *op == UnaryOp::Exp { Storage::StoredBesideSum } else { Storage::Fused };
            let row = row.amplifying(elementwise::precision::amplified(*op)).stored(storage);
            row.exact_on_integers(elementwise::precision::unary_is_exact_on_integers(*op))
        }
        Op::Binary(op @ BinaryOp::Power) => {
            row(elementwise::precision::binary(*op), Map).retypable(true).amplifying(Amplification::Power)
        }
        Op::Binary(op) => {
            let is_exact = elementwise::precision::binary_is_exact_on_integers(*op);
            row(elementwise::precision::binary(*op), Map).retypable(true).exact_on_integers(is_exact)
        }
        Op::Compare { .. } => row(Clear, Map).retypable(true).choosing(Choice::OfOrder),
        Op::Select | Op::Clamp => row(Clear, Map).retypable(true),
        Op::Convert => row(Clear, Map).choosing(Choice::OfIntegers).exact_on_integers(true),
        Op::Broadcast { .. } => row(Clear, Map).moving(Repeats).exact_on_integers(true),
        Op::Reshape => row(Clear, Map).moving(Places).exact_on_integers(true),
        Op::BitcastConvert => row(Class::island("it reads bits, which rounding changes"), Map),
        Op::ReducePrecision { .. } => {
            row(Class::island("the program rounds here on purpose, and rounding twice differs"), Map)
        }
        Op::Transpose { .. } => row(Clear, Repeatable).moving(Places).exact_on_integers(true),
        Op::Reverse { .. } => row(Clear, Repeatable).moving(Places).stored(Stored).exact_on_integers(true),
        Op::Slice(_) => row(Clear, Repeatable).moving(TakesPart).exact_on_integers(true),
        Op::Gather(_) => row(Clear, Repeatable).moving(TakesPart).stored(Stored),
        Op::Pad(_) => row(Clear, Repeatable).moving(Joins).exact_on_integers(true),
        Op::Concatenate { .. } => row(Clear, Repeatable).moving(Joins).stored(StoredAlongLanes).exact_on_integers(true),
        Op::DynamicSlice { .. } => row(Clear, Once).moving(TakesPart),
        Op::DynamicUpdateSlice => row(Clear, Once).moving(Joins).stored(Stored),
        Op::Scatter { to_apply, .. } => {
            row(By(*to_apply, reduction::precision::scatter), Once).combining(*to_apply).stored(Stored)
        }
        Op::Dot { precision, .. } => row(product(precision), Repeatable).summing(DeviceSum::Own),
        Op::Convolution(convolution) => row(product(&convolution.precision), Repeatable).summing(DeviceSum::Own),
        Op::Reduce { to_apply, .. } => {
            let row = row(By(*to_apply, reduction::precision::reduce), Repeatable).combining(*to_apply);
            row.choosing(Choice::OfSeveral)
        }
        Op::ReduceWindow { to_apply, .. } => {
            row(By(*to_apply, reduction::precision::reduce), Repeatable).combining(*to_apply).stored(Stored)
        }
        Op::SelectAndScatter { .. } => row(Infer, Once),
        Op::BatchNormTraining(_) | Op::BatchNormGrad(_) => row(statistics, Once).summing(DeviceSum::OfOperands),
        Op::BatchNormInference(_) => row(statistics, Once),
        Op::Sort { .. } => {
            let class = Class::island("rounding makes ties, which move what is sorted along");
            row(class, Once).choosing(Choice::Always)
        }
        Op::Tuple | Op::GetTupleElement { .. } => row(Clear, Once).retypable(true),
        Op::Call { .. } | Op::OptimizationBarrier => row(Clear, Once),
        Op::While { .. } => {
            row(Class::island("what a loop carries keeps its type, but for arrays between products"), Once)
                .keeping_dtypes()
        }
        Op::Conditional(_) => {
            row(Class::island("what branches take and give keeps its type, but for arrays between products"), Once)
                .keeping_dtypes()
        }
        Op::CustomCall(call) if PLACEMENTS.contains(&&call.target[..]) => {
            row(Clear, if call.has_side_effect { SideEffect } else { Once }).moving(Places)
        }
        Op::CustomCall(call) => {
            let execution = if call.has_side_effect { SideEffect } else { Once };
            let class = Class::deny("what a custom call computes is known to its back end only");
            let row = row(class, execution).keeping_dtypes().choosing(Choice::of_call(&call.target));
            row.amplifying(Amplification::of_call(&call.target))
        }
        Op::AllReduce(all_reduce) => {
            // Devices that must keep a layout synchronise here.
            let execution = if all_reduce.constrain_layout { SideEffect } else { Once };
            row(Class::deny("it sums over devices"), execution).combining(all_reduce.to_apply)
        }
        Op::Opaque(opaque) => {
            let row = row(Class::deny("the meaning of this opcode is not modelled"), SideEffect).keeping_dtypes();
            row.choosing(Choice::of_call(&opaque.opcode)).amplifying(Amplification::of_call(&opaque.opcode))
        }
    }
}

/// The class of an op of `module`, with the reason if it is denied.
///
/// | class | ops |
/// | --- | --- |
/// | allow | `dot`, `convolution`, unless they ask for more precision than the operands would have |
/// | infer | arithmetic and functions whose result is as accurate as their operands: `add`, `multiply`, `tanh`, …; `select-and-scatter` (few values meet in one) |
/// | clear | data movement, `select`, `clamp`, `maximum`, `compare`, reductions by `maximum`; sources and tuples |
/// | deny | `exponential`, `log`, `power`, … (magnify relative or absolute errors), sums and products over many values, `all-reduce`, opaque ops |
/// | deny, not spreading | `batch-norm-*` (statistics), `sort`, loops and branches (what they carry keeps its type), `reduce-precision` and bit casts |
pub fn precision_class(module: &Module, op: &Op) -> Class {
    decisions(op).class.resolve(module)
}

/// How an op moves data.
pub fn movement(op: &Op) -> Movement {
    decisions(op).movement
}

/// Whether a TPU's compiler materialises the result of an instruction; otherwise it is computed where it is read.
pub fn is_stored(instr: &Instruction) -> bool {
    match (decisions(&instr.op).storage, &instr.op) {
        (Storage::Fused | Storage::StoredBesideSum, _) => false,
        (Storage::StoredAlongLanes, Op::Concatenate { dimension }) => *dimension + 1 == instr.shape.dims().len() as i64,
        (Storage::Stored | Storage::StoredAlongLanes, _) => true,
    }
}

/// Whether the compiler of a TPU v4 or later materialises the result of an op that a sum and another op read.
pub fn is_stored_beside_sum(op: &Op) -> bool {
    decisions(op).storage == Storage::StoredBesideSum
}

/// Whether an op computes a discrete value from numbers.
pub fn choice(op: &Op) -> Choice {
    decisions(op).choice
}

/// The factor by which an op amplifies the rounding error of its operand.
pub fn amplification(op: &Op) -> Amplification {
    decisions(op).amplification
}

/// Whether an op gives integers where all that it reads are integers.
pub fn is_exact_on_integers(op: &Op) -> bool {
    decisions(op).is_exact_on_integers
}

/// Custom calls that state how an array of any dtype is sharded: data movement. [`BORDERS`] are not among them.
const PLACEMENTS: [&str; 1] = ["Sharding"];

/// Whether an op only states how an array is sharded, such as JAX's `with_sharding_constraint`.
pub fn is_placement(op: &Op) -> bool {
    matches!(op, Op::CustomCall(call) if PLACEMENTS.contains(&&call.target[..]))
}

/// Custom calls at the borders of a body that runs on each device, such as that of JAX's `shard_map`.
const BORDERS: [&str; 4] =
    ["SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"];

/// Whether an op is the border of a body that runs on each device. XLA aborts if a cast stands between the two.
pub fn is_body_border(op: &Op) -> bool {
    matches!(op, Op::CustomCall(call) if BORDERS.contains(&&call.target[..]))
}

/// The form of a `dot` by its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotForm {
    /// A product of matrices, or of a matrix and a vector.
    Product,
    /// It contracts nothing, or an axis of size one: each element is one product, as in a `multiply`.
    Multiply,
    /// Neither operand has a free axis: each element is a sum of products, as in a `reduce` of a `multiply`.
    Sum,
}

/// The form of a `dot` whose operands and result have these numbers of elements. XLA's compilers simplify the last two
/// forms to the corresponding ops (`AlgebraicSimplifier`), so neither reaches a matrix unit.
pub fn dot_form(dims: &super::DotDims, n_operands: [i64; 2], result: &Shape) -> DotForm {
    let sizes = result.dims();
    let product = |sizes: &[i64]| sizes.iter().map(|&size| i128::from(size)).product::<i128>();
    let n_batch = product(&sizes[..dims.lhs_batch.len().min(sizes.len())]);
    let [lhs, rhs] = n_operands.map(i128::from);
    // With sizes b, m, n, k: (b·m·k)·(b·n·k) = (b·m·n)·b·k².
    match product(sizes) {
        0 => DotForm::Product,
        n_result if lhs.saturating_mul(rhs) == n_result.saturating_mul(n_batch) => DotForm::Multiply,
        n_result if n_result == n_batch => DotForm::Sum,
        _ => DotForm::Product,
    }
}

impl DotForm {
    /// The names of such a dot in a policy's lists, besides that of the op, the general one first; and its class.
    pub fn as_op(self) -> Option<(&'static [&'static str], Class)> {
        match self {
            DotForm::Product => None,
            DotForm::Multiply => Some((&["multiply"], elementwise::precision::binary(BinaryOp::Multiply))),
            DotForm::Sum => Some((&["reduce", "reduce:add"], reduction::precision::combined(BinaryOp::Add))),
        }
    }
}

/// The precision class of a dot or convolution.
fn product(precision: &super::PrecisionConfig) -> Class {
    let asks = |p: &super::OperandPrecision| *p != super::OperandPrecision::Default;
    if precision.algorithm.is_some() {
        Class::island("its algorithm fixes the dtypes")
    } else if precision.operand_precision.iter().any(asks) {
        Class::island("its operand_precision asks for more than one low-precision product")
    } else {
        Class::Allow
    }
}

/// In which dtype devices sum the partial results of an op of `module`.
///
/// # Source
/// `HandleDot`, `HandleConvolution`, `HandleReduce`, `HandleScatter` of XLA's `spmd_partitioner.cc`. Windows exchange
/// their edges with neighbours and sum nothing, unless a window is as large as its operand and becomes a `reduce`.
pub fn device_sum(module: &Module, op: &Op) -> DeviceSum {
    decisions(op).device_sum.resolve(module)
}

fn sum_of_combiner(module: &Module, to_apply: CompId) -> DeviceSum {
    match combiner(module, to_apply) {
        Combiner::Binary(BinaryOp::Maximum | BinaryOp::Minimum | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor)
        | Combiner::Compare(_)
        | Combiner::Second => DeviceSum::Never,
        Combiner::Binary(_) | Combiner::Other => DeviceSum::OfOperands,
    }
}

/// Whether an op itself, apart from its callees, does more than compute its result. An op that is not modelled may.
pub fn has_side_effect(op: &Op) -> bool {
    decisions(op).execution == Execution::SideEffect
}

/// For each computation whether running it does more than compute its result.
pub fn side_effects(module: &Module) -> Vec<bool> {
    // Callees may stand in any order: depth first, each once.
    fn visit(module: &Module, comp: CompId, known: &mut Vec<Option<bool>>) -> bool {
        if let Some(known) = known[comp.idx()] {
            return known;
        }
        known[comp.idx()] = Some(false);
        let mut effect = false;
        for instr in &module.comp(comp).instructions {
            effect |= has_side_effect(&instr.op);
            for called in instr.op.called() {
                effect |= visit(module, called, known);
            }
        }
        known[comp.idx()] = Some(effect);
        effect
    }
    let mut known = vec![None; module.computations.len()];
    (0..module.computations.len() as u32).map(|idx| visit(module, CompId(idx), &mut known)).collect()
}

/// Whether an instruction, or its callees, do more than compute its result. `of_computations` is the result of
/// [`side_effects`] for its module.
pub fn is_effective(instr: &Instruction, of_computations: &[bool]) -> bool {
    has_side_effect(&instr.op) || instr.op.called().iter().any(|comp| of_computations[comp.idx()])
}

/// Why an op's operands and results keep their dtypes whatever its class, if the reason is not precision.
pub fn keeps_dtypes(op: &Op) -> Option<&'static str> {
    match decisions(op) {
        Decisions { keeps_dtypes: true, class: Decided::Always(Class::Deny { why, .. }), .. } => Some(why),
        _ => None,
    }
}

/// Whether an op calls regions, whose parameters and results keep their dtypes: the bodies of loops, the branches of
/// conditionals.
pub fn calls_regions(op: &Op) -> bool {
    matches!(op, Op::While { .. } | Op::Conditional(_))
}

/// Whether an op may be retyped inside a computation that a reduction, scatter or sort applies to scalars: it only moves,
/// combines, compares and selects them. Such a computation is retyped as a whole or not at all.
pub fn is_retypable(op: &Op) -> bool {
    decisions(op).is_retypable
}

/// Whether an op computes each element of its result from one element of each operand: functions of elements, and
/// broadcasts and reshapes, which only place them.
pub fn is_map(op: &Op) -> bool {
    decisions(op).execution == Execution::Map
}

/// Whether an op that is not elementwise may run twice, if rematerialisation asks for it: its result depends only on
/// its operands, and so do those of its callees.
pub fn is_repeatable(op: &Op) -> bool {
    decisions(op).execution == Execution::Repeatable
}

/// The names of an op in policy lists, the general one first: `reduce`, `reduce:add`.
pub fn list_names(module: &Module, op: &Op) -> Vec<String> {
    let opcode = op.opcode().into_owned();
    let combined = match decisions(op).class {
        Decided::By(to_apply, _) => combiner_name(module, to_apply),
        Decided::Always(_) => None,
    };
    let specific = combined.map(|name| format!("{opcode}:{name}"));
    [Some(opcode), specific].into_iter().flatten().collect()
}

fn combiner_name(module: &Module, comp: CompId) -> Option<&'static str> {
    match combiner(module, comp) {
        Combiner::Binary(op) => COMBINERS.contains(&op).then(|| op.name()),
        Combiner::Compare(_) | Combiner::Second | Combiner::Other => None,
    }
}

/// Combiners that have a name in lists.
const COMBINERS: [BinaryOp; 4] = [BinaryOp::Add, BinaryOp::Multiply, BinaryOp::Maximum, BinaryOp::Minimum];

/// Every name that a list may hold. Ops that are missing (loops, sorts, bit casts, calls to unknown functions, …)
/// cannot be retyped, or would change their meaning.
pub fn all_list_names() -> Vec<String> {
    let fixed = [
        "all-reduce",
        "batch-norm-grad",
        "batch-norm-inference",
        "batch-norm-training",
        "broadcast",
        "clamp",
        "compare",
        "concatenate",
        "convolution",
        "dot",
        "dynamic-slice",
        "dynamic-update-slice",
        "gather",
        "pad",
        "reduce",
        "reduce-window",
        "reshape",
        "reverse",
        "scatter",
        "select",
        "select-and-scatter",
        "slice",
        "transpose",
    ];
    // Complex values have no narrow dtype.
    let is_unary = |op: &&UnaryOp| {
        elementwise::precision::unary(**op) != Class::NotFloat && !matches!(op, UnaryOp::Real | UnaryOp::Imag)
    };
    let is_binary =
        |op: &&BinaryOp| elementwise::precision::binary(**op) != Class::NotFloat && !matches!(op, BinaryOp::Complex);
    let float_unary = UnaryOp::ALL.iter().filter(is_unary);
    let float_binary = BinaryOp::ALL.iter().filter(is_binary);
    let combined = ["reduce", "reduce-window", "scatter"]
        .into_iter()
        .flat_map(|opcode| COMBINERS.iter().map(move |combiner| format!("{opcode}:{}", combiner.name())));
    let mut names: Vec<String> = fixed.into_iter().map(str::to_string).chain(combined).collect();
    names.extend(float_unary.map(|op| op.name().to_string()));
    names.extend(float_binary.map(|op| op.name().to_string()));
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::ops::{DotDims, OperandPrecision, PrecisionConfig, samples};

    #[test]
    fn sums_are_denied_and_maxima_are_clear() {
        let mut module = Module::new("test");
        let class = |module: &mut Module, op: BinaryOp| {
            let to_apply = module.scalar_computation(op, DType::F32);
            precision_class(module, &Op::Reduce { dimensions: vec![0], to_apply }).name()
        };
        assert_eq!(class(&mut module, BinaryOp::Add), "deny");
        assert_eq!(class(&mut module, BinaryOp::Maximum), "clear");
        let to_apply = module.scalar_computation(BinaryOp::Add, DType::F32);
        let op = Op::Reduce { dimensions: vec![0], to_apply };
        assert_eq!(list_names(&module, &op), ["reduce", "reduce:add"]);
    }

    #[test]
    fn products_that_ask_for_precision_are_not_lowered() {
        let module = Module::new("test");
        let dot = |precision| Op::Dot { dims: DotDims::default(), precision };
        assert_eq!(precision_class(&module, &dot(PrecisionConfig::default())), Class::Allow);
        let highest = PrecisionConfig { operand_precision: vec![OperandPrecision::Highest; 2], algorithm: None };
        assert_eq!(precision_class(&module, &dot(highest)).name(), "island");
        let algorithm = PrecisionConfig { algorithm: Some("dot_f32_f32_f32".into()), ..Default::default() };
        assert_eq!(precision_class(&module, &dot(algorithm)).name(), "island");
    }

    /// Every op, without attributes that ask for precision; it applies `maximum`, or the combiner in its name.
    fn every_op(module: &mut Module) -> Vec<(String, Op)> {
        let mut computation = |op: BinaryOp| module.scalar_computation(op, DType::F32);
        let combiners = [BinaryOp::Maximum, BinaryOp::Add, BinaryOp::Multiply].map(|op| (op, computation(op)));
        let mut ops = Vec::new();
        for mut op in samples::all_ops() {
            match &mut op {
                Op::Dot { precision, .. } => *precision = PrecisionConfig::default(),
                Op::Convolution(convolution) => convolution.precision = PrecisionConfig::default(),
                _ => {}
            }
            let combines = matches!(op, Op::Reduce { .. } | Op::ReduceWindow { .. } | Op::Scatter { .. });
            for (combiner, comp) in combiners.iter().take(if combines { 3 } else { 1 }) {
                op.for_each_called_mut(&mut |callee| *callee = *comp);
                let suffix = if combines { format!(":{}", combiner.name()) } else { String::new() };
                ops.push((format!("{}{suffix}", op.opcode()), op.clone()));
            }
        }
        ops
    }

    #[test]
    fn every_op_has_a_class_and_it_is_written_down() {
        let mut module = Module::new("test");
        let ops = every_op(&mut module);
        let mut rows: Vec<String> = (ops.iter())
            .map(|(name, op)| {
                let class = precision_class(&module, op);
                let why = if let Class::Deny { why, .. } = class { why } else { "" };
                let row = decisions(op);
                let moves = match row.movement {
                    Movement::None => "",
                    Movement::Places => "places",
                    Movement::Repeats => "repeats",
                    Movement::TakesPart => "takes a part",
                    Movement::Joins => "joins",
                };
                let stored = match row.storage {
                    Storage::Fused => "",
                    Storage::Stored => "yes",
                    Storage::StoredAlongLanes => "along lanes",
                    Storage::StoredBesideSum => "beside a sum",
                };
                let chooses = match row.choice {
                    Choice::Never => "",
                    Choice::Always => "yes",
                    Choice::OfSeveral => "if it gives several arrays",
                    Choice::OfIntegers => "if it gives integers",
                    Choice::OfOrder => "if it compares sizes",
                };
                let amplifies = row.amplification.name();
                let exact = if row.is_exact_on_integers { "yes" } else { "" };
                let class = class.name();
                format!("| `{name}` | {class} | {moves} | {stored} | {chooses} | {amplifies} | {exact} | {why} |\n")
            })
            .collect();
        rows.sort();
        rows.dedup();
        let table = format!(
            "# Precision classes by op\n\nWritten by `BF16SCOPE_BLESS=1 cargo test -p bf16scope-hlo --lib decisions`; the rules stand in \
             `crates/hlo/src/ops/decisions.rs` and `crates/hlo/src/ops/*/precision.rs`.\n`allow`: always lowered. `infer`: lowered \
             among lowered ops. `clear`: commutes with rounding, lowered wherever that adds no error. `deny`: f32, and \
             what is computed from it too where the policy says `deny_spreads`. `island`: f32 itself.\nA policy can change the class of most.\nHow a dtype follows from class and context stands in [HOW_PRECISION_IS_DECIDED.md](HOW_PRECISION_IS_DECIDED.md).\n[AS_TPU.md](AS_TPU.md) says how a TPU computes an \
             f32 product, whatever its class here.\n\nA bf16 scope (layers, `graph::Scope`) has rules of its own inside of \
             loops:\n\n- What a loop carries keeps its dtype: the state of an LSTM or a GRU is bf16 in every step.\n- Accumulators are f32: an LSTM's \
             cell is a sum over the steps (`in_a_bf16_scope_the_cell_is_carried_in_f32`).\n- Gradients of weights are one \
             product or sum of all steps behind the loop, in f32 (`in_a_bf16_scope_no_step_adds_to_gradients`); where `remat` adds them step by step, \
             it does so in f32.\n- `accumulate` sums the gradients of micro-batches in f32.\n\n`moves`: gives the \
             numbers that it reads. `stored`: a TPU's compiler stores what it gives, and does not make it where it is read. \
             `chooses`: makes something discrete of numbers. `amplifies`: multiplies a rounding of its operand by its \
             size, or by what is named. `custom-call` and opcodes that are not modelled choose and amplify by their names: `topk`, decompositions, solvers, `fft`. \
             `exact on integers`: gives integers where all that it reads are integers (no indices or truth values beside them); \
             by these, constant integers past 256 are followed to a product.\n\n| op | class | moves | stored | chooses | amplifies \
             | exact on integers | why |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n{}",
            rows.concat()
        );
        let path = format!("{}/../../docs/PRECISION.md", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BF16SCOPE_BLESS").is_some() {
            std::fs::write(&path, &table).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == table,
            "docs/PRECISION.md is stale: run BF16SCOPE_BLESS=1 cargo test -p bf16scope-hlo --lib decisions\n{table}"
        );
    }

    #[test]
    fn list_names_are_unique_and_name_what_is_lowered_by_default() {
        let names = all_list_names();
        let unique: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        for name in ["dot", "exponential", "reduce:add", "batch-norm-training", "tanh", "maximum"] {
            assert!(names.iter().any(|n| n == name), "{name}");
        }
        for name in ["while", "sort", "complex", "popcnt", "xor", "custom-call"] {
            assert!(!names.iter().any(|n| n == name), "{name}");
        }
    }
}
