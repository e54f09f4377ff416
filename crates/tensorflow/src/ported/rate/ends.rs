//! Rates whose end is not their form's: cut off at a least rate, or rising again.

use super::{ROUNDINGS, Rate, RateInWords, short};
use crate::ported::symbols::yaml_number;

/// Steps at least that tell a form.
const LEAST_STEPS: usize = 8;

/// Steps at most, at the end of a fall, that may lie behind its end: they are between tried ones.
const MAX_BEHIND: usize = 8;

impl Rate<'_, '_> {
    /// A form that is cut off at a least rate.
    pub(super) fn with_floor(&self, curve: &[(f64, f64)]) -> Option<RateInWords> {
        let floor = curve.last()?.1;
        let is_above = |(_, rate): &(f64, f64)| *rate != floor;
        let (begin, until) = (curve.iter().position(is_above)?, curve.iter().rposition(is_above)? + 1);
        if floor <= 0.0 || until - begin < LEAST_STEPS {
            return None;
        }
        let (head, tail) = (&curve[begin..until], &curve[until..]);
        let schedule = self.form(head).or_else(|| self.with_warm_up(head))?;
        let mut words = schedule.words();
        let in_words = yaml_number(short(floor));
        let falls_below = |(step, _): &(f64, f64)| schedule.at(*step) <= floor * (1.0 + ROUNDINGS);
        match tail.iter().all(falls_below) {
            true => words.floor = in_words.clone(),
            false => {
                let from = tail[0].0;
                words.differs = Some(format!("the rate stays at {in_words} from about step {from}; here it does not"));
            }
        }
        if begin > 0 {
            let note = format!(
                "the floor of {in_words} holds during the warm-up too; here the rates before about step {} are lower",
                head[0].0
            );
            words.differs = Some(words.differs.map_or(note.clone(), |other| format!("{note}; {other}")));
        }
        Some(words)
    }

    /// A cosine that nothing ends, and that rises again behind its least rate.
    pub(super) fn until_it_rises(&self, curve: &[(f64, f64)]) -> Option<RateInWords> {
        if !self.has_cosine {
            return None;
        }
        let top = curve.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let begin = curve.iter().position(|(_, rate)| *rate == top)?;
        let falls = curve[begin..].windows(2).take_while(|pair| pair[1].1 <= pair[0].1).count();
        let last = begin + falls + 1;
        let ends = (0..MAX_BEHIND).map(|n| last.saturating_sub(n)).filter(|end| *end >= LEAST_STEPS.max(begin + 2));
        let schedule = ends.into_iter().find_map(|end| {
            let head = &curve[..end];
            self.form(head).or_else(|| self.with_warm_up(head))
        })?;
        let from = curve.iter().find(|(step, rate)| {
            let ours = schedule.at(*step);
            (rate - ours).abs() > 1e-3 * top
        })?;
        let mut words = schedule.words();
        let note = format!(
            "the cosine rises again where training goes on: at step {} the rate is {}, and here {}",
            from.0,
            yaml_number(short(from.1)),
            yaml_number(short(schedule.at(from.0)))
        );
        words.differs = Some(words.differs.map_or(note.clone(), |other| format!("{other}; {note}")));
        Some(words)
    }
}
