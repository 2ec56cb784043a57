//! Whether the kernel lets us have io_uring: tried, since versions and settings do not tell.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use cuda_staging::RegionMut;

use super::flights::Place;
use super::queue::Queue;
use crate::transport::{Extent, ReadCause};

/// Bytes read for a try.
const TRIED: u64 = 8;

/// Makes a queue and reads the first bytes of `file`, which are in the page cache, as their reader knows.
///
/// # Errors
/// Why threads have to read.
pub(crate) fn probe(file: &Arc<File>) -> Result<(), String> {
    let mut queue = Queue::open(1).map_err(|error| refusal("making a queue", &error))?;
    let mut expected = vec![0; TRIED as usize];
    let got = file.read_at(&mut expected, 0).map_err(|error| format!("a read to compare with: {error}"))?;
    let place = Place::Region(RegionMut::from_vec(vec![0; TRIED as usize]));
    let extent = Extent::new(&(0..TRIED), got as u64, 1);
    let ended = match queue.begin(0, file, extent, place) {
        Some(ended) => Some(ended),
        None => queue.wait().map_err(|error| refusal("waiting for a read", &error))?.pop(),
    };
    let ended = ended.ok_or("a read that was begun did not end")?;
    match (ended.outcome, ended.place) {
        (Ok(_), Place::Region(region)) if region.host_bytes() == Some(&expected[..]) => Ok(()),
        (Ok(_), _) => Err("it read other bytes than pread".into()),
        (Err(failure), _) => Err(match failure.source {
            Some(ReadCause::System(error)) => format!("a read: {error}"),
            _ => "a read ended early".into(),
        }),
    }
}

/// Why there is no queue, with what usually is behind it.
fn refusal(doing: &str, error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (seccomp, as in most containers, or the sysctl kernel.io_uring_disabled)"
        }
        Some(libc::ENOSYS) => " (a kernel without it, or seccomp)",
        Some(libc::EOPNOTSUPP) => " (a kernel before 5.11)",
        Some(libc::ENOMEM) => " (memory, or RLIMIT_MEMLOCK on kernels before 5.12)",
        Some(libc::EMFILE | libc::ENFILE) => " (RLIMIT_NOFILE)",
        _ => "",
    };
    format!("{doing}: {error}{why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_may_be_behind_it() {
        let refusal = |code| refusal("making a queue", &io::Error::from_raw_os_error(code));
        assert!(
            refusal(libc::EPERM).contains("Operation not permitted")
                && refusal(libc::EPERM).contains("(seccomp")
        );
        assert!(refusal(libc::ENOSYS).contains("without it"));
        assert!(refusal(libc::EMFILE).contains("NOFILE"));
        assert!(refusal(libc::EIO).ends_with("(os error 5)"));
    }
}
