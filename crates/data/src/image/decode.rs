//! Encoded images to pixels: JPEG to the bit as libjpeg-turbo decodes it (`islow` or `ifast`, fancy upsampling), and PNG.
//!
//! The header with the image's size is checked before anything is allocated: a file of a kilobyte may claim 20,000 ×
//! 20,000 pixels. The first bytes decide the format, not the name: ImageNet has a PNG called `.JPEG`.
//!
//! Grey becomes colour and colour grey as the network requires, by the luma of JFIF; 16 bits are truncated to the upper
//! 8; transparency is dropped; CMYK becomes RGB as in TensorFlow.

use std::fmt::Display;
use std::io::Cursor;

use libjpeg_turbo_rs::{DecodeLimits, Decoder, PixelFormat};
use serde::{Deserialize, Serialize};

use super::jpeg::{OneScan, check_inks, has_adobe_marker};
use super::{Image, Window};
use crate::error::{DataError, DataErrorKind, DataPlace};
use crate::guard::guarded;

/// The largest number of pixels in an image: 8,192 × 8,192.
pub const MAX_PIXELS: u64 = 1 << 26;
/// The largest memory that the JPEG decoder may estimate for an image: progressive ones keep every coefficient.
const MAX_MEMORY: u64 = 1 << 30;
/// The largest number of scans in a progressive JPEG. Encoders make ten.
const MAX_SCANS: usize = 500;

fn beginning(n_bytes: usize, start: &[u8]) -> String {
    let hex = start.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    match n_bytes {
        0 => "no bytes".to_string(),
        1 => format!("1 byte, {hex}"),
        n if n == start.len() => format!("{n} bytes, {hex}"),
        n => format!("{n} bytes that begin with {hex}"),
    }
}

/// How the blocks of a JPEG become pixels: TensorFlow's `dct_method`, each to the bit as TensorFlow computes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DctMethod {
    /// The inverse transform in 13 bits of fraction (`islow`): the default of Pillow, torchvision and OpenCV.
    #[default]
    IntegerAccurate,
    /// In 8 bits of fraction (`ifast`): TensorFlow's default. Pixels differ from the accurate ones by a few units of
    /// 255.
    IntegerFast,
}

impl DctMethod {
    fn of_decoder(self) -> libjpeg_turbo_rs::DctMethod {
        match self {
            DctMethod::IntegerAccurate => libjpeg_turbo_rs::DctMethod::IsLow,
            DctMethod::IntegerFast => libjpeg_turbo_rs::DctMethod::IsFast,
        }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Jpeg,
    Png,
}

fn format(bytes: &[u8]) -> Result<Format, DataError> {
    match bytes {
        [0xff, 0xd8, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Ok(Format::Png),
        _ => {
            let start = || beginning(bytes.len(), &bytes[..bytes.len().min(8)]);
            let start = other_format(bytes).map_or_else(start, |name| format!("a {name} image"));
            Err(wrong(DataErrorKind::Format, format!("{start}; expected a JPEG or PNG image")))
        }
    }
}

/// The name of a format of images that is not decoded, by the first bytes.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [b'G', b'I', b'F', b'8', ..] => Some("GIF"),
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => Some("TIFF"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("WebP"),
        // Four reserved bytes follow the size.
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Some("BMP"),
        [0, 0, 0, _, b'f', b't', b'y', b'p', ..] => Some("HEIF"),
        _ => None,
    }
}

/// `JPEG` or `PNG`, by the first bytes; `None` for other formats.
pub fn format_name(bytes: &[u8]) -> Option<&'static str> {
    match format(bytes).ok()? {
        Format::Jpeg => Some("JPEG"),
        Format::Png => Some("PNG"),
    }
}

/// An error in an image whose file only the caller knows.
fn wrong(kind: DataErrorKind, message: String) -> DataError {
    DataError::new(kind, DataPlace::Nowhere, message)
}

fn jpeg(message: impl Display) -> DataError {
    wrong(DataErrorKind::Damaged, format!("the JPEG image cannot be decoded: {message}"))
}

fn png(message: impl Display) -> DataError {
    wrong(DataErrorKind::Damaged, format!("the PNG image cannot be decoded: {message}"))
}

fn checked(height: u64, width: u64) -> Result<(usize, usize), DataError> {
    match height.saturating_mul(width) {
        1..=MAX_PIXELS => Ok((height as usize, width as usize)),
        n => {
            let expected = if n == 0 { "one at least".to_string() } else { format!("at most {MAX_PIXELS} pixels") };
            let kind = if n == 0 { DataErrorKind::Missing } else { DataErrorKind::TooLarge };
            Err(wrong(kind, format!("an image of {height} × {width} pixels; expected {expected}")))
        }
    }
}

/// Height, width and channels of an encoded image, from its header.
///
/// # Errors
/// Neither JPEG nor PNG, or a damaged header; more than [`MAX_PIXELS`].
pub fn size(bytes: &[u8]) -> Result<[usize; 3], DataError> {
    match format(bytes)? {
        Format::Jpeg => {
            let decoder = decoder(bytes)?;
            let header = decoder.header();
            let (height, width) = checked(header.height.into(), header.width.into())?;
            Ok([height, width, header.components.len()])
        }
        Format::Png => {
            let reader = png_reader(bytes)?;
            let header = reader.info();
            let (height, width) = checked(header.height.into(), header.width.into())?;
            Ok([height, width, header.color_type.samples()])
        }
    }
}

/// Working memory for decoding: reused from image to image, so most of it is allocated once.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    /// A copy of a JPEG with another height in its header.
    jpeg: Vec<u8>,
    /// The next image's pixels.
    pub pixels: Vec<u8>,
}

/// The pixels of an encoded image, in `channels` channels: 1 or 3.
///
/// # Errors
/// Neither JPEG nor PNG, or damaged; more than [`MAX_PIXELS`].
///
/// # Panics
/// For another number of channels: a bug of the caller.
///
/// # Source
/// TensorFlow's `decode_jpeg` with that `dct_method`, and `decode_png`; CMYK as its `jpeg_mem.cc`.
pub fn decode(bytes: &[u8], channels: usize, dct: DctMethod) -> Result<Image, DataError> {
    let whole = |[height, width]: [usize; 2]| Window::whole(height, width);
    Ok(decode_window(bytes, channels, dct, whole, &mut Buffers::default())?.0)
}

/// Like [`decode`], but rows below a window of the image may be missing. `window` is called with the whole image's
/// height and width.
///
/// # Errors
/// Those of [`decode`]; damage below the window may go unnoticed.
///
/// # Panics
/// Those of [`decode`].
pub fn decode_window(
    bytes: &[u8],
    channels: usize,
    dct: DctMethod,
    window: impl FnOnce([usize; 2]) -> Window,
    buffers: &mut Buffers,
) -> Result<(Image, Window), DataError> {
    assert!(channels == 1 || channels == 3, "{channels} channels");
    let (image, window) = match format(bytes)? {
        Format::Jpeg => decode_jpeg(bytes, channels, dct, window, buffers)?,
        Format::Png => {
            let image = guarded(|| decode_png(bytes)).unwrap_or_else(|panicked| Err(png(panicked)))?;
            let window = window([image.height, image.width]);
            (image, window)
        }
    };
    Ok((with_channels(image, channels), window))
}

fn decoder(bytes: &[u8]) -> Result<Decoder<'_>, DataError> {
    let limits = DecodeLimits {
        max_pixels: u64::MAX,
        max_scans: MAX_SCANS,
        max_memory: Some(MAX_MEMORY),
        ..DecodeLimits::default()
    };
    Decoder::new_with_limits(bytes, limits).map_err(jpeg)
}

fn decoder_of(bytes: &[u8], dct: DctMethod) -> Result<Decoder<'_>, DataError> {
    let mut decoder = decoder(bytes)?;
    decoder.set_dct_method(dct.of_decoder());
    Ok(decoder)
}

fn decode_jpeg(
    bytes: &[u8],
    channels: usize,
    dct: DctMethod,
    window: impl FnOnce([usize; 2]) -> Window,
    buffers: &mut Buffers,
) -> Result<(Image, Window), DataError> {
    let Buffers { jpeg: jpeg_bytes, pixels } = buffers;
    let Some(one) = OneScan::parse(bytes) else {
        let decoder = decoder_of(bytes, dct)?;
        let (height, width) = checked(decoder.header().height.into(), decoder.header().width.into())?;
        let window = window([height, width]);
        return Ok((pixels_of(decoder, bytes, channels, pixels)?, window));
    };
    let (height, width) = checked(one.height as u64, one.width as u64)?;
    let window = window([height, width]);
    let (bytes, rows) = match one.cut(window.y + window.height) {
        Some(rows) => {
            one.write(bytes, rows, jpeg_bytes);
            (&jpeg_bytes[..], rows)
        }
        None => (bytes, height),
    };
    let image = pixels_of(decoder_of(bytes, dct)?, bytes, channels, pixels)?;
    // A damaged file may have two frames; the decoder may have used the other one.
    match [image.height, image.width] == [rows, width] {
        true => Ok((image, window)),
        false => Err(jpeg(format_args!("it is {} × {} pixels and {rows} × {width}", image.height, image.width))),
    }
}

fn pixels_of(
    mut decoder: Decoder<'_>,
    bytes: &[u8],
    channels: usize,
    pixels: &mut Vec<u8>,
) -> Result<Image, DataError> {
    let header = decoder.header();
    let (height, width) = checked(header.height.into(), header.width.into())?;
    let format = match (header.components.len(), channels) {
        (4, _) => {
            let factors = header.components.iter().map(|it| [it.horizontal_sampling, it.vertical_sampling]);
            check_inks(&factors.collect::<Vec<_>>()).map_err(jpeg)?;
            PixelFormat::Cmyk
        }
        (1, _) | (3, 1) => PixelFormat::Grayscale,
        (3, _) => PixelFormat::Rgb,
        (n, _) => {
            let message = format!("a JPEG image of {n} components; expected 1 (grey), 3 (colour) or 4 (CMYK)");
            let help = "`on_error: {skip: N}` under `data` leaves up to N examples out that cannot be used";
            return Err(wrong(DataErrorKind::Format, message).help(help));
        }
    };
    // The decoder would silently keep the upper 8 bits of a wider sample.
    if header.precision != 8 {
        return Err(jpeg(format_args!("it has {} bits a sample, and 8 are decoded", header.precision)));
    }
    decoder.set_output_format(format);
    let n_bytes = height * width * format.bytes_per_pixel();
    pixels.try_reserve(n_bytes.saturating_sub(pixels.len())).map_err(jpeg)?;
    pixels.resize(n_bytes, 0);
    // A panic in the decoder becomes an error of this image instead of ending the run.
    let decoded = guarded(|| decoder.decode_image_into(pixels)).map_err(jpeg)?.map_err(jpeg)?;
    if (decoded.height, decoded.width, decoded.bytes_written) != (height, width, n_bytes) {
        return Err(jpeg(format_args!("{} bytes of {n_bytes}", decoded.bytes_written)));
    }
    let (channels, pixels) = match format {
        PixelFormat::Cmyk => (3, rgb_of_cmyk(pixels, has_adobe_marker(bytes))),
        PixelFormat::Grayscale => (1, std::mem::take(pixels)),
        _ => (3, std::mem::take(pixels)),
    };
    Ok(Image { height, width, channels, pixels })
}

/// As in TensorFlow: Adobe's files have inverted CMYK channels.
fn rgb_of_cmyk(cmyk: &[u8], is_inverted: bool) -> Vec<u8> {
    let light = |ink: u8| u16::from(if is_inverted { ink } else { 255 - ink });
    let rgb = |[c, m, y, k]: &[u8; 4]| [c, m, y].map(|&ink| (light(*k) * light(ink) / 255) as u8);
    cmyk.as_chunks::<4>().0.iter().flat_map(rgb).collect()
}

fn png_reader(bytes: &[u8]) -> Result<png::Reader<Cursor<&[u8]>>, DataError> {
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: MAX_MEMORY as usize });
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    decoder.read_info().map_err(png)
}

fn decode_png(bytes: &[u8]) -> Result<Image, DataError> {
    let mut reader = png_reader(bytes)?;
    let header = reader.info();
    let (height, width) = checked(header.height.into(), header.width.into())?;
    let mut pixels = vec![0; reader.output_buffer_size().expect("so many pixels fit into memory")];
    let info = reader.next_frame(&mut pixels).map_err(png)?;
    if info.bit_depth != png::BitDepth::Eight {
        return Err(png(format_args!("{:?} bits a sample", info.bit_depth)));
    }
    pixels.truncate(info.buffer_size());
    let samples = info.color_type.samples();
    let channels = if samples < 3 { 1 } else { 3 };
    if samples != channels {
        pixels = pixels.chunks_exact(samples).flat_map(|pixel| &pixel[..channels]).copied().collect();
    }
    Ok(Image { height, width, channels, pixels })
}

fn with_channels(image: Image, channels: usize) -> Image {
    let pixels = match (image.channels, channels) {
        (1, 3) => image.pixels.iter().flat_map(|&grey| [grey; 3]).collect(),
        (3, 1) => image.pixels.as_chunks::<3>().0.iter().map(luma).collect(),
        _ => return image,
    };
    Image { channels, pixels, ..image }
}

/// JFIF's luma, rounded to nearest.
fn luma(&[r, g, b]: &[u8; 3]) -> u8 {
    ((299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) + 500) / 1000) as u8
}

#[cfg(test)]
mod tests;
