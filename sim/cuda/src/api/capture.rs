//! Captures of streams for graphs.

use crate::call::api;
use crate::ffi::{Handle, Out};
use crate::state::{capture, stream};

api! {
    fn cuStreamBeginCapture_v2(handle: Handle, mode: i32) {
        capture::begin(stream::find(handle)?, mode)
    }

    /// There is never a graph: a null handle.
    fn cuStreamEndCapture(handle: Handle, graph: Out<Handle>) {
        graph.set(0)?;
        let stream = stream::find(handle)?;
        capture::end(&stream)
    }

    fn cuStreamIsCapturing(handle: Handle, status: Out<i32>) {
        let stream = stream::find(handle)?;
        capture::permit_question(&stream)?;
        status.set(capture::status(&stream))
    }

    /// The mode asked for goes in, the one before comes out.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<i32>) {
        mode.set(capture::exchange(mode.get()?)?)
    }
}
