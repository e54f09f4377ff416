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
            let start = beginning(bytes.len(), &bytes[..bytes.len().min(8)]);
            Err(wrong(DataErrorKind::Format, format!("{start}; expected a JPEG or PNG image")))
        }
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
mod tests {
    use super::*;
    use libjpeg_turbo_rs::{Subsampling, compress};

    const DCT: DctMethod = DctMethod::IntegerAccurate;

    fn a_jpeg() -> Vec<u8> {
        let pixels: Vec<u8> = (0..24 * 17 * 3).map(|i| (i * 7 % 251) as u8).collect();
        compress(&pixels, 24, 17, PixelFormat::Rgb, 90, Subsampling::S420).unwrap()
    }

    fn a_png(color: png::ColorType, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 2, 1);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        bytes
    }

    /// Headers that claim this many pixels in a file of a kilobyte.
    fn bombs(height: u16, width: u16) -> [Vec<u8>; 2] {
        let mut jpeg = a_jpeg();
        let sof = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        jpeg[sof + 5..sof + 7].copy_from_slice(&height.to_be_bytes());
        jpeg[sof + 7..sof + 9].copy_from_slice(&width.to_be_bytes());
        let mut png = a_png(png::ColorType::Rgb, &[0; 6]);
        png[16..20].copy_from_slice(&u32::from(width).to_be_bytes());
        png[20..24].copy_from_slice(&u32::from(height).to_be_bytes());
        let mut crc = flate2::Crc::new();
        crc.update(&png[12..29]);
        png[29..33].copy_from_slice(&crc.sum().to_be_bytes());
        [jpeg, png]
    }

    /// The decoder took its upper bits for the whole sample.
    #[test]
    fn a_jpeg_of_12_bits_is_refused() {
        let mut jpeg = a_jpeg();
        let sof = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        // The marker of extended sequential coding, which has 8 bits or 12.
        (jpeg[sof + 1], jpeg[sof + 4]) = (0xc1, 8);
        decode(&jpeg, 3, DCT).unwrap();
        jpeg[sof + 4] = 12;
        let error = decode(&jpeg, 3, DCT).unwrap_err().to_string();
        assert!(error.contains("it has 12 bits a sample, and 8 are decoded"), "{error}");
    }

    #[test]
    fn bombs_are_refused_by_their_headers() {
        for bomb in bombs(20_000, 20_000) {
            assert!(bomb.len() < 2048);
            for error in [decode(&bomb, 3, DCT).unwrap_err(), size(&bomb).unwrap_err()] {
                assert_eq!(error.to_string(), "an image of 20000 × 20000 pixels; expected at most 67108864 pixels");
            }
        }
        // The largest size allowed: only the pixels are missing.
        for bomb in bombs(8192, 8192) {
            assert_eq!(size(&bomb).unwrap()[..2], [8192, 8192]);
            assert!(decode(&bomb, 1, DCT).unwrap_err().to_string().contains(" image cannot be decoded: "));
        }
    }

    /// Every window of small images against the same rows of the whole image: for each chroma subsampling, with and
    /// without restarts, progressive, grey.
    #[test]
    fn a_windows_pixels_are_those_of_the_whole() {
        let (height, width) = (61, 37);
        let pixels: Vec<u8> = (0..height * width * 3).map(|i| (i * i / 5 % 251) as u8).collect();
        let encoder = || libjpeg_turbo_rs::Encoder::new(&pixels, width, height, PixelFormat::Rgb).quality(80);
        let ways = [Subsampling::S444, Subsampling::S422, Subsampling::S420, Subsampling::S440, Subsampling::S411];
        let mut files: Vec<Vec<u8>> = ways.iter().map(|&way| encoder().subsampling(way).encode().unwrap()).collect();
        files.push(encoder().subsampling(Subsampling::S420).restart_rows(1).encode().unwrap());
        files.push(encoder().subsampling(Subsampling::S420).progressive(true).encode().unwrap());
        files.push(compress(&pixels, 3 * width, height, PixelFormat::Grayscale, 80, Subsampling::S444).unwrap());
        let mut buffers = Buffers::default();
        let mut n_shorter = 0;
        for (number, bytes) in files.iter().enumerate() {
            for (channels, dct) in [(1, DCT), (3, DCT), (3, DctMethod::IntegerFast)] {
                let whole = decode(bytes, channels, dct).unwrap();
                for end in 1..=whole.height {
                    let y = end / 2;
                    let wanted = Window { y, x: 1, height: end - y, width: 20 };
                    let (image, window) = decode_window(bytes, channels, dct, |_| wanted, &mut buffers).unwrap();
                    assert_eq!((window, image.width, image.channels), (wanted, whole.width, whole.channels));
                    let n = end * whole.width * channels;
                    assert!(image.pixels[..n] == whole.pixels[..n], "file {number}, {channels} channels, to row {end}");
                    n_shorter += usize::from(image.height < whole.height);
                    buffers.pixels = image.pixels;
                }
            }
        }
        assert!(n_shorter > 300, "{n_shorter} of all were decoded in part");
    }

    /// Each case that mutating images found, and one that would decode to wrong pixels.
    #[test]
    fn inks_sampled_as_the_decoder_does_not_take_them_are_refused() {
        let pixels: Vec<u8> = (0..24 * 17 * 4).map(|i| (i * 7 % 251) as u8).collect();
        let whole = compress(&pixels, 24, 17, PixelFormat::Cmyk, 90, Subsampling::S444).unwrap();
        assert!(decode(&whole, 3, DCT).is_ok());
        let sof = whole.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        for factors in
            [[0x11, 0x11, 0x11, 0x21], [0x11, 0x21, 0x21, 0x11], [0x31, 0x21, 0x21, 0x31], [0x22, 0x11, 0x12, 0x22]]
        {
            let mut changed = whole.clone();
            for (number, factor) in factors.into_iter().enumerate() {
                changed[sof + 11 + 3 * number] = factor;
            }
            let error = decode(&changed, 3, DCT).unwrap_err().to_string();
            assert!(error.contains("its four components have the sampling factors "), "{error}");
        }
    }

    #[test]
    fn colours_that_nobody_knows_are_refused() {
        let mut two = a_jpeg();
        let sof = two.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        // The frame and its scan without the third component.
        two[sof + 3] = 14;
        two[sof + 9] = 2;
        two.drain(sof + 16..sof + 19);
        let sos = two.windows(2).position(|marker| marker == [0xff, 0xda]).unwrap();
        two[sos + 3] = 10;
        two[sos + 4] = 2;
        two.drain(sos + 9..sos + 11);
        assert_eq!(size(&two).unwrap()[2], 2);
        assert_eq!(
            decode(&two, 3, DCT).unwrap_err().to_string(),
            "a JPEG image of 2 components; expected 1 (grey), 3 (colour) or 4 (CMYK)\n\
             help: `on_error: {skip: N}` under `data` leaves up to N examples out that cannot be used"
        );
    }

    #[test]
    fn what_is_no_image_or_cut_is_refused() {
        let refused = |bytes: &[u8]| decode(bytes, 3, DCT).unwrap_err().to_string();
        assert_eq!(
            refused(b"GIF89a..."),
            "9 bytes that begin with 47 49 46 38 39 61 2e 2e; expected a JPEG or PNG image"
        );
        assert_eq!(refused(b""), "no bytes; expected a JPEG or PNG image");
        assert_eq!(refused(b"a"), "1 byte, 61; expected a JPEG or PNG image");
        for (whole, expected) in [
            (a_jpeg(), "the JPEG image cannot be decoded: "),
            (a_png(png::ColorType::Rgb, &[1; 6]), "the PNG image cannot be decoded: "),
        ] {
            assert!(decode(&whole, 3, DCT).is_ok());
            for end in 8..whole.len() / 2 {
                assert!(refused(&whole[..end]).starts_with(expected));
            }
        }
    }

    #[test]
    fn channels_are_those_that_are_asked_for() {
        let decoded = |color, data: &[u8], channels| decode(&a_png(color, data), channels, DCT).unwrap().pixels;
        assert_eq!(decoded(png::ColorType::Grayscale, &[10, 20], 3), [10, 10, 10, 20, 20, 20]);
        assert_eq!(decoded(png::ColorType::GrayscaleAlpha, &[10, 0, 20, 9], 1), [10, 20]);
        assert_eq!(decoded(png::ColorType::Rgba, &[1, 2, 3, 0, 4, 5, 6, 0], 3), [1, 2, 3, 4, 5, 6]);
        // 0.299 · 100 + 0.587 · 50 + 0.114 · 10 = 60.39
        assert_eq!(decoded(png::ColorType::Rgb, &[100, 50, 10, 255, 255, 255], 1), [60, 255]);
        assert_eq!(rgb_of_cmyk(&[200, 100, 0, 255], true), [200, 100, 0]);
        assert_eq!(rgb_of_cmyk(&[55, 155, 255, 0], false), [200, 100, 0]);
    }
}
