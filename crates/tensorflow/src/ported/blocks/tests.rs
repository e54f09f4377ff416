//! Networks whose parts repeat, as YAML.

use super::super::network::{HeadLine, LayerLine, NetworkPort};
use super::super::yaml::layers;

/// A network of lines `NAME = KIND FIRST OPTION=VALUE… < READS…`; capitals begin names of layers without variables.
fn network(lines: &[&str]) -> NetworkPort {
    let mut network = NetworkPort { inputs: vec![("x".to_string(), vec![8, 8, 3], false)], ..NetworkPort::default() };
    for line in lines {
        let (head, reads) = line.split_once(" < ").unwrap();
        let (name, layer) = head.split_once(" = ").unwrap();
        let mut words = layer.split(' ');
        let kind = match words.next().unwrap() {
            "conv" => "conv",
            "norm" => "batch_norm",
            "relu" => "activation",
            "add" => "add",
            other => panic!("{other}"),
        };
        let first = if kind == "activation" { "relu".to_string() } else { String::new() };
        let mut layer = LayerLine {
            name: name.to_string(),
            kind,
            first,
            options: Vec::new(),
            reads: reads.split(' ').map(str::to_string).collect(),
            node: name.to_string(),
        };
        for word in words {
            match word.split_once('=') {
                Some(("k", value)) => layer.options.push(("kernel_size", value.to_string())),
                _ => layer.first = word.to_string(),
            }
        }
        if kind == "conv" || kind == "batch_norm" {
            network.names.insert(format!("{name}/kernel"), format!("{name}/kernel"));
        }
        network.layers.push(layer);
    }
    network.output = network.layers.last().unwrap().name.clone();
    network.heads.push(HeadLine {
        output: network.output.clone(),
        loss: String::new(),
        options: Vec::new(),
        labels: String::new(),
        weight: 1.0,
        node: String::new(),
        place: String::new(),
        callers: Vec::new(),
    });
    network
}

fn check(lines: &[&str], expected: &str) {
    assert_eq!(layers(&network(lines), true).trim_end(), expected.trim_matches('\n'));
}

#[test]
fn parts_behind_one_another_are_repeated_and_names_count() {
    let mut lines = vec!["conv2d = conv 4 k=3 < x".to_string()];
    let mut before = "conv2d".to_string();
    for at in 0..5 {
        let (a, b, width) = (2 * at + 1, 2 * at + 2, if at < 3 { 4 } else { 8 });
        lines.push(format!("conv2d_{a} = conv {width} k=1 < {before}"));
        lines.push(format!("bn_{at} = norm < conv2d_{a}"));
        lines.push(format!("Relu_{at} = relu < bn_{at}"));
        lines.push(format!("conv2d_{b} = conv {} k=3 < Relu_{at}", 4 * width));
        lines.push(format!("Add_{at} = add < conv2d_{b} {before}"));
        before = format!("Add_{at}");
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    check(
        &lines,
        r#"
  blocks:
    block:
      parameters: [filters, n, n_2]
      layers:
        - {conv: $filters, kernel_size: 1, name: /conv2d_$n}
        - {batch_norm: , name: /bn_$n_2}
        - {activation: relu}
        - {conv: $(4 * filters), kernel_size: 3, name: "/conv2d_$(n + 1)"}
        - {add: ["/conv2d_$(n + 1)", input]}
  layers:
    - {conv: 4, kernel_size: 3, name: conv2d}
    - {block: 4, n: $(2 * index + 1), n_2: $index, repeats: 3}
    - {block: 8, n: $(2 * index + 7), n_2: $(index + 3), repeats: 2}
"#,
    );
}

#[test]
fn a_layer_that_is_read_from_outside_keeps_its_name() {
    let stage = |n: usize, before: &str| {
        [
            format!("s{n}/conv = conv 4 k=3 < {before}"),
            format!("s{n}/Relu = relu < s{n}/conv"),
            format!("s{n}/conv_1 = conv 4 k=3 < s{n}/Relu"),
            format!("s{n}/Relu_1 = relu < s{n}/conv_1"),
        ]
    };
    let lines: Vec<String> =
        [stage(1, "x"), stage(2, "s1/Relu_1"), stage(3, "s2/Relu_1"), stage(4, "s3/Relu_1")].concat();
    let mut lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    lines.push("Add = add < s4/Relu_1 s1/Relu");
    check(
        &lines,
        r#"
  blocks:
    s_block:
      parameters: [n]
      layers:
        - {conv: 4, kernel_size: 3, name: /s$n/conv}
        - {activation: relu, name: /s$n/Relu}
        - {conv: 4, kernel_size: 3, name: /s$n/conv_1}
        - {activation: relu}
  layers:
    - {s_block: , n: $(index + 1), repeats: 4, name: s4/Relu_1}
    - {add: [s4/Relu_1, s1/Relu], name: Add}
"#,
    );
}

#[test]
fn a_network_without_repetition_has_a_line_for_each_layer() {
    let lines = ["conv2d = conv 4 k=3 < x", "Relu = relu < conv2d", "conv2d_1 = conv 4 k=3 < Relu"];
    assert_eq!(layers(&network(&lines), true), layers(&network(&lines), false));
    assert!(!layers(&network(&lines), true).contains("blocks"));
}
