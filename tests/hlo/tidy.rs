//! Tidying other people's modules: valid, smaller, done at once, and not one bit of a result changed.

use crate::run;

use bf16scope::hlo::{Module, proto, verify::verify};
use bf16scope::passes::tidy::{Config, run};
use bf16scope::pjrt::{Arg, CompileOptions};
use std::path::Path;

fn module(path: &Path) -> Module {
    proto::decode::from_bytes(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn foreign_modules_are_tidied_once_and_for_all() {
    let mut n_modules = 0;
    for folder in ["oracle_tf", "oracle_jax"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder);
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "pb") {
                continue;
            }
            n_modules += 1;
            let original = module(&path);
            let (tidied, report) = run(&original, &Config::default()).unwrap();
            verify(&tidied).unwrap_or_else(|errors| panic!("{}: {errors}", path.display()));
            assert_eq!(tidied.entry().result_shape(), original.entry().result_shape());
            assert_eq!(tidied.entry().parameters().len(), original.entry().parameters().len());
            let (again, nothing) = run(&tidied, &Config::default()).unwrap();
            assert!(again == tidied && nothing.changes.is_empty(), "{}: not done at once", path.display());
            let (same, same_report) = run(&original, &Config::default()).unwrap();
            assert!(same == tidied && same_report == report, "{}: not the same twice", path.display());
        }
    }
    assert_eq!(n_modules, 7, "modules of both frameworks");
}

#[test]
fn results_stay_bit_for_bit() {
    let client = run::client();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle_tf/resnet_block_bf16.hlo.pb");
    let original = module(&path);
    let (tidied, report) = run(&original, &Config::default()).unwrap();
    assert!(!report.changes.is_empty());
    let results = [&original, &tidied].map(|module| {
        let program = client.compile(&proto::encode::to_bytes(module).unwrap(), &CompileOptions::default()).unwrap();
        let buffers: Vec<_> = (module.entry().parameters().into_iter().enumerate())
            .map(|(number, id)| {
                let shape = module.entry().instr(id).shape.as_array().unwrap().clone();
                // Labels: small integers. The rest: a wave, so that nothing cancels.
                let bytes: Vec<u8> = (0..shape.n_elements())
                    .flat_map(|i| match number {
                        1 => (i as i32 % 10).to_le_bytes(),
                        _ => ((i as f32 * 0.37 + number as f32).sin() * 0.5 + 0.1).to_le_bytes(),
                    })
                    .collect();
                client.buffer_from_host(&bytes, shape.dtype, &shape.dims, 0).unwrap()
            })
            .collect();
        let outputs = program.execute(buffers.iter().map(Arg::Keep).collect()).unwrap();
        outputs.iter().map(|output| output.to_host().unwrap()).collect::<Vec<_>>()
    });
    assert!(results[0] == results[1], "tidying changed a result");
}
