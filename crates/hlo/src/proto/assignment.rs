//! The numbers of replicas and partitions that a module is for: `replica_count` and `num_partitions` of text, the
//! counts of a `DeviceAssignmentProto` in a proto. XLA reads them there if a compilation's options do not set them
//! (`HloModule::CreateModuleConfigFromProto`).

use super::ProtoError;
use super::messages::{ComputationDevice, DeviceAssignmentProto};
use prost::Message;

/// The text attributes that an assignment can represent.
pub const COUNTS: [&str; 2] = ["replica_count", "num_partitions"];
/// The most devices that are written; the largest slices have a few thousand.
const MAX_DEVICES: i64 = 1 << 20;

/// A count in text; `None` if it is not a count.
fn count(text: &str) -> Option<i32> {
    text.trim().parse().ok().filter(|count| *count > 0)
}

/// Whether a proto can represent an attribute of a module's text.
pub fn keeps(name: &str, value: &str) -> bool {
    COUNTS.contains(&name) && count(value).is_some()
}

/// The assignment of a module with these attributes: the original one if that is of as many devices, else XLA's
/// default; `None` for one device.
///
/// # Errors
/// There are more than `MAX_DEVICES` devices.
pub(super) fn encode(
    attributes: &[(String, String)],
    came_with: Option<Vec<u8>>,
    name: &str,
) -> Result<Option<Vec<u8>>, ProtoError> {
    let stated = COUNTS.map(|count_name| {
        let (_, value) = attributes.iter().find(|(attribute, _)| attribute == count_name)?;
        count(value)
    });
    let [replicas, partitions] = stated.map(|count| count.unwrap_or(1));
    let before = came_with.as_deref().map(counts).unwrap_or(Some([1, 1]));
    // A count that cannot be read is left for XLA to judge.
    if before.is_none_or(|before| before == [replicas, partitions]) {
        return Ok(came_with);
    }
    if [replicas, partitions] == [1, 1] {
        return Ok(None);
    }
    let n_devices = i64::from(replicas) * i64::from(partitions);
    if n_devices > MAX_DEVICES {
        let what = format!("replica_count={replicas}, num_partitions={partitions}, over {MAX_DEVICES} devices,");
        return Err(ProtoError::Unsupported { place: name.to_string(), what });
    }
    let of_partition = |partition: i64| {
        let first = partition * i64::from(replicas);
        ComputationDevice { replica_device_ids: (first..first + i64::from(replicas)).collect() }
    };
    let assignment = DeviceAssignmentProto {
        replica_count: replicas,
        computation_count: partitions,
        computation_devices: (0..i64::from(partitions)).map(of_partition).collect(),
    };
    Ok(Some(assignment.encode_to_vec()))
}

/// The text attributes for an assignment: counts over 1, as XLA prints them.
pub(super) fn attributes(assignment: Option<&[u8]>) -> Vec<(String, String)> {
    let counts = assignment.and_then(counts).unwrap_or([1, 1]);
    let over_one = COUNTS.iter().zip(counts).filter(|(_, count)| *count > 1);
    over_one.map(|(name, count)| (name.to_string(), count.to_string())).collect()
}

/// Replicas and partitions of an assignment; `None` if it cannot be read.
fn counts(assignment: &[u8]) -> Option<[i32; 2]> {
    let DeviceAssignmentProto { replica_count, computation_count, .. } =
        DeviceAssignmentProto::decode(assignment).ok()?;
    let counts = [replica_count, computation_count];
    counts.iter().all(|count| *count > 0).then_some(counts)
}

#[cfg(test)]
mod tests {
    use crate::text::{PrintOptions, parse, print};
    use crate::{Module, proto};

    fn module(header: &str) -> Module {
        let text = format!("HloModule m{header}\n\nENTRY main {{\n  ROOT x = f32[4]{{0}} parameter(0)\n}}\n");
        parse(&text, "m").unwrap()
    }

    fn by_proto(module: &Module) -> Module {
        proto::decode::from_bytes(&proto::encode::to_bytes(module).unwrap()).unwrap()
    }

    #[test]
    fn counts_of_devices_survive_a_proto() {
        for (header, kept) in [
            ("", ""),
            (", replica_count=1, num_partitions=1", ""),
            (", replica_count=2", ", replica_count=2"),
            (", num_partitions=4", ", num_partitions=4"),
            (", replica_count=2, num_partitions=4", ", replica_count=2, num_partitions=4"),
        ] {
            let back = by_proto(&module(header));
            let first = print(&back, &PrintOptions::default()).lines().next().unwrap_or_default().to_string();
            assert_eq!(first, print(&module(kept), &PrintOptions::default()).lines().next().unwrap_or_default());
            assert_eq!(by_proto(&back), back, "{header}");
        }
    }

    #[test]
    fn an_assignment_of_other_devices_stays_as_long_as_its_counts_hold() {
        let mut came = by_proto(&module(", replica_count=2"));
        // Field 15: two replicas on devices 5 and 3.
        let assignment = [0x08, 2, 0x10, 1, 0x1a, 4, 0x0a, 2, 5, 3];
        came.unmodelled.proto = [&[0x7a, assignment.len() as u8][..], &assignment].concat();
        let bytes = proto::encode::to_bytes(&came).unwrap();
        assert!(bytes.windows(assignment.len()).any(|part| part == assignment));
        let back = proto::decode::from_bytes(&bytes).unwrap();
        assert_eq!(back.unmodelled.attributes, [("replica_count".to_string(), "2".to_string())]);
        // Another count in its text changes the assignment, and no count removes it.
        came.unmodelled.attributes[0].1 = "3".to_string();
        assert_eq!(by_proto(&came).unmodelled.attributes, [("replica_count".to_string(), "3".to_string())]);
        came.unmodelled.attributes.clear();
        assert!(by_proto(&came).unmodelled.attributes.is_empty());
    }

    #[test]
    fn more_devices_than_any_slice_has_are_refused() {
        let error = proto::encode::to_bytes(&module(", replica_count=100000, num_partitions=100000")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "m: replica_count=100000, num_partitions=100000, over 1048576 devices, is not supported"
        );
    }
}
