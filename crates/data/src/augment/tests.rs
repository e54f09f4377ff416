//! Changes of images, and what they keep.

use super::*;
use crate::arrays::Arrays;
use std::path::Path;

const SIZE: [usize; 3] = [5, 7, 1];

/// Eight images of 5 × 7 whose pixels are their number and place, a mask with the same numbers, and one-hot labels.
fn source() -> (Box<dyn Source>, Vec<Feature>) {
    let images: Vec<u8> =
        (0..8u32).flat_map(|i| (0..35).flat_map(move |p| ((i * 35 + p) as f32).to_le_bytes())).collect();
    let masks: Vec<u8> = (0..8u32).flat_map(|i| (0..35).map(move |p| (i * 3 + p) as u8)).collect();
    let labels: Vec<u8> =
        (0..8).flat_map(|i| (0..8).flat_map(move |c| f32::from(u8::from(i == c)).to_le_bytes())).collect();
    let arrays = vec![
        (ArrayInfo::new("image", DType::F32, [5, 7, 1]), images),
        (ArrayInfo::new("mask", DType::U8, [5, 7]), masks),
        (ArrayInfo::new("labels", DType::F32, [8]), labels),
    ];
    let features = vec![
        Feature::compute("image", [5, 7, 1]),
        Feature::exact("mask", DType::S32, [5, 7]).label(),
        Feature::exact("labels", DType::F32, [8]).label(),
    ];
    (Box::new(Arrays::new(Path::new("a"), arrays).unwrap()), features)
}

fn example(augmented: &Augmented, index: u64, draw: Option<Draw>) -> Vec<Vec<f32>> {
    let mut out = vec![Vec::new(); 3];
    augmented
        .give(index, draw, &mut |at, elements| {
            match elements {
                Elements::F32s(numbers) => out[at].extend_from_slice(numbers),
                Elements::Bytes(bytes) => out[at].extend(f32s(augmented.arrays()[at].dtype, bytes)),
            }
            Ok(())
        })
        .unwrap();
    out
}

fn augmented(augment: Augment) -> Augmented {
    let (source, features) = source();
    Augmented::new(source, &features, augment).unwrap()
}

#[test]
fn masks_of_another_size_and_labels_that_cannot_be_blended_are_told() {
    let refused =
        |features: &[Feature], augment: Augment| Augmented::new(source().0, features, augment).unwrap_err().to_string();
    let features = source().1;
    assert_eq!(
        refused(&features, Augment { flip: true, masks: vec!["labels".to_string()], ..Augment::default() }),
        "`labels` of `masks` is [8], and images are [5, 7, 1]\nhelp: name features of the same height and width"
    );
    let whole = [features[0].clone(), Feature::exact("labels", DType::S32, []).below(8).label()];
    assert_eq!(
        refused(&whole, Augment { mixup: 0.2, ..Augment::default() }),
        "`mixup` and `cutmix` blend labels, and `labels` is whole numbers\n\
             help: learn distributions: `softmax_cross_entropy`, with `one_hot: true` of the label"
    );
}

#[test]
fn flips_move_masks_with_images_and_evaluation_is_left_alone() {
    let augmented = augmented(Augment { flip: true, masks: vec!["mask".to_string()], ..Augment::default() });
    let plain = example(&augmented, 3, None);
    let mirrored = |values: &[f32]| -> Vec<f32> {
        values.chunks_exact(7).flat_map(|row| row.iter().rev().copied().collect::<Vec<_>>()).collect()
    };
    let mut n_flipped = 0;
    for epoch in 0..40 {
        let drawn = example(&augmented, 3, Some(Draw::new(1, epoch, 3)));
        assert_eq!(drawn, example(&augmented, 3, Some(Draw::new(1, epoch, 3))), "the same draw");
        let is_flipped = drawn[0] != plain[0];
        n_flipped += u32::from(is_flipped);
        let expected =
            if is_flipped { [mirrored(&plain[0]), mirrored(&plain[1])] } else { [plain[0].clone(), plain[1].clone()] };
        assert_eq!(drawn[..2], expected);
    }
    assert!((8..=32).contains(&n_flipped), "{n_flipped}");
}

#[test]
fn a_label_of_the_images_size_that_no_mask_names_is_left_behind() {
    let (_, features) = source();
    let left = |augment: Augment| augment.left_behind(&features).map(|feature| feature.name.clone());
    assert_eq!(left(Augment { rotation: 5.0, ..Augment::default() }).as_deref(), Some("mask"));
    assert_eq!(left(Augment { flip: true, masks: vec!["mask".to_string()], ..Augment::default() }), None);
    // Colours do not move.
    assert_eq!(left(Augment { brightness: 0.1, ..Augment::default() }), None);
}

/// A quarter turn and half a turn by hand, of a square's middle: exact but for the sine of π in f32.
#[test]
fn turns_are_about_the_centre_and_beyond_the_edge_is_nothing() {
    let square: Vec<f32> = (0..9u8).map(f32::from).collect();
    let turn = |degrees: f32| {
        let (sin, cos) = (degrees * PI / 180.0).sin_cos();
        Geometry { matrix: [cos, -sin, sin, cos], shift: [0.0, 0.0] }
    };
    let close = |ours: &[f32], expected: [f32; 9]| {
        ours.iter().zip(expected).all(|(a, b)| (a - b).abs() < 8.0 * 8.0 * f32::EPSILON)
    };
    assert!(close(&turn(180.0).bilinear(&square, [3, 3, 1]), [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]));
    assert_eq!(turn(90.0).nearest(&square, [3, 3, 1], 1), [6.0, 3.0, 0.0, 7.0, 4.0, 1.0, 8.0, 5.0, 2.0]);
    let moved = Geometry { matrix: [1.0, 0.0, 0.0, 1.0], shift: [1.0 / 3.0, 0.0] };
    assert_eq!(moved.nearest(&square, [3, 3, 1], 1), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0, 0.0, 0.0]);
}

#[test]
fn what_is_mixed_and_erased_adds_up() {
    let mixed = augmented(Augment { mixup: 0.4, ..Augment::default() });
    let cut = augmented(Augment { cutmix: 1.0, ..Augment::default() });
    let (mut n_mixed, mut n_cut) = (0, 0);
    for epoch in 0..30 {
        let draw = Draw::new(5, epoch, 2);
        let [image, _, label] = &example(&mixed, 2, Some(draw))[..] else { panic!() };
        let sum: f32 = label.iter().sum();
        assert!((sum - 1.0).abs() <= 4.0 * f32::EPSILON, "{label:?}");
        // Each pixel is its place plus 35 times the number of the image, blended as labels are.
        let of_labels: f32 = label.iter().zip(0..8u8).map(|(share, i)| share * 35.0 * f32::from(i)).sum();
        assert!(
            image
                .iter()
                .zip(0..35u8)
                .all(|(pixel, p)| (pixel - of_labels - f32::from(p)).abs() < 280.0 * 8.0 * f32::EPSILON)
        );
        n_mixed += u32::from(label[2] < 1.0);
        let [image, _, label] = &example(&cut, 2, Some(draw))[..] else { panic!() };
        let share = image.iter().filter(|pixel| (**pixel / 35.0) as u8 == 2).count() as f32 / 35.0;
        assert!((share - label[2]).abs() <= 4.0 * f32::EPSILON, "{share} {label:?}");
        n_cut += u32::from(label[2] < 1.0);
    }
    assert!(n_mixed > 10 && n_cut > 10, "{n_mixed} {n_cut}");
    let erasing = augmented(Augment { erasing: 1.0, ..Augment::default() });
    for epoch in 0..20 {
        let drawn = example(&erasing, 2, Some(Draw::new(5, epoch, 2)));
        let n = drawn[0].iter().filter(|pixel| **pixel == 0.0).count();
        assert!((1..=14).contains(&n), "{n}");
    }
}

#[test]
fn colours_are_multiplied_about_their_means() {
    let mut pixels = vec![1.0, 2.0, 3.0, 3.0, 2.0, 1.0];
    colours(&mut pixels, 3, (2.0, 0.5, 1.0));
    assert_eq!(pixels, [3.0, 4.0, 5.0, 5.0, 4.0, 3.0]);
    let mut grey = vec![0.5; 3];
    colours(&mut grey, 3, (1.0, 1.0, 0.3));
    assert!(grey.iter().all(|pixel| (pixel - 0.5).abs() < 4.0 * f32::EPSILON), "{grey:?}");
    assert_eq!(size_of(&[5, 7]), Some([5, 7, 1]).filter(|size| *size == SIZE));
}

/// Beta(α, α) has the mean 1/2 and the variance 1/(4(2α + 1)); the mean of 4,000 draws is within 5 standard
/// deviations of it.
#[test]
fn shares_have_the_mean_and_variance_of_beta() {
    for alpha in [0.2f32, 1.0, 4.0] {
        let mut random = SplitMix64(9);
        let draws: Vec<f64> = (0..4000).map(|_| f64::from(beta(alpha, &mut random))).collect();
        let mean = draws.iter().sum::<f64>() / 4000.0;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0;
        let expected = 1.0 / (4.0 * (2.0 * f64::from(alpha) + 1.0));
        assert!((mean - 0.5).abs() < 5.0 * (expected / 4000.0).sqrt(), "{alpha}: {mean}");
        // The variance of a variance is at most E(x − ½)⁴ / n, at most a sixteenth over n.
        assert!((variance - expected).abs() < 5.0 * (1.0 / 16.0 / 4000.0f64).sqrt(), "{alpha}: {variance}");
    }
}

#[test]
fn what_cannot_be_augmented_is_refused() {
    let (source, mut features) = source();
    features[2] = Feature::exact("labels", DType::S32, []).below(8).label();
    let error = Augmented::new(source, &features, Augment { mixup: 0.2, ..Augment::default() }).unwrap_err();
    assert!(
        error.to_string().starts_with("`mixup` and `cutmix` blend labels, and `labels` is whole numbers"),
        "{error}"
    );
    let (source, features) = self::source();
    let masks = vec!["labels".to_string()];
    let error = Augmented::new(source, &features, Augment { masks, ..Augment::default() }).unwrap_err();
    assert!(error.to_string().starts_with("`labels` of `masks` is [8], and images are [5, 7, 1]"), "{error}");
    assert_eq!(Augment { zoom: 1.0, ..Augment::default() }.fault().map(|(key, ..)| key), Some("zoom"));
    assert_eq!(Augment { rotation: -1.0, ..Augment::default() }.fault().map(|(key, ..)| key), Some("rotation"));
}
