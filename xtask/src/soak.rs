//! `cargo xtask soak`: builds the load soak and what it needs, and runs it. Its program is in xtask/soak.

use anyhow::Result;

use crate::test::Needs;
use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Cargo's profile to build by
    #[arg(long, default_value = "release")]
    profile: String,
    /// Scenarios and options of the program, as in `cargo xtask soak loads --loads 50 --json FILE`; `-- --help` has them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let needs = Needs::prepare()?;
    let program = workspace::build("soak", &arguments.profile)?.join("soak");
    let mut soak = std::process::Command::new(program);
    soak.args(&arguments.options);
    needs.give(&mut soak);
    let status = soak.status()?;
    if !status.success() {
        // It has said why.
        std::process::exit(status.code().unwrap_or(1));
    }
    Ok(())
}
