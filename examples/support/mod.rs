//! A model to load where none is given on the command line.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView};

/// The path given on the command line, or that of a small model made for the occasion.
pub(crate) fn model() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(path) = std::env::args_os().nth(1) {
        return Ok(path.into());
    }
    let path = std::env::temp_dir().join("gds-example.safetensors");
    let weight: Vec<u8> = (0..1_u32 << 20).flat_map(|value| (value as f32).to_le_bytes()).collect();
    let bias = [0_u8; 4096];
    let tensors = BTreeMap::from([
        ("layer.weight", TensorView::new(Dtype::F32, vec![1024, 1024], &weight)?),
        ("layer.bias", TensorView::new(Dtype::BF16, vec![2048], &bias)?),
    ]);
    safetensors::serialize_to_file(tensors, None, &path)?;
    println!("no PATH given: made {}", path.display());
    Ok(path)
}
