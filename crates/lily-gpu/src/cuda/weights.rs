//! Weights to the device, once: threads copy from the mapped files into page-locked buffers, and from there the copy engine
//! takes them while the next pieces are read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use lily_model::checkpoint::{self, Checkpoint};
use lily_model::device::DeviceError;

use super::api::{Context, DeviceBuffer, Event, HostBuffer, Stream, Timing, failed};

/// Bytes of one piece.
const PIECE: usize = 16 << 20;
/// Most threads that read.
const READERS: usize = 12;
/// Start of a range on the device: whatever kernels load at once stays aligned.
const ALIGNMENT: u64 = 256;

/// Told the bytes uploaded so far and the bytes in all.
pub type Progress = Box<dyn Fn(u64, u64) + Send + Sync>;

/// Offsets of ranges laid one after another, and the bytes they take.
pub fn layout(wanted: &[checkpoint::Span]) -> (Vec<u64>, u64) {
    let mut end = 0u64;
    let offsets = wanted
        .iter()
        .map(|span| {
            let offset = end;
            end = (end + span.len as u64).next_multiple_of(ALIGNMENT);
            offset
        })
        .collect();
    (offsets, end)
}

/// A piece of a range: where it is in the checkpoint, and where it goes.
struct Piece {
    span: checkpoint::Span,
    to: u64,
}

/// Uploads ranges of a checkpoint to the offsets that [`layout`] gave.
pub fn upload(
    context: &Context,
    checkpoint: &Checkpoint,
    wanted: &[checkpoint::Span],
    offsets: &[u64],
    buffer: &DeviceBuffer,
    progress: Option<&Progress>,
) -> Result<(), DeviceError> {
    let mut pieces = Vec::new();
    for (span, offset) in wanted.iter().zip(offsets) {
        let mut at = 0;
        while at < span.len {
            let len = PIECE.min(span.len - at);
            let part = checkpoint::Span { offset: span.offset + at, len, ..*span };
            pieces.push(Piece { span: part, to: buffer.address + offset + at as u64 });
            at += len;
        }
    }
    let total: u64 = wanted.iter().map(|s| s.len as u64).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let readers = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
    let read = || -> Result<(), DeviceError> {
        context.make_current()?;
        let mut slots = Vec::new();
        for _ in 0..2 {
            slots.push((HostBuffer::new(PIECE)?, Event::new(Timing::Untimed)?));
        }
        let stream = Stream::new()?;
        let mut copy = |turn: usize, piece: &Piece| {
            let (host, event) = &mut slots[turn % 2];
            if turn >= 2 {
                event.wait("upload of weights")?;
            }
            host.bytes_mut()[..piece.span.len].copy_from_slice(checkpoint.bytes(piece.span));
            // SAFETY: the slot is not written again before its event, and outlives the stream's work, which is waited for
            // below whatever happens.
            unsafe { stream.upload(piece.to, &host.bytes()[..piece.span.len])? };
            event.record(&stream)
        };
        let mut copied = Ok(());
        for turn in 0.. {
            let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            copied = copy(turn, piece);
            if copied.is_err() {
                // The others need not go on.
                next.store(pieces.len(), Ordering::Relaxed);
                break;
            }
            let so_far = done.fetch_add(piece.span.len as u64, Ordering::Relaxed) + piece.span.len as u64;
            if let Some(report) = progress {
                report(so_far, total);
            }
        }
        let finished = stream.synchronize("upload of weights");
        copied.and(finished)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(), DeviceError>>| {
            thread.join().unwrap_or_else(|_| Err(failed("upload of weights", "a reading thread panicked")))
        };
        let results: Vec<_> = threads.into_iter().map(join).collect();
        results.into_iter().collect()
    })
}
