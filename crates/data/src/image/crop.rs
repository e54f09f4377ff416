//! Which part of an image is used: the centre, or a random window.
//!
//! Both follow TensorFlow's ResNet recipe number by number: TensorFlow computes in f32 and rounds ties to even, and so
//! does this. Only the random generator is ours.

use serde::{Deserialize, Serialize};

use crate::random::{Draw, Purpose, SplitMix64};

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first row.
    pub y: usize,
    /// The first column.
    pub x: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Window {
    /// The whole image.
    pub fn whole(height: usize, width: usize) -> Window {
        Window { y: 0, x: 0, height, width }
    }
}

/// A crop at the image's centre, for evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CenterCrop {
    /// The window is `size / (size + crop_padding)` of the shorter side. Default 32.
    pub crop_padding: u32,
}

impl Default for CenterCrop {
    fn default() -> CenterCrop {
        CenterCrop { crop_padding: 32 }
    }
}

impl CenterCrop {
    /// The window in an image of `[height, width]` that is resized to `size`. If `size` is not square, it is the
    /// largest window of that aspect ratio, less the padding.
    ///
    /// # Source
    /// `_decode_and_center_crop` of TensorFlow's `resnet_preprocessing.py`.
    pub fn window(&self, [height, width]: [usize; 2], size: [usize; 2]) -> Window {
        let [out_height, out_width] = size.map(|size| size as f64);
        let ratio = (out_height / (out_height + f64::from(self.crop_padding))) as f32;
        let aspect = (out_width / out_height) as f32;
        let whole_height = (height as f32).min(width as f32 / aspect);
        let whole_width = (width as f32).min(height as f32 * aspect);
        // `as` truncates, like the cast to int32.
        let side = |whole: f32, limit: usize| ((ratio * whole) as usize).clamp(1, limit);
        let (crop_height, crop_width) = (side(whole_height, height), side(whole_width, width));
        Window {
            y: (height - crop_height).div_ceil(2),
            x: (width - crop_width).div_ceil(2),
            height: crop_height,
            width: crop_width,
        }
    }
}

/// A random window of an image, for training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RandomResizedCrop {
    /// The least and the largest share of the image's area. Default `[0.08, 1]`.
    pub area_range: [f32; 2],
    /// The least and the largest width by height. Default `[3/4, 4/3]`.
    pub aspect_ratio_range: [f32; 2],
    /// Windows with a smaller share are drawn again, whatever `area_range` says. Default 0.1.
    pub min_object_covered: f32,
    /// The number of attempts before falling back to the centre. Default 10.
    pub max_attempts: u32,
}

impl Default for RandomResizedCrop {
    fn default() -> RandomResizedCrop {
        RandomResizedCrop {
            area_range: [0.08, 1.0],
            aspect_ratio_range: [3.0 / 4.0, 4.0 / 3.0],
            min_object_covered: 0.1,
            max_attempts: 10,
        }
    }
}

impl RandomResizedCrop {
    /// The first invalid option: its name, its value and the values it accepts.
    pub fn fault(&self) -> Option<(&'static str, String, &'static str)> {
        let [least, greatest] = self.area_range;
        if !(0.0 < least && least <= greatest && greatest <= 1.0) {
            let expected = "two shares above 0 and up to 1, the lesser first";
            return Some(("area_range", format!("{:?}", self.area_range), expected));
        }
        let [least, greatest] = self.aspect_ratio_range;
        if !(0.0 < least && least <= greatest && greatest <= 1000.0) {
            let expected = "two ratios above 0 and up to 1000, the lesser first";
            return Some(("aspect_ratio_range", format!("{:?}", self.aspect_ratio_range), expected));
        }
        if !(0.0..=1.0).contains(&self.min_object_covered) {
            return Some(("min_object_covered", self.min_object_covered.to_string(), "a share from 0 to 1"));
        }
        if !(1..=1000).contains(&self.max_attempts) {
            return Some(("max_attempts", self.max_attempts.to_string(), "1 to 1000"));
        }
        None
    }

    /// The window in an image of `[height, width]`; `None` if no attempt succeeded or the window is the whole image:
    /// the recipe then takes the centre.
    ///
    /// # Source
    /// `SampleDistortedBoundingBoxV2` of TensorFlow with one box around the whole image, and `_decode_and_random_crop` of
    /// `resnet_preprocessing.py`.
    pub fn window(&self, [height, width]: [usize; 2], draw: Draw) -> Option<Window> {
        let mut random = draw.stream(Purpose::Crop);
        let [least, greatest] = self.aspect_ratio_range;
        for _ in 0..self.max_attempts {
            let aspect = random.share() * (greatest - least) + least;
            let Some(window) = self.once(height as i64, width as i64, aspect, &mut random) else { continue };
            let covered = (window.height * window.width) as f32 / (height * width) as f32;
            if covered >= self.min_object_covered {
                return (window != Window::whole(height, width)).then_some(window);
            }
        }
        None
    }

    /// A window with this aspect ratio, whose height is uniform among those that the range of areas and the image
    /// allow, at a uniform place.
    fn once(&self, height: i64, width: i64, aspect: f32, random: &mut SplitMix64) -> Option<Window> {
        let whole = |share: f32| share * width as f32 * height as f32;
        let (min_area, max_area) = (whole(self.area_range[0]), whole(self.area_range[1]));
        let width_of = |height: i64| (height as f32 * aspect).round_ties_even() as i64;
        let height_of = |area: f32| (area / aspect).sqrt().round_ties_even() as i64;
        let mut greatest = height_of(max_area);
        if width_of(greatest) > width {
            // The largest height whose width, rounded, fits the image; TensorFlow's `float kEps`, in f64.
            greatest = ((width as f64 + 0.5 - f64::from(1e-7f32)) / f64::from(aspect)) as i64;
            greatest -= i64::from(width_of(greatest) > width);
        }
        let greatest = greatest.min(height);
        let mut rows = height_of(min_area).min(greatest);
        if rows < greatest {
            rows += random.below((greatest - rows + 1) as u64) as i64;
        }
        let mut columns = width_of(rows);
        // Rounding may have left the range: try one row more, then one less.
        if ((rows * columns) as f32) < min_area {
            rows += 1;
            columns = width_of(rows);
        }
        if (rows * columns) as f32 > max_area {
            rows -= 1;
            columns = width_of(rows);
        }
        let area = (rows * columns) as f32;
        let fits = (1..=height).contains(&rows) && (1..=width).contains(&columns);
        if !fits || area < min_area || area > max_area {
            return None;
        }
        // TensorFlow's draw never chooses the last place.
        let mut place = |size: i64, whole: i64| match size < whole {
            true => random.below((whole - size) as u64) as usize,
            false => 0,
        };
        let y = place(rows, height);
        let x = place(columns, width);
        Some(Window { y, x, height: rows as usize, width: columns as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::DrawVersion;

    #[test]
    fn the_centre_is_cut_as_the_recipe_cuts_it() {
        let crop = CenterCrop::default();
        // int(0.875 · 375) = 328; (375 − 328 + 1) // 2 = 24, (500 − 328 + 1) // 2 = 86.
        assert_eq!(crop.window([375, 500], [224, 224]), Window { y: 24, x: 86, height: 328, width: 328 });
        assert_eq!(crop.window([1, 1], [224, 224]), Window::whole(1, 1));
        let wide = CenterCrop { crop_padding: 0 }.window([100, 100], [50, 100]);
        assert_eq!(wide, Window { y: 25, x: 0, height: 50, width: 100 });
    }

    #[test]
    fn a_window_is_a_function_of_what_it_is_drawn_from() {
        let crop = RandomResizedCrop::default();
        let window = |seed, epoch, example| crop.window([300, 200], Draw::new(seed, epoch, example)).unwrap();
        assert_eq!(window(1, 2, 3), window(1, 2, 3));
        assert!(
            window(1, 2, 3) != window(1, 2, 4)
                && window(1, 2, 3) != window(1, 3, 3)
                && window(1, 2, 3) != window(2, 2, 3)
        );
        // This never changes: a resumed run must draw the same windows as an uninterrupted one. From a separate
        // implementation in Python and NumPy.
        let expected = [[75, 8, 97, 128], [154, 88, 130, 101], [181, 27, 74, 94], [205, 104, 91, 85]];
        let places = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (7, 3, 1_234_567)];
        for ((seed, epoch, example), [y, x, height, width]) in places.into_iter().zip(expected) {
            assert_eq!(window(seed, epoch, example), Window { y, x, height, width });
        }
        let old = Draw::of_version(DrawVersion::V1, 0, 0, 0);
        assert_eq!(crop.window([300, 200], old), Some(Window { y: 66, x: 11, height: 134, width: 176 }));
        // An image of one row has no window of 4 by 3.
        assert_eq!(crop.window([1, 100], Draw::new(0, 0, 0)), None);
        // The whole image is left to the recipe's centre crop.
        let whole = RandomResizedCrop {
            area_range: [1.0, 1.0],
            aspect_ratio_range: [1.0, 1.0],
            ..RandomResizedCrop::default()
        };
        assert_eq!(whole.window([64, 64], Draw::new(0, 0, 0)), None);
    }

    #[test]
    fn options_that_make_no_window_are_said() {
        let fault = |crop: RandomResizedCrop| crop.fault().map(|(option, measured, _)| format!("{option} {measured}"));
        let default = RandomResizedCrop::default;
        assert_eq!(fault(default()), None);
        assert_eq!(fault(RandomResizedCrop { area_range: [0.0, 1.0], ..default() }).unwrap(), "area_range [0.0, 1.0]");
        assert_eq!(fault(RandomResizedCrop { area_range: [0.5, 0.4], ..default() }).unwrap(), "area_range [0.5, 0.4]");
        let ratios = RandomResizedCrop { aspect_ratio_range: [0.5, f32::NAN], ..default() };
        assert_eq!(fault(ratios).unwrap(), "aspect_ratio_range [0.5, NaN]");
        assert_eq!(fault(RandomResizedCrop { min_object_covered: 2.0, ..default() }).unwrap(), "min_object_covered 2");
        assert_eq!(fault(RandomResizedCrop { max_attempts: 0, ..default() }).unwrap(), "max_attempts 0");
    }
}
