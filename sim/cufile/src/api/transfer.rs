//! Reads and writes that the call waits for.

use std::ffi::c_uint;

use cufile_sys::{CU_FILE_INVALID_VALUE, CUfileIOVec_t};

use crate::call::Call;
use crate::error::Errno;
use crate::faults::{Effect, Subject, hang};
use crate::ffi::{Address, Handle, In};
use crate::state::{Kind, count, state};
use crate::transfer::Request;

/// The most parts of a vectored call.
const MOST_PARTS: usize = libc::UIO_MAXIOV as usize;

/// A transfer of the file behind `handle`, as faults see it.
fn subject(handle: Handle, bytes: usize) -> Subject {
    Subject { bytes: bytes as u64, file: state().files.get(&handle).map(|file| file.path.clone()) }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(
    file: Handle,
    base: Address,
    len: usize,
    file_offset: i64,
    base_offset: i64,
) -> isize {
    static CALL: Call = Call::new("cuFileRead");
    let request =
        Request { file, base, len, file_offset, base_offset, writes: false, kind: Kind::Single, place: None };
    CALL.transfer(|| subject(file, len), |effect| single(request, effect))
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(
    file: Handle,
    base: Address,
    len: usize,
    file_offset: i64,
    base_offset: i64,
) -> isize {
    static CALL: Call = Call::new("cuFileWrite");
    let request =
        Request { file, base, len, file_offset, base_offset, writes: true, kind: Kind::Single, place: None };
    CALL.transfer(|| subject(file, len), |effect| single(request, effect))
}

fn single(request: Request, effect: Option<Effect>) -> Result<isize, Errno> {
    request.check().inspect_err(|_| count_refused(request.writes))?.run(effect)
}

/// Counts a transfer that never began.
fn count_refused(writes: bool) {
    state().statistics.update(|counters| {
        let basic = &mut counters.detailed.basic;
        count(if writes { &mut basic.write_ops } else { &mut basic.read_ops }, false);
    });
}

#[unsafe(no_mangle)]
extern "C" fn cuFileReadv(
    file: Handle,
    parts: In<CUfileIOVec_t>,
    parts_count: usize,
    file_offset: i64,
    _flags: c_uint,
) -> isize {
    static CALL: Call = Call::new("cuFileReadv");
    let parts = || parts.list(parts_count).map_err(Errno::from);
    CALL.transfer(
        || subject(file, total(&parts())),
        |effect| vector(file, parts()?, file_offset, false, effect),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWritev(
    file: Handle,
    parts: In<CUfileIOVec_t>,
    parts_count: usize,
    file_offset: i64,
    _flags: c_uint,
) -> isize {
    static CALL: Call = Call::new("cuFileWritev");
    let parts = || parts.list(parts_count).map_err(Errno::from);
    CALL.transfer(
        || subject(file, total(&parts())),
        |effect| vector(file, parts()?, file_offset, true, effect),
    )
}

fn total(parts: &Result<Vec<CUfileIOVec_t>, Errno>) -> usize {
    let parts = parts.as_deref().unwrap_or_default();
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.len))
}

/// One part after the other, until one is short. A count that a fault limits is that of the whole call.
fn vector(
    file: Handle,
    parts: Vec<CUfileIOVec_t>,
    file_offset: i64,
    writes: bool,
    effect: Option<Effect>,
) -> Result<isize, Errno> {
    let parts = Ok(parts);
    let all = total(&parts);
    let (mut left, effect) = match effect {
        Some(Effect::AtMost(bytes)) => (all.min(bytes), None),
        Some(Effect::Part(part)) => (all.div_ceil(part), None),
        Some(Effect::Hang(duration)) => {
            hang(duration);
            (all, None)
        }
        effect => (all, effect),
    };
    let result = parts.and_then(|parts| {
        if parts.is_empty() || parts.len() > MOST_PARTS {
            return Err(Errno(libc::EINVAL));
        }
        let mut jobs = Vec::with_capacity(parts.len());
        let mut offset = file_offset;
        for part in &parts {
            let len = part.len.min(left);
            left -= len;
            let base = part.base.addr() as Address;
            let request = Request {
                file,
                base,
                len,
                file_offset: offset,
                base_offset: 0,
                writes,
                kind: Kind::Vector,
                place: None,
            };
            jobs.push((request.check()?, len.cast_signed()));
            offset = offset.checked_add(len.cast_signed() as i64).ok_or(CU_FILE_INVALID_VALUE)?;
        }
        let mut moved = 0;
        for (job, len) in jobs {
            let count = job.run(effect)?;
            if count < 0 {
                return Ok(count);
            }
            moved += count;
            if count < len {
                break;
            }
        }
        Ok(moved)
    });
    let ok = result.is_ok();
    state().statistics.update(|counters| {
        let basic = &mut counters.detailed.basic;
        count(if writes { &mut basic.writev_ops } else { &mut basic.readv_ops }, ok);
    });
    result
}
