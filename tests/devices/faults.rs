//! Plugins that do what real ones never do: entries that are not there, calls that fail or give nothing, sizes that cannot
//! be. `tests/fake_plugin` does all of it, one fault for each copy of its file. Whatever it does is a typed error, or
//! nothing at all; nothing here ends the process, and every handle is freed, by our count and by the plugin's own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use bf16scope::hlo::DType;
use bf16scope::pjrt::{
    Arg, Client, Code, CompileOptions, ForeignCode, LiveHandles, PjrtError, PjrtErrorKind, Plugin, PluginSpec, Purpose,
    Topology, Value, ffi, live_handles,
};

use crate::alone::alone;
use crate::binary::bf16scope;
use crate::cdylib;
use crate::pjrt_plugins::trusting;
use crate::support::Program;

/// The fake plugin, built once.
fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| cdylib::built("fake_plugin"))
}

/// A copy with this fault, which goes with the folder.
fn copy(fault: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{fault}.so"));
    std::fs::copy(library(), &path).unwrap();
    (folder, path)
}

/// A plugin with this fault. Its file is gone when this returns, and its code is not.
fn load(fault: &str) -> Result<&'static Plugin, PjrtError> {
    let (_folder, path) = copy(fault);
    Plugin::for_spec(&PluginSpec::at(path), &trusting(), Purpose::Run)
}

/// The message, without the plugin's file.
fn message(error: &PjrtError) -> String {
    let text = error.to_string();
    match text.strip_prefix("plugin ").and_then(|rest| rest.split_once(": ")) {
        Some((_, rest)) => format!("plugin FILE: {rest}"),
        None => text,
    }
}

/// Handles that the plugin has given out and not got back.
fn live_in(plugin: &'static Plugin) -> Value {
    plugin.attributes().unwrap()["live"].clone()
}

/// All that this crate asks of a plugin. Errors are collected, and what needs what is not there is left out.
#[derive(Default)]
struct Journey {
    errors: Vec<PjrtError>,
    /// What was read back of `[1, 2, 3, 4]`, before and after a program.
    read: Vec<Vec<u8>>,
}

const INPUT: [u8; 16] = [0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64];

impl Journey {
    fn keep<T>(&mut self, result: Result<T, PjrtError>) -> Option<T> {
        result.map_err(|error| self.errors.push(error)).ok()
    }

    fn on(plugin: &'static Plugin) -> Journey {
        let mut journey = Journey::default();
        let j = &mut journey;
        j.keep(plugin.attributes());
        if let Some(client) = j.keep(Client::new(plugin)) {
            j.client(&client);
        }
        if let Some(topology) = j.keep(Topology::new(plugin, "fake:1", &BTreeMap::new())) {
            j.keep(topology.platform_name());
            j.keep(topology.platform_version());
            if let Some(compiled) = j.keep(topology.compile(&program(), &CompileOptions::default())) {
                j.keep(compiled.name());
            }
        }
        journey
    }

    fn client(&mut self, client: &Client) {
        self.keep(client.platform_name());
        self.keep(client.platform_version());
        for device in client.devices() {
            self.keep(device.memory());
        }
        let executable = self.keep(client.compile(&program(), &CompileOptions::default()));
        if let Some(executable) = &executable {
            let compiled = executable.compiled();
            self.keep(compiled.outputs());
            self.keep(compiled.memory_stats());
            self.keep(compiled.cost_analysis());
            self.keep(compiled.optimized_program());
            self.keep(compiled.fingerprint());
            if let Some(bytes) = self.keep(compiled.serialize()) {
                // SAFETY: the plugin of these tests runs nothing.
                let foreign = Some(unsafe { ForeignCode::allow() });
                self.keep(client.load(&bytes, &program(), &CompileOptions::default(), foreign));
                let refused = client.load(&bytes, &program(), &CompileOptions::default(), None);
                assert!(refused.as_ref().is_err_and(|error| error.kind() == PjrtErrorKind::ForeignCode), "{refused:?}");
            }
        }
        let Some(buffer) = self.keep(client.buffer_from_host(&INPUT, DType::F32, &[2, 2], 0)) else { return };
        self.keep(buffer.n_device_bytes());
        self.keep(buffer.is_deleted());
        self.keep(buffer.address());
        let read = self.keep(buffer.to_host());
        self.read.extend(read);
        let Some(executable) = executable else { return };
        for arg in [Arg::Keep(&buffer), Arg::Donate(client.buffer_from_host(&INPUT, DType::F32, &[2, 2], 0).unwrap())] {
            if let Some(outputs) = self.keep(executable.execute(vec![arg])) {
                for output in outputs {
                    let read = self.keep(output.to_host());
                    self.read.extend(read);
                }
            }
        }
    }
}

fn program() -> Vec<u8> {
    let mut program = Program::default();
    let x = program.parameter(DType::F32, &[2, 2]);
    program.finish(&[x])
}

/// What this crate does not live without: looked for when a plugin is loaded.
const NEEDED: [&str; 5] =
    ["PJRT_Error_Destroy", "PJRT_Error_Message", "PJRT_Error_GetCode", "PJRT_Event_Destroy", "PJRT_Event_Await"];

/// What frees a handle: nothing can be done where that fails but to say so in the log.
fn frees(function: &str) -> bool {
    function.ends_with("_Destroy")
}

/// Sends a journey through a plugin with each of these faults, if it loads, and hands its errors on. The process must
/// have no handles afterwards; the plugin neither, unless it was asked to keep them.
fn each(kind: &str, functions: &[&'static str], mut check: impl FnMut(&'static str, Vec<PjrtError>)) {
    for &function in functions {
        let fault = format!("{kind}.{function}");
        let errors = match load(&fault) {
            Err(error) => vec![error],
            Ok(plugin) => {
                let journey = Journey::on(plugin);
                if kind != "short" && !frees(function) && function != "PJRT_Plugin_Attributes" {
                    assert_eq!(live_in(plugin), Value::Int(0), "{fault}: {:?}", journey.errors);
                }
                journey.errors
            }
        };
        assert_eq!(live_handles(), LiveHandles::default(), "{fault}: {errors:?}");
        check(function, errors);
    }
}

fn functions() -> Vec<&'static str> {
    let functions: Vec<_> = ffi::functions().collect();
    assert!(functions.len() > 40 && functions.contains(&"PJRT_LoadedExecutable_Execute"));
    functions
}

#[test]
fn without_a_fault_all_is_well() {
    alone("faults::without_a_fault_all_is_well", || {
        let plugin = load("sound").unwrap();
        let journey = Journey::on(plugin);
        assert!(journey.errors.is_empty(), "{:?}", journey.errors);
        assert_eq!(journey.read, [INPUT, INPUT, INPUT]);
        assert_eq!((live_handles(), live_in(plugin)), (LiveHandles::default(), Value::Int(0)));
    });
}

#[test]
fn a_null_entry_is_named() {
    alone("faults::a_null_entry_is_named", || {
        each("null", &functions(), |function, errors| {
            assert!(!errors.is_empty() || (frees(function) && !NEEDED.contains(&function)), "{function}");
            for error in errors {
                let expected = format!(
                    "plugin FILE: no function {function}: it has PJRT C API 0.81\nhelp: use a newer plugin (`bf16scope \
                     plugins list` names the pinned ones)"
                );
                assert_eq!(message(&error), expected);
            }
        });
    });
}

#[test]
fn a_table_that_ends_before_an_entry_is_one_without_it() {
    alone("faults::a_table_that_ends_before_an_entry_is_one_without_it", || {
        // Entries behind the end are missing too, so the first error names this one or one behind it.
        let called = functions();
        each("short", &called, |function, errors| {
            let error = errors.first().unwrap_or_else(|| panic!("{function}"));
            assert_eq!(error.kind(), PjrtErrorKind::Unsupported, "{function}: {error:?}");
        });
    });
}

#[test]
fn a_call_that_fails_is_named_with_the_plugins_text() {
    alone("faults::a_call_that_fails_is_named_with_the_plugins_text", || {
        // Errors about errors: the first one is what is said, and both are freed.
        let of_errors = ["PJRT_Error_Destroy", "PJRT_Error_Message", "PJRT_Error_GetCode"];
        let mut functions = functions();
        functions.retain(|function| !of_errors.contains(function));
        each("fail", &functions, |function, errors| {
            assert!(!errors.is_empty() || frees(function), "{function}");
            for error in errors {
                assert_eq!(error.code(), Some(Code::Internal), "{function}");
                assert_eq!(error.to_string(), format!("{function}: INTERNAL: fake: {function} fails"));
            }
        });
    });
}

#[test]
fn an_error_may_have_no_text_no_known_code_and_any_bytes() {
    alone("faults::an_error_may_have_no_text_no_known_code_and_any_bytes", || {
        let create = |fault: &str| {
            let plugin = load(fault).unwrap();
            let text = Client::new(plugin).unwrap_err().to_string();
            assert_eq!((live_handles(), live_in(plugin)), (LiveHandles::default(), Value::Int(0)), "{fault}");
            text
        };
        let without_text = "PJRT_Client_Create: INTERNAL: the plugin gave no text";
        assert_eq!(create("mute.PJRT_Client_Create"), without_text);
        assert_eq!(create("fail.PJRT_Client_Create+null.text"), without_text);
        assert_eq!(create("latin.PJRT_Client_Create"), "PJRT_Client_Create: INTERNAL: caf\u{fffd} \u{fffd}\u{fffd}");
        assert_eq!(create("code.PJRT_Client_Create"), "PJRT_Client_Create: code -7: fake: PJRT_Client_Create fails");
        // The error's own error is freed too.
        assert_eq!(
            create("fail.PJRT_Client_Create+fail.PJRT_Error_GetCode"),
            "PJRT_Client_Create: UNKNOWN: fake: PJRT_Client_Create fails"
        );
    });
}

/// Calls whose result is a handle, by what it is of.
const GIVE_HANDLES: [(&str, &str); 9] = [
    ("PJRT_Client_Create", "client"),
    ("PJRT_Client_Compile", "executable"),
    ("PJRT_Client_BufferFromHostBuffer", "buffer"),
    ("PJRT_Device_GetDescription", "description"),
    ("PJRT_LoadedExecutable_GetExecutable", "executable"),
    ("PJRT_Executable_DeserializeAndLoad", "executable"),
    ("PJRT_LoadedExecutable_Execute", "output"),
    ("PJRT_TopologyDescription_Create", "topology"),
    ("PJRT_Compile", "executable"),
];

#[test]
fn a_call_that_succeeds_and_gives_nothing_is_named() {
    alone("faults::a_call_that_succeeds_and_gives_nothing_is_named", || {
        each("nothing", &functions(), |function, errors| {
            let what = GIVE_HANDLES.iter().find(|row| row.0 == function).map(|row| row.1);
            let texts: Vec<String> = errors.iter().map(message).collect();
            match (function, what) {
                (_, Some(what)) => {
                    assert!(!texts.is_empty(), "{function}");
                    for text in texts {
                        assert_eq!(text, format!("{function}: the plugin reports success and gives no {what}{BUG}"));
                    }
                }
                ("PJRT_Client_AddressableDevices", _) => {
                    assert_eq!(
                        texts,
                        ["the client has no devices that this process can use\nhelp: name another device"]
                    );
                }
                ("PJRT_Client_Devices", _) => {
                    assert_eq!(texts, [impossible(function, "0 devices without device 5 of this process")]);
                }
                ("PJRT_LoadedExecutable_AddressableDevices", _) => {
                    assert_eq!(texts, [impossible(function, "0 devices")]);
                }
                ("PJRT_Executable_OptimizedProgram", _) => assert!(texts[0].contains("format ``"), "{texts:?}"),
                // A scalar, where the plugin was given a matrix.
                ("PJRT_Buffer_Dimensions" | "PJRT_Buffer_ElementType", _) => assert!(!texts.is_empty(), "{function}"),
                ("PJRT_Executable_NumOutputs" | "PJRT_Executable_OutputElementTypes", _) => {
                    assert!(!texts.is_empty(), "{function}");
                }
                ("PJRT_Executable_OutputDimensions", _) => assert!(!texts.is_empty(), "{function}"),
                // Empty names, zeros, nothing brought: it cannot be told from an answer.
                _ => assert!(texts.is_empty(), "{function}: {texts:?}"),
            }
        });
    });
}

/// What such a message ends with.
const BUG: &str = "\nhelp: this is a bug of the plugin";

fn impossible(function: &str, what: &str) -> String {
    format!("{function}: the plugin gives {what}, which cannot be{BUG}")
}

#[test]
fn a_size_without_a_list_and_a_list_of_nulls_are_named() {
    alone("faults::a_size_without_a_list_and_a_list_of_nulls_are_named", || {
        let lists = [
            "PJRT_Client_Devices",
            "PJRT_Client_AddressableDevices",
            "PJRT_DeviceDescription_Attributes",
            "PJRT_Executable_GetCostAnalysis",
            "PJRT_Executable_OutputElementTypes",
            "PJRT_Executable_OutputDimensions",
            "PJRT_Buffer_Dimensions",
            "PJRT_Plugin_Attributes",
        ];
        each("headless", &lists, |function, errors| {
            assert!(!errors.is_empty(), "{function}");
            for error in errors {
                let text = error.to_string();
                assert!(text.starts_with(&format!("{function}: the plugin gives ")), "{text}");
                assert!(text.ends_with(&format!(" elements without a list, which cannot be{BUG}")), "{text}");
            }
        });
        // Texts that are not there are empty.
        let texts = ["PJRT_Client_PlatformName", "PJRT_DeviceDescription_Kind", "PJRT_Executable_Name"];
        each("headless", &texts, |function, errors| assert!(errors.is_empty(), "{function}: {errors:?}"));
        let holes = [
            ("PJRT_Client_Devices", "device"),
            ("PJRT_Client_AddressableDevices", "device"),
            ("PJRT_Client_BufferFromHostBuffer", "buffer"),
            ("PJRT_LoadedExecutable_Execute", "output"),
            ("PJRT_TopologyDescription_GetDeviceDescriptions", "description"),
        ];
        for (function, what) in holes {
            each("holes", &[function], |function, errors| {
                assert!(!errors.is_empty(), "{function}");
                for error in errors {
                    let text = format!("{function}: the plugin reports success and gives no {what}{BUG}");
                    assert_eq!(error.to_string(), text);
                }
            });
        }
    });
}

#[test]
fn sizes_that_cannot_be_are_named_and_not_believed() {
    alone("faults::sizes_that_cannot_be_are_named_and_not_believed", || {
        let first = |kind: &str, function: &'static str| {
            let mut first = None;
            each(kind, &[function], |_, errors| first = errors.first().map(PjrtError::to_string));
            first.unwrap_or_else(|| panic!("{kind}.{function}"))
        };
        let of = |function| first("wrong", function);
        assert_eq!(
            of("PJRT_LoadedExecutable_AddressableDevices"),
            impossible("PJRT_LoadedExecutable_AddressableDevices", &format!("{} devices", usize::MAX))
        );
        assert_eq!(
            of("PJRT_Executable_NumOutputs"),
            impossible("PJRT_Executable_NumOutputs", &format!("{} outputs", usize::MAX))
        );
        assert_eq!(
            of("PJRT_Executable_OutputElementTypes"),
            impossible("PJRT_Executable_OutputElementTypes", "2 types of 1 outputs")
        );
        assert_eq!(
            of("PJRT_Executable_OutputDimensions"),
            impossible("PJRT_Executable_OutputDimensions", &format!("{} dimensions", usize::MAX))
        );
        let bytes = usize::MAX / 4;
        assert_eq!(
            of("PJRT_Executable_OptimizedProgram"),
            impossible("PJRT_Executable_OptimizedProgram", &format!("a program of {bytes} bytes"))
        );
        assert_eq!(
            first("grows", "PJRT_Executable_OptimizedProgram"),
            impossible("PJRT_Executable_OptimizedProgram", "a program of 5 bytes in place of 4")
        );
        assert_eq!(
            first("format", "PJRT_Executable_OptimizedProgram"),
            "the plugin returned an optimized program in format `mlir`, expected `hlo` or `hlo_with_config`"
        );
        assert_eq!(
            of("PJRT_Buffer_Dimensions"),
            "f32[-1, 9223372036854775807]: dimensions must not be negative, nor their product exceed the address space"
        );
        assert_eq!(of("PJRT_Buffer_ElementType"), "output of PJRT buffer type 9999: not a dtype of this crate");
        // Texts of all the address space are no texts.
        let texts = ["PJRT_Client_PlatformName", "PJRT_DeviceDescription_Kind", "PJRT_Executable_Name"];
        each("huge", &texts, |function, errors| assert!(errors.is_empty(), "{function}: {errors:?}"));
        each("huge", &["PJRT_Executable_Fingerprint", "PJRT_Executable_Serialize"], |function, errors| {
            assert_eq!(errors.len(), 1, "{function}");
        });
    });
}

#[test]
fn attributes_may_be_strange() {
    alone("faults::attributes_may_be_strange", || {
        let strange =
            ["PJRT_Plugin_Attributes", "PJRT_DeviceDescription_Attributes", "PJRT_Executable_GetCostAnalysis"];
        each("strange", &strange, |function, errors| assert!(errors.is_empty(), "{function}: {errors:?}"));
        let attributes = load("strange.PJRT_Plugin_Attributes").unwrap().attributes().unwrap();
        let expected = [
            ("", Value::Bool(true)),
            ("kind", Value::Str("fake".to_string())),
            ("live", Value::Int(0)),
            ("null_list", Value::Ints(Vec::new())),
            ("null_text", Value::Str(String::new())),
        ];
        assert_eq!(attributes, expected.map(|(name, value)| (name.to_string(), value)).into());
    });
}

#[test]
fn a_table_that_is_none_or_another_one_is_named() {
    let error = |fault: &str| message(&load(fault).unwrap_err());
    assert_eq!(
        error("no.table"),
        "plugin FILE: not a PJRT plugin: its GetPjrtApi gives no table\nhelp: name a PJRT plugin, such as the one in the \
         xla-cpu-pjrt wheel"
    );
    assert_eq!(
        error("tiny.table"),
        "plugin FILE: not a PJRT plugin: its table has 16 bytes, less than its head's 40\nhelp: name a PJRT plugin, such as \
         the one in the xla-cpu-pjrt wheel"
    );
    assert_eq!(
        error("newer.major"),
        "plugin FILE: PJRT C API 1.81, this build knows 0.x (since 0.81)\nhelp: use a plugin of that major version"
    );
}

#[test]
fn a_client_may_have_no_device_or_more_than_one() {
    alone("faults::a_client_may_have_no_device_or_more_than_one", || {
        let none = load("devices.0").unwrap();
        assert_eq!(
            Client::new(none).unwrap_err().to_string(),
            "the client has no devices that this process can use\nhelp: name another device"
        );
        let two = load("devices.2").unwrap();
        let client = Client::new(two).unwrap();
        assert_eq!(client.devices().len(), 2);
        // Its programs run on a device that is not the client's.
        let id = client.devices()[1].description().id;
        let options = CompileOptions { device_ids: vec![id], ..CompileOptions::default() };
        assert_eq!(
            client.compile(&program(), &options).unwrap_err().to_string(),
            impossible(
                "PJRT_LoadedExecutable_AddressableDevices",
                &format!("devices [None] where [Some({id})] were asked for")
            )
        );
        drop(client);
        assert_eq!(
            (live_handles(), live_in(none), live_in(two)),
            (LiveHandles::default(), Value::Int(0), Value::Int(0))
        );
    });
}

/// The same through the program, where the plugin is in a child.
#[test]
fn the_program_says_what_is_wrong_with_a_plugin() {
    let run = |fault: &str| {
        let (_folder, path) = copy(fault);
        let device = format!("plugin:{}", path.display());
        let output =
            bf16scope(&["run", "hlo/mlp_inference_f32.txt", "--random", "0", "--device", &device]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap().replace(path.to_str().unwrap(), "FILE");
        (output.status.code(), text)
    };
    assert_eq!(
        run("fail.PJRT_Client_Create"),
        (Some(2), "bf16scope: PJRT_Client_Create: INTERNAL: fake: PJRT_Client_Create fails\n".to_string())
    );
    assert_eq!(
        run("nothing.PJRT_Client_Create"),
        (Some(2), format!("bf16scope: PJRT_Client_Create: the plugin reports success and gives no client{BUG}\n"))
    );
    assert_eq!(
        run("null.PJRT_Client_Compile"),
        (
            Some(2),
            "bf16scope: hlo/mlp_inference_f32.txt cannot be compiled\n  caused by: plugin FILE: no function \
             PJRT_Client_Compile: it has PJRT C API 0.81\nhelp: use a newer plugin (`bf16scope plugins list` names the \
             pinned ones)\n"
                .to_string()
        )
    );
    let (_folder, path) = copy("sound");
    let device = format!("plugin:{}", path.display());
    let output = bf16scope(&["doctor", "--json", "--device", &device]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["plugins"][2]["state"], "named");
    assert_eq!(found[&device][0]["detail"], format!("{}, platform fake, version 0", path.display()));
    assert_eq!(found[&device][1]["detail"], "1 × fake");
    assert_eq!(found["cpu"], serde_json::json!([]));
}

/// XLA's compilers dump the program that they convert. This one accepts any program, and dumps nothing.
#[test]
fn a_compiler_that_converts_nothing_is_named() {
    let (folder, path) = copy("sound");
    let file = folder.path().join("m.mlir");
    let refused = |program: &[u8], sizes: &[&str]| {
        std::fs::write(&file, program).unwrap();
        let args = [&["run", file.to_str().unwrap(), "--random", "0"][..], sizes].concat();
        let output = bf16scope(&args).env("BF16SCOPE_CPU_PLUGIN", &path).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap().replace(file.to_str().unwrap(), "FILE")
    };
    let text = "module @m {\n  func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n    %0 = chlo.erf_inv %a : \
                tensor<2xf32> -> tensor<2xf32>\n    return %0 : tensor<2xf32>\n  }\n}\n";
    for (program, sizes, doing, answer) in [
        (text.as_bytes(), &[][..], "converting", "no file *.before_optimizations.hlo.pb"),
        (&b"ML\xefR\rStableHLO_v1.0.0\0"[..], &["--dim", "b=3"][..], "reading", "no file module.mlir"),
    ] {
        let error = refused(program, sizes);
        let expected = format!(
            "FILE: this StableHLO cannot be converted: {doing} `StableHLO`: the child process answered {answer}: this is a \
             bug of bf16scope, please report it\n"
        );
        assert!(error.contains(&expected), "{error}");
    }
}
