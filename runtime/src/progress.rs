//! The order of sections: the one whose accesses a program proves to be ordered.

use memc_plan::Section;

use crate::Error;

/// Progress of the issuing thread.
#[derive(Clone, Copy)]
pub(crate) enum Progress {
    New,
    After(Section),
    /// Within a section, or left within one by an error or panic.
    Within,
}

impl Progress {
    /// Whether `section` is next in prologue, any number of bodies, epilogue; a prologue may begin them
    /// again.
    pub(crate) fn allows(self, section: Section) -> bool {
        use Section::{Body, Epilogue, Prologue};
        match section {
            Prologue => matches!(self, Progress::New | Progress::After(Epilogue)),
            Body | Epilogue => matches!(self, Progress::After(Prologue | Body)),
        }
    }

    /// Refuses to touch states but between two steps.
    pub(crate) fn between_steps(self) -> Result<(), Error> {
        match self {
            Progress::After(Section::Prologue | Section::Body) => Ok(()),
            _ => Err(Error::Internal("states are handed out between two steps only".to_owned())),
        }
    }

    /// Error of a section that is not next.
    pub(crate) fn refuse(section: Section) -> Error {
        Error::Internal(format!(
            "the {section} was run out of order: a prologue, any number of bodies and an epilogue make a run"
        ))
    }
}
