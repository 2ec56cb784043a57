//! A disk, as POSIX leaves it after a power cut.
//!
//! It is pessimistic: bytes that no fsync of their file followed may be there, in part, as zeros, or not; of what a name meant since
//! the last fsync of its folder, any may be what it means, whatever other names do. So a rename may have happened at one of its names only,
//! and changes may have happened in any order. No fsync of a file makes its name durable.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::tap::Call;

#[derive(Clone, Debug)]
enum Node {
    File { synced: Vec<u8>, live: Vec<u8> },
    Folder,
}

/// A name in a folder, which is told by its number in the model.
type Entry = (usize, OsString);

#[derive(Clone, Debug)]
pub(super) struct Disk {
    nodes: Vec<Node>,
    /// Numbers in the model by inodes' numbers, which the real disk uses again.
    by_inode: BTreeMap<u64, usize>,
    /// What each name meant since the last fsync of its folder; first what it meant then.
    meanings: BTreeMap<Entry, Vec<Option<usize>>>,
}

/// A file's bytes, and which file it is: two names of one number are one file.
pub(super) type File = (usize, Vec<u8>);
/// What a power cut left: files by their paths below the root.
pub(super) type State = BTreeMap<OsString, File>;

impl Disk {
    /// The disk whose root is a folder that exists, everything in it being durable.
    pub(super) fn of(root: &Path) -> Self {
        let inode = fs::metadata(root).unwrap().ino();
        let mut disk =
            Self { nodes: vec![Node::Folder], by_inode: [(inode, 0)].into(), meanings: BTreeMap::new() };
        disk.add(root, 0);
        disk
    }

    fn add(&mut self, path: &Path, folder: usize) {
        for entry in fs::read_dir(path).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            let node = if metadata.is_dir() {
                Node::Folder
            } else {
                let bytes = fs::read(&path).unwrap();
                Node::File { synced: bytes.clone(), live: bytes }
            };
            let number = self.make(metadata.ino(), node);
            self.meanings.insert((folder, name), vec![Some(number)]);
            if metadata.is_dir() {
                self.add(&path, number);
            }
        }
    }

    fn make(&mut self, inode: u64, node: Node) -> usize {
        self.nodes.push(node);
        self.by_inode.insert(inode, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    fn meaning(&self, folder: usize, name: &OsStr) -> Option<usize> {
        *self.meanings.get(&(folder, name.to_owned()))?.last()?
    }

    fn set(&mut self, folder: usize, name: &OsStr, node: Option<usize>) {
        self.meanings.entry((folder, name.to_owned())).or_insert_with(|| vec![None]).push(node);
    }

    fn live(&mut self, inode: u64) -> &mut Vec<u8> {
        match &mut self.nodes[self.by_inode[&inode]] {
            Node::File { live, .. } => live,
            Node::Folder => panic!("a folder has no bytes"),
        }
    }

    /// Does what a call did that succeeded.
    pub(super) fn apply(&mut self, call: &Call, made: Option<u64>) {
        match call {
            Call::Other(_) => {}
            Call::MakeFolder { above, name } => {
                let folder = self.by_inode[above];
                let number = self.make(made.unwrap(), Node::Folder);
                self.set(folder, name, Some(number));
            }
            Call::Create { folder, name } => {
                let folder = self.by_inode[folder];
                let number = self.make(made.unwrap(), Node::File { synced: Vec::new(), live: Vec::new() });
                self.set(folder, name, Some(number));
            }
            Call::Reserve { file, len } => {
                let live = self.live(*file);
                live.resize(live.len().max(*len as usize), 0);
            }
            Call::SetLen { file, len } => self.live(*file).resize(*len as usize, 0),
            Call::Write { file, offset, bytes } => {
                let (live, from) = (self.live(*file), *offset as usize);
                live.resize(live.len().max(from + bytes.len()), 0);
                live[from..from + bytes.len()].copy_from_slice(bytes);
            }
            Call::Sync { file } => {
                let number = self.by_inode[file];
                match &mut self.nodes[number] {
                    Node::File { synced, live } => synced.clone_from(live),
                    Node::Folder => {
                        let of_it = |(folder, _): &Entry| *folder == number;
                        for (_, meanings) in self.meanings.iter_mut().filter(|(entry, _)| of_it(entry)) {
                            meanings.drain(..meanings.len() - 1);
                        }
                    }
                }
            }
            Call::Link { folder, from, to } => {
                let folder = self.by_inode[folder];
                let node = self.meaning(folder, from);
                self.set(folder, to, node);
            }
            Call::Rename { folder, from, to } => {
                let folder = self.by_inode[folder];
                let node = self.meaning(folder, from);
                self.set(folder, to, node);
                self.set(folder, from, None);
            }
            Call::RemoveFolder { above: folder, name } | Call::Unlink { folder, name } => {
                let folder = self.by_inode[folder];
                self.set(folder, name, None);
            }
        }
    }

    /// Every state that a power cut may leave now. Of the bytes of temporary files, which nobody reads, one guess is enough.
    pub(super) fn after_a_power_cut(&self) -> BTreeSet<State> {
        let mut states: Vec<BTreeMap<&Entry, usize>> = vec![BTreeMap::new()];
        for (entry, meanings) in &self.meanings {
            let distinct: BTreeSet<_> = meanings.iter().copied().collect();
            let with = |state: &BTreeMap<_, _>, meaning: &Option<usize>| {
                let mut state = state.clone();
                state.extend(meaning.map(|node| (entry, node)));
                state
            };
            states = states.iter().flat_map(|state| distinct.iter().map(|node| with(state, node))).collect();
        }
        let mut found = BTreeSet::new();
        for state in states {
            self.contents(&state, &mut found);
        }
        found
    }

    fn contents(&self, names: &BTreeMap<&Entry, usize>, found: &mut BTreeSet<State>) {
        let mut paths = Vec::new();
        self.walk(0, &OsString::new(), names, &mut paths);
        let mut choices: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for (path, node) in &paths {
            let hidden = Path::new(path).file_name().unwrap().as_encoded_bytes().starts_with(b".");
            let possible = self.possible_bytes(*node, hidden);
            let choice = choices.entry(*node).or_default();
            if possible.len() > choice.len() {
                *choice = possible;
            }
        }
        let mut picks: Vec<BTreeMap<usize, &Vec<u8>>> = vec![BTreeMap::new()];
        for (node, possible) in &choices {
            let each = picks.iter().flat_map(|pick| possible.iter().map(move |bytes| (pick.clone(), bytes)));
            picks = each
                .map(|(mut pick, bytes)| {
                    pick.insert(*node, bytes);
                    pick
                })
                .collect();
        }
        for pick in picks {
            found.insert(
                paths.iter().map(|(path, node)| (path.clone(), (*node, pick[node].clone()))).collect(),
            );
        }
    }

    /// The files below a folder, as far as it and they are there.
    fn walk(
        &self,
        folder: usize,
        path: &OsStr,
        names: &BTreeMap<&Entry, usize>,
        paths: &mut Vec<(OsString, usize)>,
    ) {
        for ((of, name), &node) in names.iter().filter(|((of, _), _)| *of == folder).map(|(e, n)| (*e, n)) {
            debug_assert_eq!(*of, folder);
            let path = Path::new(path).join(name).into_os_string();
            match self.nodes[node] {
                Node::File { .. } => paths.push((path, node)),
                Node::Folder => self.walk(node, &path, names, paths),
            }
        }
    }

    fn possible_bytes(&self, node: usize, hidden: bool) -> Vec<Vec<u8>> {
        let Node::File { synced, live } = &self.nodes[node] else { return Vec::new() };
        if synced == live {
            return vec![live.clone()];
        }
        let mut half = live.clone();
        half[live.len() / 2..].fill(0);
        if hidden {
            return vec![half];
        }
        vec![synced.clone(), Vec::new(), vec![0; live.len()], half, live.clone()]
    }
}

/// Makes a folder of a state.
pub(super) fn materialize(state: &State, root: &Path) {
    let mut made: BTreeMap<usize, std::path::PathBuf> = BTreeMap::new();
    for (path, (number, bytes)) in state {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match made.get(number) {
            Some(first) => fs::hard_link(first, &path).unwrap(),
            None => {
                fs::write(&path, bytes).unwrap();
                made.insert(*number, path);
            }
        }
    }
}
