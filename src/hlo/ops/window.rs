//! Windows, and the ops that slide them: reduce-window, select-and-scatter.

use super::RuleError;
use crate::hlo::{CompId, Module, Shape};

/// A window: one entry per dimension it covers.
pub type Window = Vec<WindowDim>;

/// One dimension of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDim {
    /// Elements in the window.
    pub size: i64,
    /// Step between windows.
    pub stride: i64,
    /// Padding before (may be negative).
    pub padding_low: i64,
    /// Padding after (may be negative).
    pub padding_high: i64,
    /// Distance of neighbouring window elements (`rhs_dilate`).
    pub window_dilation: i64,
    /// Distance the operand's elements are spread to (`lhs_dilate`).
    pub base_dilation: i64,
    /// Whether the window is reversed (`rhs_reversal`).
    pub reversal: bool,
}

impl WindowDim {
    /// A dense window of this size, stride 1, no padding.
    pub const fn of_size(size: i64) -> WindowDim {
        WindowDim {
            size,
            stride: 1,
            padding_low: 0,
            padding_high: 0,
            window_dilation: 1,
            base_dilation: 1,
            reversal: false,
        }
    }

    /// Positions of this window over `n` elements: 0 if it does not fit once.
    ///
    /// `floor((padded - dilated_window) / stride) + 1`, with `padded = dilated(n) + padding_low + padding_high`.
    pub fn n_positions(&self, n: i64) -> i64 {
        let dilated =
            |n: i64, dilation: i64| if n == 0 { 0 } else { (n - 1).saturating_mul(dilation).saturating_add(1) };
        let padded = dilated(n, self.base_dilation).saturating_add(self.padding_low).saturating_add(self.padding_high);
        let window = dilated(self.size, self.window_dilation);
        if padded < window || padded <= 0 { 0 } else { (padded - window) / self.stride + 1 }
    }
}

/// N arrays, N scalars → one element per window position (a tuple if N > 1).
pub(super) fn reduce_window(
    module: &Module,
    window: &[WindowDim],
    to_apply: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let _ = (module, window, to_apply, operands);
    todo!()
}

/// Array, source (one per window position), scalar → the shape of the array.
pub(super) fn select_and_scatter(
    module: &Module,
    window: &[WindowDim],
    select: CompId,
    scatter: CompId,
    operands: &[&Shape],
) -> Result<Shape, RuleError> {
    let _ = (module, window, select, scatter, operands);
    todo!()
}
