//! What a folder without an index means, said by an index.
//!
//! Such a folder means something else as soon as a shard is beside its files, so an index that says the same is published first.

use super::error::PublishError;
use super::folder::Folder;
use crate::format::HeaderLimits;
use crate::format::index::shard_name_problem;
use crate::source::Source;

/// The text of that index, and the files it names.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) text: Vec<u8>,
    pub(super) files: Vec<String>,
}

/// What `folder`, which has no index, means; nothing where readers find no whole checkpoint.
///
/// # Errors
/// [`PublishError::Unsayable`] where it means something that cannot be read, or that no index of readers can say.
pub(super) fn meaning(folder: &Folder) -> Result<Option<Bridge>, PublishError> {
    let unsayable = |reason| PublishError::Unsayable { folder: folder.path.clone(), reason };
    let source = match Source::open(&folder.path) {
        Ok(source) => source,
        Err(error) if error.is_invalid_data() || error.is_not_found() => return Ok(None),
        Err(error) => return Err(unsayable(error.to_string())),
    };
    let mut names = Vec::with_capacity(source.shards.len());
    for shard in &source.shards {
        let shown = shard.path.display();
        // In a repository of the Hugging Face cache, which means one of its snapshots, they are further below.
        let below = shard.path.strip_prefix(&folder.path).ok();
        let name = below.and_then(|below| below.to_str());
        let name = name.ok_or_else(|| unsayable(format!("the name of {shown} is no text")))?;
        if let Some(problem) = shard_name_problem(name) {
            return Err(unsayable(format!("the name of {shown} {problem}, and no index may name it")));
        }
        names.push(name);
    }
    let mut files: Vec<String> = Vec::new();
    let mut map = serde_json::Map::new();
    for tensor in &source.tensors {
        let Some(&file) = names.get(tensor.shard as usize) else { continue };
        map.insert(source.entry(*tensor).name.to_string(), file.into());
        if files.last().is_none_or(|last| last != file) {
            files.push(file.to_owned());
        }
    }
    if files.is_empty() {
        return Ok(None);
    }
    let metadata = serde_json::json!({ "total_size": source.bytes() });
    let text = serde_json::json!({ "metadata": metadata, "weight_map": map }).to_string().into_bytes();
    let (len, most) = (text.len() as u64, HeaderLimits::default().effective());
    if len > most {
        return Err(unsayable(format!("its index would have {len} bytes, and readers take at most {most}")));
    }
    Ok(Some(Bridge { text, files }))
}
