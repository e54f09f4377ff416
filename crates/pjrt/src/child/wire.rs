//! Messages over a Unix socket: a header that is checked, JSON, and at most one file, sent as a descriptor.
//!
//! Large data (programs, arrays) is in the file: shared memory from `memfd_create`, so it has no name in any file
//! system and is freed with its last descriptor. Sent files are sealed: no process can change or shorten them; except
//! for a child's arrays, which are copied out of its memory ([`Outbox`]).
//!
//! Source: `unix(7)` (`SCM_RIGHTS`), `memfd_create(2)`, `fcntl(2)` (seals).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first bytes of every header; the digit is the protocol's version.
const MAGIC: [u8; 8] = *b"bf16ipc1";
/// Magic, and the size of the JSON.
const HEADER: usize = 16;
/// JSON holds names, numbers and error texts: a larger message is not ours.
const MAX_JSON: u64 = 256 << 20;

/// Called each time a socket with a timeout is idle: to check clocks and limits, or to give up.
pub(super) type Tick<'a, E> = &'a mut dyn FnMut() -> Result<(), E>;

/// Sends a message.
pub(super) fn send<E: From<io::Error>>(
    socket: &UnixStream,
    message: &impl Serialize,
    file: Option<&File>,
    tick: Tick<'_, E>,
) -> Result<(), E> {
    let json = serde_json::to_vec(message).map_err(io::Error::from)?;
    let mut bytes = Vec::with_capacity(HEADER + json.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    let mut fds: Vec<BorrowedFd<'_>> = file.iter().map(|file| file.as_fd()).collect();
    let mut n_sent = 0;
    while n_sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        match rustix::net::sendmsg(socket, &[IoSlice::new(&bytes[n_sent..])], &mut control, SendFlags::NOSIGNAL) {
            // The descriptor was sent with the first bytes.
            Ok(n) => (n_sent, fds) = (n_sent + n, Vec::new()),
            Err(error) => wait(error.into(), tick)?,
        }
    }
    Ok(())
}

/// Receives a message, and the file that came with it.
pub(super) fn receive<T: DeserializeOwned, E: From<io::Error>>(
    socket: &UnixStream,
    tick: Tick<'_, E>,
) -> Result<(T, Option<File>), E> {
    let mut header = [0; HEADER];
    let fd = fill(socket, &mut header, tick)?;
    let (magic, length) = header.split_at(MAGIC.len());
    let n_json = u64::from_le_bytes(length.try_into().expect("a header is two words of 8 bytes"));
    if magic != MAGIC || n_json > MAX_JSON {
        return Err(invalid(format!("a message begins with {header:?}, expected {MAGIC:?} and a length")).into());
    }
    let mut json = vec![0; n_json as usize];
    fill(socket, &mut json, tick)?;
    let message = serde_json::from_slice(&json).map_err(|error| invalid(error.to_string()))?;
    Ok((message, fd.map(File::from)))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Fills `bytes` from the socket; returns a descriptor received with them.
fn fill<E: From<io::Error>>(socket: &UnixStream, bytes: &mut [u8], tick: Tick<'_, E>) -> Result<Option<OwnedFd>, E> {
    let mut fd = None;
    let mut n_read = 0;
    while n_read < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes[n_read..])];
        match rustix::net::recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(received) => {
                n_read += received.bytes;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        fd = fds.last().or(fd);
                    }
                }
            }
            Err(error) => wait(error.into(), tick)?,
        }
    }
    Ok(fd)
}

fn wait<E: From<io::Error>>(error: io::Error, tick: Tick<'_, E>) -> Result<(), E> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => tick(),
        _ => Err(error.into()),
    }
}

/// The seals that a file needs before its memory is borrowed as a slice: against writing and resizing.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

fn memory_file() -> io::Result<File> {
    let fd = rustix::fs::memfd_create("bf16scope", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    Ok(File::from(fd))
}

/// A sealed file of these bytes.
pub(super) fn file_of(bytes: &[u8]) -> io::Result<File> {
    let mut file = memory_file()?;
    file.write_all(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Memory in which a child returns arrays, one after another. It is reused: allocating memory from the system takes
/// several times as long as copying an array into it. So it is not sealed, and the parent, which does not borrow it,
/// reads it (`pread`) before its next request.
#[derive(Default)]
pub(super) struct Outbox(Option<(File, Map)>);

impl Outbox {
    /// The largest size to keep.
    const KEPT: usize = 256 << 20;

    /// A file that begins with `n_bytes`, at least one, filled by `write`.
    pub(super) fn filled_by<E: From<io::Error>>(
        &mut self,
        n_bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<File, E> {
        let (file, map) = match self.0.take().filter(|(_, map)| map.n_bytes >= n_bytes) {
            Some(kept) => kept,
            None => {
                let file = memory_file()?;
                file.set_len(n_bytes as u64)?;
                let map = Map::new(&file, n_bytes, ProtFlags::READ | ProtFlags::WRITE)?;
                (file, map)
            }
        };
        // SAFETY: the mapping is at least `n_bytes` long and writable; it belongs to this value alone, which is
        // borrowed. The parent has a descriptor, and reads through it only between an answer and its next request, so
        // not while the slice lives; it never writes, nor changes the length. The bytes are zeros or an earlier
        // array's: valid.
        write(unsafe { std::slice::from_raw_parts_mut(map.start.cast(), n_bytes) })?;
        let sent = file.try_clone()?;
        if map.n_bytes <= Outbox::KEPT {
            self.0 = Some((file, map));
        }
        Ok(sent)
    }
}

/// Whether a file is memory that can no longer be changed.
pub(super) fn is_sealed(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
}

/// Borrows the bytes of a sealed file.
pub(super) fn with_bytes<R>(file: &File, read: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    if !seals.contains(SEALS) {
        return Err(invalid(format!("a file with seals {seals:?}, expected {SEALS:?}")));
    }
    let n_bytes = usize::try_from(file.metadata()?.len()).map_err(|error| invalid(error.to_string()))?;
    if n_bytes == 0 {
        return Ok(read(&[]));
    }
    let map = Map::new(file, n_bytes, ProtFlags::READ)?;
    // SAFETY: the mapping is `n_bytes` long and readable; the seals, which cannot be removed, keep the file at that
    // length and its bytes unchanged.
    Ok(read(unsafe { std::slice::from_raw_parts(map.start.cast(), n_bytes) }))
}

/// A mapped file.
struct Map {
    start: *mut std::ffi::c_void,
    n_bytes: usize,
}

impl Map {
    /// Maps the first `n_bytes` of a file, at least one.
    fn new(file: &File, n_bytes: usize, prot: ProtFlags) -> io::Result<Map> {
        // SAFETY: the kernel chooses the address, so no memory in use is replaced.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), n_bytes, prot, MapFlags::SHARED, file, 0)? };
        Ok(Map { start, n_bytes })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and unmapped nowhere else; slices over it have ended with the functions that made
        // them.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.n_bytes) };
        unmapped.expect("a whole mapping of this process can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;
    use std::time::Duration;

    fn never() -> io::Result<()> {
        Err(io::Error::other("asked to wait"))
    }

    #[test]
    fn messages_and_files_arrive_as_they_were_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = file_of(b"bulk").unwrap();
        send::<io::Error>(&here, &("first", 1), Some(&file), &mut never).unwrap();
        send::<io::Error>(&here, &("second", 2), None, &mut never).unwrap();
        let (message, received): ((String, i32), _) = receive::<_, io::Error>(&there, &mut never).unwrap();
        assert_eq!(message, ("first".to_string(), 1));
        assert_eq!(with_bytes(&received.unwrap(), <[u8]>::to_vec).unwrap(), b"bulk");
        let (message, received): ((String, i32), _) = receive::<_, io::Error>(&there, &mut never).unwrap();
        assert_eq!((message, received.is_none()), (("second".to_string(), 2), true));
        drop(here);
        let error = receive::<(), io::Error>(&there, &mut never).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let refused = |bytes: &[u8]| {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(bytes).unwrap();
            drop(here);
            receive::<u32, io::Error>(&there, &mut never).unwrap_err().kind()
        };
        assert_eq!(refused(b"HTTP/1.1 200 OK\r\n"), io::ErrorKind::InvalidData);
        assert_eq!(refused(b"bf16ipc1\xff\xff\xff\xff\xff\xff\xff\xff"), io::ErrorKind::InvalidData);
        assert_eq!(refused(b"bf16ipc1\x01\0\0\0\0\0\0\0x"), io::ErrorKind::InvalidData);
        assert_eq!(refused(b"bf16ipc1\x01\0\0\0"), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_full_or_silent_socket_asks_whether_to_wait() {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        there.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let error = receive::<u32, io::Error>(&there, &mut never).unwrap_err();
        assert_eq!(error.to_string(), "asked to wait");
        let error = send::<io::Error>(&here, &"x".repeat(16 << 20), None, &mut never).unwrap_err();
        assert_eq!(error.to_string(), "asked to wait");
    }

    /// Arrays of growing, of smaller and of too large a size: each arrives intact, and memory is allocated only when
    /// needed.
    #[test]
    fn arrays_are_given_in_memory_that_is_kept() {
        use std::os::unix::fs::MetadataExt as _;
        let mut outbox = Outbox::default();
        let mut inode_of = |n_bytes: usize, value: u8| {
            let fill = |bytes: &mut [u8]| -> io::Result<()> {
                bytes.fill(value);
                Ok(())
            };
            let file = outbox.filled_by(n_bytes, fill).unwrap();
            let mut read = vec![0; n_bytes];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read.iter().all(|&byte| byte == value), "{n_bytes} bytes of {value}");
            file.metadata().unwrap().ino()
        };
        let (first, larger, smaller) = (inode_of(3, 1), inode_of(5000, 2), inode_of(10, 3));
        assert!(first != larger && larger == smaller);
        let (huge, after) = (inode_of(Outbox::KEPT + 1, 4), inode_of(10, 5));
        assert!(huge != larger && huge != after);
    }

    #[test]
    fn what_is_sent_can_no_longer_change() {
        let file = file_of(b"abc").unwrap();
        assert_eq!(with_bytes(&file, <[u8]>::to_vec).unwrap(), b"abc");
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(1).is_err());
        assert_eq!(with_bytes(&file_of(b"").unwrap(), <[u8]>::len).unwrap(), 0);
        let unsealed = memory_file().unwrap();
        assert_eq!(with_bytes(&unsealed, <[u8]>::len).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
