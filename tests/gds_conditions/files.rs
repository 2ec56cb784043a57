//! What the library says of files, held against what the kernel says.

use std::fs;
use std::path::Path;

use gds_loader::{Backend, Error, ErrorKind, GdsProof, PathKind};
use test_support::cufile_sim;

use crate::bed::{MIB, Sample, forced, gpu, loader, on_both, proof, with};

/// Where every read bounces, in batches and one by one, `gds` is claimed by nobody.
#[test]
fn a_library_that_lies_is_found_out() {
    let test = "files::a_library_that_lies_is_found_out";
    on_both(test, &[("CUFILE_SIM_MODE", "lying")], || {
        let sample = Sample::new(test);
        for batches in [false, true] {
            let model = loader(Backend::Auto).cufile_batches(batches).load(sample.path()).unwrap();
            sample.check(&model);
            let report = model.report();
            assert_eq!(proof(report), Some(GdsProof::Bounced), "{report:?}");
            assert_eq!(report.paths.get(PathKind::Gds), 0, "{report:?}");
            assert_eq!(report.paths.get(PathKind::GdsCompat), report.bytes, "{report:?}");
            let error = forced().cufile_batches(batches).load(sample.path()).unwrap_err();
            assert!(matches!(error, Error::Unavailable { by: PathKind::Gds, .. }), "{error:?}");
        }
    });
}

fn resize(path: &Path, change: i64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len().checked_add_signed(change).unwrap();
    file.set_len(len).unwrap();
}

#[test]
fn files_that_change_while_they_are_read() {
    let test = "files::files_that_change_while_they_are_read";
    on_both(test, &[], || {
        for (backend, batches) in [
            (Backend::Auto, false),
            (Backend::Only(PathKind::Gds), false),
            (Backend::Auto, true),
            (Backend::Only(PathKind::Gds), true),
        ] {
            let what = format!("{backend}, batches {batches}");
            let loader = loader(backend).cufile_batches(batches);
            let free = || gpu().memory().unwrap().unwrap().free;
            let before = free();
            for cut in [-2, -5000, -3 * MIB as i64, 1] {
                let sample = Sample::new(test);
                let shard = sample.shard(2);
                let error = with(&loader, move || resize(&shard, cut)).load(sample.path()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}, {cut}: {error}");
                assert!(error.to_string().contains("00002-of"), "{what}, {cut}: {error}");
                assert_eq!(free(), before, "{what}, {cut}: device memory is back");
            }
            // Replaced, as an atomic update does it: what was opened is what is loaded.
            let sample = Sample::new(test);
            let shard = sample.shard(2);
            let model = with(&loader, move || {
                let other = shard.with_extension("new");
                fs::write(&other, b"nothing that was ever a model").unwrap();
                fs::rename(&other, &shard).unwrap();
            });
            let model = model.load(sample.path()).unwrap();
            sample.check(&model);
            assert!(model.report().fallbacks.is_empty(), "{what}: {:?}", model.report());
        }
    });
}

/// Only what the library says of the disk is doubted: a file that is really too short is an error, whoever reads it.
#[test]
fn an_error_of_the_disk_is_checked_with_the_kernel() {
    let test = "files::an_error_of_the_disk_is_checked_with_the_kernel";
    on_both(test, &[], || {
        for script in ["read@3+=-1:5", "read@3+=bytes:0", "read@3+=-5044"] {
            let sample = Sample::new(test);
            cufile_sim::set_script(script);
            let model = loader(Backend::Auto).load(sample.path()).unwrap();
            sample.check(&model);
            let pieces = model.report().fallbacks.len();
            assert!(pieces > 10, "{script}: each piece was tried: {:?}", model.report());
            assert!(model.report().paths.get(PathKind::Gds) > 0);

            cufile_sim::set_script(script);
            let shard = sample.shard(1);
            let error =
                with(&loader(Backend::Auto), move || resize(&shard, -5000)).load(sample.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{script}: {error}");
            cufile_sim::set_script("");
        }
    });
}
