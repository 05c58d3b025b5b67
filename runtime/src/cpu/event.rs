//! Events with the meaning of CUDA's: a record overwrites, a wait binds when it is issued.
//!
//! A stream counts its records as it passes them. Recording an event notes which record of which stream the
//! event stands for; waiting for it means waiting until that stream has passed that record. Only the issuing
//! thread looks at the table, so that binding at the time of the call needs no synchronisation.

/// The record number `record`, counted from 1, of the stream with index `stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) stream: usize,
    pub(super) record: u64,
}

/// Most recent record of each event, as seen by the issuing thread.
pub(super) struct Events {
    table: Vec<Option<Ticket>>,
}

impl Events {
    pub(super) fn new(count: usize) -> Events {
        Events { table: vec![None; count] }
    }

    pub(super) fn record(&mut self, event: usize, ticket: Ticket) {
        if let Some(entry) = self.table.get_mut(event) {
            *entry = Some(ticket);
        }
    }

    /// Most recent record of the event; `None` if there is none.
    pub(super) fn ticket(&self, event: usize) -> Option<Ticket> {
        self.table.get(event).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later record replaces an earlier one, also of another stream, and other events keep theirs.
    #[test]
    fn records_overwrite() {
        let mut events = Events::new(2);
        assert_eq!(events.ticket(0), None);
        events.record(0, Ticket { stream: 0, record: 1 });
        events.record(1, Ticket { stream: 1, record: 1 });
        events.record(0, Ticket { stream: 2, record: 5 });
        assert_eq!(events.ticket(0), Some(Ticket { stream: 2, record: 5 }));
        assert_eq!(events.ticket(1), Some(Ticket { stream: 1, record: 1 }));
    }
}
