//! Reads in batches, each of which ends in its own way.

use std::fs;
use std::time::{Duration, Instant};

use gds_loader::cufile::{Batch, CuFile, CuFileError, Driver, Mode, Operation, RegisteredBuffer};
use gds_loader::{Backend, GdsProof, PathKind};
use test_support::cufile_sim;
use test_support::fixture::{File, payload};
use test_support::{control, folder};

use crate::bed::{MIB, REAL, Sample, forced, gpu, loader, on_both, proof, reasons};

#[test]
fn one_failed_event_of_a_batch_is_read_elsewhere() {
    let test = "batches::one_failed_event_of_a_batch_is_read_elsewhere";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let load = |backend| loader(backend).cufile_batches(true).load(sample.path());
        for (script, words) in [
            ("batch_event@3=FAILED", "failed"),
            ("batch_event@3=INVALID", "invalid"),
            ("batch_event@3=CANCELED", "cancelled"),
            ("batch_event@3=FAILED:-5030", "-5030"),
            ("batch_event@3=-5", "input/output error"),
            ("batch_event@3=bytes:0", "ended after 0"),
            ("batch_submit@3=5022", "5022"),
        ] {
            cufile_sim::set_script(script);
            let model = load(Backend::Auto).unwrap();
            sample.check(&model);
            let report = model.report();
            let [reason] = reasons(report)[..] else { panic!("{script}: {report:?}") };
            assert!(reason.to_lowercase().contains(&words.to_lowercase()), "{script}: {reason}");
            assert!(report.paths.get(PathKind::Gds) > 0, "{script}: {report:?}");
            assert_eq!(proof(report), Some(GdsProof::Verified), "{script}: {report:?}");
            let by_events =
                script.contains("FAILED") || script.contains("INVALID") || script.contains("CANCELED");
            if by_events || script.contains("bytes:0") {
                let elsewhere = report.bytes - report.paths.get(PathKind::Gds);
                assert!(elsewhere > 0 && elsewhere <= 256 << 10, "{script}: that piece alone: {report:?}");
            }

            cufile_sim::set_script(script);
            let error = load(Backend::Only(PathKind::Gds)).unwrap_err();
            assert!(error.to_string().to_lowercase().contains(&words.to_lowercase()), "{script}: {error}");
        }
        // Short events go on where they ended.
        for script in ["batch_event@*=short:2", "batch_event@2=bytes:1,batch_event@5=bytes:4096"] {
            cufile_sim::set_script(script);
            let model = load(Backend::Only(PathKind::Gds)).unwrap();
            sample.check(&model);
        }
        cufile_sim::set_script("");
        sample.check(&load(Backend::Only(PathKind::Gds)).unwrap());
    });
}

/// Where the library leaves it open what became of reads in a batch, what they were to bring comes by another path, and soon: their
/// memory stays with the library. Afterwards the library is not used any more.
#[test]
fn reads_of_an_unknown_fate_are_not_waited_for() {
    let test = "batches::reads_of_an_unknown_fate_are_not_waited_for";
    let scripts =
        ["batch_submit=5030", "batch_submit@3=5011", "batch_event=TIMEOUT", "batch_get_status=5030"];
    for (index, script) in scripts.into_iter().enumerate() {
        let settings = [REAL, ("CUDA_SIM_BAR1", "64MiB"), ("CUFILE_SIM_SCRIPT", script)];
        let simulation = cufile_sim::simulation(test).settings(&settings);
        let outcome = simulation.run(|| {
            let folder = folder::on_disk(test);
            let name = |number| format!("{number}");
            let len = (9 << 20) + 1;
            // More files than windows, of which each may cost one.
            for number in 1..=6 {
                let path = folder.path().join(format!("model-{number:05}-of-00006.safetensors"));
                File::new().tensor(&name(number), "U8", &[len]).write(&path);
            }
            let start = Instant::now();
            let loader = loader(Backend::Auto).cufile_batches(true).read_size(4 * MIB);
            let model = loader.load(folder.path()).unwrap();
            let took = start.elapsed();
            assert!(took < Duration::from_secs(6), "{took:?}");
            for number in 1..=6 {
                let address = model.get(&name(number)).unwrap().device_address();
                let found = control::read_device_memory(address, len as usize);
                assert!(found == payload(&name(number), found.len()), "{number}");
            }
            assert_eq!(model.report().paths.total(), 6 * len);
            assert!(!model.report().fallbacks.is_empty());
        });
        let Some(outcome) = outcome else { return };
        assert!(outcome.finished, "{index}: {script}: {outcome}");
    }
}

/// The same events, without the loader: each operation says how it ended, and the others are right.
#[test]
fn every_event_of_a_batch_is_looked_at() {
    let test = "batches::every_event_of_a_batch_is_looked_at";
    on_both(
        test,
        &[("CUFILE_SIM_SCRIPT", "batch_event@2=FAILED,batch_event@4=-5,batch_event@5=bytes:100")],
        || {
            let folder = folder::on_disk(test);
            let path = folder.path().join("file");
            fs::write(&path, payload("file", 8 * 65536)).unwrap();
            let driver = Driver::open(Mode::Direct).unwrap();
            let file = CuFile::open(&driver, &path).unwrap();
            let mut batch = Batch::new(&driver, 8).unwrap();
            let operations = (0..6).map(|place| {
                let memory =
                    RegisteredBuffer::register(&driver, gpu().allocate(65536, 4096).unwrap()).unwrap();
                Operation::read(&file, place * 65536, 65536, memory, 0).unwrap()
            });
            let tickets = batch.submit(operations.collect()).unwrap();
            let mut ended = batch.wait(6, Duration::from_secs(20)).unwrap();
            assert_eq!(ended.len(), 6);
            ended.sort_by_key(|completion| tickets.iter().position(|ticket| *ticket == completion.ticket));
            for (place, completion) in ended.into_iter().enumerate() {
                let memory = completion.operation.unwrap().into_buffer().into_registered().unwrap();
                match (place, completion.outcome) {
                    (1, Err(CuFileError::BatchEvent { state: 64, .. })) => {}
                    (3, Err(error @ CuFileError::Transfer { .. })) => {
                        assert_eq!(error.errno(), Some(5), "{error}")
                    }
                    (4, Err(CuFileError::Short { done: 100, expected: 65536, .. })) => {}
                    (0 | 2 | 5, Ok(())) => {
                        let found = control::read_device_memory(memory.address(), 65536);
                        assert!(
                            found == payload("file", 8 * 65536)[place * 65536..(place + 1) * 65536],
                            "{place}"
                        );
                    }
                    (_, outcome) => panic!("{place}: {outcome:?}"),
                }
            }
        },
    );
}

/// Batches of a library that has none: another way to keep reads in flight is no other path.
#[test]
fn a_library_without_batches() {
    let test = "batches::a_library_without_batches";
    on_both(test, &[("CUFILE_SIM_WITHOUT", "cuFileBatchIOSetUp")], || {
        let sample = Sample::new(test);
        let model = forced().cufile_batches(true).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
    });
}
