//! Fuzzes the lowering rules: graphs with mutated wiring, attributes and constants must lower or fail without a panic.

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use prost::Message as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::messages::{AttrKind, GraphDef, NodeDef, TensorShape};
use crate::{Choice, Graph, lower};
use bf16scope_hlo::verify;

const OPS: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ops.pb.gz"));
const MORE: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/more.pb.gz"));
const IMAGES: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/images.pb.gz"));

fn graph(packed: &[u8]) -> GraphDef {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    GraphDef::decode(&bytes[..]).unwrap()
}

const NUMBERS: [i64; 12] = [0, 1, -1, 2, 3, 5, 7, -2, 64, i64::MAX, i64::MIN, 1 << 31];

fn number(rng: &mut StdRng) -> i64 {
    NUMBERS[rng.random_range(0..NUMBERS.len())]
}

fn mix_shape(shape: &mut TensorShape, rng: &mut StdRng) {
    match rng.random_range(0..4) {
        0 => shape.unknown_rank = true,
        1 => drop(shape.dim.pop()),
        2 => shape.dim.extend(shape.dim.first().cloned()),
        _ => shape.dim.iter_mut().for_each(|dim| dim.size = if rng.random_bool(0.5) { number(rng) } else { dim.size }),
    }
}

fn mix_attr(kind: &mut AttrKind, rng: &mut StdRng) {
    match kind {
        AttrKind::I(value) => *value = number(rng),
        AttrKind::F(value) => *value = [f32::NAN, 0.0, -1.0, f32::INFINITY][rng.random_range(0..4)],
        AttrKind::B(value) => *value = !*value,
        AttrKind::S(text) => {
            *text = [&b"NCHW"[..], b"SAME", b"VALID", b"EXPLICIT", b"", b"\xff", b"a,b->ab"][rng.random_range(0..7)]
                .to_vec()
        }
        AttrKind::Type(number) => *number = rng.random_range(0..26),
        AttrKind::Shape(shape) => mix_shape(shape, rng),
        AttrKind::Tensor(tensor) => {
            if let Some(shape) = &mut tensor.tensor_shape {
                mix_shape(shape, rng);
            }
            tensor.int_val.iter_mut().for_each(|value| *value = number(rng) as i32);
            tensor.tensor_content.chunks_mut(4).for_each(|part| {
                if rng.random_bool(0.5) {
                    let bytes = (number(rng) as i32).to_le_bytes();
                    part.copy_from_slice(&bytes[..part.len()]);
                }
            });
        }
        AttrKind::List(list) => match rng.random_range(0..3) {
            0 => drop(list.i.pop()),
            1 => list.i.iter_mut().for_each(|value| *value = number(rng)),
            _ => list.i.push(number(rng)),
        },
        AttrKind::Placeholder(_) | AttrKind::Func(_) => {}
    }
}

/// Changes one node: an attribute, an input, or how many inputs there are.
fn mix(node: &mut NodeDef, others: &[String], rng: &mut StdRng) {
    let other = others[rng.random_range(0..others.len())].clone();
    match rng.random_range(0..6) {
        0 if !node.input.is_empty() => {
            let at = rng.random_range(0..node.input.len());
            node.input[at] = other;
        }
        1 => drop(node.input.pop()),
        2 => node.input.push(other),
        3 if !node.attr.is_empty() => {
            let key = node.attr.keys().nth(rng.random_range(0..node.attr.len())).unwrap().clone();
            node.attr.remove(&key);
        }
        _ => {
            let at = rng.random_range(0..node.attr.len().max(1));
            if let Some(kind) = node.attr.values_mut().nth(at).and_then(|attr| attr.value.as_mut()) {
                mix_attr(kind, rng);
            }
        }
    }
}

#[test]
fn mutated_graphs_lower_or_fail_without_a_panic() {
    mutated(OPS, 50);
}

#[test]
fn mutated_graphs_of_later_ops_lower_or_fail_without_a_panic() {
    mutated(MORE, 10);
}

#[test]
fn mutated_graphs_of_images_and_boxes_lower_or_fail_without_a_panic() {
    mutated(IMAGES, 5);
}

/// Mutates the cases of a graph; at least `n_least` of the results have to be lowered.
fn mutated(packed: &[u8], n_least: usize) {
    let whole = graph(packed);
    let n: usize = std::env::var("BF16SCOPE_TEST_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut rng = StdRng::seed_from_u64(57);
    let cases: Vec<&NodeDef> = whole.node.iter().filter(|node| node.name.ends_with("/out0")).collect();
    let mut panics = Vec::new();
    let mut n_lowered = 0;
    for out in cases {
        let case = out.name.trim_end_matches("out0");
        let nodes: Vec<NodeDef> = whole.node.iter().filter(|node| node.name.starts_with(case)).cloned().collect();
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        for _ in 0..n {
            let mut nodes = nodes.clone();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..nodes.len());
                mix(&mut nodes[at], &names, &mut rng);
            }
            let definition = GraphDef { node: nodes, library: whole.library.clone() };
            let bytes = definition.encode_to_vec();
            let tried = catch_unwind(AssertUnwindSafe(|| {
                let Ok(graph) = Graph::read(&bytes, "g") else { return false };
                let choice = Choice { name: Some(out.name.clone()), size_of: &|_, _| Some(2) };
                let Ok(lowered) = lower(&graph, &choice) else { return false };
                verify(&lowered.module).unwrap_or_else(|errors| panic!("not whole: {errors}"));
                true
            }));
            match tried {
                Ok(is_lowered) => n_lowered += usize::from(is_lowered),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    panics.push(format!("{case}: {}", text.unwrap_or_else(|| "a panic".to_string())));
                }
            }
        }
    }
    assert!(panics.is_empty(), "{} panics\n{}", panics.len(), panics.join("\n"));
    assert!(n_lowered > n_least, "{n_lowered}");
}
