//! Batches.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cufile_sys::{
    CU_FILE_HANDLE_NOT_REGISTERED, CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, CU_FILE_INVALID_CONTEXT_ERROR,
    CU_FILE_INVALID_VALUE, CUFILE_BATCH, CUFILE_READ, CUFILE_WRITE, CUfileIOEvents, CUfileIOParams,
};
use libc::timespec;

use crate::call::{Call, api};
use crate::error::{Errno, Result};
use crate::faults::{self, Effect, Subject};
use crate::ffi::{Address, Handle, In, Out};
use crate::state::{Batch, Entry, Kind, count, state};
use crate::transfer::{Job, Request};

fn find(batch: Handle) -> Result<Arc<Batch>> {
    state().batches.get(&batch).cloned().ok_or(CU_FILE_INVALID_CONTEXT_ERROR.into())
}

/// One entry, checked. What only a transfer finds out fails its event; a file that is none fails the submission.
fn entry(parameters: &CUfileIOParams) -> Result<Entry> {
    if parameters.mode != CUFILE_BATCH || !matches!(parameters.opcode, CUFILE_READ | CUFILE_WRITE) {
        return Err(CU_FILE_INVALID_VALUE.into());
    }
    // SAFETY: the union has this one field.
    let batch = unsafe { parameters.u.batch };
    let request = Request {
        file: parameters.fh.addr() as Handle,
        base: batch.devPtr_base.addr() as Address,
        len: batch.size,
        file_offset: batch.file_offset,
        base_offset: batch.devPtr_offset,
        writes: parameters.opcode == CUFILE_WRITE,
        kind: Kind::Batch,
        place: None,
    };
    let file = state().files.get(&request.file).map(|file| file.path.clone());
    if file.is_none() || request.base == 0 {
        let code = if file.is_none() { CU_FILE_HANDLE_NOT_REGISTERED } else { CU_FILE_INVALID_VALUE };
        return Err(code.into());
    }
    let effect = faults::at_batch_event(&Subject { bytes: batch.size as u64, file });
    Ok(Entry {
        job: request.check().map_err(Errno::as_count),
        cookie: parameters.cookie.expose_provenance(),
        effect,
    })
}

fn submit(batch: Handle, entries: &[CUfileIOParams]) -> Result {
    let batch = find(batch)?;
    if entries.is_empty() || entries.len() > batch.capacity() {
        return Err(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR.into());
    }
    let entries = entries.iter().map(entry).collect::<Result<Vec<_>>>()?;
    let total = entries.len() as u64;
    let way = |wanted: bool| {
        let bounces = |entry: &Entry, job: &Job| job.is_bounced() || entry.effect == Some(Effect::Posix);
        let goes_there = |entry: &&Entry| entry.job.as_ref().is_ok_and(|job| bounces(entry, job) == wanted);
        entries.iter().filter(goes_there).count() as u64
    };
    let (bounced, straight) = (way(true), way(false));
    batch.submit(entries)?;
    state().statistics.update(|counters| {
        let basic = &mut counters.detailed.basic;
        basic.batch_enqueued_ops.ok += straight;
        basic.batch_nvfs_submit_ops.ok += straight;
        basic.batch_posix_enqueued_ops.ok += bounced;
        basic.batch_mixed_io_submit_ops.ok += bounced;
        basic.batch_total_submit_ops.ok += total;
    });
    Ok(())
}

fn duration(time: timespec) -> Result<Duration> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|&nanos| nanos < 1_000_000_000);
    match (u64::try_from(time.tv_sec), nanos) {
        (Ok(seconds), Some(nanos)) => Ok(Duration::new(seconds, nanos)),
        _ => Err(CU_FILE_INVALID_VALUE.into()),
    }
}

api! {
    /// The driver must be open: this does not open it.
    fn cuFileBatchIOSetUp(batch: Out<Handle>, capacity: c_uint) {
        batch.check()?;
        let mut state = state();
        let capacity = capacity as usize;
        let open = state.driver.opened.is_some();
        let ok = open && (1..=state.parameters.batch_size()).contains(&capacity);
        state.statistics.update(|counters| count(&mut counters.detailed.basic.batch_setup_ops, ok));
        if !ok {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        let handle = state.new_handle();
        state.batches.insert(handle, Arc::new(Batch::new(capacity)));
        batch.set(handle)
    }

    fn cuFileBatchIOSubmit(batch: Handle, number: c_uint, entries: In<CUfileIOParams>, _flags: c_uint) {
        let result = entries.list(number as usize).and_then(|entries| submit(batch, &entries));
        let ok = result.is_ok();
        state().statistics.update(|counters| count(&mut counters.detailed.basic.batch_submit_ops, ok));
        result
    }

    /// Writes at most `number` events and says how many; waits for `least`, or for as many as are outstanding.
    fn cuFileBatchIOGetStatus(
        batch: Handle, least: c_uint, number: Out<c_uint>, events: Out<CUfileIOEvents>, limit: In<timespec>,
    ) {
        let batch = find(batch)?;
        let most = number.as_in().get()?;
        if least > most || (most > 0 && events.is_null()) {
            return Err(CU_FILE_INVALID_VALUE.into());
        }
        let limit = if limit.is_null() { None } else { Some(duration(limit.get()?)?) };
        let finished = batch.fetch(least as usize, most as usize, limit);
        for (index, event) in finished.iter().enumerate() {
            let cookie = ptr::with_exposed_provenance_mut::<c_void>(event.cookie);
            events.at(index).set(CUfileIOEvents { cookie, status: event.status, ret: event.count.cast_unsigned() })?;
        }
        let ok = !finished.is_empty();
        state().statistics.update(|counters| {
            if ok {
                counters.detailed.basic.batch_complete_ops.ok += 1;
            }
        });
        number.set(finished.len() as c_uint)
    }

    /// What has begun ends first; no event comes of anything submitted before.
    fn cuFileBatchIOCancel(batch: Handle) {
        let found = find(batch);
        let ok = found.is_ok();
        state().statistics.update(|counters| count(&mut counters.detailed.basic.batch_cancel_ops, ok));
        found?.cancel();
        Ok(())
    }
}

/// What has begun goes on, and nobody waits for it.
#[unsafe(no_mangle)]
extern "C" fn cuFileBatchIODestroy(batch: Handle) {
    static CALL: Call = Call::new("cuFileBatchIODestroy");
    CALL.infallible((), || {
        let mut state = state();
        let batch = state.batches.remove(&batch);
        let ok = batch.is_some();
        state.statistics.update(|counters| count(&mut counters.detailed.basic.batch_destroy_ops, ok));
        drop(state);
        if let Some(batch) = batch {
            batch.abandon();
        }
    });
}
