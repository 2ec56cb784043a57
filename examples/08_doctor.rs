//! Lesson 8: ask the doctor, as a server would before it decides how to load.
//!
//!     cargo run --release --example 08_doctor -- [PATH]
//!
//! `gds check` prints the same; here a program reads it.

use gds_loader::check::{Level, Options, examine};

fn main() {
    let mut options = Options::default();
    options.path = std::env::args_os().nth(1).map(Into::into);
    // `options.open_cufile` stays off: opening cuFile fixes its mode for the whole process, and this one may still want
    // to choose. The verdict then rests on what can be seen from outside.
    let checkup = examine(&options);

    println!("{}", checkup.verdict.summary);
    // Ids are stable, so a program can look for what it knows.
    for finding in checkup.findings.iter().filter(|finding| finding.level >= Level::Warning) {
        println!("{}: {}", finding.id, finding.found);
        if let Some(advice) = &finding.advice {
            println!("    {advice}");
        }
    }
    // The facts behind the findings are there as data.
    for gpu in &checkup.gpus {
        let window = gpu.bar1_bytes.map_or("unknown".into(), |bytes| format!("{} MiB", bytes >> 20));
        let nearest = checkup
            .routes
            .iter()
            .filter(|route| Some(&route.gpu) == gpu.pci_address.as_ref())
            .min_by_key(|route| route.distance);
        let nearest = nearest.map_or("no NVMe drive".into(), |route| {
            format!("nearest drive {} ({})", route.drive, route.distance.code())
        });
        println!("{}: BAR1 {window}, {nearest}", gpu.name);
    }
    if !checkup.verdict.gds {
        println!("A cufile.json for this machine:\n{}", checkup.suggested_config);
    }
}
