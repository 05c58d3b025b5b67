//! Proves a plan against its source graph.
