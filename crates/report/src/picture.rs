//! Pixels as PNG files.

/// An image as a PNG file.
pub fn png(pixels: &[u8], [height, width]: [usize; 2], channels: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_color(if channels == 1 { png::ColorType::Grayscale } else { png::ColorType::Rgb });
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels));
    written.expect("a vector takes everything, and the pixels are as many as the header says");
    out
}
