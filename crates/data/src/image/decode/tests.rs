//! JPEG and PNG, whole and damaged.

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
        let factors = factors.map(|factor| format!("{}×{}", factor >> 4, factor & 15)).join(", ");
        let expected = format!(
            "its four components have the sampling factors {factors}; expected the first and the last alike, and the two \
             between alike and dividing them"
        );
        assert!(error.contains(&expected), "{error}");
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
    assert_eq!(refused(b"GUF89a..."), "9 bytes that begin with 47 55 46 38 39 61 2e 2e; expected a JPEG or PNG image");
    let others: [(&[u8], &str); 6] = [
        (b"GIF89a...", "GIF"),
        (b"II*\0\x08\0", "TIFF"),
        (b"MM\0*\0\0", "TIFF"),
        (b"RIFF\x24\0\0\0WEBPVP8 ", "WebP"),
        (b"BM\x66\0\0\0\0\0\0\0\x36\0", "BMP"),
        (b"\0\0\0\x1cftypavif", "HEIF"),
    ];
    for (bytes, name) in others {
        assert_eq!(refused(bytes), format!("a {name} image; expected a JPEG or PNG image"));
    }
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
