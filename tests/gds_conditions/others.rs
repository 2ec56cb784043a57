//! Others in the process that use the same driver.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gds_loader::cufile::{CuFileError, Driver, Mode};
use gds_loader::{Backend, Error, ErrorKind, GdsProof, PathKind};
use test_support::{Segment, cufile_sim};

use crate::bed::{LATE_COPIES, REAL, Sample, as_another_user, forced, loader, on_both, proof, reasons, with};

/// A server that is out of descriptors for a moment has cuFile again when it is not.
#[test]
fn a_passing_shortage_of_descriptors_takes_nothing_away_for_good() {
    const MOST: u64 = 200;
    let test = "others::a_passing_shortage_of_descriptors_takes_nothing_away_for_good";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        let before = forced().load(sample.path()).unwrap();
        sample.check(&before);
        let limit = libc::rlimit { rlim_cur: MOST, rlim_max: MOST };
        // SAFETY: the limit is a readable struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        let mut short = 0;
        for free in 0..24 {
            let mut taken: Vec<_> = (0..MOST).map_while(|_| File::open("/dev/null").ok()).collect();
            taken.truncate(taken.len() - free);
            match loader(Backend::Auto).load(sample.path()) {
                Ok(model) => sample.check(&model),
                Err(_) => short += 1,
            }
        }
        assert!(short > 0, "no load was short of descriptors");
        sample.check(&forced().load(sample.path()).unwrap());
        let error = {
            let _taken: Vec<_> = (0..MOST).map_while(|_| File::open("/dev/null").ok()).collect();
            Driver::open(Mode::Direct).unwrap_err()
        };
        assert!(matches!(error, CuFileError::Shortage { .. }), "{error}");
        assert_eq!(error.errno(), Some(libc::EMFILE));
        Driver::open(Mode::Direct).unwrap();
    });
}

#[test]
fn another_user_closes_the_driver_in_the_middle() {
    let test = "others::another_user_closes_the_driver_in_the_middle";
    on_both(test, &LATE_COPIES, || {
        let sample = Sample::new(test);
        let closing = with(&loader(Backend::Auto), || as_another_user("cuFileDriverClose_v2"));
        let model = closing.load(sample.path()).unwrap();
        sample.check(&model);
        let report = model.report();
        let by_gds = report.paths.get(PathKind::Gds);
        assert!(by_gds > 0 && by_gds < report.bytes, "{report:?}");
        assert!(!report.fallbacks.is_empty());
        assert!(reasons(report).iter().all(|reason| reason.contains("another user")), "{report:?}");
        // The counters went with the driver.
        assert_eq!(proof(report), Some(GdsProof::Unverified), "{report:?}");

        // The next load opens it again.
        let model = loader(Backend::Auto).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);

        let closing = with(&forced(), || as_another_user("cuFileDriverClose_v2"));
        let error = closing.load(sample.path()).unwrap_err();
        assert!(matches!(error, Error::Unavailable { by: PathKind::Gds, .. }), "{error:?}");
        assert!(error.to_string().contains("another user"), "{error}");

        // Closed, and opened again by them: our handles are of before.
        let reopened = with(&loader(Backend::Auto), || {
            as_another_user("cuFileDriverClose_v2");
            as_another_user("cuFileDriverOpen");
        });
        let model = reopened.load(sample.path()).unwrap();
        sample.check(&model);
        assert!(reasons(model.report()).iter().all(|reason| reason.contains("5027")), "{:?}", model.report());
        assert!(!model.report().fallbacks.is_empty());
    });
}

/// With little lockable memory they are kept in memory that is not locked, and that goes with the process too, which the test's own
/// process looks for.
#[test]
fn statistics_in_memory_that_could_not_be_locked() {
    let test = "others::statistics_in_memory_that_could_not_be_locked";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        sample.check(&forced().load(sample.path()).unwrap());
        Segment::of(std::process::id()).unwrap().unlock();
    });
}

/// cuFile keeps its statistics in shared memory by the number of the process. What a killed process of that number left is not in the
/// way; what is another program's stays, and the report says why nothing is proven.
#[test]
fn statistics_whose_place_is_taken() {
    let test = "others::statistics_whose_place_is_taken";
    let outcome = cufile_sim::simulation(test).settings(&[REAL]).run(|| {
        let (sample, process) = (Sample::new(test), std::process::id());
        Segment::make(process).lock();
        let model = loader(Backend::Auto).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(proof(model.report()), Some(GdsProof::Verified), "{:?}", model.report());
        drop(model);
        Driver::open(Mode::Default).unwrap().close().unwrap();

        let others = Segment::make(process);
        let model = loader(Backend::Auto).load(sample.path()).unwrap();
        sample.check(&model);
        let report = model.report();
        assert_eq!(report.paths.get(PathKind::Gds), report.bytes);
        assert_eq!(proof(report), Some(GdsProof::Unverified), "{report:?}");
        let reason = report.gds.as_ref().and_then(|gds| gds.reason.clone()).unwrap();
        assert!(reason.contains("ipcs -m -i") && reason.contains("another's"), "{reason}");
        assert_eq!(others.attached(), Some(0), "it is another's, and stays");
        others.remove();
    });
    if let Some(outcome) = outcome {
        outcome.assert_well();
    }
}

/// With batches in flight: whatever they still write to stays, and the load says why it ended.
#[test]
fn another_user_closes_the_driver_under_a_batch() {
    let test = "others::another_user_closes_the_driver_under_a_batch";
    let outcome = cufile_sim::simulation(test).settings(&[&[REAL], &LATE_COPIES[..]].concat()).run(|| {
        let sample = Sample::new(test);
        for backend in [Backend::Auto, Backend::Only(PathKind::Gds)] {
            let loader = loader(backend).cufile_batches(true);
            match with(&loader, || as_another_user("cuFileDriverClose_v2")).load(sample.path()) {
                Ok(model) => sample.check(&model),
                Err(error) => assert!(error.to_string().contains("another user"), "{error}"),
            }
            let model = loader.load(sample.path()).unwrap();
            sample.check(&model);
            assert_eq!(model.report().paths.get(PathKind::Gds), model.report().bytes);
        }
    });
    outcome.inspect(|outcome| assert!(outcome.finished, "{outcome}"));
}

/// Whoever comes second gets what he asked for or is told why not; loads in the mode that is open go on.
#[test]
fn one_process_has_one_mode() {
    let test = "others::one_process_has_one_mode";
    on_both(test, &[], || {
        let sample = Sample::new(test);
        sample.check(&forced().load(sample.path()).unwrap());
        let error = loader(Backend::Only(PathKind::GdsCompat)).load(sample.path()).unwrap_err();
        let Error::Unavailable { by: PathKind::GdsCompat, reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.contains("one process for each mode"), "{reason}");
        sample.check(&loader(Backend::Auto).load(sample.path()).unwrap());

        // The other way round, in which `auto` goes on without.
        Driver::open(Mode::Direct).unwrap().close().map_err(|(_, error)| error).unwrap();
        let model = loader(Backend::Only(PathKind::GdsCompat)).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::GdsCompat), model.report().bytes);
        let model = loader(Backend::Auto).load(sample.path()).unwrap();
        sample.check(&model);
        assert_eq!(model.report().paths.get(PathKind::Gds), 0);
        assert!(model.report().gds.as_ref().is_some_and(|gds| gds.reason.as_ref().unwrap().contains("mode")));
        assert_eq!(forced().load(sample.path()).unwrap_err().kind(), ErrorKind::Unavailable);
    });
}

/// Loads at the same time share the driver, each with a window of its own; one that is given up leaves the others alone.
#[test]
fn many_loads_at_once() {
    let test = "others::many_loads_at_once";
    on_both(test, &[&LATE_COPIES[..], &[("CUDA_SIM_BAR1", "1GiB")]].concat(), || {
        let sample = Sample::new(test);
        let cancelled = AtomicBool::new(false);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|number| {
                    let (sample, cancelled) = (&sample, &cancelled);
                    scope.spawn(move || {
                        if number == 3 {
                            let token = gds_loader::CancelToken::new();
                            let cancel = token.clone();
                            let loader = with(&forced().cancel(token), move || cancel.cancel());
                            let error = loader.load(sample.path()).unwrap_err();
                            assert_eq!(error.kind(), ErrorKind::Cancelled);
                            return cancelled.store(true, Ordering::Relaxed);
                        }
                        sample.check(
                            &forced().threads(3).cufile_batches(number == 2).load(sample.path()).unwrap(),
                        );
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(cancelled.load(Ordering::Relaxed));
    });
}
