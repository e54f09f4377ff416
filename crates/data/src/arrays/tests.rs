//! Arrays in memory as examples.

use super::*;
use bf16scope_hlo::DType;

fn infos() -> [ArrayInfo; 2] {
    [ArrayInfo::new("x", DType::U8, [2]), ArrayInfo::new("y", DType::S16, [])]
}

fn arrays(n: u8) -> Result<Arrays, DataError> {
    let [x, y] = infos();
    let labels = (0..i16::from(n)).flat_map(i16::to_le_bytes).collect();
    Arrays::new(Path::new("a.npz"), vec![(x, (0..2 * n).collect()), (y, labels)])
}

fn message<T: std::fmt::Debug>(result: Result<T, DataError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn arrays_of_a_program_are_examples() {
    let x = || Array::from_vec(vec![1.5f32, -2.0, 0.25, 4.0], [2, 2]).unwrap();
    let source = Arrays::from_arrays([("x", x()), ("label", vec![3i32, 4].into())]).unwrap();
    assert_eq!(source.arrays(), [ArrayInfo::new("x", DType::F32, [2]), ArrayInfo::new("label", DType::S32, [])]);
    assert_eq!((source.array("x").unwrap(), source.array("label").unwrap()), (x(), vec![3i32, 4].into()));
    assert_eq!(source.place(1), "memory, example 1");
    let (first, second) = source.split_tail(1).unwrap();
    assert_eq!(first.array("x").unwrap().to_vec::<f32>().unwrap(), [1.5, -2.0]);
    assert_eq!(second.array("x").unwrap().to_vec::<f32>().unwrap(), [0.25, 4.0]);

    let new = |array| message(Arrays::from_arrays([("x", x()), ("y", array)]));
    assert_eq!(
        new(Array::from_slice(&[1f32], []).unwrap()),
        "memory: array `y` is f32[]; expected examples along its first axis"
    );
    assert_eq!(new(vec![1u8; 3].into()), "memory: array `y` has 3 examples, `x` has 2; expected as many of each");
    let short = Array { bytes: vec![0; 4], ..x() };
    assert_eq!(new(short), "memory: array `y` has 0 examples, `its shape` has 2; expected as many of each");
    let other = Arrays::from_arrays([("x", x())]).unwrap();
    assert!(message(other.array("z")).contains("there is no array `z`"));
}

#[test]
fn examples_are_lent() {
    let arrays = arrays(5).unwrap();
    assert_eq!(arrays.n_examples(), 5);
    let read = arrays.read(3).unwrap();
    assert!(read.iter().all(|bytes| matches!(bytes, Cow::Borrowed(_))));
    assert_eq!(read, [&[6u8, 7][..], &[3, 0]]);
    assert_eq!(arrays.place(3), "a.npz, example 3");
    assert_eq!(message(arrays.read(5)), "a.npz, example 5: there is no such example; expected one of 5, from 0");
}

#[test]
fn places_in_an_array_of_rank_1_know_their_sizes() {
    let x = Array::from_vec(vec![3f64, 200.0, -4.0, 0.0], [2, 2]).unwrap();
    let square = Array::from_vec(vec![1f32; 8], [2, 2, 2]).unwrap();
    let arrays = Arrays::from_arrays([("label", vec![1i32, 0].into()), ("x", x), ("square", square)]).unwrap();
    let place = |number: u64, rms: f64| ColumnSize { name: None, number, is_of_feature: true, rms: (0.5 * rms) as f32 };
    let sizes = arrays.scaled("x", 0.5).unwrap();
    assert_eq!(sizes.columns("x"), Some(vec![place(1, 12.5f64.sqrt()), place(2, 20000f64.sqrt())]));
    assert_eq!((sizes.columns("label"), sizes.columns("square")), (None, None));
}

#[test]
fn a_split_keeps_places() {
    let (train, test) = arrays(5).unwrap().split_tail(2).unwrap();
    assert_eq!((train.n_examples(), test.n_examples()), (3, 2));
    assert_eq!(test.read(0).unwrap(), [&[6u8, 7][..], &[3, 0]]);
    assert_eq!(test.place(1), "a.npz, example 4");
    let (train, test) = arrays(5).unwrap().with_lines(vec![(0, 1), (2, 7), (4, 20)]).split_tail(2).unwrap();
    assert_eq!([0, 1, 2].map(|idx| train.place(idx)), ["a.npz:1", "a.npz:2", "a.npz:7"]);
    assert_eq!([0, 1].map(|idx| test.place(idx)), ["a.npz:8", "a.npz:20"]);
    for n_test in [0, 5, 6] {
        assert_eq!(
            message(arrays(5).unwrap().split_tail(n_test)),
            format!("cannot keep {n_test} examples for testing; the data set has 5, and one must be left to train on")
        );
    }
}

#[test]
fn files_are_joined() {
    let file = Path::new("b.idx");
    let weights = |name: &str, n| Arrays::new(file, vec![(ArrayInfo::new(name, DType::U8, []), vec![1; n])]).unwrap();
    let joined = arrays(5).unwrap().join(weights("w", 5)).unwrap();
    assert_eq!(joined.arrays().len(), 3);
    assert_eq!(joined.read(1).unwrap()[2..], [&[1u8][..]]);
    assert_eq!(joined.place(1), "a.npz and b.idx, example 1");
    assert_eq!(
        message(arrays(5).unwrap().join(weights("w", 4))),
        "b.idx: array `w` has 4 examples, `x` has 5; expected as many of each"
    );
    assert_eq!(
        message(arrays(5).unwrap().join(weights("y", 5))),
        "b.idx: two arrays are named `y`; expected a name for each"
    );
}

#[test]
fn impossible_arrays_are_refused() {
    let new = |arrays| message(Arrays::new(Path::new("a.npz"), arrays));
    let [x, y] = infos();
    assert_eq!(new(vec![]), "a.npz: no examples; expected one at least");
    assert_eq!(new(vec![(x.clone(), vec![])]), "a.npz: no examples; expected one at least");
    assert_eq!(
        new(vec![(x.clone(), vec![0; 3])]),
        "a.npz: array `x` has 3 bytes, which are not whole examples; expected a multiple of 2"
    );
    assert_eq!(
        new(vec![(x.clone(), vec![0; 4]), (y, vec![0; 6])]),
        "a.npz: array `y` has 3 examples, `x` has 2; expected as many of each"
    );
    assert_eq!(
        new(vec![(x.clone(), vec![0; 4]), (x, vec![0; 4])]),
        "a.npz: two arrays are named `x`; expected a name for each"
    );
    assert_eq!(
        new(vec![(ArrayInfo::new("x", DType::U8, [2, 0]), vec![])]),
        "feature dimensions [2, 0] do not make an example; expected positive ones"
    );
}

#[test]
fn dims_and_scales_are_said_afterwards() {
    let changed = arrays(5).unwrap().scaled("x", 0.5).unwrap().reshaped("x", [1, 2, 1]).unwrap();
    assert_eq!(changed.arrays()[0], ArrayInfo { scale: 0.5, ..ArrayInfo::new("x", DType::U8, [1, 2, 1]) });
    assert_eq!(
        message(arrays(5).unwrap().reshaped("x", [3])),
        "a.npz: array `x` has dims [2] in each example; expected [3]"
    );
    assert_eq!(
        message(arrays(5).unwrap().scaled("yy", 0.5)),
        "a.npz: there is no array `yy`; it has `x`, `y`\nhelp: did you mean `y`?"
    );
    assert_eq!(
        message(arrays(5).unwrap().scaled("x", f32::NAN)),
        "a.npz: array `x` cannot be multiplied with NaN; expected a finite scale other than 0"
    );
}

#[test]
fn a_fingerprint_shows_what_changed() {
    let whole = arrays(5).unwrap().fingerprint();
    assert_eq!(whole, arrays(5).unwrap().fingerprint());
    let changed = |change: &dyn Fn(&mut Arrays)| {
        let mut other = arrays(5).unwrap();
        change(&mut other);
        let other = other.fingerprint();
        (other.n_examples != whole.n_examples, ["x", "y"].map(|name| other.arrays[name] != whole.arrays[name]))
    };
    assert_eq!(changed(&|arrays| arrays.bytes[0][9] = 0), (false, [true, false]));
    assert_eq!(changed(&|arrays| arrays.bytes[1].swap(0, 2)), (false, [false, true]));
    assert_eq!(changed(&|arrays| arrays.infos[0].dims = vec![2, 1]), (false, [true, false]));
    assert_eq!(changed(&|arrays| arrays.infos[0].scale = 0.5), (false, [true, false]));
    assert_eq!(changed(&|arrays| arrays.infos[1].dtype = DType::U16), (false, [false, true]));
    assert_eq!(changed(&|arrays| *arrays = arrays.clone().split_tail(1).unwrap().0), (true, [true, true]));
    // The file's name and its line numbers do not enter the fingerprint.
    assert_eq!(changed(&|arrays| arrays.files[0] = "b.npz".into()), (false, [false, false]));
}
