//! Attribute structs of the ops and their messages, each pair side by side.

use super::ProtoError;
use super::messages as pb;
use super::sharding::{decode_perm, encode_perm};
use crate::ops::dot::ALGORITHMS;
use crate::ops::{
    ConvolutionDims, DotDims, GatherDims, OperandPrecision, PadDim, PrecisionConfig, ReplicaGroups, ScatterDims,
    SliceDim, WindowDim,
};

/// Groups this large are only written as an iota; smaller ones also as a list, which every XLA of the last years
/// reads.
const MAX_LISTED_DEVICES: i64 = 1 << 16;

pub(crate) fn encode_window(window: &[WindowDim]) -> pb::Window {
    let dimension = |dim: &WindowDim| pb::WindowDimension {
        size: dim.size,
        stride: dim.stride,
        padding_low: dim.padding_low,
        padding_high: dim.padding_high,
        window_dilation: dim.window_dilation,
        base_dilation: dim.base_dilation,
        window_reversal: dim.reversal,
    };
    pb::Window { dimensions: window.iter().map(dimension).collect() }
}

pub(crate) fn decode_window(window: pb::Window) -> Vec<WindowDim> {
    let dimension = |dim: pb::WindowDimension| WindowDim {
        size: dim.size,
        stride: dim.stride,
        padding_low: dim.padding_low,
        padding_high: dim.padding_high,
        window_dilation: dim.window_dilation,
        base_dilation: dim.base_dilation,
        reversal: dim.window_reversal,
    };
    window.dimensions.into_iter().map(dimension).collect()
}

pub(super) fn encode_slice(dims: &[SliceDim]) -> Vec<pb::SliceDimensions> {
    dims.iter().map(|d| pb::SliceDimensions { start: d.start, limit: d.limit, stride: d.stride }).collect()
}

pub(super) fn decode_slice(dims: Vec<pb::SliceDimensions>) -> Vec<SliceDim> {
    dims.into_iter().map(|d| SliceDim { start: d.start, limit: d.limit, stride: d.stride }).collect()
}

pub(super) fn encode_padding(dims: &[PadDim]) -> pb::PaddingConfig {
    let dimension = |dim: &PadDim| pb::PaddingConfigDimension {
        edge_padding_low: dim.low,
        edge_padding_high: dim.high,
        interior_padding: dim.interior,
    };
    pb::PaddingConfig { dimensions: dims.iter().map(dimension).collect() }
}

pub(super) fn decode_padding(config: pb::PaddingConfig) -> Vec<PadDim> {
    let dimension = |dim: pb::PaddingConfigDimension| PadDim {
        low: dim.edge_padding_low,
        high: dim.edge_padding_high,
        interior: dim.interior_padding,
    };
    config.dimensions.into_iter().map(dimension).collect()
}

pub(crate) fn encode_convolution_dims(dims: &ConvolutionDims) -> pb::ConvolutionDimensionNumbers {
    pb::ConvolutionDimensionNumbers {
        input_batch_dimension: dims.input_batch,
        input_feature_dimension: dims.input_feature,
        input_spatial_dimensions: dims.input_spatial.clone(),
        kernel_input_feature_dimension: dims.kernel_input_feature,
        kernel_output_feature_dimension: dims.kernel_output_feature,
        kernel_spatial_dimensions: dims.kernel_spatial.clone(),
        output_batch_dimension: dims.output_batch,
        output_feature_dimension: dims.output_feature,
        output_spatial_dimensions: dims.output_spatial.clone(),
    }
}

pub(crate) fn decode_convolution_dims(dims: pb::ConvolutionDimensionNumbers) -> ConvolutionDims {
    ConvolutionDims {
        input_batch: dims.input_batch_dimension,
        input_feature: dims.input_feature_dimension,
        input_spatial: dims.input_spatial_dimensions,
        kernel_input_feature: dims.kernel_input_feature_dimension,
        kernel_output_feature: dims.kernel_output_feature_dimension,
        kernel_spatial: dims.kernel_spatial_dimensions,
        output_batch: dims.output_batch_dimension,
        output_feature: dims.output_feature_dimension,
        output_spatial: dims.output_spatial_dimensions,
    }
}

pub(super) fn encode_dot_dims(dims: &DotDims) -> pb::DotDimensionNumbers {
    pb::DotDimensionNumbers {
        lhs_contracting_dimensions: dims.lhs_contracting.clone(),
        rhs_contracting_dimensions: dims.rhs_contracting.clone(),
        lhs_batch_dimensions: dims.lhs_batch.clone(),
        rhs_batch_dimensions: dims.rhs_batch.clone(),
    }
}

pub(super) fn decode_dot_dims(dims: pb::DotDimensionNumbers) -> DotDims {
    DotDims {
        lhs_batch: dims.lhs_batch_dimensions,
        rhs_batch: dims.rhs_batch_dimensions,
        lhs_contracting: dims.lhs_contracting_dimensions,
        rhs_contracting: dims.rhs_contracting_dimensions,
    }
}

pub(super) fn encode_precision(config: &PrecisionConfig, place: &str) -> Result<pb::PrecisionConfig, ProtoError> {
    let algorithm = match &config.algorithm {
        None => 0,
        Some(name) => ALGORITHMS.iter().position(|known| known == name).ok_or_else(|| ProtoError::UnknownName {
            place: place.to_string(),
            field: "precision_config.algorithm",
            name: name.clone(),
            expected: ALGORITHMS.join(", "),
        })? as i32,
    };
    let operand_precision = config.operand_precision.iter().map(|&precision| precision as i32).collect();
    Ok(pb::PrecisionConfig { operand_precision, algorithm })
}

pub(super) fn decode_precision(config: pb::PrecisionConfig, place: &str) -> Result<PrecisionConfig, ProtoError> {
    let precision = |&number: &i32| {
        OperandPrecision::ALL
            .get(number as usize)
            .copied()
            .ok_or_else(|| ProtoError::unknown(place, "precision_config.operand_precision", number.into(), "0, 1 or 2"))
    };
    let algorithm = match config.algorithm {
        0 => None,
        number => Some(
            ALGORITHMS
                .get(number as usize)
                .ok_or_else(|| ProtoError::unknown(place, "precision_config.algorithm", number.into(), "0 to 13"))?
                .to_string(),
        ),
    };
    Ok(PrecisionConfig {
        operand_precision: config.operand_precision.iter().map(precision).collect::<Result<_, _>>()?,
        algorithm,
    })
}

pub(super) fn encode_gather(dims: &GatherDims, proto: &mut pb::HloInstructionProto) {
    proto.gather_dimension_numbers = Some(Box::new(pb::GatherDimensionNumbers {
        offset_dims: dims.offset_dims.clone(),
        collapsed_slice_dims: dims.collapsed_slice_dims.clone(),
        start_index_map: dims.start_index_map.clone(),
        index_vector_dim: dims.index_vector_dim,
        operand_batching_dims: dims.operand_batching_dims.clone(),
        start_indices_batching_dims: dims.start_indices_batching_dims.clone(),
    }));
    proto.gather_slice_sizes = dims.slice_sizes.clone();
    proto.indices_are_sorted = dims.indices_are_sorted;
}

pub(super) fn decode_gather(dims: pb::GatherDimensionNumbers, proto: &mut pb::HloInstructionProto) -> GatherDims {
    GatherDims {
        offset_dims: dims.offset_dims,
        collapsed_slice_dims: dims.collapsed_slice_dims,
        start_index_map: dims.start_index_map,
        operand_batching_dims: dims.operand_batching_dims,
        start_indices_batching_dims: dims.start_indices_batching_dims,
        index_vector_dim: dims.index_vector_dim,
        slice_sizes: std::mem::take(&mut proto.gather_slice_sizes),
        indices_are_sorted: std::mem::take(&mut proto.indices_are_sorted),
    }
}

pub(super) fn encode_scatter(dims: &ScatterDims, proto: &mut pb::HloInstructionProto) {
    proto.scatter_dimension_numbers = Some(Box::new(pb::ScatterDimensionNumbers {
        update_window_dims: dims.update_window_dims.clone(),
        inserted_window_dims: dims.inserted_window_dims.clone(),
        scatter_dims_to_operand_dims: dims.scatter_dims_to_operand_dims.clone(),
        index_vector_dim: dims.index_vector_dim,
        input_batching_dims: dims.input_batching_dims.clone(),
        scatter_indices_batching_dims: dims.scatter_indices_batching_dims.clone(),
    }));
    proto.indices_are_sorted = dims.indices_are_sorted;
    proto.unique_indices = dims.unique_indices;
}

pub(super) fn decode_scatter(dims: pb::ScatterDimensionNumbers, proto: &mut pb::HloInstructionProto) -> ScatterDims {
    ScatterDims {
        update_window_dims: dims.update_window_dims,
        inserted_window_dims: dims.inserted_window_dims,
        scatter_dims_to_operand_dims: dims.scatter_dims_to_operand_dims,
        input_batching_dims: dims.input_batching_dims,
        scatter_indices_batching_dims: dims.scatter_indices_batching_dims,
        index_vector_dim: dims.index_vector_dim,
        indices_are_sorted: std::mem::take(&mut proto.indices_are_sorted),
        unique_indices: std::mem::take(&mut proto.unique_indices),
    }
}

/// Sets the fields of `replica_groups`.
///
/// An iota is written to the field of current XLA *and*, as a list, to the older one, which back ends of the last
/// years read: they would ignore the new field and use all replicas: a different program.
pub(crate) fn encode_groups(groups: &ReplicaGroups, proto: &mut pb::HloInstructionProto) {
    if let Some(groups) = listed(groups) {
        let replica_groups = groups.into_iter().map(|replica_ids| pb::ReplicaGroup { replica_ids }).collect();
        let list = pb::CollectiveDeviceListProto { replica_groups, ..Default::default() };
        proto.collective_device_list = Some(Box::new(list));
    }
    if let ReplicaGroups::Iota { dims, reshape_dims, transpose_perm } = groups {
        let [n_groups, n_devices] = [0, 1].map(|i| dims.get(i).copied().unwrap_or(1));
        proto.iota_collective_device_list = Some(Box::new(pb::IotaReplicaGroupListProto {
            num_replica_groups: n_groups,
            num_devices_per_group: n_devices,
            iota_reshape_dims: reshape_dims.clone(),
            iota_transpose_perm: encode_perm(reshape_dims, transpose_perm),
        }));
    }
}

/// Takes the fields of `replica_groups`; `None` if they have a form that [`ReplicaGroups`] does not have (a mesh).
pub fn take_groups(proto: &mut pb::HloInstructionProto) -> Option<ReplicaGroups> {
    if proto.mesh_axes_replica_group_list.is_some() {
        return None;
    }
    let list = proto.collective_device_list.take().map(|list| *list).unwrap_or_default();
    let legacy = std::mem::take(&mut proto.replica_groups);
    let iota = proto.iota_collective_device_list.take().map(|iota| *iota).or(list.iota_replica_group_list);
    Some(match iota {
        Some(iota) => ReplicaGroups::Iota {
            dims: vec![iota.num_replica_groups, iota.num_devices_per_group],
            transpose_perm: decode_perm(&iota.iota_transpose_perm),
            reshape_dims: iota.iota_reshape_dims,
        },
        None => {
            let groups = if list.replica_groups.is_empty() { legacy } else { list.replica_groups };
            ReplicaGroups::List(groups.into_iter().map(|group| group.replica_ids).collect())
        }
    })
}

/// The groups as lists; `None` if they are too large for that.
pub fn listed(groups: &ReplicaGroups) -> Option<Vec<Vec<i64>>> {
    match groups {
        ReplicaGroups::List(groups) => Some(groups.clone()),
        ReplicaGroups::Iota { dims, reshape_dims, transpose_perm } => {
            let size = dims.get(1).and_then(|&size| usize::try_from(size).ok()).unwrap_or(1).max(1);
            let devices = iota_devices(reshape_dims, transpose_perm)?;
            Some(devices.chunks(size).map(<[i64]>::to_vec).collect())
        }
    }
}

/// Devices of a reshaped and transposed iota in row-major order; `None` if they are too many for a list.
fn iota_devices(reshape_dims: &[i64], transpose_perm: &[i64]) -> Option<Vec<i64>> {
    let rank = reshape_dims.len();
    let n = reshape_dims.iter().try_fold(1i64, |n, &dim| (dim > 0).then_some(n.checked_mul(dim)?))?;
    let mut axes: Vec<i64> =
        if transpose_perm.is_empty() { (0..rank as i64).collect() } else { transpose_perm.to_vec() };
    let order = axes.clone();
    axes.sort_unstable();
    if n > MAX_LISTED_DEVICES || !axes.into_iter().eq(0..rank as i64) {
        return None;
    }
    let stride = |axis: i64| reshape_dims[axis as usize + 1..].iter().product::<i64>();
    let walk: Vec<(i64, i64)> = order.iter().rev().map(|&axis| (reshape_dims[axis as usize], stride(axis))).collect();
    let device = |mut linear: i64| {
        walk.iter().fold(0, |device, &(size, stride)| {
            let digit = linear % size;
            linear /= size;
            device + digit * stride
        })
    };
    Some((0..n).map(device).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iota_is_also_listed() {
        let groups = ReplicaGroups::Iota { dims: vec![3, 2], reshape_dims: vec![2, 3], transpose_perm: vec![1, 0] };
        let mut proto = pb::HloInstructionProto::default();
        encode_groups(&groups, &mut proto);
        let listed: Vec<Vec<i64>> = proto
            .collective_device_list
            .as_ref()
            .unwrap()
            .replica_groups
            .iter()
            .map(|g| g.replica_ids.clone())
            .collect();
        assert_eq!(listed, [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(take_groups(&mut proto), Some(groups));
        assert_eq!(proto, pb::HloInstructionProto::default());
    }
}
