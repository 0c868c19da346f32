//! The CUDA boundary: the only code that calls the driver and cuBLAS. It runs in worker processes alone, where an error
//! of the machine costs one candidate.
//!
//! Handles are made here, given back when dropped, and used from the one thread that made them. What a kernel writes in
//! device memory is the kernel's affair; host memory is only touched through slices of known size.
pub(super) mod blas;
pub(super) mod lt;

use super::super::protocol::{GpuInfo, Libraries};
use crate::host::Map;
use blas::Blas;
use cudarc::driver::{result, sys};
use std::ffi::{c_void, CString};
use std::rc::Rc;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{0}")]
    Missing(String),
    /// What was asked for is not to be had of this driver or library; nothing else is wrong.
    #[error("{0}")]
    Unsupported(String),
    #[error("out of device memory ({0})")]
    Memory(String),
    /// The driver reports it; what runs afterwards in this process cannot be trusted.
    #[error("{0}")]
    Driver(String),
}

impl From<result::DriverError> for Error {
    fn from(error: result::DriverError) -> Error {
        let text = format!("{error:?}");
        match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory(text),
            _ => Error::Driver(text),
        }
    }
}

/// A GPU whose context is current in this thread for as long as the process lives.
#[derive(Clone)]
pub(super) struct Gpu(Rc<sys::CUdevice>);

impl Gpu {
    /// The first GPU that the driver shows.
    pub fn open() -> Result<Gpu, Error> {
        // SAFETY: looks for the library by name; loading it runs its initialisers, which is what we want.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Missing("the CUDA driver (libcuda.so.1) is not to be found".into()));
        }
        result::init()?;
        if result::device::get_count()? == 0 {
            return Err(Error::Missing("the CUDA driver shows no GPU".into()));
        }
        let device = result::device::get(0)?;
        // SAFETY: the device is from `get`; the context is never released before the process ends.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }?;
        Ok(Gpu(Rc::new(device)))
    }

    /// What the driver says about it.
    pub fn info(&self) -> Result<GpuInfo, Error> {
        use sys::CUdevice_attribute_enum as Is;
        let device = *self.0;
        // SAFETY: the device is from `get`.
        let attribute = |what| unsafe { result::device::get_attribute(device, what) };
        let number = |what| attribute(what).map(|v| u32::try_from(v).unwrap_or(0));
        // What an old driver may not know.
        let asked = |what| number(what).unwrap_or(0);
        let major = number(Is::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = number(Is::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        // SAFETY: the device is from `get`.
        let memory_bytes = unsafe { result::device::total_mem(device) }? as u64;
        Ok(GpuInfo {
            name: result::device::get_name(device)?,
            arch: format!("sm_{major}{minor}"),
            sms: number(Is::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock_mhz: number(Is::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)? / 1000,
            memory_clock_mhz: number(Is::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)? / 1000,
            l2_bytes: u64::from(number(Is::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            memory_bytes,
            shared_per_block: number(Is::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_per_sm: asked(Is::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
            shared_reserved: asked(Is::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK),
            registers_per_sm: asked(Is::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR),
            threads_per_sm: asked(Is::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
            blocks_per_sm: asked(Is::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR),
            bus_bits: asked(Is::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
            bus: format!(
                "{:04x}:{:02x}:{:02x}",
                asked(Is::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                asked(Is::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                asked(Is::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
            ),
            max_clusters: if major >= 9 { self.max_clusters() } else { Vec::new() },
            libraries: Libraries { driver: self.version()?, nvrtc: None, cublas: Blas::version() },
        })
    }

    /// Clusters of 1, 2, 4 and 8 blocks that are resident at once, where each block takes a multiprocessor's shared memory:
    /// fewer than the multiprocessors would hold, where a part of the chip has some switched off. None where the driver does
    /// not say. A kernel that does nothing is asked about, which the driver itself compiles.
    fn max_clusters(&self) -> Vec<u32> {
        // SAFETY: the driver's library is loaded, and only looked into.
        let known = unsafe { sys::culib().get::<*const c_void>(b"cuOccupancyMaxActiveClusters\0") }.is_ok();
        let nothing = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n\0";
        let Some(module) = known.then(|| self.load(nothing).ok()).flatten() else { return Vec::new() };
        let most = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the device is from `get`.
        let shared = unsafe { result::device::get_attribute(*self.0, most) }.ok().and_then(|v| u32::try_from(v).ok());
        let Some(kernel) = shared.and_then(|shared| module.kernel("nothing", shared).ok()) else { return Vec::new() };
        let of = |size: u32| -> Option<u32> {
            let dims = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: size, y: 1, z: 1 };
            let mut attribute = sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue { clusterDim: dims },
            };
            let config = sys::CUlaunchConfig {
                gridDimX: size,
                gridDimY: 1,
                gridDimZ: 1,
                blockDimX: 128,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: kernel.dynamic_shared_bytes,
                hStream: std::ptr::null_mut(),
                attrs: &mut attribute,
                numAttrs: 1,
            };
            let mut clusters = 0;
            // SAFETY: the function is of a loaded module; number, attribute and configuration outlive the call.
            let asked = unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, kernel.function, &config) };
            asked.result().ok().and_then(|()| u32::try_from(clusters).ok())
        };
        [1, 2, 4, 8].into_iter().map_while(of).collect()
    }

    /// Waits until all is done.
    pub fn synchronize(&self) -> Result<(), Error> {
        Ok(result::ctx::synchronize()?)
    }

    /// Device memory; at least one byte.
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, Error> {
        let bytes = usize::try_from(bytes.max(1)).map_err(|_| Error::Memory(format!("{bytes} bytes")))?;
        // SAFETY: what is in it at first is never read: it is filled or poisoned before use.
        let pointer = unsafe { result::malloc_sync(bytes) }?;
        Ok(Buffer { pointer, bytes, _gpu: self.clone() })
    }

    /// Loads machine code.
    pub fn load(&self, cubin: &[u8]) -> Result<Module, Error> {
        if cubin.is_empty() {
            return Err(Error::Driver("no machine code".into()));
        }
        // SAFETY: the image is a whole cubin in host memory that outlives the call.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast::<c_void>()) }?;
        Ok(Module { module, _gpu: self.clone() })
    }

    /// A tensor map on a buffer.
    pub fn tensor_map(&self, buffer: &Buffer, map: &Map) -> Result<TensorMap, Error> {
        map.check(buffer.bytes()).map_err(|e| Error::Unsupported(format!("not launched: {e}")))?;
        let name: &[u8] = if map.image.is_some() { b"cuTensorMapEncodeIm2col\0" } else { b"cuTensorMapEncodeTiled\0" };
        // SAFETY: the driver's library is loaded, and only looked into.
        let known = unsafe { sys::culib().get::<*const c_void>(name) }.is_ok();
        if !known {
            let version = self.version()?;
            return Err(Error::Unsupported(format!(
                "not launched: this driver (of CUDA {version}) makes no tensor maps, which the kernel takes; install a driver of CUDA 12 or later"
            )));
        }
        let mut encoded = Box::new(sys::CUtensorMap { opaque: [0; 16] });
        let steps = map.steps();
        let data_type = data_type(map.element().0)?;
        let swizzle = match map.span() {
            Some(32) => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Some(64) => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Some(_) => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        let rank = map.dims.len() as u32;
        let address = buffer.pointer as *mut c_void;
        let interleave = sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE;
        let promotion = sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
        let fill = sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
        let (dims, strides, steps) = (map.dims.as_ptr(), map.strides.as_ptr(), steps.as_ptr());
        let (made, function) = match &map.image {
            None => {
                // SAFETY: the library has the function; `check` says that sizes, strides, box and steps are as many as the rank
                // says (strides one fewer), and all outlive the call; the map is aligned as its type is; the address is only
                // written down.
                let made = unsafe {
                    sys::cuTensorMapEncodeTiled(
                        &mut *encoded,
                        data_type,
                        rank,
                        address,
                        dims,
                        strides,
                        map.tile.as_ptr(),
                        steps,
                        interleave,
                        swizzle,
                        promotion,
                        fill,
                    )
                };
                (made, "cuTensorMapEncodeTiled")
            }
            Some(image) => {
                // SAFETY: the same; `check` says that there are two fewer corners than the rank says, and two sizes of a box.
                let made = unsafe {
                    sys::cuTensorMapEncodeIm2col(
                        &mut *encoded,
                        data_type,
                        rank,
                        address,
                        dims,
                        strides,
                        image.lower.as_ptr(),
                        image.upper.as_ptr(),
                        map.tile[0],
                        map.tile[1],
                        steps,
                        interleave,
                        swizzle,
                        promotion,
                        fill,
                    )
                };
                (made, "cuTensorMapEncodeIm2col")
            }
        };
        match made.result() {
            Ok(()) => Ok(TensorMap(encoded)),
            Err(error) => Err(Error::Driver(format!("{function} refuses {map:?}: {error:?}"))),
        }
    }

    /// The version of CUDA that the driver knows.
    fn version(&self) -> Result<String, Error> {
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// A mark in the stream of work.
    pub fn event(&self) -> Result<Event, Error> {
        let event = result::event::create(sys::CUevent_flags_enum::CU_EVENT_DEFAULT)?;
        Ok(Event { event, _gpu: self.clone() })
    }
}

/// The driver's name of a number of [`Map::element`].
fn data_type(number: u32) -> Result<sys::CUtensorMapDataType, Error> {
    use sys::CUtensorMapDataType as Is;
    let all = [
        Is::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        Is::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        Is::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        Is::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Is::CU_TENSOR_MAP_DATA_TYPE_UINT64,
        Is::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Is::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Is::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Is::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        Is::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    ];
    let found = all.into_iter().find(|is| *is as u32 == number);
    found.ok_or_else(|| Error::Unsupported(format!("the driver has no element type {number} of tensor maps")))
}

/// A tensor map, as the driver encodes it.
pub(super) struct TensorMap(Box<sys::CUtensorMap>);

/// Device memory.
pub(super) struct Buffer {
    pointer: sys::CUdeviceptr,
    bytes: usize,
    _gpu: Gpu,
}

impl Buffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Queues the setting of every byte.
    pub fn set(&self, byte: u8) -> Result<(), Error> {
        // SAFETY: exactly the buffer's bytes, in the default stream.
        Ok(unsafe { result::memset_d8_async(self.pointer, byte, self.bytes, std::ptr::null_mut()) }?)
    }

    /// Queues a copy of the common part of both.
    pub fn copy_from(&self, other: &Buffer) -> Result<(), Error> {
        let bytes = self.bytes.min(other.bytes);
        // SAFETY: both buffers have that many bytes and are different allocations.
        let copied = unsafe { result::memcpy_dtod_async(self.pointer, other.pointer, bytes, std::ptr::null_mut()) };
        Ok(copied?)
    }

    /// Waits and copies numbers to the host, as many as fit.
    pub fn read<T: Number>(&self, count: usize) -> Result<Vec<T>, Error> {
        let mut out = vec![T::default(); count.min(self.bytes / std::mem::size_of::<T>())];
        // SAFETY: the slice is not longer than the buffer, and every bit pattern is such a number.
        unsafe { result::memcpy_dtoh_sync(&mut out, self.pointer) }?;
        Ok(out)
    }
}

/// Numbers of which every bit pattern is one.
pub(super) trait Number: Copy + Default {}
impl Number for f64 {}
impl Number for u64 {}
impl Number for f32 {}
impl Number for i32 {}
impl Number for u16 {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated here, freed once. After a sticky error this fails, and the process is replaced.
        let _ = unsafe { result::free_sync(self.pointer) };
    }
}

/// Loaded machine code.
pub(super) struct Module {
    module: sys::CUmodule,
    _gpu: Gpu,
}

impl Module {
    /// A kernel of it, ready for so much dynamic shared memory.
    pub fn kernel(&self, name: &str, dynamic_shared_bytes: u32) -> Result<Kernel<'_>, Error> {
        let text = CString::new(name).map_err(|_| Error::Driver("a kernel's name has a zero byte".into()))?;
        // SAFETY: the module is loaded for as long as `self` lives.
        let function = unsafe { result::module::get_function(self.module, text) }?;
        if dynamic_shared_bytes > 0 {
            let most = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(dynamic_shared_bytes).unwrap_or(i32::MAX);
            // SAFETY: the function is of a loaded module.
            unsafe { result::function::set_function_attribute(function, most, bytes) }?;
        }
        Ok(Kernel { function, dynamic_shared_bytes, _module: self })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded here, unloaded once; kernels borrow the module.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// A kernel of a loaded module.
pub(super) struct Kernel<'m> {
    function: sys::CUfunction,
    dynamic_shared_bytes: u32,
    _module: &'m Module,
}

/// A kernel's argument.
#[derive(Clone, Copy)]
pub(super) enum Arg<'b> {
    Buffer(&'b Buffer),
    Map(&'b TensorMap),
    Int(i64),
    Double(f64),
}

impl Kernel<'_> {
    /// Queues a launch. A parameter of the kernel is 8 bytes wide (a pointer, a `long long` or a `double`) or a tensor map.
    pub fn launch(&self, grid: [u32; 3], block: [u32; 3], arguments: &[Arg<'_>]) -> Result<(), Error> {
        let mut values: Vec<u64> = arguments
            .iter()
            .map(|a| match a {
                Arg::Buffer(buffer) => buffer.pointer,
                Arg::Int(value) => *value as u64,
                Arg::Double(value) => value.to_bits(),
                Arg::Map(_) => 0,
            })
            .collect();
        let mut pointers: Vec<*mut c_void> = values
            .iter_mut()
            .zip(arguments)
            .map(|(v, a)| match a {
                // The driver reads it and writes nothing.
                Arg::Map(map) => std::ptr::from_ref(&*map.0).cast_mut().cast(),
                _ => std::ptr::from_mut(v).cast(),
            })
            .collect();
        let (grid, block) = ((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]));
        // SAFETY: the function is of a loaded module; the driver copies the parameters before it returns, and reads as
        // many as the kernel has, which the caller gives; device memory out of bounds is the candidate's fault and ends
        // this process.
        let launched = unsafe {
            result::launch_kernel(
                self.function,
                grid,
                block,
                self.dynamic_shared_bytes,
                std::ptr::null_mut(),
                &mut pointers,
            )
        };
        Ok(launched?)
    }
}

/// A mark in the stream of work.
pub(super) struct Event {
    event: sys::CUevent,
    _gpu: Gpu,
}

impl Event {
    /// Queues it.
    pub fn record(&self) -> Result<(), Error> {
        // SAFETY: the event lives as long as `self`; the default stream always exists.
        Ok(unsafe { result::event::record(self.event, std::ptr::null_mut()) }?)
    }

    /// Waits for it.
    pub fn wait(&self) -> Result<(), Error> {
        // SAFETY: the event lives as long as `self`.
        Ok(unsafe { result::event::synchronize(self.event) }?)
    }

    /// Time from an earlier one, ms; both have been waited for.
    pub fn since(&self, start: &Event) -> Result<f64, Error> {
        // SAFETY: both events live.
        Ok(f64::from(unsafe { result::event::elapsed(start.event, self.event) }?))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created here, destroyed once.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
