//! Attributes that the IR does not model, or only carries, survive the conversion from text to proto and back.

use bf16scope::hlo::proto::messages::{HloModuleProto, PaddingConfig, PrecisionConfig, Window, WindowDimension};
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Lost, Module, lost_in_text};
use prost::Message;

fn read(text: &str) -> Module {
    let module = text::parse(text, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    module
}

fn printed(module: &Module) -> String {
    text::print(module, &PrintOptions::default())
}

/// The text, the text from its proto, and that proto.
fn through_proto(text: &str) -> (String, String, HloModuleProto) {
    let module = read(text);
    let bytes = encode::to_bytes(&module).unwrap();
    let again = decode::from_bytes(&bytes).unwrap();
    assert_eq!(encode::to_bytes(&again).unwrap(), bytes);
    (printed(&module), printed(&again), HloModuleProto::decode(bytes.as_slice()).unwrap())
}

/// A text that prints, and comes back from its proto, unchanged.
fn check(text: &str) -> HloModuleProto {
    let (own, of_proto, proto) = through_proto(text);
    assert_eq!(own, text);
    assert_eq!(of_proto, text);
    proto
}

/// A text in which one instruction has this shape, operand `x: f32[2,4]` and end.
fn custom_call(shape: &str, rest: &str) -> String {
    format!(
        "HloModule m, entry_computation_layout={{(f32[2,4]{{1,0}})->{shape}}}

ENTRY m {{
  x = f32[2,4]{{1,0}} parameter(0)
  ROOT y = {shape} custom-call(x), custom_call_target=\"f\"{rest}
}}

"
    )
}

#[test]
fn every_dtype_crosses() {
    for dtype in DType::ALL.iter().filter(|dtype| dtype.bits() > 1) {
        let proto = check(&custom_call(&format!("{dtype}[3]{{0}}"), ""));
        let shape = proto.computations[0].instructions[1].shape.as_ref().unwrap();
        assert_eq!(shape.element_type, dtype.xla());
    }
}

/// XLA prints a reference to an array's memory as `b(…)`; its message holds the array as its only element.
#[test]
fn buffers_cross() {
    let proto = check(&custom_call("(b(f32[2,4]{0,1}), b(bf16[]), token[])", ""));
    let elements = &proto.computations[0].instructions[1].shape.as_ref().unwrap().tuple_shapes;
    assert_eq!((elements[0].element_type, elements[0].tuple_shapes[0].dimensions.as_slice()), (34, [2, 4].as_slice()));

    let error = text::parse(&custom_call("b((f32[]))", ""), "m.hlo").unwrap_err().to_string();
    assert!(error.contains("expected an array, which alone a buffer can hold"), "{error}");
    for elements in [vec![], vec![0, 0]] {
        let mut proto = proto.clone();
        let shape = proto.computations[0].instructions[1].shape.as_mut().unwrap();
        shape.tuple_shapes[0].tuple_shapes = elements.into_iter().map(|_: i32| Default::default()).collect();
        let error = decode::module(proto).unwrap_err().to_string();
        assert_eq!(error, "m/y: shape.tuple_shapes (the one array of a buffer) is missing");
    }
}

/// Attributes that compilers and partitioners write besides the op's own.
#[test]
fn annotations_cross() {
    check(&custom_call("f32[2,4]{1,0}", ", origin={{\"x\"}}"));
    check(&custom_call("(f32[2]{0}, s32[])", ", origin={({\"x\" {0}}, {})}"));
    check(&custom_call("f32[2]{0}", ", statistics={visualizing_index=0,flops=0.5}"));
    check(&custom_call("f32[2]{0}", ", result_accuracy={tolerance={atol=0,rtol=0.25,ulps=1}}"));
    check(&custom_call("f32[2]{0}", ", result_accuracy={mode=highest}"));
    check(&custom_call("f32[2]{0}", ", sharding={devices=[1,2]<=[2] last_tile_dims={manual}}"));
    check(&custom_call("f32[2]{0}", ", sharding={replicated shard_as 4}"));
    check(&custom_call("(f32[2]{0}, s32[])", ", sharding={{unknown}, {unreduced}}"));
}

#[test]
fn layouts_cross() {
    for layout in [
        "{0,1:T(8,128)(2,1)L(1024)E(4)S(1)SC(1:2)M(64)}",
        "{1,0:D(C,S+)#(u32)*(u64)P((u32[3]{0}, u32[8]{0}))}",
        "{1,0:D(D,C~)}",
    ] {
        check(&custom_call(&format!("s4[2,4]{layout}"), ""));
    }
}

/// A sharding without a text form is omitted from the text, and kept in the proto.
#[test]
fn a_sharding_without_a_text_is_not_misstated() {
    let mut proto = check(&custom_call("f32[2]{0}", ", sharding={replicated}"));
    let sharding = proto.computations[0].instructions[1].sharding.as_mut().unwrap();
    sharding.named_sharding = Some(vec![8, 1]);
    let module = decode::module(proto.clone()).unwrap();
    assert!(!printed(&module).contains("sharding"));
    assert_eq!(encode::module(&module), Ok(proto));
}

#[test]
fn what_text_leaves_out_is_known() {
    let (_, _, mut proto) = through_proto(&custom_call("f32[3]{0}", ""));
    let module = decode::from_bytes(&proto.encode_to_vec()).unwrap();
    assert_eq!(lost_in_text(&module), []);
    // XLA writes the defaults of a custom call, which its text does not have either.
    let call = &mut proto.computations[0].instructions[1];
    call.precision_config = Some(PrecisionConfig { operand_precision: vec![0, 0], algorithm: 0 });
    (call.feature_group_count, call.batch_group_count) = (1, 1);
    assert_eq!(lost_in_text(&decode::from_bytes(&proto.encode_to_vec()).unwrap()), []);
    proto.computations[0].instructions[1].precision_config.as_mut().unwrap().algorithm = 3;
    let lost = &lost_in_text(&decode::from_bytes(&proto.encode_to_vec()).unwrap())[0];
    assert_eq!((lost.opcode.as_str(), &lost.fields[..]), ("custom-call", &[51][..]));
    proto.computations[0].instructions[1].precision_config = None;
    // A custom call may have a window, as convolutions and their like.
    let window = Window { dimensions: vec![WindowDimension { size: 3, stride: 1, ..Default::default() }] };
    proto.computations[0].instructions[1].window = Some(window);
    let module = decode::from_bytes(&proto.encode_to_vec()).unwrap();
    assert_eq!(lost_in_text(&module), []);
    assert!(printed(&module).contains("window={size=3"), "{}", printed(&module));
    // The same for the padding of a convolution, which HLO text cannot represent there.
    proto.computations[0].instructions[1].padding_config = Some(PaddingConfig::default());
    let module = decode::from_bytes(&proto.encode_to_vec()).unwrap();
    let lost = Lost { place: "m/%y".to_string(), opcode: "custom-call".to_string(), fields: vec![21] };
    assert_eq!(lost_in_text(&module), [lost]);
    assert_eq!(encode::to_bytes(&module).unwrap(), proto.encode_to_vec());
    // A kind of transform that this build has no name for was printed as `fft_type=`, which no parser accepts.
    let (_, _, mut proto) = through_proto(
        "HloModule m\n\nENTRY m {\n  x = c64[8]{0} parameter(0)\n  ROOT y = c64[8]{0} fft(x), fft_type=FFT, fft_length={8}\n}\n",
    );
    proto.computations[0].instructions[1].fft_type = 9;
    let module = decode::from_bytes(&proto.encode_to_vec()).unwrap();
    assert!(!printed(&module).contains("fft_type") && text::parse(&printed(&module), "m.hlo").is_ok());
    assert_eq!(lost_in_text(&module)[0].opcode, "fft");
    // A proto may have an op that is newer than this build; its text cannot be read back.
    let (_, _, mut proto) = through_proto(&custom_call("f32[3]{0}", ""));
    proto.computations[0].instructions[1].opcode = "frobnicate".to_string();
    let lost = &lost_in_text(&decode::from_bytes(&proto.encode_to_vec()).unwrap())[0];
    assert_eq!((lost.opcode.as_str(), lost.fields[0]), ("frobnicate", 2));
}
