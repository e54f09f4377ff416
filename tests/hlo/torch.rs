//! Modules from torch_xla: read in every form, run, and compared with torch's results. Numbers are integers or halves, so sums are
//! exact in any order, and results are compared bitwise (tests/data/torch/make.py).

use bf16scope::foreign::{self, FileKind};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{ArrayShape, DType, Element, Literal, Module, text, verify};
use bf16scope::pjrt::{ChildSpec, CompileOptions, Setup};
use ndarray::{ArrayD, IxDyn};
use ndarray_npy::{NpzReader, ReadNpzError};
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::run::run_bytes;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/torch").join(name)
}

fn read(name: &str) -> Module {
    let bytes = std::fs::read(data(name)).unwrap();
    let module = match FileKind::of(&bytes) {
        FileKind::HloText => text::parse(std::str::from_utf8(&bytes).unwrap(), name).unwrap(),
        _ => foreign::read(&bytes, name, &Setup::from_env(), &ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope"))).unwrap(),
    };
    verify(&module).unwrap_or_else(|errors| panic!("{name}:\n{errors}"));
    module
}

/// The arrays `in0` and so on of a file, or those of `out0`, as literals.
fn arrays(name: &str, prefix: &str) -> Vec<Literal> {
    let mut file = NpzReader::new(File::open(data(name)).unwrap()).unwrap();
    let n_arrays = file.names().unwrap().iter().filter(|name| name.starts_with(prefix)).count();
    let mut array = |idx: usize| {
        let name = format!("{prefix}{idx}");
        let floats: Result<ArrayD<f32>, ReadNpzError> = file.by_name::<_, IxDyn>(&name);
        match floats {
            Ok(array) => literal(DType::F32, &array),
            Err(_) => literal(DType::S64, &file.by_name::<ndarray::OwnedRepr<i64>, IxDyn>(&name).unwrap()),
        }
    };
    (0..n_arrays).map(&mut array).collect()
}

fn literal<T: Element + Copy>(dtype: DType, array: &ArrayD<T>) -> Literal {
    let mut bytes = Vec::new();
    array.iter().for_each(|value| value.write(&mut bytes));
    let dims: Vec<i64> = array.shape().iter().map(|&dim| dim as i64).collect();
    Literal::Array { shape: ArrayShape::new(dtype, dims), bytes }
}

#[test]
fn what_torch_writes_computes_what_torch_does() {
    for (name, of) in
        [("network.mlir", "network"), ("network.mlirbc", "network"), ("step.mlir", "step"), ("step.hlo", "step")]
    {
        let module = read(name);
        let (arguments, wanted) = (arrays(&format!("{of}.npz"), "in"), arrays(&format!("{of}.npz"), "out"));
        let written = foreign::stablehlo::write(&module).unwrap();
        let again = foreign::read(
            written.text.as_bytes(),
            name,
            &Setup::from_env(),
            &ChildSpec::new(env!("CARGO_BIN_EXE_bf16scope")),
        );
        for module in [module, again.unwrap()] {
            let actual = run_bytes(&encode::to_bytes(&module).unwrap(), &CompileOptions::default(), &arguments);
            assert_eq!(actual, wanted, "{name}");
        }
    }
}

/// For HLO text also the print; torch_xla's is in the older, long dialect.
#[test]
fn hlo_text_of_torch_is_printed_to_the_same_module() {
    let module = read("step.hlo");
    let printed = text::print(&module, &text::PrintOptions::default());
    assert_eq!(text::parse(&printed, "step.hlo").unwrap(), module);
}
