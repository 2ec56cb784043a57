//! Loading into memory of the caller's.

use std::iter;

use cuda_staging::{Device, RegionMut};
use gds_loader::{Destination, Error, ErrorKind, Loader};
use test_support::control;
use test_support::fixture::{File, awkward};

use crate::bed::Bed;
use crate::oracle;

/// Bytes before and after each destination that nobody may touch.
const GUARD: u64 = 256;
/// What is in memory before a load.
const BEFORE: u8 = 0xa5;

/// Memory of a test's for one tensor, with a guard on either side.
struct Memory {
    /// Keeps device memory allocated; the load knows only its address.
    region: Option<RegionMut>,
    host: Vec<u8>,
    /// Where the tensor begins.
    start: usize,
    len: usize,
}

impl Memory {
    /// On the CPU the tensor begins `shift` bytes past an aligned address.
    fn new(device: &Device, len: u64, shift: u64) -> Self {
        let (start, whole) = (GUARD + shift, len + shift + 2 * GUARD);
        let (start, len) = (start as usize, len as usize);
        if !device.is_cuda() {
            return Self { region: None, host: vec![BEFORE; whole as usize], start, len };
        }
        let region = device.allocate(whole, 256).unwrap();
        control::write_device_memory(region.address(), &vec![BEFORE; whole as usize]);
        Self { region: Some(region), host: Vec::new(), start, len }
    }

    fn destination(&mut self, name: &str) -> Destination<'_> {
        match &self.region {
            None => Destination::host(name, &mut self.host[self.start..self.start + self.len]).unwrap(),
            Some(region) => {
                let address = region.address() + self.start as u64;
                // SAFETY: `region` stays allocated until after the load, and nothing else uses it.
                unsafe { Destination::device(name, region.device(), address, self.len as u64) }.unwrap()
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match &self.region {
            None => self.host.clone(),
            Some(region) => control::read_device_memory(region.address(), region.len() as usize),
        }
    }

    fn assert_holds(&self, expected: &[u8], what: &str) {
        let bytes = self.bytes();
        let end = self.start + self.len;
        assert!(bytes[self.start..end] == *expected, "{what}");
        let guards = bytes[..self.start].iter().chain(&bytes[end..]);
        assert!(guards.copied().eq(iter::repeat_n(BEFORE, bytes.len() - self.len)), "around {what}");
    }
}

pub(crate) fn memory_of_the_callers(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    let expected = oracle::of_file(&path);
    for shift in [0, 1, 255] {
        let mut memories: Vec<(&String, Memory)> = expected
            .iter()
            .map(|(name, tensor)| (name, Memory::new(&bed.device, tensor.bytes.len() as u64, shift)))
            .collect();
        let destinations = memories.iter_mut().map(|(name, memory)| memory.destination(name)).collect();
        let report = bed.loader().load_into(&path, destinations).unwrap();
        for (name, memory) in &memories {
            memory.assert_holds(&expected[*name].bytes, name);
        }
        bed.check_report(&report, expected.values().map(|tensor| tensor.bytes.len() as u64).sum());
        assert_eq!(report.tensors, expected.len());
        bed.check_descriptors();
    }
}

/// One tensor out of many, and a region given away whole.
pub(crate) fn only_the_destination_is_written(bed: &Bed) {
    let path = bed.path("model.safetensors");
    awkward().write(&path);
    let expected = oracle::of_file(&path);
    for name in ["after.odd", "over.a.page", "long", "empty.first"] {
        let mut memory = Memory::new(&bed.device, expected[name].bytes.len() as u64, 3);
        let destinations = vec![memory.destination(name)];
        let report = bed.loader().load_into(&path, destinations).unwrap();
        memory.assert_holds(&expected[name].bytes, name);
        assert_eq!((report.tensors, report.bytes), (1, expected[name].bytes.len() as u64));
    }
    let long = &expected["long"].bytes;
    let region = bed.device.allocate(long.len() as u64, 256).unwrap();
    // On a GPU the memory outlives the region given away, if only until the driver hands it out again: nothing does here.
    let address = region.address();
    let other = Memory::new(&bed.device, 64, 0);
    bed.loader().load_into(&path, vec![Destination::region("long", region)]).unwrap();
    other.assert_holds(&[BEFORE; 64], "memory of nobody's");
    assert_ne!(address, 0);
    assert_eq!(bed.loader().load_into(&path, Vec::new()).unwrap().bytes, 0);
}

pub(crate) fn destinations_that_do_not_fit(bed: &Bed) {
    let path = bed.path("model.safetensors");
    File::new().tensor("weight", "F32", &[100]).tensor("bias", "F32", &[10]).write(&path);
    let memory = |len| Memory::new(&bed.device, len, 0);
    let refused = |loader: &Loader, destinations: Vec<Destination<'_>>, words: &[&str]| {
        let error = loader.load_into(&path, destinations).unwrap_err();
        assert!(matches!(error, Error::Destination { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Usage);
        words
            .iter()
            .for_each(|word| assert!(error.to_string().contains(word), "{word} is missing in: {error}"));
        bed.check_descriptors();
    };
    let loader = bed.loader();
    let (mut a, mut b) = (memory(400), memory(400));
    refused(&loader, vec![a.destination("wieght")], &["wieght"]);
    refused(&loader, vec![a.destination("weight"), b.destination("weight")], &["weight", "two"]);
    for len in [0, 399, 401] {
        let mut wrong = memory(len);
        refused(&loader, vec![wrong.destination("weight")], &["weight", &len.to_string(), "400"]);
        wrong.assert_holds(&vec![BEFORE; len as usize], "a destination that does not fit");
    }
    if bed.device.is_cuda() {
        let mut host = vec![0; 40];
        let destinations =
            vec![a.destination("weight"), Destination::host("bias", host.as_mut_slice()).unwrap()];
        refused(&loader, destinations, &["bias", "cpu"]);
        // SAFETY: nothing is read or written: no driver allocated this.
        let nowhere = unsafe { Destination::device("weight", &bed.device, 0x1000, 400) };
        assert!(nowhere.is_err());
        let region = bed.device.allocate(400, 256).unwrap();
        // SAFETY: as above; the range reaches beyond the allocation.
        let beyond = unsafe { Destination::device("weight", &bed.device, region.address() + 1, 1 << 21) };
        assert!(beyond.is_err());
    }
    a.assert_holds(&[BEFORE; 400], "a destination of a load that was refused");
}
