//! Loads that are made to fail, each in a known way: what they leave must be as little as what others leave.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gds_loader::{CancelToken, Error, ErrorKind, Loader};

use crate::model::Model;

/// What is done to a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provoked {
    Nothing,
    /// Cancelled when the first piece has arrived.
    Cancelled,
    /// The file loses its second half when the first piece has arrived.
    CutShort,
    /// A file whose header is none.
    NoModel,
    /// A path to nothing.
    Missing,
    /// A tensor that the model does not have.
    NoSuchTensor,
}

/// What is done in a round: every second load is left alone.
pub(crate) fn of(round: u64) -> Provoked {
    const EACH: [Provoked; 5] = [
        Provoked::Cancelled,
        Provoked::CutShort,
        Provoked::NoModel,
        Provoked::Missing,
        Provoked::NoSuchTensor,
    ];
    match round % 2 {
        0 => Provoked::Nothing,
        _ => EACH[(round / 2) as usize % EACH.len()],
    }
}

impl Provoked {
    /// The class of the error that it makes.
    pub(crate) fn kind(self) -> Option<ErrorKind> {
        match self {
            Self::Nothing => None,
            Self::Cancelled => Some(ErrorKind::Cancelled),
            Self::CutShort | Self::NoModel => Some(ErrorKind::InvalidData),
            Self::Missing => Some(ErrorKind::Failed),
            Self::NoSuchTensor => Some(ErrorKind::Usage),
        }
    }
}

/// Loads `model`, one of a single file, with this happening to it.
pub(crate) fn load(provoked: Provoked, loader: &Loader, model: &Model) -> Result<gds_loader::Model, Error> {
    match provoked {
        Provoked::Nothing => loader.load(&model.path),
        Provoked::Cancelled => {
            let token = CancelToken::new();
            let other = token.clone();
            // In pieces so small that most of them are not in flight yet: what was in flight is placed, and that could be all.
            let loader = loader.clone().read_size(256 << 10).cancel(token);
            loader.on_progress(move |_| other.cancel()).load(&model.path)
        }
        Provoked::CutShort => cut_short(loader, &model.path),
        Provoked::NoModel => loader.load("/proc/self/exe"),
        Provoked::Missing => loader.load(model.path.with_extension("missing")),
        Provoked::NoSuchTensor => loader.clone().tensors(["no.such.tensor"])?.load(&model.path),
    }
}

fn cut_short(loader: &Loader, path: &Path) -> Result<gds_loader::Model, Error> {
    let whole = match std::fs::read(path) {
        Ok(whole) => whole,
        Err(error) => return Err(Error::Worker { reason: format!("{}: {error}", path.display()) }),
    };
    let half = whole.len() as u64 / 2;
    let (done, file) = (AtomicBool::new(false), path.to_owned());
    let cutting = loader.clone().on_progress(move |_| {
        if !done.swap(true, Ordering::Relaxed) {
            // Where that fails the load does not, which is what is looked at.
            let _ = OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(half));
        }
    });
    let outcome = cutting.load(path);
    let mend = || -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.write_all_at(&whole[half as usize..], half)
    };
    match mend() {
        Ok(()) => outcome,
        Err(error) => Err(Error::Worker { reason: format!("{}: {error}", path.display()) }),
    }
}
