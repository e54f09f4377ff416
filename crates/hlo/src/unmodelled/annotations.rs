//! Annotations of an instruction that do not change what it computes: figures for viewers, the origin of a value, the
//! required accuracy.
//!
//! Each has a text form in XLA that cannot represent every message, so the text is only printed if it round-trips.
//!
//! Source: `HloInstruction::PrintExtraAttributesImpl`, `OriginalValueToString`, `ResultAccuracyToString` in XLA.

use crate::proto::messages::{
    HloInstructionProto, OriginalArrayProto, OriginalValueElementProto, OriginalValueProto, ResultAccuracy, Statistic,
    StatisticsViz, Tolerance,
};
use crate::text::error::ParseErrorKind;
use crate::text::forms::{finished, list};
use crate::text::lex::{Cursor, MAX_DEPTH, Read};
use crate::text::number::{escape, f64_text};

pub(super) const STATISTICS: &str = "statistics";
pub(super) const ORIGIN: &str = "origin";
pub(super) const ACCURACY: &str = "result_accuracy";

const HIGHEST: i32 = 1;

/// The texts of the annotations that have one.
pub(super) fn to_text(proto: &HloInstructionProto) -> Vec<(&'static str, String)> {
    let statistics = proto.statistics_viz.as_ref().filter(|figures| **figures != StatisticsViz::default());
    let texts = [
        (STATISTICS, statistics.map(statistics_text)),
        (ORIGIN, proto.original_value.as_ref().and_then(origin_text)),
        (ACCURACY, proto.result_accuracy.as_ref().and_then(accuracy_text)),
    ];
    let reads_back = |name: &str, text: &str| {
        let mut back = HloInstructionProto::default();
        let mut value = Cursor::new(text);
        matches!(set(name, &mut value, &mut back), Ok(true))
            && finished(&mut value).is_ok()
            && match name {
                STATISTICS => back.statistics_viz == proto.statistics_viz,
                ORIGIN => back.original_value == proto.original_value,
                _ => back.result_accuracy == proto.result_accuracy,
            }
    };
    let present = texts.into_iter().filter_map(|(name, text)| Some((name, text?)));
    present.filter(|(name, text)| reads_back(name, text)).collect()
}

/// Reads one annotation; `false` if `name` is not one.
pub(super) fn set(name: &str, value: &mut Cursor<'_>, proto: &mut HloInstructionProto) -> Read<bool> {
    match name {
        STATISTICS => proto.statistics_viz = Some(statistics(value)?),
        ORIGIN => proto.original_value = Some(origin(value)?),
        ACCURACY => proto.result_accuracy = Some(accuracy(value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// `{visualizing_index=1,stat-1=33,stat-2=44}`.
fn statistics_text(figures: &StatisticsViz) -> String {
    let each = |figure: &Statistic| format!(",{}={}", figure.stat_name, f64_text(figure.stat_val));
    let all: String = figures.statistics.iter().map(each).collect();
    format!("{{visualizing_index={}{all}}}", figures.stat_index_to_visualize)
}

fn statistics(value: &mut Cursor<'_>) -> Read<StatisticsViz> {
    let mut figures = StatisticsViz::default();
    value.sequence("{", "}", |value| {
        let name = value.word("a figure's name")?;
        value.expect("=")?;
        if name == "visualizing_index" {
            figures.stat_index_to_visualize = value.int()?;
        } else {
            figures.statistics.push(Statistic { stat_name: name.to_string(), stat_val: number(value)? });
        }
        Ok(())
    })?;
    Ok(figures)
}

fn number(value: &mut Cursor<'_>) -> Read<f64> {
    value.skip_blank();
    let start = value.pos;
    value.word_or_empty().parse().map_err(|_| {
        value.pos = start;
        value.expected("a number")
    })
}

/// `{mode=highest}` or `{tolerance={atol=0,rtol=0.5,ulps=2}}`.
fn accuracy_text(accuracy: &ResultAccuracy) -> Option<String> {
    match (accuracy.mode, &accuracy.tolerance) {
        (Some(HIGHEST), None) => Some("{mode=highest}".to_string()),
        (None, Some(Tolerance { atol, rtol, ulps })) => {
            let [atol, rtol] = [*atol, *rtol].map(f64_text);
            Some(format!("{{tolerance={{atol={atol},rtol={rtol},ulps={ulps}}}}}"))
        }
        // The default accuracy is not printed.
        _ => None,
    }
}

fn accuracy(value: &mut Cursor<'_>) -> Read<ResultAccuracy> {
    value.expect("{")?;
    value.skip_blank();
    let start = value.pos;
    let name = value.word("`mode` or `tolerance`")?;
    value.expect("=")?;
    let mut accuracy = ResultAccuracy::default();
    match name {
        "mode" => {
            value.skip_blank();
            let start = value.pos;
            accuracy.mode = Some(match value.word_or_empty() {
                "default" => 0,
                "highest" => HIGHEST,
                _ => {
                    value.pos = start;
                    return Err(value.expected("`default` or `highest`"));
                }
            });
        }
        "tolerance" => {
            let mut tolerance = Tolerance::default();
            value.sequence("{", "}", |value| {
                value.skip_blank();
                let start = value.pos;
                let name = value.word("`atol`, `rtol` or `ulps`")?;
                value.expect("=")?;
                match name {
                    "atol" => tolerance.atol = number(value)?,
                    "rtol" => tolerance.rtol = number(value)?,
                    "ulps" => tolerance.ulps = value.int()?,
                    _ => {
                        value.pos = start;
                        return Err(value.expected("`atol`, `rtol` or `ulps`"));
                    }
                }
                Ok(())
            })?;
            accuracy.tolerance = Some(tolerance);
        }
        _ => {
            value.pos = start;
            return Err(value.expected("`mode` or `tolerance`"));
        }
    }
    value.expect("}")?;
    Ok(accuracy)
}

/// `{({"x"}, {"y" {0}}, {})}`: a leaf for each array of the value, in the brackets of its tuples.
fn origin_text(origin: &OriginalValueProto) -> Option<String> {
    let mut elements = origin.elements.as_slice();
    let text = tree_text(&mut elements, &mut Vec::new())?;
    (elements.is_empty() && !origin.is_synthetic_call).then(|| format!("{{{text}}}"))
}

/// Takes the elements under `index` and writes them; `None` if they are not in order.
fn tree_text(elements: &mut &[OriginalValueElementProto], index: &mut Vec<i64>) -> Option<String> {
    let (first, rest) = elements.split_first()?;
    if first.shape_index == *index {
        *elements = rest;
        let Some(OriginalArrayProto { instruction_name, shape_index }) = &first.original_array else {
            return Some("{}".to_string());
        };
        let index_text = if shape_index.is_empty() { String::new() } else { format!(" {{{}}}", list(shape_index)) };
        return Some(format!("{{\"{}\"{index_text}}}", escape(instruction_name)));
    }
    let mut parts = Vec::new();
    while elements.first().is_some_and(|next| next.shape_index.starts_with(index)) {
        if index.len() >= MAX_DEPTH {
            return None;
        }
        index.push(parts.len() as i64);
        let part = tree_text(elements, index);
        index.pop();
        parts.push(part?);
    }
    (!parts.is_empty()).then(|| format!("({})", parts.join(", ")))
}

fn origin(value: &mut Cursor<'_>) -> Read<OriginalValueProto> {
    let mut origin = OriginalValueProto::default();
    value.expect("{")?;
    tree(value, &mut Vec::new(), &mut origin.elements)?;
    value.expect("}")?;
    Ok(origin)
}

fn tree(value: &mut Cursor<'_>, index: &mut Vec<i64>, out: &mut Vec<OriginalValueElementProto>) -> Read<()> {
    if index.len() > MAX_DEPTH {
        return Err(value.fault(ParseErrorKind::TooDeep { max: MAX_DEPTH }));
    }
    if value.peek() == Some(b'(') {
        let mut at = 0;
        return value.sequence("(", ")", |value| {
            index.push(at);
            tree(value, index, out)?;
            index.pop();
            at += 1;
            Ok(())
        });
    }
    value.expect("{")?;
    let mut original_array = None;
    if value.peek() == Some(b'"') {
        let instruction_name = value.string()?;
        let shape_index = if value.peek() == Some(b'{') { value.ints("{", "}")? } else { Vec::new() };
        original_array = Some(OriginalArrayProto { instruction_name, shape_index });
    }
    value.expect("}")?;
    out.push(OriginalValueElementProto { shape_index: index.clone(), original_array });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(shape_index: &[i64], array: Option<(&str, &[i64])>) -> OriginalValueElementProto {
        let original_array = array.map(|(name, index)| OriginalArrayProto {
            instruction_name: name.to_string(),
            shape_index: index.to_vec(),
        });
        OriginalValueElementProto { shape_index: shape_index.to_vec(), original_array }
    }

    fn of_origin(elements: Vec<OriginalValueElementProto>) -> HloInstructionProto {
        let origin = OriginalValueProto { elements, is_synthetic_call: false };
        HloInstructionProto { original_value: Some(origin), ..HloInstructionProto::default() }
    }

    #[test]
    fn each_crosses_both_ways() {
        let figure = |name: &str, value| Statistic { stat_name: name.to_string(), stat_val: value };
        let figures = StatisticsViz {
            stat_index_to_visualize: 1,
            statistics: vec![figure("stat-1", 33.0), figure("stat-2", 0.1)],
        };
        let tolerance = Tolerance { atol: 0.0, rtol: 0.0009765625, ulps: 2 };
        let empty = HloInstructionProto::default;
        let samples = [
            (
                HloInstructionProto { statistics_viz: Some(figures), ..empty() },
                "statistics={visualizing_index=1,stat-1=33,stat-2=0.1}",
            ),
            (
                HloInstructionProto {
                    result_accuracy: Some(ResultAccuracy { mode: Some(HIGHEST), tolerance: None }),
                    ..empty()
                },
                "result_accuracy={mode=highest}",
            ),
            (
                HloInstructionProto {
                    result_accuracy: Some(ResultAccuracy { mode: None, tolerance: Some(tolerance) }),
                    ..empty()
                },
                "result_accuracy={tolerance={atol=0,rtol=0.0009765625,ulps=2}}",
            ),
            (of_origin(vec![element(&[], Some(("a\"b", &[])))]), "origin={{\"a\\\"b\"}}"),
            (
                of_origin(vec![
                    element(&[0], Some(("x", &[1, 2]))),
                    element(&[1, 0], None),
                    element(&[1, 1], Some(("y", &[]))),
                ]),
                "origin={({\"x\" {1,2}}, ({}, {\"y\"}))}",
            ),
        ];
        for (proto, text) in samples {
            let [(name, value)] = &to_text(&proto)[..] else { panic!("{text}: one attribute") };
            assert_eq!(format!("{name}={value}"), text);
            let mut back = HloInstructionProto::default();
            assert!(matches!(set(name, &mut Cursor::new(value), &mut back), Ok(true)));
            assert_eq!(back, proto);
        }
    }

    #[test]
    fn what_no_text_says_gets_none() {
        let spaced = Statistic { stat_name: "two words".to_string(), stat_val: 1.0 };
        let mut synthetic = of_origin(vec![element(&[], None)]);
        synthetic.original_value.as_mut().unwrap().is_synthetic_call = true;
        let messages = [
            HloInstructionProto {
                statistics_viz: Some(StatisticsViz { stat_index_to_visualize: 0, statistics: vec![spaced] }),
                ..HloInstructionProto::default()
            },
            of_origin(Vec::new()),
            of_origin(vec![element(&[1], None), element(&[0], None)]),
            of_origin(vec![element(&[], None), element(&[0], None)]),
            of_origin(vec![element(&vec![0; 1000], None)]),
            synthetic,
            HloInstructionProto {
                result_accuracy: Some(ResultAccuracy { mode: Some(9), tolerance: None }),
                ..HloInstructionProto::default()
            },
        ];
        for proto in messages {
            assert_eq!(to_text(&proto), [], "{proto:?}");
        }
    }
}
