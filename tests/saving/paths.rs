//! Which path serves, and which takes over.

use gds_loader::format::Dtype;
use gds_loader::{Backend, ErrorKind, PathKind, Saver};
use test_support::{cufile_sim, on_simulator};

use crate::bed::{self, Bed, Described};

const REAL: (&str, &str) = ("CUFILE_SIM_MODE", "real");

fn tensors() -> Vec<Described> {
    vec![Described::new("a", Dtype::F32, &[2_000_000]), Described::new("b", Dtype::I8, &[12_345])]
}

/// Runs `case` with GPUDirect Storage that goes wrong as `script` says.
fn with_gds(test: &str, script: &str, case: impl Fn(&Bed)) {
    cufile_sim::on_simulator(test, &[REAL, ("CUFILE_SIM_SCRIPT", script)], || {
        Bed::each(test, &bed::gpu, &[Backend::Auto], case);
    });
}

fn on_disk(bed: &Bed) -> bool {
    !bed.path("").starts_with("/dev/shm")
}

#[test]
fn auto_takes_gds_where_it_serves() {
    with_gds("paths::auto_takes_gds_where_it_serves", "", |bed| {
        let report = bed.saver().save(bed.tensors(&tensors()), bed.path("model.safetensors")).unwrap();
        if on_disk(bed) {
            assert_eq!(report.paths.get(PathKind::Gds), report.bytes, "{report:?}");
        }
    });
}

#[test]
fn a_write_that_cufile_fails_goes_by_direct_and_so_does_the_rest() {
    let test = "paths::a_write_that_cufile_fails_goes_by_direct_and_so_does_the_rest";
    // A code of cuFile, and the system's EIO: whether the disk is at fault, the kernel is asked.
    for script in ["write@3=-1:5027", "write@3=-1:5"] {
        with_gds(test, script, |bed| {
            let path = bed.path("model.safetensors");
            let described = tensors();
            let report = bed.saver().save(bed.tensors(&described), &path).unwrap();
            let found = crate::oracle::of_file(&path);
            assert!(described.iter().all(|tensor| found[&tensor.name].bytes == tensor.bytes()));
            if on_disk(bed) && report.paths.get(PathKind::Gds) < report.bytes {
                assert!(
                    report.paths.get(PathKind::Direct) > 0 && report.paths.get(PathKind::Gds) > 0,
                    "{report:?}"
                );
                let [fallback] = report.fallbacks.as_slice() else { panic!("{report:?}") };
                assert_eq!((fallback.from, fallback.to), (PathKind::Gds, PathKind::Direct));
            }
            let forced = bed.saver().backend(Backend::Only(PathKind::Gds));
            cufile_sim::set_script(script);
            let error = forced.save(bed.tensors(&described), &path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(crate::oracle::of_file(&path).len() == 2, "the old one is gone");
        });
    }
}

#[test]
fn a_file_that_cufile_does_not_take_goes_by_direct() {
    let test = "paths::a_file_that_cufile_does_not_take_goes_by_direct";
    for script in ["handle_register=5030", "buf_register=5016"] {
        with_gds(test, script, |bed| {
            let report = bed.saver().save(bed.tensors(&tensors()), bed.path("model.safetensors")).unwrap();
            if on_disk(bed) {
                assert_eq!(report.paths.get(PathKind::Direct), report.bytes, "{report:?}");
                assert_eq!(report.fallbacks.len(), 1, "{report:?}");
            }
        });
    }
}

#[test]
fn short_writes_of_cufile_are_continued() {
    with_gds("paths::short_writes_of_cufile_are_continued", "write@*=short:3", |bed| {
        let path = bed.path("model.safetensors");
        let described = tensors();
        bed.saver().backend(Backend::Only(PathKind::Gds)).save(bed.tensors(&described), &path).ok();
        bed.saver().save(bed.tensors(&described), &path).unwrap();
        let found = crate::oracle::of_file(&path);
        assert!(described.iter().all(|tensor| found[&tensor.name].bytes == tensor.bytes()));
    });
}

#[test]
fn writes_that_bounced_are_not_called_gds() {
    let test = "paths::writes_that_bounced_are_not_called_gds";
    cufile_sim::on_simulator(test, &[("CUFILE_SIM_MODE", "lying")], || {
        Bed::each(test, &bed::gpu, &[Backend::Auto], |bed| {
            let path = bed.path("model.safetensors");
            let report = bed.saver().save(bed.tensors(&tensors()), &path).unwrap();
            assert_eq!(report.paths.get(PathKind::Gds), 0, "{report:?}");
            let forced = Saver::new().backend(Backend::Only(PathKind::Gds));
            let error = forced.save(bed.tensors(&tensors()), bed.path("forced.safetensors")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert_eq!(bed.names(), ["model.safetensors"]);
        });
    });
}

#[test]
fn without_cufile_gds_is_unavailable_and_auto_says_why() {
    let test = "paths::without_cufile_gds_is_unavailable_and_auto_says_why";
    on_simulator(test, &[("GDS_CUFILE_LIBRARY", "/nowhere/libcufile.so.0")], || {
        Bed::each(test, &bed::gpu, &[Backend::Auto], |bed| {
            let path = bed.path("model.safetensors");
            let report = bed.saver().save(bed.tensors(&tensors()), &path).unwrap();
            let reason = report.gds.as_ref().and_then(|gds| gds.reason.clone()).unwrap();
            assert!(reason.contains("libcufile"), "{reason}");
            let forced = Saver::new().backend(Backend::Only(PathKind::Gds));
            let error = forced.save(bed.tensors(&tensors()), &path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        });
    });
    Bed::each(test, &bed::cpu, &[Backend::Only(PathKind::Buffered)], |bed| {
        let forced = Saver::new().backend(Backend::Only(PathKind::Gds));
        let error = forced.save(Vec::new(), bed.path("model.safetensors")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(bed.names().is_empty());
    });
}
