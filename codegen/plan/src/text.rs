//! The text form of a plan: all of it but the initial data.
//!
//! Contract: [`parse`] of [`print()`] is the same plan, for any plan without a NaN and without buckets
//! in buckets, valid or not, so that tests of a checker can be written by hand and wrong on purpose. A parsed
//! plan is not validated; call [`crate::Plan::validate`]. The form is described in the crate's README.

mod lex;
mod line;
mod parse;
mod print;

pub use parse::parse;
pub use print::print;
