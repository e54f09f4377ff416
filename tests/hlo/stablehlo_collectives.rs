//! Ops over devices to StableHLO and back.

use bf16scope::foreign::stablehlo;
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::{Module, text, verify};

use crate::stablehlo::read;

/// Ops over devices: with the attributes that come back where these are others.
const COLLECTIVES: [(&str, &str); 16] = [
    ("f32[8] all-gather(x), replica_groups={{0,2},{1,3}}, dimensions={0}", ""),
    ("f32[16] all-gather(x), replica_groups={}, dimensions={0}", ""),
    (
        "f32[8] all-gather(x), channel_id=3, replica_groups={{0,2},{1,3}}, dimensions={0}, use_global_device_ids=true",
        "",
    ),
    ("f32[8] all-gather(x), channel_id=3, replica_groups={{0,1}}, dimensions={0}", ""),
    (
        "f32[8] all-gather(x), channel_id=3, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}, use_global_device_ids=true",
        "channel_id=3, replica_groups={{0,2},{1,3}}, dimensions={0}, use_global_device_ids=true",
    ),
    ("f32[4] all-reduce(x), replica_groups={{0,1,2},{3}}, to_apply=add", ""),
    (
        "f32[4] all-reduce(x), channel_id=2, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=add",
        "channel_id=2, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=add",
    ),
    ("f32[2] reduce-scatter(x), replica_groups={{0,2},{1,3}}, dimensions={0}, to_apply=add", ""),
    (
        "f32[1] reduce-scatter(x), channel_id=1, replica_groups={{3,1,0,2}}, use_global_device_ids=true, dimensions={0}, \
         to_apply=add",
        "",
    ),
    ("f32[4] all-to-all(x), replica_groups={{0,2},{1,3}}, dimensions={0}", ""),
    ("f32[4] all-to-all(x), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}", ""),
    ("f32[4] collective-permute(x), source_target_pairs={{0,1},{1,0},{3,2}}", ""),
    ("f32[4] collective-permute(x), channel_id=5, source_target_pairs={{0,3}}", ""),
    ("f32[4] collective-broadcast(x), channel_id=1, replica_groups={{0,3},{1,2}}", ""),
    ("u32[] partition-id()", ""),
    ("u32[] replica-id()", ""),
];

fn over_devices(op: &str) -> Module {
    let text = format!(
        "HloModule m, replica_count=4, num_partitions=4\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c \
         = f32[] add(a, b)\n}}\n\nENTRY main {{\n  x = f32[4] parameter(0)\n  ROOT y = {op}\n}}\n"
    );
    let module = text::parse(&text, "m.hlo").unwrap_or_else(|error| panic!("{op}: {error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{op}: {errors}"));
    module
}

/// The attributes of a module's only collective, without names of other instructions; sorted.
fn attributes(module: &Module, opcode: &str) -> Vec<String> {
    let text = text::print(module, &text::PrintOptions::default());
    let (_, rest) = text.split_once(&format!(" {opcode}(")).unwrap_or_else(|| panic!("no {opcode}:\n{text}"));
    let (_, rest) = rest.lines().next().unwrap().split_once(')').unwrap();
    let all = rest.split(", ").filter(|attribute| !attribute.is_empty() && !attribute.starts_with("metadata="));
    let mut all: Vec<String> =
        all.map(|attribute| attribute.split_once("to_apply=").map_or(attribute, |_| "to_apply").to_string()).collect();
    all.sort();
    all
}

/// Every op over devices is written, and XLA's converter reads the same: in groups, channels and flags.
#[test]
fn collectives_come_back_as_they_were() {
    for (op, other) in COLLECTIVES {
        let opcode = op.split([' ', '(']).nth(1).unwrap();
        for module in [over_devices(op), decode::from_bytes(&encode::to_bytes(&over_devices(op)).unwrap()).unwrap()] {
            let written = stablehlo::write(&module).unwrap_or_else(|error| panic!("{op}: {error}")).text;
            let back = read(written.as_bytes(), "back.mlir").unwrap_or_else(|error| panic!("{op}: {error}\n{written}"));
            verify(&back).unwrap_or_else(|errors| panic!("{op}: {errors}"));
            assert_eq!(back.entry().result_shape().without_layout(), module.entry().result_shape().without_layout());
            let (head, _) = op.split_once(')').unwrap();
            let expected = if other.is_empty() { op.to_string() } else { format!("{head}), {other}") };
            assert_eq!(attributes(&back, opcode), attributes(&over_devices(&expected), opcode), "{written}");
        }
    }
}

#[test]
fn collectives_that_stablehlo_has_not_are_refused() {
    let refused = |op: &str| {
        let error = stablehlo::write(&over_devices(op)).map(|written| written.text).unwrap_err().to_string();
        let (message, help) = error.split_once("\nhelp: ").unwrap();
        assert!(help.contains("HLO instead") && help.contains("bf16scope.jax.lower"), "{help}");
        message.strip_prefix("main/%y: StableHLO has no ").unwrap().to_string()
    };
    assert_eq!(
        refused("(f32[4], f32[4]) all-to-all(x, x), replica_groups={{0,1},{2,3}}"),
        "`all-to-all` of 2 operands, expected one array"
    );
    assert_eq!(
        refused("f32[4] all-to-all(x), replica_groups={}, dimensions={0}"),
        "`all-to-all` over all devices, whose number it does not say"
    );
    assert_eq!(
        refused("f32[4] all-to-all(x), replica_groups={{0,1},{2,3}}, dimensions={0,1}"),
        "`all-to-all` along 2 dimensions, expected one"
    );
    assert_eq!(
        refused("(f32[2], f32[2]) reduce-scatter(x, x), replica_groups={{0,1},{2,3}}, dimensions={0}, to_apply=add"),
        "`reduce-scatter` of 2 operands, expected one array"
    );
    assert_eq!(
        refused("f32[4] all-reduce(x), replica_groups=[1,131072]<=[131072], to_apply=add"),
        "replica groups of so many devices"
    );
    assert_eq!(
        refused("(f32[4], f32[8]) all-gather-start(x), replica_groups={{0,1},{2,3}}, dimensions={0}"),
        "`all-gather-start` that bf16scope can write"
    );
}
