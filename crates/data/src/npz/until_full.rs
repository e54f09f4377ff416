//! A writer that fails only once. When `zip`'s writer is dropped, it tries again to finish its archive, and prints to
//! standard error if that fails too; the first error has gone to the caller, who reports it once.

use std::io::{self, Seek, SeekFrom, Write};

/// Writes until a write fails; from then on it accepts everything and writes nothing.
#[derive(Debug)]
pub struct UntilFull<W> {
    inner: W,
    has_failed: bool,
    /// The position of the next byte, real or pretended; and the end.
    at: u64,
    end: u64,
}

impl<W: Write + Seek> UntilFull<W> {
    /// Wraps a writer that is at its beginning.
    pub fn new(inner: W) -> UntilFull<W> {
        UntilFull { inner, has_failed: false, at: 0, end: 0 }
    }

    /// The writer, if everything was written.
    ///
    /// # Errors
    /// A write failed: the caller has already received the system's error.
    pub fn whole(self) -> io::Result<W> {
        match self.has_failed {
            true => Err(io::Error::other("an earlier part could not be written")),
            false => Ok(self.inner),
        }
    }

    fn noted<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        // An interrupted write may be retried.
        self.has_failed |= result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        result
    }
}

impl<W: Write + Seek> Write for UntilFull<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = match self.has_failed {
            true => bytes.len(),
            false => {
                let written = self.inner.write(bytes);
                self.noted(written)?
            }
        };
        self.at += n as u64;
        self.end = self.end.max(self.at);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.has_failed {
            true => Ok(()),
            false => {
                let flushed = self.inner.flush();
                self.noted(flushed)
            }
        }
    }
}

impl<W: Write + Seek> Seek for UntilFull<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match (self.has_failed, to) {
            (false, _) => {
                let position = self.inner.seek(to);
                self.noted(position)?
            }
            (true, SeekFrom::Start(at)) => at,
            (true, SeekFrom::Current(by)) => self.at.saturating_add_signed(by),
            (true, SeekFrom::End(by)) => self.end.saturating_add_signed(by),
        };
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    /// A disk with room for this many bytes.
    struct Disk {
        bytes: Cursor<Vec<u8>>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.bytes.position() as usize + bytes.len() > self.room {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => self.bytes.write(bytes),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Disk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    /// Its drop finishes the archive like `finish`, and prints the error that `finish` would return.
    #[test]
    fn an_archive_that_met_a_full_disk_ends_without_another_error() {
        for room in [0, 10, 100, 1100] {
            let disk = Disk { bytes: Cursor::default(), room };
            let mut zip = ZipWriter::new(UntilFull::new(disk));
            let mut write = |name: &str| -> io::Result<()> {
                zip.start_file(name, SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored))?;
                zip.write_all(&[7; 1000])
            };
            let failed = write("a").and_then(|()| write("b")).unwrap_err();
            assert_eq!(failed.kind(), io::ErrorKind::StorageFull, "{room}: {failed}");
            let ended = zip.finish().unwrap();
            assert!(ended.whole().is_err(), "{room}: half an archive is taken for a whole one");
        }
        let mut zip = ZipWriter::new(UntilFull::new(Disk { bytes: Cursor::default(), room: 5000 }));
        zip.start_file("a", SimpleFileOptions::default()).unwrap();
        zip.write_all(&[7; 1000]).unwrap();
        zip.finish().unwrap().whole().unwrap();
    }
}
