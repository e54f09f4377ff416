//! Tables of the meaning of files, and of the resources that small files require: weights of every dtype and order, modules as
//! text and proto, experiments with their keys in any order, cache entries. A file is read exactly as it is written, or refused
//! with an error, and resources are bounded by its size. Each table checks its number of cases.

use crate::binary::bf16scope;

use bf16scope::experiment::Experiment;
use bf16scope::files::Records;
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::{ArrayShape, CompId, DType, Emitter, Literal, Module, Op, Shape, proto};
use bf16scope::passes::amp;
use bf16scope::weights;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Bytes that look like nothing in particular.
fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|at| ((at * 37 + seed * 101 + 11) >> 1) as u8).collect()
}

/// An `.npy` of this version.
fn npy(version: u8, descr: &str, is_fortran: bool, dims: &[i64], bytes: &[u8]) -> Vec<u8> {
    let shape: String = dims.iter().map(|dim| format!("{dim},")).collect();
    let order = if is_fortran { "True" } else { "False" };
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
    let n_head = if version == 1 { 10 } else { 12 };
    while !(n_head + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let length = match version {
        1 => (header.len() as u16).to_le_bytes().to_vec(),
        _ => (header.len() as u32).to_le_bytes().to_vec(),
    };
    [&b"\x93NUMPY"[..], &[version, 0], &length, header.as_bytes(), bytes].concat()
}

/// A file of weights with this archive's members.
fn npz(path: &Path, members: &[(&str, Vec<u8>)]) {
    use std::io::Write as _;
    let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        zip.start_file(format!("{name}.npy"), stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// NumPy's types, and the HLO dtypes that they become.
const NUMPY: [(&str, DType); 26] = [
    ("|b1", DType::Pred),
    ("|i1", DType::S8),
    ("|u1", DType::U8),
    ("<i2", DType::S16),
    (">i2", DType::S16),
    ("<u2", DType::U16),
    (">u2", DType::U16),
    ("<i4", DType::S32),
    (">i4", DType::S32),
    ("<u4", DType::U32),
    (">u4", DType::U32),
    ("<i8", DType::S64),
    (">i8", DType::S64),
    ("<u8", DType::U64),
    (">u8", DType::U64),
    ("<f2", DType::F16),
    (">f2", DType::F16),
    ("<f4", DType::F32),
    (">f4", DType::F32),
    ("<f8", DType::F64),
    (">f8", DType::F64),
    ("<c8", DType::C64),
    (">c8", DType::C64),
    ("<c16", DType::C128),
    (">c16", DType::C128),
    ("|V2", DType::BF16),
];

/// Elements, little-endian and row-major, as NumPy stores them.
fn as_numpy(elements: &[u8], dtype: DType, is_big: bool, is_fortran: bool, dims: &[i64]) -> Vec<u8> {
    let width = dtype.n_bytes();
    // A complex number is two of half its width.
    let part = if matches!(dtype, DType::C64 | DType::C128) { width / 2 } else { width };
    let n = elements.len() / width;
    let mut out = Vec::new();
    for at in 0..n {
        // The element at place `at` of the file.
        let place = match (is_fortran, dims) {
            (true, &[rows, columns]) => (at % rows as usize) * columns as usize + at / rows as usize,
            _ => at,
        };
        let element = &elements[place * width..(place + 1) * width];
        element.chunks(part).for_each(|half| match is_big {
            true => out.extend(half.iter().rev()),
            false => out.extend(half),
        });
    }
    out
}

#[test]
fn arrays_of_numpy_are_read_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.npz");
    let (mut n, mut wrong) = (0, Vec::new());
    for (case, (descr, dtype)) in NUMPY.into_iter().enumerate() {
        for is_fortran in [false, true] {
            for (version, dims) in [(1, &[][..]), (2, &[3]), (3, &[2, 3]), (1, &[0, 4])] {
                let n_elements = dims.iter().product::<i64>() as usize;
                let mut elements = pattern(n_elements * dtype.n_bytes(), case);
                if dtype == DType::Pred {
                    elements.iter_mut().for_each(|byte| *byte &= 1);
                }
                let stored = as_numpy(&elements, dtype, descr.starts_with('>'), is_fortran, dims);
                npz(&path, &[("w", npy(version, descr, is_fortran, dims, &stored))]);
                let read = weights::open(&path).map_err(|error| error.to_string());
                let read = read.and_then(|file| file.read("w").map_err(|error| error.to_string()));
                let expected = Literal::Array { shape: ArrayShape::new(dtype, dims), bytes: elements };
                if read.as_ref() != Ok(&expected) {
                    wrong.push(format!("{descr} {is_fortran} {dims:?}: {read:?}"));
                }
                n += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(n, 208);
}

/// A file of safetensors with this header.
fn safetensors(header: &str, bytes: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), bytes].concat()
}

#[test]
fn safetensors_are_what_their_headers_say_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let names = [
        ("BOOL", DType::Pred),
        ("U8", DType::U8),
        ("I8", DType::S8),
        ("F8_E5M2", DType::F8E5M2),
        ("F8_E4M3", DType::F8E4M3FN),
        ("I16", DType::S16),
        ("U16", DType::U16),
        ("F16", DType::F16),
        ("BF16", DType::BF16),
        ("I32", DType::S32),
        ("U32", DType::U32),
        ("F32", DType::F32),
        ("F64", DType::F64),
        ("I64", DType::S64),
        ("U64", DType::U64),
        ("F8_E8M0", DType::F8E8M0FNU),
        // The library that reads headers does not know these.
        ("C64", DType::C64),
        ("F8_E4M3FNUZ", DType::F8E4M3FNUZ),
        ("F8_E5M2FNUZ", DType::F8E5M2FNUZ),
    ];
    let mut n = 0;
    for (case, (name, dtype)) in names.into_iter().enumerate() {
        for dims in [&[][..], &[3], &[2, 3], &[0]] {
            let n_bytes = dims.iter().product::<i64>() as usize * dtype.n_bytes();
            let mut bytes = pattern(n_bytes, case);
            if dtype == DType::Pred {
                bytes.iter_mut().for_each(|byte| *byte &= 1);
            }
            let header = format!(r#"{{"w":{{"dtype":"{name}","shape":{dims:?},"data_offsets":[0,{n_bytes}]}}}}"#);
            fs::write(&path, safetensors(&header, &bytes)).unwrap();
            let read =
                weights::open(&path).unwrap_or_else(|error| panic!("{name} {dims:?}: {error}")).read("w").unwrap();
            assert_eq!(read, Literal::Array { shape: ArrayShape::new(dtype, dims), bytes }, "{name} {dims:?}");
            n += 1;
        }
    }
    // Contradictory headers, which a reader must refuse and not guess the meaning of.
    let one =
        |shape: &str, offsets: &str| format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{first}}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{second}}}}}"#
        )
    };
    let bad = [
        one("[2]", "[0,4]"),
        one("[2]", "[0,12]"),
        one("[2]", "[8,0]"),
        one("[2]", "[4,12]"),
        one("[2]", "[0,8,16]"),
        one("[2]", "[0]"),
        one("[2]", "[-8,0]"),
        one("[-2]", "[0,8]"),
        one("[2.5]", "[0,8]"),
        one("[4611686018427387904,4]", "[0,0]"),
        one("[9223372036854775807,9223372036854775807]", "[0,16]"),
        one("\"2\"", "[0,8]"),
        two("[0,8]", "[4,12]"),
        two("[0,8]", "[0,8]"),
        two("[8,16]", "[24,32]"),
        r#"{"w":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}"#.to_string(),
        r#"{"w":{"shape":[2],"data_offsets":[0,8]}}"#.to_string(),
        r#"{"w":{"dtype":"F32","data_offsets":[0,8]}}"#.to_string(),
        r#"{"w":{"dtype":"F32","shape":[2]}}"#.to_string(),
        r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#
            .to_string(),
        r#"{"w":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#.to_string(),
        r#"{"w":{"dtype":"C64","shape":[2],"data_offsets":[0,8]}}"#.to_string(),
        r#"{"w":{"dtype":"C64","shape":[2],"data_offsets":[0,32]}}"#.to_string(),
        r#"{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"C65","shape":[1],"data_offsets":[8,16]}}"#.to_string(),
        r#"["w"]"#.to_string(),
        "{".to_string(),
        "\u{1}".to_string(),
    ];
    for header in bad {
        fs::write(&path, safetensors(&header, &pattern(16, 1))).unwrap();
        let read = weights::open(&path).map_err(|error| error.to_string()).and_then(|file| {
            file.check().map_err(|error| error.to_string())?;
            file.entries()
                .iter()
                .try_for_each(|entry| file.read(&entry.name).map(drop).map_err(|error| error.to_string()))
        });
        assert!(read.is_err(), "{header} is read");
        n += 1;
    }
    assert_eq!(n, 103);
    for dtype in ["F4", "C128"] {
        let header = format!(r#"{{"w":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,1]}}}}"#);
        fs::write(&path, safetensors(&header, &[0])).unwrap();
        let error = weights::open(&path).unwrap_err().to_string();
        let expected = format!(
            "w.safetensors: array `w` is of {dtype}, which is not read\nhelp: save it in another dtype, such as F32 or BF16: \
             `tensor.float()`"
        );
        assert!(error.ends_with(&expected), "{error}");
    }
}

/// The entry's one constant.
fn constant(module: &Module) -> &Literal {
    match &module.entry().instr(module.entry().root).op {
        Op::Constant(literal) => literal,
        op => panic!("{op:?}"),
    }
}

#[test]
fn a_number_is_the_same_by_text_and_by_proto() {
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        0.1,
        3.0e-5,
        -6.0e4,
        255.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MAX,
        f64::MIN_POSITIVE,
    ];
    let mut n = 0;
    for &dtype in DType::ALL {
        for value in values {
            let Some(literal) = Literal::scalar_of(dtype, value) else { continue };
            let e = Emitter::new(Module::new("m"), CompId(0));
            e.emit(Op::Constant(literal.clone()), &[], None);
            let module = e.finish().unwrap();
            let by_text = parse(&print(&module, &PrintOptions::default()), "m").unwrap();
            assert_eq!(constant(&by_text), &literal, "{dtype} {value} by text");
            let by_proto = proto::decode::from_bytes(&proto::encode::to_bytes(&by_text).unwrap()).unwrap();
            assert_eq!(constant(&by_proto), &literal, "{dtype} {value} by proto");
            n += 1;
        }
    }
    assert!(n >= 150, "{n} cases");
}

#[test]
fn what_a_module_says_survives_a_proto() {
    let layouts = ["", "{1,0}", "{0,1}", "{1,0:D(D,D)}", "{1,0:D(D,C~)}", "{1,0:T(8,128)}", "{1,0:S(1)}", "{0,1:E(4)}"];
    let types = ["f32[2,4]", "f32[<=2,4]", "bf16[2,<=4]", "s32[2,4]"];
    let counts = ["", ", replica_count=2", ", num_partitions=4", ", replica_count=2, num_partitions=3"];
    let mut n = 0;
    for layout in layouts {
        for ty in types {
            for count in counts {
                let text = format!("HloModule m{count}\n\nENTRY main {{\n  ROOT x = {ty}{layout} parameter(0)\n}}\n");
                let module = parse(&text, "m").unwrap_or_else(|error| panic!("{text}: {error}"));
                let bytes = proto::encode::to_bytes(&module).unwrap_or_else(|error| panic!("{text}: {error}"));
                let back = print(&proto::decode::from_bytes(&bytes).unwrap(), &PrintOptions::default());
                let shown = print(&module, &PrintOptions::default());
                // A proto has a layout for every array; where text has none it is the default one.
                let plain = |text: &str| text.replace("{1,0}", "");
                let of_entry = |text: &str| text.lines().last().map(str::to_string);
                assert_eq!(plain(&back).lines().nth(3), plain(&shown).lines().nth(3), "{text}");
                assert_eq!(of_entry(&back), of_entry(&shown));
                for attribute in ["replica_count=2", "num_partitions=4", "num_partitions=3"] {
                    assert_eq!(back.contains(attribute), count.contains(attribute), "{text}{back}");
                }
                let (lowered, _) = amp::run(&module, &amp::Policy::default()).unwrap();
                assert_eq!(print(&lowered, &PrintOptions::default()), shown);
                n += 1;
            }
        }
    }
    assert_eq!(n, 128);
}

/// Text has short forms of asynchronous ops, for which a proto has a computation of its own.
#[test]
fn a_short_form_of_an_asynchronous_op_is_text_alone() {
    for (opcode, types, attributes) in [
        ("slice", "((f32[8]), f32[2], s32[])", "slice={[0:2]}"),
        ("dot", "((f32[8], f32[8]), f32[], s32[])", "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
        ("custom-call", "((f32[8]), f32[2], s32[])", "custom_call_target=\"f\""),
        ("call", "((f32[8]), f32[2], s32[])", "to_apply=first"),
    ] {
        let (operands, result) = if opcode == "dot" { ("a, a", "f32[]") } else { ("a", "f32[2]") };
        let body =
            format!("  s = {types} {opcode}-start({operands}), {attributes}\n  ROOT d = {result} {opcode}-done(s)");
        let called = "first {\n  p = f32[8] parameter(0)\n  ROOT q = f32[2] slice(p), slice={[0:2]}\n}\n\n";
        let called = if opcode == "call" { called } else { "" };
        let text = format!("HloModule m\n\n{called}ENTRY main {{\n  a = f32[8] parameter(0)\n{body}\n}}\n");
        let module = parse(&text, "m").unwrap_or_else(|error| panic!("{text}: {error}"));
        let shown = print(&module, &PrintOptions::default());
        assert!(shown.contains(&format!(" {opcode}-start({operands}), {attributes}\n")), "{shown}");
        assert_eq!(print(&parse(&shown, "m").unwrap(), &PrintOptions::default()), shown);
        let expected = format!(
            "main/s: `{opcode}-start`, text's short form of an `async-start` around `{opcode}` (a proto has that, with a \
             computation of its own: give XLA's proto of the module), is not supported"
        );
        assert_eq!(proto::encode::to_bytes(&module).unwrap_err().to_string(), expected);
    }
}

/// Layers and their keys, each `key: value`.
const LAYERS: [&[&str]; 20] = [
    &["dense: 4", "activation: relu", "name: a"],
    &["dense: 4", "use_bias: false"],
    &["conv: 4", "kernel_size: 3", "strides: 2", "activation: relu"],
    &["conv: 4", "kernel_size: 3", "name: b", "use_bias: false"],
    &["depthwise_conv: ", "kernel_size: 3", "strides: 2"],
    &["batch_norm: ", "momentum: 0.9", "epsilon: 0.001"],
    &["layer_norm: ", "epsilon: 0.001", "name: c"],
    &["rms_norm: ", "epsilon: 0.001"],
    &["max_pool: 2", "strides: 2"],
    &["avg_pool: 2", "strides: 1", "name: d"],
    &["dropout: 0.5", "name: e"],
    &["activation: gelu", "name: f"],
    &["rescaling: 0.5", "offset: 1"],
    &["embedding: 10", "output_dim: 4", "name: g"],
    &["attention: 2", "key_dim: 4", "name: h"],
    &["take: 0", "axis: 1"],
    &["take: 0", "axis: 1", "name: i"],
    &["reshape: [4, 4]", "name: j"],
    &["concat: [x, y]", "axis: 1"],
    &["upsample: 2", "name: k"],
];

/// A configuration, or the error without its place.
fn read(path: &Path, layer: &str) -> Result<String, String> {
    let text = format!(
        "model:\n  kind: layers\n  inputs: {{x: [8, 8, 3], y: [8, 8, 3]}}\n  labels: {{l: [1]}}\n  layers:\n    - {{inputs: x, {layer}}}\n  \
         loss: {{mean_squared_error: , labels: l}}\n"
    );
    fs::write(path, text).unwrap();
    match Experiment::read(path) {
        Ok(experiment) => Ok(format!("{:?}", experiment.model)),
        Err(error) => {
            Err(error.to_string().lines().next().unwrap_or_default().split(": ").skip(1).collect::<Vec<_>>().join(": "))
        }
    }
}

#[test]
fn the_order_of_keys_decides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("e.yaml");
    let mut n = 0;
    for keys in LAYERS {
        let first = read(&path, &keys.join(", "));
        // As PyYAML sorts them, and every order that begins elsewhere.
        let mut orders = vec![keys.to_vec()];
        orders[0].sort();
        orders.extend((1..keys.len()).map(|by| [&keys[by..], &keys[..by]].concat()));
        for order in orders {
            assert_eq!(read(&path, &order.join(", ")), first, "{order:?}");
            n += 1;
        }
    }
    for (loss, sorted) in [
        ("mean_squared_error: , labels: l", "labels: l, mean_squared_error: "),
        ("huber: , delta: 0.5, labels: l", "delta: 0.5, huber: , labels: l"),
        ("mean_absolute_error: , weight: 2, labels: l", "labels: l, weight: 2, mean_absolute_error: "),
    ] {
        let of_loss = |loss: &str| {
            let text = format!(
                "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  labels: {{l: [1]}}\n  layers: [{{dense: 1}}]\n  loss: {{{loss}}}\n"
            );
            fs::write(&path, text).unwrap();
            Experiment::read(&path)
                .map(|experiment| format!("{:?}", experiment.model))
                .map_err(|error| error.to_string())
        };
        assert!(of_loss(loss).is_ok(), "{:?}", of_loss(loss));
        assert_eq!(of_loss(sorted), of_loss(loss));
        n += 1;
    }
    assert!(n >= 50, "{n} cases");
}

/// Small files that require large resources, and a command that reads each.
fn amplifications() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    const EMIT: &[&str] = &["emit"];
    const WEIGHTS: &[&str] = &["weights"];
    const SCHEDULE: &[&str] = &["schedule"];
    let module = |header: &str, body: &str| format!("HloModule m{header}\n\nENTRY main {{\n{body}}}\n").into_bytes();
    let f32s = |dims: &str| module("", &format!("  ROOT x = f32[{dims}] parameter(0)\n"));
    let nested = |n: usize| module("", &format!("  ROOT x = {}f32[]{} parameter(0)\n", "(".repeat(n), ")".repeat(n)));
    let laughs = {
        let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_string();
        (1..12).for_each(|at| text += &format!("a{at}: &a{at} [{}]\n", vec![format!("*a{}", at - 1); 9].join(", ")));
        text.into_bytes()
    };
    let mlp = |hidden: &str| format!("model: {{kind: mlp, input: [4], n_classes: 2, hidden: {hidden}}}\n").into_bytes();
    let layers = |text: String, layers: String| {
        format!(
            "model:\n  kind: layers\n  inputs: {{x: [4]}}\n  parameters: {{p: {text}}}\n  layers: [{layers}]\n  loss: \
             mean_squared_error\n"
        )
        .into_bytes()
    };
    let array = |descr: &str, dims: &[i64]| npy(1, descr, false, dims, b"");
    let tensor =
        |shape: &str| safetensors(&format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#), b"");
    vec![
        ("dims.hlo", f32s("1000000000,1000000000"), EMIT),
        ("dims2.hlo", f32s("9223372036854775807"), EMIT),
        ("dims3.hlo", f32s(&vec!["2"; 100_000].join(",")), EMIT),
        ("nested.hlo", nested(100_000), EMIT),
        ("groups.hlo", module(", replica_count=1000000000", "  x = f32[4] parameter(0)\n  ROOT y = f32[4] all-gather(x), dimensions={0}, replica_groups=[1000000,1000000]<=[1000000000000]\n"), EMIT),
        ("counts.hlo", module(", replica_count=2147483647, num_partitions=2147483647", "  ROOT x = f32[4] parameter(0)\n"), EMIT),
        ("sharding.hlo", module("", "  ROOT x = f32[4] parameter(0), sharding={devices=[1000000000]<=[1000000000]}\n"), EMIT),
        ("name.hlo", module("", &format!("  ROOT {} = f32[4] parameter(0)\n", "x".repeat(10_000_000))), EMIT),
        ("window.hlo", module("", &format!("  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), window={{size={}}}, custom_call_target=\"f\"\n", vec!["9223372036854775807"; 1000].join("x"))), EMIT),
        ("splat.mlir", b"module @m {\n  func.func @main() -> tensor<1000000000000xf32> {\n    %0 = stablehlo.constant dense<0.0> : tensor<1000000000000xf32>\n    return %0 : tensor<1000000000000xf32>\n  }\n}\n".to_vec(), EMIT),
        ("elided.mlir", b"module @m {\n  func.func @main() -> tensor<64xf32> {\n    %0 = stablehlo.constant dense_resource<__elided__> : tensor<64xf32>\n    return %0 : tensor<64xf32>\n  }\n}\n".to_vec(), EMIT),
        ("laughs.yaml", laughs, SCHEDULE),
        ("texts.yaml", format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), "*a, ".repeat(10_000)).into_bytes(), SCHEDULE),
        ("parameters.yaml", layers("x".repeat(500_000), "{dense: {units: 2, name: $p}}, ".repeat(15_000)), EMIT),
        ("lists.yaml", "[".repeat(200_000).into_bytes(), SCHEDULE),
        ("maps.yaml", "{a: ".repeat(100_000).into_bytes(), SCHEDULE),
        ("lines.yaml", (0..2000).map(|at| format!("{}a:\n", " ".repeat(at))).collect::<String>().into_bytes(), SCHEDULE),
        ("keys.yaml", (0..200_000).map(|at| format!("k{at}: 1\n")).collect::<String>().into_bytes(), SCHEDULE),
        ("hidden.yaml", mlp("[4294967296]"), EMIT),
        ("hidden2.yaml", mlp(&format!("[{}]", ["2000000000"; 8].join(", "))), EMIT),
        ("hidden3.yaml", mlp(&format!("[{}]", vec!["4"; 300_000].join(", "))), SCHEDULE),
        ("large.npz", Vec::new(), WEIGHTS),
        ("w1.npy", array("<f4", &[i64::MAX]), WEIGHTS),
        ("w2.npy", array("<f8", &[1 << 40, 1 << 20]), WEIGHTS),
        ("w3.npy", npy(2, "<f4", false, &vec![1; 100_000], &[0; 4]), WEIGHTS),
        ("w1.safetensors", tensor("[1000000000000]"), WEIGHTS),
        ("w2.safetensors", tensor(&format!("[{}]", vec!["1"; 300_000].join(","))), WEIGHTS),
        ("w3.safetensors", [&u64::MAX.to_le_bytes()[..], b"{}"].concat(), WEIGHTS),
        ("w4.safetensors", [&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(), WEIGHTS),
        ("w5.safetensors", safetensors(&"[".repeat(1_000_000), b""), WEIGHTS),
    ]
}

/// Each file of at most ten megabytes is read or refused with an error within 3 GiB of address space.
#[test]
fn small_files_take_little() {
    let folder = tempfile::tempdir().unwrap();
    let cases = amplifications();
    let n = cases.len();
    for (name, bytes, args) in cases {
        if name.ends_with(".npz") {
            npz(&folder.path().join(name), &[("w", npy(1, "<f4", false, &[1 << 50], b""))]);
        } else {
            fs::write(folder.path().join(name), &bytes).unwrap();
        }
        let command = bf16scope(&[args, &[name][..]].concat());
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v 3145728; ulimit -t 20; exec \"$0\" \"$@\""]).arg(command.get_program());
        let output = shell.args(command.get_args()).arg("--offline").current_dir(folder.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        assert!(
            matches!(code, Some(0..=2)),
            "{name}: {:?} {}",
            output.status,
            stderr.chars().take(500).collect::<String>()
        );
        assert!(
            code == Some(0) || stderr.starts_with("bf16scope: ") || stderr.starts_with("error: "),
            "{name}: {stderr}"
        );
        assert!(!stderr.contains("bug of bf16scope") && !stderr.contains("panicked"), "{name}: {stderr}");
    }
    assert_eq!(n, 30);
}

/// The possible states of a damaged cache entry.
#[test]
fn an_entry_of_a_cache_is_what_was_kept_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let records = Records::new(folder.path().join("kept"), "record", 1 << 30);
    let bytes = pattern(4000, 3);
    let mut n = 0;
    let mut check = |what: &str, change: &dyn Fn(&Path), expected: Option<&[u8]>| {
        records.keep_whole("key", &bytes).unwrap();
        records.keep_whole("other", &pattern(4000, 4)).unwrap();
        let path = records.path("key");
        change(&path);
        assert_eq!(records.find("key", 1 << 20).as_deref(), expected, "{what}");
        // And it is made again over whatever is there.
        records.keep_whole("key", &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(records.find("key", 1 << 20), Some(bytes.clone()), "{what}");
        n += 1;
    };
    let whole = {
        records.keep_whole("key", &bytes).unwrap();
        fs::read(records.path("key")).unwrap()
    };
    check("as it was", &|_| {}, Some(&bytes));
    for at in (0..whole.len()).step_by(whole.len() / 20) {
        check(
            &format!("byte {at} flipped"),
            &|path| {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x10;
                fs::write(path, damaged).unwrap();
            },
            None,
        );
        check(&format!("cut at {at}"), &|path| fs::write(path, &whole[..at]).unwrap(), None);
    }
    check("longer", &|path| fs::write(path, [&whole[..], b"x"].concat()).unwrap(), None);
    check(
        "another key's",
        &|path| {
            fs::copy(path.with_file_name("other.record"), path).unwrap();
        },
        None,
    );
    check("gone", &|path| fs::remove_file(path).unwrap(), None);
    check(
        "a folder",
        &|path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        None,
    );
    #[cfg(unix)]
    check(
        "a link",
        &|path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("other.record", path).unwrap();
        },
        None,
    );
    assert!(n >= 45, "{n} cases");
}

/// Each form (text, proto, picture, StableHLO) handles every dtype and rank, or reports that it cannot.
#[test]
fn shapes_of_every_dtype_are_written_in_every_form() {
    let mut n = 0;
    for &dtype in DType::ALL {
        for dims in [&[][..], &[3], &[2, 0], &[1, 2, 3]] {
            let e = Emitter::new(Module::new("m"), CompId(0));
            e.parameter(0, &Shape::array(dtype, dims));
            let module = e.finish().unwrap();
            let text = print(&module, &PrintOptions::default());
            assert_eq!(print(&parse(&text, "m").unwrap(), &PrintOptions::default()), text);
            let bytes = proto::encode::to_bytes(&module).unwrap();
            assert_eq!(proto::encode::to_bytes(&proto::decode::from_bytes(&bytes).unwrap()).unwrap(), bytes);
            assert!(bf16scope::hlo::graphviz::render(&module).contains(dtype.name()));
            // StableHLO has it, or it is said that it has none.
            match bf16scope::foreign::stablehlo::write(&module) {
                Ok(written) => assert!(written.text.contains("tensor<")),
                Err(error) => assert!(error.to_string().contains("StableHLO has no type for"), "{error}"),
            }
            n += 1;
        }
    }
    assert!(n >= 100, "{n} cases");
}
