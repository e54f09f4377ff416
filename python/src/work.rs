//! Work that takes time: without the GIL, on a thread of its own, so that Ctrl-C is answered and a panic is an exception.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use bf16scope::pjrt::Stop;
use pyo3::prelude::*;

use crate::error::Failure;

/// How long a signal may wait for its answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// Does `work`, and gives what it gives. Children that it starts take the word that stops them.
///
/// # Errors
/// Its own; a panic, which is a bug of bf16scope; what a signal's handler raises (`KeyboardInterrupt`): the work then goes
/// on unheard until it ends, but its children are ended.
pub(crate) fn work<T: Send + 'static>(
    python: Python<'_>,
    work: impl FnOnce(Stop) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let stop = Stop::default();
    let given = stop.clone();
    let (sender, mut receiver) = sync_channel(1);
    let thread = std::thread::Builder::new().name("bf16scope".to_string());
    let thread = thread.spawn(move || drop(sender.send(work(given))));
    let thread = thread.map_err(|error| Failure::from(error).within("no thread can be started"))?;
    loop {
        // It goes along, since threads share no receiver.
        let (answer, back) = python.detach(move || (receiver.recv_timeout(PATIENCE), receiver));
        receiver = back;
        match answer {
            Ok(answer) => return Ok(answer?),
            Err(RecvTimeoutError::Timeout) => python.check_signals().inspect_err(|_| stop.ask())?,
            // The sender is gone without a word: the thread panicked.
            Err(RecvTimeoutError::Disconnected) => {
                let said = thread.join().err().and_then(|panic| {
                    let text = panic.downcast_ref::<String>().cloned();
                    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()))
                });
                let message = format!("bf16scope failed: {}", said.unwrap_or_default());
                return Err(
                    Failure::new(message, "this is a bug of bf16scope; please report it with the module").into()
                );
            }
        }
    }
}
