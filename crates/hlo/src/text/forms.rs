//! The spelling of values, both ways: lists, windows, paddings, slices, labels of dimensions, groups of replicas.
//!
//! Writers are called `…_text`; the reader of the same form has the name without that. [`super::op`] says which values
//! each op has.

use super::lex::{Cursor, Read};
use crate::ops::{ConvolutionDims, PadDim, ReplicaGroups, SliceDim, Window, WindowDim};
use std::fmt::{Display, Write};

/// Values joined by commas.
pub(crate) fn list<T: Display>(values: &[T]) -> String {
    joined(values, ",", |out, value| write_display(out, value))
}

pub(super) fn write_display(out: &mut String, value: &dyn Display) {
    write!(out, "{value}").expect("writing to a string cannot fail");
}

pub(super) fn joined<T>(values: &[T], separator: &str, mut each: impl FnMut(&mut String, &T)) -> String {
    let mut out = String::new();
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        each(&mut out, value);
    }
    out
}

pub(super) fn slice_text(dims: &[SliceDim]) -> String {
    let strided = dims.iter().any(|dim| dim.stride != 1);
    joined(dims, ", ", |out, dim| {
        let SliceDim { start, limit, stride } = dim;
        match strided {
            true => write_display(out, &format_args!("[{start}:{limit}:{stride}]")),
            false => write_display(out, &format_args!("[{start}:{limit}]")),
        }
    })
}

pub(super) fn padding_text(dims: &[PadDim]) -> String {
    let has_interior = dims.iter().any(|dim| dim.interior != 0);
    joined(dims, "x", |out, dim| {
        let PadDim { low, high, interior } = dim;
        match has_interior {
            true => write_display(out, &format_args!("{low}_{high}_{interior}")),
            false => write_display(out, &format_args!("{low}_{high}")),
        }
    })
}

/// The contents of `window={…}`; fields with their default everywhere are omitted.
pub(crate) fn window_text(window: &[WindowDim]) -> String {
    let mut out = format!("size={}", joined(window, "x", |out, dim| write_display(out, &dim.size)));
    let mut put = |name: &str, is_default: fn(&WindowDim) -> bool, text: fn(&WindowDim) -> String| {
        if !window.iter().all(is_default) {
            let values = joined(window, "x", |out, dim| out.push_str(&text(dim)));
            write_display(&mut out, &format_args!(" {name}={values}"));
        }
    };
    put("stride", |dim| dim.stride == 1, |dim| dim.stride.to_string());
    put(
        "pad",
        |dim| dim.padding_low == 0 && dim.padding_high == 0,
        |dim| format!("{}_{}", dim.padding_low, dim.padding_high),
    );
    put("lhs_dilate", |dim| dim.base_dilation == 1, |dim| dim.base_dilation.to_string());
    put("rhs_dilate", |dim| dim.window_dilation == 1, |dim| dim.window_dilation.to_string());
    put("rhs_reversal", |dim| !dim.reversal, |dim| u8::from(dim.reversal).to_string());
    out
}

/// `b01f_01io->b01f`: the role of each dimension of input, kernel and output.
pub(crate) fn dim_labels_text(dims: &ConvolutionDims) -> String {
    let labels = |roles: [(i64, char); 2], spatial: &[i64]| {
        let rank = roles.iter().map(|&(dim, _)| dim).chain(spatial.iter().copied()).max().unwrap_or(0) + 1;
        // A broken module may have any number of dimensions; it gets as many labels as it has roles.
        let rank = usize::try_from(rank).unwrap_or(0).min(2 + spatial.len());
        let mut labels = vec!["?".to_string(); rank];
        let mut set = |dim: i64, label: String| {
            if let Some(slot) = usize::try_from(dim).ok().and_then(|dim| labels.get_mut(dim)) {
                *slot = label;
            }
        };
        roles.into_iter().for_each(|(dim, label)| set(dim, label.to_string()));
        spatial.iter().enumerate().for_each(|(i, &dim)| set(dim, i.to_string()));
        labels.concat()
    };
    let input = labels([(dims.input_batch, 'b'), (dims.input_feature, 'f')], &dims.input_spatial);
    let kernel = labels([(dims.kernel_input_feature, 'i'), (dims.kernel_output_feature, 'o')], &dims.kernel_spatial);
    let output = labels([(dims.output_batch, 'b'), (dims.output_feature, 'f')], &dims.output_spatial);
    format!("{input}_{kernel}->{output}")
}

pub(crate) fn groups_text(groups: &ReplicaGroups) -> String {
    match groups {
        ReplicaGroups::List(groups) => {
            let groups = joined(groups, ",", |out, group| write_display(out, &format_args!("{{{}}}", list(group))));
            format!("{{{groups}}}")
        }
        ReplicaGroups::Iota { dims, reshape_dims, transpose_perm } => {
            let mut out = format!("[{}]", list(dims));
            write_iota(&mut out, reshape_dims, transpose_perm);
            out
        }
    }
}

/// `<=[4]`, `<=[2,2]T(1,0)`: an iota, reshaped and transposed.
pub(crate) fn write_iota(out: &mut String, reshape_dims: &[i64], transpose_perm: &[i64]) {
    out.push_str(&format!("<=[{}]", list(reshape_dims)));
    if !transpose_perm.is_empty() {
        out.push_str(&format!("T({})", list(transpose_perm)));
    }
}

/// Checks that a value ends where its reader stopped.
pub(crate) fn finished(value: &mut Cursor<'_>) -> Read<()> {
    if value.at_end() { Ok(()) } else { Err(value.expected("the end of the value")) }
}

/// Reads a word of a table.
pub(super) fn named<T: Copy>(value: &mut Cursor<'_>, all: &[T], name_of: impl Fn(T) -> &'static str) -> Read<T> {
    value.skip_blank();
    let start = value.pos;
    let word = value.word_or_empty();
    all.iter().copied().find(|&item| name_of(item) == word).ok_or_else(|| {
        value.pos = start;
        let names: Vec<&str> = all.iter().map(|&item| name_of(item)).collect();
        value.expected(format!("one of {}", names.join(", ")))
    })
}

pub(super) fn small_int(value: &mut Cursor<'_>) -> Read<i32> {
    let start = value.pos;
    i32::try_from(value.int()?).map_err(|_| {
        value.pos = start;
        value.expected("a 32-bit integer")
    })
}

/// `<=[2,2]T(1,0)`.
pub(crate) fn iota(value: &mut Cursor<'_>) -> Read<(Vec<i64>, Vec<i64>)> {
    value.expect("<=")?;
    let reshape_dims = value.ints("[", "]")?;
    let transpose_perm = if value.eat("T") { value.ints("(", ")")? } else { Vec::new() };
    Ok((reshape_dims, transpose_perm))
}

pub(crate) fn replica_groups(value: &mut Cursor<'_>) -> Read<ReplicaGroups> {
    if value.peek() == Some(b'[') {
        let dims = value.ints("[", "]")?;
        let (reshape_dims, transpose_perm) = iota(value)?;
        return Ok(ReplicaGroups::Iota { dims, reshape_dims, transpose_perm });
    }
    let mut groups = Vec::new();
    value.sequence("{", "}", |value| {
        groups.push(value.ints("{", "}")?);
        Ok(())
    })?;
    Ok(ReplicaGroups::List(groups))
}

/// `{[0:4], [1:9:2]}`.
pub(super) fn slice(value: &mut Cursor<'_>) -> Read<Vec<SliceDim>> {
    let mut dims = Vec::new();
    value.sequence("{", "}", |value| {
        value.expect("[")?;
        let start = value.int()?;
        value.expect(":")?;
        let limit = value.int()?;
        let stride = if value.eat(":") { value.int()? } else { 1 };
        value.expect("]")?;
        value.spend(2 * size_of::<SliceDim>())?;
        dims.push(SliceDim { start, limit, stride });
        Ok(())
    })?;
    Ok(dims)
}

/// `n` groups of integers: `0_1x2_3` is `[[0, 1], [2, 3]]`.
fn groups(value: &mut Cursor<'_>) -> Read<Vec<Vec<i64>>> {
    value.skip_blank();
    let start = value.pos;
    let word = value.word("integers like `0_1x2_3`")?;
    // A caller may keep values made from the groups, at most a window dimension each, beside them for a while.
    let n_groups = word.bytes().filter(|&byte| byte == b'x').count() + 1;
    value.spend(n_groups * (2 * size_of::<Vec<i64>>() + 2 * size_of::<WindowDim>()) + word.len() * size_of::<i64>())?;
    let group = |text: &str| text.split('_').map(|number| number.parse().ok()).collect::<Option<Vec<i64>>>();
    word.split('x').map(group).collect::<Option<Vec<_>>>().ok_or_else(|| {
        value.pos = start;
        value.expected("integers like `0_1x2_3`")
    })
}

/// `1_2x0_0_3`: low, high and perhaps interior padding of each dimension.
pub(super) fn padding(value: &mut Cursor<'_>) -> Read<Vec<PadDim>> {
    let start = *value;
    if value.at_end() {
        return Ok(Vec::new());
    }
    let dim = |group: Vec<i64>| match group[..] {
        [low, high] => Some(PadDim { low, high, interior: 0 }),
        [low, high, interior] => Some(PadDim { low, high, interior }),
        _ => None,
    };
    let dims = groups(value)?.into_iter().map(dim).collect::<Option<Vec<_>>>();
    dims.ok_or_else(|| {
        *value = start;
        value.expected("padding like `1_2x0_0_3`")
    })
}

/// `{size=3x3 stride=2x2 pad=0_1x0_1}`.
pub(crate) fn window(value: &mut Cursor<'_>) -> Read<Window> {
    value.expect("{")?;
    let mut window: Window = Vec::new();
    while !value.eat("}") {
        value.skip_blank();
        let start = value.pos;
        let field = value.word("a window attribute or `}`")?;
        value.expect("=")?;
        let values_at = *value;
        let fields = groups(value)?;
        if field == "size" && window.is_empty() {
            window = fields.iter().map(|group| WindowDim::of_size(group[0])).collect();
        }
        if window.len() != fields.len() {
            *value = values_at;
            return Err(value.expected(format!("{} values, as many as `size` before it has", window.len())));
        }
        for (dim, group) in window.iter_mut().zip(fields) {
            match (field, &group[..]) {
                ("size", &[size]) => dim.size = size,
                ("stride", &[stride]) => dim.stride = stride,
                ("pad", &[low, high]) => (dim.padding_low, dim.padding_high) = (low, high),
                ("lhs_dilate", &[dilation]) => dim.base_dilation = dilation,
                ("rhs_dilate", &[dilation]) => dim.window_dilation = dilation,
                ("rhs_reversal", &[reversal]) => dim.reversal = reversal != 0,
                ("size" | "stride" | "pad" | "lhs_dilate" | "rhs_dilate" | "rhs_reversal", _) => {
                    *value = values_at;
                    return Err(value.expected("two integers per dimension in `pad`, one in all others"));
                }
                _ => {
                    value.pos = start;
                    return Err(value.expected("size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal"));
                }
            }
        }
    }
    Ok(window)
}

/// `b01f_01io->b01f`.
pub(crate) fn dim_labels(value: &mut Cursor<'_>) -> Read<ConvolutionDims> {
    value.skip_blank();
    let start = *value;
    let bad = || {
        let mut at = start;
        at.expected("dimension labels like `b01f_01io->b01f`")
    };
    let inputs = value.word_or_empty();
    value.expect("->")?;
    let output = value.word_or_empty();
    let (input, kernel) = inputs.split_once('_').ok_or_else(bad)?;
    let roles = |labels: &str, roles: [char; 2]| -> Option<(i64, i64, Vec<i64>)> {
        let place = |label: char| labels.chars().position(|c| c == label).map(|at| at as i64);
        let spatial = (0..labels.len().checked_sub(2)?)
            .map(|i| place(char::from_digit(i as u32, 10)?))
            .collect::<Option<Vec<_>>>()?;
        Some((place(roles[0])?, place(roles[1])?, spatial))
    };
    let (input_batch, input_feature, input_spatial) = roles(input, ['b', 'f']).ok_or_else(bad)?;
    let (kernel_input_feature, kernel_output_feature, kernel_spatial) = roles(kernel, ['i', 'o']).ok_or_else(bad)?;
    let (output_batch, output_feature, output_spatial) = roles(output, ['b', 'f']).ok_or_else(bad)?;
    Ok(ConvolutionDims {
        input_batch,
        input_feature,
        input_spatial,
        kernel_input_feature,
        kernel_output_feature,
        kernel_spatial,
        output_batch,
        output_feature,
        output_spatial,
    })
}
