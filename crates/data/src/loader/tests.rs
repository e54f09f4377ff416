//! The loader on small sources, compared with a reference implementation that handles one number after another.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::cast::number;
use crate::error::DataError;
use crate::source::{Elements, Fingerprint, Skipped, Spent};
use crate::{ArrayInfo, Arrays};
use bf16scope_hlo::numerics::bf16::{bf16_from_f32, f16_from_f32};

/// Ten examples: `x` is `[idx, -idx / 3]` in f32, `label` `idx % 5` as a byte, `image` 3×4 intensities as bytes.
fn source() -> Arrays {
    let x = (0..10).flat_map(|idx| [idx as f32, -(idx as f32) / 3.0]).flat_map(f32::to_le_bytes).collect();
    let labels = (0..10).map(|idx| idx % 5).collect();
    let images = (0..120).map(|idx| idx + 1).collect();
    let arrays = vec![
        (ArrayInfo::new("x", DType::F32, [2]), x),
        (ArrayInfo::new("label", DType::U8, []), labels),
        (ArrayInfo::new("image", DType::U8, [3, 4, 1]), images),
    ];
    Arrays::new(Path::new("a.npz"), arrays).unwrap()
}

fn x() -> Feature {
    Feature::compute("x", [2])
}

fn label() -> Feature {
    Feature::exact("label", DType::S32, []).label().below(5)
}

fn image() -> Feature {
    Feature::compute("image", [3, 4, 1])
}

fn loader<'a>(source: &'a Arrays, features: &[Feature], batch: usize, seed: u64) -> Loader<'a> {
    Loader::new(source, features, DType::F32, batch, seed).unwrap()
}

fn floats(array: &NamedArray) -> Vec<f32> {
    assert_eq!(array.dtype, DType::F32);
    array.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn integers(array: &NamedArray) -> Vec<i32> {
    assert_eq!(array.dtype, DType::S32);
    array.bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
}

fn all(batches: impl Iterator<Item = Result<Batch, DataError>>) -> Vec<Batch> {
    batches.collect::<Result<_, _>>().unwrap()
}

fn message<T: std::fmt::Debug>(result: Result<T, DataError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn arrays_come_in_the_order_of_the_features() {
    let source = source();
    let batch = loader(&source, &[label(), x()], 4, 0).in_order().nth(1).unwrap().unwrap();
    let [label, x] = batch.arrays.as_slice() else { panic!("{batch:?}") };
    assert_eq!(
        (label.name.as_str(), label.dims.as_slice(), x.name.as_str(), x.dims.as_slice()),
        ("label", &[4i64][..], "x", &[4i64, 2][..])
    );
    assert_eq!(integers(label), [4, 0, 1, 2]);
    assert_eq!(floats(x)[..4], [4.0, -4.0 / 3.0, 5.0, -5.0 / 3.0]);
}

/// The examples that each host reads in an epoch, from a Python implementation of `order`: `order(10, 7, 3)` is 7, 6,
/// 2, 3, 5, 9, 0, 1, 4, 8. If this changes, a resumed slice reads other examples than before: do not bless it.
#[test]
fn the_share_of_a_host_never_changes() {
    let source = source();
    let share = |number| -> Vec<Vec<f32>> {
        let host = loader(&source, &[x()], 2, 7).of_host(number, 2).unwrap();
        let first = |batch: &Batch| floats(&batch.arrays[0]).into_iter().step_by(2).collect();
        all(host.epoch(3)).iter().map(first).collect()
    };
    assert_eq!(share(0), [[7.0, 6.0], [5.0, 9.0]]);
    assert_eq!(share(1), [[2.0, 3.0], [0.0, 1.0]]);
}

#[test]
fn hosts_together_make_the_batches_of_one() {
    let source = source();
    let whole = loader(&source, &[x(), label()], 4, 7);
    let part = |host, n: u32| loader(&source, &[x(), label()], 4 / n as usize, 7).of_host(host, n).unwrap();
    let joined = |of_hosts: &[Batch]| -> (Vec<Vec<u8>>, usize) {
        let array = |number: usize| of_hosts.iter().flat_map(|batch| batch.arrays[number].bytes.clone()).collect();
        ((0..2).map(array).collect(), of_hosts.iter().map(|batch| batch.n_valid).sum())
    };
    for n in [1, 2, 4] {
        let hosts: Vec<Loader<'_>> = (0..n).map(|host| part(host, n)).collect();
        assert!(hosts.iter().all(|host| host.n_steps() == 2));
        for epoch in 0..3 {
            for step in 0..2 {
                let of_hosts: Vec<Batch> = hosts.iter().map(|host| host.steps(epoch, step, 1).unwrap()).collect();
                assert_eq!(joined(&of_hosts), joined(&[whole.steps(epoch, step, 1).unwrap()]), "{n} hosts");
            }
            // When two steps are joined, each host has its part of the first, then of the second.
            let both: Vec<Batch> = hosts.iter().map(|host| host.steps(epoch, 0, 2).unwrap()).collect();
            for (host, both) in hosts.iter().zip(both) {
                let one_by_one: Vec<Batch> = all(host.epoch(epoch));
                for array in 0..2 {
                    let bytes: Vec<u8> =
                        one_by_one.iter().flat_map(|batch| batch.arrays[array].bytes.clone()).collect();
                    assert_eq!(both.arrays[array].bytes, bytes);
                }
            }
        }
        // Ten examples: the third batch of four is half full.
        let of_hosts: Vec<Vec<Batch>> = hosts.iter().map(|host| all(host.in_order())).collect();
        for (step, of_one) in whole.in_order().enumerate() {
            let of_step: Vec<Batch> = of_hosts.iter().map(|batches| batches[step].clone()).collect();
            assert_eq!(joined(&of_step), joined(&[of_one.unwrap()]), "{n} hosts, step {step}");
        }
    }
    assert_eq!(
        message(whole.clone().of_host(2, 2)),
        "host 2 of 2; expected a number below 2: hosts are counted from 0"
    );
    assert_eq!(
        message(whole.of_host(0, 3)),
        "a batch of 12 does not fit: expected 1 to 10, as many as there are examples"
    );
}

#[test]
fn an_epoch_is_its_order_without_the_remainder() {
    let source = source();
    let loader = loader(&source, &[x(), label()], 3, 7);
    assert_eq!((loader.n_steps(), loader.epoch(0).len()), (3, 3));
    let mut left_out = [0; 10];
    for epoch in 0..200 {
        let batches = all(loader.epoch(epoch));
        let order = Order::new(10, 7, epoch);
        let seen: Vec<u64> =
            batches.iter().flat_map(|batch| floats(&batch.arrays[0])).step_by(2).map(|value| value as u64).collect();
        assert_eq!(seen, (0..9).map(|position| order.at(position)).collect::<Vec<_>>());
        for batch in &batches {
            assert_eq!(batch.n_valid, 3);
            for (x, label) in floats(&batch.arrays[0]).as_chunks::<2>().0.iter().zip(integers(&batch.arrays[1])) {
                assert_eq!((x[1], x[0] as i32 % 5), (-x[0] / 3.0, label));
            }
        }
        left_out[order.at(9) as usize] += 1;
    }
    assert!(left_out.iter().all(|&n| n > 0), "every example is left out at times: {left_out:?}");
}

#[test]
fn evaluation_pads_its_last_batch() {
    let source = source();
    let batches = all(loader(&source, &[x(), label()], 4, 0).in_order());
    assert_eq!(batches.iter().map(|batch| batch.n_valid).collect::<Vec<_>>(), [4, 4, 2]);
    assert_eq!(floats(&batches[2].arrays[0])[4..], [0.0; 4]);
    assert_eq!(integers(&batches[2].arrays[1]), [3, 4, 0, 0]);
    let whole = all(loader(&source, &[x()], 5, 0).in_order());
    assert_eq!(whole.iter().map(|batch| batch.n_valid).collect::<Vec<_>>(), [5, 5]);
}

/// More examples, of a larger size, than can exist.
#[derive(Debug)]
struct Huge(Vec<ArrayInfo>);

impl Source for Huge {
    fn n_examples(&self) -> u64 {
        u64::MAX
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.0
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        Err(DataError::no_example(self.place(index), 0))
    }

    fn place(&self, index: u64) -> String {
        format!("huge, example {index}")
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint { n_examples: u64::MAX, arrays: [].into() }
    }
}

#[test]
fn sizes_beyond_memory_are_refused() {
    let source = Huge((0..25).map(|idx| ArrayInfo::new(&format!("array{idx}"), DType::U8, [1i64 << 40])).collect());
    let loader =
        |name: &str, batch| Loader::new(&source, &[Feature::compute(name, [1i64 << 40])], DType::F32, batch, 0);
    assert_eq!(
        message(loader("array3", 1 << 30)),
        "1073741824 examples of `array3`, [1099511627776] each, are more than memory holds; expected a smaller batch"
    );
    assert_eq!(loader("array3", 1).unwrap().n_steps(), u64::MAX);
    let error = message(loader("x", 1));
    assert!(error.ends_with(", `array19` and 5 more\nhelp: name one of these"), "{error}");
}

/// Counts the examples that are read.
#[derive(Debug)]
struct Counted(Arrays, AtomicU64);

impl Source for Counted {
    fn n_examples(&self) -> u64 {
        self.0.n_examples()
    }

    fn arrays(&self) -> &[ArrayInfo] {
        self.0.arrays()
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        match index {
            // Faults of a foreign source.
            9 => Ok(vec![Cow::Owned(vec![0; 3])]),
            8 => Err(DataError::unreadable(self.place(8), "the disk is on fire")),
            index => self.0.read(index),
        }
    }

    fn place(&self, index: u64) -> String {
        self.0.place(index)
    }

    fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint()
    }
}

#[test]
fn nothing_is_read_for_what_is_skipped() {
    let source = Counted(source(), AtomicU64::new(0));
    let loader = Loader::new(&source, &[x(), label()], DType::BF16, 2, 3).unwrap();
    let mut rest = loader.in_order().skip(2);
    assert_eq!(rest.len(), 3);
    rest.next().unwrap().unwrap();
    assert_eq!(source.1.load(Ordering::Relaxed), 2);
    loader.epoch(4).nth(4).unwrap().ok();
    assert!(source.1.load(Ordering::Relaxed) <= 4);

    let loader = Loader::new(&source.0, &[x(), label()], DType::BF16, 2, 3).unwrap();
    let (whole, rest) = (all(loader.epoch(9)), all(loader.epoch(9).skip(3)));
    assert_eq!(whole[3..], rest);
}

#[test]
fn what_a_source_does_wrong_is_said() {
    let source = Counted(source(), AtomicU64::new(0));
    let one = |idx| Loader::new(&source, &[x(), label()], DType::BF16, 1, 3).unwrap().in_order().nth(idx).unwrap();
    let error = one(8).unwrap_err();
    assert_eq!(error.to_string(), "a.npz, example 8: the example cannot be read");
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is on fire");
    assert_eq!(message(one(9)), "a.npz, example 9: array `x` came with 3 bytes; expected 8, as its dims and dtype say");
    let label = Loader::new(&source, &[label()], DType::BF16, 1, 3).unwrap();
    assert_eq!(
        message(label.in_order().nth(9).unwrap()),
        "a.npz, example 9: array `label` came with 0 bytes; expected 1, as its dims and dtype say"
    );
}

#[test]
fn epochs_are_shifted_and_evaluations_are_not() {
    let source = source();
    let plain = loader(&source, &[image(), x(), label()], 2, 3);
    let shifted = plain.clone().shifted(1).unwrap();
    let (before, after) = (all(plain.epoch(0)), all(shifted.epoch(0)));
    assert_ne!(before, after);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.arrays[1..], after.arrays[1..], "only images move");
    }
    assert_eq!(all(shifted.epoch(1))[2..], all(shifted.epoch(1).skip(2)));
    assert_eq!(all(plain.in_order()), all(shifted.in_order()));
    assert_eq!(before, all(shifted.shifted(0).unwrap().epoch(0)));
}

/// Moved pixel by pixel in f32 and cast afterwards, images are the same.
#[test]
fn images_are_shifted_as_pixel_by_pixel() {
    let source = source().scaled("image", 1.0 / 16.0).unwrap();
    for (seed, epoch) in [(0, 0), (0, 1), (5, 9)] {
        let loader = Loader::new(&source, &[image()], DType::BF16, 10, seed).unwrap().shifted(2).unwrap();
        let batch = loader.epoch(epoch).next().unwrap().unwrap();
        let order = Order::new(10, seed, epoch);
        let mut expected = Vec::new();
        for position in 0..10 {
            let index = order.at(position) as usize;
            let image: Vec<f32> = (0..12).map(|pixel| (index * 12 + pixel + 1) as f32 / 16.0).collect();
            let (down, right) = shift::offset(2, seed, epoch, index as u64).unwrap_or((0, 0));
            for (row, column) in (0..3isize).flat_map(|row| (0..4isize).map(move |column| (row, column))) {
                let (row, column) = (row - down, column - right);
                let is_in = (0..3).contains(&row) && (0..4).contains(&column);
                expected.push(if is_in { image[(row * 4 + column) as usize] } else { 0.0 });
            }
        }
        let expected: Vec<u8> = expected.iter().flat_map(|&value| bf16_from_f32(value).to_le_bytes()).collect();
        assert_eq!(batch.arrays[0].bytes, expected);
    }
}

#[test]
fn all_images_of_an_example_move_alike() {
    let pair = source();
    let twin = |info: &ArrayInfo| (ArrayInfo { name: "twin".to_string(), ..info.clone() }, (1..=120).collect());
    let pair = pair.clone().join(Arrays::new(Path::new("b.npz"), vec![twin(&pair.arrays()[2])]).unwrap()).unwrap();
    let features = [image(), Feature::compute("twin", [3, 4, 1]).label()];
    for batch in all(loader(&pair, &features, 2, 3).shifted(1).unwrap().epoch(0)) {
        assert_eq!(batch.arrays[0].bytes, batch.arrays[1].bytes);
    }
}

#[test]
fn only_images_can_be_shifted() {
    let source = source();
    assert_eq!(
        message(loader(&source, &[x(), label()], 1, 0).shifted(1)),
        "no feature can be shifted: `x` has dims [2]; expected an image that is cast: [height, width, channels]"
    );
    assert_eq!(
        message(loader(&source, &[label()], 1, 0).shifted(1)),
        "no feature can be shifted: there is none; expected an image that is cast: [height, width, channels]"
    );
    assert_eq!(
        message(loader(&source, &[image()], 1, 0).shifted(3)),
        "images of 3×4 pixels cannot be shifted by up to 3: some would be all 0\nhelp: set `shift` to less than 3, or to 0"
    );
}

#[test]
fn features_that_do_not_fit_are_refused() {
    let source = source();
    let new = |feature: Feature| message(Loader::new(&source, &[feature], DType::BF16, 1, 0));
    assert_eq!(
        new(Feature::compute("imagE", [3, 4, 1])),
        "a.npz, example 0: there is no array `imagE`; it has `x`, `label`, `image`\nhelp: did you mean `image`?"
    );
    assert_eq!(
        new(Feature::compute("tokens", [3])),
        "a.npz, example 0: there is no array `tokens`; it has `x`, `label`, `image`\nhelp: name one of these"
    );
    assert_eq!(
        new(Feature::compute("image", [12])),
        "a.npz, example 0: array `image` has dims [3, 4, 1] in each example; expected [12]"
    );
    assert_eq!(
        new(Feature::compute("x", [0])),
        "feature dimensions [0] do not make an example; expected positive ones"
    );
    assert_eq!(
        new(Feature::exact("x", DType::S32, [2])),
        "a.npz, example 0: array `x` is f32, which does not become s32; expected pred or integers of 8 to 64 bits\nhelp: \
         save it as int32, if these are whole numbers: in NumPy, `x.astype('int32')`"
    );
    assert_eq!(
        new(Feature::exact("x", DType::BF16, [2])),
        "a.npz, example 0: array `x` is f32, which does not become bf16; expected bf16"
    );
    assert_eq!(
        new(Feature::compute("x", [2]).below(3)),
        "feature `x` is bf16 below 3; expected integers of 8 to 64 bits, and a positive bound"
    );
    assert_eq!(
        new(label().below(0)),
        "feature `label` is s32 below 0; expected integers of 8 to 64 bits, and a positive bound"
    );
    assert_eq!(
        message(Loader::new(&source, &[x(), x()], DType::F32, 1, 0)),
        "two features are named `x`; expected a name for each"
    );
    for batch in [0, 11] {
        assert_eq!(
            message(Loader::new(&source, &[x()], DType::F32, batch, 0)),
            format!("a batch of {batch} does not fit: expected 1 to 10, as many as there are examples")
        );
    }
    assert_eq!(
        message(Loader::new(&source, &[x()], DType::S32, 1, 0)),
        "features cannot be cast to s32 on the host; expected f32, bf16 or f16"
    );
    let scaled = source.clone().scaled("label", 0.5).unwrap();
    assert_eq!(
        message(Loader::new(&scaled, &[label()], DType::F32, 1, 0)),
        "a.npz, example 0: array `label` is multiplied with 0.5 where it is cast, and its feature is s32 as it stands; \
         expected a feature that is cast, or no scale"
    );
    let phases = Arrays::new(Path::new("m.npz"), vec![(ArrayInfo::new("m", DType::C64, []), vec![0; 16])]).unwrap();
    assert_eq!(
        message(Loader::new(&phases, &[Feature::compute("m", [])], DType::F32, 1, 0)),
        "m.npz, example 0: array `m` is c64, which does not become f32; expected pred, integers of 8 to 64 bits, f16, bf16, \
         f32 or f64\nhelp: save the part that is meant: in NumPy, `m.real`, `m.imag` or `abs(m)`"
    );
    let wide = one(DType::F64, &[[0; 8]; 2]);
    assert_eq!(
        message(Loader::new(&wide, &[Feature::exact("x", DType::F32, [2]).label()], DType::F32, 1, 0)),
        "a.npz, example 0: array `x` is f64, which does not become f32; expected pred, integers of 8 to 64 bits, f16, bf16 \
         or f32\nhelp: save it as float32: in NumPy, `x.astype('float32')`"
    );
}

/// NumPy's bool, and integers for an f32 feature: same numbers, another dtype.
#[test]
fn truths_and_integers_are_numbers() {
    let masks = one(DType::Pred, &[[1u8], [0]]);
    let batch = |source: &Arrays, feature: Feature| loader(source, &[feature], 1, 0).in_order().next().unwrap();
    let first = |source: &Arrays, feature: Feature| batch(source, feature).unwrap().arrays.remove(0);
    assert_eq!(floats(&first(&masks, Feature::compute("x", [2]))), [1.0, 0.0]);
    assert_eq!(floats(&first(&masks, Feature::exact("x", DType::F32, [2]).probability())), [1.0, 0.0]);
    assert_eq!(integers(&first(&masks, Feature::exact("x", DType::S32, [2]).below(2))), [1, 0]);
    let bytes = one(DType::S64, &[-3i64, 1 << 24].map(i64::to_le_bytes));
    assert_eq!(floats(&first(&bytes, Feature::exact("x", DType::F32, [2]))), [-3.0, 16_777_216.0]);
    let halves = one(DType::BF16, &[0x3F80u16, 0xC040].map(u16::to_le_bytes));
    assert_eq!(floats(&first(&halves, Feature::exact("x", DType::F32, [2]))), [1.0, -3.0]);

    let damaged = one(DType::Pred, &[[1u8], [2]]);
    for feature in [Feature::compute("x", [2]), Feature::exact("x", DType::S32, [2]).below(5)] {
        assert_eq!(
            message(batch(&damaged, feature)),
            "a.npz, example 0: number 1 of `x` is 2; expected a whole number from 0 to 1"
        );
    }
    let large = one(DType::S64, &[0i64, (1 << 24) + 1].map(i64::to_le_bytes));
    assert_eq!(
        message(batch(&large, Feature::exact("x", DType::F32, [2]))),
        "a.npz, example 0: number 1 of `x` is 16777217; expected a whole number from -16777216 to 16777216"
    );
}

#[test]
fn probabilities_are_from_0_to_1() {
    let label = || Feature::exact("x", DType::F32, [2]).label().probability();
    let check = |source: &Arrays, feature: Feature, expected: Result<(), &str>| {
        let loader = Loader::new(source, &[feature], DType::BF16, 1, 0).unwrap();
        assert_eq!(loader.check().map_err(|error| error.to_string()), expected.map_err(str::to_string));
        assert_eq!(loader.in_order().all(|batch| batch.is_ok()), expected.is_ok());
    };
    check(&one(DType::F32, &[0.0f32, 1.0, 0.25, 0.5].map(f32::to_le_bytes)), label(), Ok(()));
    for (value, shown) in [(1.0 + f32::EPSILON, "1.0000001192092896"), (-1.0, "-1"), (f32::NAN, "NaN"), (7.0, "7")] {
        let wrong = one(DType::F32, &[0.0, 1.0, value, 0.5].map(f32::to_le_bytes));
        let expected = format!("a.npz, example 1: number 0 of `x` is {shown}; expected a probability, from 0 to 1");
        check(&wrong, label(), Err(&expected));
    }
    check(
        &one(DType::U8, &[[1], [2]]),
        label(),
        Err("a.npz, example 0: number 1 of `x` is 2; expected a probability, from 0 to 1"),
    );
    // An autoencoder's input is also its label.
    let image = one(DType::U8, &[[0], [255]]);
    check(&image.clone().scaled("x", 1.0 / 255.0).unwrap(), x().probability(), Ok(()));
    check(
        &image.scaled("x", 0.5).unwrap(),
        x().probability(),
        Err(
            "a.npz, example 0: number 1 of `x` is 255, and 127.5 times the scale 0.5; expected a probability, from 0 to 1",
        ),
    );
}

/// A loss with a negative weight has no minimum.
#[test]
fn weights_are_not_below_0() {
    let weights = || Feature::exact("x", DType::F32, [2]).label().weight();
    let check = |source: &Arrays, expected: Result<(), &str>| {
        let loader = Loader::new(source, &[weights()], DType::BF16, 1, 0).unwrap();
        assert_eq!(loader.check().map_err(|error| error.to_string()), expected.map_err(str::to_string));
        assert_eq!(loader.epoch(0).all(|batch| batch.is_ok()), expected.is_ok());
    };
    check(&one(DType::F32, &[0.0f32, -0.0, 1e-30, 7.0].map(f32::to_le_bytes)), Ok(()));
    let message =
        "; expected a weight, 0 or more: with one below 0 training makes the loss of that example as great as it can";
    check(
        &one(DType::F32, &[0.0f32, 1.0, 2.0, -0.25].map(f32::to_le_bytes)),
        Err(&format!("a.npz, example 1: number 1 of `x` is -0.25{message}")),
    );
    check(&one(DType::S8, &[[1], [0xFF]]), Err(&format!("a.npz, example 0: number 1 of `x` is -1{message}")));
}

/// A source that is read from disk and allows skipping.
#[derive(Debug)]
struct OnDisk(Arrays, Skipped);

impl Source for OnDisk {
    fn n_examples(&self) -> u64 {
        self.0.n_examples()
    }

    fn arrays(&self) -> &[ArrayInfo] {
        self.0.arrays()
    }

    fn read(&self, index: u64) -> Result<Vec<Cow<'_, [u8]>>, DataError> {
        self.0.read(index)
    }

    /// In pieces of two elements.
    fn give(&self, index: u64, _: Option<Draw>, take: &mut crate::Take<'_>) -> Result<Option<Spent>, DataError> {
        let width = self.arrays()[0].dtype.n_bytes();
        self.read(index)?[0].chunks(2 * width).try_for_each(|piece| take(0, Elements::Bytes(piece)))?;
        Ok(None)
    }

    fn place(&self, index: u64) -> String {
        format!("a.tfrecord, record {index}")
    }

    fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint()
    }

    fn reading(&self) -> crate::Reading {
        crate::Reading { n_workers: 0, is_costly: true }
    }

    fn skipped(&self) -> Option<&Skipped> {
        Some(&self.1)
    }
}

/// Only a sample of examples in files is checked before training. A NaN in another one used to end the run as a
/// non-finite loss, or was trained on although it should have been skipped.
#[test]
fn numbers_that_are_lost_are_found_where_they_become_a_batch() {
    const N: usize = 400;
    const BAD: usize = 131;
    let source = |dtype: DType, value: &dyn Fn(f64) -> Vec<u8>, bad: f64, n_skipped: u64| {
        let number = |at: usize| value(if at == 4 * BAD + 3 { bad } else { at as f64 % 100.0 });
        let bytes = (0..4 * N).flat_map(number).collect();
        let image = (ArrayInfo::new("x", dtype, [2, 2, 1]), bytes);
        OnDisk(Arrays::new(Path::new("a"), vec![image]).unwrap(), Skipped::new(n_skipped))
    };
    let [f16s, bf16s, f32s, f64s]: [&dyn Fn(f64) -> Vec<u8>; 4] = [
        &|value| half::f16::from_f64(value).to_le_bytes().to_vec(),
        &|value| bf16::from_f64(value).to_le_bytes().to_vec(),
        &|value| (value as f32).to_le_bytes().to_vec(),
        &|value| value.to_le_bytes().to_vec(),
    ];
    let s32s: &dyn Fn(f64) -> Vec<u8> = &|value| (value as i32).to_le_bytes().to_vec();
    let cast = |feature: Feature| feature;
    let whole = || cast(Feature::compute("x", [2, 2, 1]));
    let exact = |dtype| Feature::exact("x", dtype, [2, 2, 1]);
    for (dtype, value, bad, feature, compute, expected) in [
        (DType::F32, f32s, f64::NAN, whole(), DType::BF16, "NaN; expected a finite number"),
        (DType::F32, f32s, f64::INFINITY, whole(), DType::F32, "inf; expected a finite number"),
        (DType::F32, f32s, f64::NAN, exact(DType::F32), DType::BF16, "NaN; expected a finite number"),
        (DType::F16, f16s, f64::NEG_INFINITY, whole(), DType::F32, "-inf; expected a finite number"),
        (DType::BF16, bf16s, f64::NAN, whole(), DType::F16, "NaN; expected a finite number"),
        (DType::F64, f64s, f64::NAN, whole(), DType::F16, "NaN; expected a finite number"),
        (DType::F64, f64s, f64::NAN, exact(DType::F64), DType::F16, "NaN; expected a finite number"),
        (DType::F64, f64s, 1e300, whole(), DType::F32, "1e300, which the cast to f32 makes infinite"),
        (DType::F32, f32s, 70_000.0, whole(), DType::F16, "7e4, which the cast to f16 makes infinite"),
        (DType::S32, s32s, 70_000.0, whole(), DType::F16, "7e4, which the cast to f16 makes infinite"),
        (
            DType::F32,
            f32s,
            3.4e38,
            whole(),
            DType::BF16,
            "3.3999999521443642e38, which the cast to bf16 makes infinite",
        ),
    ] {
        let strict = source(dtype, value, bad, 0);
        let features = [feature];
        for shift in [0, 1] {
            let shift = if features[0].dtype == FeatureDType::Compute { shift } else { 0 };
            let loader = Loader::new(&strict, &features, compute, 8, 3).unwrap().shifted(shift).unwrap();
            loader.check().unwrap();
            let expected = format!("a.tfrecord, record {BAD}: number 3 of `x` is {expected}");
            let errors = [loader.in_order().find_map(Result::err), loader.epoch(0).find_map(Result::err)];
            for error in errors {
                let message = error.unwrap().stopped().expect("on_error is said");
                assert!(message.starts_with(&expected), "{message}, expected {expected}");
            }
            // With skipping allowed, another example takes its place, and an evaluation is one example shorter.
            let lenient = source(dtype, value, bad, 1);
            let loader = Loader::new(&lenient, &features, compute, 8, 3).unwrap().shifted(shift).unwrap();
            let all_finite = |batch: &Batch| {
                let array = &batch.arrays[0];
                let n = array.bytes.len() / array.dtype.n_bytes();
                (0..n).all(|at| number(array.dtype, &array.bytes, at).unwrap().is_finite())
            };
            let batches: Vec<Batch> = loader.epoch(0).map(Result::unwrap).collect();
            assert!(batches.iter().all(all_finite) && batches.len() == N / 8);
            assert!(batches.iter().all(|batch| batch.n_valid == 8));
            assert_eq!(loader.in_order().map(|batch| batch.unwrap().n_valid).sum::<usize>(), N - 1);
            assert_eq!(lenient.1.n(), 1);
        }
    }
    // A byte of 2 is not a valid `pred`.
    let bits = source(DType::Pred, &|value| vec![if value == 2.5 { 2 } else { value as u8 % 2 }], 2.5, 0);
    let loader = Loader::new(&bits, &[exact(DType::Pred)], DType::F32, 8, 3).unwrap();
    loader.check().unwrap();
    assert!(loader.epoch(0).any(|batch| batch.is_err()));
}

/// One example in `place`s for each of `values`.
fn one<const N: usize>(dtype: DType, values: &[[u8; N]]) -> Arrays {
    let bytes = values.as_flattened().to_vec();
    Arrays::new(Path::new("a.npz"), vec![(ArrayInfo::new("x", dtype, [2]), bytes)]).unwrap()
}

#[test]
fn numbers_that_are_wrong_are_named() {
    let check = |source: &Arrays, feature: Feature, compute: DType| {
        Loader::new(source, &[feature], compute, 1, 0).unwrap().check().map_err(|error| error.to_string())
    };
    let x = || Feature::compute("x", [2]);
    // Between the largest bf16 and half an ulp above it f32 still rounds down.
    let below = f32::from_bits(bf16::MAX.to_f32().to_bits() + 0x7FFF);
    let large = one(DType::F32, &[1.0, 2.0, below, f32::MAX].map(f32::to_le_bytes));
    assert_eq!(check(&large, x(), DType::F32), Ok(()));
    assert_eq!(check(&large, Feature::exact("x", DType::F32, [2]), DType::BF16), Ok(()));
    assert_eq!(
        check(&large, x(), DType::BF16).unwrap_err(),
        "a.npz, example 1: number 1 of `x` is 3.4028234663852886e38, which the cast to bf16 makes infinite: expected at \
         most 3.3895314e38\nhelp: scale the features (`scale` under `data`), or train in f32 (--precision f32)"
    );
    assert!(check(&large, x(), DType::F16).unwrap_err().contains("number 0 of `x`"));
    assert_eq!(check(&large.clone().scaled("x", 0.5).unwrap(), x(), DType::BF16), Ok(()));
    assert_eq!(
        check(&large.scaled("x", 2.0).unwrap(), x(), DType::F32).unwrap_err(),
        "a.npz, example 1: number 0 of `x` is 3.396177326406364e38, which, times the scale 2, the cast to f32 makes \
         infinite: expected at most 3.4028235e38\nhelp: scale the features (`scale` under `data`)"
    );
    for dtype in [DType::F32, DType::BF16] {
        let nan = one(DType::F32, &[1.0, f32::NAN].map(f32::to_le_bytes));
        let expected = "a.npz, example 0: number 1 of `x` is NaN; expected a finite number";
        assert_eq!(check(&nan, x(), dtype).unwrap_err(), expected);
        assert_eq!(check(&nan, Feature::exact("x", DType::F32, [2]), dtype).unwrap_err(), expected);
    }
    let double = one(DType::F64, &[1.0, 1e300, f64::INFINITY, 0.0].map(f64::to_le_bytes));
    assert_eq!(
        check(&double, x(), DType::F32).unwrap_err(),
        "a.npz, example 0: number 1 of `x` is 1e300, which the cast to f32 makes infinite: expected at most \
         3.4028235e38\nhelp: scale the features (`scale` under `data`)"
    );
    assert_eq!(
        check(&double, Feature::exact("x", DType::F64, [2]), DType::F32).unwrap_err(),
        "a.npz, example 1: number 0 of `x` is inf; expected a finite number"
    );
    let half = one(DType::BF16, &[0x3F80u16, 0x7F80].map(u16::to_le_bytes));
    assert!(check(&half, Feature::exact("x", DType::BF16, [2]), DType::F32).unwrap_err().contains("is inf"));
    let wide = one(DType::S32, &[65_519, 65_520].map(i32::to_le_bytes));
    assert!(check(&wide, x(), DType::F16).unwrap_err().contains("number 1 of `x` is 6.552e4"));
    let masks = one(DType::Pred, &[[0u8], [2]]);
    assert_eq!(
        check(&masks, Feature::exact("x", DType::Pred, [2]), DType::F32).unwrap_err(),
        "a.npz, example 0: number 1 of `x` is 2; expected 0 or 1, which `pred` has"
    );
}

/// Integers beyond their range are errors in every batch too: a program would gather the last row instead.
#[test]
fn integers_stay_in_their_range() {
    let tokens = one(DType::S64, &[0i64, 4, -1, 1 << 40].map(i64::to_le_bytes));
    let expect = |feature: Feature, idx: usize, expected: &str| {
        let loader = Loader::new(&tokens, &[feature], DType::F32, 1, 0).unwrap();
        assert_eq!(message(loader.in_order().nth(idx).unwrap()), expected);
        assert!(message(loader.check()).starts_with("a.npz, example"));
    };
    let exact = |dtype| Feature::exact("x", dtype, [2]);
    let place = "a.npz, example 1: number";
    expect(exact(DType::S64).below(5), 1, &format!("{place} 0 of `x` is -1; expected a whole number from 0 to 4"));
    expect(exact(DType::U8), 1, &format!("{place} 0 of `x` is -1; expected a whole number from 0 to 255"));
    expect(
        exact(DType::S32),
        1,
        &format!("{place} 1 of `x` is 1099511627776; expected a whole number from -2147483648 to 2147483647"),
    );
    expect(
        exact(DType::S64).below(4),
        0,
        "a.npz, example 0: number 1 of `x` is 4; expected a whole number from 0 to 3",
    );
    let same = Loader::new(&tokens, &[exact(DType::S64)], DType::F32, 2, 0).unwrap();
    assert_eq!(same.check().map_err(|error| error.to_string()), Ok(()));
}

/// The expected batch, number by number.
fn naive(source: &Arrays, features: &[Feature], compute: DType, indices: &[u64], batch: usize) -> Vec<NamedArray> {
    let array = |feature: &Feature| {
        let at = source.arrays().iter().position(|info| info.name == feature.name).unwrap();
        let info = &source.arrays()[at];
        let to = feature.dtype_in(compute);
        let mut bytes = Vec::new();
        for &index in indices {
            let example = source.read(index).unwrap();
            for element in example[at].chunks(info.dtype.n_bytes()) {
                let value = number(info.dtype, element, 0).unwrap();
                match to {
                    DType::F32 => bytes.extend((value as f32 * info.scale).to_le_bytes()),
                    DType::BF16 => bytes.extend(bf16_from_f32(value as f32 * info.scale).to_le_bytes()),
                    DType::F16 => bytes.extend(f16_from_f32(value as f32 * info.scale).to_le_bytes()),
                    DType::S32 => bytes.extend((value as i32).to_le_bytes()),
                    DType::S64 => bytes.extend((value as i64).to_le_bytes()),
                    dtype => panic!("{dtype}"),
                }
            }
        }
        let dims: Vec<i64> = [batch as i64].into_iter().chain(feature.dims.iter().copied()).collect();
        bytes.resize(dims.iter().product::<i64>() as usize * to.n_bytes(), 0);
        NamedArray { name: feature.name.clone(), dtype: to, dims, bytes }
    };
    features.iter().map(array).collect()
}

/// Whether a number is not finite, like the largest ones after the cast: the loader then refuses the batch.
fn is_lost(array: &NamedArray) -> bool {
    let n = array.bytes.len() / array.dtype.n_bytes();
    (0..n).any(|at| number(array.dtype, &array.bytes, at).is_some_and(|value| !value.is_finite()))
}

proptest! {
    #[test]
    fn batches_are_those_of_the_naive_way(
        n in 1usize..40,
        dims in prop::collection::vec(1i64..5, 0..4),
        from in prop::sample::select(&[DType::U8, DType::S8, DType::S16, DType::U16, DType::S32, DType::F16, DType::BF16, DType::F32, DType::F64][..]),
        compute in prop::sample::select(&[DType::F32, DType::BF16, DType::F16][..]),
        scale in prop::sample::select(&[1.0f32, 1.0 / 255.0, -2.5][..]),
        share in 0.0f64..1.0,
        seed: u64,
        epoch: u64,
        noise: [u8; 32],
    ) {
        let n_bytes = n * dims.iter().product::<i64>() as usize * from.n_bytes();
        // Every other byte of floats is below 0x40, so that none is NaN, whose payload is unspecified.
        let byte = |idx: usize| {
            let byte = noise[idx % 32] ^ (idx as u8).wrapping_mul(37);
            if from.is_float() && idx % from.n_bytes() == from.n_bytes() - 1 { byte & 0xBF } else { byte }
        };
        let labels: Vec<u8> = (0..n).map(|idx| noise[idx % 32] % 10).collect();
        let source = Arrays::new(Path::new("a.npz"), vec![
            (ArrayInfo::new("y", DType::U8, []), labels),
            (ArrayInfo::new("x", from, dims.clone()), (0..n_bytes).map(byte).collect()),
        ]).unwrap().scaled("x", scale).unwrap();
        let features = [Feature::compute("x", dims), Feature::exact("y", DType::S64, []).below(10)];
        let batch = 1 + ((n - 1) as f64 * share) as usize;
        let loader = Loader::new(&source, &features, compute, batch, seed).unwrap();
        let order = Order::new(n as u64, seed, epoch);
        let mut n_steps = 0;
        for (step, measured) in loader.epoch(epoch).enumerate() {
            let indices: Vec<u64> = (step * batch..(step + 1) * batch).map(|at| order.at(at as u64)).collect();
            let arrays = naive(&source, &features, compute, &indices, batch);
            if is_lost(&arrays[0]) {
                prop_assert!(measured.is_err());
            } else {
                prop_assert_eq!(measured.unwrap(), Batch { arrays, n_valid: batch });
            }
            n_steps += 1;
        }
        prop_assert_eq!(n_steps, loader.n_steps());
        let mut seen = 0;
        for measured in loader.in_order() {
            let indices: Vec<u64> = (seen..(seen + batch).min(n)).map(|at| at as u64).collect();
            let arrays = naive(&source, &features, compute, &indices, batch);
            if is_lost(&arrays[0]) {
                prop_assert!(measured.is_err());
            } else {
                prop_assert_eq!(measured.unwrap(), Batch { arrays, n_valid: indices.len() });
            }
            seen += indices.len();
        }
        prop_assert_eq!(seen, n);
    }
}
