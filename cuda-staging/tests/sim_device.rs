//! Devices on the simulated driver: which one, whose memory, and what is left of one that broke.
#![allow(clippy::unwrap_used, reason = "a failed preparation is a failed test")]

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use cuda_staging::{Device, DeviceKind, DeviceSelector, Error, RingOptions, SlotCopy};
use test_support::control::set_fault;
use test_support::simulator::environment;
use test_support::{Simulation, compile, not_run, on_simulator, tool};

fn unavailable(outcome: Result<Device, Error>) -> String {
    match outcome {
        Err(error @ Error::Unavailable { .. }) => error.to_string(),
        other => format!("not unavailable: {other:?}"),
    }
}

#[test]
fn devices_by_index_and_by_uuid() {
    let settings = [("CUDA_SIM_DEVICES", "2"), ("CUDA_SIM_MEMORY", "1GiB,2GiB")];
    on_simulator("devices_by_index_and_by_uuid", &settings, || {
        let devices = [Device::cuda(0).unwrap(), Device::cuda(1).unwrap()];
        let uuids = devices.each_ref().map(|device| device.info().uuid.unwrap());
        assert_ne!(uuids[0], uuids[1]);
        for (index, device) in devices.iter().enumerate() {
            let info = device.info();
            assert_eq!((info.kind, info.index), (DeviceKind::Cuda, Some(index as u32)));
            assert_eq!(info.total_memory, Some((index as u64 + 1) << 30));
            assert!(!info.name.is_empty() && info.pci_bus_id.is_some(), "{info:?}");
            let selector: DeviceSelector = format!("GPU-{}", uuids[index]).parse().unwrap();
            assert_eq!(Device::open(&selector).unwrap().info(), info);
        }
        assert_eq!(Device::open(&DeviceSelector::Auto).unwrap().info().index, Some(0));

        let error = unavailable(Device::cuda(2));
        assert!(error.contains("cuda:2") && error.contains("2 devices"), "{error}");
        let error = unavailable(Device::open(&DeviceSelector::Uuid(uuid::Uuid::nil())));
        assert!(uuids.iter().all(|uuid| error.contains(&uuid.to_string())), "{error}");

        // What belongs to one is not taken by the other.
        let mut ring = devices[0].ring(RingOptions { slots: 1, slot_size: 4096 }).unwrap();
        let filled = ring.take().unwrap().fill(|_| Ok::<_, Error>(10)).unwrap();
        let to = devices[1].allocate(10, 1).unwrap();
        let outcome = ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]);
        assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{outcome:?}");
        let mut other = devices[1].ring(RingOptions { slots: 1, slot_size: 4096 }).unwrap();
        let filled = ring.take().unwrap().fill(|_| Ok::<_, Error>(10)).unwrap();
        assert!(matches!(other.launch(filled, Vec::new()), Err(Error::InvalidArgument(_))));
        let region = devices[1].allocate(10, 1).unwrap().freeze();
        assert!(devices[0].copy_to_host(&region, &mut [0; 10]).is_err());
    });
}

#[test]
fn memory_that_runs_out_leaves_the_device_usable() {
    let settings = [("CUDA_SIM_MEMORY", "64MiB")];
    on_simulator("memory_that_runs_out_leaves_the_device_usable", &settings, || {
        let device = Device::cuda(0).unwrap();
        let held = device.allocate(16 << 20, 256).unwrap();
        let before = device.memory().unwrap().unwrap();
        assert_eq!(before.total, 64 << 20);
        let error = device.allocate(100 << 20, 256).unwrap_err();
        let expected = Some(before.free);
        assert!(
            matches!(&error, Error::OutOfMemory { call: "cuMemAlloc_v2", requested, free, .. }
                if *requested == 100 << 20 && *free == expected),
            "{error}"
        );
        assert!(error.to_string().contains("104857600 bytes asked"), "{error}");
        device.health().unwrap();
        device.allocate(1 << 20, 256).unwrap();
        drop(held);
        assert!(device.memory().unwrap().unwrap().free >= before.free + (16 << 20));
        assert!(device.allocate(0, 256).unwrap().is_empty(), "nothing asked for needs no memory");
        assert_eq!(device.allocate(1000, 1 << 20).unwrap().address() % (1 << 20), 0);
    });
}

#[test]
fn adopted_memory_is_checked() {
    let settings = [("CUDA_SIM_DEVICES", "2")];
    on_simulator("adopted_memory_is_checked", &settings, || {
        const LEN: u64 = 1 << 20;
        let device = Device::cuda(0).unwrap();
        let theirs = device.allocate(LEN, 256).unwrap();
        let start = theirs.address();
        // SAFETY: `theirs` outlives every region made here and is not used meanwhile.
        let adopt = |address, len| unsafe { device.adopt(address, len) };
        for (address, len) in
            [(start, LEN), (start, 1), (start + 1000, LEN - 1000), (start + LEN - 1, 1), (0, 0)]
        {
            assert_eq!(adopt(address, len).unwrap().len(), len, "{len} at {address:#x}");
        }
        let on_host = [0_u8; 64];
        let other = Device::cuda(1).unwrap().allocate(LEN, 256).unwrap();
        let refused = [
            (start, LEN + 1),
            (start + LEN - 1, 2),
            (start, u64::MAX),
            (0, 1),
            (12345, 1),
            (on_host.as_ptr().addr() as u64, 64),
            (other.address(), LEN),
        ];
        for (address, len) in refused {
            let outcome = adopt(address, len);
            assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{len} at {address:#x}: {outcome:?}");
        }
        device.health().unwrap();

        // Two parts of it, written through the ring; it is still theirs afterwards.
        let mut ring = device.ring(RingOptions { slots: 1, slot_size: 4096 }).unwrap();
        let filled = ring
            .take()
            .unwrap()
            .fill(|bytes| Ok::<_, Error>(bytes.iter_mut().map(|b| *b = 5).count()))
            .unwrap();
        let to = adopt(start + 10, 4000).unwrap();
        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        ring.drain().unwrap();
        let mut bytes = [0; 4000];
        device.copy_to_host(&theirs.freeze().slice(10..4010).unwrap(), &mut bytes).unwrap();
        assert_eq!(bytes, [5; 4000]);
    });
}

#[test]
fn no_device_is_unavailable_and_auto_takes_the_cpu() {
    let settings = [("CUDA_SIM_DEVICES", "0")];
    on_simulator("no_device_is_unavailable_and_auto_takes_the_cpu", &settings, || {
        let error = unavailable(Device::cuda(0));
        assert!(error.contains("no GPU"), "{error}");
        assert!(!Device::open(&DeviceSelector::Auto).unwrap().is_cuda());
    });
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    let settings = [("CUDA_SIM_FAULT", "cuInit@1=803")];
    on_simulator("a_driver_that_does_not_start_says_why", &settings, || {
        let error = unavailable(Device::cuda(0));
        assert!(error.contains("cuInit failed with 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)"), "{error}");
        assert_eq!(unavailable(Device::cuda(0)), error, "the answer is kept");
    });
}

#[test]
fn a_code_that_nobody_knows_survives() {
    on_simulator("a_code_that_nobody_knows_survives", &[("CUDA_SIM_FAULT", "cuMemAlloc@1=4242")], || {
        let device = Device::cuda(0).unwrap();
        let error = device.allocate(1000, 256).unwrap_err();
        assert!(
            matches!(&error, Error::Driver { call: "cuMemAlloc_v2", code: 4242, name, .. } if name == "unknown code"),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains("cuMemAlloc_v2 failed with 4242") && text.contains("1000 bytes"), "{text}");
        assert!(matches!(device.health(), Err(Error::Poisoned { .. })), "what it means is not known");
    });
}

/// A wait that fails with `code`, and what is then left of the device.
fn fail_a_wait_with(code: i32) {
    let device = Device::cuda(0).unwrap();
    let mut ring = device.ring(RingOptions { slots: 2, slot_size: 4096 }).unwrap();
    let region = device.allocate(4096, 256).unwrap();
    let filled = ring.take().unwrap().fill(|_| Ok::<_, Error>(4096)).unwrap();
    ring.launch(filled, vec![SlotCopy { slot_offset: 0, to: region }]).unwrap();
    set_fault(&format!("cuEventQuery@1={code}"));
    let error = ring.drain().unwrap_err();
    assert!(
        matches!(&error, Error::Driver { call: "cuEventQuery", code: found, .. } if *found == code),
        "{error}"
    );
    let first = error.to_string();
    let poisoned = |error: Error| matches!(error, Error::Poisoned { first: text, .. } if text == first);
    assert!(poisoned(device.health().unwrap_err()));
    assert!(poisoned(device.allocate(1, 1).unwrap_err()));
    assert!(poisoned(device.memory().unwrap_err()));
    assert!(poisoned(device.ring(RingOptions { slots: 1, slot_size: 1 }).unwrap_err()));
    assert!(poisoned(device.stream().unwrap_err()));
    assert!(poisoned(ring.take().unwrap_err()));
    assert!(poisoned(ring.drain().unwrap_err()));
}

#[test]
fn the_first_failure_poisons_and_is_remembered() {
    // The driver goes on after this code, and dropping the ring learns from it that the copy is over.
    on_simulator("the_first_failure_poisons_and_is_remembered", &[], || fail_a_wait_with(4242));
}

#[test]
fn what_a_broken_context_may_still_use_is_kept() {
    // After this code, whether the copy is over cannot be learnt any more.
    let outcome =
        Simulation::new("what_a_broken_context_may_still_use_is_kept").run(|| fail_a_wait_with(700));
    let Some(outcome) = outcome else { return };
    assert!(outcome.finished, "{outcome}");
    let kept = outcome.report().ours_alive();
    for kind in ["allocations", "events", "pins", "retains"] {
        assert!(kept.contains_key(kind), "{kind} may still be in use: {kept:?}");
    }
}

#[test]
fn a_refusal_does_not_poison() {
    on_simulator("a_refusal_does_not_poison", &[], || {
        let device = Device::cuda(0).unwrap();
        for (fault, code) in
            [("cuStreamCreate@1=2", 2), ("cuEventCreate@1=1", 1), ("cuStreamCreate@1=801", 801)]
        {
            set_fault(fault);
            let error = device.stream().unwrap_err();
            assert!(matches!(&error, Error::Driver { code: found, .. } if *found == code), "{error}");
            device.health().unwrap();
            device.stream().unwrap();
        }
    });
}

#[test]
fn a_forked_child_is_refused_and_releases_nothing() {
    on_simulator("a_forked_child_is_refused_and_releases_nothing", &[], || {
        let device = Device::cuda(0).unwrap();
        let mut ring = device.ring(RingOptions { slots: 2, slot_size: 4096 }).unwrap();
        let mut filled = ring.take().unwrap().fill(|bytes| Ok::<_, Error>(bytes.len())).unwrap();
        filled.bytes_mut().fill(9);
        let to = device.allocate(4096, 256).unwrap();
        let region = device.allocate(10, 256).unwrap();
        // SAFETY: the child only calls what is under test and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = |refused: bool| if refused { 0 } else { 1 };
            let failures = forked(matches!(device.health(), Err(Error::Forked)))
                + forked(matches!(device.allocate(1, 1), Err(Error::Forked)))
                + forked(matches!(device.stream(), Err(Error::Forked)))
                + forked(matches!(ring.take(), Err(Error::Forked)))
                + forked(matches!(ring.drain(), Err(Error::Forked)))
                + forked(matches!(Device::cuda(0), Err(Error::Forked)))
                + forked(filled.bytes().iter().all(|&byte| byte == 0))
                + forked(matches!(
                    ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]),
                    Err(Error::Forked)
                ));
            drop((ring, region, device));
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(failures) };
        }
        let mut status = -1;
        // SAFETY: `status` is writable for the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child counted failures, or crashed");
        ring.launch(filled, vec![SlotCopy { slot_offset: 0, to }]).unwrap();
        ring.drain().unwrap();
        device.health().unwrap();
    });
}

/// How a forked child that does `body` and nothing else ends.
fn in_a_fork(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only calls what is under test and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a call without pointers: what hangs is killed.
        unsafe { libc::alarm(10) };
        let status = i32::from(!body());
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = -1;
    // SAFETY: `status` is writable for the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_child_forked_while_the_driver_starts_is_refused() {
    let settings = [("CUDA_SIM_INIT_US", "1000000")];
    on_simulator("a_child_forked_while_the_driver_starts_is_refused", &settings, || {
        let starting = thread::spawn(|| Device::cuda(0).map(drop));
        thread::sleep(Duration::from_millis(300));
        let status = in_a_fork(|| matches!(Device::cuda(0), Err(Error::Forked)));
        assert_eq!(status, 0, "the child was not refused, or hung");
        starting.join().unwrap().unwrap();
    });
}

#[test]
fn a_forked_child_takes_the_cpu_where_its_parent_did() {
    let settings = [("CUDA_SIM_DEVICES", "0")];
    on_simulator("a_forked_child_takes_the_cpu_where_its_parent_did", &settings, || {
        assert!(!Device::open(&DeviceSelector::Auto).unwrap().is_cuda());
        let status = in_a_fork(|| Device::open(&DeviceSelector::Auto).is_ok_and(|device| !device.is_cuda()));
        assert_eq!(status, 0, "the child has no device");
    });
}

#[test]
fn a_stub_on_the_path_does_not_stand_for_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    // As in a toolkit's folder of stubs.
    let stub = "int cuInit(unsigned flags) { return 34; }";
    compile(stub, &folder.path().join("libcuda.so"), &["-shared".to_owned()]);
    let simulator = environment().iter().find(|(name, _)| name == "LD_LIBRARY_PATH").unwrap();
    let path = format!("{}:{}", folder.path().display(), simulator.1);
    let simulation = Simulation::new("a_stub_on_the_path_does_not_stand_for_the_driver");
    let outcome = simulation.setting("LD_LIBRARY_PATH", path).setting("LD_PRELOAD", "").run(|| {
        assert!(Device::open(&DeviceSelector::Auto).unwrap().is_cuda());
    });
    let Some(outcome) = outcome else { return };
    outcome.assert_well();
}

#[test]
fn a_stub_says_that_it_is_one() {
    on_simulator("a_stub_says_that_it_is_one", &[("CUDA_SIM_FAULT", "cuInit@1=34")], || {
        let error = unavailable(Device::cuda(0));
        assert!(
            error.contains("34 (CUDA_ERROR_STUB_LIBRARY)") && error.contains("LD_LIBRARY_PATH"),
            "{error}"
        );
    });
}

#[test]
fn a_driver_without_a_function_is_unavailable() {
    const NAME: &str = "a_driver_without_a_function_is_unavailable";
    let Some(compiler) = tool(NAME, "cc") else { return };
    // A library that is no driver at all, in the simulator's place.
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("empty.c");
    fs::write(&source, "int nothing;\n").unwrap();
    let library = folder.path().join("libcuda.so");
    let compiled = Command::new(compiler).args(["-shared", "-o"]).args([&library, &source]).status().unwrap();
    assert!(compiled.success());
    fs::copy(&library, folder.path().join("libcuda.so.1")).unwrap();
    let simulation =
        Simulation::new(NAME).setting("LD_LIBRARY_PATH", folder.path()).setting("LD_PRELOAD", "");
    let outcome = simulation.run(|| {
        let error = unavailable(Device::cuda(0));
        assert!(error.contains("cuInit") && error.contains("newer NVIDIA driver"), "{error}");
        assert!(!Device::open(&DeviceSelector::Auto).unwrap().is_cuda());
    });
    let Some(outcome) = outcome else { return };
    outcome.assert_well();
}

#[test]
fn no_driver_is_unavailable() {
    // SAFETY: only to see whether there is one; its initialisers have no conditions.
    if unsafe { cuda_staging::cudarc::driver::sys::is_culib_present() } {
        return not_run("no_driver_is_unavailable", "this machine has a CUDA driver");
    }
    let error = unavailable(Device::cuda(0));
    assert!(error.contains("no CUDA driver library") && error.contains("libcuda.so.1"), "{error}");
    assert!(!Device::open(&DeviceSelector::Auto).unwrap().is_cuda());
}
