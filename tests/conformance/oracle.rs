//! What a model's files hold, by the `safetensors` crate and a plain read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;

/// One tensor as the oracle sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// The tensors of a model, by name.
pub(crate) type Tensors = BTreeMap<String, Expected>;

/// The tensors of one file.
pub(crate) fn of_file(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let expected = |view: safetensors::tensor::TensorView<'_>| Expected {
        dtype: format!("{:?}", view.dtype()),
        shape: view.shape().iter().map(|&dimension| dimension as u64).collect(),
        bytes: view.data().to_vec(),
    };
    file.iter().map(|(name, view)| (name.to_owned(), expected(view))).collect()
}

/// The tensors of several files, which share no name.
pub(crate) fn of_files<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Tensors {
    let mut tensors = Tensors::new();
    for (name, tensor) in paths.into_iter().flat_map(|path| of_file(path.as_ref())) {
        assert!(tensors.insert(name.clone(), tensor).is_none(), "{name} is in two files");
    }
    tensors
}
