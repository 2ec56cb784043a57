//! What happens between the headers and the first read: the index parsed, places given out, runs found and cut into pieces,
//! the destination carved into parts.
//!
//! Two models: 100,000 small tensors in 50 files, as a fine-grained mixture of experts has them, and 700 large ones in 30, as a
//! dense model of 70 billion parameters. `cargo bench -p gds-loader --bench planning`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use cuda_staging::Device;
use gds_loader::format::Index;
use gds_loader::plan::{Cut, FileShape, LayoutRule, Plan, Run, Wanted, cut, lay_out, runs};

/// Tensors of the same size in files of the same length.
struct Model {
    name: &'static str,
    files: u32,
    tensors_per_file: u64,
    tensor_bytes: u64,
}

const MODELS: [Model; 2] = [
    // Of an odd size, so that no run is longer than a tensor on a GPU.
    Model { name: "100,000 small tensors", files: 50, tensors_per_file: 2000, tensor_bytes: 2 * 16 * 15 },
    Model { name: "700 large tensors", files: 30, tensors_per_file: 24, tensor_bytes: 192 << 20 },
];

/// A header's length: where the data of each file begins.
const HEADER: u64 = 200_008;

const GPU: LayoutRule = LayoutRule { alignment: 256, congruence: 1 };
const CPU: LayoutRule = LayoutRule { alignment: 1, congruence: 4096 };

impl Model {
    fn wanted(&self) -> Vec<Wanted> {
        let tensors =
            (0..self.files).flat_map(|file| (0..self.tensors_per_file).map(move |index| (file, index)));
        tensors
            .map(|(file, index)| Wanted {
                file,
                offset: HEADER + index * self.tensor_bytes,
                len: self.tensor_bytes,
                alignment: 2,
            })
            .collect()
    }

    fn shapes(&self) -> Vec<FileShape> {
        let len = HEADER + self.tensors_per_file * self.tensor_bytes;
        vec![FileShape { len, alignment: 4096 }; self.files as usize]
    }

    /// From the tensors to the pieces.
    fn plan(&self, wanted: &[Wanted], rule: LayoutRule) -> Plan {
        let layout = lay_out(wanted, rule);
        cut_for(&runs(wanted, &layout.offsets), &self.shapes(), rule)
    }

    /// An index that names each tensor's file.
    fn index(&self) -> String {
        let places = (0..self.files).flat_map(|file| {
            (0..self.tensors_per_file).map(move |tensor| {
                format!(r#""model.layers.{file}.mlp.experts.{tensor}.weight":"model-{file:05}.safetensors""#)
            })
        });
        format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, places.collect::<Vec<_>>().join(","))
    }
}

fn cut_for(runs: &[Run], shapes: &[FileShape], rule: LayoutRule) -> Plan {
    let straight = rule == CPU;
    let rule = Cut { read_size: 4 << 20, slot_size: 8 << 20, straight, gather: !straight, whole: false };
    cut(runs, shapes, rule)
}

fn planning(criterion: &mut Criterion) {
    for model in MODELS {
        let wanted = model.wanted();
        let mut group = criterion.benchmark_group(model.name);
        let index = model.index();
        group.bench_function("index", |bencher| bencher.iter(|| Index::parse(black_box(index.as_bytes()))));
        for (device, rule) in [("GPU", GPU), ("CPU", CPU)] {
            let layout = lay_out(&wanted, rule);
            let found = runs(&wanted, &layout.offsets);
            let shapes = model.shapes();
            group.bench_function(format!("{device}: lay out"), |bencher| {
                bencher.iter(|| lay_out(black_box(&wanted), rule));
            });
            group.bench_function(format!("{device}: runs"), |bencher| {
                bencher.iter(|| runs(black_box(&wanted), &layout.offsets));
            });
            group.bench_function(format!("{device}: cut"), |bencher| {
                bencher.iter(|| cut_for(black_box(&found), &shapes, rule));
            });
            group.bench_function(format!("{device}: all three"), |bencher| {
                bencher.iter(|| model.plan(black_box(&wanted), rule));
            });
        }
        group.finish();
    }
}

/// Taking the destination apart for the copies, and putting it together again.
fn carving(criterion: &mut Criterion) {
    let model = &MODELS[0];
    let wanted = model.wanted();
    let layout = lay_out(&wanted, GPU);
    let parts = model.plan(&wanted, GPU).parts;
    let device = Device::cpu();
    criterion.bench_function(&format!("carve {} parts", parts.len()), |bencher| {
        bencher.iter_batched(
            || device.allocate(layout.len, 4096),
            |memory| {
                let (carved, parts) = memory?.carve(black_box(&parts))?;
                drop(parts);
                Ok::<_, cuda_staging::Error>(carved.reunite().map(|memory| memory.len()).ok())
            },
            BatchSize::LargeInput,
        );
    });
}

criterion_group!(benches, planning, carving);
criterion_main!(benches);
