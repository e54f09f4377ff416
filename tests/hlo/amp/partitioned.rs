//! Modules for several partitions: sums over devices are f32, and everything else is lowered as for one.

use crate::amp::corpus::corpus;
use crate::amp::known_failures::judge;
use bf16scope::hlo::{DType, Module, Op, text};
use bf16scope::passes::amp::presets::NAMES;
use bf16scope::passes::amp::{self, LoweringReport, Policy, Sums};
use std::collections::{BTreeMap, BTreeSet};

/// A training step of two layers, exported for eight cores and for one.
const EIGHT: &str = include_str!("../../data/several_cores/f32.hlo.txt");
const ONE: &str = include_str!("../../data/several_cores/f32_one.hlo.txt");

fn parse(source: &str) -> Module {
    text::parse(source, "m").unwrap()
}

fn lowered(source: &str, policy: &Policy) -> (Module, LoweringReport) {
    amp::run(&parse(source), policy).unwrap_or_else(|error| panic!("{error}"))
}

/// The dtypes of operands and results of each instruction of an opcode: `bf16 bf16 -> f32`.
fn dtypes(module: &Module, opcode: &str) -> Vec<String> {
    let computations = module.computations.iter();
    let all = computations.flat_map(|comp| comp.instructions.iter().map(move |instr| (comp, instr)));
    let name = |dtype: Option<DType>| dtype.map(|dtype| dtype.to_string()).unwrap_or_default();
    let line = |(comp, instr): (&bf16scope::hlo::Computation, &bf16scope::hlo::Instruction)| {
        let operands = instr.operands.iter().map(|&id| name(comp.instr(id).shape.dtype()));
        format!("{} -> {}", operands.collect::<Vec<_>>().join(" "), name(instr.shape.dtype()))
    };
    all.filter(|(_, instr)| instr.op.opcode() == opcode).map(line).collect()
}

#[test]
fn dots_read_bf16_and_give_f32_where_devices_may_sum() {
    let (module, report) = lowered(EIGHT, &Policy::default());
    let (sums, activations) = ("bf16 bf16 -> f32", "bf16 bf16 -> bf16");
    assert_eq!(dtypes(&module, "dot"), [activations, sums, activations, sums, sums]);
    assert_eq!((report.totals["dot"].lowered, report.totals["dot"].kept), (5, 0));
    // A gradient goes to its update as the devices summed it; the next layer's operand is rounded behind the sum.
    let entry = module.entry();
    let readers = |name: &str| -> Vec<String> {
        let id = entry.ids().find(|&id| entry.instr(id).name == name).unwrap();
        let reads = |instr: &&bf16scope::hlo::Instruction| instr.operands.contains(&id);
        let line =
            |instr: &bf16scope::hlo::Instruction| format!("{} {}", instr.shape.dtype().unwrap(), instr.op.opcode());
        entry.instructions.iter().filter(reads).map(line).collect()
    };
    for gradient in ["dot_general.7", "dot_general.9"] {
        assert_eq!(readers(gradient), ["f32 transpose"], "{gradient}");
    }
    // Another product reads these behind a fused op, so the sums are rounded anyway, as in a network written in bf16.
    for (activation, reader) in [("dot_general.5", "bf16 tanh"), ("dot_general.8", "bf16 multiply")] {
        assert_eq!(readers(activation), [reader], "{activation}");
    }
    assert_eq!(readers("dot_general.6"), ["bf16 convert"]);
    let [decision] = report.explain("dot_general.9")[..] else { panic!() };
    assert_eq!((&decision.old[..], &decision.new[..], decision.is_lowered), ("f32", "f32", true));
    assert_eq!(
        decision.rule,
        "its op is always lowered; it gives f32, as a partitioner sums over devices in the dtype that the op gives"
    );
    let casts: Vec<_> = report.casts_about("dot_general.6").iter().map(|it| (&it.of[..], &it.to[..])).collect();
    assert!(casts.contains(&("dot_general.6", "bf16")), "{casts:?}");
}

#[test]
fn sums_as_computed_and_modules_of_one_device_are_lowered_as_ever() {
    let as_computed = Policy { sums: Sums::AsComputed, ..Policy::default() };
    assert_eq!(dtypes(&lowered(EIGHT, &as_computed).0, "dot"), ["bf16 bf16 -> bf16"; 5]);
    let (module, report) = lowered(ONE, &Policy::default());
    assert_eq!(dtypes(&module, "dot"), ["bf16 bf16 -> bf16"; 5]);
    assert_eq!(module, lowered(ONE, &as_computed).0);
    assert_eq!(report.explain("dot_general.9")[0].rule, "its op is always lowered");
}

/// Under every policy that lowers dots at all, and for every way of stating that there are several partitions.
#[test]
fn every_policy_sums_in_f32() {
    let all = [NAMES.as_slice(), &["jmp:params=bf16,compute=bf16,output=bf16"]].concat();
    for name in all {
        let policy = Policy::preset(name).unwrap();
        let (module, _) = lowered(EIGHT, &policy);
        let (dots, sums) = (dtypes(&module, "dot"), dtypes(&module, "reduce"));
        assert_eq!(dots.len(), 5, "{name}");
        // Gradients of weights go to an update; operands of another product may be rounded before the sum.
        let gradients = [&dots[1], &dots[3], &dots[4]];
        assert!(
            gradients.into_iter().chain(&sums).all(|dtypes| dtypes.ends_with("-> f32")),
            "{name}: {dots:?} {sums:?}"
        );
        assert!(name == "O0" || dots.iter().all(|dtypes| !dtypes.starts_with("f32")), "{name}: {dots:?}");
        let as_computed = Policy { sums: Sums::AsComputed, ..policy };
        assert!(
            name == "O0" || dtypes(&lowered(EIGHT, &as_computed).0, "dot").iter().all(|it| !it.ends_with("-> f32")),
            "{name}"
        );
    }
    // The first gradient of a weight.
    let one = |source: &str| dtypes(&lowered(source, &Policy::default()).0, "dot")[1].clone();
    assert_eq!(one(&ONE.replacen("HloModule jit_step", "HloModule jit_step, num_partitions=2", 1)), "bf16 bf16 -> f32");
    assert_eq!(one(&ONE.replacen("HloModule jit_step", "HloModule jit_step, replica_count=2", 1)), "bf16 bf16 -> bf16");
    let whole = "parameter(2), sharding={replicated}";
    let split = ONE.replacen(whole, "parameter(2), sharding={devices=[8,1]<=[8]}", 1);
    assert_eq!(one(&split), "bf16 bf16 -> f32");
    assert!(ONE.contains(whole));
    assert_eq!(one(ONE), "bf16 bf16 -> bf16");
}

const SUMS: &str = "HloModule sums, num_partitions=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

max {
  a2 = f32[] parameter(0)
  b2 = f32[] parameter(1)
  ROOT c2 = f32[] maximum(a2, b2)
}

ENTRY main {
  x = f32[8,4,4,16]{3,2,1,0} parameter(0)
  k = f32[3,3,16,16]{3,2,1,0} parameter(1)
  zero = f32[] constant(0)
  y = f32[8,4,4,16]{3,2,1,0} convolution(x, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  z = f32[8,4,4,16]{3,2,1,0} tanh(y)
  m = f32[8,16]{1,0} reduce(z, zero), dimensions={1,2}, to_apply=max
  s = f32[16]{0} reduce(z, zero), dimensions={0,1,2}, to_apply=add
  r = f32[16]{0} all-reduce(s), replica_groups={}, to_apply=add
  i = s32[8,1]{1,0} parameter(2)
  t = f32[9,16]{1,0} broadcast(zero), dimensions={}
  ROOT g = (f32[9,16]{1,0}, f32[16]{0}) tuple(e, r)
}
";

/// Sums with one dtype for operands and result stay f32, though the policy lists them; maxima do not.
#[test]
fn sums_of_one_dtype_stay_f32() {
    let scatter = "  e = f32[9,16]{1,0} scatter(t, i, m), update_window_dims={1}, inserted_window_dims={0}, \
                   scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add\n  ROOT";
    let source = SUMS.replace("  ROOT g", &format!("{scatter} g"));
    let o3 = Policy::preset("O3").unwrap();
    let (module, report) = lowered(&source, &o3);
    assert_eq!(dtypes(&module, "convolution"), ["bf16 bf16 -> f32"]);
    assert_eq!(dtypes(&module, "reduce"), ["bf16 bf16 -> bf16", "f32 f32 -> f32"]);
    assert_eq!(dtypes(&module, "all-reduce"), ["f32 -> f32"]);
    assert_eq!(dtypes(&module, "scatter"), ["f32 s32 f32 -> f32"]);
    let why = "devices may sum what each computed of it, in the dtype that it gives";
    for sum in ["s", "r", "e"] {
        assert_eq!((report.explain(sum)[0].class, &report.explain(sum)[0].rule[..]), ("island", why), "{sum}");
    }
    let as_computed = Policy { sums: Sums::AsComputed, ..o3 };
    let (module, _) = lowered(&source, &as_computed);
    for opcode in ["convolution", "reduce", "all-reduce", "scatter"] {
        assert!(dtypes(&module, opcode).iter().all(|it| it.ends_with("-> bf16")), "{opcode}");
    }
    // An all-reduce sums over devices whether there is a partitioner or not.
    let (module, _) =
        lowered(&source.replace(", num_partitions=8", ", replica_count=8"), &Policy::preset("O3").unwrap());
    assert_eq!(dtypes(&module, "all-reduce"), ["f32 -> f32"]);
    assert_eq!(dtypes(&module, "convolution"), ["bf16 bf16 -> bf16"]);
    let is_all_reduce = |op: &Op| matches!(op, Op::AllReduce(_));
    assert!(module.entry().instructions.iter().any(|instr| is_all_reduce(&instr.op)));
}

/// As JAX writes the backward pass of a `shard_map`: each device has a part of the batch, and sums the gradients of
/// weights.
const BODY: &str = "HloModule body

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  g = f32[8,16]{1,0} parameter(0)
  x = f32[8,16]{1,0} parameter(1)
  w = f32[32,16]{1,0} parameter(2)
  h = f32[8,32]{1,0} parameter(3)
  eight = f32[] constant(8)
  eights = f32[16,32]{1,0} broadcast(eight), dimensions={}
  hidden = f32[8,32]{1,0} dot(g, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  back = f32[8,32]{1,0} multiply(hidden, h)
  moved = f32[32,16]{1,0} dot(back, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  turned = f32[16,32]{0,1} transpose(moved), dimensions={1,0}
  r1 = f32[16,32]{0,1} all-reduce(turned), replica_groups={{0,1}}, to_apply=add
  one = f32[16,32]{1,0} dot(x, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  other = f32[16,32]{1,0} dot(g, back), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  both = f32[16,32]{1,0} add(one, other)
  mean = f32[16,32]{1,0} divide(both, eights)
  r2 = f32[16,32]{1,0} all-reduce(mean), replica_groups={{0,1}}, to_apply=add
  part = f32[8,16]{1,0} dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r3 = f32[8,16]{1,0} all-reduce(part), replica_groups={{0,1}}, to_apply=add
  next = f32[8,32]{1,0} dot(r3, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT t = (f32[16,32]{0,1}, f32[16,32]{1,0}, f32[8,32]{1,0}) tuple(r1, r2, next)
}
";

/// Devices sum gradients of weights by an `all-reduce` of the program itself: these are not rounded before the sum.
#[test]
fn gradients_that_an_all_reduce_sums_are_f32() {
    let (module, _) = lowered(BODY, &Policy::default());
    let entry = module.entry();
    let dtype = |name: &str| {
        let instr = entry.instructions.iter().find(|instr| instr.name == name).unwrap();
        instr.shape.dtype().unwrap().to_string()
    };
    for gradient in ["moved", "turned", "one", "other", "both", "mean"] {
        assert_eq!(dtype(gradient), "f32", "{gradient}");
    }
    // A product reads these, the last one as devices have summed it.
    for activation in ["hidden", "part"] {
        assert_eq!(dtype(activation), "bf16", "{activation}");
    }
    assert!(dtypes(&module, "dot").iter().all(|dtypes| dtypes.starts_with("bf16 bf16 ->")));
    assert_eq!(dtypes(&module, "all-reduce"), ["f32 -> f32"; 3]);
    let (module, _) = lowered(BODY, &Policy { sums: Sums::AsComputed, ..Policy::default() });
    assert_eq!(dtypes(&module, "dot")[1], "bf16 bf16 -> bf16");
}

/// Opcodes next to the borders of `shard_map`: Shardy aborts the process if it is not a call of the body.
fn beside_borders(module: &Module) -> BTreeSet<String> {
    let mut opcodes = BTreeSet::new();
    for computation in &module.computations {
        let is_border = |op: &Op, name: &str| matches!(op, Op::CustomCall(call) if call.target == name);
        // Through elements of tuples, to the producer.
        let maker = |mut id: bf16scope::hlo::InstrId| {
            while let Op::GetTupleElement { .. } = computation.instr(id).op {
                id = computation.instr(id).operands[0];
            }
            computation.instr(id)
        };
        for instr in &computation.instructions {
            if is_border(&instr.op, "xla.sdy.LocalToGlobalShape") {
                opcodes.extend(instr.operands.iter().map(|&id| maker(id).op.opcode().into_owned()));
            }
            let reads_border = instr.operands.iter().any(|&id| is_border(&maker(id).op, "xla.sdy.GlobalToLocalShape"));
            if reads_border && !matches!(instr.op, Op::GetTupleElement { .. }) {
                opcodes.insert(instr.op.opcode().into_owned());
            }
        }
    }
    opcodes
}

#[test]
fn nothing_stands_between_the_borders_of_a_shard_map_and_its_body() {
    let step = corpus().iter().find(|step| step.name == "shard_map").unwrap();
    let before = beside_borders(&step.module);
    assert_eq!(before, BTreeSet::from(["call".to_string()]));
    let mut failing = BTreeMap::new();
    for name in NAMES {
        let (low, _) = amp::run(&step.module, &Policy::preset(name).unwrap()).unwrap();
        let now = beside_borders(&low);
        if now != before {
            failing.insert(name.to_string(), format!("{now:?} beside borders, expected {before:?}"));
        }
    }
    judge("borders", &failing);
}
