//! Predictions that are pictures, as one PNG file.

use anyhow::bail;

use crate::report::png;
use bf16scope_data::NamedArray;
use bf16scope_hlo::DType;
use bf16scope_hlo::element::f32s;

/// The largest number of pixels in a file.
const MAX_PIXELS: usize = 1 << 26;

/// The pictures of the only prediction with any, `f32[n, height, width, 1 or 3]`, row by row in a square grid. Black is
/// 0, or -1 if some number is negative; white is 1, or the largest magnitude if that is above 1.
///
/// # Errors
/// No prediction is pictures, or several are; more pixels than the limit.
pub(super) fn grid(all: &[NamedArray]) -> anyhow::Result<Vec<u8>> {
    let is_pictures = |array: &&NamedArray| array.dtype == DType::F32 && matches!(array.dims[..], [_, _, _, 1 | 3]);
    let pictures: Vec<&NamedArray> = all.iter().filter(is_pictures).collect();
    let [array] = pictures[..] else {
        let shown: Vec<String> = all.iter().map(|array| format!("{} {:?}", array.name, array.dims)).collect();
        bail!(
            "-o FILE.png: {} predictions are pictures, [n, height, width, 1 or 3]: {}; expected one\nhelp: write .npz, which has \
             all",
            pictures.len(),
            shown.join(", ")
        );
    };
    let dims: Vec<usize> = array.dims.iter().map(|dim| dim.unsigned_abs() as usize).collect();
    let (n, height, width, n_channels) = (dims[0], dims[1], dims[2], dims[3]);
    let n_columns = (1..=n).find(|columns| columns * columns >= n).unwrap_or(1);
    let size = [n.div_ceil(n_columns) * height, n_columns * width];
    if size[0].saturating_mul(size[1]) > MAX_PIXELS {
        bail!(
            "-o FILE.png: {n} pictures of {height} × {width} are more than {MAX_PIXELS} pixels\nhelp: give fewer examples with \
             --inputs, or write .npz"
        );
    }
    let values: Vec<f32> = f32s(array.dtype, &array.bytes).into_iter().flatten().collect();
    let white = values.iter().fold(1f32, |most, value| most.max(value.abs()));
    let black = if values.iter().any(|&value| value < 0.0) { -white } else { 0.0 };
    let mut pixels = vec![0u8; size[0] * size[1] * n_channels];
    let row_length = width * n_channels;
    for (at, row) in values.chunks_exact(row_length.max(1)).enumerate() {
        let (picture, line) = (at / height, at % height);
        let top = picture / n_columns * height + line;
        let start = (top * n_columns + picture % n_columns) * row_length;
        for (pixel, value) in pixels[start..start + row_length].iter_mut().zip(row) {
            *pixel = ((value - black) / (white - black) * 255.0).round() as u8;
        }
    }
    Ok(png(&pixels, size, n_channels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_data::image::{self, DctMethod};

    fn array(dims: &[i64], values: &[f32]) -> NamedArray {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        NamedArray { name: "pictures".to_string(), dtype: DType::F32, dims: dims.to_vec(), bytes }
    }

    #[test]
    fn three_pictures_are_a_square_with_a_black_place() {
        let png = grid(&[array(&[3, 1, 2, 1], &[-1.0, 1.0, 0.0, 0.5, 1.0, -1.0])]).unwrap();
        let image = image::decode(&png, 1, DctMethod::default()).unwrap();
        assert_eq!((image.height, image.width), (2, 4));
        assert_eq!(image.pixels, [0, 255, 128, 191, 255, 0, 0, 0]);
    }

    #[test]
    fn numbers_from_0_on_are_black_at_0() {
        let png = grid(&[array(&[1, 1, 1, 3], &[0.0, 1.0, 2.0])]).unwrap();
        assert_eq!(image::decode(&png, 3, DctMethod::default()).unwrap().pixels, [0, 128, 255]);
    }

    #[test]
    fn what_is_no_picture_is_named() {
        let error = grid(&[array(&[2, 3], &[0.0; 6])]).unwrap_err().to_string();
        assert_eq!(
            error,
            "-o FILE.png: 0 predictions are pictures, [n, height, width, 1 or 3]: pictures [2, 3]; expected one\n\
             help: write .npz, which has all"
        );
    }
}
