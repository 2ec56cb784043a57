//! NVIDIA's 1.20 as the oracle: the same calls on both libraries, on the simulated driver, and the same results.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod support;

use std::ffi::c_void;
use std::fmt::Debug;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::ptr;

use cufile_sys::*;
use support::{Calls as _, Gpu, MIB, code, expected, file, load};
use test_support::cufile_sim::library;
use test_support::folder::in_memory;
use test_support::{Segment, Simulation};

/// What one library answered.
#[derive(Default)]
struct Transcript;

impl Transcript {
    /// Writes an answer where the parent finds it.
    fn line(&self, what: &str, answer: impl Debug) {
        // On a line of its own, whatever the harness has written before.
        println!("\n| {what}: {answer:?}");
    }
}

/// Runs `calls` on either library and compares what they wrote.
fn compare(test: &str, calls: impl Fn(&Transcript)) {
    let Some(nvidia) = test_support::cufile(test, "1.20") else { return };
    let mut transcripts = Vec::new();
    for library in [library().to_owned(), nvidia.join("lib/libcufile.so.0")] {
        let run = Simulation::new(test)
            .setting("GDS_CUFILE_LIBRARY", library)
            .setting("CUFILE_LOGFILE_PATH", "/dev/null")
            .run(|| calls(&Transcript));
        let Some(outcome) = run else { return };
        assert!(outcome.finished, "{outcome}");
        let lines = outcome.child.stdout.lines().filter(|line| line.starts_with("| "));
        transcripts.push(lines.map(str::to_owned).collect::<Vec<_>>());
    }
    let [ours, theirs] = transcripts.as_slice() else { panic!("two libraries") };
    assert!(ours.len() > 3, "{ours:?}");
    similar(ours, theirs);
}

/// Fails with the lines that differ.
#[track_caller]
fn similar(ours: &[String], theirs: &[String]) {
    let differ = |(ours, theirs): (&String, &String)| {
        (ours != theirs).then(|| format!("sim    {ours}\nNVIDIA {theirs}"))
    };
    let differences: Vec<_> = ours.iter().zip(theirs).filter_map(differ).collect();
    assert!(differences.is_empty() && ours.len() == theirs.len(), "{}", differences.join("\n"));
}

#[test]
fn parameters_and_properties() {
    compare("parameters_and_properties", |to| {
        let (api, _gpu) = (load(), Gpu::new());
        let sizes = |to: &Transcript| {
            for index in 0..=12 {
                let (mut value, mut min, mut max) = (7, 7, 7);
                let index = CUFileSizeTConfigParameter_t(index);
                // SAFETY: every place is valid for the call.
                let codes = unsafe {
                    let get = (api.cuFileGetParameterSizeT.unwrap())(index, &mut value);
                    let bounds = (api.cuFileGetParameterMinMaxValue.unwrap())(index, &mut min, &mut max);
                    (code(get), code(bounds))
                };
                to.line("size", (index, codes, value, min, max));
            }
        };
        let flags = |to: &Transcript| {
            for index in 0..=14 {
                let mut value = false;
                let index = CUFileBoolConfigParameter_t(index);
                // SAFETY: the place is valid for the call.
                let got = code(unsafe { (api.cuFileGetParameterBool.unwrap())(index, &mut value) });
                to.line("flag", (index, got, value));
            }
        };
        to.line("version", support::version(&api));
        to.line("use count", api.use_count());
        to.line("close", api.close());
        to.line("properties", api.properties());
        sizes(to);
        flags(to);
        let size = CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB;
        to.line("set", (api.set_size(size, 1024), api.set_size(CUFileSizeTConfigParameter_t(99), 1)));
        to.line("set", (api.set_size(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 100_000), api.size(size)));
        // SAFETY: values only.
        let setters = || unsafe {
            [
                code((api.cuFileDriverSetPollMode)(true, 8)),
                code((api.cuFileDriverSetMaxDirectIOSize)(1000)),
                code((api.cuFileDriverSetMaxDirectIOSize)(4096)),
            ]
        };
        to.line("setters", setters());
        to.line("open", (api.open(), api.open(), api.use_count()));
        to.line("properties", api.properties());
        sizes(to);
        flags(to);
        to.line("setters", setters());
        to.line("set", (api.set_size(size, 2048), api.size(size)));
        to.line("set", (api.set_flag(CUFILE_PARAM_PREFER_IO_URING, true), api.use_count()));
        to.line("close", (api.close(), api.close(), api.close(), api.use_count()));
        to.line("set", (api.set_size(size, 2048), api.size(size)));
    });
}

#[test]
fn registrations_and_transfers() {
    let test = "registrations_and_transfers";
    let Some(_) = in_memory(test) else { return };
    compare(test, |to| {
        let (api, gpu, folder) = (load(), Gpu::new(), in_memory(test).unwrap());
        let path = folder.path().join("data");
        let len = 4 * MIB as i64;
        let data = file(&path, 4 * MIB, 0);
        let memory = gpu.allocate(MIB);
        let base = memory.address;
        to.line("registering opens", (api.register_buffer(base, MIB), api.use_count()));
        to.line("level", api.set_level(3));
        to.line("open", (api.open(), api.use_count()));
        let handle = api.register(&data).unwrap();
        to.line("twice", (api.register(&data).err(), api.register_buffer(base, MIB)));
        let fd = data.as_raw_fd();
        to.line("types", [0, 2, 3].map(|kind| api.register_as(kind, fd).err()));
        to.line("no file", api.register_as(1, 9999).err());
        to.line("folder", api.register(&std::fs::File::open(folder.path()).unwrap()).err());
        to.line("append", api.register(&OpenOptions::new().append(true).open(&path).unwrap()).err());
        let read_only = std::fs::File::open(&path).unwrap();
        let read_only = (api.register(&read_only).unwrap(), read_only);
        to.line("write, read only", api.write(read_only.0, base, 4096, 0, 0));
        let write_only = OpenOptions::new().write(true).open(&path).unwrap();
        let write_only = (api.register(&write_only).unwrap(), write_only);
        to.line("read, write only", api.read(write_only.0, base, 4096, 0, 0));

        to.line("registered", (api.read(handle, base, 4096, 0, 0), api.read(handle, base, 100, 5, 7)));
        to.line("the bytes", memory.bytes(7, 100) == expected(5, 100));
        to.line(
            "beyond it",
            (api.read(handle, base, 4096, 0, MIB as i64 - 100), api.read(handle, base, 2 * MIB, 0, 0)),
        );
        to.line(
            "within it",
            (api.read(handle, base + 4096, 4096, 0, 0), api.read(handle, base + 4096, MIB, 0, 0)),
        );
        to.line("part of it", (api.register_buffer(base + 4096, 4096), api.deregister_buffer(base + 4096)));
        to.line("deregister", [base + 8192, base, base, 0].map(|base| api.deregister_buffer(base)));
        to.line(
            "beyond the allocation",
            (api.read(handle, base, 2 * MIB, 0, 0), api.register_buffer(base, 1 << 30)),
        );
        to.line("negative", (api.read(handle, base, 4096, -1, 0), api.read(handle, base, 4096, 0, -4096)));
        to.line("nothing", (api.read(handle, base, 0, 0, 0), api.read(handle, 0, 4096, 0, 0)));
        to.line("nothing", (api.register_buffer(base, 0), api.register_buffer(0, 10)));
        to.line("end", [len - 100, len, 9 * len].map(|offset| api.read(handle, base, 4096, offset, 0)));
        to.line(
            "no handle",
            [0, 12345].map(|number| api.read(ptr::without_provenance_mut(number), base, 10, 0, 0)),
        );
        let mut host = vec![0_u8; MIB];
        let address = host.as_mut_ptr().addr() as u64;
        to.line("host", (api.read(handle, address, 4096, 0, 0), host[..4096] == expected(0, 4096)));
        to.line(
            "host",
            (api.register_buffer(address, MIB), api.read(handle, address, 4096, 0, MIB as i64 - 100)),
        );
        to.line("host", (api.deregister_buffer(address), api.deregister_buffer(address)));
        to.line("write", (api.write(handle, base, 4096, len, 0), api.write(handle, base, 100, len + 1, 3)));
        to.line("length", data.metadata().unwrap().len());
        to.line("vector", api.readv(handle, &[(base, 4096), (base + 8192, 4096)], 0));
        to.line(
            "vector",
            (api.readv(handle, &[(base, 10), (address, 10)], 0), api.readv(handle, &[(base, 1); 2000], 0)),
        );
        let statistics = api.statistics().unwrap();
        let basic = statistics.detailed.basic;
        to.line(
            "counted",
            (basic.read_ops, basic.write_ops, basic.readv_ops, basic.readv_bytes, basic.write_bytes),
        );
        to.line("counted", (basic.buf_register_ops, basic.buf_deregister_ops, basic.hdl_register_ops));
        let gpu = statistics.per_gpu_stats[0];
        to.line(
            "per GPU",
            (statistics.num_gpus, gpu.uuid, gpu.n_posix_reads > 0, gpu.n_nvfs_reads, gpu.reg_bytes),
        );
        to.line("close", (api.close(), api.close(), api.close()));
        to.line("closed", (api.deregister_buffer(base), api.use_count()));
        to.line("closed", (api.read(handle, base, 4096, 0, 0), api.use_count(), api.deregister_buffer(base)));
    });
}

#[test]
fn compat_mode_not_allowed() {
    let test = "compat_mode_not_allowed";
    let Some(_) = in_memory(test) else { return };
    compare(test, |to| {
        let (api, gpu, folder) = (load(), Gpu::new(), in_memory(test).unwrap());
        let data = file(&folder.path().join("data"), MIB, 0);
        let memory = gpu.allocate(MIB);
        let allow = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE;
        to.line("open", (api.set_flag(allow, false), api.open(), api.use_count()));
        to.line("register", (api.register_buffer(memory.address, MIB), api.use_count()));
        let handle = api.register(&data).unwrap();
        to.line("read", api.read(handle, memory.address, 4096, 0, 0));
        to.line("set", api.set_flag(allow, true));
        to.line("open", (api.open(), api.use_count(), api.flag(allow)));
    });
}

#[test]
fn compat_mode_not_allowed_to_a_registration() {
    let test = "compat_mode_not_allowed_to_a_registration";
    compare(test, |to| {
        let (api, gpu) = (load(), Gpu::new());
        let memory = gpu.allocate(MIB);
        let allow = CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE;
        to.line(
            "first",
            (api.set_flag(allow, false), api.register_buffer(memory.address, MIB), api.use_count()),
        );
        to.line("second", (api.flag(allow), api.register_buffer(memory.address, MIB), api.use_count()));
        to.line("allowed", api.flag(allow));
        to.line("set", (api.set_flag(allow, false), api.close()));
    });
}

#[test]
fn statistics_levels() {
    let test = "statistics_levels";
    let Some(_) = in_memory(test) else { return };
    compare(test, |to| {
        let (api, gpu, folder) = (load(), Gpu::new(), in_memory(test).unwrap());
        let data = file(&folder.path().join("data"), MIB, 0);
        let memory = gpu.allocate(MIB);
        // SAFETY: no arguments.
        let [start, stop, reset] = [&api.cuFileStatsStart, &api.cuFileStatsStop, &api.cuFileStatsReset]
            .map(|call| move || code(unsafe { (call.unwrap())() }));
        let counts = || {
            let basic =
                |s: CUfileStatsLevel3| (s.detailed.basic.read_ops.ok, s.per_gpu_stats[0].n_posix_reads);
            api.statistics().map(basic)
        };
        to.line("before", (start(), stop(), reset(), counts()));
        to.line("open", (api.set_level(3), api.open(), counts()));
        let handle = api.register(&data).unwrap();
        let read = || api.read(handle, memory.address, 4096, 0, 0).is_ok();
        to.line("without a start", (read(), counts()));
        to.line("start", (start(), read(), counts()));
        to.line("reset", (reset(), read(), counts()));
        to.line("stop", (stop(), counts(), read(), counts(), start(), reset(), counts()));
        to.line("level 1", (api.set_level(1), counts()));
        to.line("level 3", (api.set_level(3), counts(), read(), counts()));
        to.line("start", (start(), counts().is_ok(), read(), counts().map(|counts| counts.1)));
        to.line("closed", (api.close(), counts(), api.open(), counts()));
    });
}

/// In shared memory under the process's number, which only closing removes; where that number is taken, there are none, and nobody is
/// told.
#[test]
fn where_statistics_live() {
    compare("where_statistics_live", |to| {
        let (api, _gpu) = (load(), Gpu::new());
        let process = std::process::id();
        let level = || {
            let mut level = -7;
            // SAFETY: the place is valid for the call.
            (code(unsafe { (api.cuFileGetStatsLevel.unwrap())(&mut level) }), level)
        };
        let segment = || Segment::of(process).map(|segment| segment.attached());
        let state = |what: &str| to.line(what, (level(), api.statistics().err(), segment()));
        let profile = |level| api.set_size(CUFILE_PARAM_PROFILE_STATS, level);

        state("first");
        to.line("open", (profile(3), api.open()));
        state("asked for before");
        to.line("level 0", api.set_level(0));
        state("level 0");
        to.line("level 2", api.set_level(2));
        state("level 2");
        to.line("close", api.close());
        state("closed");

        to.line("open", (profile(0), api.open()));
        state("not asked for");
        to.line("level 1", api.set_level(1));
        state("level 1");
        // SAFETY: no arguments.
        to.line("start", code(unsafe { (api.cuFileStatsStart.unwrap())() }));
        state("started");
        to.line("close", api.close());
        state("closed");

        to.line("level 2", api.set_level(2));
        state("set while closed");
        to.line("open", api.open());
        state("open");
        to.line("level 0", api.set_level(0));
        to.line("close", api.close());
        state("closed at level 0");
        if let Some(left) = Segment::of(process) {
            left.remove();
        }

        let taken = Segment::make(process);
        to.line("open", (profile(3), api.open(), api.size(CUFILE_PARAM_PROFILE_STATS)));
        state("taken");
        to.line("level 3", api.set_level(3));
        state("taken, level 3");
        taken.remove();
        to.line("level 3", api.set_level(3));
        state("free again");
        to.line("close", api.close());
        state("closed");
    });
}

#[test]
fn batches_and_streams() {
    let test = "batches_and_streams";
    let Some(_) = in_memory(test) else { return };
    compare(test, |to| {
        let (api, gpu, folder) = (load(), Gpu::new(), in_memory(test).unwrap());
        let data = file(&folder.path().join("data"), MIB, 0);
        let memory = gpu.allocate(MIB);
        let set_up = |capacity| {
            let mut batch = ptr::null_mut();
            // SAFETY: the place is valid for the call.
            (code(unsafe { (api.cuFileBatchIOSetUp.unwrap())(&mut batch, capacity) }), batch)
        };
        to.line("before opening", (set_up(4).0, api.use_count()));
        to.line("open", (api.set_level(3), api.open()));
        to.line("set up", [0, 1, 128, 129, 300].map(|capacity| set_up(capacity).0));
        let handle = api.register(&data).unwrap();
        let (_, batch) = set_up(8);
        let entry = |number: usize| CUfileIOParams {
            mode: CUFILE_BATCH,
            u: CUfileIOParams_u {
                batch: CUfileIOParams_batch {
                    devPtr_base: memory.address as *mut c_void,
                    file_offset: (number * 4096) as i64,
                    devPtr_offset: (number * 4096) as i64,
                    size: 4096,
                },
            },
            fh: handle,
            opcode: CUFILE_READ,
            cookie: ptr::without_provenance_mut(number),
        };
        // NVIDIA's reads the first entry even where there is none.
        let submit = |batch, entries: &mut [CUfileIOParams], number: u32| {
            // SAFETY: the entries are valid for the call, their memory until the end.
            let error = unsafe { (api.cuFileBatchIOSubmit.unwrap())(batch, number, entries.as_mut_ptr(), 0) };
            code(error)
        };
        let fetch = |batch, least, most| {
            let mut events = [CUfileIOEvents::default(); 16];
            let mut number = most;
            let mut limit = libc::timespec { tv_sec: 1, tv_nsec: 0 };
            // SAFETY: every pointer is valid for the call.
            let error = unsafe {
                let get = api.cuFileBatchIOGetStatus.unwrap();
                get(batch, least, &mut number, events.as_mut_ptr(), &mut limit)
            };
            let status = code(error);
            let count = if status == 0 { number as usize } else { 0 };
            let mut events: Vec<_> =
                events[..count].iter().map(|e| (e.cookie.addr(), e.status, e.count())).collect();
            events.sort_by_key(|event| event.0);
            (status, events)
        };
        let mut entries: Vec<_> = (0..9).map(entry).collect();
        to.line("too many", (submit(batch, &mut entries, 9), submit(batch, &mut entries, 0)));
        to.line("eight", submit(batch, &mut entries, 8));
        to.line("events", fetch(batch, 8, 8));
        to.line("the bytes", memory.bytes(0, 8 * 4096) == expected(0, 8 * 4096));
        to.line("none left", (fetch(batch, 1, 8), fetch(batch, 0, 8)));
        to.line("more than asked for", fetch(batch, 9, 8));
        let statistics = api.statistics().unwrap();
        let basic = statistics.detailed.basic;
        to.line(
            "counted",
            (basic.batch_posix_enqueued_ops.ok, basic.batch_nvfs_submit_ops.ok, basic.batch_read_bytes),
        );
        to.line("per GPU", statistics.per_gpu_stats[0].n_total_reads);
        // SAFETY: a batch of this library's.
        unsafe { (api.cuFileBatchIODestroy.unwrap())(batch) };

        let stream = gpu.stream();
        // SAFETY: handles that nobody follows.
        let register =
            |flags| unsafe { code((api.cuFileStreamRegister.unwrap())(stream.0 as CUstream, flags)) };
        to.line("stream", (register(0), register(15), register(16)));
        // SAFETY: as above.
        let deregister = || unsafe { code((api.cuFileStreamDeregister.unwrap())(stream.0 as CUstream)) };
        to.line("stream", (deregister(), deregister()));
        for (file, base) in [(ptr::without_provenance_mut(12345), memory.address), (handle, 0)] {
            let (mut len, mut file_offset, mut base_offset, mut count) = (4096, 0, 0, -99);
            // SAFETY: the arguments and the memory are kept until the stream is done.
            let error = unsafe {
                (api.cuFileReadAsync.unwrap())(
                    file,
                    base as *mut c_void,
                    &mut len,
                    &mut file_offset,
                    &mut base_offset,
                    &mut count,
                    stream.0 as CUstream,
                )
            };
            let status = code(error);
            stream.synchronize();
            to.line("asynchronous", (status, count));
        }
        // NVIDIA's would leave its statistics on the machine.
        to.line("close", api.close());
    });
}
