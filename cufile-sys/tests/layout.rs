//! The layout of every type that crosses the boundary, and the value of every constant: against the numbers written
//! here, and against the C compiler where NVIDIA's headers have been fetched.

#![allow(clippy::unwrap_used, reason = "a failure here fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use cufile_sys::*;
use test_support::folder::on_disk;
use test_support::{compile, cufile};

const BINDINGS: &str = include_str!("../src/bindings.rs");

/// A type: the numbers written here, and those of the Rust compiler.
struct Layout {
    rust: &'static str,
    c: &'static str,
    expected: (usize, usize),
    actual: (usize, usize),
    /// Name, expected and actual offset.
    fields: Vec<(&'static str, usize, usize)>,
}

macro_rules! layouts {
    ($($rust:ident = $c:literal: $size:literal, $align:literal { $($field:ident: $offset:literal,)* })*) => {
        vec![$(Layout {
            rust: stringify!($rust),
            c: $c,
            expected: ($size, $align),
            actual: (size_of::<$rust>(), align_of::<$rust>()),
            fields: vec![$((stringify!($field), $offset, offset_of!($rust, $field))),*],
        }),*]
    };
}

/// Every struct and union: its name in Rust and C, size, alignment, and the offsets of its fields, in bytes.
#[rustfmt::skip]
fn layouts() -> Vec<Layout> {
    layouts! {
        CUfileError = "CUfileError_t": 8, 4 {
            err: 0, cu_err: 4,
        }
        CUfileDrvProps = "CUfileDrvProps_t": 56, 8 {
            nvfs: 0, fflags: 32, max_device_cache_size: 36, per_buffer_cache_size: 40,
            max_device_pinned_mem_size: 44, max_batch_io_size: 48, max_batch_io_timeout_msecs: 52,
        }
        CUfileDrvProps_nvfs = "__typeof__(((CUfileDrvProps_t *)0)->nvfs)": 32, 8 {
            major_version: 0, minor_version: 4, poll_thresh_size: 8, max_direct_io_size: 16,
            dstatusflags: 24, dcontrolflags: 28,
        }
        cufileRDMAInfo = "cufileRDMAInfo_t": 16, 8 {
            version: 0, desc_len: 4, desc_str: 8,
        }
        CUfileFSOps = "CUfileFSOps_t": 40, 8 {
            fs_type: 0, getRDMADeviceList: 8, getRDMADevicePriority: 16, read: 24, write: 32,
        }
        CUfileDescr_t = "CUfileDescr_t": 24, 8 {
            type_: 0, handle: 8, fs_ops: 16,
        }
        CUfileDescr_handle = "__typeof__(((CUfileDescr_t *)0)->handle)": 8, 8 {
            fd: 0, handle: 0,
        }
        CUfileIOParams = "CUfileIOParams_t": 64, 8 {
            mode: 0, u: 8, fh: 40, opcode: 48, cookie: 56,
        }
        CUfileIOParams_u = "__typeof__(((CUfileIOParams_t *)0)->u)": 32, 8 {
            batch: 0,
        }
        CUfileIOParams_batch = "__typeof__(((CUfileIOParams_t *)0)->u.batch)": 32, 8 {
            devPtr_base: 0, file_offset: 8, devPtr_offset: 16, size: 24,
        }
        CUfileIOEvents = "CUfileIOEvents_t": 24, 8 {
            cookie: 0, status: 8, ret: 16,
        }
        CUfileIOVec = "CUfileIOVec_t": 16, 8 {
            base: 0, len: 8,
        }
        CUfileOpCounter = "CUfileOpCounter_t": 16, 8 {
            ok: 0, err: 8,
        }
        CUfileStatsLevel1 = "CUfileStatsLevel1_t": 624, 8 {
            read_ops: 0, write_ops: 16, hdl_register_ops: 32, hdl_deregister_ops: 48, buf_register_ops: 64,
            buf_deregister_ops: 80, read_bytes: 96, write_bytes: 104, read_bw_bytes_per_sec: 112,
            write_bw_bytes_per_sec: 120, read_lat_avg_us: 128, write_lat_avg_us: 136, read_ops_per_sec: 144,
            write_ops_per_sec: 152, read_lat_sum_us: 160, write_lat_sum_us: 168, batch_submit_ops: 176,
            batch_complete_ops: 192, batch_setup_ops: 208, batch_cancel_ops: 224, batch_destroy_ops: 240,
            batch_enqueued_ops: 256, batch_posix_enqueued_ops: 272, batch_processed_ops: 288,
            batch_posix_processed_ops: 304, batch_nvfs_submit_ops: 320, batch_p2p_submit_ops: 336,
            batch_aio_submit_ops: 352, batch_iouring_submit_ops: 368, batch_mixed_io_submit_ops: 384,
            batch_total_submit_ops: 400, batch_read_bytes: 416, batch_write_bytes: 424,
            batch_read_bw_bytes: 432, batch_write_bw_bytes: 440, batch_submit_lat_avg_us: 448,
            batch_completion_lat_avg_us: 456, batch_submit_ops_per_sec: 464,
            batch_complete_ops_per_sec: 472, batch_submit_lat_sum_us: 480, batch_completion_lat_sum_us: 488,
            last_batch_read_bytes: 496, last_batch_write_bytes: 504, readv_ops: 512, writev_ops: 528,
            readv_bytes: 544, writev_bytes: 552, readv_bw_bytes_per_sec: 560, writev_bw_bytes_per_sec: 568,
            readv_lat_avg_us: 576, writev_lat_avg_us: 584, readv_ops_per_sec: 592, writev_ops_per_sec: 600,
            readv_lat_sum_us: 608, writev_lat_sum_us: 616,
        }
        CUfileStatsLevel2 = "CUfileStatsLevel2_t": 1136, 8 {
            basic: 0, read_size_kb_hist: 624, write_size_kb_hist: 880,
        }
        CUfilePerGpuStats = "CUfilePerGpuStats_t": 248, 8 {
            uuid: 0, read_bytes: 16, read_bw_bytes_per_sec: 24, read_utilization: 32, read_duration_us: 40,
            n_total_reads: 48, n_p2p_reads: 56, n_nvfs_reads: 64, n_posix_reads: 72, n_unaligned_reads: 80,
            n_dr_reads: 88, n_sparse_regions: 96, n_inline_regions: 104, n_reads_err: 112,
            writes_bytes: 120, write_bw_bytes_per_sec: 128, write_utilization: 136, write_duration_us: 144,
            n_total_writes: 152, n_p2p_writes: 160, n_nvfs_writes: 168, n_posix_writes: 176,
            n_unaligned_writes: 184, n_dr_writes: 192, n_writes_err: 200, n_mmap: 208, n_mmap_ok: 216,
            n_mmap_err: 224, n_mmap_free: 232, reg_bytes: 240,
        }
        CUfileStatsLevel3 = "CUfileStatsLevel3_t": 5112, 8 {
            detailed: 0, num_gpus: 1136, per_gpu_stats: 1144,
        }
    }
}

/// The newtypes that stand for C enums.
fn enums() -> Vec<&'static str> {
    let newtype =
        |line: &'static str| line.strip_prefix("pub struct ")?.strip_suffix("(pub ::core::ffi::c_uint);");
    BINDINGS.lines().filter_map(newtype).collect()
}

/// The constants and their values, as the bindings' text gives them, and the flags that are written by hand.
fn constants() -> BTreeMap<String, i64> {
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    let bindings = BINDINGS.split("pub const ").skip(1).filter(|text| text.starts_with("CU"));
    let bindings = bindings.map(|text| {
        let (declaration, _) = text.split_once(';').unwrap();
        let (name, _) = declaration.split_once(':').unwrap();
        // `= 5` or `= Type(5)`.
        let value = declaration.rsplit(['=', '(']).next().unwrap();
        (name.to_owned(), digits(value).parse().unwrap())
    });
    let flags = [
        ("CU_FILE_P2P_FLAG_PCI_P2PDMA", CU_FILE_P2P_FLAG_PCI_P2PDMA),
        ("CU_FILE_P2P_FLAG_NVFS", CU_FILE_P2P_FLAG_NVFS),
        ("CU_FILE_P2P_FLAG_DMABUF", CU_FILE_P2P_FLAG_DMABUF),
        ("CU_FILE_P2P_FLAG_C2C", CU_FILE_P2P_FLAG_C2C),
    ];
    bindings.chain(flags.map(|(name, value)| (name.to_owned(), i64::from(value.0)))).collect()
}

#[test]
fn every_type_is_laid_out_as_expected() {
    for Layout { rust, expected, actual, fields, .. } in layouts() {
        assert_eq!(actual, expected, "size and alignment of {rust}");
        for (field, expected, actual) in fields {
            assert_eq!(actual, expected, "offset of {rust}.{field}");
        }
    }
    assert_eq!((size_of::<CUfileOpError>(), align_of::<CUfileOpError>()), (4, 4));
    assert_eq!(size_of::<CUfileHandle_t>(), 8);
    assert_eq!(size_of::<Option<functions::cuFileRead>>(), 8, "an absent function is a null pointer");
}

#[test]
fn no_type_or_field_of_the_bindings_is_missing_here() {
    let mut declared = BTreeSet::new();
    let mut structure = None;
    for line in BINDINGS.lines() {
        if let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub union ")) {
            structure = rest.strip_suffix(" {").filter(|name| *name != "CUstream_st");
            declared.extend(structure.map(str::to_owned));
        } else if line == "}" {
            structure = None;
        } else if let (Some(name), Some(field)) = (structure, line.strip_prefix("    pub ")) {
            declared.insert(format!("{name}.{}", field.split_once(':').unwrap().0));
        }
    }
    let mut tested = BTreeSet::new();
    for Layout { rust, fields, .. } in layouts() {
        tested.insert(rust.to_owned());
        tested.extend(fields.iter().map(|(field, ..)| format!("{rust}.{field}")));
    }
    assert_eq!(tested, declared);
    assert_eq!(enums().len(), 13);
}

/// What the C compiler says of `types` and `names`: lines of numbers, in their order.
fn ask_the_compiler(
    name: &str,
    includes: &[&Path],
    types: &[&Layout],
    enums: &[&str],
    names: &[&str],
) -> Vec<Vec<i64>> {
    let mut source =
        String::from("#include <cufile.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
    for Layout { c, fields, .. } in types {
        write!(source, r#"printf("%zu %zu", sizeof({c}), _Alignof({c}));"#).unwrap();
        for (field, ..) in fields {
            // `type` is a keyword in Rust.
            let field = field.trim_end_matches('_');
            write!(source, r#"printf(" %zu", offsetof({c}, {field}));"#).unwrap();
        }
        source.push_str("puts(\"\");\n");
    }
    for name in enums {
        writeln!(source, r#"printf("%zu %zu\n", sizeof(enum {name}), _Alignof(enum {name}));"#).unwrap();
    }
    for name in names {
        writeln!(source, r#"printf("%lld\n", (long long)({name}));"#).unwrap();
    }
    source.push_str("}\n");
    let scratch = on_disk(name);
    let folder = scratch.path();
    let program = folder.join("layout");
    let includes: Vec<String> = includes.iter().map(|path| format!("-I{}", path.display())).collect();
    compile(&source, &program, &includes);
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect()
}

/// The numbers written here, in the order of `ask_the_compiler`.
fn expected(layout: &Layout) -> Vec<i64> {
    let offsets = layout.fields.iter().map(|(_, offset, _)| *offset);
    let numbers = [layout.expected.0, layout.expected.1].into_iter().chain(offsets);
    numbers.map(|number| number.try_into().unwrap()).collect()
}

#[test]
fn the_c_compiler_agrees() {
    let test = "the_c_compiler_agrees";
    let Some(library) = cufile(test, "1.20") else { return };
    let Some(cuda) = cufile(test, "cuda") else { return };
    let (layouts, enums, constants) = (layouts(), enums(), constants());
    assert_eq!(constants.len(), 142);
    let types: Vec<&Layout> = layouts.iter().collect();
    let names: Vec<&str> = constants.keys().map(String::as_str).collect();
    let includes = [&*library.join("include"), &*cuda.join("include")];
    let answers = ask_the_compiler("layout-1.20", &includes, &types, &enums, &names);

    assert_eq!(answers.len(), types.len() + enums.len() + names.len());
    let mut answers = answers.into_iter();
    for layout in types {
        assert_eq!(answers.next().unwrap(), expected(layout), "{}", layout.rust);
    }
    for name in enums {
        assert_eq!(answers.next().unwrap(), [4, 4], "{name}");
    }
    for (name, value) in &constants {
        assert_eq!(answers.next().unwrap(), [*value], "{name}");
    }
}

/// The older library is called through the same bindings, so the types it knows must not have changed since.
#[test]
fn the_older_header_has_the_same_layouts() {
    let test = "the_older_header_has_the_same_layouts";
    let Some(library) = cufile(test, "1.14") else { return };
    let Some(cuda) = cufile(test, "cuda") else { return };
    let header = std::fs::read_to_string(library.join("include/cufile.h")).unwrap();
    let layouts = layouts();
    let types: Vec<&Layout> =
        layouts.iter().filter(|layout| layout.c.contains("typeof") || header.contains(layout.c)).collect();
    assert_eq!(types.len(), 11, "all but the statistics and the vectors");
    let includes = [&*library.join("include"), &*cuda.join("include")];
    let answers = ask_the_compiler("layout-1.14", &includes, &types, &[], &[]);
    for (layout, answer) in types.iter().zip(answers) {
        assert_eq!(answer, expected(layout), "{}", layout.rust);
    }
}
