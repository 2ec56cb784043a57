//! Loads to a simulated GPU, and saves from it: the calls about the files.

use std::rc::Rc;

use cuda_staging::Device;
use gds_loader::{Backend, Engine, PathKind, Saver};
use test_support::control;

use crate::loads::{Models, by, loader};
use crate::operation::{Ended, Operation, assert_holds};

pub(crate) fn all() -> Vec<Operation> {
    let models = Models::on_disk("syscalls_of_a_gpu");
    let device = Device::cuda(0).unwrap();
    let load = |name, path, engine, batches| {
        let models = Rc::clone(&models);
        let loader = loader(&device, Backend::Only(path), engine, 1).cufile_batches(batches);
        let within = models.folder.path().to_owned();
        let run = move || {
            Ended::of(|| {
                let model = loader.load(&models.file)?;
                let bytes = |tensor: &gds_loader::Tensor| {
                    control::read_device_memory(tensor.device_address(), tensor.len() as usize)
                };
                assert_holds(&model, &models.tensors, bytes);
                Ok(by(&model))
            })
        };
        Operation { within: Some(within), ..Operation::reading(name, run) }
    };
    let save = |name, backend| {
        let model = loader(&device, Backend::Auto, Engine::Auto, 1).load(&models.file).unwrap();
        let target = models.folder.path().join("saved.safetensors");
        let saver = Saver::new().backend(backend).threads(1).slots(2).slot_size(8192);
        let (within, to) = (models.folder.path().to_owned(), target.clone());
        let run = move || {
            Ended::of_save(|| saver.save_model(&model, &to).map(|report| format!("{:?}", report.paths)))
        };
        let left = move |ended: &Ended| {
            let names: Vec<_> = std::fs::read_dir(target.parent().unwrap())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            let whole = std::fs::read(&target)
                .is_ok_and(|bytes| safetensors::SafeTensors::deserialize(&bytes).is_ok());
            let strange: Vec<_> = names
                .into_iter()
                .filter(|name| {
                    !["model.safetensors", "set", "saved.safetensors"].iter().any(|known| name == known)
                })
                .collect();
            if strange.is_empty() && (whole || !matches!(ended, Ended::Right(_))) {
                Ok(())
            } else {
                Err(format!("left {strange:?}, whole: {whole}"))
            }
        };
        Operation { within: Some(within), left: Box::new(left), ..Operation::reading(name, run) }
    };
    vec![
        load("load to a GPU, buffered", PathKind::Buffered, Engine::Auto, false),
        load("load to a GPU, direct by io_uring", PathKind::Direct, Engine::IoUring, false),
        load("load to a GPU, direct by threads", PathKind::Direct, Engine::Threads, false),
        load("load to a GPU, mmap", PathKind::Mmap, Engine::Auto, false),
        load("load to a GPU, gds", PathKind::Gds, Engine::Auto, false),
        load("load to a GPU, gds in batches", PathKind::Gds, Engine::Auto, true),
        save("save from a GPU, direct", Backend::Only(PathKind::Direct)),
        save("save from a GPU, gds", Backend::Only(PathKind::Gds)),
    ]
}
