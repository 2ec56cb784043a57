//! Which mount a path lies on.

use super::root::Root;

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where it is mounted.
    pub(crate) point: String,
    /// The device's number, "259:4".
    pub(crate) number: String,
    /// The file system's type.
    pub(crate) kind: String,
    /// What is mounted: a device, a server's export.
    pub(crate) source: String,
    /// Options of the mount and of the file system.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// The mount that `path`, absolute and without links, lies on.
    pub(crate) fn of(root: &Root, path: &str) -> Option<Self> {
        let text = root.read("proc/self/mountinfo")?;
        let mounts = text.lines().filter_map(Self::parse).filter(|mount| mount.covers(path));
        // The deepest, and of those at one place the last, which hides the others.
        mounts.max_by_key(|mount| mount.point.len())
    }

    /// The mount of the device with this number ("0:52"), the latest where there are several.
    pub(crate) fn numbered(mountinfo: &str, number: &str) -> Option<Self> {
        mountinfo.lines().rev().filter_map(Self::parse).find(|mount| mount.number == number)
    }

    /// `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/sda rw,errors=continue` (`proc_pid_mountinfo(5)`).
    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        let &[_, _, number, _, point, options, ..] = mount.as_slice() else { return None };
        let mut file_system = file_system.split(' ');
        let (kind, source, more) =
            (file_system.next()?, file_system.next()?, file_system.next().unwrap_or(""));
        Some(Self {
            point: unescape(point),
            number: number.to_owned(),
            kind: kind.to_owned(),
            source: unescape(source),
            options: options.split(',').chain(more.split(',')).map(str::to_owned).collect(),
        })
    }

    fn covers(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.point.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The value of an option such as `data=ordered`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Space, tab, newline and backslash are written in octal: `\040`.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_latest_mount_wins() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        let text = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw,data=ordered\n\
                    30 22 0:40 / /data rw - tmpfs tmpfs rw\n\
                    31 22 9:0 / /data rw,noatime shared:5 master:2 - xfs /dev/md0 rw,attr2\n\
                    32 22 0:41 / /data\\040two rw - nfs4 server:/x rw,proto=rdma\n\
                    nonsense\n";
        std::fs::write(root.join("proc/self/mountinfo"), text).unwrap();
        let point = |path: &str| Mount::of(&root, path).map(|mount| (mount.point, mount.kind));
        let some = |point: &str, kind: &str| Some((point.to_owned(), kind.to_owned()));
        assert_eq!(point("/data/models/x"), some("/data", "xfs"));
        assert_eq!(point("/data"), some("/data", "xfs"));
        assert_eq!(point("/database"), some("/", "ext4"));
        assert_eq!(point("/data two/x"), some("/data two", "nfs4"));
        assert_eq!(Mount::of(&root, "/x").unwrap().option("data"), Some("ordered"));
        assert_eq!(Mount::of(&root, "/data two").unwrap().option("proto"), Some("rdma"));
    }
}
