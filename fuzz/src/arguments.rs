//! The command line with files from strangers: whatever they and their names hold, a command ends with a code that is documented,
//! prints nothing that could steer a terminal, and its JSON is JSON.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use arbitrary::{Result, Unstructured};
use gds::Exit;
use gds_loader::Verifier;

use crate::captured::captured;
use crate::model::{Model, text};
use crate::scratch;

/// An input that is too short for a case is none.
pub fn run(data: &[u8]) {
    let _short = called(&mut Unstructured::new(data));
}

fn called(u: &mut Unstructured<'_>) -> Result<()> {
    let folder = tempfile::tempdir_in(scratch::in_memory()).unwrap();
    let folder = folder.path();
    let (path, manifest) = files(u, folder)?;
    let command = *u.choose(&["inspect", "load", "verify"])?;
    let mut words: Vec<OsString> = vec!["gds".into(), command.into()];
    let mut json = false;
    for _ in 0..u.int_in_range(0..=5)? {
        let option = option(u, command, &manifest)?;
        json |= option.iter().any(|word| word == "--json");
        words.extend(option);
    }
    if command == "load" {
        words.extend(["--device".into(), "cpu".into()]);
    }
    words.push(path);
    let outcome = captured(|| gds::run(words.iter().cloned()));
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let (out, err) = (&outcome.stdout, &outcome.stderr);
    for output in [out, err] {
        let text = std::str::from_utf8(output).unwrap_or_else(|_| panic!("{words:?}: {}", shown(output)));
        let steers = |character: char| character != '\n' && (character.is_control() || reorders(character));
        assert!(!text.contains(steers), "{words:?}: {}", shown(output));
    }
    let failed = outcome.returned != Exit::Done;
    // Only `verify` says what is wrong as its result.
    assert!(
        !failed || !err.is_empty() || command == "verify" && !out.is_empty(),
        "{words:?}: nothing is said"
    );
    if json && !out.is_empty() {
        let parsed: serde_json::Result<serde_json::Value> = serde_json::from_slice(out);
        assert!(parsed.is_ok_and(|value| value.is_object()), "{words:?}: {}", shown(out));
    }
    Ok(())
}

/// Characters that show a text in another order or on another line than it is written.
fn reorders(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// One option of the command, with its value. None that names a file to be written anywhere but in the folder.
fn option(u: &mut Unstructured<'_>, command: &str, manifest: &Path) -> Result<Vec<OsString>> {
    let valued = |name: &str, value: OsString| vec![name.into(), value];
    let number = |u: &mut Unstructured<'_>| -> Result<OsString> {
        Ok((*u.choose(&[
            "0",
            "1",
            "3",
            "4096",
            "12288",
            "1MiB",
            "8EiB",
            "99999999999",
            "-1",
            "1.5",
            "x\u{1b}",
        ])?)
        .into())
    };
    Ok(match (command, u.int_in_range(0..=9)?) {
        (_, 0..=2) => vec!["--json".into()],
        ("inspect", 3) => vec!["--all".into()],
        ("inspect" | "load", 4 | 5) => valued("--tensors", text(u)?.replace('\0', "").into()),
        ("load" | "verify", 3) => valued(
            "--backend",
            (*u.choose(&["auto", "buffered", "mmap", "direct", "gds", "lazy", "x\u{9b}"])?).into(),
        ),
        ("load", 6) => valued(
            u.choose(&["--threads", "--slots", "--depth"])?,
            (*u.choose(&["0", "1", "3", "x"])?).into(),
        ),
        ("load", 7) => valued(u.choose(&["--slot-size", "--read-size"])?, number(u)?),
        ("load", 8) => vec!["--digest".into()],
        ("load" | "verify", 9) => valued("--manifest", manifest.into()),
        ("verify", 4) => vec![
            "--manifest".into(),
            manifest.into(),
            "--manifest-mode".into(),
            "device".into(),
            "--device".into(),
            "cpu".into(),
        ],
        ("verify", 5) => valued("--write-manifest", manifest.with_extension("new").into()),
        // What a shell makes of `gds load *` in a stranger's folder.
        _ => vec![name(u)?],
    })
}

/// Writes the files; what the command is given, and where the manifest is.
fn files(u: &mut Unstructured<'_>, folder: &Path) -> Result<(OsString, std::path::PathBuf)> {
    let model = Model::arbitrary(u)?;
    let mut bytes = model.bytes();
    let mut name = name(u)?;
    if u.ratio(3, 4)? {
        name.push(".safetensors");
    }
    let path = folder.join(&name);
    if fs::write(&path, &bytes).is_err() {
        // "." and "..", and names longer than names may be.
        return Ok((path.into(), folder.join("manifest")));
    }
    let manifest = folder.join("manifest");
    // A name may also say that it is an index.
    if path != manifest
        && u.arbitrary()?
        && let Ok((truth, _)) = Verifier::new().read(&path)
    {
        let mut text = truth.to_json().into_bytes();
        damage(u, &mut text)?;
        fs::write(&manifest, text).unwrap();
    }
    if u.ratio(1, 3)? {
        damage(u, &mut bytes)?;
        fs::write(&path, &bytes).unwrap();
    }
    if u.ratio(1, 4)? {
        // An index that may name the file, under the name it has or under another.
        let shard = if u.arbitrary()? { name.to_string_lossy().into_owned() } else { text(u)? };
        let tensor = model.tensors.first().map_or("w", |tensor| &tensor.name);
        let index = serde_json::json!({ "weight_map": { tensor: shard } }).to_string();
        let at = folder.join(if u.arbitrary()? {
            "model.safetensors.index.json"
        } else {
            "\u{1b}c.safetensors.index.json"
        });
        if at != path {
            fs::write(&at, index).unwrap();
        }
    }
    Ok((if u.arbitrary()? { folder.into() } else { path.into() }, manifest))
}

/// Changes, cuts or extends bytes, or does nothing.
fn damage(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=3)? {
        let at = u.int_in_range(0..=bytes.len())?;
        match u.int_in_range(0..=4)? {
            0 => bytes.truncate(at),
            1 => bytes.push(u.arbitrary()?),
            // Within the first kilobyte, where a header is.
            2 => {
                let (at, byte) = (u.int_in_range(0..=bytes.len().min(1024))?, u.arbitrary()?);
                bytes.iter_mut().skip(at).take(1).for_each(|place| *place = byte);
            }
            3 => {
                let escape =
                    *u.choose(&["\\u001b[31m", "\\u009b2J", "\\n", "\u{7f}", "\u{85}", "\u{202e}"])?;
                bytes.splice(at..at, escape.bytes());
            }
            _ => {}
        }
    }
    Ok(())
}

/// The name of a file: any bytes that a name may have.
fn name(u: &mut Unstructured<'_>) -> Result<OsString> {
    let mut bytes = if u.arbitrary()? {
        text(u)?.into_bytes()
    } else {
        let count = u.int_in_range(1..=16)?;
        u.bytes(count)?.to_vec()
    };
    bytes.retain(|byte| !matches!(byte, b'/' | 0));
    bytes.insert(0, b'm');
    Ok(OsString::from_vec(bytes))
}
