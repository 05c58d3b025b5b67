//! Lowers the memory IR to a plan.
