//! A kernel that answers as its script says, for tests.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::kernel::{Event, Kernel, Request};

/// What becomes of a read.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// At most so many bytes come.
    Short(usize),
    /// It fails, with this error number.
    Fail(i32),
    /// It says that one byte more came than was asked for.
    TooMany,
    /// Its event comes twice.
    Twice,
    /// An event of a read that nobody asked for comes, too.
    Stray,
    /// It ends only when so many more waits have passed.
    Late(usize),
    /// It is refused when it is asked for.
    Refuse(i32),
    /// It is not taken, nor is any after it: each wait fails, with this error number.
    NeverTaken(i32),
}

/// A file in memory, read with an alignment; without a script every read is whole.
#[derive(Debug)]
pub(super) struct Scripted {
    pub(super) file: Vec<u8>,
    pub(super) alignment: u64,
    pub(super) script: VecDeque<Answer>,
    /// Which of the reads asked for is answered next.
    pub(super) order: VecDeque<usize>,
    asked: Vec<Request>,
    late: Vec<(usize, Request)>,
    ready: Vec<Event>,
    /// Why nothing is taken any more.
    refusing: Option<i32>,
}

impl Scripted {
    pub(super) fn new(len: usize, alignment: u64, script: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            file: (0..len).map(|k| (k * 31 % 251) as u8).collect(),
            alignment,
            script: script.into_iter().collect(),
            order: VecDeque::new(),
            asked: Vec::new(),
            late: Vec::new(),
            ready: Vec::new(),
            refusing: None,
        }
    }

    /// Brings up to `most` bytes of what was asked for, as the kernel does.
    fn read(&mut self, request: &Request, most: usize) {
        let Request { key, offset, into, len, .. } = *request;
        if !(offset | u64::from(len) | into.addr() as u64).is_multiple_of(self.alignment) {
            return self.ready.push(Event { key, result: -libc::EINVAL });
        }
        let start = (offset as usize).min(self.file.len());
        let count = (len as usize).min(self.file.len() - start).min(most);
        let bytes = &self.file[start..start + count];
        // SAFETY: who asked promised that `len` bytes are there until the event.
        unsafe { into.copy_from_nonoverlapping(bytes.as_ptr(), count) };
        self.ready.push(Event { key, result: count as i32 });
    }

    fn answer(&mut self, request: Request) {
        let event = |result| Event { key: request.key, result };
        match self.script.pop_front() {
            Some(Answer::NeverTaken(code)) => {
                self.refusing = Some(code);
                self.asked.insert(0, request);
            }
            None | Some(Answer::Refuse(_)) => self.read(&request, usize::MAX),
            Some(Answer::Short(most)) => self.read(&request, most),
            Some(Answer::Fail(code)) => self.ready.push(event(-code)),
            Some(Answer::TooMany) => self.ready.push(event(request.len as i32 + 1)),
            Some(Answer::Twice) => {
                self.read(&request, usize::MAX);
                self.ready.extend(self.ready.last().copied());
            }
            Some(Answer::Stray) => {
                self.ready.push(Event { key: request.key + 1000, result: 0 });
                self.read(&request, usize::MAX);
            }
            Some(Answer::Late(waits)) => self.late.push((waits, request)),
        }
    }
}

impl Kernel for Scripted {
    unsafe fn ask(&mut self, request: &Request) -> io::Result<()> {
        if let Some(Answer::Refuse(code)) = self.script.front() {
            let error = io::Error::from_raw_os_error(*code);
            self.script.pop_front();
            return Err(error);
        }
        self.asked.push(*request);
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> io::Result<()> {
        for index in (0..self.late.len()).rev() {
            match self.late[index].0.checked_sub(1) {
                Some(waits) => self.late[index].0 = waits,
                None => {
                    let (_, request) = self.late.remove(index);
                    self.read(&request, usize::MAX);
                }
            }
        }
        if self.refusing.is_none() && !self.asked.is_empty() {
            let index = self.order.pop_front().unwrap_or(0) % self.asked.len();
            let request = self.asked.remove(index);
            self.answer(request);
        }
        self.refusing.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
    }

    fn untaken(&mut self) -> usize {
        self.refusing.map_or(0, |_| self.asked.len())
    }

    fn has_events(&mut self) -> bool {
        !self.ready.is_empty()
    }

    fn events(&mut self) -> io::Result<Vec<Event>> {
        Ok(std::mem::take(&mut self.ready))
    }
}
