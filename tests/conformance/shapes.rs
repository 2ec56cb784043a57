//! What tensors may look like.

use gds_loader::Tensor;
use gds_loader::format::Dtype;
use test_support::fixture::{File, awkward};

use crate::bed::Bed;
use crate::oracle;

/// A sub-byte type's element count must fill whole bytes, so 8 of any type do.
pub(crate) fn every_dtype(bed: &Bed) {
    let file = Dtype::ALL.into_iter().fold(File::new(), |file, dtype| {
        // An odd tensor before each, so that every type is also met unaligned in the file.
        file.tensor(&format!("odd.before.{dtype}"), "U8", &[3]).tensor(
            dtype.as_str(),
            dtype.as_str(),
            &[5, 8],
        )
    });
    let model = bed.round_trip(&file);
    for dtype in Dtype::ALL {
        let tensor = model.get(dtype.as_str()).unwrap();
        assert_eq!((tensor.dtype(), tensor.len()), (dtype, 5 * dtype.bits()));
    }
}

pub(crate) fn scalars_are_not_empty(bed: &Bed) {
    let file = File::new()
        .tensor("scalar", "F32", &[])
        .tensor("none", "F32", &[0])
        .tensor("one", "F32", &[1])
        .tensor("one.by.one", "F32", &[1, 1])
        .tensor("byte", "U8", &[])
        .tensor("double", "F64", &[]);
    let model = bed.round_trip(&file);
    let len = |name: &str| model.get(name).unwrap().len();
    assert_eq!(["scalar", "none", "one", "one.by.one", "byte", "double"].map(len), [4, 0, 4, 4, 1, 8]);
}

pub(crate) fn empty_tensors_anywhere(bed: &Bed) {
    let empty = |file: File, name: &str| file.tensor(name, "F16", &[2, 0]);
    let full = |file: File, name: &str| file.tensor(name, "F32", &[100]);
    let new = File::new;
    for file in [
        full(empty(new(), "a.first"), "z"),
        full(empty(full(new(), "a"), "m.middle"), "z"),
        empty(full(new(), "a"), "z.last"),
        empty(new(), "only"),
        empty(empty(new(), "only.two"), "of.them"),
        full(empty(empty(empty(full(new(), "a"), "m1"), "m2"), "m3"), "z"),
    ] {
        let model = bed.round_trip(&file);
        for tensor in model.tensors().filter(Tensor::is_empty) {
            assert_eq!((tensor.shape(), tensor.to_vec().unwrap().len()), ([2, 0].as_slice(), 0));
        }
    }
}

/// Every remainder modulo 8, so that wide elements begin anywhere in the file.
pub(crate) fn headers_of_any_length(bed: &Bed) {
    for padding in 0..8 {
        let file = File::new()
            .padding(padding)
            .tensor("bytes", "U8", &[9])
            .tensor("halves", "F16", &[1001])
            .tensor("singles", "F32", &[77, 3])
            .tensor("doubles", "F64", &[500]);
        assert_eq!(file.header().len() % 8, padding);
        bed.round_trip(&file);
    }
}

/// Each tensor lies at an address aligned for it, not only the first: `Bed::check` looks at every one.
pub(crate) fn odd_tensors_before_wide_ones(bed: &Bed) {
    bed.round_trip(&File::new().tensor("a", "U8", &[3]).tensor("b", "F32", &[2]).tensor("c", "F64", &[1]));
    bed.round_trip(&File::new().tensor("a", "BOOL", &[70_001]).tensor("b", "F32", &[50_000]).tensor(
        "c",
        "C64",
        &[9],
    ));
    bed.round_trip(&awkward());
}

pub(crate) fn alignment_on_request(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    for alignment in [1, 2, 64, 256, 4096] {
        let model = bed.load(&bed.loader().alignment(alignment), &path, &oracle::of_file(&path));
        for tensor in model.tensors().filter(|tensor| !tensor.is_empty()) {
            assert_eq!(tensor.device_address() % alignment, 0, "{tensor:?} for {alignment}");
        }
    }
    for refused in [0, 3, 8192] {
        let error = bed.loader().alignment(refused).load(&path).unwrap_err();
        assert_eq!(error.kind(), gds_loader::ErrorKind::Usage);
        assert!(error.to_string().contains(&refused.to_string()), "{error}");
    }
}

/// The fixture's JSON lists names alphabetically; their bytes are in another order.
pub(crate) fn names_in_any_order_and_metadata(bed: &Bed) {
    let names = ["z", "m", "\u{e9}t\u{e9} \"quoted\"\\", "a", "b"];
    let file = names
        .iter()
        .fold(File::new(), |file, name| file.tensor(name, "BF16", &[name.len() as u64, 700]))
        .metadata("format", "pt")
        .metadata("\u{4f60}\u{597d}", "line\nbreak");
    let model = bed.round_trip(&file);
    let in_order: Vec<String> = model.tensors().map(|tensor| tensor.name().to_owned()).collect();
    assert_eq!(in_order, names, "tensors come in the order of their bytes");
    assert_eq!(model.metadata()["format"], "pt");
    assert_eq!(model.metadata()["\u{4f60}\u{597d}"], "line\nbreak");
}

pub(crate) fn no_tensors_at_all(bed: &Bed) {
    let model = bed.round_trip(&File::new().metadata("format", "pt"));
    assert!(model.is_empty() && model.digests().unwrap().is_empty());
    assert_eq!(model.metadata()["format"], "pt");
    bed.round_trip(&File::new());
}
