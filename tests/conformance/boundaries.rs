//! Sizes and places around the units that reads and slots come in.

use std::fs;
use std::os::unix::fs::FileExt as _;

use test_support::fixture::{File, payload};

use crate::bed::Bed;
use crate::oracle::{self, Expected, Tensors};

/// Sector, page, read and slot, the last two as set by `Bed::loader`, and the least that is read straight into place.
const UNITS: [u64; 5] = [512, 4096, 4096 * 4, 4096 * 8, 64 << 10];

pub(crate) fn sizes_around_every_unit(bed: &Bed) {
    for unit in UNITS {
        let sizes = [unit - 1, unit, unit + 1, 2 * unit, 2 * unit + 513, 3 * unit - 1];
        // One after the other, so that each begins where the sizes before it left off.
        let all = sizes.iter().enumerate().fold(File::new(), |file, (index, &size)| {
            file.tensor(&format!("{index}.of.{size}"), "U8", &[size])
        });
        bed.round_trip(&all);
        for size in sizes {
            bed.round_trip(&File::new().tensor("alone", "U8", &[size]));
        }
    }
}

pub(crate) fn data_that_begin_around_every_unit(bed: &Bed) {
    for unit in [512_usize, 4096, 65536] {
        for padding in [unit - 1, 0, 1] {
            // With 0 the data begin at exactly `unit`: a head of no bytes.
            for len in [1, 3 * 4096, 70_000 + 4] {
                let file =
                    File::new().data_alignment(unit).padding(padding).tensor("t", "F32", &[len / 4 + 1]);
                bed.round_trip(&file);
            }
        }
    }
}

/// Tiny ones are gathered on the host; long ones between them are not.
pub(crate) fn many_tiny_tensors(bed: &Bed) {
    let dtypes = ["U8", "F16", "F32", "I64"];
    let file = (0..2000_u64).fold(File::new(), |file, index| {
        let len = if index % 500 == 250 { 30_000 } else { index % 13 };
        file.tensor(&format!("layer.{index}.weight"), dtypes[index as usize % 4], &[len])
    });
    let path = bed.path("model.safetensors");
    file.write(&path);
    let expected = oracle::of_file(&path);
    bed.load(&bed.loader(), &path, &expected);
    let by_defaults = bed.loader_by_defaults();
    bed.load(&by_defaults, &path, &expected);
}

/// Nothing to overlap with, and the same bytes.
pub(crate) fn one_thread_one_slot(bed: &Bed) {
    let path = bed.path("model.safetensors");
    test_support::fixture::awkward().write(&path);
    let expected = oracle::of_file(&path);
    for (threads, slots, read_size, slot_size) in [
        (1, 1, 4096, 4096),
        (1, 2, 4096, 65536),
        (4, 1, 8192, 8192),
        (7, 3, 12288, 13000),
        (3, 64, 1 << 20, 2 << 20),
    ] {
        let loader = bed.loader().threads(threads).slots(slots).read_size(read_size).slot_size(slot_size);
        let model = bed.load(&loader, &path, &expected);
        let whole_pages = slot_size.next_multiple_of(4096);
        let most = whole_pages * slots.max(threads) as u64;
        assert!(model.report().peak_pinned_bytes <= most, "{:?}", model.report());
    }
}

/// A tensor longer than 4 GiB, which takes no space on the disk, and one behind it.
pub(crate) fn beyond_4_gib(bed: &Bed) {
    const LONG: u64 = (4 << 30) + 4099;
    let shape = [1001];
    let file = File::new().tensor("long", "U8", &[LONG]).tensor("small", "F32", &shape);
    let path = bed.path("model.safetensors");
    let bytes = payload("small", 4004);
    let (header, small_at) = (file.header(), file.header().len() as u64 + LONG);
    fs::write(&path, header).unwrap();
    let sparse = fs::OpenOptions::new().write(true).open(&path).unwrap();
    sparse.set_len(small_at + 4004).unwrap();
    sparse.write_all_at(&bytes, small_at).unwrap();
    sparse.sync_all().unwrap();
    drop(sparse);

    let small = Expected { dtype: "F32".into(), shape: shape.to_vec(), bytes };
    let loader = bed.loader().tensors(["small"]).unwrap();
    bed.load(&loader, &path, &Tensors::from([("small".to_owned(), small)]));

    // All of it takes seconds and as much memory; the holes read as zeros.
    if std::env::var_os("GDS_TESTS_LONG").is_some_and(|value| value == "1") {
        let by_defaults = bed.loader_by_defaults();
        let model = by_defaults.load(&path).unwrap();
        bed.check_report(model.report(), LONG + 4004);
        let long = model.get("long").unwrap();
        for start in [0, LONG / 2, (4 << 30) - 2048, LONG - 4096] {
            let part = long.region().slice(start..start + 4096).unwrap();
            assert_eq!(bed.bytes_of(&part), [0; 4096], "at {start}");
        }
        assert_eq!(model.get("small").unwrap().to_vec().unwrap(), payload("small", 4004));
    }
}
