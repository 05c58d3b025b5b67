//! Every pass, rule and op has a golden file that names it.
