//! The script: `CALL[>SIZE][[FILE]][@K]=EFFECT`, separated by commas or semicolons. The package's README has the whole of it.

use std::time::Duration;

use bytesize::ByteSize;
use cufile_sys::{
    CUFILE_CANCELED, CUFILE_FAILED, CUFILE_INVALID, CUFILE_PENDING, CUFILE_TIMEOUT, CUFILE_WAITING,
    CUFILEStatus_enum, CUfileOpError,
};

use super::names::{self, Class};
use super::{Effect, Fault, When};
use crate::error::Failure;

/// Reads a script; the error says which fault of it is none, and why.
pub(crate) fn parse(script: &str) -> Result<Vec<Fault>, String> {
    let faults = script.split([',', ';']).map(str::trim).filter(|text| !text.is_empty());
    faults.map(|text| fault(text).map_err(|reason| format!("{text:?}: {reason}"))).collect()
}

fn fault(text: &str) -> Result<Fault, String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    let call = names::known(name).ok_or_else(|| format!("cuFile has no call {name:?}"))?;

    let mut above = None;
    if let Some(after) = rest.strip_prefix('>') {
        let end = after.find(['[', '@', '=']).unwrap_or(after.len());
        let (size, after) = after.split_at(end);
        let bytes =
            size.parse::<ByteSize>().map_err(|_| format!("{size:?} is no size, as 4096 or 16MiB are"))?;
        (above, rest) = (Some(bytes.as_u64()), after);
    }
    let mut file = None;
    if let Some(after) = rest.strip_prefix('[') {
        let (part, after) =
            after.split_once(']').ok_or("[ without ]: expected a part of a file's path within")?;
        (file, rest) = (Some(part.to_owned()), after);
    }
    let (when, effect) = rest.split_once('=').ok_or("expected CALL@K=EFFECT")?;
    let when = match when.strip_prefix('@') {
        Some(when) => number_of_use(when)?,
        None if when.is_empty() => When::From(1),
        None => return Err(format!("{when:?} is not understood: expected CALL@K=EFFECT")),
    };
    let effect =
        self::effect(effect, names::class(&call)).map_err(|reason| format!("{reason}, for {call}"))?;
    Ok(Fault { text: text.to_owned(), call, above, file, when, effect, seen: 0, fired: 0 })
}

/// `7`, `7+`, or `*`.
fn number_of_use(text: &str) -> Result<When, String> {
    let (number, when): (&str, fn(u64) -> When) = match text.strip_suffix('+') {
        _ if text == "*" => return Ok(When::From(1)),
        Some(number) => (number, When::From),
        None => (text, When::Only),
    };
    let number = number.parse().ok().filter(|&number| number > 0);
    number.map(when).ok_or_else(|| format!("K is the number of the use, counted from 1, or *, not {text:?}"))
}

fn effect(text: &str, class: Class) -> Result<Effect, String> {
    let (word, argument) = match text.split_once(':') {
        Some((word, argument)) => (word, Some(argument)),
        None => (text, None),
    };
    let moves_bytes = matches!(class, Class::Transfer | Class::Async | Class::Event);
    let effect = match (word, argument) {
        ("hang", None) => Effect::Hang(None),
        ("hang", Some(duration)) => Effect::Hang(Some(self::duration(duration)?)),
        ("short", part) if moves_bytes => match part.unwrap_or("2").parse() {
            Ok(part) if part > 1 => Effect::Part(part),
            _ => return Err("short:D moves the D-th part of the bytes, D being 2 or more".to_owned()),
        },
        ("bytes", Some(count)) if moves_bytes => match count.parse::<isize>() {
            Ok(count) => usize::try_from(count).map_or(Effect::Count(count), Effect::AtMost),
            Err(_) => return Err(format!("{count:?} is no number of bytes")),
        },
        ("corrupt", None) if moves_bytes => Effect::Corrupt,
        ("posix", None) if moves_bytes => Effect::Posix,
        ("lost", None) if class == Class::Event => Effect::Lost,
        ("-1", Some(errno)) if class == Class::Transfer => Effect::Fail(failure(errno)?),
        ("-1", None) if class == Class::Transfer => {
            return Err("-1 needs the errno that is left with it, as in -1:5027".to_owned());
        }
        (count, None) if count.starts_with('-') && moves_bytes => {
            Effect::Count(count.parse().map_err(|_| format!("{count:?} is no negative count"))?)
        }
        (name, count) if class == Class::Event && status(name).is_some() => {
            let status = status(name).unwrap_or(CUFILE_FAILED);
            let count =
                count.unwrap_or("-5").parse().map_err(|_| format!("{text:?}: no count after the colon"))?;
            Effect::Event(status, count)
        }
        (code, None) if matches!(class, Class::Status | Class::Transfer | Class::Async) => {
            Effect::Fail(failure(code)?)
        }
        _ => return Err(format!("{text:?} cannot happen")),
    };
    Ok(effect)
}

/// A code of cuFile, or of the system in `errno`; `5011/719` has a CUDA code as well.
fn failure(text: &str) -> Result<Failure, String> {
    let (code, cuda) = text.split_once('/').unwrap_or((text, "0"));
    let parse =
        |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is neither a code nor an effect"));
    let (code, cuda) = (parse(code)?, parse(cuda)?);
    if code == 0 {
        return Err("0 is success, no fault".to_owned());
    }
    Ok(Failure { code: CUfileOpError(code), cuda })
}

fn duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let duration = match unit {
        "us" => Duration::from_micros,
        "ms" => Duration::from_millis,
        "s" => Duration::from_secs,
        _ => return Err(format!("{text:?} is no time, as 200ms, 50us or 3s are")),
    };
    number.parse().map(duration).map_err(|_| format!("{text:?} is no time, as 200ms, 50us or 3s are"))
}

/// The statuses of a batch's event but the one of success.
fn status(name: &str) -> Option<CUFILEStatus_enum> {
    Some(match name {
        "WAITING" => CUFILE_WAITING,
        "PENDING" => CUFILE_PENDING,
        "INVALID" => CUFILE_INVALID,
        "CANCELED" => CUFILE_CANCELED,
        "TIMEOUT" => CUFILE_TIMEOUT,
        "FAILED" => CUFILE_FAILED,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect_of(text: &str) -> Effect {
        parse(text).unwrap_or_else(|reason| panic!("{reason}")).remove(0).effect
    }

    fn failed(code: u32, cuda: u32) -> Effect {
        Effect::Fail(Failure { code: CUfileOpError(code), cuda })
    }

    #[test]
    fn every_effect_is_understood() {
        for (text, effect) in [
            ("read@7=-1:5027", failed(5027, 0)),
            ("read@*=short:2", Effect::Part(2)),
            ("read@*=short", Effect::Part(2)),
            ("write@3=-5", Effect::Count(-5)),
            ("handle_register@*=5030", failed(5030, 0)),
            ("cuFileBufRegister>16MiB=5016", failed(5016, 0)),
            ("batch_event@2=FAILED", Effect::Event(CUFILE_FAILED, -5)),
            ("batch_event@2=CANCELED:0", Effect::Event(CUFILE_CANCELED, 0)),
            ("batch_event@2=short:3", Effect::Part(3)),
            ("batch_event=lost", Effect::Lost),
            ("read_async@1=bytes:-5", Effect::Count(-5)),
            ("read_async@1=bytes:100", Effect::AtMost(100)),
            ("read_async@1=5011/719", failed(5011, 719)),
            ("open@1=hang", Effect::Hang(None)),
            ("read@5=hang:200ms", Effect::Hang(Some(Duration::from_millis(200)))),
            ("read@4=5999", failed(5999, 0)),
            ("readv=corrupt", Effect::Corrupt),
            ("read[shard-2]@1=posix", Effect::Posix),
            ("batch_destroy=hang:1s", Effect::Hang(Some(Duration::from_secs(1)))),
        ] {
            assert_eq!(effect_of(text), effect, "{text}");
        }
    }

    #[test]
    fn conditions_are_understood() {
        let faults = parse("read>16MiB[a b]@2+=-5; buf_register>4096=5016 ,,open=5001").unwrap();
        let [read, register, open] = faults.as_slice() else { panic!("{faults:?}") };
        assert_eq!(
            (read.above, read.file.as_deref(), read.when),
            (Some(16 << 20), Some("a b"), When::From(2))
        );
        assert_eq!((register.above, register.when), (Some(4096), When::From(1)));
        assert_eq!((open.call.as_str(), open.above, open.file.as_ref()), ("driver_open", None, None));
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in [
            "read",
            "read@1",
            "read@0=-5",
            "read@x=-5",
            "read@=-5",
            "read7=-5",
            "read@1=",
            "read@1=0",
            "read@1=-1",
            "read@1=FAILED",
            "read@1=lost",
            "read@1=short:1",
            "read@1=bytes",
            "read@1=hang:5",
            "read@1=hang:ms",
            "read>big@1=-5",
            "read[a@1=-5",
            "reed@1=-5",
            "cuFileReed@1=-5",
            "open@1=-5",
            "open@1=short",
            "open@1=-1:5001",
            "batch_event@1=5027",
            "batch_event@1=COMPLETE",
            "batch_destroy=5030",
            "use_count@1=7",
            "@1=5",
        ] {
            let error = parse(&format!("open@9=5001,{text}")).expect_err(text);
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
