//! The parts of a load alone, on the GPU: what the link, the storage and their taking turns allow.

use std::path::Path;

use anyhow::Result;
use cuda_staging::Device;
use gds_loader::{Loader, Measure};
use serde_json::{Value, json};

/// Each part, once untimed so that what is first touched, pinned or opened is no part of it, then three times.
pub(super) fn parts(model: &Path) -> Result<Value> {
    let loader = Loader::new().device(Device::cuda(0)?);
    let mut found = json!({});
    let mut said = Vec::new();
    for (name, measure) in [
        ("copy alone", Measure::CopyAlone),
        ("a copy per tensor", Measure::CopyPerTensor),
        ("read alone", Measure::ReadAlone),
        ("serial", Measure::Serial),
        ("pipelined", Measure::Pipelined),
    ] {
        loader.measure(model, measure)?;
        let mut reports = Vec::new();
        for _ in 0..3 {
            reports.push(loader.measure(model, measure)?);
        }
        reports.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        // Of the copies alone only their own time counts: the link's rate is asked, not the load's.
        let seconds = match measure {
            Measure::CopyAlone | Measure::CopyPerTensor => reports[1].stages.copy_s,
            _ => reports[1].seconds,
        };
        let rate = reports[1].bytes as f64 / seconds / 1e9;
        said.push(format!("{name} {rate:.1}"));
        found[name] = json!({"gb_per_s": rate, "reports": reports});
    }
    Ok(json!({"outcome": "passed", "said": format!("GB/s: {}", said.join(", ")), "found": found}))
}
