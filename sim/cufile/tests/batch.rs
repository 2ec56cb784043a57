//! Batches.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use cufile_sys::*;
use libc::timespec;
use support::{Calls as _, Gpu, KIB, MIB, Memory, REAL, code, expected, file, load};
use test_support::cufile_sim::{on_simulator, pause_transfers, report, resume_transfers, set_script};
use test_support::folder::on_disk;

struct Batch<'a> {
    api: &'a Api,
    handle: CUfileBatchHandle_t,
}

/// An event: status, count.
type Event = (u32, isize);

impl<'a> Batch<'a> {
    fn new(api: &'a Api, capacity: u32) -> Result<Self, i32> {
        let mut handle = ptr::null_mut();
        // SAFETY: the place is valid for the call.
        match code(unsafe { (api.cuFileBatchIOSetUp.unwrap())(&mut handle, capacity) }) {
            0 => Ok(Self { api, handle }),
            code => Err(code),
        }
    }

    fn submit(&self, entries: &[CUfileIOParams]) -> i32 {
        let mut entries = entries.to_vec();
        // SAFETY: the entries are valid for the call, their memory until the test's end.
        code(unsafe {
            (self.api.cuFileBatchIOSubmit.unwrap())(
                self.handle,
                entries.len() as c_uint,
                entries.as_mut_ptr(),
                0,
            )
        })
    }

    /// Events by cookie, in the order they came.
    fn fetch(&self, least: u32, most: u32, limit: Duration) -> Result<Vec<(usize, Event)>, i32> {
        let mut events = vec![CUfileIOEvents::default(); most.max(1) as usize];
        let mut number = most;
        let mut limit = timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        // SAFETY: every pointer is valid for the call, the events' for as many as told.
        let status = code(unsafe {
            let get_status = self.api.cuFileBatchIOGetStatus.unwrap();
            get_status(self.handle, least, &mut number, events.as_mut_ptr(), &mut limit)
        });
        if status != 0 {
            return Err(status);
        }
        let event = |event: &CUfileIOEvents| (event.cookie.addr(), (event.status.0, event.count()));
        Ok(events[..number as usize].iter().map(event).collect())
    }

    fn cancel(&self) -> i32 {
        // SAFETY: a handle to be looked up.
        code(unsafe { (self.api.cuFileBatchIOCancel.unwrap())(self.handle) })
    }

    fn destroy(&self) {
        // SAFETY: a handle to be looked up.
        unsafe { (self.api.cuFileBatchIODestroy.unwrap())(self.handle) };
    }
}

/// The entry of cookie `number`, which reads `len` bytes at `number` * 64 KiB to the same place.
fn entry(file: CUfileHandle_t, memory: &Memory, number: usize, len: usize) -> CUfileIOParams {
    let offset = (number * 64 * KIB) as i64;
    CUfileIOParams {
        mode: CUFILE_BATCH,
        u: CUfileIOParams_u {
            batch: CUfileIOParams_batch {
                devPtr_base: memory.address as *mut c_void,
                file_offset: offset,
                devPtr_offset: offset,
                size: len,
            },
        },
        fh: file,
        opcode: CUFILE_READ,
        cookie: ptr::without_provenance_mut(number),
    }
}

const SECOND: Duration = Duration::from_secs(1);
const DONE: u32 = CUFILE_COMPLETE.0;

#[test]
fn events_come_out_of_order_each_once() {
    let test = "events_come_out_of_order_each_once";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(Batch::new(&api, 8).err(), Some(5022), "the driver is not open");
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        assert_eq!(Batch::new(&api, 0).err().or(Batch::new(&api, 129).err()), Some(5022));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let batch = Batch::new(&api, 8).unwrap();
        let entries: Vec<_> = (0..8).map(|number| entry(handle, &memory, number, 64 * KIB)).collect();
        assert_eq!((batch.submit(&[]), batch.submit(&[&entries[..], &entries[..1]].concat())), (5040, 5040));
        assert_eq!((batch.submit(&entries), batch.submit(&entries[..1])), (0, 5037));
        assert_eq!(batch.fetch(9, 8, SECOND), Err(5022));
        let mut events = batch.fetch(3, 3, SECOND).unwrap();
        assert_eq!(events.len(), 3);
        events.extend(batch.fetch(8, 8, SECOND).unwrap());
        assert!(!events.is_sorted_by_key(|(cookie, _)| *cookie), "{events:?}");
        let events: BTreeMap<_, _> = events.into_iter().collect();
        assert_eq!(events, (0..8).map(|number| (number, (DONE, 64 * KIB as isize))).collect());
        assert_eq!(memory.bytes(0, 512 * KIB), expected(0, 512 * KIB));
        // Nothing is outstanding: nothing to wait for.
        assert_eq!(batch.fetch(1, 8, 100 * SECOND), Ok(vec![]));
        let basic = api.statistics().unwrap().detailed.basic;
        assert_eq!((basic.batch_nvfs_submit_ops.ok, basic.batch_posix_enqueued_ops.ok), (8, 0));
        assert_eq!((basic.batch_read_bytes, basic.read_ops.ok), (512 * KIB as u64, 0));
        batch.destroy();
        assert_eq!((batch.submit(&entries), batch.cancel()), (5047, 5047));
        assert_eq!(batch.fetch(0, 8, SECOND), Err(5047));
    });
}

#[test]
fn compat_mode_counts_its_batches_as_posix() {
    let test = "compat_mode_counts_its_batches_as_posix";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let batch = Batch::new(&api, 8).unwrap();
        assert_eq!(batch.submit(&[entry(handle, &memory, 1, 64 * KIB)]), 0);
        assert_eq!(batch.fetch(1, 8, SECOND).unwrap(), [(1, (DONE, 64 * KIB as isize))]);
        let statistics = api.statistics().unwrap();
        let basic = statistics.detailed.basic;
        assert_eq!((basic.batch_nvfs_submit_ops.ok, basic.batch_posix_enqueued_ops.ok), (0, 1));
        assert_eq!(statistics.per_gpu_stats[0].n_total_reads, 0);
    });
}

#[test]
fn a_wrong_entry_fails_alone_unless_its_file_is_none() {
    let test = "a_wrong_entry_fails_alone_unless_its_file_is_none";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(api.open(), 0);
        let memory = gpu.allocate(MIB);
        assert_eq!(api.register_buffer(memory.address, MIB), 0);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        let batch = Batch::new(&api, 8).unwrap();
        let stranger = entry(0x1234 as CUfileHandle_t, &memory, 0, 1);
        assert_eq!(batch.submit(&[entry(handle, &memory, 1, 1), stranger]), 5027);
        // Beyond the buffer, at the file's end, and a good one.
        let beyond = entry(handle, &memory, 3, MIB);
        let mut tail = entry(handle, &memory, 4, 4096);
        tail.u.batch.file_offset = MIB as i64 - 10;
        assert_eq!(batch.submit(&[beyond, tail, entry(handle, &memory, 5, 4096)]), 0);
        let events: BTreeMap<_, _> = batch.fetch(3, 8, SECOND).unwrap().into_iter().collect();
        assert_eq!(
            events,
            BTreeMap::from([(3, (CUFILE_FAILED.0, -5017)), (4, (DONE, 10)), (5, (DONE, 4096))])
        );
    });
}

#[test]
fn cancelled_entries_leave_no_events_and_touch_no_memory() {
    let test = "cancelled_entries_leave_no_events_and_touch_no_memory";
    on_simulator(test, &[], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!(api.open(), 0);
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, 0);
        let handle = api.register(&file).unwrap();
        let batch = Batch::new(&api, 8).unwrap();
        let entries: Vec<_> = (1..5).map(|number| entry(handle, &memory, number, 64 * KIB)).collect();
        pause_transfers();
        assert_eq!((batch.submit(&entries), report().alive.batch_entries_in_flight), (0, 4));
        let began = Instant::now();
        assert_eq!(batch.fetch(1, 8, Duration::from_millis(50)), Ok(vec![]));
        assert!(began.elapsed() >= Duration::from_millis(50));
        let resume = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            resume_transfers();
        });
        assert_eq!((batch.cancel(), report().alive.batch_entries_in_flight), (0, 0));
        resume.join().unwrap();
        assert_eq!(batch.fetch(1, 8, SECOND), Ok(vec![]));
        assert!(report().transfers.reads <= 1);
        // It serves again.
        assert_eq!((batch.submit(&entries), batch.fetch(4, 8, SECOND).unwrap().len()), (0, 4));
    });
}

#[test]
fn scripted_events() {
    let test = "scripted_events";
    on_simulator(test, &[REAL], || {
        let (api, gpu, folder) = (load(), Gpu::new(), on_disk(test));
        assert_eq!((api.set_level(3), api.open()), (0, 0));
        let memory = gpu.allocate(MIB);
        let file = file(&folder.path().join("data"), MIB, libc::O_DIRECT);
        let handle = api.register(&file).unwrap();
        let batch = Batch::new(&api, 8).unwrap();
        set_script(
            "batch_event@1=FAILED,batch_event@2=short,batch_event@3=CANCELED:0,batch_event@4=-5,batch_event@5=lost",
        );
        let entries: Vec<_> = (1..7).map(|number| entry(handle, &memory, number, 4096)).collect();
        assert_eq!(batch.submit(&entries), 0);
        let events: BTreeMap<_, _> = batch.fetch(6, 8, SECOND).unwrap().into_iter().collect();
        let failed = (CUFILE_FAILED.0, -5);
        let canceled = (CUFILE_CANCELED.0, 0);
        assert_eq!(
            events,
            BTreeMap::from([
                (1, failed),
                (2, (DONE, 2048)),
                (3, canceled),
                (4, (DONE, -5)),
                (6, (DONE, 4096))
            ])
        );
        let posix = || api.statistics().unwrap().detailed.basic.batch_posix_enqueued_ops.ok;
        let before = posix();
        set_script("batch_event@2=posix");
        assert_eq!((batch.submit(&entries[..3]), batch.fetch(3, 8, SECOND).unwrap().len()), (0, 3));
        assert_eq!(posix() - before, 1);
        set_script("batch_submit@1=5035,batch_set_up@1=5039,batch_get_status@1=5041");
        assert_eq!((batch.submit(&entries), Batch::new(&api, 1).err()), (5035, Some(5039)));
        assert_eq!(batch.fetch(0, 1, SECOND), Err(5041));
    });
}
