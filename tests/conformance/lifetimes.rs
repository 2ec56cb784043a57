//! What lives how long, and who may load at once.

use std::thread;

use test_support::fixture::{File, awkward};

use crate::bed::Bed;
use crate::oracle;

pub(crate) fn tensors_outlive_their_model(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    let expected = oracle::of_file(&path);
    let before = bed.memory_in_use();
    let (tensor, region) = {
        let model = bed.load(&bed.loader(), &path, &expected);
        (model.get("long").unwrap(), model.get("double").unwrap().region().clone())
    };
    assert_eq!(bed.bytes_of(tensor.region()), expected["long"].bytes);
    drop(tensor);
    assert_eq!(bed.bytes_of(&region), expected["double"].bytes, "a region keeps its memory");
    assert!(!bed.device.is_cuda() || bed.memory_in_use() > before);
    drop(region);
    assert_eq!(bed.memory_in_use(), before, "the last one frees it");
}

pub(crate) fn one_loader_many_loads(bed: &Bed) {
    let paths = ["a.safetensors", "b.safetensors"].map(|name| bed.path(name));
    awkward().write(&paths[0]);
    File::new().tensor("other", "U8", &[100_001]).write(&paths[1]);
    let loader = bed.loader();
    let models: Vec<_> =
        paths.iter().cycle().take(4).map(|path| bed.load(&loader, path, &oracle::of_file(path))).collect();
    // Later loads leave earlier models alone.
    for (model, path) in models.iter().zip(paths.iter().cycle()) {
        bed.check(model, &oracle::of_file(path));
    }
    assert!(loader.load(bed.path("not.there")).is_err());
    bed.load(&loader, &paths[0], &oracle::of_file(&paths[0]));
}

pub(crate) fn one_loader_many_threads(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    let (expected, loader) = (oracle::of_file(&path), bed.loader());
    let models: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| loader.load(&path).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    models.iter().for_each(|model| bed.check(model, &expected));
}
