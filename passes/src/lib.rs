//! Graph rewrites, cost model, planners and layout.
