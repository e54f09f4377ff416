//! The parent's side of a child: starts it, sends requests, monitors its time and memory, and kills it.

use std::fs::File;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::both_ends::BothEnds;
use super::error::{ChildError, Doing};
use super::message::{Envelope, Id, Reply, Request, unexpected};
use super::spec::ChildSpec;
use super::{memory, wire};
use crate::PjrtError;

/// The interval for monitoring a child that computes. A process that fills memory takes about 5 GB/s, so 0.1 GB per
/// interval.
const TICK: Duration = Duration::from_millis(20);
/// The timeout for a program to report that it serves. bf16scope takes milliseconds; a busy machine may take seconds.
const GREETING: Duration = Duration::from_secs(60);
/// The timeout for a dead child's remaining output, and its exit status.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// An environment variable, and its value; `None` removes it.
type Variable = (&'static str, Option<&'static str>);

/// A child process that answers one request at a time. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    spec: ChildSpec,
    /// The limit of resident bytes: from the spec, or from the available memory.
    max_bytes: Option<u64>,
    line: Mutex<Line>,
    /// Arrays and programs that the child may free, sent with the next request.
    unneeded: Mutex<(Vec<Id>, Vec<Id>)>,
}

#[derive(Debug)]
struct Line {
    process: std::process::Child,
    socket: UnixStream,
    output: Arc<Mutex<BothEnds>>,
    /// Disconnects when all of the child's output has been read.
    has_read: Receiver<()>,
    /// Why it died, once it has.
    ended: Option<String>,
}

/// An event that can come between a request and its answer.
enum Interruption {
    Io(io::Error),
    Timeout(Duration),
    Memory {
        measured: u64,
        limit: u64,
    },
    /// The wanted data are available before the answer.
    Enough,
}

impl From<io::Error> for Interruption {
    fn from(error: io::Error) -> Interruption {
        Interruption::Io(error)
    }
}

impl Child {
    /// Starts a child with this process's environment changed by these variables, and checks that it serves.
    pub(super) fn start(spec: &ChildSpec, environment: &[Variable]) -> Result<Child, ChildError> {
        let failed = |source| ChildError::Start { program: spec.program.clone(), source };
        let line = Line::open(spec, environment).map_err(failed)?;
        let max_bytes = spec.limits.memory.or_else(|| memory::available().map(memory::most));
        let unneeded = Mutex::default();
        let child = Child { spec: spec.clone(), max_bytes, line: Mutex::new(line), unneeded };
        child.greet()?;
        Ok(child)
    }

    fn greet(&self) -> Result<(), ChildError> {
        let version = env!("CARGO_PKG_VERSION");
        let doing = Doing { what: "starting", of: None };
        let timeout = self.spec.limits.timeout.unwrap_or(GREETING).min(GREETING);
        let mut line = self.line();
        let hello = Request::Hello { version: version.to_string() };
        let why = match self.ask(&mut line, &doing, hello, None, Some(timeout), &mut || false) {
            Ok(Some((Reply::Hello { version: theirs }, _))) if theirs == version => return Ok(()),
            Ok(Some((Reply::Hello { version: theirs }, _))) => format!("it is version {theirs}"),
            Ok(_) => "it answered something else".to_string(),
            // Under a limit of its address space, the right program may fail to start.
            Err(error @ ChildError::Ended { address_space: Some(_), .. }) => return Err(error),
            Err(ChildError::Ended { how, .. }) => format!("it ended with {how}"),
            Err(ChildError::Timeout { limit, .. }) => format!("it said nothing for {limit:?}"),
            Err(ChildError::Io { source, .. }) => source.to_string(),
            Err(error) => return Err(error),
        };
        line.end(why.clone());
        Err(ChildError::NotAServer { program: self.spec.program.clone(), why, output: line.output() })
    }

    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// The child's error; a child that dies, or reaches a limit and is killed.
    pub(super) fn request(
        &self,
        doing: Doing,
        request: Request,
        file: Option<&File>,
    ) -> Result<(Reply, Option<File>), PjrtError> {
        self.answer(&mut self.line(), doing, request, file)
    }

    /// Requests an array, and copies it out of the child's memory before the next request.
    ///
    /// # Errors
    /// Those of [`Child::request`]; a file that is too short. (One that is too long is the child's bug, and harmless.)
    pub(super) fn request_bytes(&self, doing: &Doing, request: Request, bytes: &mut [u8]) -> Result<(), PjrtError> {
        use std::os::unix::fs::FileExt as _;
        let mut line = self.line();
        match self.answer(&mut line, doing.clone(), request, None)? {
            (Reply::Bytes, Some(file)) => {
                Ok(file.read_exact_at(bytes, 0).map_err(|source| ChildError::Io { doing: doing.clone(), source })?)
            }
            (reply, _) => Err(unexpected(doing.clone(), &reply)),
        }
    }

    fn answer(
        &self,
        line: &mut Line,
        doing: Doing,
        request: Request,
        file: Option<&File>,
    ) -> Result<(Reply, Option<File>), PjrtError> {
        if let Some(why) = &line.ended {
            return Err(ChildError::Gone { doing, why: why.clone() }.into());
        }
        let is_stopped = &mut || self.spec.stop.is_asked();
        match self.ask(line, &doing, request, file, self.spec.limits.timeout, is_stopped)? {
            Some((Reply::Failed(failure), _)) => Err(failure.into()),
            Some(answer) => Ok(answer),
            None => Err(ChildError::Gone { doing, why: line.ended.clone().unwrap_or_default() }.into()),
        }
    }

    /// Sends a request, and waits for the answer, or until `is_enough`; then the child is killed.
    ///
    /// # Errors
    /// Those of [`Child::request`].
    pub(super) fn request_until(
        &self,
        doing: Doing,
        request: Request,
        file: &File,
        is_enough: &mut dyn FnMut() -> bool,
    ) -> Result<(), PjrtError> {
        let mut line = self.line();
        let is_over = &mut || is_enough() || self.spec.stop.is_asked();
        match self.ask(&mut line, &doing, request, Some(file), self.spec.limits.timeout, is_over)? {
            Some((Reply::Failed(failure), _)) => Err(failure.into()),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether it has died.
    pub(super) fn has_ended(&self) -> bool {
        self.line().ended.is_some()
    }

    /// Marks objects that the child may free.
    pub(super) fn forget(&self, arrays: &[Id], programs: &[Id]) {
        let mut unneeded = self.unneeded.lock().unwrap_or_else(PoisonError::into_inner);
        unneeded.0.extend_from_slice(arrays);
        unneeded.1.extend_from_slice(programs);
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request; `None` if `is_enough` came before an answer, and the child was killed.
    fn ask(
        &self,
        line: &mut Line,
        doing: &Doing,
        request: Request,
        file: Option<&File>,
        timeout: Option<Duration>,
        is_enough: &mut dyn FnMut() -> bool,
    ) -> Result<Option<(Reply, Option<File>)>, ChildError> {
        let (free_arrays, free_programs) =
            std::mem::take(&mut *self.unneeded.lock().unwrap_or_else(PoisonError::into_inner));
        let envelope = Envelope { free_arrays, free_programs, request };
        let began = Instant::now();
        let process = line.process.id();
        let mut tick = || {
            if is_enough() {
                return Err(Interruption::Enough);
            }
            let measured = began.elapsed();
            if timeout.is_some_and(|limit| measured >= limit) {
                return Err(Interruption::Timeout(measured));
            }
            match (memory::resident(process), self.max_bytes) {
                (Some(measured), Some(limit)) if measured > limit => Err(Interruption::Memory { measured, limit }),
                _ => Ok(()),
            }
        };
        let answer =
            wire::send(&line.socket, &envelope, file, &mut tick).and_then(|()| wire::receive(&line.socket, &mut tick));
        let doing = doing.clone();
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(Interruption::Enough) => {
                line.end("it was told to stop".to_string());
                return Ok(None);
            }
            Err(Interruption::Timeout(measured)) => {
                ChildError::Timeout { doing, measured, limit: timeout.unwrap_or_default() }
            }
            Err(Interruption::Memory { measured, limit }) => ChildError::Memory { doing, measured, limit },
            Err(Interruption::Io(source)) if is_hang_up(&source) => {
                let how = line.status();
                ChildError::Ended { doing, how, output: line.output(), address_space: memory::address_space() }
            }
            Err(Interruption::Io(source)) => ChildError::Io { doing, source },
        };
        // A partial message cannot be undone.
        let first = error.to_string().lines().next().unwrap_or_default().trim_end_matches(". It wrote:").to_string();
        line.end(first);
        Err(error)
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Line {
    fn open(spec: &ChildSpec, environment: &[Variable]) -> io::Result<Line> {
        let (socket, theirs) = UnixStream::pair()?;
        let tick = spec.limits.timeout.map_or(TICK, |timeout| timeout.clamp(Duration::from_millis(1), TICK));
        socket.set_read_timeout(Some(tick))?;
        socket.set_write_timeout(Some(tick))?;
        let (words, mouth) = io::pipe()?;
        // The socket is the child's standard input: no other descriptor is inherited. XLA prints on both outputs.
        let mut command = Command::new(&spec.program);
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let process = command
            .args(&spec.arguments)
            .stdin(OwnedFd::from(theirs))
            .stdout(mouth.try_clone()?)
            .stderr(mouth)
            .spawn()?;
        // This drops our copies of the child's descriptors.
        drop(command);
        let output = Arc::new(Mutex::new(BothEnds::default()));
        let (sender, has_read) = channel();
        let heard = Arc::clone(&output);
        thread::spawn(move || listen(words, &heard, sender));
        Ok(Line { process, socket, output, has_read, ended: None })
    }

    /// The exit status of a child that died by itself; one that disconnects and lives on is killed.
    fn status(&mut self) -> String {
        let began = Instant::now();
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return words_of(status),
                Ok(None) if began.elapsed() < LAST_WORDS => thread::sleep(Duration::from_millis(2)),
                Ok(None) => return "a closed connection".to_string(),
                Err(error) => return error.to_string(),
            }
        }
    }

    /// The kept part of the child's output.
    fn output(&self) -> String {
        // Nothing is ever sent: an error means that everything was read, or the timeout.
        let _ = self.has_read.recv_timeout(LAST_WORDS);
        self.output.lock().unwrap_or_else(PoisonError::into_inner).text()
    }

    /// Kills the child and collects its exit status, so that no zombie is left.
    fn end(&mut self, why: String) {
        if self.ended.is_none() {
            // Both fail only if the child was already collected.
            drop(self.process.kill());
            drop(self.process.wait());
            self.ended = Some(why);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end("it was no longer needed".to_string());
        // Waits until the descriptor is closed.
        let _ = self.has_read.recv_timeout(LAST_WORDS);
    }
}

/// Reads a child's output until it ends, so that the child never blocks on it; `_done` is dropped with this thread.
fn listen(mut words: PipeReader, output: &Mutex<BothEnds>, _done: Sender<()>) {
    let mut buffer = [0; 4096];
    loop {
        match words.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => output.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    drop(words);
}

fn words_of(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal_hook::low_level::signal_name(signal) {
            Some(name) => format!("signal {signal}, {name}"),
            None => format!("signal {signal}"),
        },
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => status.to_string(),
    }
}
