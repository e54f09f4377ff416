//! TensorBoard's event files: records in TFRecord framing ([`bf16scope_files::framing`]), each an `Event` message.
//!
//! The first event of a file gives the version; the others hold scalars or histograms of a step, or mark a restart of
//! the run after a step. Scalars are written as f32 in `simple_value`, as PyTorch's writer does; `metrics.jsonl` has
//! the unrounded f64. Scalars that other writers store as tensors of one float are read too.
//!
//! Source: TensorFlow's `core/util/event.proto`, `core/framework/summary.proto`, `core/framework/tensor.proto`.

use super::metrics::Record;
use bf16scope_files::framing::{self, masked_crc};
use prost::Message;
use std::io::{self, Read};

/// The version of TensorBoard's event format in which a restart discards later steps.
const VERSION: &str = "brain.Event:2";
/// `SessionLog.START`.
const START: i32 = 1;
/// The largest record of scalars; larger ones hold graphs and images, and are skipped.
const MAX_RECORD: u64 = 16 << 20;

/// `tensorflow.Event`. At most one field of its `oneof` is set.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

/// `tensorflow.Summary`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

/// `tensorflow.Summary.Value`.
#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "5")]
    histo: Option<HistogramProto>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<TensorProto>,
}

/// `tensorflow.HistogramProto`: each bucket ends at its limit and begins at the previous one, the first at `min`.
#[derive(Clone, PartialEq, Message)]
struct HistogramProto {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

/// A histogram: counts of values between bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Ascending, one more than counts: a count is for values from its bound (inclusive) to the next.
    pub bounds: Vec<f64>,
    /// How many.
    pub counts: Vec<f64>,
}

/// `tensorflow.TensorProto`: the fields that a float needs.
#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(bytes = "vec", tag = "4")]
    tensor_content: Vec<u8>,
    #[prost(float, repeated, tag = "5")]
    float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    double_val: Vec<f64>,
}

/// `tensorflow.SessionLog`.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

fn framed(event: &Event) -> Vec<u8> {
    framing::framed(&event.encode_to_vec())
}

/// The first event of a file.
pub(super) fn beginning(time: f64) -> Vec<u8> {
    framed(&Event { wall_time: time, file_version: Some(VERSION.to_string()), ..Event::default() })
}

/// The event that discards this step and later ones in other files.
pub(super) fn start(time: f64, step: u64) -> Vec<u8> {
    let session_log = Some(SessionLog { status: START });
    framed(&Event { wall_time: time, step: whole(step), session_log, ..Event::default() })
}

/// The scalars of a step.
pub(super) fn scalars(record: &Record) -> Vec<u8> {
    let value = |(tag, value): &(String, f64)| SummaryValue {
        tag: tag.clone(),
        simple_value: Some(*value as f32),
        histo: None,
        tensor: None,
    };
    let summary = Some(Summary { value: record.scalars.iter().map(value).collect() });
    framed(&Event { wall_time: record.time, step: whole(record.step), summary, ..Event::default() })
}

/// The histograms of a step. Their sums take each value as the middle of its bucket.
pub(super) fn histograms(step: u64, time: f64, histograms: &[(String, Histogram)]) -> Vec<u8> {
    let value = |(tag, Histogram { bounds, counts }): &(String, Histogram)| {
        // TensorBoard drops empty buckets at both ends, and reads the others from `min` to `max`.
        let is_full = |count: &f64| *count > 0.0;
        let ends = counts.iter().position(is_full).zip(counts.iter().rposition(is_full));
        let end = |at: usize| bounds.get(at).copied().unwrap_or(0.0);
        let middles = || bounds.windows(2).map(|both| f64::midpoint(both[0], both[1])).zip(counts);
        let histo = HistogramProto {
            min: ends.map_or(0.0, |(first, _)| end(first)),
            max: ends.map_or(0.0, |(_, last)| end(last + 1)),
            num: counts.iter().sum(),
            sum: middles().map(|(middle, count)| middle * count).sum(),
            sum_squares: middles().map(|(middle, count)| middle * middle * count).sum(),
            bucket_limit: bounds.iter().skip(1).copied().collect(),
            bucket: counts.clone(),
        };
        SummaryValue { tag: tag.clone(), simple_value: None, histo: Some(histo), tensor: None }
    };
    let summary = Some(Summary { value: histograms.iter().map(value).collect() });
    framed(&Event { wall_time: time, step: whole(step), summary, ..Event::default() })
}

fn whole(step: u64) -> i64 {
    i64::try_from(step).unwrap_or(i64::MAX)
}

/// An event file's content, as far as it concerns scalars.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// The scalars of a step.
    Scalars(Record),
    /// The run restarts at this step.
    Start(u64),
}

/// Reads an event file up to its end or to the first damage, which the remark describes.
pub(super) fn read(mut file: impl Read, mut take: impl FnMut(Content)) -> io::Result<Option<String>> {
    let mut at = 0u64;
    loop {
        let mut head = [0; framing::HEAD];
        let n_read = fill(&mut file, &mut head)?;
        if n_read == 0 {
            return Ok(None);
        }
        let damaged = |what: &str| Ok(Some(format!("at byte {at} {what}; the rest of it is not read")));
        if n_read < head.len() {
            return damaged("a record is cut short");
        }
        let (length, is_intact) = framing::length(&head);
        if !is_intact {
            return damaged("there is no record, by its checksum");
        }
        let skipped = length > MAX_RECORD;
        let mut data = Vec::new();
        let with_crc = length.saturating_add(4);
        let n_read = match skipped {
            true => io::copy(&mut file.by_ref().take(with_crc), &mut io::sink())?,
            false => file.by_ref().take(with_crc).read_to_end(&mut data)? as u64,
        };
        if n_read < with_crc {
            return damaged("a record is cut short");
        }
        if !skipped {
            let (bytes, crc) = data.split_at(data.len() - 4);
            let is_whole = masked_crc(bytes).to_le_bytes() == crc;
            let event = is_whole.then(|| Event::decode(bytes).ok()).flatten();
            let Some(event) = event else { return damaged("a record is damaged") };
            content(event).into_iter().for_each(&mut take);
        }
        at = at.saturating_add(with_crc).saturating_add(12);
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
fn fill(file: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut bytes = Vec::with_capacity(into.len());
    let n_read = file.by_ref().take(into.len() as u64).read_to_end(&mut bytes)?;
    into[..n_read].copy_from_slice(&bytes);
    Ok(n_read)
}

fn content(event: Event) -> Option<Content> {
    // Steps are never negative.
    let step = u64::try_from(event.step).ok()?;
    if event.session_log.is_some_and(|log| log.status == START) {
        return Some(Content::Start(step));
    }
    let scalar = |value: SummaryValue| {
        let tensor = || value.tensor.as_ref().and_then(scalar_of);
        Some((value.tag.clone(), value.simple_value.map(f64::from).or_else(tensor)?))
    };
    let scalars: Vec<(String, f64)> = event.summary?.value.into_iter().filter_map(scalar).collect();
    (!scalars.is_empty()).then_some(Content::Scalars(Record { step, time: event.wall_time, scalars }))
}

/// The value of a tensor that holds one float: `DT_FLOAT` (1) or `DT_DOUBLE` (2).
fn scalar_of(tensor: &TensorProto) -> Option<f64> {
    let content = tensor.tensor_content.as_slice();
    match (tensor.dtype, tensor.float_val.as_slice(), tensor.double_val.as_slice()) {
        (1, [value], []) => Some(f64::from(*value)),
        (1, [], []) => Some(f64::from(f32::from_le_bytes(content.try_into().ok()?))),
        (2, [], [value]) => Some(*value),
        (2, [], []) => Some(f64::from_le_bytes(content.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// TensorFlow's own parser reads these bytes; `tests/cli/curves.rs` checks with TensorBoard.
    #[test]
    fn histograms_are_buckets_between_bounds_and_no_scalars() {
        let histogram = Histogram { bounds: vec![-3.0, -2.0, 0.0, 4.0, 9.0], counts: vec![0.0, 3.0, 5.0, 0.0] };
        let bytes = histograms(7, 1.5, &[("a/b".to_string(), histogram)]);
        let event = Event::decode(&bytes[framing::HEAD..bytes.len() - 4]).unwrap();
        let value = event.summary.unwrap().value.remove(0);
        let expected = HistogramProto {
            min: -2.0,
            max: 4.0,
            num: 8.0,
            sum: -3.0 + 10.0,
            sum_squares: 3.0 + 20.0,
            bucket_limit: vec![-2.0, 0.0, 4.0, 9.0],
            bucket: vec![0.0, 3.0, 5.0, 0.0],
        };
        assert_eq!((event.step, value.tag.as_str(), value.histo), (7, "a/b", Some(expected)));
        assert_eq!(all(&bytes), (vec![], None));
    }

    fn all(bytes: &[u8]) -> (Vec<Content>, Option<String>) {
        let mut all = Vec::new();
        let remark = read(bytes, |content| all.push(content)).unwrap();
        (all, remark)
    }

    fn record(step: u64, value: f64) -> Record {
        Record { step, time: 1.5, scalars: vec![("loss".to_string(), value), ("test/accuracy".to_string(), 0.25)] }
    }

    fn file() -> Vec<u8> {
        [beginning(1.5), scalars(&record(1, 0.5)), start(1.5, 2), scalars(&record(2, f64::NAN))].concat()
    }

    #[test]
    fn what_is_written_is_read() {
        let (events, remark) = all(&file());
        assert_eq!((events.len(), remark), (3, None));
        assert_eq!(events[..2], [Content::Scalars(record(1, 0.5)), Content::Start(2)]);
        let Content::Scalars(last) = &events[2] else { panic!("{events:?}") };
        assert!(last.scalars[0].1.is_nan() && last.step == 2);
    }

    #[test]
    fn tensors_of_one_float_are_scalars_too() {
        let value = |tensor: TensorProto| SummaryValue {
            tag: "t".to_string(),
            simple_value: None,
            histo: None,
            tensor: Some(tensor),
        };
        let tensors = [
            TensorProto { dtype: 1, float_val: vec![0.5], ..TensorProto::default() },
            TensorProto { dtype: 1, tensor_content: 0.5f32.to_le_bytes().to_vec(), ..TensorProto::default() },
            TensorProto { dtype: 2, double_val: vec![0.5], ..TensorProto::default() },
            TensorProto { dtype: 2, tensor_content: 0.5f64.to_le_bytes().to_vec(), ..TensorProto::default() },
            TensorProto { dtype: 1, float_val: vec![0.5, 1.0], ..TensorProto::default() },
            TensorProto { dtype: 7, ..TensorProto::default() },
        ];
        let summary = Some(Summary { value: tensors.map(value).to_vec() });
        let (events, _) = all(&framed(&Event { step: 3, summary, ..Event::default() }));
        let Content::Scalars(record) = &events[0] else { panic!("{events:?}") };
        assert_eq!(record.scalars, vec![("t".to_string(), 0.5); 4]);
    }

    #[test]
    fn a_file_cut_anywhere_is_read_up_to_there() {
        let whole = file();
        let ends: Vec<usize> = [beginning(1.5), scalars(&record(1, 0.5)), start(1.5, 2), scalars(&record(2, 0.5))]
            .iter()
            .scan(0, |end, part| {
                *end += part.len();
                Some(*end)
            })
            .collect();
        for cut in 0..whole.len() {
            let (events, remark) = all(&whole[..cut]);
            let n_whole = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(events.len(), n_whole.saturating_sub(1), "{cut}");
            let is_between = cut == 0 || ends.contains(&cut);
            assert_eq!(remark.is_none(), is_between, "{cut}: {remark:?}");
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let whole = file();
        for bit in 0..8 * whole.len() {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (events, remark) = all(&bytes);
            let remark = remark.unwrap_or_else(|| panic!("bit {bit} went unnoticed"));
            assert!(remark.starts_with("at byte ") && events.len() < 3, "{bit}: {remark}");
        }
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_end_with_a_remark(bytes: Vec<u8>) {
            let (events, remark) = all(&bytes);
            prop_assert!(events.is_empty() && (remark.is_some() || bytes.is_empty()));
        }
    }

    /// Byte for byte the output of TensorBoard 2.21's own writer (`tensorboard.summary.writer.record_writer`) for these
    /// events.
    #[test]
    fn bytes_are_those_of_tensorboards_writer() {
        let recorded = "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c3000000000000000\
             95f5d05f09000000000000f83f10012a230a0b0a046c6f7373150000003f0a140a0d746573742f616363757261637915\
             0000803ecd3203230f000000000000006d532b0909000000000000f83f10023a0208010ed75a29";
        let ours = [beginning(1.5), scalars(&record(1, 0.5)), start(1.5, 2)].concat();
        assert_eq!(bf16scope_files::hex(&ours), recorded);
    }
}
