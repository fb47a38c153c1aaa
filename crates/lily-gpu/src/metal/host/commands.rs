//! Command buffers: a program's stages encoded with barriers between them, and what became of each command buffer.

use std::ops::Range;

use objc2::msg_send;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandBufferDescriptor, MTLCommandBufferEncoderInfo,
    MTLCommandBufferEncoderInfoErrorKey, MTLCommandBufferError, MTLCommandBufferErrorDomain,
    MTLCommandBufferErrorOption, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandEncoderErrorState,
    MTLCommandQueue, MTLComputeCommandEncoder, MTLDevice, MTLDispatchType, MTLSize,
};

use lily_model::device::DeviceError;

use super::super::{NAME, failed};
use super::gpu::{Gpu, words};
use super::memory::Buffer;
use super::pipelines::Pipeline;
use crate::program::{BufferId, Dispatch, Program};

/// Finds what a dispatch refers to.
pub(super) trait Resources {
    fn buffer(&self, id: BufferId) -> Result<&Buffer, DeviceError>;
    fn pipeline(&self, dispatch: &Dispatch) -> Result<&Pipeline, DeviceError>;
}

/// A committed command buffer.
pub(super) struct Committed {
    raw: Retained<ProtocolObject<dyn MTLCommandBuffer>>,
    /// The operations in it.
    op: String,
}

/// A pass that ends its encoder whatever happens: an encoder that is still open when it is released ends the process.
struct ComputePass(Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>);

impl Drop for ComputePass {
    fn drop(&mut self) {
        self.0.endEncoding();
    }
}

struct BlitPass(Retained<ProtocolObject<dyn MTLBlitCommandEncoder>>);

impl Drop for BlitPass {
    fn drop(&mut self) {
        self.0.endEncoding();
    }
}

/// Whether a command buffer keeps what it refers to alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum References {
    Retained,
    /// The driver does, which saves counting them.
    Unretained,
}

fn command_buffer(
    gpu: &Gpu,
    op: &str,
    references: References,
) -> Result<Retained<ProtocolObject<dyn MTLCommandBuffer>>, DeviceError> {
    let descriptor = MTLCommandBufferDescriptor::new();
    descriptor.setRetainedReferences(references == References::Retained);
    descriptor.setErrorOptions(MTLCommandBufferErrorOption::EncoderExecutionStatus);
    let buffer = gpu.queue.commandBufferWithDescriptor(&descriptor);
    let buffer = buffer.ok_or_else(|| failed(op, "the queue gives no command buffer"))?;
    buffer.setLabel(Some(&NSString::from_str(op)));
    Ok(buffer)
}

/// The operations of some stages, for messages.
fn label(program: &Program, stages: &Range<usize>) -> String {
    let all: Vec<usize> = program.stages[stages.clone()].iter().flatten().copied().collect();
    match (all.iter().min(), all.iter().max()) {
        (Some(&first), Some(&last)) if first != last => {
            format!("{} to {}", program.dispatches[first].label(), program.dispatches[last].label())
        }
        (Some(&only), _) => program.dispatches[only].label(),
        _ => "nothing".into(),
    }
}

/// Encodes stages as one concurrent pass with a barrier between each two, and commits it.
pub(super) fn submit(
    gpu: &Gpu,
    resources: &impl Resources,
    program: &Program,
    stages: Range<usize>,
) -> Result<Committed, DeviceError> {
    let op = label(program, &stages);
    let buffer = command_buffer(gpu, &op, References::Unretained)?;
    {
        let pass = compute_pass(gpu, &buffer, &op)?;
        for (i, stage) in program.stages[stages].iter().enumerate() {
            if i > 0 {
                pass.0.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            for &index in stage {
                encode(&pass, resources, &program.dispatches[index])?;
            }
        }
        pass.0.updateFence(&gpu.fence);
    }
    buffer.commit();
    Ok(Committed { raw: buffer, op })
}

fn compute_pass(
    gpu: &Gpu,
    buffer: &ProtocolObject<dyn MTLCommandBuffer>,
    op: &str,
) -> Result<ComputePass, DeviceError> {
    let encoder = buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
    let pass = ComputePass(encoder.ok_or_else(|| failed(op, "the command buffer gives no encoder"))?);
    pass.0.setLabel(Some(&NSString::from_str(op)));
    pass.0.waitForFence(&gpu.fence);
    Ok(pass)
}

fn encode(pass: &ComputePass, resources: &impl Resources, dispatch: &Dispatch) -> Result<(), DeviceError> {
    pass.0.setComputePipelineState(&resources.pipeline(dispatch)?.raw);
    for binding in &dispatch.bindings {
        let buffer = resources.buffer(binding.span.buffer)?;
        let (offset, index) = (binding.span.offset as usize, binding.index as usize);
        // SAFETY: `prepare` checked that the range lies in the buffer and the index is one that Metal has. The driver keeps
        // the buffer until the command buffer has finished; the fence and the barriers order accesses.
        unsafe { pass.0.setBuffer_offset_atIndex(Some(&buffer.raw), offset, index) };
    }
    let [width, height, depth] = dispatch.grid.map(|n| n as usize);
    let threads = MTLSize { width: dispatch.threads as usize, height: 1, depth: 1 };
    pass.0.dispatchThreadgroups_threadsPerThreadgroup(MTLSize { width, height, depth }, threads);
    Ok(())
}

/// Copies or fills, ordered like a program.
pub(super) fn blit(
    gpu: &Gpu,
    op: &str,
    work: impl FnOnce(&ProtocolObject<dyn MTLBlitCommandEncoder>),
) -> Result<Committed, DeviceError> {
    let buffer = command_buffer(gpu, op, References::Retained)?;
    {
        let encoder = buffer.blitCommandEncoder();
        let pass = BlitPass(encoder.ok_or_else(|| failed(op, "the command buffer gives no encoder"))?);
        pass.0.setLabel(Some(&NSString::from_str(op)));
        pass.0.waitForFence(&gpu.fence);
        work(&pass.0);
        pass.0.updateFence(&gpu.fence);
    }
    buffer.commit();
    Ok(Committed { raw: buffer, op: op.into() })
}

impl Committed {
    /// Waits for the end, whatever it is.
    pub fn settle(&self) {
        self.raw.waitUntilCompleted();
    }

    /// Waits; nanoseconds of GPU time.
    ///
    /// # Errors
    /// What the GPU reports, with the operations that it concerns.
    pub fn finish(&self, gpu: &Gpu) -> Result<u64, DeviceError> {
        self.settle();
        let status = self.raw.status();
        if status == MTLCommandBufferStatus::Completed {
            // SAFETY: two properties of a finished command buffer, seconds.
            let (start, end): (f64, f64) =
                unsafe { (msg_send![&*self.raw, GPUStartTime], msg_send![&*self.raw, GPUEndTime]) };
            return Ok(((end - start).max(0.0) * 1e9) as u64);
        }
        let Some(error) = self.raw.error() else {
            return Err(failed(&self.op, format!("the command buffer ended with status {} and no error", status.0)));
        };
        let op = faulted_encoder(&error).unwrap_or_else(|| self.op.clone());
        // SAFETY: a constant string of Metal.
        let domain = unsafe { MTLCommandBufferErrorDomain };
        if error.code() == MTLCommandBufferError::OutOfMemory.0 as isize && *error.domain() == *domain {
            let needed = gpu.device.currentAllocatedSize() as u64;
            return Err(DeviceError::OutOfMemory { device: NAME, what: op, needed, available: gpu.limits.working_set });
        }
        Err(failed(&op, words(&error)))
    }
}

/// The label of the encoder that failed, where the error says so.
fn faulted_encoder(error: &NSError) -> Option<String> {
    // SAFETY: a constant string of Metal.
    let key = unsafe { MTLCommandBufferEncoderInfoErrorKey };
    let value = error.userInfo().objectForKey(key)?;
    // SAFETY: Metal documents the value under this key as an array of encoder infos.
    let infos: Retained<NSArray<ProtocolObject<dyn MTLCommandBufferEncoderInfo>>> =
        unsafe { Retained::cast_unchecked(value) };
    let faulted = (0..infos.count()).map(|i| infos.objectAtIndex(i));
    let mut faulted = faulted.filter(|info| info.errorState() == MTLCommandEncoderErrorState::Faulted);
    faulted.next().map(|info| info.label().to_string())
}

/// Runs a failed program again with an encoder for each dispatch, to learn which of them it is. The state of the sequences
/// in it is lost anyway.
pub(super) fn find_fault(gpu: &Gpu, resources: &impl Resources, program: &Program) -> Option<DeviceError> {
    for &index in program.stages.iter().flatten() {
        let dispatch = &program.dispatches[index];
        let op = dispatch.label();
        let run = || -> Result<Committed, DeviceError> {
            let buffer = command_buffer(gpu, &op, References::Unretained)?;
            {
                let pass = compute_pass(gpu, &buffer, &op)?;
                encode(&pass, resources, dispatch)?;
                pass.0.updateFence(&gpu.fence);
            }
            buffer.commit();
            Ok(Committed { raw: buffer, op: op.clone() })
        };
        if let Err(error) = run().and_then(|committed| committed.finish(gpu)) {
            return Some(error);
        }
    }
    None
}
