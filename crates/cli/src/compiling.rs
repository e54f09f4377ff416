//! Progress of compiles, with an estimate of the remaining time: a bar on a terminal, lines elsewhere.

use std::time::Instant;

use indicatif::ProgressBar;

use super::progress::{self, say};
use super::signals;
use crate::report;
use bf16scope_study::{Compiling, Event};
use bf16scope_tpu::CompileOutcome;

/// The progress of a question.
pub(super) struct CompileProgress {
    bar: ProgressBar,
    /// Prints lines instead of a bar, without a terminal or on a dumb one.
    has_lines: bool,
    is_quiet: bool,
    /// The largest number of compiles, if the question has a limit.
    most: Option<u32>,
    /// Searches that have not begun, and the number of compiles of the longest one so far.
    n_series_left: u32,
    n_per_series: u32,
    n_done: u32,
    n_done_before: u32,
    /// Whether the largest number of compiles was printed.
    has_said_most: bool,
    begun: Option<Instant>,
    /// The total seconds of compiles, including those of earlier runs, and their number.
    seconds: (f64, u32),
}

impl CompileProgress {
    /// For a question with this many series.
    pub(super) fn new(quiet: bool, n_series: usize) -> CompileProgress {
        let bar = progress::steps(quiet);
        CompileProgress {
            has_lines: !quiet && bar.is_hidden(),
            bar,
            is_quiet: quiet,
            most: None,
            n_series_left: n_series.saturating_sub(1) as u32,
            n_per_series: 0,
            n_done: 0,
            n_done_before: 0,
            has_said_most: false,
            begun: None,
            seconds: (0.0, 0),
        }
    }

    /// For a question with a limit on compiles.
    pub(super) fn at_most(quiet: bool, most: u32) -> CompileProgress {
        let progress = CompileProgress { most: Some(most), ..CompileProgress::new(quiet, 1) };
        progress.bar.set_length(u64::from(most));
        progress
    }

    /// Makes Ctrl-C end the process at once: a compile cannot be interrupted, and finished compiles are already on
    /// disk.
    pub(super) fn keep_what_is_compiled(&self) -> anyhow::Result<()> {
        let is_quiet = self.is_quiet;
        signals::on_stop(move |signal| {
            progress::clear_all();
            // Holding the lock keeps this the last line on standard error.
            let _last = std::io::stderr().lock();
            if !is_quiet {
                say("stopped; what was compiled is kept, and the same command continues from there");
            }
            signals::leave(signal);
        })
    }

    /// Shows an event.
    pub(super) fn on(&mut self, event: &Event<'_>) {
        match event {
            Event::Begins(compiling) => self.begin(compiling),
            Event::Ends { compiling, is_cached, outcome } => self.end(compiling, *is_cached, outcome),
            Event::SeriesEnds => {
                self.n_per_series = self.n_per_series.max(self.n_done - self.n_done_before);
                self.n_done_before = self.n_done;
                self.n_series_left = self.n_series_left.saturating_sub(1);
            }
            _ => {}
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn begin(&mut self, compiling: &Compiling) {
        if let Some(n) = self.most.filter(|_| !self.has_said_most && !self.is_quiet) {
            self.has_said_most = true;
            say(&format!(
                "up to {n} compiles, each as long as `compile` takes; --compiles N for fewer, Ctrl-C keeps what is compiled"
            ));
        }
        let n_here = self.n_done - self.n_done_before + 1 + compiling.n_more;
        let n_left = 1 + compiling.n_more + self.n_series_left * self.n_per_series.max(n_here);
        let left = self.left(n_left).map_or(String::new(), |left| format!(", {left}"));
        self.bar.set_length(u64::from(self.n_done + n_left));
        self.bar.set_position(u64::from(self.n_done));
        self.bar.reset_elapsed();
        self.bar.set_message(match self.most {
            Some(_) => format!("compiling {}{left}", of_a_core(compiling)),
            None => format!("{}: compiling {}{left}", compiling.target, at_batch(compiling)),
        });
        self.begun = Some(Instant::now());
    }

    fn end(&mut self, compiling: &Compiling, is_cached: bool, outcome: &CompileOutcome) {
        // Cached compiles do not count towards the limit.
        self.n_done += u32::from(self.most.is_none() || !is_cached);
        let took = self.begun.take().map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        match outcome {
            CompileOutcome::Fits(report) => {
                self.seconds = (self.seconds.0 + report.compile_seconds, self.seconds.1 + 1)
            }
            _ if !is_cached => self.seconds = (self.seconds.0 + took, self.seconds.1 + 1),
            _ => {}
        }
        if !self.has_lines || is_cached {
            return;
        }
        say(&match self.most {
            Some(most) => {
                let (n, took) = (self.n_done, report::seconds(took));
                let left = self.left(compiling.n_more).map_or(String::new(), |left| format!("; {left}"));
                format!("{n} of {most}: {} in {took}{left}", of_a_core(compiling))
            }
            None => format!("{}: {}: {}", compiling.target, at_batch(compiling), report::one_line(outcome)),
        });
    }

    /// Estimates the time of `n` compiles from those so far.
    fn left(&self, n: u32) -> Option<String> {
        let (seconds, n_compiles) = self.seconds;
        let about = if self.most.is_some() { "at most" } else { "about" };
        let left = minutes(seconds / f64::from(n_compiles.max(1)) * f64::from(n));
        (n_compiles > 0).then(|| format!("{about} {left} left"))
    }
}

fn of_a_core(Compiling { target, what, batch, .. }: &Compiling) -> String {
    let batch = batch.map_or(String::new(), |batch| format!(", {batch} a core"));
    format!("{what} for {target}{batch}")
}

fn at_batch(Compiling { what, batch, .. }: &Compiling) -> String {
    batch.map_or(what.clone(), |batch| format!("{what} at batch {batch}"))
}

/// Seconds in a form for deciding whether to wait.
fn minutes(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::{ProgressDrawTarget, TermLike};
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A terminal of one line.
    #[derive(Clone, Debug, Default)]
    struct Terminal(Arc<Mutex<String>>);

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_of_compiles_is_not_left_on_the_terminal() {
        let terminal = Terminal::default();
        let mut progress = CompileProgress::at_most(true, 3);
        progress.bar.disable_steady_tick();
        progress.bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let shown = || terminal.0.lock().unwrap().trim().to_string();
        let target = "tpu-v2".parse().unwrap();
        let compiling = Compiling { target, what: "bf16".to_string(), batch: Some(8), n_more: 2 };
        progress.on(&Event::Begins(&compiling));
        let expected = format!("0/3 compiling {}", of_a_core(&compiling));
        assert!(shown().contains(&expected), "{}", shown());
        let outcome = CompileOutcome::Failed("refused".to_string());
        progress.on(&Event::Ends { compiling: &compiling, is_cached: false, outcome: &outcome });
        progress.finish();
        assert_eq!(shown(), "");
        // Later news draws nothing.
        progress.on(&Event::SeriesEnds);
        assert_eq!(shown(), "");
    }
}
