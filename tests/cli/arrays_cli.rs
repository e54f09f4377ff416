//! Arrays that `run` refuses, by what they are told.

use bf16scope::data::npz::{Header, NpzWriter};
use bf16scope::hlo::DType;

use crate::run_cli::small;

/// NumPy's `astype` drops an imaginary part.
#[test]
fn complex_arrays_are_not_told_to_become_real_ones() {
    let folder = small();
    let mut npz = NpzWriter::create(folder.path("bad.npz")).unwrap();
    for (name, dtype, dims, n_bytes) in
        [("x", DType::C64, vec![2, 3], 48), ("scale", DType::C128, vec![], 16), ("labels", DType::S32, vec![2], 8)]
    {
        npz.add(name, &Header::for_dtype(dtype, dims), &vec![0; n_bytes]).unwrap();
    }
    npz.finish().unwrap();
    assert_eq!(
        folder.stderr(&["run", "small.txt", "--inputs", "bad.npz"]),
        "bf16scope: bad.npz: parameter 0 (`images`) is given `x`, which is c64[2,3], expected bf16[2,3]\n\
         help: save the part that is meant: .real, .imag or abs(), and .astype('f4') of it\n"
    );
}
