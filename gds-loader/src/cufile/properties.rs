//! What the open driver says of itself, and what can be changed while it is open.

use std::ffi::{CString, c_uint};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cufile_sys as sys;

use super::driver::Driver;
use super::error::{CuFileError, CuFileResult};
use super::library::{Library, check, need};

/// The driver's properties. Sizes are in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverProperties {
    /// The version (major, minor) of the nvidia-fs kernel module; (0, 0) where there is none.
    pub nvfs_version: (u32, u32),
    /// Size up to which completion is polled for.
    pub poll_threshold_kib: usize,
    /// The largest single transfer; larger requests are split.
    pub max_direct_io_kib: usize,
    /// Storage that nvidia-fs serves: bit `n` for [`StorageKind`] `n`.
    pub storage_flags: u32,
    /// Whether completion is polled for.
    pub polls: bool,
    /// Whether bytes may bounce through the host.
    pub allows_compat: bool,
    /// Features: bit 0 dynamic routing, 1 batches, 2 streams, 3 parallel I/O, 4 peer-to-peer.
    pub feature_flags: u32,
    /// Device memory for bounce buffers, per GPU.
    pub max_device_cache_kib: u32,
    /// Size of one bounce buffer.
    pub per_buffer_cache_kib: u32,
    /// Registered device memory at most.
    pub max_device_pinned_kib: u32,
    /// Operations in a batch at most.
    pub max_batch_size: u32,
    /// How long a batch may take, in milliseconds.
    pub batch_timeout_ms: u32,
}

impl DriverProperties {
    /// Whether nvidia-fs serves this kind of storage.
    pub fn serves(&self, kind: StorageKind) -> bool {
        self.storage_flags & (1 << kind.raw().0) != 0
    }
}

macro_rules! storage {
    ($($name:ident = $constant:ident $words:literal,)*) => {
        /// A kind of storage, as the library tells them apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum StorageKind {
            $(#[doc = concat!($words, ".")] $name,)*
        }

        impl StorageKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }

            fn raw(self) -> sys::CUfileDriverStatusFlags_t {
                match self { $(Self::$name => sys::$constant,)* }
            }
        }
    };
}

storage! {
    Lustre = CU_FILE_LUSTRE_SUPPORTED "Lustre",
    WekaFs = CU_FILE_WEKAFS_SUPPORTED "WekaFS",
    Nfs = CU_FILE_NFS_SUPPORTED "NFS over RDMA",
    Gpfs = CU_FILE_GPFS_SUPPORTED "IBM Storage Scale",
    Nvme = CU_FILE_NVME_SUPPORTED "NVMe",
    NvmeOf = CU_FILE_NVMEOF_SUPPORTED "NVMe over fabrics",
    Scsi = CU_FILE_SCSI_SUPPORTED "SCSI",
    ScaleFlux = CU_FILE_SCALEFLUX_CSD_SUPPORTED "ScaleFlux",
    NvMesh = CU_FILE_NVMESH_SUPPORTED "NVMesh",
    BeeGfs = CU_FILE_BEEGFS_SUPPORTED "BeeGFS",
    NvmeP2p = CU_FILE_NVME_P2P_SUPPORTED "NVMe by peer-to-peer DMA",
    ScateFs = CU_FILE_SCATEFS_SUPPORTED "ScaTeFS",
    VirtioFs = CU_FILE_VIRTIOFS_SUPPORTED "virtiofs",
    PanFs = CU_FILE_PANFS_SUPPORTED "PanFS",
}

/// Ways of peer-to-peer transfer, as bits: `cufile_sys`'s `CU_FILE_P2P_FLAG_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct P2pFlags(pub u32);

impl P2pFlags {
    /// The kernel's PCI P2PDMA.
    pub const PCI_P2PDMA: Self = Self(sys::CU_FILE_P2P_FLAG_PCI_P2PDMA.0);
    /// The nvidia-fs kernel module.
    pub const NVFS: Self = Self(sys::CU_FILE_P2P_FLAG_NVFS.0);
    /// Buffers shared between drivers.
    pub const DMABUF: Self = Self(sys::CU_FILE_P2P_FLAG_DMABUF.0);
    /// The chip-to-chip link of Grace systems.
    pub const C2C: Self = Self(sys::CU_FILE_P2P_FLAG_C2C.0);
}

/// The library's struct with room after it: a later one may be larger.
#[repr(C)]
#[derive(Default)]
struct Roomy {
    properties: sys::CUfileDrvProps_t,
    room: [u64; 32],
}

/// Reads the properties. Before opening they are those of the last opening, or nothing.
pub(super) fn read(library: Library) -> CuFileResult<DriverProperties> {
    let mut roomy = Roomy::default();
    let library = library.enter()?;
    // SAFETY: the struct is writable for the call, and longer than any library's.
    let answer = unsafe { (library.cuFileDriverGetProperties)((&raw mut roomy).cast()) };
    check("cuFileDriverGetProperties", answer, || "reading the driver's properties".into())?;
    let raw = roomy.properties;
    let has = |flag: sys::CUfileDriverControlFlags_t| raw.nvfs.dcontrolflags & (1 << flag.0) != 0;
    Ok(DriverProperties {
        nvfs_version: (raw.nvfs.major_version, raw.nvfs.minor_version),
        poll_threshold_kib: raw.nvfs.poll_thresh_size,
        max_direct_io_kib: raw.nvfs.max_direct_io_size,
        storage_flags: raw.nvfs.dstatusflags,
        polls: has(sys::CU_FILE_USE_POLL_MODE),
        allows_compat: has(sys::CU_FILE_ALLOW_COMPAT_MODE),
        feature_flags: raw.fflags,
        max_device_cache_kib: raw.max_device_cache_size,
        per_buffer_cache_kib: raw.per_buffer_cache_size,
        max_device_pinned_kib: raw.max_device_pinned_mem_size,
        max_batch_size: raw.max_batch_io_size,
        batch_timeout_ms: raw.max_batch_io_timeout_msecs,
    })
}

/// Fails where the value read back is not the one that was set.
fn taken<T: PartialEq + std::fmt::Debug>(setting: &str, asked: T, found: T) -> CuFileResult<()> {
    if asked == found {
        return Ok(());
    }
    Err(CuFileError::NotTaken {
        setting: setting.into(),
        asked: format!("{asked:?}"),
        found: format!("{found:?}"),
    })
}

impl Driver {
    /// Its properties.
    ///
    /// # Errors
    /// Those of the library, and of [`Driver::health`], as for everything below.
    pub fn properties(&self) -> CuFileResult<DriverProperties> {
        self.health()?;
        read(self.library())
    }

    /// Polls for completion of transfers up to `threshold_kib`, or waits for interrupts.
    ///
    /// # Errors
    /// [`CuFileError::NotTaken`] where the library accepted it and did nothing.
    pub fn set_poll_mode(&self, polls: bool, threshold_kib: usize) -> CuFileResult<()> {
        let library = self.enter()?;
        // SAFETY: takes a C bool and a number.
        let answer = unsafe { (library.cuFileDriverSetPollMode)(polls, threshold_kib) };
        check("cuFileDriverSetPollMode", answer, || {
            format!("setting poll mode to {polls}, {threshold_kib} KiB")
        })?;
        let found = self.properties()?;
        taken("poll mode", (polls, threshold_kib), (found.polls, found.poll_threshold_kib))
    }

    /// The largest single transfer, in KiB; larger requests are split.
    ///
    /// # Errors
    /// As for [`Driver::set_poll_mode`].
    pub fn set_max_direct_io_kib(&self, size: usize) -> CuFileResult<()> {
        let library = self.enter()?;
        // SAFETY: takes a number.
        let answer = unsafe { (library.cuFileDriverSetMaxDirectIOSize)(size) };
        check("cuFileDriverSetMaxDirectIOSize", answer, || {
            format!("setting the largest transfer to {size} KiB")
        })?;
        taken("the largest transfer (KiB)", size, self.properties()?.max_direct_io_kib)
    }

    /// Device memory for bounce buffers, per GPU, in KiB.
    ///
    /// # Errors
    /// As for [`Driver::set_poll_mode`]; NVIDIA's 1.20 ignores it in compatibility mode.
    pub fn set_max_cache_kib(&self, size: usize) -> CuFileResult<()> {
        let library = self.enter()?;
        // SAFETY: takes a number.
        let answer = unsafe { (library.cuFileDriverSetMaxCacheSize)(size) };
        check("cuFileDriverSetMaxCacheSize", answer, || format!("setting the device cache to {size} KiB"))?;
        taken("the device cache (KiB)", size, self.properties()?.max_device_cache_kib as usize)
    }

    /// The BAR1 of the GPU of this index, in KiB; `None` where the library does not know.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.15; [`CuFileError::Call`] where there is no such GPU.
    pub fn bar_size_kib(&self, gpu: u32) -> CuFileResult<Option<usize>> {
        let library = self.enter()?;
        let function = need!(library, cuFileGetBARSizeInKB)?;
        let index = i32::try_from(gpu).map_err(|_| CuFileError::usage(format!("GPU {gpu}")))?;
        let mut size = 0;
        // SAFETY: `size` is writable for the call.
        let answer = unsafe { function(index, &mut size) };
        check("cuFileGetBARSizeInKB", answer, || format!("reading the BAR size of GPU {gpu}"))?;
        Ok((size > 0).then_some(size))
    }

    /// The ways of peer-to-peer transfer for a kind of storage.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.16.
    pub fn p2p_flags(&self, storage: StorageKind) -> CuFileResult<P2pFlags> {
        let library = self.enter()?;
        let function = need!(library, cuFileDriverGetP2PFlags)?;
        let mut flags = sys::CUfileP2PFlags(0 as c_uint);
        // SAFETY: `flags` is writable for the call.
        let answer = unsafe { function(storage.raw(), &mut flags) };
        check("cuFileDriverGetP2PFlags", answer, || format!("reading the P2P flags for {}", storage.name()))?;
        Ok(P2pFlags(flags.0))
    }

    /// Chooses the ways of peer-to-peer transfer for a kind of storage.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.16; [`CuFileError::NotTaken`] where the library accepted it and did
    /// nothing, as NVIDIA's 1.20 does in compatibility mode.
    pub fn set_p2p_flags(&self, storage: StorageKind, flags: P2pFlags) -> CuFileResult<()> {
        let library = self.enter()?;
        let function = need!(library, cuFileDriverSetP2PFlags)?;
        // SAFETY: takes two numbers.
        let answer = unsafe { function(storage.raw(), sys::CUfileP2PFlags(flags.0)) };
        check("cuFileDriverSetP2PFlags", answer, || format!("setting the P2P flags for {}", storage.name()))?;
        taken("the P2P flags", flags, self.p2p_flags(storage)?)
    }

    /// Writes the PCIe topology as the library sees it to a file.
    ///
    /// # Errors
    /// [`CuFileError::Missing`] before cuFile 1.17.
    pub fn export_topology(&self, path: &Path) -> CuFileResult<()> {
        let library = self.enter()?;
        let function = need!(library, cuFileExportPCIeTopology)?;
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| CuFileError::usage("a path with a zero byte"))?;
        // SAFETY: the name is a C string that lives for the call.
        let answer = unsafe { function(name.as_ptr()) };
        check("cuFileExportPCIeTopology", answer, || format!("writing the topology to {}", path.display()))
    }
}
