//! Graphs of TensorFlow whose form is right and whose content is drawn.

use super::{Draw, field, number, varint};

/// Attributes of nodes, and the field of a value by which each is held: 2 bytes, 3 a number, 4 a float, 5 a flag, 6 a dtype,
/// 7 a shape, 1 a list of numbers.
const ATTRIBUTES: [(&str, u64); 40] = [
    ("N", 3),
    ("axis", 3),
    ("num_split", 3),
    ("num_partitions", 3),
    ("block_size", 3),
    ("k", 3),
    ("begin_mask", 3),
    ("end_mask", 3),
    ("ellipsis_mask", 3),
    ("new_axis_mask", 3),
    ("shrink_axis_mask", 3),
    ("batch_dims", 3),
    ("batch_dim", 3),
    ("seq_dim", 3),
    ("depth_radius", 3),
    ("num_sampled", 3),
    ("range_max", 3),
    ("strides", 1),
    ("ksize", 1),
    ("ksizes", 1),
    ("rates", 1),
    ("dilations", 1),
    ("explicit_paddings", 1),
    ("squeeze_dims", 1),
    ("keep_dims", 5),
    ("transpose_a", 5),
    ("adj_y", 5),
    ("exclusive", 5),
    ("reverse", 5),
    ("is_training", 5),
    ("pad_to_max_output_size", 5),
    ("align_corners", 5),
    ("epsilon", 4),
    ("alpha", 4),
    ("element_dtype", 6),
    ("out_type", 6),
    ("element_shape", 7),
    ("padding", 2),
    ("data_format", 2),
    ("equation", 2),
];

/// A `GraphDef`: an input, and nodes of ops that become HLO, constants among them, whose inputs and attributes are drawn.
pub fn graph(draw: &mut Draw<'_>) -> Vec<u8> {
    let ops = bf16scope::tensorflow::known_ops();
    let mut out = Vec::new();
    for at in 0..2 + draw.below(14) {
        let mut node = Vec::new();
        field(1, format!("n{at}").as_bytes(), &mut node);
        let op = match draw.byte() {
            _ if at == 0 => "Placeholder",
            0..=79 => "Const",
            80..=99 => draw.of(&["Placeholder", "VarHandleOp", "VariableV2", "Neg"]),
            _ => ops[(256 * draw.below(2) + draw.below(256)) % ops.len()],
        };
        field(2, op.as_bytes(), &mut node);
        let n_inputs = match op {
            "Const" | "Placeholder" | "VarHandleOp" | "VariableV2" => 0,
            _ => 1 + draw.below(4),
        };
        for _ in 0..n_inputs {
            let reads = draw.below(at);
            let input = match draw.byte() {
                0..=219 => format!("n{reads}"),
                220..=239 => format!("n{reads}:1"),
                _ => format!("^n{reads}"),
            };
            field(3, input.as_bytes(), &mut node);
        }
        let dtype = draw.of(&[1u64, 1, 1, 3, 3, 9, 14, 10, 19, 2, 8, 20]);
        for key in ["T", "dtype", "DstT"] {
            let mut value = Vec::new();
            number(6, dtype, &mut value);
            attribute(key, &value, &mut node);
        }
        let mut value = Vec::new();
        match op {
            "Const" => {
                field(8, &constant(draw, dtype), &mut value);
                attribute("value", &value, &mut node);
            }
            _ => {
                field(7, &dims(draw), &mut value);
                attribute("shape", &value, &mut node);
            }
        }
        for _ in 0..draw.below(4) {
            let (key, tag) = draw.of(&ATTRIBUTES);
            attribute(key, &attribute_value(draw, key, tag), &mut node);
        }
        field(1, &node, &mut out);
    }
    out
}

/// An entry of a node's attributes.
fn attribute(key: &str, value: &[u8], node: &mut Vec<u8>) {
    let mut entry = Vec::new();
    field(1, key.as_bytes(), &mut entry);
    field(2, value, &mut entry);
    field(5, &entry, node);
}

fn attribute_value(draw: &mut Draw<'_>, key: &str, tag: u64) -> Vec<u8> {
    let mut value = Vec::new();
    match tag {
        1 => {
            let mut list = Vec::new();
            for _ in 0..draw.below(6) {
                number(3, draw.number(), &mut list);
            }
            field(1, &list, &mut value);
        }
        2 => {
            let text = match key {
                "padding" => draw.of(&["SAME", "VALID", "EXPLICIT", ""]),
                "data_format" => draw.of(&["NHWC", "NCHW", "NDHWC", "NCHW_VECT_C"]),
                _ => draw.of(&["ab,bc->ac", "...a,ab->...b", "ab->ba", "aa,a->", "->"]),
            };
            field(2, text.as_bytes(), &mut value);
        }
        4 => {
            varint(4 << 3 | 5, &mut value);
            value.extend((draw.number() as u32).to_le_bytes());
        }
        5 => number(5, draw.below(2) as u64, &mut value),
        6 => number(6, draw.of(&[1, 3, 9, 14, 10, 21]), &mut value),
        7 => field(7, &dims(draw), &mut value),
        _ => number(3, draw.number(), &mut value),
    }
    value
}

/// A `TensorShapeProto`.
fn dims(draw: &mut Draw<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(5) {
        let mut dim = Vec::new();
        number(1, if draw.byte() < 240 { draw.below(5) as u64 } else { draw.number() }, &mut dim);
        field(2, &dim, &mut out);
    }
    out
}

/// A `TensorProto`: numbers of a few elements, or of none.
fn constant(draw: &mut Draw<'_>, dtype: u64) -> Vec<u8> {
    let mut out = Vec::new();
    number(1, dtype, &mut out);
    let (mut shape, mut n) = (Vec::new(), draw.below(5));
    match draw.byte() {
        0..=79 => n = 1,
        80..=219 => {
            let mut dim = Vec::new();
            number(1, n as u64, &mut dim);
            field(2, &dim, &mut shape);
        }
        _ => shape = dims(draw),
    }
    field(2, &shape, &mut out);
    for _ in 0..n {
        match dtype {
            1 => {
                varint(5 << 3 | 5, &mut out);
                out.extend(f32::from(draw.byte()).to_le_bytes());
            }
            9 => number(10, draw.number(), &mut out),
            10 => number(11, draw.below(2) as u64, &mut out),
            14 | 19 => number(13, draw.below(256) as u64, &mut out),
            _ => number(7, draw.number() & 0x7fff_ffff, &mut out),
        }
    }
    out
}
