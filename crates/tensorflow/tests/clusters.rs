//! Graphs of a host and its TPU: what is lowered of them, and what the host does with the input.

mod fixtures;
mod graphs;
mod run;

use bf16scope_hlo::Literal;
use bf16scope_tensorflow::{Choice, Graph, Lowered, Ported, SlipKind, lower, port, port_with_batch};
use fixtures::unpacked;
use graphs::{dense, gradients, node, number, plain, read, with};
use run::{f32s, run};

/// Nodes in a TPU program, each on its line.
fn inside(cluster: &str, nodes: &str) -> String {
    nodes.lines().map(|node| with(node, "_tpu_replicate", &format!("s: {cluster:?}"))).collect()
}

fn lowered(text: &str, name: Option<&str>) -> Result<Lowered, String> {
    let graph = Graph::read(text.as_bytes(), "g").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let choice = Choice { name: name.map(str::to_string), size_of: &|_, _| None };
    lower(&graph, &choice).map_err(|error| error.to_string())
}

fn results(text: &str, name: Option<&str>) -> Vec<String> {
    let lowered = lowered(text, name).unwrap_or_else(|error| panic!("{error}\n{text}"));
    lowered.roles.results.into_iter().map(|result| result.name).collect()
}

/// As `tpu.replicate` makes it: an input for each of two replicas, `op` in the program, and what each of them gives.
fn replicated(cluster: &str, op: &str) -> String {
    let name = |part: &str| format!("{cluster}/{part}");
    let input = |part: &str| node(&name(part), "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[2]));
    let result = with(&plain(&name("output"), "TPUReplicatedOutput", &[&name("y")]), "num_replicas", "i: 2");
    input("x0")
        + &input("x1")
        + &plain(&name("input"), "TPUReplicatedInput", &[&name("x0"), &name("x1")])
        + &inside(
            cluster,
            &(node(&name("metadata"), "TPUReplicateMetadata", &[], &[], None)
                + &plain(&name("replicated_input"), "Identity", &[&name("input")])
                + &plain(&name("y"), op, &[&name("replicated_input")])),
        )
        + &node(&name("status"), "TPUCompilationResult", &[&format!("^{}", name("metadata"))], &[], None)
        + &result
        + &plain(&name("shard_0"), "Identity", &[&name("output")])
        + &plain(&name("shard_1"), "Identity", &[&format!("{}:1", name("output"))])
}

/// The host's nodes: an iterator and the infeed, which are no results.
fn host() -> String {
    node("iterator", "IteratorV2", &[], &[], None)
        + &node("next", "IteratorGetNext", &["iterator"], &[], None)
        + &node("enqueue", "InfeedEnqueueTuple", &["next"], &[], None)
        + &node("shuffled", "ShuffleDatasetV3", &["next"], &[], None)
}

#[test]
fn a_tpu_program_is_what_is_lowered_of_its_graph() {
    let graph = host() + &replicated("cluster", "Neg");
    assert_eq!(results(&graph, None), ["cluster/y"]);
    // The inputs are those of one replica.
    let inputs = lowered(&graph, None).unwrap().roles.inputs;
    assert_eq!(inputs.into_iter().map(|input| input.name).collect::<Vec<_>>(), ["cluster/x0"]);
    // Values for the outfeed are results.
    let outfeed = plain("cluster/abs", "Abs", &["cluster/y"])
        + &node("cluster/outfeed", "OutfeedEnqueueTuple", &["cluster/abs"], &[], None);
    assert_eq!(results(&(graph + &inside("cluster", &outfeed)), None), ["cluster/y", "cluster/abs"]);
    // Without a TPU program it is what nothing reads, but for the host's.
    let input = node("x", "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[2]));
    assert_eq!(results(&(host() + &input + &plain("y", "Neg", &["x"])), None), ["y"]);
}

#[test]
fn one_of_several_tpu_programs_is_named() {
    let graph = replicated("cluster", "Neg") + &replicated("cluster_1", "Exp");
    assert_eq!(
        lowered(&graph, None).unwrap_err(),
        "g: it has 2 TPU programs: cluster, cluster_1\nhelp: name the one that is meant, `--fetch cluster`"
    );
    assert_eq!(results(&graph, Some("cluster_1")), ["cluster_1/y"]);
    assert_eq!(
        lowered(&graph, Some("program")).unwrap_err(),
        "g: it has no signature, tensor or op `program`\nhelp: name a signature, a tensor or an op of the graph, or a TPU \
         program: cluster, cluster_1"
    );
}

/// A cross-entropy of the classes of `features`, which is differentiated.
fn trained(features: &str, n_examples: i64) -> String {
    node("class", "Placeholder", &[], &[("dtype", "DT_INT32")], Some(&[n_examples]))
        + &dense("classes", 3).replace("\"features\"", &format!("{features:?}"))
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["classes/MatMul", "class"])
        + &plain("mean", "Mean", &["entropy"])
        + &gradients("mean")
}

/// A training loop of version 2 has its network in the function of its body.
#[test]
fn the_network_of_a_loop_is_that_of_its_body() {
    let feed = node("features", "InfeedDequeueTuple", &[], &[], None);
    let feed = with(&feed, "dtypes", "list { type: DT_FLOAT type: DT_INT32 }");
    let feed = with(&feed, "shapes", "list { shape { dim { size: 8 } dim { size: 4 } } shape { dim { size: 8 } } }");
    let body = feed
        + &number("rate", 0.1)
        + &node("read", "ReadVariableOp", &["kernel"], &[("dtype", "DT_FLOAT")], None)
        + &plain("product", "MatMul", &["features:components:0", "read:value:0"])
        + &plain("entropy", "SparseSoftmaxCrossEntropyWithLogits", &["product:product:0", "features:components:1"])
        + &plain("mean", "Mean", &["entropy:loss:0"])
        + &number("gradients/grad_ys_0", 1.0)
        + &plain("gradients/mean_grad/Tile", "Neg", &["gradients/grad_ys_0:output:0"])
        + &plain("step", "ResourceApplyGradientDescent", &["kernel", "rate:output:0", "gradients/mean_grad/Tile:y:0"]);
    let trip = "function { signature { name: \"trip\" input_arg { name: \"loss\" type: DT_FLOAT } \
                input_arg { name: \"kernel\" type: DT_RESOURCE } output_arg { name: \"a\" type: DT_FLOAT } \
                output_arg { name: \"b\" type: DT_RESOURCE } } "
        .to_string()
        + &body.replace("node {", "node_def {")
        + "ret { key: \"a\" value: \"mean:z:0\" } ret { key: \"b\" value: \"kernel\" } \
           control_ret { key: \"step\" value: \"step\" } }";
    let graph = number("zero", 0.0)
        + &node("dense/kernel", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3]))
        + &with(&node("metadata", "TPUReplicateMetadata", &[], &[], None), "num_replicas", "i: 2")
        + &calls(&plain("loop", "While", &["zero", "dense/kernel"]), "body", "trip")
        + &format!("library {{ {trip} }}");
    let ported = read(&graph);
    assert_eq!(ported.training.optimizer, "{kind: sgd}", "{:?}", ported.missing);
    let text = ported.experiment.unwrap();
    assert!(
        text.contains("  inputs:\n    features: [4]\n  layers:\n    - {dense: 3, use_bias: false, name: dense}\n"),
        "{text}"
    );
    assert!(text.contains("  batch: 16\n") && text.contains("mesh: {data: 2}\n"), "{text}");
}

/// An experiment is of one replica: inputs that only the others read are left out.
#[test]
fn inputs_of_other_replicas_are_none_of_the_experiment() {
    let input = |name: &str| node(name, "Placeholder", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 4]));
    let graph = input("x0")
        + &input("x1")
        + &plain("replicated", "TPUReplicatedInput", &["x0", "x1"])
        + &with(&node("metadata", "TPUReplicateMetadata", &[], &[], None), "num_replicas", "i: 2")
        + &trained("replicated", 4);
    let text = read(&graph).experiment.unwrap();
    assert!(text.contains("  inputs:\n    x0: [4]\n  layers:\n"), "{text}");
    assert!(text.contains("  batch: 8\n") && text.contains("mesh: {data: 2}\n"), "{text}");
}

/// The batch of an experiment: the one asked for, else the inputs', else the pipeline's, else ours, with a remark.
#[test]
fn the_batch_is_the_one_asked_for_or_the_graphs() {
    const FIXED: &str = "shape { dim { size: 8 } dim { size: 4 } } shape { dim { size: 8 } }";
    let graph = pipeline("DT_FLOAT").replace("int64_val: 8 ", "int64_val: 16 ") + &trained("get", 8);
    let open = graph.replace(FIXED, "shape { dim { size: -1 } dim { size: 4 } } shape { dim { size: -1 } }");
    assert_ne!(graph, open);
    let unbatched = open.replace("\"BatchDatasetV2\"", "\"UnbatchDataset\"");
    for (text, asked, batch) in [
        (&graph, None, 8),
        (&graph, Some(24), 24),
        (&open, None, 16),
        (&open, Some(24), 24),
        (&unbatched, Some(24), 24),
        (&unbatched, None, 32),
    ] {
        let ported = port_with_batch(&Graph::read(text.as_bytes(), "g").unwrap(), asked);
        let written = ported.experiment.unwrap();
        assert!(written.contains(&format!("\n  batch: {batch}\n")), "{asked:?} {batch}: {written}");
        let is_noted = ported.differs.iter().any(|note| note.text == "the graph leaves its batch open; here it is 32");
        assert_eq!(is_noted, batch == 32, "{:?}", ported.differs);
    }
}

/// `while i < 3: total += infeed`, as `tpu.repeat` writes it: each trip has another batch, so one is lowered.
#[test]
fn a_loop_that_an_infeed_feeds_is_a_step() {
    let feed = node("feed", "InfeedDequeue", &["^pivot"], &[("dtype", "DT_FLOAT")], Some(&[]));
    let body = number("zero", 0.0)
        + &number("one", 1.0)
        + &number("three", 3.0)
        + &plain("enter_i", "Enter", &["zero"])
        + &plain("enter_total", "Enter", &["zero"])
        + &plain("enter_one", "Enter", &["one"])
        + &plain("enter_three", "Enter", &["three"])
        + &plain("merge_i", "Merge", &["enter_i", "next_i"])
        + &plain("merge_total", "Merge", &["enter_total", "next_total"])
        + &plain("less", "Less", &["merge_i", "enter_three"])
        + &plain("go_on", "LoopCond", &["less"])
        + &plain("switch_i", "Switch", &["merge_i", "go_on"])
        + &plain("switch_total", "Switch", &["merge_total", "go_on"])
        + &plain("pivot", "Identity", &["switch_i:1"])
        + &feed
        + &plain("add_i", "Add", &["pivot", "enter_one"])
        + &plain("add_total", "Add", &["switch_total:1", "feed"])
        + &plain("next_i", "NextIteration", &["add_i"])
        + &plain("next_total", "NextIteration", &["add_total"])
        + &plain("exit", "Exit", &["switch_total"]);
    let output = plain("output", "TPUReplicatedOutput", &["exit"]);
    let lowered = lowered(&(inside("cluster", &body) + &output), None).unwrap();
    assert_eq!(lowered.roles.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["feed"]);
    let total = run(&lowered.module, &[Literal::scalar(5.0f32)]).unwrap();
    assert_eq!(f32s(&total[0]), [5.0]);
}

/// A function of scalars of f32 as text; its results are named by the nodes that give them.
fn function(name: &str, arguments: &[&str], nodes: &str, results: &[&str]) -> String {
    let described = |key: &str, name: &str| format!("{key} {{ name: {name:?} type: DT_FLOAT }} ");
    let inputs: String = arguments.iter().map(|name| described("input_arg", name)).collect();
    let outputs: String = results.iter().map(|name| described("output_arg", &format!("{name}_out"))).collect();
    let returns = results.iter().map(|name| format!("ret {{ key: \"{name}_out\" value: \"{name}:z:0\" }} "));
    let nodes = nodes.replace("node {", "node_def {");
    format!("function {{ signature {{ name: {name:?} {inputs}{outputs}}} {nodes}{}}} ", returns.collect::<String>())
}

fn calls(node: &str, key: &str, name: &str) -> String {
    with(node, key, &format!("func {{ name: {name:?} }}"))
}

/// `while i < 3: total += batch` of version 2; `batch` is a node of the body.
fn loop_of_functions(batch: &str, functions: &str) -> String {
    let condition = number("three", 3.0) + &plain("less", "Less", &["i", "three:output:0"]);
    let body = number("one", 1.0)
        + batch
        + &plain("next", "Add", &["i", "one:output:0"])
        + &plain("sum", "Add", &["total", "batch:output:0"]);
    let node = calls(&calls(&plain("loop", "While", &["zero", "zero"]), "cond", "go_on"), "body", "trip");
    let functions = function("go_on", &["i", "total"], &condition, &["less"])
        + &function("trip", &["i", "total"], &body, &["next", "sum"])
        + functions;
    number("zero", 0.0) + &node + &format!("library {{ {functions} }}")
}

#[test]
fn a_loop_of_version_2_that_an_infeed_feeds_is_a_step() {
    let feed = |name: &str| {
        let feed = node(name, "InfeedDequeueTuple", &[], &[], None);
        with(&with(&feed, "dtypes", "list { type: DT_FLOAT }"), "shapes", "list { shape {} }")
    };
    let call = calls(&plain("batch", "PartitionedCall", &[]), "f", "feeding");
    let feeding = function("feeding", &[], &feed("feed"), &["feed"]);
    for (graph, name) in [
        (loop_of_functions(&feed("batch"), ""), "batch"),
        // The body calls the function that takes the batch.
        (loop_of_functions(&call, &feeding), "feed"),
    ] {
        let lowered = lowered(&graph, Some("loop:1")).unwrap();
        assert_eq!(lowered.roles.inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), [name]);
        let total = run(&lowered.module, &[Literal::scalar(5.0f32)]).unwrap();
        assert_eq!(f32s(&total[0]), [5.0]);
    }
    // Two calls would take two batches.
    let feed = with(&feed("feed"), "_bf16scope_source", "s: \"model.py:12\"");
    let feeding = function("feeding", &[], &feed, &["feed"]);
    let twice = call.clone() + &call.replace("\"batch\"", "\"other\"") + &plain("sum", "Add", &["batch", "other"]);
    assert_eq!(
        lowered(&(twice + &format!("library {{ {feeding} }}")), Some("sum")).unwrap_err(),
        "g: node `batch` (PartitionedCall): in its function, `feed` (model.py:12) is `InfeedDequeueTuple`, which does \
         not become HLO here\nhelp: a batch is an input where one node takes it once: outside of branches, conditions of \
         loops and functions that are called twice; take it there, and hand it in"
    );
}

fn whole(name: &str, value: i64) -> String {
    format!(
        "node {{ name: {name:?} op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_INT64 tensor_shape {{}} \
         int64_val: {value} }} }} }} }}\n"
    )
}

fn truth(name: &str, value: bool) -> String {
    format!(
        "node {{ name: {name:?} op: \"Const\" attr {{ key: \"value\" value {{ tensor {{ dtype: DT_BOOL tensor_shape {{}} \
         bool_val: {value} }} }} }} }}\n"
    )
}

/// A pipeline as TPUEstimator makes it, whose map casts to `dtype`, and a network in bf16 that it feeds.
fn pipeline(dtype: &str) -> String {
    let map = with(&node("map", "ParallelMapDatasetV2", &["shuffle", "n"], &[], None), "f", "func { name: \"parse\" }");
    let get = node("get", "IteratorGetNext", &["iterator"], &[], None);
    let get = with(&get, "output_types", &format!("list {{ type: {dtype} type: DT_INT32 }}"));
    let shapes = "list { shape { dim { size: 8 } dim { size: 4 } } shape { dim { size: 8 } } }";
    let cast = node("cast", "Cast", &["x"], &[("SrcT", "DT_UINT8"), ("DstT", dtype)], None);
    let cast = with(&cast, "_bf16scope_source", "list { s: \"input.py:7\" s: \"train.py:40\" }");
    whole("n", 100)
        + &whole("size", 8)
        + &truth("drop", true)
        + &node("slices", "TensorSliceDataset", &["n"], &[], None)
        + &node("shuffle", "ShuffleDatasetV3", &["slices", "n", "n", "n", "n"], &[], None)
        + &map
        + &node("batch", "BatchDatasetV2", &["map", "size", "drop"], &[], None)
        + &node("options", "OptionsDataset", &["batch"], &[], None)
        + &node("iterator", "IteratorV2", &[], &[], None)
        + &node("make", "MakeIterator", &["options", "iterator"], &[], None)
        + &with(&get, "output_shapes", shapes)
        + &node("w", "VarHandleOp", &[], &[("dtype", "DT_FLOAT")], Some(&[4, 3]))
        + &node("y", "MatMul", &["get", "w"], &[("T", "DT_BFLOAT16")], None)
        + &format!(
            "library {{ function {{ signature {{ name: \"parse\" input_arg {{ name: \"x\" }} output_arg {{ name: \"y\" }} }} \
             {} ret {{ key: \"y\" value: \"cast:y:0\" }} }} }}",
            cast.replace("node {", "node_def {")
        )
}

#[test]
fn an_input_pipeline_is_shown_with_the_cast_of_its_map() {
    let steps = |ported: &Ported| ported.pipeline.iter().map(|step| step.text.clone()).collect::<Vec<String>>();
    let cast = read(&pipeline("DT_BFLOAT16"));
    assert_eq!(steps(&cast), ["tensor slice", "shuffle 100", "map", "cast bf16", "batch 8, drop remainder"]);
    let place = &cast.pipeline[3].place;
    assert_eq!((place.node.as_str(), place.line.as_str()), ("cast", "input.py:7"));
    assert_eq!(place.callers, ["train.py:40"]);
    assert!(cast.differs.iter().all(|note| !note.text.contains("the host hands")), "{:?}", cast.differs);
    // 8 · 4 elements of 4 bytes, without the labels.
    let wide = read(&pipeline("DT_FLOAT"));
    assert_eq!(steps(&wide), ["tensor slice", "shuffle 100", "map", "batch 8, drop remainder"]);
    let note = wide.differs.iter().find(|note| note.text.contains("the host hands")).expect("the host does not cast");
    assert_eq!(
        note.text,
        "the host hands f32 features to a network in bf16, 128 bytes a batch, and 64 as bf16; here the loader casts them on the host"
    );
    assert_eq!(note.node, "get");
}

/// A cast of what an iterator gives: on the host of a TPU program it is where it belongs, and else it is on the device.
#[test]
fn a_cast_on_the_host_of_a_tpu_is_no_slip() {
    let graph = |network: &str| {
        let nodes = pipeline("DT_FLOAT").replace("input: \"get\" input: \"w\"", "input: \"narrow\" input: \"w\"");
        let cast = node("narrow", "Cast", &["get"], &[("SrcT", "DT_FLOAT"), ("DstT", "DT_BFLOAT16")], None);
        let collection = "collection_def { key: \"train_op\" value { node_list { value: \"y\" } } }";
        format!("graph_def {{ {nodes} {cast} {network} }} {collection}")
    };
    let kinds = |ported: &Ported| ported.slips.iter().map(|slip| slip.kind).collect::<Vec<_>>();
    let alone = read(&graph(""));
    assert_eq!(kinds(&alone), [SlipKind::CastOnDevice]);
    let beside = read(&graph(&inside("cluster", &plain("z", "Relu", &["y"]))));
    assert_eq!(kinds(&beside), []);
    assert_eq!(beside.pipeline.last().unwrap().text, "cast bf16");
}

/// A graph that TensorFlow made: `tpu.replicate` on two replicas, a loop with an infeed, and a pipeline that casts.
#[test]
fn tensorflows_own_graph_of_a_tpu_is_lowered_as_a_step() {
    let bytes = unpacked("tpu_cluster.meta");
    let graph = Graph::read(&bytes, "tpu_cluster.meta").unwrap();
    let lowered = lower(&graph, &Choice { name: None, size_of: &|_, _| None }).unwrap();
    let inputs: Vec<String> = lowered.roles.inputs.iter().map(|input| input.shape.to_string()).collect();
    assert_eq!(inputs, ["bf16[4,4]", "s32[4]"]);
    let steps: Vec<String> = port(&graph).pipeline.into_iter().map(|step| step.text).collect();
    assert_eq!(steps, ["tensor slice", "shuffle 20", "map", "cast bf16", "batch 8, drop remainder", "repeat"]);
}

/// A one-shot iterator has its datasets in a function.
#[test]
fn the_pipeline_of_a_one_shot_iterator_is_shown() {
    let ported = port(&Graph::read(&unpacked("once.meta"), "once.meta").unwrap());
    let steps: Vec<&str> = ported.pipeline.iter().map(|step| step.text.as_str()).collect();
    assert_eq!(steps, ["tensor slice", "repeat", "map", "batch 8, drop remainder", "prefetch"]);
    assert!(ported.differs.iter().any(|note| note.text.contains("128 bytes a batch, and 64 as bf16")), "{ported:?}");
}

/// A list of lines in the tracer's attribute: the innermost is shown, and the others are kept.
#[test]
fn a_slip_has_the_lines_that_led_to_it() {
    let variable = node("w", "VariableV2", &[], &[("dtype", "DT_BFLOAT16")], Some(&[4]));
    let list = "list { s: \"model.py:12\" s: \"train.py:40\" s: \"main.py:3\" }";
    for (value, callers) in [(list, &["train.py:40", "main.py:3"][..]), ("s: \"model.py:12\"", &[])] {
        let ported = read(&with(&variable, "_bf16scope_source", value));
        assert_eq!(ported.slips[0].place, "model.py:12");
        assert_eq!(ported.slips[0].callers, callers);
    }
}
