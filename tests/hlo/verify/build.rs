//! Modules for the tests: a small valid one to break, and one that has every op the verifier looks into.

use bf16scope::hlo::ops::*;
use bf16scope::hlo::*;

/// A shape from its text without layouts: `f32[2,3]`, `(s32[], f32[2])`, `token[]`.
pub fn shape(text: &str) -> Shape {
    if text == "token[]" {
        return Shape::Token;
    }
    if let Some(elements) = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return Shape::Tuple(elements.split(", ").filter(|element| !element.is_empty()).map(shape).collect());
    }
    let (dtype, dims) = text.strip_suffix(']').and_then(|rest| rest.split_once('[')).expect(text);
    let dims = dims.split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().expect(text));
    Shape::array(DType::from_name(dtype).expect(text), dims.collect::<Vec<i64>>())
}

/// Appends an instruction of this name, unchecked.
pub fn add(module: &mut Module, comp: CompId, name: &str, op: Op, operands: &[InstrId], result: &str) -> InstrId {
    let id = module.append(comp, op, operands.to_vec(), shape(result), Metadata::default());
    module.computations[comp.idx()].instructions[id.idx()].name = name.to_string();
    id
}

/// An empty computation.
pub fn computation(module: &mut Module, name: &str) -> CompId {
    module.add_computation(name)
}

/// A loop over `(s32[], f32[3])`: its condition and body.
fn add_loop(module: &mut Module) -> (CompId, CompId) {
    let state = "(s32[], f32[3])";
    let condition = computation(module, "condition");
    let s = add(module, condition, "condition_state", Op::parameter(0), &[], state);
    let i = add(module, condition, "condition_i", Op::GetTupleElement { index: 0 }, &[s], "s32[]");
    let n = add(module, condition, "condition_n", Op::Constant(Literal::scalar(10i32)), &[], "s32[]");
    let less = Op::Compare { direction: Comparison::from_name("LT").unwrap(), kind: None };
    add(module, condition, "condition_less", less, &[i, n], "pred[]");
    let body = computation(module, "body");
    let s = add(module, body, "body_state", Op::parameter(0), &[], state);
    let i = add(module, body, "body_i", Op::GetTupleElement { index: 0 }, &[s], "s32[]");
    let v = add(module, body, "body_v", Op::GetTupleElement { index: 1 }, &[s], "f32[3]");
    let one = add(module, body, "body_one", Op::Constant(Literal::scalar(1i32)), &[], "s32[]");
    let next = add(module, body, "body_next", Op::Binary(BinaryOp::Add), &[i, one], "s32[]");
    add(module, body, "body_result", Op::Tuple, &[next, v], state);
    (condition, body)
}

/// A valid module: a dot, a reduction, a loop, an aliased parameter, an entry layout.
pub fn small() -> Module {
    let mut module = Module::new("main");
    let main = module.entry;
    let sum = module.scalar_computation(BinaryOp::Add, DType::F32);
    let (condition, body) = add_loop(&mut module);
    let m = &mut module;
    let x = add(m, main, "x", Op::parameter(0), &[], "bf16[8,4]");
    let w = add(m, main, "w", Op::parameter(1), &[], "f32[4,3]");
    let i = add(m, main, "i", Op::parameter(2), &[], "s32[]");
    let v = add(m, main, "v", Op::parameter(3), &[], "f32[3]");
    let s = add(m, main, "s", Op::Tuple, &[i, v], "(s32[], f32[3])");
    let wb = add(m, main, "wb", Op::Convert, &[w], "bf16[4,3]");
    let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() };
    let dot = Op::Dot { dims, precision: PrecisionConfig::default() };
    let y = add(m, main, "y", dot, &[x, wb], "f32[8,3]");
    let zero = add(m, main, "zero", Op::Constant(Literal::scalar(0f32)), &[], "f32[]");
    let reduce = Op::Reduce { dimensions: vec![0], to_apply: sum };
    let total = add(m, main, "total", reduce, &[y, zero], "f32[3]");
    let run = add(m, main, "loop", Op::While { condition, body }, &[s], "(s32[], f32[3])");
    let carry = add(m, main, "carry", Op::GetTupleElement { index: 1 }, &[run], "f32[3]");
    let out = add(m, main, "out", Op::Binary(BinaryOp::Add), &[total, carry], "f32[3]");
    add(m, main, "result", Op::Tuple, &[out, w], "(f32[3], f32[4,3])");
    module.input_output_alias =
        vec![Alias { output_index: vec![1], parameter_number: 1, parameter_index: vec![], kind: AliasKind::Must }];
    module.buffer_donors = vec![(3, vec![])];
    let parameters = ["bf16[8,4]", "f32[4,3]", "s32[]", "f32[3]"].map(|text| shape(text).with_default_layout());
    module.entry_layout = Some(EntryLayout {
        parameters: parameters.to_vec(),
        result: shape("(f32[3], f32[4,3])").with_default_layout(),
    });
    module
}

/// A valid module whose entry has the parameters and one instruction `op`.
pub fn single(op: Op, operands: &[&str], result: &str) -> Module {
    let mut module = Module::new("main");
    let main = module.entry;
    let ids: Vec<InstrId> = (0i64..)
        .zip(operands)
        .map(|(number, text)| add(&mut module, main, &format!("p{number}"), Op::parameter(number), &[], text))
        .collect();
    add(&mut module, main, "it", op, &ids, result);
    module
}

/// A convolution of NHWC data with a 3x3 kernel.
pub fn convolution() -> Convolution {
    Convolution {
        window: vec![WindowDim::of_size(3); 2],
        dims: ConvolutionDims {
            input_batch: 0,
            input_feature: 3,
            input_spatial: vec![1, 2],
            kernel_input_feature: 2,
            kernel_output_feature: 3,
            kernel_spatial: vec![0, 1],
            output_batch: 0,
            output_feature: 3,
            output_spatial: vec![1, 2],
        },
        feature_group_count: 1,
        batch_group_count: 1,
        precision: PrecisionConfig { operand_precision: vec![OperandPrecision::High; 2], algorithm: None },
    }
}

/// A valid module with every op that has attributes, operands of several kinds, or calls.
pub fn rich() -> Module {
    let mut module = small();
    let main = module.entry;
    let sum = module.find_computation("add_f32").unwrap();
    let max = module.scalar_computation(BinaryOp::Maximum, DType::F32);
    let select = comparator(&mut module, "select", 1, "GE");
    let order = comparator(&mut module, "order", 2, "LT");
    let branch = computation(&mut module, "branch");
    add(&mut module, branch, "branch_p", Op::parameter(0), &[], "f32[6]");
    let mut at = At { module: &mut module, comp: main, next: 0 };
    let pred = at.add(Op::parameter(4), &[], "pred[]");
    let index = at.add(Op::parameter(5), &[], "s32[]");
    let v = at.add(Op::parameter(6), &[], "f32[6]");
    let image = at.add(Op::parameter(7), &[], "f32[2,8,8,4]");
    let kernel = at.add(Op::parameter(8), &[], "f32[3,3,4,4]");
    let c = at.add(Op::parameter(9), &[], "f32[4]");
    let state = at.add(Op::parameter(10), &[], "u64[2]");
    let zero = InstrId(7);
    at.add(Op::Iota { dimension: 1 }, &[], "s32[2,3]");
    at.add(Op::RngBitGenerator(RngAlgorithm::ThreeFry), &[state], "(u64[2], u32[5])");
    at.add(Op::Unary(UnaryOp::from_name("exponential").unwrap()), &[v], "f32[6]");
    at.add(Op::Compare { direction: Comparison::from_name("EQ").unwrap(), kind: None }, &[v, v], "pred[6]");
    at.add(Op::Select, &[pred, v, v], "f32[6]");
    at.add(Op::Clamp, &[zero, v, zero], "f32[6]");
    at.add(Op::BitcastConvert, &[v], "u32[6]");
    at.add(Op::ReducePrecision { exponent_bits: 8, mantissa_bits: 7 }, &[v], "f32[6]");
    at.add(Op::Broadcast { dimensions: vec![1] }, &[v], "f32[2,6]");
    let matrix = at.add(Op::Reshape, &[v], "f32[2,3]");
    at.add(Op::Transpose { permutation: vec![1, 0] }, &[matrix], "f32[3,2]");
    at.add(Op::Slice(vec![SliceDim { start: 1, limit: 5, stride: 2 }]), &[v], "f32[2]");
    at.add(Op::Pad(vec![PadDim { low: 1, high: -1, interior: 1 }]), &[v, zero], "f32[11]");
    at.add(Op::Concatenate { dimension: 0 }, &[v, v], "f32[12]");
    at.add(Op::Reverse { dimensions: vec![0] }, &[v], "f32[6]");
    let piece = at.add(Op::DynamicSlice { slice_sizes: vec![2] }, &[v, index], "f32[2]");
    at.add(Op::DynamicUpdateSlice, &[v, piece, index], "f32[6]");
    let rows = at.add(Op::Iota { dimension: 0 }, &[], "s32[5,1]");
    let gather = GatherDims {
        offset_dims: vec![1],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        slice_sizes: vec![1, 3],
        ..GatherDims::default()
    };
    let gathered = at.add(Op::Gather(gather), &[matrix, rows], "f32[5,3]");
    let dims = ScatterDims {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
        ..ScatterDims::default()
    };
    at.add(Op::Scatter { dims, to_apply: sum }, &[matrix, rows, gathered], "f32[2,3]");
    let convolved = at.add(Op::Convolution(Box::new(convolution())), &[image, kernel], "f32[2,6,6,4]");
    let mut window = vec![WindowDim::of_size(1); 4];
    (window[1], window[2]) = (WindowDim { stride: 2, ..WindowDim::of_size(2) }, WindowDim::of_size(6));
    let pool = Op::ReduceWindow { window: window.clone(), to_apply: max };
    let pooled = at.add(pool, &[convolved, zero], "f32[2,3,1,4]");
    let scatter = Op::SelectAndScatter { window, select, scatter: sum };
    at.add(scatter, &[convolved, pooled, zero], "f32[2,6,6,4]");
    let norm = BatchNorm { epsilon: 1e-3, feature_index: 3 };
    at.add(Op::BatchNormTraining(norm), &[image, c, c], "(f32[2,8,8,4], f32[4], f32[4])");
    at.add(Op::BatchNormInference(norm), &[image, c, c, c, c], "f32[2,8,8,4]");
    at.add(Op::BatchNormGrad(norm), &[image, c, c, c, image], "(f32[2,8,8,4], f32[4], f32[4])");
    at.add(Op::Sort { dimension: 0, is_stable: true, to_apply: order }, &[v, v], "(f32[6], f32[6])");
    at.add(Op::Call { to_apply: branch }, &[v], "f32[6]");
    at.add(Op::Conditional(Conditional { branches: vec![branch, branch] }), &[pred, v, v], "f32[6]");
    let call = CustomCall {
        target: "target".into(),
        called: vec![branch],
        operand_layouts: vec![shape("f32[6]").with_default_layout()],
        ..CustomCall::default()
    };
    at.add(Op::CustomCall(Box::new(call)), &[v], "(f32[6], token[])");
    let all_reduce = AllReduce {
        to_apply: sum,
        replica_groups: ReplicaGroups::Iota { dims: vec![2, 2], reshape_dims: vec![4], transpose_perm: vec![0] },
        channel_id: Some(1),
        use_global_device_ids: true,
        constrain_layout: false,
    };
    at.add(Op::AllReduce(Box::new(all_reduce)), &[v, c], "(f32[6], f32[4])");
    at.add(Op::OptimizationBarrier, &[v], "f32[6]");
    let fusion = Opaque { opcode: "fusion".into(), called: vec![("calls".into(), vec![branch])] };
    let last = at.add(Op::Opaque(Box::new(fusion)), &[v], "f32[6]");
    let entry = &mut module.computations[main.idx()];
    entry.root = InstrId(12);
    entry.instructions[last.idx()].control_predecessors = vec![v];
    module.entry_layout = None;
    module
}

struct At<'m> {
    module: &'m mut Module,
    comp: CompId,
    next: usize,
}

impl At<'_> {
    fn add(&mut self, op: Op, operands: &[InstrId], result: &str) -> InstrId {
        self.next += 1;
        add(self.module, self.comp, &format!("r{}", self.next), op, operands, result)
    }
}

/// A comparison of the first two of `2 * n` f32 scalars.
pub fn comparator(module: &mut Module, name: &str, n: i64, direction: &str) -> CompId {
    let comp = computation(module, name);
    let parameters: Vec<InstrId> = (0..2 * n)
        .map(|number| add(module, comp, &format!("{name}_p{number}"), Op::parameter(number), &[], "f32[]"))
        .collect();
    let compare = Op::Compare { direction: Comparison::from_name(direction).unwrap(), kind: None };
    add(module, comp, &format!("{name}_result"), compare, &parameters[..2], "pred[]");
    comp
}
