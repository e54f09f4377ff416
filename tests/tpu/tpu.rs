//! Compilation for TPUs that are not present, with the real TPU compiler, which is installed as a user's first run
//! installs it.

use crate::support;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bf16scope::hlo::DType;
use bf16scope::pjrt::{CompileOptions, Topology, Value};
use bf16scope::tpu::{Spec, Target, TpuError, compile};
use support::Program;

/// A compile takes every core: tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `[n, n]` × `[n, n]`; the first argument's memory may become the result's.
fn product(dtype: DType, n: i64) -> Vec<u8> {
    let mut program = Program::default();
    let lhs = program.parameter(dtype, &[n, n]);
    let rhs = program.parameter(dtype, &[n, n]);
    let result = program.dot(dtype, &[n, n], lhs, rhs);
    program.alias(0, 0);
    program.finish(&[result])
}

#[test]
fn v2_and_v3_compile_and_say_what_they_need() {
    let _turn = turn();
    for (name, limit) in [("v2:2x2", 8_034_172_928), ("v3:2x2", 16_624_107_520)] {
        let topology = Topology::tpu(name, &BTreeMap::new()).unwrap();
        assert_eq!(topology.platform_name().unwrap(), "tpu");
        assert_eq!(topology.devices().len(), 8);
        assert_eq!(topology.devices()[0].kind, format!("TPU {}", &name[..2]));
        assert_eq!(topology.devices()[0].attributes["device_memory_bytes_limit"], Value::Int(limit));
        let compiled = topology.compile(&product(DType::F32, 256), &CompileOptions::default()).unwrap();
        let stats = compiled.memory_stats().unwrap();
        // Two f32 matrices in; one out, in the first one's memory.
        assert_eq!((stats.arguments, stats.aliased), (2 * 256 * 256 * 4, 256 * 256 * 4));
        assert!(stats.code > 0 && stats.outputs >= stats.aliased, "{stats:?}");
        // A multiplication and an addition for each of 256³.
        assert_eq!(compiled.cost_analysis().unwrap()["flops"], 2.0 * 256f64.powi(3));
        let outputs = compiled.outputs().unwrap();
        assert_eq!(outputs.iter().map(|output| output.to_string()).collect::<Vec<_>>(), ["f32[256,256]"]);
        assert!(!compiled.fingerprint().unwrap().is_empty());
    }
}

#[test]
fn every_target_compiles_one_board_and_reports() {
    let _turn = turn();
    for version in Spec::ALL {
        let target = Target::board(version);
        let report = compile(&target, &product(DType::BF16, 256), 4).unwrap();
        let hbm = report.hbm;
        assert_eq!(hbm.total, hbm.arguments + hbm.outputs - hbm.aliased + hbm.temporaries + hbm.code, "{target}");
        assert!(hbm.total > 0 && hbm.total < hbm.limit && report.cycles > 0, "{target}: {report:?}");
        // The clocks of v2 and v3 are known; without one there is no time, and no rate.
        let has_clock = ["tpu-v2:", "tpu-v3:"].iter().any(|name| format!("{target}:").starts_with(name));
        assert_eq!(report.step_seconds() > 0.0, has_clock, "{target}: {report:?}");
        let expected = has_clock.then(|| 4.0 / report.step_seconds());
        assert_eq!(report.examples_per_second, expected, "{target}");
        let topology = Topology::tpu(&target.topology().unwrap(), &BTreeMap::new()).unwrap();
        assert_eq!(topology.devices().len() as u32, version.cores_per_board(), "{target}");
    }
}

#[test]
fn the_report_has_the_names_of_the_json_output() {
    let _turn = turn();
    let report = compile(&Target::board(&Spec::ALL[0]), &product(DType::BF16, 256), 1).unwrap();
    let json = serde_json::to_value(report).unwrap();
    let names = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<String>>();
    assert_eq!(
        names(&json),
        [
            "bytes_accessed",
            "collectives",
            "compile_seconds",
            "cycles",
            "devices",
            "examples_per_second",
            "flops",
            "hbm",
            "narrow_sums",
            "optimal_seconds",
            "step"
        ]
    );
    assert_eq!(names(&json["hbm"]), ["aliased", "arguments", "code", "limit", "outputs", "temporaries", "total"]);
}

#[test]
fn a_program_that_does_not_fit_says_what_it_needs_and_what_there_is() {
    let _turn = turn();
    let mut program = Program::default();
    let x = program.parameter(DType::F32, &[65536, 65536]);
    let result = program.dot(DType::F32, &[65536, 65536], x, x);
    let error = compile(&Target::board(&Spec::ALL[0]), &program.finish(&[result]), 1).unwrap_err();
    assert!(matches!(
        error,
        TpuError::OutOfMemory { needed: Some(34_359_738_368), available: Some(8_031_588_844), .. }
    ));
    assert_eq!(
        error.to_string(),
        "tpu-v2: out of device memory: needs 34359738368 bytes (32.00 GiB), has 8031588844 bytes (7.48 GiB)\n\
         help: use a smaller batch, or bf16 if the program is f32\n\
         compiler: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries \
         (32.00G) exceeds available HBM (7.48G). HLO module: small."
    );
}

#[test]
fn a_target_that_is_no_tpu_or_no_grid_is_refused() {
    let _turn = turn();
    let error = compile(&Target::Cpu, &[], 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "target cpu: the report needs the TPU compiler, and this is not a TPU\nhelp: use a target such as tpu-v2"
    );
    let error = compile(&"tpu-v2:3x3".parse().unwrap(), &product(DType::BF16, 8), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "target tpu-v2:3x3: the compiler makes no such grid of chips: v2 comes in boards of 2x2 chips, so both axes are even\n\
         help: use tpu-v2:4x4 or tpu-v2\n\
         compiler: Topology layout \"v2:3x3\" is not divisible by the given (or default) chips_per_host_bounds \"2x2x1\""
    );
}
