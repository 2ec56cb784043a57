//! Lesson 9: save from device memory; die in the middle of the next save; find the old checkpoint whole.
//!
//!     cargo run --release --example 09_save_checkpoint -- [PATH]
//!
//! A save writes beside its target and renames when all is written and synced. So at every moment the target is one checkpoint,
//! whole: the old one or the new one. What the process that died has left, the next save removes.

mod support;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gds_loader::{Loader, Model, SaveTensor, Saver};
use rustix::process::{Signal, getpid, kill_process};

/// Tells the program started by this one where to save, and to die.
const DIE: &str = "GDS_LESSON_DIES_SAVING";

fn main() -> Result<(), Box<dyn Error>> {
    let source = support::model()?;
    let model = Loader::new().load(&source)?;
    if let Some(path) = std::env::var_os(DIE) {
        return die_saving(&model, Path::new(&path));
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("checkpoint.safetensors");

    // 1. The first checkpoint. The report says by which path it went, and what is on the disk now.
    let report = Saver::new().metadata([("step", "1")]).save_model(&model, &path)?;
    println!(
        "saved {} bytes from {} in {:.3} s; {} file and the folder synced",
        report.bytes, report.device.name, report.seconds, report.synced.files_synced
    );

    // 2. Another process saves the second over it, and is killed after some writes.
    let died = Command::new(std::env::current_exe()?).arg(&source).env(DIE, &path).status()?;
    println!("the second save ended by {died}; the folder now has {:?}", names(folder.path())?);

    // 3. What is there is the first, whole.
    let again = Loader::new().load(&path)?;
    println!("reloaded: step {:?}", again.metadata().get("step"));
    if again.digests()? != model.digests()? {
        return Err("the old checkpoint is not what was saved".into());
    }

    // 4. The third save goes on in the background. The tensors' memory is shared here, so that it is frozen until the save is
    //    staged; memory that is moved in comes back from `wait_staged`, to be trained on while the disk syncs.
    let tensors: Vec<SaveTensor<'static>> = model.tensors().map(SaveTensor::from).collect();
    let mut saving = Saver::new().metadata([("step", "3")]).start(tensors, &path);
    saving.wait_staged();
    println!("staged: the memory is free again");
    saving.finish()?;
    println!("saved: step 3; the folder now has {:?}", names(folder.path())?);
    Ok(())
}

/// Saves, and is killed as soon as something has been written.
fn die_saving(model: &Model, path: &Path) -> Result<(), Box<dyn Error>> {
    let die = |_| {
        let _ = kill_process(getpid(), Signal::KILL);
    };
    Saver::new().metadata([("step", "2")]).slot_size(1 << 20).on_progress(die).save_model(model, path)?;
    Err("this save should not have ended".into())
}

fn names(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into())).collect()
}
