//! Output dims of layers without the batch, as far as they are known: some ops become a layer only if a size is known.

use super::network::LayerLine;

/// The output dims of a layer, given its input dims.
pub(super) fn output_dims(line: &LayerLine, reads: &[Option<&Vec<i64>>]) -> Option<Vec<i64>> {
    let option = |name: &str| option(line, name);
    let first = || reads.first().copied().flatten().cloned();
    if option("data_format").is_some() {
        return None;
    }
    let strides = pair(option("strides").unwrap_or("1"));
    let is_same = option("padding") == Some("same");
    // Windows over height and width.
    let slid = |window: [i64; 2], channels: Option<i64>| {
        let dims = first()?;
        let [height, width, n] = dims[..] else { return None };
        let [dilated, strides] = [pair(option("dilation_rate").unwrap_or("1"))?, strides?];
        let mut out = Vec::new();
        for (at, size) in [height, width].into_iter().enumerate() {
            let covered = (window[at] - 1) * dilated[at] + 1;
            let size = if is_same { size } else { size - covered + 1 };
            out.push((size + strides[at] - 1).checked_div(strides[at])?);
        }
        out.push(channels.unwrap_or(n));
        Some(out)
    };
    match line.kind {
        "conv" => slid(pair(option("kernel_size")?)?, line.first.parse().ok()),
        "conv1d" => {
            let dims = first()?;
            let number = |name, default| option(name).map_or(Some(default), |text: &str| text.parse::<i64>().ok());
            let (size, by) = (number("kernel_size", 1)?, number("strides", 1)?);
            let covered = (size - 1) * number("dilation_rate", 1)? + 1;
            let length = if is_same { *dims.first()? } else { dims.first()? - covered + 1 };
            Some(vec![(length + by - 1).checked_div(by)?, line.first.parse().ok()?])
        }
        "conv_transpose" => transposed(line, &first()?),
        "depthwise_conv" => {
            let n = option("depth_multiplier").map_or(Some(1), |n| n.parse().ok())?;
            slid(pair(&line.first)?, Some(first()?.last()? * n))
        }
        "max_pool" | "avg_pool" => slid(pair(&line.first)?, None),
        "zero_padding" => {
            let (pads, mut dims) = (numbers(&line.first), first()?);
            let is_of_all = pads.len() == 2 * dims.len().checked_sub(1)?;
            dims.iter_mut()
                .zip(pads.chunks(2))
                .for_each(|(dim, pair)| *dim = pair.iter().fold(*dim, |sum, pad| sum.saturating_add(*pad)));
            is_of_all.then_some(dims)
        }
        "dense" => {
            let mut dims = first()?;
            *dims.last_mut()? = line.first.parse().ok()?;
            Some(dims)
        }
        "flatten" => Some(vec![first()?.iter().product()]),
        "global_avg_pool" | "global_max_pool" => first()?.last().map(|n| vec![*n]),
        "reshape" => Some(numbers(&line.first)),
        "embedding" => {
            let mut dims = first()?;
            dims.push(*numbers(&line.first).last()?);
            Some(dims)
        }
        "take" | "slice" => {
            let mut dims = first()?;
            let at = option("axis").map_or(Some(0), |axis| axis.parse::<usize>().ok()?.checked_sub(1))?;
            let size = *dims.get(at)?;
            if line.kind == "take" {
                dims.remove(at);
                return Some(dims);
            }
            let (begin, end) = line.first.trim_matches(['[', ']']).split_once(", ")?;
            let bound = |text: &str, other: i64| match text {
                "null" => Some(other),
                text => text
                    .parse::<i64>()
                    .ok()
                    .map(|at| if at < 0 { at.saturating_add(size).max(0) } else { at.min(size) }),
            };
            dims[at] = bound(end, size)?.saturating_sub(bound(begin, 0)?).max(0);
            Some(dims)
        }
        "upsample" => {
            let (mut dims, by) = (first()?, pair(&line.first)?);
            dims.iter_mut().zip(by).for_each(|(dim, by)| *dim *= by);
            Some(dims)
        }
        "concat" => {
            let mut dims = first()?;
            let axis = option("axis").map_or(Some(-1), |axis| axis.parse::<i64>().ok())?;
            // Axis 0 is the batch's.
            let at = if axis < 0 { dims.len() as i64 + axis } else { axis - 1 };
            let along = |dims: &Vec<i64>| usize::try_from(at).ok().and_then(|at| dims.get(at).copied());
            let sizes: Option<Vec<i64>> = reads.iter().map(|dims| along((*dims)?)).collect();
            *dims.get_mut(usize::try_from(at).ok()?)? = sizes?.iter().sum();
            Some(dims)
        }
        _ => first(),
    }
}

fn option<'l>(line: &'l LayerLine, name: &str) -> Option<&'l str> {
    line.options.iter().find(|(option, _)| *option == name).map(|(_, value)| value.as_str())
}

/// The output dims of a transposed convolution.
fn transposed(line: &LayerLine, dims: &[i64]) -> Option<Vec<i64>> {
    let [height, width, _] = dims[..] else { return None };
    let (size, strides) = (pair(option(line, "kernel_size")?)?, pair(option(line, "strides").unwrap_or("1"))?);
    let added = option(line, "output_padding").and_then(pair);
    let is_same = option(line, "padding") == Some("same");
    let along = |at: usize, n: i64| match added {
        Some(added) => {
            let spread = (n - 1).saturating_mul(strides[at]).saturating_add(size[at]);
            spread - if is_same { 2 * (size[at] / 2) } else { 0 } + added[at]
        }
        None if is_same => n.saturating_mul(strides[at]),
        None => n.saturating_mul(strides[at]).saturating_add((size[at] - strides[at]).max(0)),
    };
    Some(vec![along(0, height), along(1, width), line.first.parse().ok()?])
}

/// `3` or `[3, 5]`.
fn pair(text: &str) -> Option<[i64; 2]> {
    match numbers(text)[..] {
        [one] => Some([one, one]),
        [a, b] => Some([a, b]),
        _ => None,
    }
}

/// The integers in a text.
fn numbers(text: &str) -> Vec<i64> {
    text.split(|c: char| !c.is_ascii_digit() && c != '-').filter_map(|part| part.parse().ok()).collect()
}
