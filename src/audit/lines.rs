//! Whole lines into something that may take a part of what it is given, such as a pipe or a disk that runs full.

use super::sink::Outcome;
use std::io::{ErrorKind, Write};
use std::time::Duration;

/// How long to wait for a pipe that somebody made one that does not block.
const BREATH: Duration = Duration::from_millis(5);

/// Writes lines, and remembers whether the last one was torn.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Something stands there that is no whole line: what comes next must not be read as the rest of it.
    pub(super) torn: bool,
}

impl Lines {
    /// Writes until all is there or it fails. Blocks as long as `to` does.
    pub(super) fn write(&mut self, to: &mut impl Write, lines: &[String]) -> Outcome {
        let start = if self.torn { "\n" } else { "" };
        let text: String = std::iter::once(start).chain(lines.iter().map(String::as_str)).collect();
        let (taken, failure) = pour(to, text.as_bytes());
        if let Some(last) = text.as_bytes()[..taken].last() {
            self.torn = *last != b'\n';
        }
        Outcome { written: whole(lines, taken.saturating_sub(start.len())), failure }
    }
}

/// How many bytes went out, and why not all.
fn pour(to: &mut impl Write, text: &[u8]) -> (usize, Option<String>) {
    let mut taken = 0;
    while taken < text.len() {
        match to.write(&text[taken..]) {
            Ok(0) => return (taken, Some("it takes nothing more".to_owned())),
            Ok(more) => taken += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(BREATH),
            Err(error) => return (taken, Some(error.to_string())),
        }
    }
    (taken, None)
}

/// The lines that are wholly within the first bytes.
fn whole(lines: &[String], bytes: usize) -> usize {
    let mut end = 0;
    lines
        .iter()
        .take_while(|line| {
            end += line.len();
            end <= bytes
        })
        .count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use std::io;

    /// A disk with so much room.
    struct Disk {
        room: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let taken = text.len().min(self.room).min(5);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.text.extend_from_slice(&text[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_a_full_disk_tears_is_written_again_on_a_line_of_its_own() {
        let lines = ["first\n", "second\n", "third\n"].map(str::to_owned);
        let (mut disk, mut writer) = (Disk { room: 9, text: Vec::new() }, Lines::default());
        let outcome = writer.write(&mut disk, &lines);
        assert!(outcome.failure.is_some());
        assert_eq!((outcome.written, writer.torn), (1, true));
        assert_eq!(writer.write(&mut disk, &lines[1..]).written, 0, "still full");
        assert!(writer.torn);
        disk.room = 100;
        let outcome = writer.write(&mut disk, &lines[1..]);
        assert_eq!((outcome.written, outcome.failure, writer.torn), (2, None, false));
        assert_eq!(String::from_utf8(disk.text).unwrap(), "first\nsec\nsecond\nthird\n");
    }

    #[test]
    fn what_went_out_to_the_end_of_a_line_tore_nothing() {
        let lines = ["ab\n", "cd\n"].map(str::to_owned);
        let (mut disk, mut writer) = (Disk { room: 3, text: Vec::new() }, Lines::default());
        assert_eq!((writer.write(&mut disk, &lines).written, writer.torn), (1, false));
    }
}
