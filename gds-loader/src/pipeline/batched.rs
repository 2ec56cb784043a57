//! Reads into windows, kept in flight by cuFile's batches.

use super::in_flight::{Ended, Engine, Read};
use super::lanes::Lanes;
use super::piece::Landed;
use super::tally::Tally;
use crate::cufile::Driver;
use crate::error::{Error, Result};
use crate::plan::Piece;
use crate::transport::{Ended as BatchEnded, GdsBatch, Landing, Transport};

/// cuFile's batches, for files whose path reads into windows.
pub(super) struct Batched(GdsBatch);

impl Batched {
    /// A batch for so many reads; `None` where the library has none to give, which is no reason to leave the path.
    pub(super) fn open(driver: &Driver, reads: usize) -> Option<Self> {
        let batch = GdsBatch::new(driver, reads);
        batch
            .inspect_err(|error| tracing::warn!(%error, "there are no batches; reads go one by one"))
            .ok()
            .map(Self)
    }
}

impl Engine for Batched {
    fn takes(&self, transport: &Transport) -> bool {
        matches!(transport, Transport::Device(gds) if self.0.serves() && gds.landing() == Landing::Window)
    }

    fn has_room(&mut self, _: &Piece, lanes: &mut Lanes<'_>, _: &mut Tally) -> Result<bool> {
        Ok(self.0.in_flight() == 0 || (self.0.room() > 0 && lanes.has_window()?))
    }

    fn begin(
        &mut self,
        key: usize,
        read: &mut Read<'_>,
        lanes: &mut Lanes<'_>,
        _: &mut Tally,
    ) -> Result<Option<Ended>> {
        let Transport::Device(gds) = &read.transport else {
            return Err(Error::Worker { reason: "a batch was given a file that is not cuFile's".into() });
        };
        let Some(window) = lanes.window()? else {
            let outcome = Err(gds.without_window(&read.piece.extent));
            return Ok(Some(Ended { key, part: None, outcome }));
        };
        let ended = self.0.begin(key, gds, window, &read.piece.extent);
        Ok(ended.map(|ended| landed(ended, lanes)))
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn wait(&mut self, lanes: &mut Lanes<'_>, _: &mut Tally) -> Result<Vec<Ended>> {
        Ok(self.0.wait().into_iter().map(|ended| landed(ended, lanes)).collect())
    }
}

/// Gives the window of a read that failed back.
fn landed((key, outcome): BatchEnded, lanes: &mut Lanes<'_>) -> Ended {
    let outcome = outcome.map(Landed::Window).map_err(|(window, failure)| {
        window.into_iter().for_each(|window| lanes.put_back(window));
        failure
    });
    Ended { key, part: None, outcome }
}
