//! HDF5, archives of PyTorch and tensor bundles whose form is right and whose content is drawn: every array is an error, which
//! prints, or as many bytes as its entry says.
#![no_main]

use bf16scope::weights::{self, WeightsDType};
use bf16scope_fuzz::structured::{self, Draw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    let mut draw = Draw(bytes);
    let name = match draw.below(3) {
        0 => {
            std::fs::write(at("w.h5"), structured::hdf5(&mut draw)).expect("it is writable");
            "w.h5"
        }
        1 => {
            std::fs::write(at("w.pt"), structured::torch(&mut draw)).expect("it is writable");
            "w.pt"
        }
        _ => {
            std::fs::write(at("b.index"), structured::bundle_index(&mut draw)).expect("it is writable");
            let data = [draw.0, &[0; 4096]].concat();
            std::fs::write(at("b.data-00000-of-00001"), data).expect("it is writable");
            "b.index"
        }
    };
    let Ok(file) = weights::open(at(name)).map_err(|error| error.to_string()) else { return };
    let _ = file.check().map_err(|error| error.to_string());
    for entry in file.entries() {
        let looked = file.look(&entry.name).map_err(|error| error.to_string());
        if let (Ok(_), WeightsDType::Array(_)) = (looked, entry.dtype) {
            let literal = file.read(&entry.name).unwrap_or_else(|error| panic!("looked at but not read: {error}"));
            let bf16scope::hlo::Literal::Array { bytes, .. } = literal else { panic!("{} is no array", entry.name) };
            assert_eq!(bytes.len() as u64, entry.n_bytes);
        }
    }
});
