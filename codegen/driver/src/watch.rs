//! Progress of long work, and requests to end it with what there is.

/// News of work in progress.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A stage begins, such as `importing`.
    Stage(&'a str),
    /// Subject of the stages from now on; empty: the work as a whole.
    Subject(&'a str),
    /// A fact about the model, such as which file its optimizer was read from.
    Note(&'a str),
    /// A doubt that the user should know of.
    Warning(&'a str),
    /// A search found a plan that fits.
    Found(Found),
    /// A search with a population left a generation behind.
    Generation(Generation<'a>),
    /// A request to stop ended a search; work goes on with the best plan found so far.
    Kept,
}

/// Progress of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Step time of the best plan so far in ns.
    pub step_ns: u64,
    /// Step time in ns when nothing waits.
    pub ideal_ns: u64,
    /// Step time in ns that no plan can beat; 0 where unknown.
    pub bound_ns: u64,
    /// Plans evaluated so far.
    pub evaluations: u64,
    /// Time since planning began in ns.
    pub elapsed_ns: u64,
}

/// Individuals that live on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generation<'a> {
    /// Step times in ns by the planner's own model, of those that fit.
    pub step_ns: &'a [u64],
    /// Plans evaluated so far.
    pub evaluations: u64,
    /// Time since planning began in ns.
    pub elapsed_ns: u64,
}

/// Observer of long work, which may also end it. Called from several threads.
pub trait Watch: Sync {
    /// Takes an event.
    fn event(&self, _event: Event<'_>) {}

    /// Whether searches shall end with the best they have.
    fn stop(&self) -> bool {
        false
    }

    /// As [`Watch::stop`], and withdraws the request: the work has answered it.
    fn take_stop(&self) -> bool {
        self.stop()
    }

    /// `true`: there is a result now, which a request to stop must not lose. `false`: it is handed over or
    /// gone.
    ///
    /// Calls nest, and come in pairs.
    fn hold(&self, _held: bool) {}

    /// Whether anybody sees [`Event::Found`]. Bounds for it alone are not computed otherwise.
    fn is_seen(&self) -> bool {
        false
    }
}

/// Observer that neither shows nor stops anything.
#[derive(Clone, Copy, Default, Debug)]
pub struct Silent;

impl Watch for Silent {}

/// Guard of [`Watch::hold`].
pub struct Hold<'a>(&'a dyn Watch);

impl<'a> Hold<'a> {
    /// Holds until dropped.
    pub fn begin(watch: &'a dyn Watch) -> Hold<'a> {
        watch.hold(true);
        Hold(watch)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}
