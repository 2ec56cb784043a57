//! What is dropped, forked or ended while it is in use.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuda_staging::Device;
use gds_loader::cufile::{
    Batch, BoolParameter, CuFile, CuFileError, CuFileStream, Driver, Library, Mode, Operation,
    RegisteredBuffer, StreamFlags,
};
use gds_loader::{Backend, Loader, Model, PathKind};
use test_support::cufile_sim;
use test_support::fixture::payload;
use test_support::folder;

use crate::bed::{REAL, Sample, as_another_user, forced, gpu, on_both, with};

/// What is dropped in flight is over when its memory is free for others.
#[test]
fn what_is_dropped_in_flight_is_waited_for() {
    let test = "endings::what_is_dropped_in_flight_is_waited_for";
    on_both(test, &[], || {
        let folder = folder::on_disk(test);
        let path = folder.path().join("file");
        fs::write(&path, payload("file", 65536)).unwrap();
        let driver = Driver::open(Mode::Direct).unwrap();
        let file = CuFile::open(&driver, &path).unwrap();
        let memory = || RegisteredBuffer::register(&driver, gpu().allocate(65536, 4096).unwrap()).unwrap();
        let stream = CuFileStream::register(&driver, gpu().stream().unwrap(), StreamFlags::FIXED).unwrap();
        let on_stream = || drop(stream.read(&file, 0, 65536, memory(), 0).unwrap());
        let in_batch = || {
            let mut batch = Batch::new(&driver, 1).unwrap();
            batch.submit(vec![Operation::read(&file, 0, 65536, memory(), 0).unwrap()]).unwrap();
            drop(batch);
        };
        let ways: [&dyn Fn(); 2] = [&on_stream, &in_batch];
        for (place, begin_and_drop) in ways.into_iter().enumerate() {
            let read_bytes = || cufile_sim::report().transfers.read_bytes;
            let before = read_bytes();
            cufile_sim::pause_transfers();
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(150));
                    cufile_sim::resume_transfers();
                });
                begin_and_drop();
                assert_eq!(read_bytes() - before, 65536, "way {place}: it was not over");
            });
            assert!(driver.health().is_ok());
            assert_eq!(cufile_sim::report().alive.buffers, 0, "way {place}");
        }
    });
}

/// In the child of a fork nothing of the parent's can be used, and the parent is none the worse.
#[test]
fn a_fork_in_the_middle() {
    let test = "endings::a_fork_in_the_middle";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let path = sample.path().to_owned();
        let of_parent = forced();
        let fork = move || {
            // SAFETY: the child only loads, and leaves by `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a child that hangs is ended.
                unsafe { libc::alarm(30) };
                let loads = |loader: Loader| loader.load(&path).is_ok();
                let of_child = |backend| loader_of_the_child(backend).is_some_and(loads);
                let right = [
                    !of_child(Backend::Auto),
                    !of_child(Backend::Only(PathKind::Gds)),
                    !loads(of_parent.clone()),
                    loads(Loader::new().device(Device::cpu())),
                    matches!(
                        Library::load().and_then(|library| library.switch(BoolParameter::ForceCompatMode)),
                        Err(CuFileError::Forked)
                    ),
                ];
                let wrong = right.iter().position(|right| !right).map_or(0, |place| place + 1);
                // SAFETY: ends this process at once, without the destructors of the parent's libraries.
                unsafe { libc::_exit(wrong as i32) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable; the child is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was ended: {status}");
            assert_eq!(libc::WEXITSTATUS(status), 0, "what is wrong with the child, from 1 on");
        };
        let model = with(&forced(), fork).load(sample.path()).unwrap();
        sample.check(&model);
        sample.check(&forced().load(sample.path()).unwrap());
    });
}

/// A loader in a forked child; `None` where its device says so itself.
fn loader_of_the_child(backend: Backend) -> Option<Loader> {
    Some(Loader::new().device(Device::cuda(0).ok()?).backend(backend))
}

#[test]
fn the_process_ends_while_reads_are_in_flight() {
    let test = "endings::the_process_ends_while_reads_are_in_flight";
    for batches in ["0", "1"] {
        let simulation = cufile_sim::simulation(test).settings(&[REAL, ("BATCHES", batches)]);
        let simulation = simulation.limit(Duration::from_secs(60));
        let outcome = simulation.run(|| {
            let sample = Sample::new(test);
            let batches = std::env::var("BATCHES").unwrap() == "1";
            cufile_sim::pause_transfers();
            let path = sample.path().to_owned();
            thread::spawn(move || forced().threads(4).cufile_batches(batches).load(path));
            let begun = || {
                let calls = cufile_sim::report().calls;
                calls.get("cuFileRead").or(calls.get("cuFileBatchIOSubmit")).is_some_and(|count| *count > 0)
            };
            while !begun() {
                thread::sleep(Duration::from_millis(1));
            }
            // Written over while they are in flight, and left.
            drop(sample);
            std::process::exit(7);
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(7), "{outcome}");
        assert!(outcome.child.elapsed < Duration::from_secs(30), "{outcome}");
    }
}

/// What runs in the library on other threads is waited for, and nothing more begins: its destructor takes down what calls use.
#[test]
fn the_process_ends_while_others_call() {
    let test = "endings::the_process_ends_while_others_call";
    // So that at any time there are threads in the middle of a call.
    for call in ["handle_register", "buf_register", "buf_deregister", "read", "batch_submit", "read_async"] {
        let script = format!("{call}=hang:40ms");
        let simulation =
            cufile_sim::simulation(test).settings(&[REAL, ("CUFILE_SIM_SCRIPT", script.as_str())]);
        let outcome = simulation.limit(Duration::from_secs(60)).run(|| {
            let folder = folder::on_disk(test);
            let path = folder.path().join("file");
            fs::write(&path, payload("file", 65536)).unwrap();
            let file = fs::File::open(&path).unwrap();
            drop(folder);
            let driver = Driver::open(Mode::Direct).unwrap();
            let (of_one, file_of_one) = (driver.clone(), file.try_clone().unwrap());
            // The driver of CUDA may be gone before the library is. This one does not use it, and so goes on calling.
            thread::spawn(move || {
                loop {
                    drop(CuFile::register(&of_one, file_of_one.try_clone().unwrap(), "file"));
                }
            });
            let others = [(); 4].map(|()| {
                let (driver, file) = (driver.clone(), file.try_clone().unwrap());
                thread::spawn(move || {
                    let memory =
                        || RegisteredBuffer::register(&driver, gpu().allocate(65536, 4096).unwrap()).unwrap();
                    let stream = gpu().stream().unwrap();
                    let stream = CuFileStream::register(&driver, stream, StreamFlags::FIXED).unwrap();
                    loop {
                        let file = CuFile::register(&driver, file.try_clone().unwrap(), "file").unwrap();
                        file.read_exact_at(&mut memory(), 0..65536, 0).unwrap();
                        let mut batch = Batch::new(&driver, 1).unwrap();
                        batch.submit(vec![Operation::read(&file, 0, 65536, memory(), 0).unwrap()]).unwrap();
                        batch.wait(1, Duration::from_secs(10)).unwrap();
                        let read = stream.read(&file, 0, 65536, memory(), 0).unwrap();
                        drop(read.finish(Duration::from_secs(10)).unwrap());
                    }
                })
            });
            thread::sleep(Duration::from_millis(200));
            assert!(others.iter().all(|other| !other.is_finished()));
            std::process::exit(7);
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(7), "{call}: {outcome}");
    }
}

/// Whatever still lives when the process ends, and however it ends: it ends as it was told to, and nothing is called that is gone.
#[test]
fn the_process_ends_with_everything_alive() {
    use std::sync::OnceLock;
    let test = "endings::the_process_ends_with_everything_alive";
    static KEPT: OnceLock<(Driver, Loader, Model)> = OnceLock::new();
    thread_local! {
        static OF_THIS_THREAD: std::cell::RefCell<Option<(Driver, Model)>> = const { std::cell::RefCell::new(None) };
    }
    for (way, code) in [("return", 0), ("exit", 7), ("panic", 101), ("at_exit", 9)] {
        let simulation = cufile_sim::simulation(test).settings(&[REAL, ("WAY", way)]);
        let outcome = simulation.limit(Duration::from_secs(60)).run(|| {
            let sample = Sample::new(test);
            let load = || forced().load(sample.path()).unwrap();
            let driver = || Driver::open(Mode::Direct).unwrap();
            let (model, other) = (load(), load());
            sample.check(&model);
            OF_THIS_THREAD.with(|place| *place.borrow_mut() = Some((driver(), other)));
            assert!(KEPT.set((driver(), forced(), model)).is_ok());
            match std::env::var("WAY").unwrap().as_str() {
                "exit" => std::process::exit(7),
                "panic" => panic!("on purpose"),
                "at_exit" => {
                    extern "C" fn last() {
                        // What a destructor of the caller's may do: use it, and let go of it.
                        let (driver, loader, model) = KEPT.get().unwrap();
                        let _ = (driver.health(), model.tensors().map(|tensor| tensor.len()).sum::<u64>());
                        let _ = loader.load("/nonexistent");
                        OF_THIS_THREAD.try_with(|place| place.borrow_mut().take()).ok();
                    }
                    // SAFETY: a function that takes nothing and returns nothing.
                    assert_eq!(unsafe { libc::atexit(last) }, 0);
                    std::process::exit(9)
                }
                _ => {}
            }
        });
        let Some(outcome) = outcome else { return };
        assert_eq!(outcome.child.code(), Some(code), "{way}: {outcome}");
        assert!(outcome.child.elapsed < Duration::from_secs(30), "{way}: {outcome}");
    }
}

/// A drop of the model, and of what it was loaded with, in any order; a tensor that outlives the driver's last user.
#[test]
fn a_tensor_outlives_everything() {
    let test = "endings::a_tensor_outlives_everything";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let model = Arc::new(forced().load(sample.path()).unwrap());
        let tensor = model.get("c").unwrap();
        drop(model);
        as_another_user("cuFileDriverClose_v2");
        assert!(tensor.to_vec().unwrap() == payload("c", tensor.len() as usize));
    });
}
