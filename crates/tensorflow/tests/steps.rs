//! Training steps with numbers in bf16, for several cores, with norms of gradients, sums and averages over steps; and graphs that
//! only predict. `data/make_steps.py` has the scripts.

mod fixtures;
mod graphs;
mod run;

use bf16scope_hlo::ops::ReplicaGroups;
use bf16scope_hlo::{ArrayShape, BinaryOp, DType, Literal, Op, Shape, verify};
use bf16scope_tensorflow::{Choice, Graph, Note, Ported, SlipKind, lower, port};
use fixtures::unpacked;
use graphs::{dense, node, plain, read};
use half::{bf16, f16};

fn graph(name: &str) -> Graph {
    let file = format!("step_{name}.meta");
    Graph::read(&unpacked(&file), &file).unwrap()
}

fn ported(name: &str) -> Ported {
    port(&graph(name))
}

fn kinds(name: &str) -> Vec<SlipKind> {
    ported(name).slips.iter().map(|slip| slip.kind).collect()
}

/// The remark that has a text.
fn noted<'n>(notes: &'n [Note], text: &str) -> &'n Note {
    notes.iter().find(|note| note.text.contains(text)).unwrap_or_else(|| panic!("{text}: {notes:?}"))
}

/// The graph stores 0.9 as bf16's 0.8984375; port writes 0.9 and reports both. Values of a one-hot count as smoothing.
#[test]
fn labels_smoothed_in_bf16_have_the_number_that_was_written() {
    let smooth = ported("smooth");
    assert_eq!(smooth.network.label_smoothing, 0.1);
    let note = noted(&smooth.differs, "labels are smoothed in bf16 there");
    assert!(note.text.contains("which has 0.8984375 for 0.9: by 0.1015625; here by 0.1"), "{}", note.text);
    assert!(note.help.contains("`label_smoothing: 0.1015625` is the graph's"), "{}", note.help);
    let values = ported("smooth_values");
    assert_eq!(values.network.label_smoothing, 0.1);
    assert!(values.differs.iter().all(|note| !note.text.contains("smoothed in")), "{:?}", values.differs);
}

/// A program for eight cores has to sum gradients, or variables; a sum of losses that is only shown is no such sum.
#[test]
fn gradients_of_cores_that_nothing_sums_are_a_slip() {
    for name in ["cores_apart", "cores_loss"] {
        assert_eq!(kinds(name), [SlipKind::NoSumOverCores], "{name}");
        noted(&ported(name).differs, "each of 8 cores updates by its own gradients there");
    }
    for name in ["cores_gradients", "cores_variables"] {
        assert_eq!(kinds(name), [], "{name}");
    }
}

/// `CrossReplicaSum` in the dtype of its operand, over the groups that its second operand lists, or over all replicas.
#[test]
fn sums_over_cores_become_all_reduces() {
    let groups = "node { name: \"groups\" op: \"Const\" attr { key: \"value\" value { tensor { dtype: DT_INT32 tensor_shape { \
                  dim { size: 2 } dim { size: 2 } } int_val: 0 int_val: 2 int_val: 1 int_val: 3 } } } }\n";
    for (tensorflow, dtype) in [("DT_FLOAT", DType::F32), ("DT_BFLOAT16", DType::BF16)] {
        for (inputs, expected) in [(&["x", "groups"][..], vec![vec![0, 2], vec![1, 3]]), (&["x"], Vec::new())] {
            let text = node("x", "Placeholder", &[], &[("dtype", tensorflow)], Some(&[4]))
                + groups
                + &node("sum", "CrossReplicaSum", inputs, &[("T", tensorflow)], None)
                + &node("y", "Identity", &["sum"], &[("T", tensorflow)], None);
            let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
            let lowered = lower(&graph, &Choice { name: Some("y".into()), size_of: &|_, _| None }).unwrap();
            verify(&lowered.module).unwrap_or_else(|errors| panic!("{dtype}: {errors}"));
            let all = lowered.module.computations.iter().flat_map(|computation| &computation.instructions);
            let sums: Vec<_> = all
                .filter_map(|instr| match &instr.op {
                    Op::AllReduce(sum) => Some((instr, sum)),
                    _ => None,
                })
                .collect();
            let [(instr, sum)] = sums[..] else { panic!("{dtype}: {sums:?}") };
            assert_eq!(instr.shape, Shape::Array(ArrayShape::new(dtype, vec![4])), "{inputs:?}");
            assert_eq!(sum.replica_groups, ReplicaGroups::List(expected), "{inputs:?}");
            let added = lowered.module.comp(sum.to_apply);
            assert_eq!(added.instructions.last().unwrap().op, Op::Binary(BinaryOp::Add));
        }
    }
}

/// A norm in bf16 by which updates are scaled; one that is only shown scales nothing.
#[test]
fn norms_of_gradients_in_bf16_are_a_slip() {
    for name in ["norm_bf16", "norm_by_hand"] {
        assert_eq!(kinds(name), [SlipKind::Bf16GradientNorm], "{name}");
    }
    for name in ["norm_f32", "norm_shown"] {
        assert_eq!(kinds(name), [], "{name}");
    }
    for name in ["norm_bf16", "norm_f32"] {
        assert_eq!(ported(name).training.clip, "{kind: global_norm, value: 1.0}", "{name}");
    }
}

/// Keras' losses read the logits beside the softmax that the network ends with.
#[test]
fn a_last_softmax_in_bf16_is_a_slip_whatever_the_loss_reads() {
    for name in ["keras_bf16", "keras_by_hand"] {
        assert!(kinds(name).contains(&SlipKind::Bf16Loss), "{name}: {:?}", kinds(name));
    }
    assert!(!kinds("keras_f32").contains(&SlipKind::Bf16Loss));
}

/// Gradients that variables sum over four steps, with an update in a branch of either version.
#[test]
fn gradients_that_are_summed_over_steps_are_named() {
    for name in ["accumulated", "accumulated_v2", "accumulated_sum_v2"] {
        let ported = ported(name);
        assert_eq!(
            (ported.training.optimizer.as_str(), ported.training.learning_rate.as_str()),
            ("{kind: sgd}", "0.1")
        );
        let [note] = &ported.differs[..] else { panic!("{name}: {:?}", ported.differs) };
        let sums = "gradients are summed over 4 steps, in variables such as `first/kernel/sum`, before they update";
        assert!(note.text.contains(sums) && ported.missing.is_empty(), "{name}: {note:?}");
        let is_sum = note.help.contains("takes their sum, so that the loss counts 4 times here");
        assert_eq!(is_sum, name == "accumulated_sum_v2", "{}", note.help);
        let text = ported.experiment.unwrap();
        assert!(text.contains("  batch: 32\n") && text.contains("  accumulate: 4\n"), "{name}: {text}");
        assert_eq!(text.contains("weight: 4.0"), is_sum, "{name}: {text}");
    }
}

/// Averages that wait for the training op, or that a group runs with it, are of the step; others are said.
#[test]
fn averages_are_of_the_step_or_are_said() {
    for (name, is_in_step) in [("average_waits", true), ("average_grouped", true), ("average_beside", false)] {
        let graph = graph(name);
        let lowered = lower(&graph, &Choice { name: None, size_of: &|_, _| None }).unwrap();
        let averages = lowered.roles.results.iter().filter(|result| result.name.ends_with("/ExponentialMovingAverage"));
        assert_eq!(averages.count(), if is_in_step { 4 } else { 0 }, "{name}");
        let ported = port(&graph);
        assert_eq!(ported.training.average, "{decay: 0.999}");
        let left_out = "4 variables such as `first/kernel/ExponentialMovingAverage` are assigned by ops that no training op \
                        waits for";
        match is_in_step {
            true => assert!(ported.differs.is_empty(), "{name}: {:?}", ported.differs),
            false => {
                let note = noted(&ported.differs, left_out);
                assert!(
                    note.help.starts_with("`--fetch Momentum,ExponentialMovingAverage` runs them"),
                    "{}",
                    note.help
                );
            }
        }
    }
}

/// A graph without a loss: its one output is its end, and without layers it is said what there is.
#[test]
fn a_graph_that_only_predicts_says_so() {
    let float = [("dtype", "DT_FLOAT")];
    let network = node("features", "Placeholder", &[], &float, Some(&[8, 4]))
        + &dense("classes", 3)
        + &node("bias", "VarHandleOp", &[], &float, Some(&[3]))
        + &node("bias/read", "ReadVariableOp", &["bias"], &float, None)
        + &node("bias/read_1", "ReadVariableOp", &["bias"], &float, None)
        + &plain("sum", "BiasAdd", &["classes/MatMul", "bias/read"])
        + &plain("probabilities", "Softmax", &["sum"]);
    let ported = read(&network);
    assert_eq!((ported.missing.len(), ported.variables.unmapped.len()), (0, 0), "{:?}", ported.missing);
    let note = noted(&ported.differs, "the graph only predicts; it ends here as one trained by sparse_softmax");
    assert_eq!((note.node.as_str(), note.is_in_step), ("sum", true));
    // Classes are chosen by what the loss reads.
    let classes = read(&network.replace("\"Softmax\"", "\"ArgMax\""));
    assert_eq!((classes.network.loss.as_str(), classes.variables.unmapped.len()), ("sparse_softmax_cross_entropy", 0));
    let text = node("x", "Placeholder", &[], &float, Some(&[8, 4])) + &plain("y", "Sin", &["x"]);
    let ported = read(&text);
    let note = noted(&ported.missing, "the graph has no loss and no gradients");
    assert!(note.text.ends_with("it has 1 input, 0 variables and 0 functions") && note.is_in_step, "{}", note.text);
}

/// TensorFlow 2.15.1's own XLA gives these in f16 and bf16, on both sides of the bound from which softplus(x) is x. Its kernel of
/// ops without XLA has another bound in f16, since Eigen's ε of f16 was 2^-13.
#[test]
fn softplus_has_xlas_bound_in_sixteen_bits() {
    let softplus = |dtype: &str, x: Literal| {
        let n = x.shape().dims()[0];
        let text = node("x", "Placeholder", &[], &[("dtype", dtype)], Some(&[n]))
            + &node("y", "Softplus", &["x"], &[("T", dtype)], None);
        let graph = Graph::read(text.as_bytes(), "g.pbtxt").unwrap();
        let lowered = lower(&graph, &Choice { name: None, size_of: &|_, _| None }).unwrap();
        run::f32s(&run::run(&lowered.module, &[x]).unwrap()[0])
    };
    let x = [4.925_781_3, 4.929_687_5, 4.933_593_8, -4.929_687_5, -4.933_593_8, 6.5f32].map(f16::from_f32);
    let expected = [4.93359375, 4.9375, 4.93359375, 0.0072021484375, 0.0072021484375, 6.5];
    assert_eq!(softplus("DT_HALF", Literal::from_elements([6], &x)), expected);
    let x = [2.828125, 2.84375, 2.859375, 2.875, -2.84375, -2.859375, -2.875f32].map(bf16::from_f32);
    let expected = [2.890625, 2.890625, 2.859375, 2.875, 0.056396484375, 0.057373046875, 0.056396484375];
    assert_eq!(softplus("DT_BFLOAT16", Literal::from_elements([7], &x)), expected);
}
