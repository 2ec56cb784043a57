//! The state of the modelled GPU: streams that work in their own time, events, memory, pins.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ptr;
use std::sync::{Arc, Mutex};

use loom::sync::Condvar;
use loom::sync::atomic::{AtomicI32, Ordering};
use loom::thread::{self, JoinHandle};

/// What goes wrong in a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Enqueueing the copy of this number (the first is 0) is refused with this code.
    pub(super) refused: Option<(usize, i32)>,
    /// The context breaks with this code when the copy of this number is done on the stream that was made first; the copies go
    /// on, as those of a real one may.
    pub(super) broken: Option<(usize, i32)>,
}

/// A GPU, made for one run of a model.
///
/// The state has an ordinary lock, which nobody waits for, since all threads of a model are one of the system's. What happens in
/// an order that matters takes a turn of its stream first: there the model may go on with another thread. Making and freeing
/// things takes none: a copy before or after it is also one before or after the turns around it.
pub(super) struct Gpu {
    state: Mutex<State>,
    /// The code that a broken context answers everything with.
    broken: AtomicI32,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) faults: Faults,
    next: usize,
    has_streams: bool,
    streams: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
    memory: BTreeMap<u64, Vec<u8>>,
    /// Pinned ranges: where each starts, and its length.
    pinned: BTreeMap<usize, usize>,
    enqueued: usize,
}

struct Stream {
    work: VecDeque<Work>,
    /// How many copies were done.
    copied: usize,
    is_first: bool,
    closed: bool,
    turns: Arc<Turns>,
}

/// What a stream's thread and the callers that give it work take turns by.
struct Turns {
    turn: loom::sync::Mutex<()>,
    more: Condvar,
}

/// An event: how often it was recorded, and which of these the GPU has got to.
#[derive(Default)]
struct Event {
    recorded: u64,
    reached: u64,
    /// Where it was recorded last.
    stream: usize,
    /// Destroyed it is still recorded where that was enqueued before.
    destroyed: bool,
}

enum Work {
    In { from: usize, to: u64, len: usize },
    Out { from: u64, to: usize, len: usize },
    Within { from: u64, to: u64, len: usize },
    Record { event: usize, time: u64 },
}

/// What a stream's thread found to do.
enum Step {
    Done,
    /// A copy, which broke the context with this code.
    Broke(i32),
    Blocked,
    Over,
}

pub(super) const INVALID_VALUE: i32 = 1;
pub(super) const NOT_READY: i32 = 600;

impl Gpu {
    pub(super) fn new(faults: Faults) -> Arc<Self> {
        let state = State { faults, next: 0x1000, ..State::default() };
        Arc::new(Self { state: Mutex::new(state), broken: AtomicI32::new(0), threads: Mutex::default() })
    }

    /// What takes no turn.
    pub(super) fn quietly<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        call(&mut self.state.lock().unwrap())
    }

    /// What takes a turn of a stream, and gives it something to do.
    pub(super) fn on(&self, stream: usize, call: impl FnOnce(&mut State) -> i32) -> i32 {
        match self.broken.load(Ordering::SeqCst) {
            0 => {}
            code => return code,
        }
        let Some(turns) = self.turns(stream) else { return INVALID_VALUE };
        let _turn = turns.turn.lock().unwrap();
        let code = self.quietly(call);
        turns.more.notify_all();
        code
    }

    /// Lets a stream end when it is empty, also that of a broken context.
    pub(super) fn close(&self, stream: usize) {
        if let Some(turns) = self.turns(stream) {
            let _turn = turns.turn.lock().unwrap();
            self.quietly(|state| {
                state.streams.get_mut(&stream).into_iter().for_each(|stream| stream.closed = true)
            });
            turns.more.notify_all();
        }
    }

    /// Whether an event is over, in a turn of the stream it was recorded on.
    pub(super) fn query(&self, event: usize) -> i32 {
        let stream = self.quietly(|state| state.events.get(&event).map(|event| event.stream));
        let turns = stream.and_then(|stream| self.turns(stream));
        let _turn = turns.as_ref().map(|turns| turns.turn.lock().unwrap());
        match self.broken.load(Ordering::SeqCst) {
            0 => self.quietly(|state| state.query(event)),
            code => code,
        }
    }

    fn turns(&self, stream: usize) -> Option<Arc<Turns>> {
        self.quietly(|state| state.streams.get(&stream).map(|stream| Arc::clone(&stream.turns)))
    }

    /// Starts a stream's thread.
    pub(super) fn stream(self: &Arc<Self>) -> usize {
        let turns = Arc::new(Turns { turn: loom::sync::Mutex::new(()), more: Condvar::new() });
        let handle = self.quietly(|state| {
            let handle = state.handle();
            let (work, turns) = (VecDeque::new(), Arc::clone(&turns));
            let is_first = !mem::replace(&mut state.has_streams, true);
            state.streams.insert(handle, Stream { work, copied: 0, is_first, closed: false, turns });
            handle
        });
        let gpu = Arc::clone(self);
        let thread = thread::spawn(move || gpu.serve(handle, &turns));
        self.threads.lock().unwrap().push(thread);
        handle
    }

    /// Does what is enqueued on a stream, one thing at a time, until the stream is closed and empty.
    fn serve(&self, stream: usize, turns: &Turns) {
        loop {
            // Between two things anything may happen elsewhere.
            let mut turn = turns.turn.lock().unwrap();
            loop {
                match self.quietly(|state| state.step(stream)) {
                    Step::Done => break,
                    Step::Broke(code) => {
                        self.broken.store(code, Ordering::SeqCst);
                        break;
                    }
                    Step::Blocked => turn = turns.more.wait(turn).unwrap(),
                    Step::Over => return,
                }
            }
        }
    }

    /// Waits until every stream's thread has ended.
    pub(super) fn finish(&self) {
        let threads = mem::take(&mut *self.threads.lock().unwrap());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// Fails where anything of the driver's is left.
    pub(super) fn assert_empty(&self) {
        let left = self.quietly(|state| {
            let events = state.events.values().filter(|event| !event.destroyed).count();
            [state.streams.len(), events, state.memory.len(), state.pinned.len()]
        });
        assert_eq!(left, [0; 4], "streams, events, allocations and pins left behind");
    }
}

impl State {
    fn handle(&mut self) -> usize {
        self.next += 0x1000;
        self.next
    }

    pub(super) fn make_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub(super) fn destroy_event(&mut self, event: usize) {
        self.events.get_mut(&event).into_iter().for_each(|event| event.destroyed = true);
    }

    pub(super) fn record(&mut self, event: usize, stream: usize) -> i32 {
        let Some(recorded) = self.events.get_mut(&event) else { return INVALID_VALUE };
        recorded.recorded += 1;
        recorded.stream = stream;
        let time = recorded.recorded;
        self.enqueue(stream, Work::Record { event, time })
    }

    fn query(&self, event: usize) -> i32 {
        match self.events.get(&event) {
            Some(event) if event.reached == event.recorded => 0,
            Some(_) => NOT_READY,
            None => INVALID_VALUE,
        }
    }

    pub(super) fn copy_in(&mut self, from: usize, to: u64, len: usize, stream: usize) -> i32 {
        self.copy(stream, Work::In { from, to, len })
    }

    pub(super) fn copy_out(&mut self, from: u64, to: usize, len: usize, stream: usize) -> i32 {
        self.copy(stream, Work::Out { from, to, len })
    }

    pub(super) fn copy_within(&mut self, from: u64, to: u64, len: usize, stream: usize) -> i32 {
        self.copy(stream, Work::Within { from, to, len })
    }

    fn copy(&mut self, stream: usize, work: Work) -> i32 {
        let number = self.enqueued;
        self.enqueued += 1;
        match self.faults.refused {
            Some((refused, code)) if refused == number => code,
            _ => self.enqueue(stream, work),
        }
    }

    fn enqueue(&mut self, stream: usize, work: Work) -> i32 {
        let Some(stream) = self.streams.get_mut(&stream) else { return INVALID_VALUE };
        stream.work.push_back(work);
        0
    }

    fn step(&mut self, stream: usize) -> Step {
        let Some(queue) = self.streams.get_mut(&stream) else { return Step::Over };
        match queue.work.front() {
            None if queue.closed => {
                self.streams.remove(&stream);
                return Step::Over;
            }
            None => return Step::Blocked,
            Some(_) => {}
        }
        match queue.work.pop_front() {
            Some(Work::Record { event, time }) => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.reached = time;
                }
                Step::Done
            }
            Some(Work::In { from, to, len }) => {
                self.assert_pinned(from, len);
                // SAFETY: pinned memory is mapped.
                unsafe {
                    ptr::copy_nonoverlapping(from as *const u8, self.device(to, len).as_mut_ptr(), len)
                };
                self.count_copy(stream)
            }
            Some(Work::Out { from, to, len }) => {
                self.assert_pinned(to, len);
                // SAFETY: as above.
                unsafe { ptr::copy_nonoverlapping(self.device(from, len).as_ptr(), to as *mut u8, len) };
                self.count_copy(stream)
            }
            Some(Work::Within { from, to, len }) => {
                let bytes = self.device(from, len).to_vec();
                self.device(to, len).copy_from_slice(&bytes);
                self.count_copy(stream)
            }
            None => Step::Done,
        }
    }

    fn count_copy(&mut self, stream: usize) -> Step {
        let Some(stream) = self.streams.get_mut(&stream) else { return Step::Done };
        let number = stream.copied;
        stream.copied += 1;
        match self.faults.broken {
            Some((breaking, code)) if stream.is_first && breaking == number => Step::Broke(code),
            _ => Step::Done,
        }
    }

    fn assert_pinned(&self, start: usize, len: usize) {
        let below = self.pinned.range(..=start).next_back();
        let inside = below.is_some_and(|(pinned, size)| start + len <= pinned + size);
        assert!(inside, "a copy uses host memory that is not pinned any more");
    }

    /// Allocated memory of the device.
    pub(super) fn device(&mut self, address: u64, len: usize) -> &mut [u8] {
        let (start, bytes) =
            self.memory.range_mut(..=address).next_back().expect("a copy uses device memory that was freed");
        let offset = (address - start) as usize;
        bytes.get_mut(offset..offset + len).expect("a copy uses device memory that was freed")
    }

    pub(super) fn allocate(&mut self, len: usize) -> u64 {
        let address = self.handle() as u64;
        self.memory.insert(address, vec![0; len]);
        address
    }

    pub(super) fn free(&mut self, address: u64) -> i32 {
        self.memory.remove(&address).map_or(INVALID_VALUE, |_| 0)
    }

    pub(super) fn pin(&mut self, start: usize, len: usize) {
        self.pinned.insert(start, len);
    }

    pub(super) fn unpin(&mut self, start: usize) -> i32 {
        self.pinned.remove(&start).map_or(INVALID_VALUE, |_| 0)
    }
}
