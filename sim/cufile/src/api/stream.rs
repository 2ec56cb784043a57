//! Reads and writes in the order of a stream: a host function on it does the work when its turn comes.

use std::ffi::{c_uint, c_void};

use cufile_sys::{
    CU_FILE_ASYNC_NOT_SUPPORTED, CU_FILE_INVALID_VALUE, CU_FILE_STREAM_FIXED_BUF_OFFSET,
    CU_FILE_STREAM_FIXED_FILE_OFFSET, CU_FILE_STREAM_FIXED_FILE_SIZE, CU_FILE_STREAM_PAGE_ALIGNED_INPUTS,
    CUfileError, CUfileOpError,
};

use crate::call::{Call, api};
use crate::cuda::{self, Place};
use crate::error::{Errno, Result};
use crate::faults::{Effect, Subject};
use crate::ffi::{Address, Handle, In, Out};
use crate::state::{Kind, state};
use crate::transfer::Request;

const KNOWN_FLAGS: u32 = CU_FILE_STREAM_FIXED_BUF_OFFSET
    | CU_FILE_STREAM_FIXED_FILE_OFFSET
    | CU_FILE_STREAM_FIXED_FILE_SIZE
    | CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;

api! {
    fn cuFileStreamRegister(stream: Handle, flags: c_uint) {
        let mut state = state();
        if flags & !KNOWN_FLAGS != 0 || state.streams.contains_key(&stream) {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        state.streams.insert(stream, flags);
        Ok(())
    }

    fn cuFileStreamDeregister(stream: Handle) {
        state().streams.remove(&stream).map(drop).ok_or(CU_FILE_INVALID_VALUE.into())
    }
}

/// An argument that is read when its turn comes, unless the stream's flags fix it at the call.
#[derive(Clone, Copy)]
enum Argument<T> {
    Fixed(T),
    Late(In<T>),
}

impl<T: Copy> Argument<T> {
    fn new(place: In<T>, fixed: bool) -> Result<Self> {
        if fixed { place.get().map(Self::Fixed) } else { Ok(Self::Late(place)) }
    }

    fn get(self) -> Result<T> {
        match self {
            Self::Fixed(value) => Ok(value),
            Self::Late(place) => place.get(),
        }
    }
}

/// What waits on the stream. It holds the program's pointers and not what they point to.
struct Waiting {
    file: Handle,
    base: Address,
    len: Argument<usize>,
    file_offset: Argument<i64>,
    base_offset: Argument<i64>,
    count: Out<isize>,
    writes: bool,
    effect: Option<Effect>,
    place: Option<Place>,
}

impl Waiting {
    /// The transfer of these arguments.
    fn request(&self, len: usize, file_offset: i64, base_offset: i64) -> Request {
        let Self { file, base, writes, place, .. } = *self;
        Request { file, base, len, file_offset, base_offset, writes, kind: Kind::Single, place }
    }

    fn run(self) -> Result<isize, Errno> {
        let request = self.request(self.len.get()?, self.file_offset.get()?, self.base_offset.get()?);
        request.check()?.run(self.effect)
    }
}

/// Runs on the stream.
extern "C" fn execute(waiting: *mut c_void) {
    // SAFETY: the pointer is of the box that `launch` gave up, and comes here once.
    let waiting = unsafe { Box::from_raw(waiting.cast::<Waiting>()) };
    let count = waiting.count;
    let moved = std::panic::catch_unwind(move || waiting.run()).unwrap_or(Err(Errno(libc::EIO)));
    let _ = count.set(moved.unwrap_or_else(Errno::as_count));
}

fn launch(
    stream: Handle,
    count: Out<isize>,
    places: (In<usize>, In<i64>, In<i64>),
    waiting: impl FnOnce(Argument<usize>, Argument<i64>, Argument<i64>) -> Waiting,
) -> Result {
    let (len, file_offset, base_offset) = places;
    if len.is_null() || file_offset.is_null() || base_offset.is_null() || count.is_null() {
        return Err(CU_FILE_INVALID_VALUE.into());
    }
    let flags = state().streams.get(&stream).copied().unwrap_or(0);
    let fixed = |flag: u32| flags & flag != 0;
    let mut waiting = Box::new(waiting(
        Argument::new(len, fixed(CU_FILE_STREAM_FIXED_FILE_SIZE))?,
        Argument::new(file_offset, fixed(CU_FILE_STREAM_FIXED_FILE_OFFSET))?,
        Argument::new(base_offset, fixed(CU_FILE_STREAM_FIXED_BUF_OFFSET))?,
    ));
    // The file and the memory must be right at the call already; the rest shows when it runs.
    let job = waiting.request(0, 0, 0).check().map_err(|Errno(code)| match code {
        libc::EINVAL => CU_FILE_INVALID_VALUE,
        code => CUfileOpError(code.cast_unsigned()),
    })?;
    waiting.place = Some(job.place());
    let driver = cuda::driver().ok_or(CU_FILE_ASYNC_NOT_SUPPORTED)?;
    let waiting = Box::into_raw(waiting);
    driver.launch(stream, execute, waiting.cast()).inspect_err(|_| {
        // SAFETY: the box given up just now; the stream did not take it.
        drop(unsafe { Box::from_raw(waiting) });
    })
}

/// Starts a transfer. Where that fails, the count says so as well.
#[allow(clippy::too_many_arguments, reason = "the C function's, and what tells the two apart")]
fn start(
    call: &'static Call,
    writes: bool,
    file: Handle,
    base: Address,
    len: In<usize>,
    file_offset: In<i64>,
    base_offset: In<i64>,
    count: Out<isize>,
    stream: Handle,
) -> CUfileError {
    let subject = || Subject { bytes: 0, file: state().files.get(&file).map(|file| file.path.clone()) };
    call.launch(subject, |effect| {
        let result =
            launch(stream, count, (len, file_offset, base_offset), |len, file_offset, base_offset| Waiting {
                file,
                base,
                len,
                file_offset,
                base_offset,
                count,
                writes,
                effect,
                place: None,
            });
        if let (Err(failure), false) = (result, count.is_null()) {
            let errno =
                if failure.code == CU_FILE_INVALID_VALUE { Errno(libc::EINVAL) } else { failure.into() };
            count.set(errno.as_count())?;
        }
        result
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileReadAsync(
    file: Handle,
    base: Address,
    len: In<usize>,
    file_offset: In<i64>,
    base_offset: In<i64>,
    count: Out<isize>,
    stream: Handle,
) -> CUfileError {
    static CALL: Call = Call::new("cuFileReadAsync");
    start(&CALL, false, file, base, len, file_offset, base_offset, count, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWriteAsync(
    file: Handle,
    base: Address,
    len: In<usize>,
    file_offset: In<i64>,
    base_offset: In<i64>,
    count: Out<isize>,
    stream: Handle,
) -> CUfileError {
    static CALL: Call = Call::new("cuFileWriteAsync");
    start(&CALL, true, file, base, len, file_offset, base_offset, count, stream)
}
