//! Shardings as text: `{replicated}`, `{maximal device=0}`, `{devices=[2,1]<=[2]}`, `{{…}, {…}}`.

use super::attributes::list;
use crate::hlo::{DeviceOrder, Sharding};

/// Writes a sharding with its braces.
pub(super) fn write(out: &mut String, sharding: &Sharding) {
    match sharding {
        Sharding::Replicated => out.push_str("{replicated}"),
        Sharding::Maximal { device } => out.push_str(&format!("{{maximal device={device}}}")),
        Sharding::Manual => out.push_str("{manual}"),
        Sharding::Tiled(tiles) => {
            out.push_str(&format!("{{devices=[{}]", list(&tiles.dims)));
            match &tiles.devices {
                DeviceOrder::List(devices) => out.push_str(&list(devices)),
                DeviceOrder::Iota { reshape_dims, transpose_perm } => write_iota(out, reshape_dims, transpose_perm),
            }
            if tiles.replicate_on_last_dim {
                out.push_str(" last_tile_dim_replicate");
            }
            out.push('}');
        }
        Sharding::Tuple(elements) => {
            out.push('{');
            for (i, element) in elements.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                    if i % 5 == 0 {
                        out.push_str(&format!("/*index={i}*/"));
                    }
                }
                write(out, element);
            }
            out.push('}');
        }
        Sharding::Raw { text, .. } => out.push_str(&format!("{{{text}}}")),
    }
}

/// Whether text can say it: a message in a form that XLA's text has not is left out rather than misstated.
pub(super) fn has_text(sharding: &Sharding) -> bool {
    match sharding {
        Sharding::Raw { text, proto } => !text.is_empty() || proto.is_empty(),
        Sharding::Tuple(elements) => elements.iter().all(has_text),
        Sharding::Replicated | Sharding::Maximal { .. } | Sharding::Manual | Sharding::Tiled(_) => true,
    }
}

/// `<=[4]`, `<=[2,2]T(1,0)`: an iota, reshaped and transposed.
pub(in crate::hlo) fn write_iota(out: &mut String, reshape_dims: &[i64], transpose_perm: &[i64]) {
    out.push_str(&format!("<=[{}]", list(reshape_dims)));
    if !transpose_perm.is_empty() {
        out.push_str(&format!("T({})", list(transpose_perm)));
    }
}
