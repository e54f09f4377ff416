//! Images: decoded, cropped and resized as TensorFlow's ResNet recipe does it, on the host.
//!
//! Each step is a pure function of its arguments; randomness comes from a stream that the caller derives from seed,
//! epoch and example.

pub mod crop;
mod decode;
mod jpeg;
pub mod resize;

pub use crop::{CenterCrop, RandomResizedCrop, Window};
pub use decode::{Buffers, DctMethod, MAX_PIXELS, decode, decode_window, format_name, size};
pub use resize::{Resize, Resizing};

/// Pixels, row-major, channels last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    /// `height * width * channels` bytes.
    pub pixels: Vec<u8>,
}
