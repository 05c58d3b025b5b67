//! Compiles a model and prints its peak: `cargo run -p memc --example compile -- model.onnx 90%`.

use memc::{Error, Model, Options, Silent, Size, Source, Target, compile};

#[allow(clippy::print_stdout, reason = "an example shows its result")]
fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "models/cnn_bn/training_model.onnx".into()).into();
    let percent = args.next().and_then(|text| text.trim_end_matches('%').parse().ok()).unwrap_or(100.0);

    let model = Model::read(&Source { path, ..Source::default() }.into(), &Target::default(), &Silent)?;
    let budget = Some(Size::Percent(percent));
    let compiled = compile(&model, &Options { budget, ..Options::default() })?;
    println!("peak {} of {} bytes unplanned", compiled.peak_bytes(), compiled.unplanned_peak_bytes());
    Ok(())
}
